//! Llama and its variants mistral, qwen2 and qwen3 (smollm2 is a llama): RMS norms, rotary positions, grouped queries,
//! gated feed-forward. They differ in biases, norms of q and k, windows and the defaults of absent fields.

use super::{Description, head_dim, layers};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Row};
use crate::transformer::{
    Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Rope, RopeScaling, Transformer,
};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;
use serde_json::Value;

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
struct Variant {
    family: &'static str,
    class: &'static str,
    max_seq: usize,
    qkv_bias: bool,
    out_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
    head_dim: Option<usize>,
    /// Window of each layer.
    window: Box<dyn Fn(usize) -> Option<usize>>,
}

pub(super) fn llama(c: &Config) -> Result<Description, Diagnostic> {
    let bias = c.bool("attention_bias")?.unwrap_or(false);
    c.only("rope_interleaved", false)?;
    c.only("partial_rotary_factor", 1.0)?;
    read(
        c,
        Variant {
            family: "llama",
            class: c.class(&["LlamaForCausalLM"])?,
            max_seq: 2048,
            qkv_bias: bias,
            out_bias: bias,
            mlp_bias: c.bool("mlp_bias")?.unwrap_or(false),
            qk_norm: false,
            head_dim: c.size("head_dim")?,
            window: Box::new(|_| None),
        },
    )
}

pub(super) fn mistral(c: &Config) -> Result<Description, Diagnostic> {
    // Absent means the class's default; null means no window.
    let window = match c.size("sliding_window")? {
        None if !c.has("sliding_window") => Some(4096),
        window => window,
    };
    read(
        c,
        Variant {
            family: "mistral",
            class: c.class(&["MistralForCausalLM"])?,
            max_seq: 131_072,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            head_dim: c.size("head_dim")?,
            window: Box::new(move |_| window),
        },
    )
}

pub(super) fn qwen2(c: &Config) -> Result<Description, Diagnostic> {
    read(
        c,
        Variant {
            family: "qwen2",
            class: c.class(&["Qwen2ForCausalLM"])?,
            max_seq: 32_768,
            qkv_bias: true,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            head_dim: c.size("head_dim")?,
            window: qwen_window(c)?,
        },
    )
}

pub(super) fn qwen3(c: &Config) -> Result<Description, Diagnostic> {
    let bias = c.bool("attention_bias")?.unwrap_or(false);
    read(
        c,
        Variant {
            family: "qwen3",
            class: c.class(&["Qwen3ForCausalLM"])?,
            max_seq: 32_768,
            qkv_bias: bias,
            out_bias: bias,
            mlp_bias: false,
            qk_norm: true,
            head_dim: Some(c.size("head_dim")?.unwrap_or(128)),
            window: qwen_window(c)?,
        },
    )
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
    let Some(types) = c.get("layer_types") else {
        return Ok(Box::new(move |i| window.filter(|_| i >= from)));
    };
    let kinds = ["full_attention", "sliding_attention"];
    let read = |t: &Value| t.as_str().filter(|t| kinds.contains(t)).map(|t| t == kinds[1]);
    let sliding: Option<Vec<bool>> = types.as_array().and_then(|list| list.iter().map(read).collect());
    match sliding {
        Some(list) if list.len() == layers(c, "num_hidden_layers")? => {
            Ok(Box::new(move |i| window.filter(|_| list.get(i).copied().unwrap_or(false))))
        }
        _ => Err(c.wrong("layer_types", format!("one of {} a layer is needed", kinds.join(" or ")))),
    }
}

fn read(c: &Config, v: Variant) -> Result<Description, Diagnostic> {
    let (hidden, heads) = (c.required("hidden_size")?, c.required("num_attention_heads")?);
    let kv = c.size("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv) {
        return Err(c.wrong("num_key_value_heads", format!("it does not divide the {heads} attention heads")));
    }
    let head_dim = match v.head_dim {
        Some(d) => d,
        None => head_dim(c, hidden, heads, "num_attention_heads")?,
    };
    let norm = Norm::Rms { eps: c.positive("rms_norm_eps")?.unwrap_or(1e-6) };
    let attention = Attention {
        kv,
        group: heads / kv,
        head_dim,
        qkv_bias: v.qkv_bias,
        out_bias: v.out_bias,
        qk_norm: v.qk_norm.then_some(norm),
        rope: Some(rope(c, head_dim)?),
        causal: true,
        window: None,
        scale: 1.0 / (head_dim as f64).sqrt(),
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
        embedding: Embedding { positions: None, token_types: None, norm: None },
        layers: (0..layers(c, "num_hidden_layers")?).map(layer).collect(),
        head: Head { norm: Some(norm), tied },
        unused: vec![],
    };
    let naming = if tied { &TIED_NAMING } else { &NAMING };
    Ok(Description { family: v.family, class: v.class, transformer, naming })
}

/// `rope_theta` and `rope_scaling`, or both inside `rope_parameters` as newer files have them.
fn rope(c: &Config, head_dim: usize) -> Result<Rope, Diagnostic> {
    if head_dim % 2 == 1 {
        return Err(c.wrong("head_dim", format!("heads of {head_dim} elements have no pairs to rotate")));
    }
    let mut theta = c.positive("rope_theta")?;
    let mut scaling = RopeScaling::None;
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(s) = c.object(key)? {
            theta = s.positive("rope_theta")?.or(theta);
            s.only("partial_rotary_factor", 1.0)?;
            scaling = rope_scaling(&s)?;
            s.finish()?;
        }
    }
    // GGUF files hold the finished divisors.
    if let Some(list) = c.get("rope_divisors").and_then(Value::as_array) {
        let divisors: Option<Vec<f64>> = list.iter().map(|v| v.as_f64().filter(|d| *d > 0.0)).collect();
        match divisors {
            Some(d) if d.len() == head_dim / 2 => scaling = RopeScaling::Divisors(d),
            _ => return Err(c.wrong("rope_divisors", format!("{} numbers above 0 are needed", head_dim / 2))),
        }
    }
    Ok(Rope { dim: head_dim, theta: theta.unwrap_or(10_000.0), scaling, interleaved: false })
}

fn rope_scaling(s: &Config) -> Result<RopeScaling, Diagnostic> {
    let kind = match s.str("rope_type")? {
        Some(kind) => kind,
        None => s.str("type")?.unwrap_or("default"),
    };
    s.get("type");
    let number = |key: &str| s.positive(key)?.ok_or_else(|| s.missing(key));
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(s.wrong("low_freq_factor", format!("it must be below high_freq_factor, {high}")));
            }
            let (factor, original) = (number("factor")?, number("original_max_position_embeddings")?);
            Ok(RopeScaling::Llama3 { factor, low, high, original })
        }
        _ => Err(s
            .wrong(if s.has("rope_type") { "rope_type" } else { "type" }, "this scaling is not supported")
            .help("supported: default, linear, llama3")),
    }
}
