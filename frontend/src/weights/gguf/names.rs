//! Published (Hugging Face) tensor names and shapes for GGUF's llama-like models.
//!
//! The families know one naming, the published one; this table lets a GGUF file answer to it. Architecture `llama`
//! (which llama, mistral and smollm2 models carry) stores the rows of q and k in another order, see
//! [`TensorView::undo_rope_interleave`]; `qwen2` and `qwen3` store them as published.

use super::GgufMeta;
use pcc_ir::Diagnostic;
use pcc_ir::source::TensorView;

/// Architectures whose names are known.
pub const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Names outside layers: (GGUF, published).
const TOP: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Names inside a layer: (GGUF after `blk.N.`, published after `model.layers.N.`).
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The GGUF name of a published one: `model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`.
pub fn to_gguf(published: &str) -> Option<String> {
    let (stem, kind) = published.rsplit_once('.')?;
    if kind != "weight" && kind != "bias" {
        return None;
    }
    if let Some((gguf, _)) = TOP.iter().find(|(_, p)| *p == stem) {
        return Some(format!("{gguf}.{kind}"));
    }
    let (layer, part) = stem.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (gguf, _) = LAYER.iter().find(|(_, p)| *p == part)?;
    Some(format!("blk.{layer}.{gguf}.{kind}"))
}

/// The published name of a GGUF one, the inverse of [`to_gguf`].
pub fn to_published(gguf: &str) -> Option<String> {
    let (stem, kind) = gguf.rsplit_once('.')?;
    if kind != "weight" && kind != "bias" {
        return None;
    }
    if let Some((_, published)) = TOP.iter().find(|(g, _)| *g == stem) {
        return Some(format!("{published}.{kind}"));
    }
    let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (_, published) = LAYER.iter().find(|(g, _)| *g == part)?;
    Some(format!("model.layers.{layer}.{published}.{kind}"))
}

/// Refuses architectures whose names, and whose layouts, are not known.
pub fn check_architecture(meta: &GgufMeta) -> Result<&str, Diagnostic> {
    let arch = meta.architecture()?;
    if ARCHITECTURES.contains(&arch) {
        return Ok(arch);
    }
    let known = ARCHITECTURES.join(", ");
    Err(meta
        .wrong("general.architecture", format!("`{arch}` is not supported"))
        .help(format!("supported: {known}")))
}

/// A stored tensor in its published layout: the rows of q and k of architecture `llama` return to their order.
pub(in crate::weights) fn published_view(
    meta: &GgufMeta,
    stored: TensorView,
) -> Result<TensorView, Diagnostic> {
    let arch = check_architecture(meta)?;
    let heads = match stored.tensor.split('.').nth(2) {
        Some("attn_q") => "attention.head_count",
        Some("attn_k") => "attention.head_count_kv",
        _ => return Ok(stored),
    };
    if arch != "llama" {
        return Ok(stored);
    }
    let fallback = format!("{arch}.attention.head_count");
    let key = format!("{arch}.{heads}");
    // The number of kv heads may be left out when it equals the number of heads.
    let count = match meta.uint(&key)? {
        Some(n) => n,
        None => meta.required(&fallback, meta.uint(&fallback)?)?,
    };
    let count = usize::try_from(count).map_err(|_| meta.wrong(&key, format!("{count} overflows")))?;
    Ok(stored.undo_rope_interleave(0, count)?)
}
