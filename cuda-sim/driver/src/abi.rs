//! What the stand-in for NCCL asks of the stand-in for the driver, where all state lies. Both libraries have this file.

/// An operation of a communicator's rank, as `ncclAllReduce` and others have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub comm: u64,
    /// One of `KIND_*`.
    pub kind: u32,
    /// `ncclDataType_t`.
    pub dtype: u32,
    pub send: u64,
    pub recv: u64,
    /// Elements, as the function says: of what a rank sends, or for reduce_scatter receives.
    pub count: u64,
    /// `ncclRedOp_t`.
    pub reduction: u32,
    /// The root, or the rank at the other end.
    pub peer: i32,
    /// `cudaStream_t`.
    pub stream: u64,
}

pub const KIND_ALL_REDUCE: u32 = 0;
pub const KIND_ALL_GATHER: u32 = 1;
pub const KIND_REDUCE_SCATTER: u32 = 2;
pub const KIND_BROADCAST: u32 = 3;
pub const KIND_REDUCE: u32 = 4;
pub const KIND_SEND: u32 = 5;
pub const KIND_RECV: u32 = 6;

/// How a rank leaves its communicator: after its work, for good after its work, or at once.
pub const LEAVE_FINALIZE: u32 = 0;
pub const LEAVE_DESTROY: u32 = 1;
pub const LEAVE_ABORT: u32 = 2;

/// What a communicator's rank is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    pub size: i32,
    pub rank: i32,
    pub device: i32,
}

/// `ncclResult_t`.
pub const OK: i32 = 0;
pub const UNHANDLED_CUDA_ERROR: i32 = 1;
pub const INTERNAL_ERROR: i32 = 3;
pub const INVALID_ARGUMENT: i32 = 4;
pub const INVALID_USAGE: i32 = 5;
pub const REMOTE_ERROR: i32 = 6;
pub const IN_PROGRESS: i32 = 7;

/// Bytes of an `ncclUniqueId`.
pub const ID_BYTES: usize = 128;
