//! LLVM itself: start-up, target machines, modules to objects.

use crate::emit;
use crate::features::Features;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetMachineOptions,
    TargetTriple,
};
use pcc_ir::kernel::Kernel;
use pcc_ir::kernel_check::KernelInfo;
use std::sync::Once;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Registers the x86 target; the first caller does it, others wait.
pub(crate) fn initialise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Target::initialize_x86(&InitializationConfig::default()));
}

/// LLVM's version.
pub(crate) fn version() -> String {
    let (major, minor, patch) = inkwell::support::get_llvm_version();
    format!("{major}.{minor}.{patch}")
}

/// Turns kernels into objects, one at a time; every thread has its own.
pub(crate) struct Generator {
    context: Context,
    machine: TargetMachine,
    features: Features,
}

impl Generator {
    pub(crate) fn new(features: &Features) -> Result<Self, String> {
        initialise();
        let triple = TargetTriple::create(TRIPLE);
        let target = Target::from_triple(&triple).map_err(|e| e.to_string())?;
        // Measured on softmax, rms_norm and ten maths functions: code of `Less` is as fast as that of `Default` and `Aggressive` and takes a
        // tenth less time to generate; `None` halves that time but makes code 1.2 to 5 times slower.
        let options = TargetMachineOptions::new()
            .set_cpu("x86-64")
            .set_features(&features.llvm())
            .set_level(OptimizationLevel::Less)
            .set_reloc_mode(RelocMode::PIC)
            .set_code_model(CodeModel::Small);
        let machine = target
            .create_target_machine_from_options(&triple, options)
            .ok_or("LLVM has no machine for x86-64")?;
        Ok(Generator { context: Context::create(), machine, features: features.clone() })
    }

    fn dress(&self, module: &Module) {
        module.set_triple(&TargetTriple::create(TRIPLE));
        module.set_data_layout(&self.machine.get_target_data().get_data_layout());
    }

    /// The object file of one kernel as the function `symbol`.
    pub(crate) fn object(&self, kernel: &Kernel, info: &KernelInfo, symbol: &str) -> Result<Vec<u8>, String> {
        let module = emit::module(&self.context, kernel, info, symbol, &self.features)?;
        // The verifier is quick next to code generation, and LLVM aborts on what it would refuse.
        module.verify().map_err(|e| format!("LLVM refuses kernel {}: {e}", kernel.name))?;
        self.assemble(&module)
    }

    /// An object file with no function: a program without kernels still has a shared object.
    pub(crate) fn empty(&self) -> Result<Vec<u8>, String> {
        self.assemble(&self.context.create_module("kernels"))
    }

    fn assemble(&self, module: &Module) -> Result<Vec<u8>, String> {
        self.dress(module);
        let object =
            self.machine.write_to_memory_buffer(module, FileType::Object).map_err(|e| e.to_string())?;
        Ok(object.as_slice().to_vec())
    }
}
