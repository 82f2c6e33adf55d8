//! What fuzzing starts from: the committed files of `seeds/TARGET` (written by hand, and every input that once failed), files that
//! other tests have, and what this module makes where a format follows the code or is not text.

use crate::Target;
#[path = "../../frontend/src/weights/gguf/written.rs"]
#[allow(dead_code)] // the frontend's tests use all of it
mod written;

use crate::targets::modules;
use pcc_frontend::{LoadOptions, load};
use pcc_ir::program::BatchPlan;
use pcc_ir::{DType, Diagnostic, Mesh};
use pcc_passes::driver::{Options, compile};
use pcc_runtime::Levels;
use serde_json::json;
use std::path::{Path, PathBuf};
use written::{GgufFile, f32_bytes};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// The seeds of a target, by name, in an order that does not change.
///
/// # Errors
/// A file that cannot be read, or a model of the examples that does not compile.
pub fn seeds(target: &Target) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut files = Vec::new();
    collect(&root().join("fuzz/seeds").join(target.name), "", &mut files);
    match target.name {
        "model_json" => collect(&root().join("examples"), ".json", &mut files),
        "config_json" => {
            collect(&root().join("examples"), "config.json", &mut files);
            collect(&root().join("frontend/tests/data"), "config.json", &mut files);
        }
        "pcir" => collect(&root().join("tests/filetests"), ".pcir", &mut files),
        "safetensors" => {
            collect(&root().join("frontend/tests/data"), "mistral/model.safetensors", &mut files)
        }
        _ => {}
    }
    let name = |f: &Path| f.strip_prefix(root()).unwrap_or(f).display().to_string();
    let read = |f: &PathBuf| Ok((name(f), std::fs::read(f).map_err(|e| format!("{}: {e}", name(f)))?));
    let mut all = files.iter().map(read).collect::<Result<Vec<_>, String>>()?;
    all.extend(match target.name {
        "gguf" => gguf(),
        "artifact" => artifacts()?,
        "pipeline" => flagged_models()?,
        "npz" => arrays(),
        _ => Vec::new(),
    });
    Ok(all)
}

/// Files below a folder whose paths end so, sorted.
fn collect(folder: &Path, end: &str, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, end, files);
        } else if path.to_string_lossy().ends_with(end) {
            files.push(path);
        }
    }
}

/// A llama of one layer with a tokenizer of bytes; one tensor of each element type; keys of every type.
fn gguf() -> Vec<(String, Vec<u8>)> {
    let (hidden, vocab) = (32u64, 262u64);
    let bytes: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
    let tokens: Vec<&str> = ["<unk>", "<s>", "</s>"]
        .into_iter()
        .chain(bytes.iter().map(String::as_str))
        .chain(["\u{2581}", "a", "\u{2581}a"])
        .collect();
    let kinds: Vec<i32> =
        (0..262).map(|i| [2, 3, 3].get(i).copied().unwrap_or(if i < 259 { 6 } else { 1 })).collect();
    let mut llama = GgufFile::of("llama");
    for (key, n) in [
        ("block_count", 1),
        ("context_length", 8),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        llama = llama.u32(&format!("llama.{key}"), n);
    }
    llama = llama.key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
    llama = llama
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &(0..262).map(|i| -(i as f32)).collect::<Vec<_>>())
        .i32s("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2);
    let matrices = [
        ("token_embd", vocab, 2),
        ("blk.0.attn_q", 32, 8),
        ("blk.0.attn_k", 16, 3),
        ("blk.0.attn_v", 16, 1),
        ("blk.0.attn_output", 32, 30),
        ("blk.0.ffn_gate", 32, 2),
        ("blk.0.ffn_up", 32, 8),
        ("blk.0.ffn_down", 32, 7),
    ];
    for (name, rows, kind) in matrices {
        llama = llama.tensor(&format!("{name}.weight"), &[hidden, rows], kind, &stored(hidden * rows, kind));
    }
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        llama = llama.tensor(&format!("{name}.weight"), &[hidden], 0, &f32_bytes((0..32).map(|i| i as f32)));
    }
    let small = GgufFile::of("qwen2")
        .bool("b", true)
        .array("nested", 9, &[[&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &7u32.to_le_bytes()].concat()])
        .key("f64", 12, &1.5f64.to_le_bytes())
        .tensor("blk.0.attn_q.weight", &[4, 2], 0, &[0; 32])
        .tensor("q4", &[64], 2, &[3; 36]);
    let byte_level = GgufFile::of("llama")
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &["a", "b", "\u{120}", "ab", "\u{120}a", "<eos>"])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 1, 1, 3])
        .strings("tokenizer.ggml.merges", &["a b", "\u{120} a"])
        .u32("tokenizer.ggml.eos_token_id", 5);
    [("llama", llama), ("small", small), ("byte_level", byte_level), ("quantised", quantised())]
        .map(|(name, file)| (format!("made {name}"), file.bytes()))
        .into()
}

/// Bytes of `n` elements of one of GGUF's types, by its number.
fn stored(n: u64, kind: u32) -> Vec<u8> {
    let (block, size) = match kind {
        0 => (1, 4),
        1 | 30 => (1, 2),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        _ => (256, 292),
    };
    vec![0x11; (n / block * size) as usize]
}

