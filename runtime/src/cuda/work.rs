//! What a rank queues for one instruction: launches, copies and collectives, with their addresses.

use pcc_ir::gpu::gemm::GemmKernel;
use pcc_ir::gpu::{Activation, LibraryKernel, Shape};
use pcc_ir::kernel::KernelId;
use pcc_ir::{DType, ReduceKind};

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    /// Nothing is there to be done at this run.
    Nothing,
    Fused {
        kernel: KernelId,
        shape: Shape,
        params: Vec<u64>,
    },
    /// Launches one after another.
    Library(Vec<(LibraryKernel, Shape, Vec<u64>)>),
    /// Also a launch, if no library of products takes it.
    Product(Box<Product>),
    Exchange(Vec<Move>),
}

/// `c = alpha * a b` at addresses, with everything that a library of products asks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Product {
    pub(super) kernel: GemmKernel,
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) alpha: f32,
    /// Address, row stride, column stride.
    pub(super) a: (u64, i64, i64),
    pub(super) b: (u64, i64, i64),
    pub(super) c: (u64, i64, i64),
    /// Extent, strides of a, b and c; outermost first.
    pub(super) batch: Vec<[i64; 4]>,
    /// Parameters of the kernel's epilogue, which only our own kernel runs.
    pub(super) epilogue: Vec<u64>,
    /// The product with the next instruction, if cuBLASLt has that.
    pub(super) fused: Option<Fused>,
}

/// `out = f(alpha * a b + add + bias)` in place of a product and the kernel behind it; matrices as in [`Product`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fused {
    pub(super) activation: Activation,
    pub(super) dtype: DType,
    pub(super) out: (u64, i64, i64),
    /// Address of a row.
    pub(super) bias: Option<u64>,
    pub(super) add: Option<(u64, i64, i64)>,
    /// Strides of `add`, or `out` where there is none, and of `out` along the batch.
    pub(super) batch: [i64; 2],
}

/// A part of a collective.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Zero {
        at: u64,
        bytes: u64,
    },
    Launch {
        kernel: LibraryKernel,
        shape: Shape,
        params: Vec<u64>,
    },
    /// Between the members of the instruction's group.
    Among(Among),
}

/// A collective over adjacent elements: all members give and get the same counts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Among {
    pub(super) kind: AmongKind,
    pub(super) dtype: DType,
    pub(super) reduce: ReduceKind,
    pub(super) from: u64,
    pub(super) to: u64,
    /// Elements that a member gives to another (all-to-all), gives (all-gather, broadcast, all-reduce) or keeps (reduce-scatter).
    pub(super) count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmongKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    /// From the first member.
    Broadcast,
}
