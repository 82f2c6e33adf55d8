//! What artifacts compute: the same on every mesh, the same bits for any number of workers.

use super::{example, folder, json, models, npz, pcc, succeeds};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ROWS: usize = 5;
const SEQ: usize = 13;

/// Compiles, runs `forward`, and gives an output.
fn outputs(model: &str, args: &[&str], input: &Path, output: &str) -> (Vec<u64>, Vec<f32>) {
    let place = folder();
    let artifact = models::artifact(model, args);
    let out = place.path().join("out.npz");
    let (artifact, input) = (artifact.to_str().unwrap(), input.to_str().unwrap());
    succeeds(place.path(), &["run", artifact, "--input", input, "--output", out.to_str().unwrap()]);
    npz::read_f32(&out, output)
}

/// The largest difference from the unpartitioned model, relative to the largest value.
#[track_caller]
fn same_on(model: &str, common: &[&str], meshes: &[&[&str]], input: &Path, output: &str, shape: &[u64]) {
    let whole = outputs(model, common, input, output);
    assert_eq!(whole.0, shape);
    let largest = whole.1.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert!(largest > 0.0 && whole.1.iter().all(|x| x.is_finite()));
    for mesh in meshes {
        let got = outputs(model, &[common, mesh].concat(), input, output);
        assert_eq!(got.0, whole.0, "{model} on {mesh:?}");
        let worst = whole.1.iter().zip(&got.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 3e-4 * largest.max(1.0), "{model} on {mesh:?} differs by {worst} of {largest}");
    }
}

#[test]
fn llama_is_the_same_on_every_mesh() {
    let place = folder();
    let input = npz::token_file(place.path(), ROWS, SEQ);
    let meshes: [&[&str]; 7] = [
        &["--tp", "2"],
        &["--tp", "5"],
        &["--tp", "4", "--sp"],
        &["--pp", "3"],
        &["--dp", "2"],
        &["--tp", "3", "--pp", "2", "--dp", "2"],
        &["--tp", "2", "--pp", "7", "--dp", "2", "--micro-batches", "2", "--sp"],
    ];
    same_on("llama", &["--seq", "16", "--batch", "5"], &meshes, &input, "logits", &[5, 13, 101]);
}

#[test]
fn gpt2_is_the_same_on_every_mesh() {
    let place = folder();
    let input = npz::token_file(place.path(), 4, 32);
    let meshes: [&[&str]; 3] =
        [&["--tp", "4"], &["--tp", "7", "--sp"], &["--tp", "2", "--pp", "2", "--dp", "2"]];
    same_on("gpt2", &["--seq", "32", "--batch", "4"], &meshes, &input, "logits", &[4, 32, 101]);
}

/// Mean difference by mean magnitude.
#[test]
fn bf16_is_near_f32_on_every_mesh() {
    let place = folder();
    let input = npz::token_file(place.path(), 2, SEQ);
    for model in ["llama", "gpt2"] {
        let common = ["--seq", "32", "--batch", "2"];
        let exact = outputs(model, &common, &input, "logits").1;
        let size: f32 = exact.iter().map(|x| x.abs()).sum();
        for mesh in [&["--tp", "1"][..], &["--tp", "3", "--sp"], &["--tp", "8"], &["--tp", "2", "--pp", "2"]]
        {
            let args = [&common[..], &["--dtype", "bf16"], mesh].concat();
            let half = outputs(model, &args, &input, "logits").1;
            let error: f32 = exact.iter().zip(&half).map(|(x, y)| (x - y).abs()).sum();
            assert!(error > 0.0 && error <= 1e-2 * size, "{model} on {mesh:?}: {error} of {size}");
            let artifact = models::artifact(model, &args);
            let artifact = artifact.to_str().unwrap();
            let report = json(place.path(), &["inspect", artifact, "--json"]);
            assert_eq!(report["dtype"], "bf16");
        }
        let artifact = models::artifact(model, &[&common[..], &["--dtype", "bf16", "--tp", "3"]].concat());
        let artifact = artifact.to_str().unwrap();
        succeeds(place.path(), &["verify", artifact, "--numeric"]);
        let tokenizer = models::tokenizer(place.path());
        let prompt = ["--tokenizer", &tokenizer, "--prompt", "w1 w2", "--max-tokens", "4", "--json"];
        let made = json(place.path(), &[&["generate", artifact][..], &prompt].concat());
        assert_eq!(made["tokens"].as_array().map(Vec::len), Some(4), "{made}");
    }
}

