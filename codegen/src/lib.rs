//! `ir::Kernel` to LLVM to x86 shared objects or PTX, returning symbols. The crate is the body of the `pcc-codegen` executable, which keeps
//! LLVM, its start-up time and its aborts out of `pcc`; the protocol is [`pcc_ir::codegen_protocol`].

mod build;
mod cache;
mod emit;
mod features;
mod link;
mod llvm;
mod parallel;
mod ptx;
mod serve;

pub use serve::{serve, start};
