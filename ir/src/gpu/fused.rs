//! How fused kernels are launched.

use super::Shape;
use crate::kernel::{Access, Kernel, Lane, Node};

/// Threads of a block where none has to wait for another.
pub const THREADS: u32 = 256;
/// Bytes of the widest access of a thread.
pub const VECTOR_BYTES: u64 = 16;
/// Most threads that share a row.
pub const ROW_THREADS: u32 = 512;
/// 32-bit registers for a group of all that is read, at most, unless groups are as small as they can be: kernels have several
/// values at a time, and blocks of rows are larger.
const REGISTERS: u64 = 64;
const ROW_REGISTERS: u64 = 32;

/// Whether the kernel has reductions over the lane dim: then a block runs whole rows, one after another (`blockIdx.x`, `+ gridDim.x`, ..), its
/// threads side by side along the lane dim. Otherwise threads run over groups of [`vector`] elements of all rows, in row-major order.
pub fn reduces(kernel: &Kernel) -> bool {
    kernel.nodes.iter().any(|n| matches!(n, Node::RowReduce(..)))
}

/// Elements of the lane dim that a thread makes at a time where it can, a power of two: what makes [`VECTOR_BYTES`] of the narrowest elements
/// that are adjacent in memory, wider ones taking several accesses. At least the 4 that make it of f32.
pub fn vector(kernel: &Kernel) -> u64 {
    let adjacent = kernel.accesses.iter().filter(|a| a.lane == Lane::Unit).map(|a| a.dtype.bytes() as u64);
    let narrowest = adjacent.min().unwrap_or(4).clamp(1, 4);
    // Elements that are not adjacent have an address each.
    let registers = |a: &Access| match a.lane {
        Lane::Unit => (a.dtype.bytes() as u64).div_ceil(4),
        Lane::Strided => 2,
        Lane::Broadcast => 0,
    };
    let registers: u64 = kernel.accesses.iter().filter(|a| !a.write).map(registers).sum();
    let most = if reduces(kernel) { ROW_REGISTERS } else { REGISTERS };
    let mut count = VECTOR_BYTES / narrowest;
    while count > 4 && count * registers > most {
        count /= 2;
    }
    count
}

/// Grid and block for these extents: those of rows are at least 1, that of the lane dim is so too unless the kernel reduces over it.
pub fn shape(kernel: &Kernel, extents: &[u64]) -> Shape {
    let (lanes, outer) = extents.split_last().map_or((1, &[][..]), |(&l, o)| (l, o));
    let rows = outer.iter().fold(1u64, |n, &d| n.saturating_mul(d));
    let groups = lanes.div_ceil(vector(kernel));
    if reduces(kernel) {
        let threads = (groups.clamp(1, ROW_THREADS.into()) as u32).next_multiple_of(super::WARP);
        return Shape { grid: [rows.clamp(1, 65_536) as u32, 1, 1], threads, shared: 0 };
    }
    let blocks = rows.saturating_mul(groups).div_ceil(THREADS.into());
    Shape { grid: [blocks.clamp(1, 65_536) as u32, 1, 1], threads: THREADS, shared: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    fn with(dtypes: &[DType]) -> Kernel {
        let access = |&dtype| Access { dtype, lane: Lane::Unit, write: false };
        let accesses = dtypes.iter().map(access).collect();
        Kernel { name: String::new(), rank: 2, accesses, scalars: 0, nodes: vec![], stores: vec![] }
    }

    #[test]
    fn the_narrowest_elements_fill_a_vector() {
        use DType::{BF16, Bool, F16, F32, I64};
        for (dtypes, count) in [
            (&[F32, F32][..], 4),
            (&[I64, I64], 4),
            (&[BF16, BF16, BF16], 8),
            (&[F32, F16], 8),
            (&[Bool, Bool], 16),
            (&[Bool, F32, F32, BF16], 16),
            // Too many registers.
            (&[Bool, F32, F32, F32, BF16], 8),
            (&[BF16; 8], 8),
            (&[BF16; 9], 4),
            (&[], 4),
        ] {
            assert_eq!(vector(&with(dtypes)), count, "{dtypes:?}");
        }
        let mut kernel = with(&[F32, BF16]);
        kernel.accesses[1].lane = Lane::Broadcast;
        assert_eq!(vector(&kernel), 4, "what is read once a row is read alone");
    }

    #[test]
    fn a_launch_has_a_thread_for_each_group() {
        let bf16 = with(&[DType::BF16]);
        assert_eq!(shape(&bf16, &[3, 4096]).grid, [6, 1, 1]);
        assert_eq!(shape(&with(&[DType::F32]), &[3, 4096]).grid, [12, 1, 1]);
        let mut row = bf16;
        row.nodes.push(Node::RowReduce(crate::types::ReduceKind::Sum, 0));
        assert_eq!((shape(&row, &[3, 2000]).threads, shape(&row, &[3, 2000]).grid), (256, [3, 1, 1]));
        assert_eq!(shape(&row, &[1, 1 << 20]).threads, ROW_THREADS);
    }
}
