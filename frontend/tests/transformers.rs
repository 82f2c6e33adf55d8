//! Every family, run by the reference evaluator, against the outputs of Hugging Face transformers
//! (tests/data/make_transformers.py): whole sequences, and prompts with tokens decoded one after another.

mod published;

use pcc_frontend::{LoadOptions, Model, load};
use pcc_ir::eval::{Tensor, eval_entry};
use pcc_ir::source::ReadParams;
use pcc_ir::{Entry, Type};
use published::{Case, NEW, ROWS};
use std::collections::BTreeMap;
use std::path::Path;

/// Values are f32 on both sides.
const TOLERANCE: f64 = 3e-5;

struct Loaded {
    case: Case,
    model: Model,
    params: Vec<Tensor>,
}

fn loaded(name: &str) -> Loaded {
    let case = published::read(name);
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let options = LoadOptions { batch_rows: ROWS, seq: Some(case.seq), weights: None, seed: 0 };
    let model =
        load(folder.path(), &options).and_then(Model::unfolded).unwrap_or_else(|d| panic!("{name}: {d}"));
    let checkpoint = model.checkpoint.as_ref().unwrap();
    let read = |p: &pcc_ir::Param| {
        let slice: Vec<_> = p.ty.shape.iter().map(|&d| 0..d).collect();
        let mut values = vec![0f32; p.ty.elements()];
        checkpoint.read_param_slice(&p.source, &slice, &mut values).unwrap();
        Tensor::new(p.ty.clone(), values.into_iter().map(f64::from).collect()).unwrap()
    };
    let params = model.module.params.values().map(read).collect();
    Loaded { case, model, params }
}

fn ids(shape: &[usize], data: impl IntoIterator<Item = i32>) -> Tensor {
    Tensor::new(Type::i32(shape), data.into_iter().map(f64::from).collect()).unwrap()
}

fn entry<'m>(model: &'m Model, name: &str) -> &'m Entry {
    model.module.entries.iter().find(|e| e.name == name).unwrap()
}

#[track_caller]
fn assert_close(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < TOLERANCE, "{what}: off by {worst}");
}

fn check_forward(name: &str, l: &Loaded) {
    let inputs =
        l.case.inputs.iter().map(|(k, v)| (k.clone(), ids(&[ROWS, l.case.seq], v.iter().copied()))).collect();
    let got = eval_entry(&l.model.module, entry(&l.model, "forward"), &inputs, &l.params, &mut []).unwrap();
    assert_close(name, &l.case.last(&got[&l.case.output].data), &l.case.values);
}

/// Prompts of different lengths, then one token after another, must give the logits of the whole sequence.
fn check_generation(name: &str, l: &Loaded) {
    let (module, tokens) = (&l.model.module, &l.case.inputs["tokens"]);
    let Case { seq, kept, width: vocab, .. } = l.case;
    let mut states: Vec<Tensor> = module.states.values().map(|s| Tensor::zeros(s.ty.clone())).collect();
    let mut lengths = [seq - NEW, seq - 2 * NEW];
    let check = |what: &str, logits: &Tensor, lengths: &[usize; ROWS]| {
        for (row, &n) in lengths.iter().enumerate() {
            let at = (row * kept + n - 1 - (seq - kept)) * vocab;
            let row = &logits.data[row * vocab..(row + 1) * vocab];
            assert_close(&format!("{name} {what} {lengths:?}"), row, &l.case.values[at..at + vocab]);
        }
    };
    let counts = |lengths: &[usize; ROWS]| ids(&[ROWS], lengths.map(|n| n as i32));
    // What stands past a row's length must not matter.
    let padded = tokens.iter().enumerate().map(|(i, &t)| if i % seq < lengths[i / seq] { t } else { 1 });
    let inputs = BTreeMap::from([
        ("tokens".to_owned(), ids(&[ROWS, seq], padded)),
        ("lengths".to_owned(), counts(&lengths)),
    ]);
    let got = eval_entry(module, entry(&l.model, "prefill"), &inputs, &l.params, &mut states).unwrap();
    check("prefill", &got["logits"], &lengths);
    while lengths[0] < seq {
        let next = lengths.iter().enumerate().map(|(row, &n)| tokens[row * seq + n]);
        let inputs = BTreeMap::from([
            ("tokens".to_owned(), ids(&[ROWS, 1], next)),
            ("positions".to_owned(), counts(&lengths)),
        ]);
        lengths.iter_mut().for_each(|n| *n += 1);
        let got = eval_entry(module, entry(&l.model, "decode"), &inputs, &l.params, &mut states).unwrap();
        check("decode", &got["logits"], &lengths);
    }
}

#[test]
fn families_equal_transformers() {
    let mut families = std::collections::BTreeSet::new();
    let mut failures = Vec::new();
    for name in published::names() {
        let run = || {
            let l = loaded(&name);
            check_forward(&name, &l);
            if l.case.greedy.is_some() {
                check_generation(&name, &l);
            }
            l.model.info.family
        };
        match std::panic::catch_unwind(run) {
            Ok(family) => _ = families.insert(family),
            Err(_) => failures.push(name),
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
    let all = "bert bloom falcon gemma2 gpt2 gpt_neox llama mistral opt phi3 qwen2 qwen3";
    assert!(families.iter().map(String::as_str).eq(all.split(' ')), "{families:?}");
}

/// Published configs, and what transformers 5 makes of them: `rope_parameters`, `layer_types`, every default written out.
#[test]
fn configs_as_transformers_saves_them_say_the_same() {
    let model = |folder: &Path, seq: usize| {
        let options = LoadOptions { batch_rows: ROWS, seq: Some(seq), weights: None, seed: 0 };
        load(folder, &options).unwrap_or_else(|d| panic!("{}: {d}", folder.display()))
    };
    for name in published::names() {
        let (case, folder) = (published::read(&name), tempfile::tempdir().unwrap());
        case.write(folder.path());
        let terse = model(folder.path(), case.seq);
        case.write_saved_config(folder.path());
        let saved = model(folder.path(), case.seq);
        assert!(saved.module == terse.module, "{name}");
    }
}

/// Every family's graph shows that positions which a run does not have are never seen: without that, short prompts cost as much as
/// whole ones.
#[test]
fn absent_positions_are_unseen_in_every_family() {
    for name in published::names() {
        assert!(pcc_ir::absent::is_unseen(&loaded(&name).model.module), "{name}");
    }
}

/// Layers that differ become functions of their own, and only those: windows of every other layer make two.
#[test]
fn alternating_layers_are_two_functions() {
    let functions = |name: &str| loaded(name).model.module.funcs.len();
    assert_eq!(functions("gemma2"), 3 * 5, "embed, two layers, head and entry, three times");
    assert_eq!(functions("falcon"), 3 * 4);
}

/// LongRoPE has two sets of frequencies; which one an artifact has is said where it is not that of short inputs.
#[test]
fn frequencies_of_long_inputs_are_said() {
    assert!(loaded("phi3-short").model.notices.is_empty());
    let notices = loaded("phi3-long").model.notices;
    assert!(notices.len() == 1 && notices[0].contains("beyond 4 positions"), "{notices:?}");
}
