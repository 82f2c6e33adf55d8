//! Meshes and batches that cannot be: what was asked, what is the most or the least that works.

use super::{fails, folder, models, succeeds};

#[track_caller]
fn refused(args: &[&str], code: i32, words: &[&str]) {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    fails(place.path(), &[&["compile", &model, "--seq", "16"], args].concat(), code, words);
}

#[test]
fn axes_of_no_device() {
    for axis in ["--tp", "--pp", "--dp"] {
        refused(&[axis, "0"], 2, &[axis, "1"]);
        refused(&[&format!("{axis}=-1")], 2, &[axis]);
        refused(&[axis, "many"], 2, &[axis]);
        refused(&[axis, "99999999999"], 2, &[axis]);
    }
    refused(&["--tp", "1048576", "--pp", "1048576"], 2, &["1048576"]);
}

/// The embedding and the head can be split into 101 pieces, a layer's MLP into 80, which is the most for the whole.
#[test]
fn tp_beyond_the_model() {
    refused(&["--tp", "1000"], 1, &["--tp 1000", "the most is 80", "--tp 80 or less"]);
}

#[test]
fn pp_beyond_the_layers() {
    // Embedding, five layers, head.
    refused(&["--pp", "1000"], 1, &["--pp", "7"]);
}

#[test]
fn batches_with_rows_missing() {
    refused(&["--dp", "4", "--batch", "3"], 1, &["3 rows", "--batch 4", "--dp 3"]);
    refused(&["--batch", "3", "--micro-batches", "4"], 1, &["3 rows", "--micro-batches 3"]);
    refused(&["--dp", "2", "--pp", "2", "--batch", "5", "--micro-batches", "3"], 1, &["5 rows", "6"]);
    refused(&["--batch", "0"], 2, &["--batch"]);
    refused(&["--micro-batches", "0"], 2, &["micro-batches"]);
}

#[test]
fn sequences_beyond_the_model() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    fails(place.path(), &["compile", &model, "--seq", "65"], 1, &["65", "64"]);
    fails(place.path(), &["compile", &model, "--seq", "0"], 2, &["--seq"]);
}

#[test]
fn memory_that_is_too_small() {
    refused(&["--memory", "1KiB"], 1, &["memory"]);
    refused(&["--memory", "lots"], 2, &["--memory"]);
}

/// Batches and sizes that do not divide are fine: 5 rows in 2 micro-batches on 2 replicas.
#[test]
fn uneven_batches_compile() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let args = ["compile", &model, "--seq", "9", "--dp", "2", "--pp", "2", "--tp", "3", "--batch", "5"];
    succeeds(place.path(), &args);
}

#[test]
fn command_lines_that_are_none() {
    let place = folder();
    fails(place.path(), &["compile"], 2, &["MODEL"]);
    fails(place.path(), &["frobnicate"], 2, &["frobnicate"]);
    fails(place.path(), &["compile", "x.json", "--frobnicate"], 2, &["--frobnicate"]);
    fails(place.path(), &["compile", "x.json", "--emit", "cake"], 2, &["cake"]);
    fails(place.path(), &["compile", "x.json", "--print-after", "lunch"], 2, &["lunch", "partition"]);
}

/// What later versions will do is refused by name; its one present value is taken.
#[test]
fn beyond_this_version() {
    for (flag, value) in [("--ep", "2"), ("--cp", "4"), ("--mode", "train"), ("--dtype", "f16")] {
        refused(&[flag, value], 2, &[flag, value, "beyond this version"]);
    }
    refused(&["--dtype", "q3"], 2, &["q3", "f32 or bf16"]);
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let defaults = ["--ep", "1", "--cp", "1", "--mode", "infer", "--dtype", "f32", "--target", "cpu"];
    succeeds(place.path(), &[&["compile", &model, "--seq", "16"][..], &defaults].concat());
}
