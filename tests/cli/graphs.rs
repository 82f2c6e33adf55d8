//! model.json files whose graph is wrong: the message names the place in the file.

use super::{example, fails, folder, npz, succeeds};
use serde_json::{Value, json};

fn mlp() -> Value {
    let text = std::fs::read_to_string(example("mlp.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Compiles the example after a change: exit 1, one message with these words.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value), words: &[&str]) {
    let mut model = mlp();
    change(&mut model);
    let place = folder();
    std::fs::write(place.path().join("model.json"), model.to_string()).unwrap();
    fails(place.path(), &["compile", "model.json", "--batch", "8", "-o", "out.pcc"], 1, words);
}

fn body(m: &mut Value) -> &mut Value {
    &mut m["functions"][0]["body"]
}

/// A sum over the batch would be that of one micro-batch, or count padded rows.
#[test]
fn rows_are_not_reduced_over_micro_batches() {
    let mut model = mlp();
    body(&mut model)
        .as_array_mut()
        .unwrap()
        .push(json!({"op": {"reduce": {"kind": "sum", "dims": [0]}}, "in": ["y"], "out": ["total"]}));
    model["functions"][0]["results"] = json!(["total"]);
    let place = folder();
    std::fs::write(place.path().join("model.json"), model.to_string()).unwrap();
    let compile = ["compile", "model.json", "-o", "out.pcc", "--batch"];
    succeeds(place.path(), &[&compile[..], &["8"]].concat());
    let words = ["`probabilities`", "rows of the batch", "--micro-batches 1"];
    fails(place.path(), &[&compile[..], &["16", "--micro-batches", "2"]].concat(), 1, &words);
}

/// An encoder that does not look at its mask: a short run is the whole one with zeros behind it, whatever the task is called.
#[test]
fn a_task_changes_nothing_of_what_is_computed() {
    let model = json!({
        "pcc": 1, "name": "unmasked", "params": [{"name": "w", "type": "f32[4,4]"}],
        "functions": [{
            "name": "main",
            "args": [
                {"name": "tokens", "type": "i32[1,8]", "labels": ["batch", "seq"]},
                {"name": "attention_mask", "type": "i32[1,8]", "labels": ["batch", "seq"]},
                {"name": "w", "type": "f32[4,4]"},
            ],
            "body": [
                {"op": {"gather": {"batch": 0}}, "in": ["w", "tokens"], "out": ["x"]},
                {"op": {"reshape": [1, 8, 1, 1, 4]}, "in": ["x"], "out": ["q"]},
                {"op": {"reshape": [1, 8, 1, 4]}, "in": ["x"], "out": ["k"]},
                {"op": {"iota": {"type": "i32[1,8]", "dim": 1}}, "in": [], "out": ["p"]},
                {"op": {"attention": {"scale": 0.5}}, "in": ["q", "k", "k", "p", "p"], "out": ["y"]},
                {"op": {"reshape": [1, 8, 4]}, "in": ["y"], "out": ["z"]},
            ],
            "results": ["z"],
        }],
        "entries": [{
            "name": "forward", "function": "main", "args": [{"input": "tokens"}, {"input": "attention_mask"}, {"param": "w"}],
            "results": ["last_hidden_state"],
        }],
    });
    let place = folder();
    let run = |task: &str, tokens: &[i32]| {
        let mut model = model.clone();
        model["info"] = json!({"family": "graph", "class": "X", "task": task, "vocab": 4, "max_seq": 8});
        std::fs::write(place.path().join("model.json"), model.to_string()).unwrap();
        succeeds(place.path(), &["compile", "model.json", "-o", "m.pcc"]);
        let shape: &[u64] = &[1, tokens.len() as u64];
        let mask = tokens.iter().map(|&t| i32::from(t > 0)).collect();
        let arrays = [("tokens", shape, tokens.to_vec()), ("attention_mask", shape, mask)];
        npz::write_i32(&place.path().join("in.npz"), &arrays);
        succeeds(place.path(), &["run", "m.pcc", "--input", "in.npz", "--output", "out.npz"]);
        npz::read_f32(&place.path().join("out.npz"), "last_hidden_state").1[..16].to_vec()
    };
    let whole = run("graph", &[1, 2, 3, 1, 0, 0, 0, 0]);
    for task in ["graph", "encoder"] {
        let short = run(task, &[1, 2, 3, 1]);
        assert!(
            short.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-6),
            "{task}: {short:?} for {whole:?}"
        );
    }
}

#[test]
fn unknown_op() {
    refused(
        |m| body(m)[3]["op"] = json!("geluu"),
        &["functions[0].body[3].op", "`geluu` is no op", "`gelu`"],
    );
}

#[test]
fn missing_value_and_tensor() {
    refused(|m| body(m)[3]["in"] = json!(["h_biazed"]), &["functions[0].body[3].in[0]", "`h_biased`"]);
    refused(
        |m| m["entries"][0]["args"][1] = json!({"param": "fc3.weight"}),
        &["entries[0].args[1]", "fc3.weight"],
    );
}

#[test]
fn shape_mismatch() {
    refused(
        |m| m["functions"][0]["args"][1]["type"] = json!("f32[21,48]"),
        &["functions[0].body[0]", "dot_general"],
    );
    refused(|m| m["params"][0]["type"] = json!("f32[48,20]"), &["entries[0].args[1]", "fc1.weight"]);
}

#[test]
fn cycle() {
    refused(|m| body(m)[0]["in"] = json!(["hidden", "w1"]), &["circle"]);
    refused(|m| body(m)[3]["op"] = json!({"call": "main"}), &["circle", "main"]);
}

#[test]
fn duplicate_name() {
    refused(|m| body(m)[3]["out"] = json!(["h"]), &["defined twice", "`h`"]);
    refused(
        |m| {
            let again = m["params"][0].clone();
            m["params"].as_array_mut().unwrap().push(again);
        },
        &["fc1.weight", "twice"],
    );
}

#[test]
fn zero_and_overflowing_dims() {
    refused(|m| m["functions"][0]["args"][0]["type"] = json!("f32[8,0]"), &["functions[0].args[0].type"]);
    refused(|m| m["params"][0]["type"] = json!("f32[4294967296,4294967296]"), &["params[0].type", "2^60"]);
    refused(|m| m["params"][0]["type"] = json!("f32[99999999999999999999]"), &["params[0].type"]);
    refused(|m| body(m)[1]["op"]["broadcast"]["shape"] = json!([8, 0]), &["functions[0].body[1]"]);
}

/// Functions that call their callees twice, 40 deep: 2^40 instructions if they were carried out.
#[test]
fn exploding_calls() {
    let mut model = mlp();
    let x = json!({"name": "x", "type": "f32[8,20]"});
    let mut functions = vec![json!({
        "name": "f0", "args": [x], "results": ["y"], "body": [{"op": "gelu", "in": ["x"], "out": ["y"]}],
    })];
    for i in 1..40 {
        let call =
            |from: &str, to: &str| json!({"op": {"call": format!("f{}", i - 1)}, "in": [from], "out": [to]});
        let body = json!([call("x", "z"), call("z", "y")]);
        functions.push(json!({"name": format!("f{i}"), "args": [x], "results": ["y"], "body": body}));
    }
    model["params"] = json!([]);
    model["functions"] = json!(functions);
    model["entries"] =
        json!([{"name": "forward", "function": "f39", "args": [{"input": "x"}], "results": ["y"]}]);
    let place = folder();
    std::fs::write(place.path().join("model.json"), model.to_string()).unwrap();
    fails(place.path(), &["compile", "model.json", "--batch", "8"], 1, &["too far"]);
}

/// A graph of one op over a batch of 2 rows of 8 positions.
fn one_op(op: Value, result: &str, dtype: &str) -> Value {
    json!({
        "pcc": 1,
        "params": [],
        "name": "one",
        "functions": [{
            "name": "main",
            "args": [{"name": "x", "type": format!("{dtype}[2,8]"), "labels": ["batch", "seq"]}],
            "results": ["y"],
            "body": [{"op": op, "in": ["x"], "out": ["y"]}],
        }],
        "entries": [{"name": "forward", "function": "main", "args": [{"input": "x"}], "results": [result]}],
    })
}

/// Positions past a shorter sequence are zeros, which a sum over the sequence of exponentials would count.
#[test]
fn a_reduction_over_the_sequence_takes_all_of_it() {
    let place = folder();
    let model = one_op(json!({"reduce": {"kind": "sum", "dims": [1]}}), "y", "f32");
    std::fs::write(place.path().join("model.json"), model.to_string()).unwrap();
    succeeds(place.path(), &["compile", "model.json", "-o", "m.pcc"]);
    npz::write_f32(&place.path().join("short.npz"), "x", &[2, 3], vec![1.0; 6]);
    npz::write_f32(&place.path().join("whole.npz"), "x", &[2, 8], vec![1.0; 16]);
    fails(place.path(), &["run", "m.pcc", "--input", "short.npz"], 1, &["3 positions", "whole sequence"]);
    succeeds(place.path(), &["run", "m.pcc", "--input", "whole.npz"]);
}

/// Kernels compute in f32 and i32; a wider result would be wrong without a word.
#[test]
fn wide_arithmetic_is_refused() {
    let place = folder();
    std::fs::write(place.path().join("model.json"), one_op(json!("exp"), "y", "f64").to_string()).unwrap();
    fails(place.path(), &["compile", "model.json"], 1, &["f64 arithmetic", "f32"]);
}
