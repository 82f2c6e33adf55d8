//! GPT-2: layer norms before each block, learned positions, biases everywhere, a tied head.

use super::{Description, head_dim, layers};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Row};
use crate::transformer::{Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Positions, Transformer};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

const NAMING: Naming = Naming {
    rows: &[
        Row::new("embed.tokens", "transformer.wte"),
        Row::new("embed.positions", "transformer.wpe"),
        Row::new("attn.norm", "transformer.h.{i}.ln_1"),
        Row::new("attn", "transformer.h.{i}.attn"),
        // One matrix [hidden, 3 * hidden]: q, then k, then v.
        Row::part("attn.q", "transformer.h.{i}.attn.c_attn", 0, 3),
        Row::part("attn.k", "transformer.h.{i}.attn.c_attn", 1, 3),
        Row::part("attn.v", "transformer.h.{i}.attn.c_attn", 2, 3),
        Row::new("attn.o", "transformer.h.{i}.attn.c_proj"),
        Row::new("mlp.norm", "transformer.h.{i}.ln_2"),
        Row::new("mlp", "transformer.h.{i}.mlp"),
        Row::new("mlp.up", "transformer.h.{i}.mlp.c_fc"),
        Row::new("mlp.down", "transformer.h.{i}.mlp.c_proj"),
        Row::new("head.norm", "transformer.ln_f"),
        Row::new("head", "lm_head"),
    ],
    matrices: Matrices::InputsFirst,
    prefixes: &["transformer."],
    renames: &[],
    // Causal masks kept as buffers.
    ignored: &["*.attn.bias", "*.attn.masked_bias"],
};

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming =
    Naming { ignored: &["*.attn.bias", "*.attn.masked_bias", "lm_head.weight"], ..NAMING };

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["GPT2LMHeadModel"])?;
    c.only("scale_attn_weights", true)?;
    let (hidden, heads) = (c.required("n_embd")?, c.required("n_head")?);
    let head_dim = head_dim(c, hidden, heads, "n_head")?;
    let max_seq = c.size("n_positions")?.unwrap_or(1024);
    // The older name of the same field.
    c.only("n_ctx", max_seq)?;
    let norm = Norm::Layer { eps: c.positive("layer_norm_epsilon")?.unwrap_or(1e-5) };
    let layer = Layer {
        arrangement: Arrangement::PreNorm,
        norm,
        attention: Attention { qkv_bias: true, out_bias: true, ..Attention::new(heads, 1, head_dim) },
        mlp: Mlp {
            ffn: c.size("n_inner")?.unwrap_or(4 * hidden),
            act: c.activation("activation_function", UnaryKind::GeluTanh)?,
            gated: false,
            bias: true,
        },
    };
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(true);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        max_seq,
        embedding: Embedding {
            positions: Some(Positions { rows: max_seq, offset: 0 }),
            ..Embedding::default()
        },
        layers: vec![layer; layers(c, "n_layer")?],
        head: Head { norm: Some(norm), tied, ..Head::default() },
        unused: vec![],
    };
    Ok(Description { family: "gpt2", class, transformer, naming: if tied { &TIED_NAMING } else { &NAMING } })
}
