//! What each target does with its bytes.

pub mod arrays;
pub mod artifacts;
mod execute;
pub mod models;
pub mod modules;
pub mod tokenizers;
pub mod weights;

use pcc_ir::{Diagnostic, Fault};

/// What a call made. An error is as good an answer as any, unless pcc says that pcc is wrong.
fn accept<T>(doing: &str, outcome: Result<T, Diagnostic>) -> Option<T> {
    match outcome {
        Ok(made) => Some(made),
        Err(d) => {
            assert!(d.fault != Fault::Internal, "{doing}: {d}");
            assert!(!d.what.is_empty(), "{doing}: an error that says nothing");
            None
        }
    }
}

/// What a call made that may not fail on what pcc itself made.
fn demand<T>(doing: &str, outcome: Result<T, Diagnostic>) -> T {
    match outcome {
        Ok(made) => made,
        Err(d) => panic!("{doing}: {d}"), // invariant: a finding
    }
}
