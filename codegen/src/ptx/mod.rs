//! Kernels as PTX, through LLVM's NVPTX back end. LLVM aborts on pairs of architecture and PTX version that it does not know, and on
//! intrinsics it cannot select: nothing reaches it but [`Arch`]'s pairs and modules that [`allowed::check`] let through.
//!
//! Addresses have their space from the start (1: global, 3: shared), so that LLVM emits `ld.global`, `st.shared` and so on without
//! having to infer it. No optimiser runs, as for CPUs: code is explicit, and ptxas optimises it once more.

mod allowed;
pub(crate) mod build;
pub(crate) mod entry;
pub(crate) mod fused;
pub(crate) mod library;

use crate::llvm;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetMachineOptions,
    TargetTriple,
};
use pcc_ir::gpu::Arch;
use std::sync::Once;

const TRIPLE: &str = "nvptx64-nvidia-cuda";
/// The last line of the header that LLVM puts before the kernels of a module.
const HEADER_END: &str = ".address_size 64\n";

/// Registers the NVPTX target; the first caller does it, others wait.
pub(crate) fn initialise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Target::initialize_nvptx(&InitializationConfig::default()));
}

/// Turns modules into PTX, one at a time; every thread has its own.
pub(crate) struct Generator {
    pub(crate) context: Context,
    machine: TargetMachine,
}

impl Generator {
    pub(crate) fn new(arch: Arch) -> Result<Self, String> {
        initialise();
        let triple = TargetTriple::create(TRIPLE);
        let target = Target::from_triple(&triple).map_err(|e| e.to_string())?;
        let options = TargetMachineOptions::new()
            .set_cpu(arch.name())
            .set_features(&format!("+{}", arch.ptx()))
            .set_level(OptimizationLevel::Default)
            .set_reloc_mode(RelocMode::Default)
            .set_code_model(CodeModel::Default);
        let machine = target
            .create_target_machine_from_options(&triple, options)
            .ok_or_else(|| format!("LLVM has no machine for {}", arch.name()))?;
        Ok(Generator { context: Context::create(), machine })
    }

    /// The PTX of a module's kernels, without the header: texts of one architecture can be joined behind one [`header`].
    ///
    /// # Errors
    /// Only if this crate is wrong.
    pub(crate) fn ptx(&self, module: &Module) -> Result<String, String> {
        allowed::check(module)?;
        module.verify().map_err(|e| format!("LLVM refuses a kernel: {e}"))?;
        module.set_triple(&TargetTriple::create(TRIPLE));
        module.set_data_layout(&self.machine.get_target_data().get_data_layout());
        let buffer =
            self.machine.write_to_memory_buffer(module, FileType::Assembly).map_err(|e| e.to_string())?;
        let bytes = buffer.as_slice();
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?.trim_end_matches('\0');
        match text.split_once(HEADER_END) {
            Some((_, body)) => Ok(body.to_owned()),
            None => Err("LLVM wrote no PTX header".into()),
        }
    }
}

/// What a PTX file begins with.
pub(crate) fn header(arch: Arch) -> String {
    let version = arch.ptx().trim_start_matches("ptx");
    let (major, minor) = version.split_at(version.len() - 1);
    format!(
        "// Kernels of pcc, LLVM {}.\n.version {major}.{minor}\n.target {}\n{HEADER_END}",
        llvm::version(),
        arch.name()
    )
}
