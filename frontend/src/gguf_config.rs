//! The keys of a GGUF file as the fields of the config its model was published with.

use crate::weights::gguf::names::check_architecture;
use crate::weights::{Checkpoint, GgufMeta};
use pcc_ir::Diagnostic;
use serde_json::{Map, Value, json};

/// Keys after the architecture's name, and the config's field of the same meaning.
const FIELDS: &[(&str, &str)] = &[
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
];

/// Keys read in their own way below, or without influence.
/// The field of a config that holds what a GGUF file's rotary frequencies are divided by; no config.json has it.
pub(crate) const ROPE_DIVISORS: &str = "rope_divisors";

const OTHERS: &[&str] = &[
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
    "tensor_data_layout",
];

/// Builds the config.
///
/// # Errors
/// An architecture that is not supported; a key of the architecture that is not understood, by name.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<Map<String, Value>, Diagnostic> {
    let place = checkpoint.path().display().to_string();
    let meta = checkpoint.gguf().ok_or_else(|| Diagnostic::internal("a GGUF file without keys").at(place))?;
    let arch = check_architecture(meta)?;
    let mut config = Map::new();
    config.insert("model_type".into(), json!(arch));
    let key = |k: &str| format!("{arch}.{k}");
    for (gguf, field) in FIELDS {
        if let Some(n) = meta.uint(&key(gguf))? {
            config.insert((*field).into(), json!(n));
        }
    }
    if let Some(eps) = meta.float(&key("attention.layer_norm_rms_epsilon"))? {
        config.insert("rms_norm_eps".into(), json!(shortest(eps)));
    }
    if let Some(theta) = meta.float(&key("rope.freq_base"))? {
        config.insert("rope_theta".into(), json!(shortest(theta)));
    }
    refuse_unknown(meta, arch)?;
    rope(checkpoint, meta, arch, &mut config)?;
    let embedding = checkpoint.tensor("token_embd.weight").and_then(|t| t.shape.first().copied());
    if let Some(rows) = embedding {
        if let Some(said) = meta.uint(&key("vocab_size"))?
            && said != rows as u64
        {
            return Err(
                meta.wrong(&key("vocab_size"), format!("it is {said}, but the embedding has {rows} rows"))
            );
        }
        config.insert("vocab_size".into(), json!(rows));
    }
    config.insert("tie_word_embeddings".into(), json!(checkpoint.tensor("output.weight").is_none()));
    if arch == "llama" {
        config.insert("attention_bias".into(), json!(checkpoint.tensor("blk.0.attn_q.bias").is_some()));
    }
    for (gguf, field) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        if let Some(id) = meta.uint(&format!("tokenizer.ggml.{gguf}"))? {
            config.insert(field.into(), json!(id));
        }
    }
    Ok(config)
}

/// A float of the file was rounded to f32 from the published decimal: this is the shortest decimal with that f32.
fn shortest(x: f64) -> f64 {
    format!("{}", x as f32).parse().unwrap_or(x)
}

fn refuse_unknown(meta: &GgufMeta, arch: &str) -> Result<(), Diagnostic> {
    let known = |k: &str| FIELDS.iter().any(|(f, _)| *f == k) || OTHERS.contains(&k);
    let unknown = meta
        .iter()
        .find(|(k, _)| k.strip_prefix(arch).and_then(|k| k.strip_prefix('.')).is_some_and(|k| !known(k)));
    match unknown {
        Some((key, _)) => {
            Err(meta.wrong(key, "it is not understood and could change the model's mathematics".into()))
        }
        None => Ok(()),
    }
}

/// Rotary scaling: a linear factor, or a tensor of divisors.
fn rope(
    checkpoint: &Checkpoint,
    meta: &GgufMeta,
    arch: &str,
    config: &mut Map<String, Value>,
) -> Result<(), Diagnostic> {
    let key = |k: &str| format!("{arch}.{k}");
    let head_dim = match meta.uint(&key("attention.key_length"))? {
        Some(d) => Some(d),
        None => {
            let (hidden, heads) =
                (meta.uint(&key("embedding_length"))?, meta.uint(&key("attention.head_count"))?);
            hidden.zip(heads).and_then(|(h, n)| h.checked_div(n))
        }
    };
    for name in ["rope.dimension_count", "attention.value_length"] {
        if let (Some(n), Some(d)) = (meta.uint(&key(name))?, head_dim)
            && n != d
        {
            return Err(meta.wrong(&key(name), format!("only the whole head, {d}, is supported")));
        }
    }
    match meta.str(&key("rope.scaling.type"))? {
        None | Some("none") => {}
        Some("linear") => {
            let factor = meta.float(&key("rope.scaling.factor"))?;
            let factor = meta.required(&key("rope.scaling.factor"), factor)?;
            config.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": factor}));
        }
        Some(other) => {
            let why = format!("`{other}` is not supported");
            return Err(meta.wrong(&key("rope.scaling.type"), why).help("supported: none, linear"));
        }
    }
    if let Some(t) = checkpoint.tensor("rope_freqs.weight") {
        let n = t.shape.first().copied().filter(|&n| t.shape.len() == 1 && n <= 1 << 12).unwrap_or(0);
        let mut divisors = vec![0f32; n];
        checkpoint.read_f32("rope_freqs.weight", std::slice::from_ref(&(0..n)), &mut divisors)?;
        config.insert(ROPE_DIVISORS.into(), json!(divisors));
    }
    Ok(())
}
