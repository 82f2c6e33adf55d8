//! Runs PTX on the CPU, strictly: what a GPU would forgive or hide is a fault here.

pub mod exec;
mod fault;
pub mod memory;
pub mod ptx;

pub use fault::Fault;
