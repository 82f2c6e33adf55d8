//! Kernels that are not fused from ops.

use inkwell::context::Context;
use inkwell::module::Module;
use pcc_ir::gpu::LibraryKernel;

/// A module with the kernel under its symbol.
///
/// # Errors
/// The library has no such kernel, or this crate is wrong.
pub(crate) fn module<'c>(context: &'c Context, kernel: &LibraryKernel) -> Result<Module<'c>, String> {
    let _ = context;
    Err(format!("the library has no {kernel:?}"))
}
