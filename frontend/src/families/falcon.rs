//! Falcon: layer norms, attention and feed-forward side by side (two norms, or one for both) or one after the other, rotary positions or
//! linear biases (ALiBi), and one kv head for all queries, for groups of them (`new_decoder_architecture`), or one each.

use super::rope::{self, Rotary};
use super::{Description, check_layers, group, head_dim};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Qkv, Row};
use crate::transformer::{Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Transformer, slopes};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

/// All layouts of q, k and v are one: for each kv head its queries, its key and its value.
macro_rules! rows {
    ($attn_norm:literal, $mlp_norm:literal) => {
        &[
            Row::new("embed.tokens", "transformer.word_embeddings"),
            Row::new("attn.norm", concat!("transformer.h.{i}.", $attn_norm)),
            Row::new("attn", "transformer.h.{i}.self_attention"),
            Row::per_head("attn.q", "transformer.h.{i}.self_attention.query_key_value", Qkv::Queries),
            Row::per_head("attn.k", "transformer.h.{i}.self_attention.query_key_value", Qkv::Keys),
            Row::per_head("attn.v", "transformer.h.{i}.self_attention.query_key_value", Qkv::Values),
            Row::new("attn.o", "transformer.h.{i}.self_attention.dense"),
            Row::new("mlp.norm", concat!("transformer.h.{i}.", $mlp_norm)),
            Row::new("mlp", "transformer.h.{i}.mlp"),
            Row::new("mlp.up", "transformer.h.{i}.mlp.dense_h_to_4h"),
            Row::new("mlp.down", "transformer.h.{i}.mlp.dense_4h_to_h"),
            Row::new("head.norm", "transformer.ln_f"),
            Row::new("head", "lm_head"),
        ]
    };
}

/// Norms one after the other, or one for both blocks. Older files hold frequencies as buffers.
const NAMING: Naming = Naming {
    rows: rows!("input_layernorm", "post_attention_layernorm"),
    matrices: Matrices::OutputsFirst,
    prefixes: &["transformer."],
    renames: &[],
    ignored: &["*inv_freq"],
};

/// Two norms side by side.
const TWO_NORMS: Naming = Naming { rows: rows!("ln_attn", "ln_mlp"), ..NAMING };

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming = Naming { ignored: &["*inv_freq", "lm_head.weight"], ..NAMING };
const TIED_TWO_NORMS: Naming = Naming { ignored: &["*inv_freq", "lm_head.weight"], ..TWO_NORMS };

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["FalconForCausalLM"])?;
    // The class never reads it.
    c.only("apply_residual_connection_post_layernorm", false)?;
    let hidden = c.size_of(&["hidden_size", "n_embed"])?.ok_or_else(|| c.missing("hidden_size"))?;
    let heads =
        c.size_of(&["num_attention_heads", "n_head"])?.ok_or_else(|| c.missing("num_attention_heads"))?;
    let n_layer =
        c.size_of(&["num_hidden_layers", "n_layer"])?.ok_or_else(|| c.missing("num_hidden_layers"))?;
    let max_seq = c.size_of(&["max_position_embeddings", "max_seq_len"])?.unwrap_or(2048);
    let bias = c.bool("bias")?.unwrap_or(false);
    let arrangement = arrangement(c)?;
    let norm = Norm::Layer { eps: c.positive("layer_norm_epsilon")?.unwrap_or(1e-5) };
    let layer = Layer {
        arrangement,
        norm,
        attention: Attention { qkv_bias: bias, out_bias: bias, ..attention(c, hidden, heads)? },
        mlp: Mlp {
            ffn: c.size("ffn_hidden_size")?.unwrap_or(4 * hidden),
            act: c.activation("activation", UnaryKind::Gelu)?,
            gated: false,
            bias,
        },
    };
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(true);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        max_seq,
        embedding: Embedding::default(),
        layers: vec![layer; check_layers(c, "num_hidden_layers", n_layer)?],
        head: Head { norm: Some(norm), tied, ..Head::default() },
        unused: vec![],
    };
    let naming = match (arrangement == Arrangement::Parallel { one_norm: false }, tied) {
        (true, true) => &TIED_TWO_NORMS,
        (true, false) => &TWO_NORMS,
        (false, true) => &TIED_NAMING,
        (false, false) => &NAMING,
    };
    Ok(Description { family: "falcon", class, transformer, naming })
}

fn is_new(c: &Config) -> Result<bool, Diagnostic> {
    Ok(c.bool("new_decoder_architecture")?.unwrap_or(false))
}

/// The combinations that the class can run.
fn arrangement(c: &Config) -> Result<Arrangement, Diagnostic> {
    let (new, norms) = (is_new(c)?, c.size("num_ln_in_parallel_attn")?);
    match (c.bool("parallel_attn")?.unwrap_or(true), norms.unwrap_or(if new { 2 } else { 1 })) {
        (false, _) if new => {
            Err(c.wrong("parallel_attn", "only true is supported with new_decoder_architecture"))
        }
        (false, _) => Ok(Arrangement::PreNorm),
        (true, 1) => Ok(Arrangement::Parallel { one_norm: true }),
        (true, 2) if new => Ok(Arrangement::Parallel { one_norm: false }),
        (true, _) => {
            Err(c.wrong("num_ln_in_parallel_attn", "1 is supported, and 2 with new_decoder_architecture"))
        }
    }
}

fn attention(c: &Config, hidden: usize, heads: usize) -> Result<Attention, Diagnostic> {
    let head_dim = head_dim(c, hidden, heads, "num_attention_heads")?;
    let given = c.size_of(&["num_kv_heads", "n_head_kv"])?;
    let multi_query = c.bool("multi_query")?.unwrap_or(true);
    // The number of kv heads counts in the new architecture only.
    let kv = match (is_new(c)?, multi_query) {
        (true, _) => given.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    };
    let attention = Attention::new(kv, group(c, heads, kv, "num_kv_heads")?, head_dim);
    if !c.bool("alibi")?.unwrap_or(false) {
        return Ok(Attention { rope: Some(rope::read(c, head_dim, &Rotary::default())?), ..attention });
    }
    // Rotary positions are not used then.
    for unused in ["rope_theta", "rope_scaling", "rope_parameters"] {
        c.get(unused);
    }
    // The class makes biases in bf16, and scales them with the scores.
    Ok(Attention { slopes: Some(slopes(heads)), bf16_bias: true, ..attention })
}
