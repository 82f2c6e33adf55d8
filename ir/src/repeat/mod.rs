//! Folded repeats: what makes a model of 800 equal layers as small as one of three.
//!
//! A run of `n` equal repetitions of `p` calls is written as `2 p` calls: the first repetition, and a *body* that stands for the
//! other `n - 1` ([`Repeat`]). Parameters and states of the body are *stacks*: one row of their table stands for one tensor a
//! repetition, and the layer's number is left open in its name, `model.layers.{1+1}.mlp.up_proj.weight` ([`names`]).
//!
//! ```text
//! %1 = call layer(%0, %w0)        layer 0, with its own parameter
//! %2 = call layer(%1, %w)         layers 1 to 79, with the stack %w of 79; takes what the repetition before it gave
//! %3 = call head(%2, ..)          what the last repetition gave
//! ```
//!
//! In repetition k of the body, from 0, an operand is
//! - a result of the `p` calls before the body: that result of the repetition before, k - 1, for k = 0 of those calls themselves;
//! - a stack: its k-th element;
//! - a result of the body: that of repetition k;
//! - anything else: the same in every repetition.
//!
//! Outside of the body, a result of it is that of the last repetition; where it is the new value of a stack of states, each element's
//! new value is that of its own repetition.
//!
//! Both repetitions call the same functions, so that whatever is decided or proved of functions and calls holds for every repetition:
//! what the body takes from the calls before it, it gives itself, of the same type and placement. Only who needs each layer
//! by its number unfolds: [`Chain`] to numbers, [`Module::expanded`](crate::Module::expanded) to a module.

mod chain;
mod expand;
pub mod names;
mod numbering;
#[cfg(test)]
mod tests;

pub use chain::{Bound, Chain, ChainCall, ChainResult, check};
pub use numbering::Numbering;

use serde::{Deserialize, Serialize};

/// A body of calls in an entry's chain, and how many repetitions it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// Index of the body's first instruction in the entry's function.
    pub first: usize,
    /// Calls of the body; as many before it are the repetition that it continues.
    pub calls: usize,
    /// Repetitions that the body stands for, at least 1.
    pub count: u32,
}

/// The most calls an entry has when it is unfolded, and the most parameters, and the most states.
pub const MOST: u32 = 1 << 20;
