//! The reference evaluator: what a function means, computed slowly and plainly.
//!
//! Floats are held as f64 and are *not* rounded to their element type, except by `convert` and by constants: the
//! result is what exact arithmetic would give, to about 1e-15. Integers are exact: `i32` wraps, `i64` beyond 2^53
//! (which no f64 holds) is an error. Memory that no one defines (unspecified padding) is NaN, so that a
//! program which reads it shows.

mod collective;
mod erf;
mod func;
mod layout;
mod tensor;

pub use func::{eval_entry, eval_func, eval_spmd};
pub use layout::{shard, unshard};
pub(crate) use tensor::rounded;
pub use tensor::{At, Tensor, round_to};

pub(crate) use collective::piece_of;
pub(crate) use erf::erf;
pub(crate) use tensor::strides;
