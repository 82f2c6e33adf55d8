//! The intermediate representation of pcc: types, mesh, shardings, ops, graphs, text form, verifier and
//! reference evaluator, and the lowered [`program::Program`] and [`kernel::Kernel`] that passes write,
//! codegen compiles and the runtime runs.
//!
//! This crate does no IO beyond its text and JSON forms and knows neither egg, LLVM nor CUDA.

pub mod absent;
mod build;
pub mod codegen_protocol;
pub mod diagnostic;
pub mod eval;
pub mod extent;
pub mod gpu;
pub mod graph;
pub mod kernel;
pub mod kernel_check;
pub mod kernel_eval;
pub mod mesh;
pub mod ops;
pub mod program;
pub mod repeat;
pub mod rule;
pub mod sharding;
pub mod source;
pub mod storage;
pub mod strides;
pub mod text;
pub mod types;
pub mod verifier;

pub use diagnostic::{Diagnostic, Fault};
pub use extent::{Clip, Extent, Part, Sizes};
pub use graph::{Entry, Func, FuncId, Inst, InstId, Module, Param, ParamId, State, StateId, Value, ValueId};
pub use mesh::{Axis, AxisRef, Mesh};
pub use ops::Op;
pub use rule::{Factor, FactorId, FactorKind, Rule};
pub use sharding::{Claim, Pad, Sharding, Term};
pub use source::ParamSource;
pub use types::{DType, ReduceKind, Type};
