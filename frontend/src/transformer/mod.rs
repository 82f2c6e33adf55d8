//! Descriptions of transformers, and the blocks that build them as functions.
//!
//! A family reads its config into a [`Transformer`]; everything from there on is shared. Logical shapes keep
//! attention's `[kv, group, head_dim]` apart; how a checkpoint stores them is the business of [`crate::naming`].

mod attention;
mod causal;
mod embedding;
mod encoder;
mod entry;
mod func;
mod head;
mod layer;
mod mlp;
mod norm;
mod rope;
mod weight;

pub use entry::Network;
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

#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Rows of the table of learned positions, if there is one.
    pub positions: Option<usize>,
    /// Rows of the table of token types, if there is one.
    pub token_types: Option<usize>,
    pub norm: Option<Norm>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub arrangement: Arrangement,
    pub norm: Norm,
    pub attention: Attention,
    pub mlp: Mlp,
}

/// Where a layer's norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// `x + f(norm(x))`: llama, gpt2.
    PreNorm,
    /// `norm(x + f(x))`: bert.
    PostNorm,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square, with a weight.
    Rms { eps: f64 },
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
    /// Scores are `scale * q.k`.
    pub scale: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mlp {
    pub ffn: usize,
    pub act: UnaryKind,
    /// `down(act(gate(x)) * up(x))` instead of `down(act(up(x)))`.
    pub gated: bool,
    pub bias: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    pub norm: Option<Norm>,
    /// The head's matrix is the token embedding.
    pub tied: bool,
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
