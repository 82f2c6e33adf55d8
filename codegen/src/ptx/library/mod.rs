//! Kernels that are not fused from ops.

mod accumulator;
mod gemm;
mod gemm_few;
mod gemm_mma;
mod gemm_simt;
mod tile;
mod value;

#[cfg(test)]
mod tests;

use crate::emit::ir::{Ir, Machine};
use crate::ptx::entry::Entry;
use inkwell::attributes::AttributeLoc;
use inkwell::context::Context;
use inkwell::module::Module;
use pcc_ir::gpu::LibraryKernel;
use pcc_ir::gpu::gemm::GemmPath;

/// A module with the kernel under its symbol.
///
/// # Errors
/// The library has no such kernel, or this crate is wrong.
pub(crate) fn module<'c>(context: &'c Context, kernel: &LibraryKernel) -> Result<Module<'c>, String> {
    let ir = Ir::new(context, Machine::Ptx);
    let entry = Entry::new(&ir, &kernel.symbol(), kernel.params(), threads(kernel));
    // Without it ptxas would spill a few registers to reach the next number of blocks.
    let blocks = ir.context.create_string_attribute("nvvm.minctasm", &blocks(kernel).to_string());
    entry.function.add_attribute(AttributeLoc::Function, blocks);
    let code = value::Code { entry: &entry };
    match kernel {
        LibraryKernel::Gemm(g) => gemm::emit(code, g),
        other => return Err(format!("the library has no {other:?}")),
    }
    entry.end();
    ir.finish()
}

/// The threads of a block, which bound the registers of each.
fn threads(kernel: &LibraryKernel) -> u32 {
    match kernel {
        LibraryKernel::Gemm(g) => g.shape(1, 1, 1).threads,
        LibraryKernel::Attention(a) => a.shape(1, 1, 1, 1).threads,
        LibraryKernel::Copy { .. } | LibraryKernel::Reduce { .. } => LibraryKernel::flat_shape(1).threads,
    }
}

/// Blocks of a multiprocessor for which each thread has enough registers.
fn blocks(kernel: &LibraryKernel) -> u32 {
    match kernel {
        LibraryKernel::Gemm(g) if g.path == GemmPath::Few && g.few_rows() <= 2 => 2,
        LibraryKernel::Gemm(g) if g.path == GemmPath::Mma => 2,
        _ => 1,
    }
}
