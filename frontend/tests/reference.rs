//! The families' modules, run by the reference evaluator, against numpy's outputs of the same tiny checkpoints
//! (tests/data/make_reference.py).

use pcc_frontend::{LoadOptions, Model, load};
use pcc_ir::eval::{Tensor, eval_entry};
use pcc_ir::source::ReadParams;
use pcc_ir::{Entry, Type};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Values are rounded to f32 op by op here, not in the reference.
const TOLERANCE: f64 = 2e-5;

const ROWS: usize = 2;
const SEQ: usize = 7;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn loaded(name: &str) -> Model {
    let options = LoadOptions { batch_rows: ROWS, seq: Some(SEQ), weights: None, seed: 0 };
    load(&folder(name), &options).and_then(Model::unfolded).unwrap()
}

/// Every parameter, read through its view of the checkpoint.
fn params(model: &Model) -> Vec<Tensor> {
    let checkpoint = model.checkpoint.as_ref().unwrap();
    let read = |p: &pcc_ir::Param| {
        let slice: Vec<_> = p.ty.shape.iter().map(|&d| 0..d).collect();
        let mut values = vec![0f32; p.ty.elements()];
        checkpoint.read_param_slice(&p.source, &slice, &mut values).unwrap();
        Tensor::new(p.ty.clone(), values.into_iter().map(f64::from).collect()).unwrap()
    };
    model.module.params.values().map(read).collect()
}

fn flatten(v: &Value, out: &mut Vec<f64>) {
    match v {
        Value::Array(list) => list.iter().for_each(|v| flatten(v, out)),
        v => out.push(v.as_f64().unwrap()),
    }
}

/// A field of expected.json, row-major.
fn expected(name: &str, field: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    let mut out = Vec::new();
    flatten(&serde_json::from_str::<Value>(&text).unwrap()[field], &mut out);
    out
}

fn entry<'m>(model: &'m Model, name: &str) -> &'m Entry {
    model.module.entries.iter().find(|e| e.name == name).unwrap()
}

fn ids(shape: &[usize], data: Vec<f64>) -> Tensor {
    Tensor::new(Type::i32(shape), data).unwrap()
}

fn assert_close(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < TOLERANCE, "{what}: off by {worst}");
}

fn check_forward(name: &str, output: &str, inputs: &[&str]) {
    let model = loaded(name);
    let tensor = |field: &&str| ((*field).to_owned(), ids(&[ROWS, SEQ], expected(name, field)));
    let inputs: BTreeMap<String, Tensor> = inputs.iter().map(tensor).collect();
    let got = eval_entry(&model.module, entry(&model, "forward"), &inputs, &params(&model), &mut []).unwrap();
    assert_close(name, &got[output].data, &expected(name, output));
}

/// Prompts of different lengths, then one token after another, must give what `forward` gives at those positions.
fn check_generation(name: &str) {
    let model = loaded(name);
    let (params, tokens, want) = (params(&model), expected(name, "tokens"), expected(name, "logits"));
    let vocab = want.len() / (ROWS * SEQ);
    let mut states: Vec<Tensor> = model.module.states.values().map(|s| Tensor::zeros(s.ty.clone())).collect();
    let mut lengths = [4, 2];
    let check = |what: &str, logits: &Tensor, lengths: &[usize; ROWS]| {
        for (row, &n) in lengths.iter().enumerate() {
            let at = (row * SEQ + n - 1) * vocab;
            let row = &logits.data[row * vocab..(row + 1) * vocab];
            assert_close(&format!("{name} {what} {lengths:?}"), row, &want[at..at + vocab]);
        }
    };
    // What stands past a row's length must not matter.
    let padded = tokens.iter().enumerate().map(|(i, &t)| if i % SEQ < lengths[i / SEQ] { t } else { 1.0 });
    let inputs = BTreeMap::from([
        ("tokens".to_owned(), ids(&[ROWS, SEQ], padded.collect())),
        ("lengths".to_owned(), ids(&[ROWS], lengths.iter().map(|&n| n as f64).collect())),
    ]);
    let got = eval_entry(&model.module, entry(&model, "prefill"), &inputs, &params, &mut states).unwrap();
    check("prefill", &got["logits"], &lengths);
    while lengths[0] < SEQ {
        let next = lengths.iter().enumerate().map(|(row, &n)| tokens[row * SEQ + n]).collect();
        let inputs = BTreeMap::from([
            ("tokens".to_owned(), ids(&[ROWS, 1], next)),
            ("positions".to_owned(), ids(&[ROWS], lengths.iter().map(|&n| n as f64).collect())),
        ]);
        lengths.iter_mut().for_each(|n| *n += 1);
        let got = eval_entry(&model.module, entry(&model, "decode"), &inputs, &params, &mut states).unwrap();
        check("decode", &got["logits"], &lengths);
    }
}

#[test]
fn llama_with_scaled_frequencies_and_biases() {
    check_forward("tiny-llama", "logits", &["tokens"]);
    check_generation("tiny-llama");
}

#[test]
fn mistral_with_a_window() {
    check_forward("tiny-mistral", "logits", &["tokens"]);
    check_generation("tiny-mistral");
}

#[test]
fn qwen2_with_two_kinds_of_layers() {
    assert_eq!(
        loaded("tiny-qwen2").module.funcs.len(),
        3 * 5,
        "embed, two layers, head and entry, three times"
    );
    check_forward("tiny-qwen2", "logits", &["tokens"]);
    check_generation("tiny-qwen2");
}

#[test]
fn qwen3_with_norms_of_q_and_k() {
    check_forward("tiny-qwen3", "logits", &["tokens"]);
    check_generation("tiny-qwen3");
}

#[test]
fn gpt2_with_a_fused_transposed_matrix() {
    check_forward("tiny-gpt2", "logits", &["tokens"]);
    check_generation("tiny-gpt2");
}

#[test]
fn bert_with_masked_positions_and_old_names() {
    check_forward("tiny-bert", "last_hidden_state", &["tokens", "attention_mask", "token_types"]);
}
