//! Collectives among the devices of a stage.

use super::Loc;
use crate::extent::Extent;
use crate::mesh::AxisRef;
use crate::types::{DType, ReduceKind};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Permute,
    Broadcast,
}

impl CollectiveKind {
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Permute => "permute",
            CollectiveKind::Broadcast => "broadcast",
        }
    }
}

/// A collective among the devices of [`Mesh::group`] over `axes`, contributions combined in group order (so that results repeat bit
/// for bit). Shapes are local, row-major and dense. Member i's piece of a dim is what the split rule gives it
/// ([`crate::sharding::member_span`] of the whole extent), which for one axis is `i*p .. min((i+1)*p, whole)`, p = ceil(whole / group):
/// - all-reduce: `dst = reduce(src of all)`; shapes equal; src and dst may be the same.
/// - all-gather: member i's src fills its piece of `concat_dim` of dst (the rest of its src is padding).
/// - reduce-scatter: of the reduction, member i keeps its piece of `split_dim`; the tail of a short piece is zero.
/// - all-to-all: member i gets piece i of `split_dim` from every member, concatenated along `concat_dim` in group order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveCall {
    pub kind: CollectiveKind,
    pub axes: Vec<AxisRef>,
    pub reduce: ReduceKind,
    pub dtype: DType,
    pub src: Loc,
    pub dst: Loc,
    pub src_shape: Vec<u64>,
    pub dst_shape: Vec<u64>,
    pub split_dim: u32,
    pub concat_dim: u32,
    /// Bytes of the whole logical buffer over the group, unpadded (what `inspect` reports).
    pub logical_bytes: u64,
    /// How far the collective goes along each dim, of the larger of its two sides; empty when it goes all the way. The rest is
    /// neither read nor written, the tail of a short piece neither.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub there: Vec<Extent>,
}