/// A llama of one layer and few words, with a matrix of each type whose blocks have 256 elements.
fn quantised() -> GgufFile {
    let mut llama = GgufFile::of("llama").u32("llama.vocab_size", 2);
    for (key, n) in [
        ("block_count", 1),
        ("context_length", 8),
        ("embedding_length", 256),
        ("feed_forward_length", 32),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 1),
    ] {
        llama = llama.u32(&format!("llama.{key}"), n);
    }
    llama = llama.key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
    let matrices = [
        ("token_embd", 256, 2, 15),
        ("output", 256, 2, 14),
        ("blk.0.attn_q", 256, 256, 10),
        ("blk.0.attn_k", 256, 32, 11),
        ("blk.0.attn_v", 256, 32, 12),
        ("blk.0.attn_output", 256, 256, 10),
        ("blk.0.ffn_gate", 256, 32, 13),
        ("blk.0.ffn_up", 256, 32, 14),
        ("blk.0.ffn_down", 32, 256, 6),
    ];
    for (name, k, n, kind) in matrices {
        llama = llama.tensor(&format!("{name}.weight"), &[k, n], kind, &stored(k * n, kind));
    }
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        llama = llama.tensor(&format!("{name}.weight"), &[256], 0, &f32_bytes((0..256).map(|i| i as f32)));
    }
    llama
}

/// Small compiled programs: both kinds of entries, several stages, uneven pieces.
fn artifacts() -> Result<Vec<(String, Vec<u8>)>, String> {
    let small = root().join("fuzz/seeds/model_json/small.json");
    let mistral = root().join("frontend/tests/data/tiny-mistral/config.json");
    let deep = crate::scratch::file("seeds/config.json", &deeper(&mistral, 5)?);
    let blocks = crate::scratch::file("seeds/quantised.gguf", &quantised().bytes());
    let (f32, bf16) = (DType::F32, DType::BF16);
    [
        ("small", &small, None, (2, 2, 1), f32),
        ("small", &small, None, (3, 1, 2), f32),
        ("mistral", &mistral, Some(4), (3, 2, 1), f32),
        ("deep", &deep, Some(2), (2, 2, 1), bf16),
        ("quantised", &blocks, Some(2), (2, 1, 1), f32),
    ]
    .map(|(name, model, seq, (tp, pp, dp), dtype)| {
        let mesh = Mesh { tp, pp, dp, ..Mesh::default() };
        let made = artifact(model, seq, mesh, dtype).map_err(|d| format!("{name}: {d}"))?;
        Ok((format!("made {name} tp {tp} pp {pp} dp {dp} {dtype}"), made))
    })
    .into_iter()
    .collect()
}

fn artifact(model: &Path, seq: Option<usize>, mesh: Mesh, dtype: DType) -> Result<Vec<u8>, Diagnostic> {
    let replicas = mesh.dp as usize;
    let batch = BatchPlan { batch: 4, replicas, micro_batches: 2 };
    let options = LoadOptions { batch_rows: batch.rows() * replicas, seq, weights: None, seed: 0 };
    let loaded = load(model, &options)?;
    let options = Options { dtype, ..modules::options(mesh, false, batch, loaded.info) };
    let made = compile(loaded.module, &options)?;
    let levels = Levels { graph: made.graph, sharded: made.sharded, local: made.local };
    let file = json!({"program": made.program, "levels": levels, "report": made.report, "plan": made.plan});
    Ok(file.to_string().into_bytes())
}

/// A config of more layers, which are then kept folded.
fn deeper(config: &Path, layers: u32) -> Result<Vec<u8>, String> {
    let text = std::fs::read_to_string(config).map_err(|e| format!("{}: {e}", config.display()))?;
    let mut config: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    config["num_hidden_layers"] = layers.into();
    Ok(config.to_string().into_bytes())
}

/// Models with flags.
fn flagged_models() -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut out = Vec::new();
    for (model, flags) in [
        ("examples/mlp.json", json!({"tp": 4, "batch": 8})),
        ("examples/skip.json", json!({"tp": 3, "pp": 2})),
        ("fuzz/seeds/model_json/small.json", json!({"tp": 2, "pp": 2, "dp": 1, "micro_batches": 2})),
        (
            "frontend/tests/data/tiny-llama/config.json",
            json!({"tp": 2, "pp": 2, "sp": true, "seq": 4, "micro_batches": 2}),
        ),
        ("frontend/tests/data/tiny-llama/config.json", json!({"tp": 3, "seq": 3, "dtype": "bf16"})),
        ("frontend/tests/data/tiny-gpt2/config.json", json!({"tp": 5, "dp": 2, "seq": 5, "batch": 5})),
        ("frontend/tests/data/tiny-bert/config.json", json!({"tp": 3, "pp": 3, "seq": 3, "batch": 3})),
    ] {
        let text = std::fs::read_to_string(root().join(model)).map_err(|e| format!("{model}: {e}"))?;
        let mut file = flags;
        file["model"] = serde_json::from_str(&text).map_err(|e| format!("{model}: {e}"))?;
        out.push((format!("made {model}"), file.to_string().into_bytes()));
    }
    Ok(out)
}

/// Arrays of every type, in an archive and alone.
fn arrays() -> Vec<(String, Vec<u8>)> {
    let header = |ty: &str, order: &str, shape: &str| {
        let mut text = format!("{{'descr': '{ty}', 'fortran_order': {order}, 'shape': {shape}, }}");
        text.extend(std::iter::repeat_n(' ', 63 - (text.len() + 10) % 64));
        text.push('\n');
        [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
    };
    let cases = [
        ("<f4", "False", "(8, 20)", 640),
        ("<f8", "False", "(2,)", 16),
        ("<i4", "True", "(3,)", 12),
        ("<i8", "False", "(1, 2)", 16),
        ("|b1", "False", "()", 1),
    ];
    let mut out: Vec<_> = cases
        .iter()
        .map(|(ty, order, shape, n)| {
            (format!("made {ty} {shape}"), [header(ty, order, shape), vec![0; *n]].concat())
        })
        .collect();
    let archive = crate::targets::arrays::archive("x", &out[0].1);
    out.push(("made archive".into(), archive));
    out
}
