//! Model descriptions: whatever loads is a well-formed module, and comes back the same from the model.json that it is exported to.

use super::{accept, demand};
use crate::scratch;
use pcc_frontend::canonical::renumber;
use pcc_frontend::{LoadOptions, Model, describe, export, load};
use pcc_ir::verifier::verify;
use std::path::Path;

/// Modules of more instructions than this are not exported: it takes too long to be worth it.
const EXPORTED: usize = 3000;

/// `model.json`.
pub fn model_json(data: &[u8]) {
    check(&scratch::file("model_json/model.json", data), None, "model_json/again.json");
}

/// Hugging Face's `config.json`.
pub fn config_json(data: &[u8]) {
    check(&scratch::file("config_json/config.json", data), Some(3), "config_json/again.json");
}

fn check(path: &Path, seq: Option<usize>, again: &str) {
    let summary = accept("describe", describe(path));
    let rows = summary.as_ref().and_then(|s| s.rows).unwrap_or(2);
    let Some(model) = accept("load", load(path, &options(rows, seq))) else { return };
    assert!(summary.is_some(), "it loads, but cannot be described");
    demand("verify", verify(&model.module));
    let insts = model.module.funcs.values().map(|f| f.insts.len()).sum::<usize>();
    if insts.max(16 * model.info.layers) <= EXPORTED {
        round_trip(&model, rows, again);
    }
}

fn round_trip(model: &Model, rows: usize, again: &str) {
    let Some(text) = accept("export", export(model)) else { return };
    let path = scratch::file(again, text.as_bytes());
    let back = demand("loading the export", load(&path, &options(rows, None)));
    // Exports write every layer.
    let mut whole = demand("unfolding", model.module.expanded()).into_owned();
    whole.funcs.values_mut().for_each(renumber);
    assert_eq!(back.module.to_string(), whole.to_string(), "the export loads as something else");
    let twice = demand("exporting again", export(&back));
    assert_eq!(twice, text, "the export of the export differs");
}

fn options(rows: usize, seq: Option<usize>) -> LoadOptions {
    LoadOptions { batch_rows: rows, seq, weights: None, seed: 1 }
}
