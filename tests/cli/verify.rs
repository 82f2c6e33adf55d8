//! `pcc verify`: the proof again, and the program or its twin run against the reference evaluator.

use super::{fails, folder, json, models, succeeds};
use serde_json::{Value, json};

/// Checks the report of --numeric: every output compared and equal to rounding. Gives what was run.
#[track_caller]
fn agrees(report: &Value, outputs: &[(&str, &str)]) -> Value {
    assert_eq!(report["ok"], true);
    assert!(report["values"].as_u64().is_some_and(|n| n > 0));
    let numeric = report["numeric"].clone();
    let found = numeric["outputs"].as_array().expect("outputs");
    let names: Vec<_> =
        found.iter().map(|o| (o["entry"].as_str().unwrap(), o["output"].as_str().unwrap())).collect();
    assert_eq!(names, outputs);
    for o in found {
        // f32 over a few small layers: the tolerance of the command is far wider.
        assert!(o["max_rel_diff"].as_f64().is_some_and(|x| x < 2e-5), "{o}");
        assert_eq!(o["argmax_agreement"], 1.0, "{o}");
        assert!(o["elements"].as_u64().is_some_and(|n| n > 0), "{o}");
    }
    numeric
}

const CAUSAL: [(&str, &str); 3] = [("forward", "logits"), ("prefill", "logits"), ("decode", "logits")];

#[test]
fn a_small_program_is_run_itself() {
    let args = ["--tp", "4", "--pp", "2", "--dp", "2", "--batch", "7", "--micro-batches", "3", "--seq", "24"];
    for (name, outputs) in
        [("llama", &CAUSAL[..]), ("gpt2", &CAUSAL[..]), ("bert", &[("forward", "last_hidden_state")][..])]
    {
        let artifact = models::artifact(name, &args);
        let place = folder();
        let report = json(place.path(), &["verify", artifact.to_str().unwrap(), "--numeric", "--json"]);
        let numeric = agrees(&report, outputs);
        assert_eq!((&numeric["twin"], &numeric["devices"]), (&json!(false), &json!(16)), "{name}");
        assert_eq!((&numeric["rows"], &numeric["micro_batches"]), (&json!(7), &json!(3)), "{name}");
    }
}

/// A model of half a billion parameters, of which no weight is ever made.
#[test]
fn a_large_program_is_run_as_a_twin() {
    let place = folder();
    let mut config = models::llama();
    for (key, n) in [
        ("hidden_size", 1080),
        ("num_hidden_layers", 40),
        ("num_attention_heads", 18),
        ("num_key_value_heads", 6),
        ("intermediate_size", 3000),
        ("vocab_size", 30011),
        ("max_position_embeddings", 4096),
    ] {
        config[key] = json!(n);
    }
    let model = models::write(place.path(), "large", &config);
    let mesh = ["--tp", "4", "--pp", "3", "--sp", "--seq", "1024", "--batch", "3"];
    succeeds(place.path(), &[&["compile", &model, "-o", "large.pcc"], &mesh[..]].concat());
    let report = json(place.path(), &["verify", "large.pcc", "--numeric", "--json"]);
    let numeric = agrees(&report, &CAUSAL);
    assert_eq!((&numeric["twin"], &numeric["devices"]), (&json!(true), &json!(12)));
    assert!(numeric["parameters"].as_u64().is_some_and(|n| n < 2_000_000), "{numeric}");
    // One layer a stage, the embedding and the head.
    assert_eq!(numeric["layers"], 5);
    // Another seed is another run, and agrees as well.
    let text = succeeds(place.path(), &["verify", "large.pcc", "--numeric", "--seed", "7"]);
    assert!(text.contains("shrunken twin") && text.contains("decode logits"), "{text}");
}

/// Leaves out each collective of a program in turn.
#[test]
fn a_dropped_collective_is_caught() {
    let place = folder();
    let copy = models::copied(&models::artifact("llama", &["--tp", "2"]), place.path());
    let path = copy.join("program.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut dropped = 0;
    for (f, func) in whole["funcs"].as_array().unwrap().iter().enumerate() {
        for (i, instr) in func["instrs"].as_array().unwrap().iter().enumerate() {
            if instr["kind"].get("collective").is_none() {
                continue;
            }
            let mut broken = whole.clone();
            broken["funcs"][f]["instrs"].as_array_mut().unwrap().remove(i);
            std::fs::write(&path, broken.to_string()).unwrap();
            models::sign(&copy);
            fails(place.path(), &["verify", "copy.pcc", "--numeric"], 3, &[]);
            dropped += 1;
        }
    }
    assert!(dropped > 3, "{dropped}");
}
