//! Builds one [`Kernel`] and its [`Launch`] over a chosen iteration space.
//!
//! Accesses are collected with their strides along every iteration dim; when the kernel is finished, dims that all
//! accesses step through alike are merged, so that equal work on different shapes becomes the same kernel.

use super::buffers::BufId;
use cranelift_entity::PrimaryMap;
use pcc_ir::kernel::{Access, AccessId, At, Kernel, KernelId, Lane, Node, NodeId, Store};
use pcc_ir::ops::{BinaryKind, CompareKind, UnaryKind};
use pcc_ir::program::Scalar;
use pcc_ir::{DType, Extent, ReduceKind};
use std::collections::HashMap;

/// A lane dim shorter than this is merged with the rows when possible; one that is at least this long is left alone, so
/// that rows remain for several workers to share.
const SHORT_LANE: i64 = 128;
/// Merging never makes a lane longer than this.
const LONG_LANE: i64 = 4096;

struct PendingAccess {
    buf: BufId,
    offset: i64,
    strides: Vec<i64>,
    dtype: DType,
    write: bool,
}

/// A kernel under construction.
pub(super) struct KernelBuilder {
    extents: Vec<Extent>,
    accesses: Vec<PendingAccess>,
    nodes: Vec<Node>,
    known: HashMap<String, NodeId>,
    scalars: Vec<Scalar>,
    stores: Vec<Store>,
    indexed: Vec<bool>,
    has_row_reduce: bool,
}

/// A finished kernel: what to generate, and the launch with buffers not yet placed.
pub(super) struct Built {
    pub kernel: Kernel,
    /// Buffer and element offset of each access.
    pub ptrs: Vec<(BufId, i64)>,
    pub extents: Vec<Extent>,
    pub strides: Vec<i64>,
    pub scalars: Vec<Scalar>,
}

impl KernelBuilder {
    /// A kernel over an iteration space of these extents, the last one being the lane dim.
    pub fn new(extents: Vec<Extent>) -> Self {
        let extents = if extents.is_empty() { vec![Extent::full(1)] } else { extents };
        let indexed = vec![false; extents.len()];
        Self {
            extents,
            accesses: Vec::new(),
            nodes: Vec::new(),
            known: HashMap::new(),
            scalars: Vec::new(),
            stores: Vec::new(),
            indexed,
            has_row_reduce: false,
        }
    }

    pub fn rank(&self) -> usize {
        self.extents.len()
    }

    pub fn lane(&self) -> usize {
        self.extents.len() - 1
    }

    /// Extent of a dim, whatever part of it is there.
    pub fn extent(&self, dim: usize) -> i64 {
        self.extents[dim].full as i64
    }

    /// Adds a node, or finds the equal one.
    pub fn node(&mut self, node: Node) -> NodeId {
        if matches!(node, Node::RowReduce(..)) {
            self.has_row_reduce = true;
        }
        if let Node::Index(d) = node {
            self.indexed[d as usize] = true;
        }
        let key = format!("{node:?}");
        if let Some(&n) = self.known.get(&key) {
            return n;
        }
        self.nodes.push(node);
        let id = (self.nodes.len() - 1) as NodeId;
        self.known.insert(key, id);
        id
    }

    pub fn f32(&mut self, value: f64) -> NodeId {
        self.node(Node::Const { dtype: DType::F32, bits: u64::from((value as f32).to_bits()) })
    }

    pub fn i32(&mut self, value: i64) -> NodeId {
        self.node(Node::Const { dtype: DType::I32, bits: u64::from(value as i32 as u32) })
    }

    pub fn constant(&mut self, dtype: DType, value: f64) -> NodeId {
        match dtype {
            DType::I32 | DType::I64 => self.i32(value as i64),
            DType::Bool => self.node(Node::Const { dtype: DType::Bool, bits: u64::from(value != 0.0) }),
            _ => self.f32(value),
        }
    }

    pub fn unary(&mut self, kind: UnaryKind, a: NodeId) -> NodeId {
        self.node(Node::Unary(kind, a))
    }

    pub fn binary(&mut self, kind: BinaryKind, a: NodeId, b: NodeId) -> NodeId {
        self.node(Node::Binary(kind, a, b))
    }

    pub fn compare(&mut self, kind: CompareKind, a: NodeId, b: NodeId) -> NodeId {
        self.node(Node::Compare(kind, a, b))
    }

    pub fn select(&mut self, p: NodeId, a: NodeId, b: NodeId) -> NodeId {
        self.node(Node::Select(p, a, b))
    }

    pub fn row_reduce(&mut self, kind: ReduceKind, a: NodeId) -> NodeId {
        self.node(Node::RowReduce(kind, a))
    }

    /// Index of a run-time scalar.
    pub fn scalar_id(&mut self, s: Scalar) -> u32 {
        if let Some(i) = self.scalars.iter().position(|t| *t == s) {
            return i as u32;
        }
        self.scalars.push(s);
        (self.scalars.len() - 1) as u32
    }

    /// A run-time scalar as an i32 node.
    pub fn scalar(&mut self, s: Scalar) -> NodeId {
        let id = self.scalar_id(s);
        self.node(Node::Scalar(id))
    }

