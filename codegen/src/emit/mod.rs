//! `ir::Kernel` to one LLVM module with one function. Everything is explicit vector code over the lane dim with masked tails, so that
//! LLVM's optimiser is not needed: its cost would be several times that of code generation, for nothing.

mod access;
mod element;
mod formula;
pub(crate) mod ir;
mod kernel;
mod math;
mod node;
pub(crate) mod order;
mod row;

#[cfg(test)]
pub(crate) mod tests;

use crate::features::Features;
use inkwell::context::Context;
use inkwell::module::Module;
use pcc_ir::kernel::{Kernel, Node};
use pcc_ir::kernel_check::KernelInfo;
use pcc_ir::ops::{BinaryKind, UnaryKind};

/// A module with the kernel as the function `symbol`.
///
/// # Errors
/// Only if this crate is wrong.
pub(crate) fn module<'c>(
    context: &'c Context,
    kernel: &Kernel,
    info: &KernelInfo,
    symbol: &str,
    features: &Features,
) -> Result<Module<'c>, String> {
    let ir = ir::Ir::new(context, ir::Machine::X86 { avx512: features.lanes() == 16 });
    kernel::emit(&ir, kernel, info, symbol, features.lanes());
    ir.finish()
}

/// Rough number of instructions a node takes: weighs kernels against each other and tells how far to unroll.
pub(crate) fn cost(node: &Node) -> u32 {
    match node {
        Node::Unary(kind, _) => match kind {
            UnaryKind::Exp | UnaryKind::Sigmoid | UnaryKind::Silu | UnaryKind::GeluTanh => 24,
            UnaryKind::Log | UnaryKind::Tanh | UnaryKind::Erf | UnaryKind::Gelu => 36,
            UnaryKind::Sin | UnaryKind::Cos => 50,
            UnaryKind::Sqrt | UnaryKind::Rsqrt | UnaryKind::Recip => 8,
            _ => 1,
        },
        Node::Binary(BinaryKind::Pow, ..) => 120,
        Node::Binary(BinaryKind::Div, ..) => 8,
        Node::LoadAt { .. } => 16,
        _ => 1,
    }
}
