//! Fused kernels, described once and emitted by every backend.
//!
//! A kernel runs over an *iteration space* of `rank` dims; the last one is the **lane** dim (vectorised, and the one that
//! row reductions run over), the others together are the **rows**. Everything about sizes is a run-time argument: extents
//! of the dims, strides of every access, scalars. Equal kernels (equal structure) are generated once.
//!
//! Calling convention of generated code (all targets): one function per kernel,
//! `extern "C" fn(args: *const KernelArgs, begin: i64, end: i64)`, running rows `begin..end` of the row space in row-major order. Rows
//! are independent, so a caller may split the range over workers.

use crate::graph::entity;
use crate::ops::{BinaryKind, CompareKind, UnaryKind};
use crate::types::{DType, ReduceKind};
use cranelift_entity::entity_impl;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

entity!(/** A kernel of a program. */ KernelId, "k");

/// Index into [`Kernel::accesses`].
pub type AccessId = u32;
/// Index into [`Kernel::nodes`]; a node uses only earlier nodes.
pub type NodeId = u32;

/// How an access moves along the lane dim: known when the kernel is made, so that code can be vectorised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Stride 1 element: vector load or store.
    Unit,
    /// Stride 0: one element, broadcast (loads), or written once per row (stores of per-row values).
    Broadcast,
    /// Any run-time stride: scalar or gathered.
    Strided,
}

/// One buffer seen through affine strides: element address = base + dtype.bytes * sum(stride_i * index_i).
/// Run-time arguments: base pointer `ptrs[access]` and `rank` strides in elements at `strides[access * rank ..]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    pub dtype: DType,
    pub lane: Lane,
    pub write: bool,
}

/// An expression. Floats compute in f32 (loads of bf16/f16 widen, f64 round, stores round to nearest even), integers in i32, wrapping
/// (i64 loads truncate, stores extend), booleans as i1 (stored as one byte, 0 or 1; any byte but 0 loads as true).
///
/// Where the field differs, kernels do this: `Max`, `Min` and their reductions give NaN if an operand is NaN, and of zeros of
/// either sign the second; integer division truncates, by zero gives zero; `Relu` of NaN is NaN; float to integer truncates and saturates,
/// NaN gives zero; float to bool is `!= 0`; comparisons with NaN are false, but for `Ne`. Sums over a row are associated in an order that
/// depends on the row's length and the kernel alone. Sine and cosine of magnitudes of 2^48 and more are NaN. `Const.bits` are the bits of
/// the dtype (f64, f32, bf16, f16 bits; the low bits of a two's complement integer; 0 or 1).
///
/// [`Kernel::check`] gives the rules a kernel must keep.
///
/// A node is *per element* if it depends on a lane-varying load or `Index(lane)`, unless it is a `RowReduce`: then, and if it
/// depends only on per-row nodes, it is *per row*.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Node {
    Load(AccessId),
    /// Element at an extra offset of `index * scalars[stride]` elements from the access's address; the value is zero, and nothing is read,
    /// when `index` (i32 node) is outside `0..scalars[limit]`.
    LoadAt {
        access: AccessId,
        index: NodeId,
        stride: u32,
        limit: u32,
    },
    Const {
        dtype: DType,
        bits: u64,
    },
    /// Run-time scalar as i32.
    Scalar(u32),
    /// Index along an iteration dim, as i32.
    Index(u32),
    Unary(UnaryKind, NodeId),
    Binary(BinaryKind, NodeId, NodeId),
    Compare(CompareKind, NodeId, NodeId),
    Select(NodeId, NodeId, NodeId),
    /// To f32, i32 or bool (or through bf16/f16: rounds to that type's precision and stays f32).
    Convert(DType, NodeId),
    /// Reduction over the whole lane dim of an f32 node (a per-row node counts once per element).
    RowReduce(ReduceKind, NodeId),
}

/// Writes a node. Per-element nodes go to `Unit` or `Strided` accesses, per-row nodes to `Broadcast` ones (or are repeated along a
/// `Unit` one).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Store {
    pub access: AccessId,
    pub node: NodeId,
    /// Extra offset as in [`Node::LoadAt`]; nothing is written when the index is outside its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<At>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    pub index: NodeId,
    pub stride: u32,
    pub limit: u32,
}

/// One fused kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Symbol in the shared object (codegen's reply says which); not part of what makes kernels equal.
    pub name: String,
    /// Number of iteration dims, at least 1 (1: a single row).
    pub rank: u32,
    pub accesses: Vec<Access>,
    /// Number of run-time scalars (i64).
    pub scalars: u32,
    pub nodes: Vec<Node>,
    pub stores: Vec<Store>,
}

impl Kernel {
    /// The symbol of the kernel's code: `pcc_` and the first 24 digits of a SHA-256 of all but its name. So a name says what its code
    /// does, and a name on another kernel is found.
    pub fn symbol(&self) -> String {
        symbol_of(&self.digest())
    }

    /// The bytes of a SHA-256 that [`Kernel::symbol`] is made of.
    pub fn digest(&self) -> [u8; DIGEST] {
        let nameless = Kernel { name: String::new(), ..self.clone() };
        // invariant: numbers, lists and unit variants always have a JSON form.
        let json = serde_json::to_vec(&nameless).expect("a kernel can be written");
        let digest = Sha256::new_with_prefix(b"pcc kernel 1\0").chain_update(json).finalize();
        std::array::from_fn(|i| digest[i])
    }
}

/// Bytes of [`Kernel::digest`].
pub const DIGEST: usize = 12;

/// The symbol of the kernel with this digest.
pub fn symbol_of(digest: &[u8; DIGEST]) -> String {
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("pcc_{hex}")
}

/// What generated code receives. Pointers may alias only where a store's access has the same base and strides as a load's
/// (in-place elementwise work), which is safe since each element is loaded before it is stored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelArgs {
    /// One base pointer per access.
    pub ptrs: *const *mut u8,
    /// `rank` extents, each at least 0; of the row dims at least 1 where there are rows to run.
    pub extents: *const i64,
    /// `accesses * rank` strides, in elements.
    pub strides: *const i64,
    /// `scalars` values.
    pub scalars: *const i64,
}
