//! Checkpoints: every tensor that opens can be read, its first elements and all of it where it is small.

use super::accept;
use crate::scratch;
use pcc_frontend::tokenizer::Tokenizer;
use pcc_frontend::weights::Checkpoint;
use pcc_frontend::{LoadOptions, describe, load};
use pcc_ir::source::{BlockRows, ParamSource, ReadParams, Values};
use std::ops::Range;
use std::path::Path;

/// Tensors read, and elements of one read whole.
const TENSORS: usize = 32;
const WHOLE: usize = 1 << 16;

/// A GGUF file: its tensors, its tokenizer, its model.
pub fn gguf(data: &[u8]) {
    let path = scratch::file("gguf/m.gguf", data);
    let Some(checkpoint) = accept("open", Checkpoint::open(&path)) else { return };
    read_tensors(&checkpoint);
    if let Some(meta) = checkpoint.gguf()
        && let Some(tokenizer) = accept("tokenizer", Tokenizer::from_gguf(meta))
    {
        super::tokenizers::use_tokenizer(&tokenizer, "The 3 laws\u{e9}\u{1f642} ab", &[0, 1, 2, 5, 900]);
    }
    load_model(&path);
}

/// A safetensors file, or, where the bytes begin with a brace, an index of two files beside it.
pub fn safetensors(data: &[u8]) {
    let path = if data.first() == Some(&b'{') {
        for name in ["a.safetensors", "b.safetensors"] {
            scratch::file(&format!("safetensors/index/{name}"), &shard(name));
        }
        scratch::file("safetensors/index/model.safetensors.index.json", data)
    } else {
        scratch::file("safetensors/model.safetensors", data)
    };
    if let Some(checkpoint) = accept("open", Checkpoint::open(&path)) {
        read_tensors(&checkpoint);
        let config = scratch::file("safetensors/config.json", CONFIG.as_bytes());
        let options = LoadOptions { batch_rows: 1, seq: Some(4), weights: Some(path), seed: 0 };
        if let Some(model) = accept("load", load(&config, &options)) {
            read_params(&model);
        }
    }
}

/// The model whose weights `safetensors` reads: those of the seed `tiny-mistral`.
const CONFIG: &str = include_str!("../../../frontend/tests/data/tiny-mistral/config.json");

/// One tensor, named as the file.
fn shard(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 24]].concat()
}

fn read_tensors(checkpoint: &Checkpoint) {
    checkpoint.header_digest();
    for tensor in checkpoint.tensors().take(TENSORS) {
        let elements = tensor.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let whole = elements.is_some_and(|n| n <= WHOLE);
        let slice: Vec<_> = tensor.shape.iter().map(|&d| 0..if whole { d } else { d.min(2) }).collect();
        let mut out = vec![0.0; slice.iter().map(|r| r.len()).product()];
        accept("read", checkpoint.read_f32(tensor.name, &slice, &mut out));
    }
    let names: Vec<String> = checkpoint.published_names().take(TENSORS).collect();
    for name in names {
        accept("view", checkpoint.view(&name));
    }
}

fn load_model(path: &Path) {
    if accept("describe", describe(path)).is_some() {
        let options = LoadOptions { batch_rows: 1, seq: Some(2), weights: None, seed: 0 };
        if let Some(model) = accept("load", load(path, &options)) {
            read_params(&model);
        }
    }
}

/// Reads the first elements of every parameter in the graph's arrangement.
fn read_params(model: &pcc_frontend::Model) {
    let Some(checkpoint) = &model.checkpoint else { return };
    for param in model.module.params.values().take(TENSORS) {
        let slice: Vec<_> = param.ty.shape.iter().map(|&d| 0..d.min(3)).collect();
        let mut out = vec![0.0; slice.iter().map(|r| r.len()).product()];
        accept("read", checkpoint.read_param_slice(&param.source, &slice, &mut out));
        read_blocks(checkpoint, &param.source, &slice);
    }
}

/// Reads the groups under a slice of which each dim in turn is said to run along stored rows.
fn read_blocks(checkpoint: &Checkpoint, source: &ParamSource, slice: &[Range<usize>]) {
    let Values::Tensor(view) = &source.values else { return };
    let local: Vec<usize> = slice.iter().map(Range::len).collect();
    for k in 0..slice.len() {
        let Some(span) = view.group_span(&[k], slice, &local) else { continue };
        let rows = local.iter().enumerate().filter(|&(d, _)| d != k).map(|(_, n)| n).product::<usize>();
        let (groups, group) = (rows * span.groups, view.blocks.map_or(0, |b| b.group as usize));
        let mut codes = vec![0; groups * group];
        let (mut scales, mut offsets) = (vec![0.0; groups], vec![0.0; groups]);
        let out = BlockRows { codes: &mut codes, scales: &mut scales, offsets: &mut offsets };
        let read = accept("blocks", checkpoint.read_param_blocks(source, &[k], slice, 0..rows, out));
        let least = view.blocks.map_or(0, |b| b.low);
        assert!(read.is_none() || codes.iter().all(|&c| c >= least), "a code below the least");
    }
}
