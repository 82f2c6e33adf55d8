//! Every family, compiled and run, against what Hugging Face transformers computes with the same tiny checkpoints: the outputs of
//! whole sequences, and greedy decoding from a prompt.

#[path = "../../frontend/tests/published/mod.rs"]
mod published;

use super::{folder, json, npz, succeeds};
use published::{Case, NEW, ROWS};
use serde_json::{Value, json as object};
use std::path::Path;

/// Values are f32 on both sides.
const TOLERANCE: f64 = 1e-4;

/// All cases on one mesh of virtual devices.
fn all_on(mesh: &[&str]) {
    all(mesh, &[]);
}

/// All cases, compiled and run with these arguments.
fn all(mesh: &[&str], device: &[&str]) {
    let mut failures = Vec::new();
    for name in published::names() {
        let case = published::read(&name);
        let place = folder();
        let model = place.path().join("model");
        std::fs::create_dir(&model).unwrap();
        case.write(&model);
        let seq = case.seq.to_string();
        let args = ["compile", "model", "--seq", &seq, "--batch", "2", "-o", "model.pcc"];
        succeeds(place.path(), &[&args[..], mesh].concat());
        let off = whole_sequences(&case, place.path(), device);
        if off.is_nan() || off > TOLERANCE {
            failures.push(format!("{name}: outputs are off by {off}"));
        }
        if let Some(want) = &case.greedy {
            let got = decoded(&case, place.path(), device);
            if got != *want {
                failures.push(format!("{name}: decodes {got:?}, not {want:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "on {mesh:?}:\n{}", failures.join("\n"));
}

/// The largest distance from the expected outputs.
fn whole_sequences(case: &Case, place: &Path, device: &[&str]) -> f64 {
    let (input, output) = (place.join("in.npz"), place.join("out.npz"));
    let shape: &[u64] = &[ROWS as u64, case.seq as u64];
    let inputs: Vec<_> = case.inputs.iter().map(|(k, v)| (k.as_str(), shape, v.clone())).collect();
    npz::write_i32(&input, &inputs);
    let args = ["run", "model.pcc", "--input", "in.npz", "--output", "out.npz"];
    succeeds(place, &[&args[..], device].concat());
    let (_, got) = npz::read_f32(&output, &case.output);
    let got = case.last(&got);
    assert_eq!(got.len(), case.values.len());
    let far = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs();
    got.iter().zip(&case.values).map(far).fold(0.0, |m, x| if x > m || x.is_nan() { x } else { m })
}

/// What follows the prompt, prefilled and then decoded with a cache.
fn decoded(case: &Case, place: &Path, device: &[&str]) -> Vec<i32> {
    let vocab: serde_json::Map<String, Value> =
        (0..case.width).map(|i| (format!("w{i}"), object!(i))).collect();
    let tokenizer = object!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    std::fs::write(place.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let prompt: Vec<String> =
        case.inputs["tokens"][..case.seq - NEW].iter().map(|t| format!("w{t}")).collect();
    let new = NEW.to_string();
    let args = ["generate", "model.pcc", "--json", "--tokenizer", "tokenizer.json", "--max-tokens", &new];
    let made = json(place, &[&args[..], &["--prompt", &prompt.join(" ")], device].concat());
    let tokens = made["tokens"].as_array().expect("tokens").iter();
    tokens.map(|t| t.as_i64().expect("a token") as i32).collect()
}

#[test]
fn families_equal_transformers_on_one_device() {
    all_on(&[]);
}

#[test]
fn families_equal_transformers_on_three_devices() {
    all_on(&["--tp", "3"]);
}

#[test]
fn families_equal_transformers_on_eight_devices() {
    all_on(&["--tp", "8"]);
}

#[test]
fn families_equal_transformers_on_two_stages() {
    all_on(&["--pp", "2"]);
}

/// Windows, soft caps, ALiBi, partial rotary, four norms: as GPUs would compute them.
#[test]
fn families_equal_transformers_on_three_simulated_gpus() {
    let gpu = ["--target", "sm_90", "--dtype", "f32"];
    all(&[&["--tp", "3"][..], &gpu].concat(), &["--device", "cuda-sim"]);
}
