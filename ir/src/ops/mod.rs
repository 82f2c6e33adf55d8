//! The closed set of ops. One file per op holds its attributes, shape rule, sharding rule, cost, reference evaluation,
//! text name and tests; this file is the enum and the exhaustive dispatch.

use crate::graph::FuncId;
use crate::mesh::AxisRef;
use crate::sharding::Sharding;
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// Elementwise functions of one operand. `Gelu` is the erf form, `GeluTanh` the tanh approximation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryKind {
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Recip,
    Sin,
    Cos,
    Tanh,
    Erf,
    Sigmoid,
    Silu,
    Gelu,
    GeluTanh,
    Relu,
    Not,
}

/// Elementwise functions of two operands of equal type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryKind {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Pow,
    And,
    Or,
}

/// Elementwise comparisons; the result is `bool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareKind {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Makes an op rank-dependent: on a device the op works at offset `span.start` of its piece of a dim of global extent
/// `global` split by `axes`. Only local-level ops carry one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardBase {
    pub global: usize,
    pub axes: Vec<AxisRef>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Literal {
    Splat(f64),
    /// Row-major elements, at most 2^20 of them.
    Dense(Vec<f64>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    pub ty: Type,
    pub value: Literal,
}

/// Element = its index along `dim` (plus the base of the device's piece).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iota {
    pub ty: Type,
    pub dim: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ShardBase>,
}

/// `dims[i]` is the result dim that operand dim i becomes (increasing, equal extents); the other result dims repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Broadcast {
    pub shape: Vec<usize>,
    pub dims: Vec<usize>,
}

/// Elements `start..limit` of every dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    pub start: Vec<usize>,
    pub limit: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    pub low: Vec<usize>,
    pub high: Vec<usize>,
    pub value: f64,
}

/// General matrix product. Result dims: batch dims, then the lhs's free dims, then the rhs's free dims, each in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DotGeneral {
    pub lhs_batch: Vec<usize>,
    pub rhs_batch: Vec<usize>,
    pub lhs_contract: Vec<usize>,
    pub rhs_contract: Vec<usize>,
}

/// Reduces and drops `dims`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    pub kind: ReduceKind,
    pub dims: Vec<usize>,
}

/// `gather(operand [B.., N, rest..], indices i32 [B.., I..]) -> [B.., I.., rest..]`, the first `batch` dims shared. An index
/// outside `0..N` (after subtracting the base) gives zeros.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    pub batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ShardBase>,
}

/// `update(operand [B.., N, rest..], new [B.., s, rest..], start i32 [B..]) -> operand` with rows `start..start+s` of N replaced; rows
/// outside `0..N` (after subtracting the base) are dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    pub batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ShardBase>,
}

/// `rope(x [b, s, .., d], cos [b, s, r/2], sin [b, s, r/2])`: rotates the first r elements of the last dim. Half form: pairs
/// (i, i + r/2); interleaved: pairs (2i, 2i + 1). Elements from r on pass unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    pub interleaved: bool,
}

/// `attention(q [b,s,g,r,d], k [b,t,g,d], v [b,t,g,e], q_pos i32 [b,s], k_pos i32 [b,t]) -> [b,s,g,r,e]`, g the kv heads, r the query heads of
/// each. Scores are `scale * q.k`, soft-capped as `cap * tanh(x / cap)`. Key t is seen by query s iff `k_pos >= 0`, and when causal
/// `k_pos <= q_pos`, and with a window w `k_pos > q_pos - w`. A query that sees no key gives zeros.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    pub scale: f64,
    pub causal: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
}

/// `softmax(x)` over `dim`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    pub dim: usize,
}

/// `rms_norm(x [.., h], weight [h])`: `x / sqrt(mean(x^2) + eps) * weight` over the last dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    pub eps: f64,
}

/// `layer_norm(x [.., h], weight [h], bias [h])` over the last dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    pub eps: f64,
}

/// Collectives over `axes` (the group of [`crate::Mesh::group`]); local level only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every device gets the reduction of all.
    AllReduce { axes: Vec<AxisRef>, kind: ReduceKind },
    /// Pieces of `dim` are concatenated in group order; `global` is the extent of the result dim without padding (the
    /// result's local extent may be shorter than the sum of the pieces: padding is dropped).
    AllGather { axes: Vec<AxisRef>, dim: usize, global: usize },
    /// Reduced, then each device keeps its piece (split rule) of `dim`, whose extent before is `global`.
    ReduceScatter { axes: Vec<AxisRef>, dim: usize, kind: ReduceKind, global: usize },
    /// `split` (extent before: `split_global`) becomes split by `axes`, `concat` (extent after: `concat_global`) whole.
    AllToAll { axes: Vec<AxisRef>, split: usize, split_global: usize, concat: usize, concat_global: usize },
}

/// The device's piece of `dim` (extent before: `global`) under the split rule, no communication. Local level only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardSlice {
    pub axes: Vec<AxisRef>,
    pub dim: usize,
    pub global: usize,
}

/// Sets the padding of `dim`, of global extent `global` split by `axes`, to `value`. Local level only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskTail {
    pub axes: Vec<AxisRef>,
    pub dim: usize,
    pub global: usize,
    pub value: f64,
}

/// Every operation of every level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    // Elementwise and shape.
    Constant(Constant),
    Iota(Iota),
    Unary(UnaryKind),
    Binary(BinaryKind),
    Compare(CompareKind),
    /// `select(pred bool, on_true, on_false)`, all of one shape.
    Select,
    Convert(DType),
    Broadcast(Broadcast),
    /// To a shape of equal element count, row-major.
    Reshape(Vec<usize>),
    /// `result dim i = operand dim perm[i]`.
    Transpose(Vec<usize>),
    Slice(Slice),
    /// Joins the operands along the dim.
    Concat(usize),
    Pad(Pad),
    // Contractions and reductions.
    DotGeneral(DotGeneral),
    Reduce(Reduce),
    // Indexing.
    Gather(Gather),
    Update(Update),
    // Composites, each with a decomposition into primitives.
    Softmax(Softmax),
    RmsNorm(RmsNorm),
    LayerNorm(LayerNorm),
    Rope(Rope),
    Attention(Attention),
    // Structure.
    Call(FuncId),
    /// Sharded level: the value laid out as the sharding says.
    Reshard(Sharding),
    // Local level.
    Collective(Collective),
    ShardSlice(ShardSlice),
    MaskTail(MaskTail),
    /// Stage functions: hands the operand to the same coordinates of another pipeline stage. No result.
    Send { stage: u32, tag: u32 },
    /// Stage functions: the value of `ty` another stage sent with this tag.
    Recv { stage: u32, tag: u32, ty: Type },
}
