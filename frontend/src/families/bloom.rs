//! BLOOM: layer norms, also of the embedding, linear biases for positions (ALiBi), q, k and v of each head together in one matrix, biases,
//! a tied head.

use super::{Description, check_layers, head_dim};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Qkv, Row};
use crate::transformer::{Arrangement, Attention, Embedding, Head, Layer, Mlp, Norm, Transformer, slopes};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

const NAMING: Naming = Naming {
    rows: &[
        Row::new("embed.tokens", "transformer.word_embeddings"),
        Row::new("embed.norm", "transformer.word_embeddings_layernorm"),
        Row::new("attn.norm", "transformer.h.{i}.input_layernorm"),
        Row::new("attn", "transformer.h.{i}.self_attention"),
        Row::per_head("attn.q", "transformer.h.{i}.self_attention.query_key_value", Qkv::Queries),
        Row::per_head("attn.k", "transformer.h.{i}.self_attention.query_key_value", Qkv::Keys),
        Row::per_head("attn.v", "transformer.h.{i}.self_attention.query_key_value", Qkv::Values),
        Row::new("attn.o", "transformer.h.{i}.self_attention.dense"),
        Row::new("mlp.norm", "transformer.h.{i}.post_attention_layernorm"),
        Row::new("mlp", "transformer.h.{i}.mlp"),
        Row::new("mlp.up", "transformer.h.{i}.mlp.dense_h_to_4h"),
        Row::new("mlp.down", "transformer.h.{i}.mlp.dense_4h_to_h"),
        Row::new("head.norm", "transformer.ln_f"),
        Row::new("head", "lm_head"),
    ],
    matrices: Matrices::OutputsFirst,
    prefixes: &["transformer."],
    renames: &[],
    ignored: &[],
};

/// The same, with a head that is the embedding: files may hold a copy.
const TIED_NAMING: Naming = Naming { ignored: &["lm_head.weight"], ..NAMING };

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["BloomForCausalLM"])?;
    c.only("apply_residual_connection_post_layernorm", false)?;
    // How kernels of the training program ran; a shift of all scores, which a softmax does not see.
    for harmless in [
        "attention_softmax_in_fp32",
        "masked_softmax_fusion",
        "bias_dropout_fusion",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
        "offset_alibi",
        "unk_token_id",
    ] {
        c.get(harmless);
    }
    let hidden = c.size_of(&["hidden_size", "n_embed"])?.ok_or_else(|| c.missing("hidden_size"))?;
    let heads = c.size_of(&["n_head", "num_attention_heads"])?.ok_or_else(|| c.missing("n_head"))?;
    let n_layer = c.size_of(&["n_layer", "num_hidden_layers"])?.ok_or_else(|| c.missing("n_layer"))?;
    let head_dim = head_dim(c, hidden, heads, c.used(&["n_head", "num_attention_heads"]))?;
    c.only("n_inner", 4 * hidden)?;
    let norm = Norm::Layer { eps: c.positive("layer_norm_epsilon")?.unwrap_or(1e-5) };
    let layer = Layer {
        arrangement: Arrangement::PreNorm,
        norm,
        attention: Attention {
            qkv_bias: true,
            out_bias: true,
            slopes: Some(slopes(heads)),
            ..Attention::new(heads, 1, head_dim)
        },
        mlp: Mlp { ffn: 4 * hidden, act: UnaryKind::GeluTanh, gated: false, bias: true },
    };
    let tied = c.bool("tie_word_embeddings")?.unwrap_or(true);
    let transformer = Transformer {
        task: Task::CausalLm,
        hidden,
        vocab: c.required("vocab_size")?,
        // No table ends here: it is the length the models were trained on.
        max_seq: c.size("seq_length")?.unwrap_or(2048),
        embedding: Embedding { norm: Some(norm), ..Embedding::default() },
        layers: vec![layer; check_layers(c, "n_layer", n_layer)?],
        head: Head { norm: Some(norm), tied, ..Head::default() },
        unused: vec![],
    };
    Ok(Description { family: "bloom", class, transformer, naming: if tied { &TIED_NAMING } else { &NAMING } })
}