#[test]
fn bert_is_the_same_on_every_mesh() {
    let place = folder();
    let input = place.path().join("in.npz");
    let mask = (0..ROWS * SEQ).map(|i| i32::from(i % SEQ < 4 + i / SEQ * 2)).collect();
    let types = (0..ROWS * SEQ).map(|i| i32::from(i % SEQ > 3)).collect();
    let shape: &[u64] = &[ROWS as u64, SEQ as u64];
    npz::write_i32(
        &input,
        &[
            ("tokens", shape, npz::tokens(ROWS, SEQ)),
            ("attention_mask", shape, mask),
            ("token_types", shape, types),
        ],
    );
    let meshes: [&[&str]; 4] =
        [&["--tp", "4"], &["--pp", "4"], &["--dp", "2", "--tp", "2"], &["--tp", "5", "--sp"]];
    same_on("bert", &["--seq", "16", "--batch", "5"], &meshes, &input, "last_hidden_state", &[5, 13, 48]);
}

#[test]
fn graphs_are_the_same_on_every_mesh() {
    let place = folder();
    let input = place.path().join("in.npz");
    let x = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    npz::write_f32(&input, "x", &[8, 20], x(160));
    let meshes: [&[&str]; 3] = [&["--tp", "3"], &["--tp", "4", "--pp", "2"], &["--tp", "2", "--dp", "2"]];
    same_on(
        "mlp.json",
        &["--batch", "8", "--micro-batches", "1"],
        &meshes,
        &input,
        "probabilities",
        &[8, 10],
    );
    npz::write_f32(&input, "x", &[6, 40], x(240));
    let text = std::fs::read_to_string(example("skip.json")).unwrap();
    let doc: serde_json::Value = serde_json::from_str(&text).unwrap();
    let output = doc["entries"][0]["results"][0].as_str().unwrap();
    let meshes: [&[&str]; 2] = [&["--tp", "5"], &["--tp", "2", "--pp", "3"]];
    same_on("skip.json", &["--batch", "6", "--micro-batches", "1"], &meshes, &input, output, &[6, 40]);
}

/// Bits do not depend on how many threads there are, nor on which run it is.
#[test]
fn workers_do_not_change_a_bit() {
    let place = folder();
    let input = npz::token_file(place.path(), ROWS, SEQ);
    let artifact =
        models::artifact("llama", &["--seq", "16", "--batch", "5", "--tp", "3", "--pp", "2", "--dp", "2"]);
    let mut files = Vec::new();
    for (i, workers) in ["1", "2", "5", "2"].into_iter().enumerate() {
        let out = place.path().join(format!("out{i}.npz"));
        let args =
            ["run", artifact.to_str().unwrap(), "--input", input.to_str().unwrap(), "--workers", workers];
        succeeds(place.path(), &[&args[..], &["--output", out.to_str().unwrap()]].concat());
        files.push(std::fs::read(&out).unwrap());
    }
    assert!(files.iter().all(|f| *f == files[0]));
}

/// A row's outputs depend on its own tokens and length only: batch, padding and other rows do not matter.
#[test]
fn rows_are_independent() {
    let place = folder();
    let args = ["--seq", "16", "--batch", "5", "--tp", "3", "--pp", "2", "--dp", "2"];
    let tokens = npz::tokens(ROWS, SEQ);
    let lengths = [13, 1, 7, 12, 2];
    let batch = place.path().join("batch.npz");
    npz::write_i32(&batch, &[("tokens", &[5, 13], tokens.clone()), ("lengths", &[5], lengths.to_vec())]);
    let (_, all) = outputs("llama", &args, &batch, "logits");
    for (row, (tokens, length)) in tokens.chunks(SEQ).zip(lengths).enumerate().take(3) {
        let one = place.path().join("one.npz");
        let n = length as usize;
        npz::write_i32(&one, &[("tokens", &[1, n as u64], tokens[..n].to_vec())]);
        let (shape, alone) = outputs("llama", &args, &one, "logits");
        assert_eq!(shape, [1, n as u64, 101]);
        let together = &all[row * SEQ * 101..][..n * 101];
        let worst = alone.iter().zip(together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 3e-4, "row {row} of length {n} differs by {worst}");
    }
}

#[test]
fn run_reports_what_it_did() {
    let place = folder();
    let input = npz::token_file(place.path(), 2, 9);
    let artifact = models::artifact("llama", &["--seq", "16", "--batch", "5"]);
    let artifact = artifact.to_str().unwrap();
    let args = [
        "run",
        artifact,
        "--input",
        input.to_str().unwrap(),
        "--output",
        "last.npz",
        "--output-last",
        "--steps",
        "2",
        "--json",
    ];
    let o = json(place.path(), &[&args[..], &["--trace", "trace.json"]].concat());
    assert_eq!((o["entry"].as_str(), o["rows"].as_u64()), (Some("forward"), Some(2)));
    assert_eq!(o["seconds"]["steps"].as_array().unwrap().len(), 2);
    let (shape, last) = npz::read_f32(&place.path().join("last.npz"), "logits");
    assert_eq!(shape, [2, 101]);
    let (_, all) = outputs("llama", &["--seq", "16", "--batch", "5"], &input, "logits");
    for row in 0..2 {
        assert_eq!(last[row * 101..][..101], all[(row * 9 + 8) * 101..][..101]);
    }
}

