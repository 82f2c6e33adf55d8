//! Checkpoints that lie, lack tensors, have too many, or are of another model.

use super::{copied_folder, data, fails, folder, models, succeeds};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The header and the values of a safetensors file.
fn parts(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

fn write(path: &Path, header: &Map<String, Value>, values: &[u8]) {
    let header = serde_json::to_vec(header).unwrap();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes(), &header[..], values].concat()).unwrap();
}

const ARGS: [&str; 4] = ["compile", "tiny-llama", "--seq", "8"];

/// Compiles the tiny llama after a change of its checkpoint's header.
#[track_caller]
fn refused(change: impl FnOnce(&mut Map<String, Value>), words: &[&str]) {
    let place = folder();
    let model = copied_folder(&data("tiny-llama"), place.path());
    let file = model.join("model.safetensors");
    let (mut header, values) = parts(&file);
    change(&mut header);
    write(&file, &header, &values);
    fails(place.path(), &ARGS, 1, words);
}

const Q: &str = "model.layers.1.self_attn.q_proj.weight";

#[test]
fn whole_checkpoints_compile() {
    let place = folder();
    copied_folder(&data("tiny-llama"), place.path());
    succeeds(place.path(), &ARGS);
}

#[test]
fn lying_offsets() {
    refused(|h| h[Q]["data_offsets"] = json!([4568, 1u64 << 50]), &["model.safetensors", Q, "outside"]);
    refused(|h| h[Q]["data_offsets"] = json!([5720, 4568]), &[Q]);
    refused(|h| h[Q]["data_offsets"] = json!([4568, 5000]), &[Q, "bytes"]);
    refused(|h| h[Q]["data_offsets"] = json!([-1, 5]), &["model.safetensors"]);
}

#[test]
fn overlaps_and_holes() {
    refused(|h| h[Q]["data_offsets"] = json!([4566, 5718]), &["model.safetensors", "overlaps"]);
    refused(|h| drop(h.remove(Q)), &["hole"]);
}

#[test]
fn lying_shapes_and_types() {
    refused(|h| h[Q]["shape"] = json!([48, 13]), &[Q, "bytes"]);
    refused(|h| h[Q]["shape"] = json!([0, 12]), &[Q]);
    refused(|h| h[Q]["shape"] = json!([1u64 << 32, 1u64 << 32]), &[Q]);
    refused(|h| h[Q]["shape"] = json!([12, 48]), &[Q, "[12, 48]", "[48, 12]"]);
    refused(|h| h[Q]["dtype"] = json!("I16"), &[Q, "I16"]);
    refused(|h| h[Q]["dtype"] = json!("F32"), &[Q, "bytes"]);
}

#[test]
fn missing_and_extra_tensors_are_listed() {
    let rename = |h: &mut Map<String, Value>, from: &str, to: &str| {
        let tensor = h.remove(from).unwrap();
        h.insert(to.to_owned(), tensor);
    };
    refused(
        |h| {
            rename(h, Q, "model.layers.1.self_attn.q_proj.wait");
            rename(h, "lm_head.weight", "lm_tail.weight");
        },
        &[Q, "lm_head.weight", "2 missing", "self_attn.q_proj.wait", "lm_tail.weight"],
    );
}

