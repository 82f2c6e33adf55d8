//! Whole programs on many devices, built by hand.

pub(crate) mod fixture;

mod collectives;
mod failures;
mod generation;
mod pipelines;
