//! Descriptions of transformers, and the blocks that build them as functions.
//!
//! A family reads its config into a [`Transformer`]; everything from there on is shared. Logical shapes keep
//! attention's `[kv, group, head_dim]` apart; how a checkpoint stores them is the business of [`crate::naming`].

mod alibi;
mod attention;
mod causal;
mod embedding;
mod encoder;
mod entry;
mod fold;
mod func;
mod head;
mod layer;
mod mlp;
mod norm;
mod rope;
mod weight;

pub use alibi::slopes;
pub use entry::Network;
pub use fold::Place;
pub use rope::{Rope, RopeScaling};
pub use weight::{Kind, Weight};

use crate::naming::Naming;
use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use pcc_ir::program::Task;

/// A whole model. Every function built from it depends on nothing else but the naming and the capacities.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    pub task: Task,
    pub hidden: usize,
    pub vocab: usize,
    /// Most positions the model can take.
    pub max_seq: usize,
    pub embedding: Embedding,
    /// In order; equal ones share their functions.
    pub layers: Vec<Layer>,
    pub head: Head,
    /// Parameters of the model class that no entry uses (a pooler); they count, and may be loaded.
    pub unused: Vec<Weight>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embedding {
    /// Width of the table of tokens, if it is not the hidden size: a projection follows.
    pub width: Option<usize>,
    /// A factor on the tokens' rows.
    pub scale: Option<f64>,
    pub positions: Option<Positions>,
    /// Rows of the table of token types, if there is one.
    pub token_types: Option<usize>,
    pub norm: Option<Norm>,
}

/// A table of learned positions: position p is row `p + offset` of `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    pub rows: usize,
    pub offset: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub arrangement: Arrangement,
    pub norm: Norm,
    pub attention: Attention,
    pub mlp: Mlp,
}

/// Where a layer's norms stand, f being its attention and then its feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// `x + f(norm(x))`: llama, gpt2.
    PreNorm,
    /// `norm(x + f(x))`: bert.
    PostNorm,
    /// `x + norm(f(norm(x)))`, four norms: gemma2.
    BothNorms,
    /// `x + attention(norm(x)) + mlp(norm(x))`, with two norms (gpt_neox) or one for both (falcon).
    Parallel { one_norm: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square, with a weight.
    Rms { eps: f64 },
    /// The same, times one plus the weight: gemma2.
    RmsPlusOne { eps: f64 },
    /// Mean and variance, with a weight and a bias.
    Layer { eps: f64 },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Heads of keys and values.
    pub kv: usize,
    /// Query heads that share one of them.
    pub group: usize,
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub out_bias: bool,
    /// A norm over head_dim of each head of q and of k.
    pub qk_norm: Option<Norm>,
    pub rope: Option<Rope>,
    pub causal: bool,
    /// A query sees this many positions, its own included.
    pub window: Option<usize>,
    /// Scores are `scale * q.k`,
    pub scale: f64,
    /// then `cap * tanh(score / cap)`,
    pub softcap: Option<f64>,
    /// then plus the head's slope times the key's position (ALiBi): one slope for each of the `kv * group` heads.
    pub slopes: Option<Vec<f64>>,
    /// [`pcc_ir::ops::Attention::bf16_bias`].
    pub bf16_bias: bool,
}

impl Attention {
    /// Causal, over all positions, with scores divided by `sqrt(head_dim)`, and nothing that is optional.
    pub fn new(kv: usize, group: usize, head_dim: usize) -> Self {
        Self {
            kv,
            group,
            head_dim,
            qkv_bias: false,
            out_bias: false,
            qk_norm: None,
            rope: None,
            causal: true,
            window: None,
            scale: 1.0 / (head_dim as f64).sqrt(),
            softcap: None,
            slopes: None,
            bf16_bias: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    pub ffn: usize,
    pub act: UnaryKind,
    /// `down(act(gate(x)) * up(x))` instead of `down(act(up(x)))`.
    pub gated: bool,
    pub bias: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    pub norm: Option<Norm>,
    /// Width of the head's matrix, if it is not the hidden size: a projection precedes it.
    pub width: Option<usize>,
    /// The head's matrix is the token embedding.
    pub tied: bool,
    /// Logits are `cap * tanh(logit / cap)`.
    pub softcap: Option<f64>,
}

/// Static capacities of the module, and the seed of parameters without a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Rows of the batch dim.
    pub rows: usize,
    /// Positions of the sequence dim and of the caches.
    pub seq: usize,
    pub seed: u64,
}

impl Transformer {
    /// What a user should know of a model built for `seq` positions.
    pub fn notice(&self, seq: usize) -> Option<String> {
        let scaling = |l: &Layer| l.attention.rope.as_ref().map(|r| r.scaling.clone());
        match self.layers.first().and_then(scaling) {
            Some(RopeScaling::Long { original, .. }) if seq as f64 > original => Some(format!(
                "with a sequence of {seq}, inputs of every length are rotated as those beyond {original} positions are; \
                 --seq {original} or less rotates them as short ones"
            )),
            _ => None,
        }
    }

    /// Builds functions and entries; the parameters' values are those of a model without weights until
    /// [`Naming::bind`] finds them in a checkpoint.
    ///
    /// # Errors
    /// Tensors too large to address. Sizes that do not fit together are an internal fault: families check configs.
    pub fn build(&self, name: &str, naming: &Naming, capacity: Capacity) -> Result<Network, Diagnostic> {
        match self.task {
            Task::Encoder => encoder::build(self, name, naming, capacity),
            Task::CausalLm | Task::Graph => causal::build(self, name, naming, capacity),
        }
    }
}
