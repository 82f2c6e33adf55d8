//! Whole programs on many devices, built by hand.

pub(crate) mod fixture;

mod artifacts;
mod collectives;
mod failures;
mod generation;
mod hostile;
mod panels;
mod pipelines;
mod quantised;
mod teams;
