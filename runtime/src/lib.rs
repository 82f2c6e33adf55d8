//! Loads an artifact and runs it: owns devices, memory and collectives. Knows no file format of weights and no LLVM.

mod affinity;
mod artifact;
mod attention;
mod block;
mod collect;
#[cfg(feature = "cuda")]
mod cuda;
mod distribute;
mod eval;
mod executor;
mod extents;
mod generate;
mod interpreter;
mod kernel_object;
mod kernels;
mod layout;
mod machine;
mod memory;
mod params;
mod product;
mod sampling;
mod selection;
mod session;
mod tensor;
mod trace;
mod validate;

#[cfg(test)]
mod tests;

pub use artifact::{Artifact, Contents, Levels};
#[cfg(feature = "cuda")]
pub use cuda::{DenseProduct, GpuOptions, Gpus, Probe, describe_gpus};
pub use eval::{Evaluation, Score, evaluate};
pub use generate::{Generation, Timing, generate};
pub use interpreter::Interpreter;
pub use kernel_object::KernelObject;
pub use kernels::{KernelCall, KernelSet, MAX_ACCESSES, Operand};
pub use memory::Window;
pub use params::Progress;
pub use pcc_ir::source::{NoWeights, ReadParams};
pub use sampling::Sampling;
pub use session::{Options, Session};
pub use tensor::{HostData, HostTensor};
pub use trace::{Event, NO_INSTR, Profile, ProfileRow, Subject, Summary, Trace, TraceSink, Traced, Work};

/// Checks that no instruction of any device can leave its buffers, and that every run ends; loading an artifact does it too.
///
/// # Errors
/// The first fault found, with its path in program.json.
pub fn validate(program: &pcc_ir::program::Program) -> Result<(), pcc_ir::Diagnostic> {
    validate::check(program)
}
