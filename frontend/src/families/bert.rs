//! BERT: an encoder with layer norms after each block, learned positions, token types and biases.
//!
//! `forward` gives the last hidden state. What the class has beyond that, a pooler or the masked-LM head, is kept as
//! parameters no entry uses: they count.

use super::{Description, head_dim, layers};
use crate::config::Config;
use crate::naming::{Matrices, Naming, Row};
use crate::transformer::{
    Arrangement, Attention, Embedding, Head, Kind, Layer, Mlp, Norm, Positions, Transformer, Weight,
};
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

macro_rules! rows {
    ($prefix:literal) => {
        &[
            Row::new("embed.tokens", concat!($prefix, "embeddings.word_embeddings")),
            Row::new("embed.positions", concat!($prefix, "embeddings.position_embeddings")),
            Row::new("embed.token_types", concat!($prefix, "embeddings.token_type_embeddings")),
            Row::new("embed.norm", concat!($prefix, "embeddings.LayerNorm")),
            Row::new("attn", concat!($prefix, "encoder.layer.{i}.attention")),
            Row::new("attn.q", concat!($prefix, "encoder.layer.{i}.attention.self.query")),
            Row::new("attn.k", concat!($prefix, "encoder.layer.{i}.attention.self.key")),
            Row::new("attn.v", concat!($prefix, "encoder.layer.{i}.attention.self.value")),
            Row::new("attn.o", concat!($prefix, "encoder.layer.{i}.attention.output.dense")),
            Row::new("attn.norm", concat!($prefix, "encoder.layer.{i}.attention.output.LayerNorm")),
            Row::new("mlp", concat!($prefix, "encoder.layer.{i}.output")),
            Row::new("mlp.up", concat!($prefix, "encoder.layer.{i}.intermediate.dense")),
            Row::new("mlp.down", concat!($prefix, "encoder.layer.{i}.output.dense")),
            Row::new("mlp.norm", concat!($prefix, "encoder.layer.{i}.output.LayerNorm")),
            Row::new("pooler", "pooler.dense"),
            Row::new("mlm", "cls.predictions"),
            Row::new("mlm.dense", "cls.predictions.transform.dense"),
            Row::new("mlm.norm", "cls.predictions.transform.LayerNorm"),
        ]
    };
}

/// Older checkpoints' names of a norm's weight and bias.
const RENAMES: &[(&str, &str)] =
    &[(".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")];

/// The bare encoder with its pooler; a file with heads for training on top serves it too.
const ENCODER: Naming = Naming {
    rows: rows!(""),
    matrices: Matrices::OutputsFirst,
    prefixes: &["bert."],
    renames: RENAMES,
    ignored: &["embeddings.position_ids", "cls.*"],
};

/// With the masked-LM head, whose matrix is the embedding; its decoder's bias is stored twice.
const MASKED_LM: Naming = Naming {
    rows: rows!("bert."),
    ignored: &["embeddings.position_ids", "cls.predictions.decoder.*", "cls.seq_relationship.*", "pooler.*"],
    ..ENCODER
};

pub(super) fn read(c: &Config) -> Result<Description, Diagnostic> {
    let class = c.class(&["BertModel", "BertForMaskedLM"])?;
    c.only("position_embedding_type", "absolute")?;
    c.only("is_decoder", false)?;
    c.only("add_cross_attention", false)?;
    c.only("tie_word_embeddings", true)?;
    let (hidden, heads) = (c.required("hidden_size")?, c.required("num_attention_heads")?);
    let head_dim = head_dim(c, hidden, heads, "num_attention_heads")?;
    let norm = Norm::Layer { eps: c.positive("layer_norm_eps")?.unwrap_or(1e-12) };
    let act = c.activation("hidden_act", UnaryKind::Gelu)?;
    let layer = Layer {
        arrangement: Arrangement::PostNorm,
        norm,
        attention: Attention {
            qkv_bias: true,
            out_bias: true,
            causal: false,
            ..Attention::new(heads, 1, head_dim)
        },
        mlp: Mlp { ffn: c.required("intermediate_size")?, act, gated: false, bias: true },
    };
    let (vocab, max_seq) = (c.required("vocab_size")?, c.required("max_position_embeddings")?);
    let masked_lm = class == "BertForMaskedLM";
    let transformer = Transformer {
        task: Task::Encoder,
        hidden,
        vocab,
        max_seq,
        embedding: Embedding {
            positions: Some(Positions { rows: max_seq, offset: 0 }),
            token_types: Some(c.size("type_vocab_size")?.unwrap_or(2)),
            norm: Some(norm),
            ..Embedding::default()
        },
        layers: vec![layer; layers(c, "num_hidden_layers")?],
        head: Head { tied: true, ..Head::default() },
        unused: if masked_lm { masked_lm_head(hidden, vocab) } else { pooler(hidden) },
    };
    Ok(Description {
        family: "bert",
        class,
        transformer,
        naming: if masked_lm { &MASKED_LM } else { &ENCODER },
    })
}

fn pooler(hidden: usize) -> Vec<Weight> {
    vec![
        Weight::new("pooler.weight", [hidden, hidden], Kind::Matrix { inputs: 1 }),
        Weight::new("pooler.bias", [hidden], Kind::Bias),
    ]
}

fn masked_lm_head(hidden: usize, vocab: usize) -> Vec<Weight> {
    vec![
        Weight::new("mlm.dense.weight", [hidden, hidden], Kind::Matrix { inputs: 1 }),
        Weight::new("mlm.dense.bias", [hidden], Kind::Bias),
        Weight::new("mlm.norm.weight", [hidden], Kind::Scale),
        Weight::new("mlm.norm.bias", [hidden], Kind::Bias),
        Weight::new("mlm.bias", [vocab], Kind::Bias),
    ]
}
