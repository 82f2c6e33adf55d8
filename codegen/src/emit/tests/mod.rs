//! Generated code against the reference interpreter and against closed forms.

mod cases;
pub(crate) mod gpu;
pub(crate) mod harness;
mod maths;
mod mutants;
mod random;
mod rows;
pub(crate) mod simulate;
mod vectors;
