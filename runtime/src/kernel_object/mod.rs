//! The compiled kernels of an artifact: a shared object, loaded into the process.

use crate::kernels::{FEW_ACCESSES, KernelCall, KernelSet, Operand};
use libloading::Library;
use pcc_ir::Diagnostic;
use pcc_ir::kernel::{Kernel, KernelArgs, KernelId};
use std::ops::Range;
use std::path::Path;

type Entry = unsafe extern "C" fn(*const KernelArgs, i64, i64);

/// The functions of a loaded kernel object, by kernel.
pub struct KernelObject {
    entries: Vec<Entry>,
    /// Keeps the code mapped while `entries` point into it.
    _library: Library,
}

impl KernelObject {
    /// Loads the object at `path` and finds a function for each kernel. The caller has checked the object's digest: code of
    /// a hostile object runs with the process's rights.
    ///
    /// # Errors
    /// The object cannot be loaded, or lacks a kernel's symbol.
    pub fn load<'k>(path: &Path, kernels: impl IntoIterator<Item = &'k Kernel>) -> Result<Self, Diagnostic> {
        let refuse = |why: String| {
            Diagnostic::input("the kernels of the artifact cannot be loaded")
                .at(path.display().to_string())
                .why(why)
                .help("compile the model again")
        };
        let absolute = path.canonicalize().map_err(|e| refuse(e.to_string()))?;
        // SAFETY: loading runs the object's initialisers; kernel objects have none, and the digest in program.json says
        // that this is the object the compiler wrote.
        let library = unsafe { Library::new(&absolute) }.map_err(|e| refuse(e.to_string()))?;
        let mut entries = Vec::new();
        for kernel in kernels {
            // SAFETY: the compiler gives every kernel function this signature (see pcc_ir::kernel).
            let entry = unsafe { library.get::<Entry>(kernel.name.as_bytes()) };
            entries.push(*entry.map_err(|e| refuse(format!("kernel {}: {e}", kernel.name)))?);
        }
        Ok(Self { entries, _library: library })
    }
}

impl KernelSet for KernelObject {
    fn call(&self, call: &KernelCall<'_>, rows: Range<i64>) {
        let address = |operand: &Operand<'_>| operand.window.as_ptr().wrapping_add(operand.offset);
        // Most kernels have few accesses: no allocation for those.
        let mut few = [std::ptr::null_mut(); FEW_ACCESSES];
        let many: Vec<*mut u8>;
        let ptrs = if call.operands.len() <= FEW_ACCESSES {
            few.iter_mut().zip(call.operands).for_each(|(ptr, operand)| *ptr = address(operand));
            few.as_slice()
        } else {
            many = call.operands.iter().map(address).collect();
            many.as_slice()
        };
        let args = KernelArgs {
            ptrs: ptrs.as_ptr(),
            extents: call.extents.as_ptr(),
            strides: call.strides.as_ptr(),
            scalars: call.scalars.as_ptr(),
        };
        let entry = self.entries[index(call.kernel)];
        // SAFETY: validation checked, for every launch of the program, that the counts of pointers, extents, strides and scalars
        // are the kernel's and that every address the kernel's accesses can reach lies in the operands' windows.
        unsafe { entry(&args, rows.start, rows.end) };
    }
}

fn index(kernel: KernelId) -> usize {
    use cranelift_entity::EntityRef;
    kernel.index()
}
