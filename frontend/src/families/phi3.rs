//! Phi-3 and Phi-4: llama with q, k and v in one matrix, gate and up in another, partial and LongRoPE-scaled rotary positions.

use super::Description;
use super::llama::{self, Variant};
use super::rope::Rotary;
use crate::config::Config;
use crate::naming::{Matrices, Naming, Qkv, Row};
use pcc_ir::Diagnostic;

const NAMING: Naming = Naming {
    rows: &[
        Row::new("embed.tokens", "model.embed_tokens"),
        Row::new("attn.norm", "model.layers.{i}.input_layernorm"),
        Row::new("attn", "model.layers.{i}.self_attn"),
        Row::stacked("attn.q", "model.layers.{i}.self_attn.qkv_proj", Qkv::Queries),
        Row::stacked("attn.k", "model.layers.{i}.self_attn.qkv_proj", Qkv::Keys),
        Row::stacked("attn.v", "model.layers.{i}.self_attn.qkv_proj", Qkv::Values),
        Row::new("attn.o", "model.layers.{i}.self_attn.o_proj"),
        Row::new("mlp.norm", "model.layers.{i}.post_attention_layernorm"),
        Row::new("mlp", "model.layers.{i}.mlp"),
        Row::part("mlp.gate", "model.layers.{i}.mlp.gate_up_proj", 0, 2),
        Row::part("mlp.up", "model.layers.{i}.mlp.gate_up_proj", 1, 2),
        Row::new("mlp.down", "model.layers.{i}.mlp.down_proj"),
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
    c.only("attention_bias", false)?;
    // Counts only where a scaling is in use.
    c.get("original_max_position_embeddings");
    let window = c.size("sliding_window")?;
    let variant = Variant {
        naming: [&NAMING, &TIED_NAMING],
        max_seq: 4096,
        rms_eps: 1e-5,
        head_dim: c.size("head_dim")?,
        rotary: Rotary {
            part: Some(("partial_rotary_factor", 1.0)),
            scalings: &["default", "longrope"],
            ..Rotary::default()
        },
        window: Box::new(move |_| window),
        ..Variant::new("phi3", c.class(&["Phi3ForCausalLM"])?)
    };
    llama::read(c, variant)
}
