//! Llama and its variants mistral, qwen2 and qwen3 (smollm2 is a llama): RMS norms, rotary positions, grouped queries,
//! gated feed-forward. They differ in biases, norms of q and k, windows and the defaults of absent fields.

use super::rope::{self, Rotary};
use super::{Description, group, head_dim, layers, sliding_layers};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Row};
use crate::transformer::{Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Transformer};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

const NAMING: Naming = Naming {
    rows: &[
        Row::new("embed.tokens", "model.embed_tokens"),
        Row::new("attn.norm", "model.layers.{i}.input_layernorm"),
        Row::new("attn", "model.layers.{i}.self_attn"),
        Row::new("attn.q", "model.layers.{i}.self_attn.q_proj"),
        Row::new("attn.k", "model.layers.{i}.self_attn.k_proj"),
        Row::new("attn.v", "model.layers.{i}.self_attn.v_proj"),
        Row::new("attn.o", "model.layers.{i}.self_attn.o_proj"),
        Row::new("attn.q_norm", "model.layers.{i}.self_attn.q_norm"),
        Row::new("attn.k_norm", "model.layers.{i}.self_attn.k_norm"),
        Row::new("mlp.norm", "model.layers.{i}.post_attention_layernorm"),
        Row::new("mlp", "model.layers.{i}.mlp"),
        Row::new("mlp.gate", "model.layers.{i}.mlp.gate_proj"),
        Row::new("mlp.up", "model.layers.{i}.mlp.up_proj"),
        Row::new("mlp.down", "model.layers.{i}.mlp.down_proj"),
        Row::new("head.norm", "model.norm"),
        Row::new("head", "lm_head"),
    ],
    matrices: Matrices::OutputsFirst,
    prefixes: &["model."],
    renames: &[],
    // A tied head that is stored all the same; buffers of frequencies.
    ignored: &["*rotary_emb.inv_freq", "rope_freqs.weight"],
};

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming =
    Naming { ignored: &["*rotary_emb.inv_freq", "rope_freqs.weight", "lm_head.weight"], ..NAMING };

/// What the variants say differently.
pub(super) struct Variant {
    pub(super) family: &'static str,
    pub(super) class: &'static str,
    /// Of checkpoints with a head of its own, and of those whose head is the embedding.
    pub(super) naming: [&'static Naming; 2],
    pub(super) max_seq: usize,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) qk_norm: bool,
    /// Where the config says nothing.
    pub(super) rms_eps: f64,
    pub(super) head_dim: Option<usize>,
    pub(super) rotary: Rotary,
    /// Window of each layer.
    pub(super) window: Box<dyn Fn(usize) -> Option<usize>>,
}

impl Variant {
    pub(super) fn new(family: &'static str, class: &'static str) -> Self {
        Self {
            family,
            class,
            naming: [&NAMING, &TIED_NAMING],
            max_seq: 2048,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            rms_eps: 1e-6,
            head_dim: None,
            rotary: Rotary::default(),
            window: Box::new(|_| None),
        }
    }
}

pub(super) fn llama(c: &Config) -> Result<Description, Diagnostic> {
    let bias = c.bool("attention_bias")?.unwrap_or(false);
    c.only("rope_interleaved", false)?;
    c.only("partial_rotary_factor", 1.0)?;
    let variant = Variant {
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: c.bool("mlp_bias")?.unwrap_or(false),
        head_dim: c.size("head_dim")?,
        ..Variant::new("llama", c.class(&["LlamaForCausalLM"])?)
    };
    read(c, variant)
}

pub(super) fn mistral(c: &Config) -> Result<Description, Diagnostic> {
    // Absent means the class's default; null means no window.
    let window = match c.size("sliding_window")? {
        None if !c.has("sliding_window") => Some(4096),
        window => window,
    };
    let variant = Variant {
        max_seq: 131_072,
        head_dim: c.size("head_dim")?,
        window: Box::new(move |_| window),
        ..Variant::new("mistral", c.class(&["MistralForCausalLM"])?)
    };
    read(c, variant)
}

pub(super) fn qwen2(c: &Config) -> Result<Description, Diagnostic> {
    let variant = Variant {
        max_seq: 32_768,
        qkv_bias: true,
        head_dim: c.size("head_dim")?,
        window: qwen_window(c)?,
        ..Variant::new("qwen2", c.class(&["Qwen2ForCausalLM"])?)
    };
    read(c, variant)
}

pub(super) fn qwen3(c: &Config) -> Result<Description, Diagnostic> {
    let bias = c.bool("attention_bias")?.unwrap_or(false);
    let variant = Variant {
        max_seq: 32_768,
        qkv_bias: bias,
        out_bias: bias,
        qk_norm: true,
        head_dim: Some(c.size("head_dim")?.unwrap_or(128)),
        window: qwen_window(c)?,
        ..Variant::new("qwen3", c.class(&["Qwen3ForCausalLM"])?)
    };
    read(c, variant)
}

/// Qwen's windows: with `use_sliding_window`, of the layers from `max_window_layers` on, unless `layer_types` says it
/// layer by layer.
fn qwen_window(c: &Config) -> Result<Box<dyn Fn(usize) -> Option<usize>>, Diagnostic> {
    let used = c.bool("use_sliding_window")?.unwrap_or(false);
    let window = c.size("sliding_window")?.or((!c.has("sliding_window")).then_some(4096)).filter(|_| used);
    let from = match c.get("max_window_layers") {
        None => 28,
        Some(v) => v
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| c.wrong("max_window_layers", "a number of layers is needed"))?,
    };
    match sliding_layers(c, "num_hidden_layers")? {
        None => Ok(Box::new(move |i| window.filter(|_| i >= from))),
        Some(list) => Ok(Box::new(move |i| window.filter(|_| list.get(i).copied().unwrap_or(false)))),
    }
}

pub(super) fn read(c: &Config, v: Variant) -> Result<Description, Diagnostic> {
    let (hidden, heads) = (c.required("hidden_size")?, c.required("num_attention_heads")?);
    let kv = c.size("num_key_value_heads")?.unwrap_or(heads);
    let group = group(c, heads, kv, "num_key_value_heads")?;
    let head_dim = match v.head_dim {
        Some(d) => d,
        None => head_dim(c, hidden, heads, "num_attention_heads")?,
    };
    let norm = Norm::Rms { eps: c.positive("rms_norm_eps")?.unwrap_or(v.rms_eps) };
    let attention = Attention {
        qkv_bias: v.qkv_bias,
        out_bias: v.out_bias,
        qk_norm: v.qk_norm.then_some(norm),
        rope: Some(rope::read(c, head_dim, &v.rotary)?),
        ..Attention::new(kv, group, head_dim)
    };
    let mlp = Mlp {
        ffn: c.required("intermediate_size")?,
        act: c.activation("hidden_act", UnaryKind::Silu)?,
        gated: true,
        bias: v.mlp_bias,
    };
    let layer = |i| Layer {
        arrangement: Arrangement::PreNorm,
        norm,
        attention: Attention { window: (v.window)(i), ..attention.clone() },
        mlp: mlp.clone(),
    };
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(false);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        max_seq: c.size("max_position_embeddings")?.unwrap_or(v.max_seq),
        embedding: Embedding::default(),
        layers: (0..layers(c, "num_hidden_layers")?).map(layer).collect(),
        head: Head { norm: Some(norm), tied, ..Head::default() },
        unused: vec![],
    };
    let [untied, naming] = v.naming;
    let naming = if tied { naming } else { untied };
    Ok(Description { family: v.family, class: v.class, transformer, naming })
}
