//! GPT-NeoX and Pythia: layer norms, attention and feed-forward side by side, rotary positions in part of each head, q, k and v of each head
//! together in one matrix.

use super::rope::{self, Rotary};
use super::{Description, head_dim, layers};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Qkv, Row};
use crate::transformer::{Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Transformer};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

const NAMING: Naming = Naming {
    rows: &[
        Row::new("embed.tokens", "gpt_neox.embed_in"),
        Row::new("attn.norm", "gpt_neox.layers.{i}.input_layernorm"),
        Row::new("attn", "gpt_neox.layers.{i}.attention"),
        Row::per_head("attn.q", "gpt_neox.layers.{i}.attention.query_key_value", Qkv::Queries),
        Row::per_head("attn.k", "gpt_neox.layers.{i}.attention.query_key_value", Qkv::Keys),
        Row::per_head("attn.v", "gpt_neox.layers.{i}.attention.query_key_value", Qkv::Values),
        Row::new("attn.o", "gpt_neox.layers.{i}.attention.dense"),
        Row::new("mlp.norm", "gpt_neox.layers.{i}.post_attention_layernorm"),
        Row::new("mlp", "gpt_neox.layers.{i}.mlp"),
        Row::new("mlp.up", "gpt_neox.layers.{i}.mlp.dense_h_to_4h"),
        Row::new("mlp.down", "gpt_neox.layers.{i}.mlp.dense_4h_to_h"),
        Row::new("head.norm", "gpt_neox.final_layer_norm"),
        Row::new("head", "lm_head"),
    ],
    matrices: Matrices::OutputsFirst,
    prefixes: &["gpt_neox."],
    // What every published file calls the head.
    renames: &[("embed_out.weight", "lm_head.weight")],
    // Causal masks and frequencies kept as buffers.
    ignored: &["*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"],
};

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming = Naming {
    ignored: &["*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq", "lm_head.weight"],
    ..NAMING
};

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["GPTNeoXForCausalLM"])?;
    c.only("is_decoder", false)?;
    let (hidden, heads) = (c.required("hidden_size")?, c.required("num_attention_heads")?);
    let head_dim = head_dim(c, hidden, heads, "num_attention_heads")?;
    let bias = c.bool("attention_bias")?.unwrap_or(true);
    let norm = Norm::Layer { eps: c.positive("layer_norm_eps")?.unwrap_or(1e-5) };
    let rotary = Rotary { theta: "rotary_emb_base", part: Some(("rotary_pct", 0.25)), ..Rotary::default() };
    let layer = Layer {
        arrangement: match c.bool("use_parallel_residual")?.unwrap_or(true) {
            true => Arrangement::Parallel { one_norm: false },
            false => Arrangement::PreNorm,
        },
        norm,
        attention: Attention {
            qkv_bias: bias,
            out_bias: bias,
            rope: Some(rope::read(c, head_dim, &rotary)?),
            ..Attention::new(heads, 1, head_dim)
        },
        mlp: Mlp {
            ffn: c.required("intermediate_size")?,
            act: c.activation("hidden_act", UnaryKind::Gelu)?,
            gated: false,
            bias: true,
        },
    };
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(false);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        max_seq: c.size("max_position_embeddings")?.unwrap_or(2048),
        embedding: Embedding::default(),
        layers: vec![layer; layers(c, "num_hidden_layers")?],
        head: Head { norm: Some(norm), tied, ..Head::default() },
        unused: vec![],
    };
    Ok(Description {
        family: "gpt_neox",
        class,
        transformer,
        naming: if tied { &TIED_NAMING } else { &NAMING },
    })
}