    /// An access through strides (elements) along the iteration dims.
    pub fn access(
        &mut self,
        buf: BufId,
        offset: i64,
        mut strides: Vec<i64>,
        dtype: DType,
        write: bool,
    ) -> AccessId {
        strides.resize(self.rank(), 0);
        for (s, e) in strides.iter_mut().zip(&self.extents) {
            if e.full == 1 {
                *s = 0;
            }
        }
        let same = |a: &PendingAccess| {
            a.buf == buf && a.offset == offset && a.strides == strides && a.dtype == dtype && a.write == write
        };
        if let Some(i) = self.accesses.iter().position(same) {
            return i as AccessId;
        }
        self.accesses.push(PendingAccess { buf, offset, strides, dtype, write });
        (self.accesses.len() - 1) as AccessId
    }

    pub fn load(&mut self, access: AccessId) -> NodeId {
        self.node(Node::Load(access))
    }

    pub fn store(&mut self, access: AccessId, node: NodeId, at: Option<At>) {
        self.stores.push(Store { access, node, at });
    }

    /// Merges dims and fixes how each access moves along the lane.
    pub fn finish(mut self, name: &str) -> Built {
        self.drop_unit_dims();
        self.merge_dims();
        let rank = self.rank();
        let lane = self.lane();
        let mut accesses = Vec::new();
        let (mut ptrs, mut strides) = (Vec::new(), Vec::new());
        for (i, a) in self.accesses.iter().enumerate() {
            let kind = match a.strides[lane] {
                0 => Lane::Broadcast,
                1 => Lane::Unit,
                _ => Lane::Strided,
            };
            // A lane of one element is a unit one to whoever writes it.
            let kind = if a.write && self.extents[lane].full == 1 { Lane::Unit } else { kind };
            // A store at a run-time index may move along the lane by that index alone.
            let indexed = self.stores.iter().any(|s| s.access as usize == i && s.at.is_some());
            let kind = if indexed && kind == Lane::Broadcast { Lane::Strided } else { kind };
            accesses.push(Access { dtype: a.dtype, lane: kind, write: a.write });
            ptrs.push((a.buf, a.offset));
            strides.extend_from_slice(&a.strides);
        }
        let kernel = Kernel {
            name: name.to_owned(),
            rank: rank as u32,
            accesses,
            scalars: self.scalars.len() as u32,
            nodes: self.nodes,
            stores: self.stores,
        };
        Built { kernel, ptrs, extents: self.extents, strides, scalars: self.scalars }
    }

    fn drop_unit_dims(&mut self) {
        let keep: Vec<usize> = (0..self.rank())
            .filter(|&d| {
                self.indexed[d]
                    || self.extents[d] != Extent::full(1)
                    || (self.has_row_reduce && d == self.lane())
            })
            .collect();
        let keep = if keep.is_empty() { vec![self.lane()] } else { keep };
        self.reorder(&keep);
    }

    /// Keeps the listed dims, in order; index nodes follow.
    fn reorder(&mut self, keep: &[usize]) {
        if keep.len() == self.rank() {
            return;
        }
        self.extents = keep.iter().map(|&d| self.extents[d].clone()).collect();
        self.indexed = keep.iter().map(|&d| self.indexed[d]).collect();
        for a in &mut self.accesses {
            a.strides = keep.iter().map(|&d| a.strides[d]).collect();
        }
        for n in &mut self.nodes {
            if let Node::Index(d) = n
                && let Some(new) = keep.iter().position(|&k| k == *d as usize)
            {
                *d = new as u32;
            }
        }
    }

    fn lane_is_settled(&self, outer: usize) -> bool {
        let lane = self.extent(self.lane());
        self.has_row_reduce || lane >= SHORT_LANE || lane * self.extent(outer) > LONG_LANE
    }

    fn merge_dims(&mut self) {
        let mut d = self.rank().saturating_sub(1);
        while d >= 1 {
            let outer = d - 1;
            let is_lane = d == self.lane();
            let fixed = self.indexed[d] || self.indexed[outer] || (is_lane && self.lane_is_settled(outer));
            // Of a dim that is inside of another, all has to be there.
            let whole = self.extents[d].clip.is_none();
            let alone = self.extents[outer].full == 1;
            let goes_on = |a: &PendingAccess| alone || a.strides[outer] == a.strides[d] * self.extent(d);
            if !fixed && whole && self.accesses.iter().all(goes_on) {
                let inner = self.extents[d].full;
                self.extents[outer] = self.extents[outer].times(inner);
                for a in &mut self.accesses {
                    a.strides[outer] = a.strides[d];
                }
                let keep: Vec<usize> = (0..self.rank()).filter(|&i| i != d).collect();
                self.reorder(&keep);
            }
            d -= 1;
        }
    }
}

/// Kernels of a program, equal ones once.
#[derive(Default)]
pub(super) struct KernelTable {
    pub kernels: PrimaryMap<KernelId, Kernel>,
    by_structure: HashMap<String, KernelId>,
}

impl KernelTable {
    /// The id of a kernel equal to this one but for its name.
    pub fn intern(&mut self, mut kernel: Kernel) -> KernelId {
        let hint = std::mem::take(&mut kernel.name);
        let key = format!("{kernel:?}");
        if let Some(&id) = self.by_structure.get(&key) {
            return id;
        }
        kernel.name = format!("pcc_{}_{hint}", self.kernels.len());
        let id = self.kernels.push(kernel);
        self.by_structure.insert(key, id);
        id
    }
}
