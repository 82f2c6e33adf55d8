//! Top-k and sampling of the library.

use super::Shape;
use serde::{Deserialize, Serialize};

/// Row dims that [`crate::gpu::LibraryKernel::TopK`] takes; the runtime loops over more.
pub const ROW_DIMS: usize = 3;

/// Threads of a block, which works on a row at a time.
pub const THREADS: u32 = 512;

/// [`crate::program::TopKCall`]. What is decided when the code is made:
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TopKKernel {
    /// Of x and values: any float type.
    pub dtype: crate::DType,
    /// Elements kept of each row.
    pub k: u32,
}

impl TopKKernel {
    /// Parameters, in order: pointers x, values, indices; n; for each of [`ROW_DIMS`] row dims, outermost first, its extent (1 where there is none) and
    /// its strides in x, values and indices, in elements; the strides along the last dim of x, values and indices. (k is part of the code.)
    pub const PARAMS: usize = 3 + 1 + 4 * ROW_DIMS + 3;
}

/// [`crate::program::SampleCall`]: parameters of the one kernel there is, in order: pointers logits, settings, key, out; rows, tokens; strides in
/// elements: logits 2, settings 2, key 2, out 1.
pub const SAMPLE_PARAMS: usize = 4 + 2 + 7;

/// How to launch either: a block a row; the kernel goes on at `+ gridDim.x`.
pub fn shape(rows: u64) -> Shape {
    Shape { grid: [rows.clamp(1, 65_536) as u32, 1, 1], threads: THREADS, shared: 0 }
}
