//! Runs PTX on the CPU, strictly: what a GPU would forgive or hide is a fault here.

mod fault;

pub use fault::Fault;
