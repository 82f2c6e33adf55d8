//! OPT: layer norms, learned positions that start at row 2, biases, a tied head. One size of it, 350m, has its norms after the blocks and
//! embeddings narrower than the hidden size.

use super::{Description, head_dim, layers};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Row};
use crate::transformer::{Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Positions, Transformer};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

const NAMING: Naming = Naming {
    rows: &[
        Row::new("embed.tokens", "model.decoder.embed_tokens"),
        Row::new("embed.positions", "model.decoder.embed_positions"),
        Row::new("embed.project", "model.decoder.project_in"),
        Row::new("attn.norm", "model.decoder.layers.{i}.self_attn_layer_norm"),
        Row::new("attn", "model.decoder.layers.{i}.self_attn"),
        Row::new("attn.q", "model.decoder.layers.{i}.self_attn.q_proj"),
        Row::new("attn.k", "model.decoder.layers.{i}.self_attn.k_proj"),
        Row::new("attn.v", "model.decoder.layers.{i}.self_attn.v_proj"),
        Row::new("attn.o", "model.decoder.layers.{i}.self_attn.out_proj"),
        Row::new("mlp.norm", "model.decoder.layers.{i}.final_layer_norm"),
        Row::new("mlp", "model.decoder.layers.{i}.fc2"),
        Row::new("mlp.up", "model.decoder.layers.{i}.fc1"),
        Row::new("mlp.down", "model.decoder.layers.{i}.fc2"),
        Row::new("head.norm", "model.decoder.final_layer_norm"),
        Row::new("head.project", "model.decoder.project_out"),
        Row::new("head", "lm_head"),
    ],
    matrices: Matrices::OutputsFirst,
    prefixes: &["model."],
    renames: &[],
    ignored: &[],
};

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming = Naming { ignored: &["lm_head.weight"], ..NAMING };

/// Rows of the table before that of position 0.
const OFFSET: usize = 2;

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["OPTForCausalLM"])?;
    c.only("layer_norm_elementwise_affine", true)?;
    // Training, and the text that pipelines put before a prompt.
    for harmless in ["dropout", "activation_dropout", "layerdrop", "init_std", "prefix"] {
        c.get(harmless);
    }
    let (hidden, heads) = (c.required("hidden_size")?, c.required("num_attention_heads")?);
    let head_dim = head_dim(c, hidden, heads, "num_attention_heads")?;
    let bias = c.bool("enable_bias")?.unwrap_or(true);
    let norm = Norm::Layer { eps: 1e-5 };
    let before = c.bool("do_layer_norm_before")?.unwrap_or(true);
    let layer = Layer {
        arrangement: if before { Arrangement::PreNorm } else { Arrangement::PostNorm },
        norm,
        attention: Attention { qkv_bias: bias, out_bias: bias, ..Attention::new(heads, 1, head_dim) },
        mlp: Mlp {
            ffn: c.required("ffn_dim")?,
            act: c.activation("activation_function", UnaryKind::Relu)?,
            gated: false,
            bias,
        },
    };
    let last_norm = before && !c.bool("_remove_final_layer_norm")?.unwrap_or(false);
    let width = c.size("word_embed_proj_dim")?.filter(|&w| w != hidden);
    let max_seq = c.size("max_position_embeddings")?.unwrap_or(2048);
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(true);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        max_seq,
        embedding: Embedding {
            width,
            positions: Some(Positions { rows: max_seq + OFFSET, offset: OFFSET }),
            ..Embedding::default()
        },
        layers: vec![layer; layers(c, "num_hidden_layers")?],
        head: Head { norm: last_norm.then_some(norm), width, tied, ..Head::default() },
        unused: vec![],
    };
    Ok(Description { family: "opt", class, transformer, naming: if tied { &TIED_NAMING } else { &NAMING } })
}
