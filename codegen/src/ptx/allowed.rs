//! What may be called in a module for NVPTX. LLVM 22 aborts on intrinsics that it cannot select there (`llvm.exp`, `llvm.log`, ..) and
//! emits calls to libraries that do not exist for others, so only those that are known to become instructions pass.

use inkwell::module::Module;

/// Names without the suffixes of overloaded types.
const INTRINSICS: &[&str] = &[
    // Arithmetic.
    "llvm.copysign",
    "llvm.fabs",
    "llvm.floor",
    "llvm.fma",
    "llvm.fptosi.sat",
    "llvm.maxnum",
    "llvm.sqrt",
    "llvm.trunc",
    "llvm.nvvm.ex2.approx",
    "llvm.nvvm.lg2.approx",
    "llvm.nvvm.rcp.approx",
    "llvm.nvvm.rsqrt.approx",
    // Where a thread is.
    "llvm.nvvm.read.ptx.sreg.tid",
    "llvm.nvvm.read.ptx.sreg.ntid",
    "llvm.nvvm.read.ptx.sreg.ctaid",
    "llvm.nvvm.read.ptx.sreg.nctaid",
    "llvm.nvvm.read.ptx.sreg.laneid",
    // Threads with each other.
    "llvm.nvvm.bar.warp.sync",
    "llvm.nvvm.barrier.cta.sync.aligned.all",
    "llvm.nvvm.shfl.sync",
    "llvm.nvvm.vote.ballot.sync",
    // Tensor cores and what feeds them.
    "llvm.nvvm.cp.async",
    "llvm.nvvm.ldmatrix.sync.aligned",
    "llvm.nvvm.mma",
];

/// Whether all that the module calls is known.
///
/// # Errors
/// The first function that is neither in the module nor on the list.
pub(super) fn check(module: &Module) -> Result<(), String> {
    for function in module.get_functions().filter(|f| f.count_basic_blocks() == 0) {
        let name = function.get_name().to_string_lossy().into_owned();
        let known = INTRINSICS.iter().any(|&i| {
            name.strip_prefix(i).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        });
        if !known {
            return Err(format!("a GPU kernel calls {name}, which is not known to work there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::emit::ir::{Ir, Machine};
    use crate::ptx::{Generator, entry::Entry};
    use pcc_ir::gpu::Arch;

    #[test]
    fn what_llvm_would_abort_on_is_an_error() {
        let generator = Generator::new(Arch::Sm90).unwrap();
        for name in ["llvm.exp", "llvm.log", "llvm.log2", "llvm.pow"] {
            let ir = Ir::new(&generator.context, Machine::Ptx);
            let entry = Entry::new(&ir, "kernel", 1, 256);
            let x = entry.float(0);
            let args = if name == "llvm.pow" { vec![x, x] } else { vec![x] };
            ir.intrinsic(name, &[ir.f32(0)], &args);
            entry.end();
            let error = generator.ptx(&ir.finish().unwrap()).unwrap_err();
            assert!(error.contains(&format!("calls {name}.f32")), "{error}");
        }
    }
}
