//! Generated code against the reference interpreter and against closed forms.

mod cases;
pub(crate) mod gpu;
mod harness;
mod maths;
mod random;
mod rows;
