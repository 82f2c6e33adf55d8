//! The text form of modules (`.pcir`): [`std::fmt::Display`] of [`crate::Module`] prints it, [`parse`] reads it back. The two round-trip.
//!
//! ```text
//! module "mlp" mesh(pp=1, dp=1, cp=1, ep=1, tp=2)
//! param %0 "w" : f32[4,8] sharding [{}, {tp}] = {"shape":[4,8],"values":{"constant":1.0}}
//! fn %0 "main" (%0: f32[2,4] "x", %1: f32[4,8]) -> (%2) {
//!   %2: f32[2,8] = dot_general(%0, %1) {"lhs_batch":[],"rhs_batch":[],"lhs_contract":[1],"rhs_contract":[0]} loc "fc"
//! }
//! entry "forward" fn %0 (input "x", param %0) -> ("y") alias [] weight 1
//! ```
//!
//! After its type a value may carry a name, `labels (batch, seq, _)`, `sharding [{dp}, {tp:(1)2}] partial {tp:(2)2 sum}` and
//! `claim %3 sharding [..] pad (zero, any)`; a claim's term may be `sum(%1, %2)`. Attributes of ops are JSON. Values keep
//! their numbers, since claims refer to values of another module.

mod lex;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use parse::parse;
