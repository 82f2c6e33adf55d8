//! Kernels that are not fused from ops.

mod accumulator;
mod attention;
mod attention_join;
mod attention_keys;
mod attention_mma;
mod attention_ranges;
mod attention_simt;
pub(crate) mod epilogue;
mod flat;
mod gemm;
mod gemm_few;
mod gemm_mma;
mod gemm_simt;
mod gemm_wgmma;
mod sample;
mod selection;
mod stages;
mod tile;
mod top_k;
mod value;
mod wgmma;

#[cfg(test)]
mod tests;

use crate::emit::ir::{Ir, Machine};
use crate::ptx::entry::Entry;
use epilogue::Follows;
use inkwell::context::Context;
use inkwell::module::Module;
use pcc_ir::gpu::LibraryKernel;
use pcc_ir::gpu::gemm::GemmPath;
use pcc_ir::gpu::selection::THREADS;
use pcc_ir::types::DType;
use value::Code;

/// A module with the kernel under its symbol; `follows` is the epilogue of a product that has one.
///
/// # Errors
/// Only if this crate is wrong.
pub(crate) fn module<'c>(
    context: &'c Context,
    kernel: &LibraryKernel,
    follows: Option<Follows<'_>>,
) -> Result<Module<'c>, String> {
    let ir = Ir::new(context, Machine::Ptx);
    let begin = |threads: u32| Entry::new(&ir, &kernel.symbol(), kernel.params(), threads);
    match *kernel {
        LibraryKernel::Copy { bytes } => return flat::copy(context, kernel, bytes),
        LibraryKernel::Reduce { dtype, reduce, members } => {
            return flat::reduce(context, kernel, (dtype, reduce, members));
        }
        LibraryKernel::Gemm(gemm) => {
            let entry = begin(gemm.shape(1, 1, 1).threads);
            // As many blocks as have enough registers.
            match gemm.path {
                GemmPath::Mma => entry.resident(2),
                GemmPath::Few if gemm.few_rows() <= 2 && gemm.a != DType::F64 => entry.resident(2),
                GemmPath::Few | GemmPath::Simt | GemmPath::Wgmma => {}
            }
            gemm::emit(Code { entry: &entry }, &gemm, follows);
            entry.end();
        }
        LibraryKernel::Attention(attention) => {
            let entry = begin(attention.shape(1, 1, 1, 1).threads);
            attention::emit(Code { entry: &entry }, &attention);
            entry.end();
        }
        LibraryKernel::TopK(top) => {
            let entry = begin(THREADS);
            top_k::emit(Code { entry: &entry }, &top);
            entry.end();
        }
        LibraryKernel::Sample => {
            let entry = begin(THREADS);
            sample::emit(Code { entry: &entry });
            entry.end();
        }
        LibraryKernel::AttentionJoin(join) => {
            let entry = begin(join.shape(1).threads);
            attention_ranges::emit(Code { entry: &entry }, &join);
            entry.end();
        }
    }
    ir.finish()
}
