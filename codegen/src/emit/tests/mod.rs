//! Generated code against the reference interpreter and against closed forms.

mod cases;
mod harness;
mod maths;
mod random;
mod rows;