/// The events of a trace file: names of rows by device, and spans.
fn trace(path: &Path) -> (BTreeMap<u64, String>, Vec<Value>) {
    let text = std::fs::read_to_string(path).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().clone();
    let (names, spans): (Vec<Value>, Vec<Value>) = events.into_iter().partition(|e| e["ph"] == "M");
    let rows = names.iter().filter(|e| e["name"] == "thread_name");
    let rows = rows.map(|e| (e["tid"].as_u64().unwrap(), e["args"]["name"].as_str().unwrap().to_owned()));
    (rows.collect(), spans)
}

#[test]
fn traces_have_a_row_a_device_and_name_ops_as_the_model_does() {
    let place = folder();
    let artifact = models::artifact("llama", &["--seq", "16", "--tp", "2", "--pp", "2"]);
    let artifact = artifact.to_str().unwrap();
    let input = npz::token_file(place.path(), 2, 9);
    let run = ["run", artifact, "--input", input.to_str().unwrap(), "--steps", "2", "--trace", "t.json"];
    let o = json(place.path(), &[&run[..], &["--json"]].concat());
    let (rows, spans) = trace(&place.path().join("t.json"));
    let names: Vec<&str> = rows.values().map(String::as_str).collect();
    assert_eq!(names, ["stage 0: tp 0", "stage 0: tp 1", "stage 1: tp 0", "stage 1: tp 1"]);
    let text = |e: &Value, key: &str| e[key].as_str().unwrap().to_owned();
    for e in &spans {
        assert!(e["ts"].as_f64().unwrap() >= 0.0 && e["dur"].as_f64().unwrap() >= 0.0);
        assert!(rows.contains_key(&e["tid"].as_u64().unwrap()));
        assert_eq!(e["args"]["entry"], "forward");
    }
    // The product of the MLP's up projection: 2 steps x 4 devices x their layers, a row of 9 positions a micro-batch.
    let up = |e: &&Value| text(e, "name").starts_with("layer 1: product") && text(e, "name").contains("mlp");
    let products: Vec<&Value> = spans.iter().filter(up).collect();
    assert!(!products.is_empty());
    for e in products {
        assert_eq!((e["args"]["layer"].as_u64(), text(e, "cat").as_str()), (Some(1), "product"));
        assert!(e["args"]["GFLOP/s"].as_f64().unwrap() > 0.0 && e["args"]["bytes"].as_f64().unwrap() > 0.0);
    }
    let micro_batches: BTreeSet<u64> =
        spans.iter().map(|e| e["args"]["micro_batch"].as_u64().unwrap()).collect();
    assert_eq!(micro_batches, [0, 1].into());
    // The summary's work is that of the spans.
    let kinds = o["profile"]["by_kind"].as_array().unwrap();
    let share: f64 = kinds.iter().map(|k| k["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-6);
    for kind in kinds {
        let of = |e: &&Value| e["cat"] == kind["kind"];
        let spent: f64 = spans.iter().filter(of).map(|e| e["dur"].as_f64().unwrap()).sum();
        assert!((spent / 1e3 - kind["milliseconds"].as_f64().unwrap()).abs() < 1e-6, "{kind}");
    }
    let shown = pcc(place.path(), &run);
    assert!(shown.stderr.contains("GFLOP/s") && shown.stderr.contains("product"), "{}", shown.stderr);
}

/// Runs of `generate` and `eval` are in one trace each, from first to last.
#[test]
fn generate_and_eval_are_traced_too() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let artifact = models::artifact("llama", &["--seq", "32", "--batch", "4"]);
    let artifact = artifact.to_str().unwrap();
    std::fs::write(place.path().join("text"), "w1 w2 w3 w4").unwrap();
    for args in [["generate", "--prompt", "w3 w14"], ["eval", "--data", "text"]] {
        let common = [artifact, "--tokenizer", &tokenizer, "--trace", "t.json", "--json"];
        let o = json(place.path(), &[&args[..1], &common, &args[1..]].concat());
        assert!(!o["profile"]["by_op"].as_array().unwrap().is_empty());
        let (_, spans) = trace(&place.path().join("t.json"));
        let entries: BTreeSet<&str> = spans.iter().map(|e| e["args"]["entry"].as_str().unwrap()).collect();
        let expected = if args[0] == "eval" { vec!["forward"] } else { vec!["decode", "prefill"] };
        assert_eq!(entries.into_iter().collect::<Vec<_>>(), expected);
    }
}

/// 32 devices and more on a machine of few cores.
#[test]
fn many_virtual_devices() {
    let place = folder();
    let input = npz::token_file(place.path(), 1, 5);
    let args = ["--seq", "8", "--tp", "8", "--pp", "7", "--dp", "4", "--batch", "28"];
    let (shape, _) = outputs("llama", &args, &input, "logits");
    assert_eq!(shape, [1, 5, 101]);
}
