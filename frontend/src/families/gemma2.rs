//! Gemma 2: norms before and after each block with weights around zero, a window in every other layer, soft caps of scores and
//! logits, scaled embeddings.

use super::rope::{self, Rotary};
use super::{Description, group, layers, sliding_layers};
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
        Row::new("attn.post_norm", "model.layers.{i}.post_attention_layernorm"),
        Row::new("mlp.norm", "model.layers.{i}.pre_feedforward_layernorm"),
        Row::new("mlp", "model.layers.{i}.mlp"),
        Row::new("mlp.gate", "model.layers.{i}.mlp.gate_proj"),
        Row::new("mlp.up", "model.layers.{i}.mlp.up_proj"),
        Row::new("mlp.down", "model.layers.{i}.mlp.down_proj"),
        Row::new("mlp.post_norm", "model.layers.{i}.post_feedforward_layernorm"),
        Row::new("head.norm", "model.norm"),
        Row::new("head", "lm_head"),
    ],
    matrices: Matrices::OutputsFirst,
    prefixes: &["model."],
    renames: &[],
    ignored: &["*rotary_emb.inv_freq"],
};

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming = Naming { ignored: &["*rotary_emb.inv_freq", "lm_head.weight"], ..NAMING };

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["Gemma2ForCausalLM"])?;
    c.only("use_bidirectional_attention", false)?;
    // An older name that the class no longer reads, and how its caches are kept.
    c.get("hidden_act");
    c.get("cache_implementation");
    let (hidden, heads) = (c.required("hidden_size")?, c.required("num_attention_heads")?);
    let kv = c.size("num_key_value_heads")?.unwrap_or(4);
    let head_dim = c.size("head_dim")?.unwrap_or(256);
    let bias = c.bool("attention_bias")?.unwrap_or(false);
    let norm = Norm::RmsPlusOne { eps: c.positive("rms_norm_eps")?.unwrap_or(1e-6) };
    let attention = Attention {
        qkv_bias: bias,
        out_bias: bias,
        rope: Some(rope::read(c, head_dim, &Rotary::default())?),
        scale: c.positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5),
        softcap: cap(c, "attn_logit_softcapping", 50.0)?,
        ..Attention::new(kv, group(c, heads, kv, "num_key_value_heads")?, head_dim)
    };
    let mlp = Mlp {
        ffn: c.required("intermediate_size")?,
        act: c.activation("hidden_activation", UnaryKind::GeluTanh)?,
        gated: true,
        bias: false,
    };
    let window = c.size("sliding_window")?.or((!c.has("sliding_window")).then_some(4096));
    let sliding = sliding_layers(c, "num_hidden_layers")?;
    let layer = |i: usize| {
        let sliding = sliding.as_ref().map_or(i.is_multiple_of(2), |list| list.get(i) == Some(&true));
        Layer {
            arrangement: Arrangement::BothNorms,
            norm,
            attention: Attention { window: window.filter(|_| sliding), ..attention.clone() },
            mlp: mlp.clone(),
        }
    };
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(true);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        max_seq: c.size("max_position_embeddings")?.unwrap_or(8192),
        embedding: Embedding { scale: Some((hidden as f64).sqrt()), ..Embedding::default() },
        layers: (0..layers(c, "num_hidden_layers")?).map(layer).collect(),
        head: Head {
            norm: Some(norm),
            tied,
            softcap: cap(c, "final_logit_softcapping", 30.0)?,
            ..Head::default()
        },
        unused: vec![],
    };
    let naming = if tied { &TIED_NAMING } else { &NAMING };
    Ok(Description { family: "gemma2", class, transformer, naming })
}

/// Absent means the class's default; null means no cap.
fn cap(c: &Config, key: &str, default: f64) -> Result<Option<f64>, Diagnostic> {
    Ok(c.positive(key)?.or((!c.has(key)).then_some(default)))
}
