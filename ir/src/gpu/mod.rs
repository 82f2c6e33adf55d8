//! What code generation and the runtime agree on for GPUs: architectures, how kernels are called, and the kernels of the library.
//!
//! # Calls
//! Every kernel is a PTX `.entry` named by its symbol. All its parameters are 8 bytes: pointers to global memory, i64, or an f32 in the low
//! half ([`f32_param`]). A kernel is right at any grid and block of the documented form: the sizes here are those that are fast.
//!
//! A fused kernel ([`crate::kernel::Kernel`]) takes, in this order: one pointer per access, `rank` extents, `accesses * rank` strides in elements,
//! the scalars. Extents are what is there at the run; one of 0 is launched only along the lane dim of a kernel that reduces over it (the sum of nothing is 0). Grid and block are one-dimensional
//! ([`fused::shape`]).
//!
//! Buffers start at addresses that [`BUFFER_ALIGN`] divides, so what is aligned follows from offsets and strides alone.

mod arch;
pub mod attention;
mod blas;
mod epilogue;
pub mod fused;
pub mod gemm;
mod library;
pub mod selection;

pub use arch::Arch;
pub use blas::{Activation, BlasEpilogue, blas_epilogue_of};
pub use epilogue::{Epilogue, epilogue_of};
pub use library::{COPY_RANK, LibraryKernel, REDUCE_MEMBERS, Shape, library};

/// Bytes that divide the address of every slot, frame and value of a device.
pub const BUFFER_ALIGN: u64 = 64;

/// Threads of a warp.
pub const WARP: u32 = 32;

/// Most bytes of shared memory that a block has without asking; kernels that use more have it set as a function attribute.
pub const SHARED_BYTES: u32 = 48 << 10;

/// An f32 as a parameter.
pub fn f32_param(x: f32) -> u64 {
    x.to_bits().into()
}
