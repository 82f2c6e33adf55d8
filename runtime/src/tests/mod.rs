//! Whole programs on many devices, built by hand.

pub(crate) mod fixture;

mod artifacts;
mod clipped;
mod collectives;
mod failures;
mod generation;
mod hostile;
mod overlaps;
mod panels;
mod pipelines;
mod quantised;
mod selections;
mod teams;