#[test]
fn headers_that_lie() {
    let bad = |bytes: &[u8], words: &[&str]| {
        let place = folder();
        let model = copied_folder(&data("tiny-llama"), place.path());
        std::fs::write(model.join("model.safetensors"), bytes).unwrap();
        fails(place.path(), &ARGS, 1, &[&["model.safetensors"], words].concat());
    };
    bad(b"", &["empty"]);
    bad(b"1234", &[]);
    bad(&u64::MAX.to_le_bytes(), &[]);
    bad(&[&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(), &[]);
    bad(&[&2u64.to_le_bytes()[..], b"{}"].concat(), &["missing"]);
    bad(&[&4u64.to_le_bytes()[..], b"\xff\xff\xff\xff"].concat(), &["UTF-8"]);
    let whole = std::fs::read(data("tiny-llama").join("model.safetensors")).unwrap();
    bad(&whole[..whole.len() - 10], &[]);
}

#[test]
fn weights_of_another_model() {
    let place = folder();
    copied_folder(&data("tiny-llama"), place.path());
    let gpt2 = data("tiny-gpt2").join("model.safetensors");
    let args = [&ARGS[..], &["--weights", gpt2.to_str().unwrap()]].concat();
    fails(place.path(), &args, 1, &["missing", "h.0.attn.bias"]);
    // At run time the header must be the one compiled with.
    succeeds(place.path(), &[&ARGS[..], &["-o", "llama.pcc"]].concat());
    let input = super::npz::token_file(place.path(), 1, 4);
    std::fs::write(&input, small_tokens(place.path())).unwrap();
    let run = ["run", "llama.pcc", "--input", input.to_str().unwrap()];
    succeeds(place.path(), &run);
    fails(place.path(), &[&run[..], &["--weights", gpt2.to_str().unwrap()]].concat(), 1, &["another model"]);
    let file = place.path().join("tiny-llama/model.safetensors");
    std::fs::rename(&file, place.path().join("moved.safetensors")).unwrap();
    fails(place.path(), &run, 1, &["model.safetensors", "--weights"]);
    succeeds(place.path(), &[&run[..], &["--weights", "moved.safetensors"]].concat());
    // Truncated after it was compiled.
    let moved = std::fs::OpenOptions::new().write(true).open(place.path().join("moved.safetensors")).unwrap();
    moved.set_len(5000).unwrap();
    fails(place.path(), &[&run[..], &["--weights", "moved.safetensors"]].concat(), 1, &["moved.safetensors"]);
}

/// Token ids below 19.
fn small_tokens(folder: &Path) -> Vec<u8> {
    let path = folder.join("small.npz");
    super::npz::write_i32(&path, &[("tokens", &[1, 4], vec![3, 1, 4, 15])]);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

#[test]
fn artifacts_without_weights_take_none() {
    let place = folder();
    let artifact = models::artifact("llama", &[]);
    let input = super::npz::token_file(place.path(), 1, 4);
    let gpt2 = data("tiny-gpt2").join("model.safetensors");
    let args = [
        "run",
        artifact.to_str().unwrap(),
        "--input",
        input.to_str().unwrap(),
        "--weights",
        gpt2.to_str().unwrap(),
    ];
    fails(place.path(), &args, 1, &["without weights"]);
}

/// A GGUF header: magic, version, counts.
fn gguf(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &keys.to_le_bytes(), rest].concat()
}

#[test]
fn gguf_files_that_lie() {
    let bad = |bytes: &[u8]| {
        let place = folder();
        std::fs::write(place.path().join("m.gguf"), bytes).unwrap();
        fails(place.path(), &["compile", "m.gguf"], 1, &["m.gguf"]);
    };
    bad(b"");
    bad(b"GGUF");
    bad(&gguf(0, 0, b""));
    for count in [1, 1 << 20, 1 << 40, u64::MAX] {
        bad(&gguf(count, 0, &[0; 64]));
        bad(&gguf(0, count, &[0; 64]));
    }
    // A key whose name says it is longer than the file, a string value of 2^60 bytes, an array of 2^61 elements.
    bad(&gguf(0, 1, &u64::MAX.to_le_bytes()));
    let key = [&1u64.to_le_bytes()[..], b"k"].concat();
    bad(&gguf(0, 1, &[&key[..], &8u32.to_le_bytes(), &(1u64 << 60).to_le_bytes()].concat()));
    bad(&gguf(
        0,
        1,
        &[&key[..], &9u32.to_le_bytes(), &4u32.to_le_bytes(), &(1u64 << 61).to_le_bytes()].concat(),
    ));
}
