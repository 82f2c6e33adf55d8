//! How fused kernels are launched.

use super::Shape;
use crate::kernel::{Kernel, Node};

/// Threads of a block where none has to wait for another.
pub const THREADS: u32 = 256;
/// Elements of the lane dim that a thread makes at a time where it can: 16 bytes of f32.
pub const VECTOR: u64 = 4;
/// Most threads that share a row.
pub const ROW_THREADS: u32 = 512;

/// Whether the kernel has reductions over the lane dim: then a block runs whole rows, one after another (`blockIdx.x`, `+ gridDim.x`, ..), its
/// threads side by side along the lane dim. Otherwise threads run over groups of [`VECTOR`] elements of all rows, in row-major order.
pub fn reduces(kernel: &Kernel) -> bool {
    kernel.nodes.iter().any(|n| matches!(n, Node::RowReduce(..)))
}

/// Grid and block for these extents: those of rows are at least 1, that of the lane dim is so too unless the kernel reduces over it.
pub fn shape(kernel: &Kernel, extents: &[u64]) -> Shape {
    let (lanes, outer) = extents.split_last().map_or((1, &[][..]), |(&l, o)| (l, o));
    let rows = outer.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    if reduces(kernel) {
        let threads =
            (lanes.div_ceil(VECTOR).clamp(1, ROW_THREADS.into()) as u32).next_multiple_of(super::WARP);
        return Shape { grid: [rows.clamp(1, 65_536) as u32, 1, 1], threads, shared: 0 };
    }
    let groups = rows.saturating_mul(lanes.div_ceil(VECTOR));
    let blocks = groups.div_ceil(THREADS.into());
    Shape { grid: [blocks.clamp(1, 65_536) as u32, 1, 1], threads: THREADS, shared: 0 }
}
