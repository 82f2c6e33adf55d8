//! What is true of a kernel before any backend sees it: every reference in range, every node of one kind, every store
//! possible, and the order of its passes over a row. Backends and the interpreter start from [`KernelInfo`] and may index freely.
//!
//! Rules:
//! - rank is 1 to 8; at most 256 accesses, 256 scalars, 4,096 nodes, 256 stores;
//! - a node uses only earlier nodes; accesses, scalars and dims exist; loads use accesses that are not written, stores written ones,
//!   each written access by one store;
//! - operands have the kinds their node takes ([`Kind`]); a row reduction takes a float;
//! - a load through a `Broadcast` access is per row unless its index is per element;
//! - a per-element node is stored through a `Unit` or `Strided` access; the index of a `Broadcast` store is per row.

use crate::kernel::{Access, Kernel, Lane, Node, NodeId, Store};
use crate::ops::{BinaryKind, UnaryKind};
use crate::types::DType;

/// What a node's value is: `F32`, `I32` or `Bool` of [`DType`] in memory terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Float,
    Int,
    Bool,
}

impl Kind {
    /// The kind in which elements of a type are computed.
    pub fn of(dtype: DType) -> Kind {
        match dtype {
            DType::F64 | DType::F32 | DType::BF16 | DType::F16 => Kind::Float,
            DType::I64 | DType::I32 => Kind::Int,
            DType::Bool => Kind::Bool,
        }
    }
}

/// Facts about each node of a valid kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    pub kinds: Vec<Kind>,
    /// Whether the node is per element (else per row).
    pub varies: Vec<bool>,
    /// How many passes over the row must be complete before the node can be computed. A row reduction whose operand has
    /// phase p is worked out by pass p and has phase p + 1.
    pub phase: Vec<u32>,
    /// Number of reducing passes.
    pub passes: u32,
}

/// Largest rank of an iteration space.
pub const MAX_RANK: u32 = 8;
const MAX_ACCESSES: usize = 256;
const MAX_NODES: usize = 4096;

impl Kernel {
    /// Checks the rules above.
    ///
    /// # Errors
    /// The first rule broken, with the number of the node or store.
    pub fn check(&self) -> Result<KernelInfo, String> {
        self.check_sizes()?;
        let mut info = KernelInfo { kinds: vec![], varies: vec![], phase: vec![], passes: 0 };
        for (i, node) in self.nodes.iter().enumerate() {
            self.check_node(i, node, &mut info).map_err(|e| format!("node {i}: {e}"))?;
        }
        let mut written = vec![false; self.accesses.len()];
        for (i, store) in self.stores.iter().enumerate() {
            self.check_store(store, &info, &mut written).map_err(|e| format!("store {i}: {e}"))?;
        }
        Ok(info)
    }

    fn check_sizes(&self) -> Result<(), String> {
        if self.rank == 0 || self.rank > MAX_RANK {
            return Err(format!("rank {} is not between 1 and {MAX_RANK}", self.rank));
        }
        let counts = [
            ("accesses", self.accesses.len(), MAX_ACCESSES),
            ("scalars", self.scalars as usize, MAX_ACCESSES),
            ("nodes", self.nodes.len(), MAX_NODES),
            ("stores", self.stores.len(), MAX_ACCESSES),
        ];
        for (what, n, most) in counts {
            if n > most {
                return Err(format!("{n} {what}, more than {most}"));
            }
        }
        if self.stores.is_empty() {
            return Err("stores nothing".into());
        }
        Ok(())
    }

    fn access(&self, id: u32, write: bool) -> Result<&Access, String> {
        let access = self.accesses.get(id as usize).ok_or_else(|| format!("no access {id}"))?;
        match (access.write, write) {
            (true, false) => Err(format!("loads access {id}, which is written")),
            (false, true) => Err(format!("writes access {id}, which is read-only")),
            _ => Ok(access),
        }
    }

    fn check_scalar(&self, scalar: u32) -> Result<(), String> {
        if scalar < self.scalars { Ok(()) } else { Err(format!("no scalar {scalar}")) }
    }

    fn check_node(&self, i: usize, node: &Node, info: &mut KernelInfo) -> Result<(), String> {
        let operands = node.operands();
        if let Some(bad) = operands.iter().find(|&&n| n as usize >= i) {
            return Err(format!("uses node {bad}, which is not before it"));
        }
        let kinds: Vec<Kind> = operands.iter().map(|&n| info.kinds[n as usize]).collect();
        let kind = self.node_kind(node, &kinds)?;
        let mut varies = operands.iter().any(|&n| info.varies[n as usize]);
        let mut phase = operands.iter().map(|&n| info.phase[n as usize]).max().unwrap_or(0);
        match node {
            Node::Load(access) | Node::LoadAt { access, .. } => {
                varies |= self.access(*access, false)?.lane != Lane::Broadcast;
            }
            Node::Index(dim) => varies = *dim + 1 == self.rank,
            Node::RowReduce(..) => {
                varies = false;
                phase += 1;
                info.passes = info.passes.max(phase);
            }
            _ => {}
        }
        info.kinds.push(kind);
        info.varies.push(varies);
        info.phase.push(phase);
        Ok(())
    }

    fn node_kind(&self, node: &Node, kinds: &[Kind]) -> Result<Kind, String> {
        let need = |ok: bool, what: &str| if ok { Ok(()) } else { Err(format!("{what}, not {kinds:?}")) };
        match node {
            Node::Load(access) => Ok(Kind::of(self.access(*access, false)?.dtype)),
            Node::LoadAt { access, stride, limit, .. } => {
                need(kinds == [Kind::Int], "the index is an integer")?;
                self.check_scalar(*stride)?;
                self.check_scalar(*limit)?;
                Ok(Kind::of(self.access(*access, false)?.dtype))
            }
            Node::Const { dtype, .. } => Ok(Kind::of(*dtype)),
            Node::Scalar(s) => self.check_scalar(*s).map(|()| Kind::Int),
            Node::Index(dim) if *dim < self.rank => Ok(Kind::Int),
            Node::Index(dim) => Err(format!("no dim {dim}")),
            Node::Unary(unary, _) => {
                let ok = match unary {
                    UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu => kinds[0] != Kind::Bool,
                    UnaryKind::Not => kinds[0] != Kind::Float,
                    _ => kinds[0] == Kind::Float,
                };
                need(ok, &format!("{unary:?} takes another kind"))?;
                Ok(kinds[0])
            }
            Node::Binary(binary, ..) => {
                let ok = match binary {
                    BinaryKind::And | BinaryKind::Or => kinds[0] != Kind::Float,
                    BinaryKind::Pow => kinds[0] == Kind::Float,
                    _ => kinds[0] != Kind::Bool,
                };
                need(ok && kinds[0] == kinds[1], &format!("{binary:?} takes two of another kind"))?;
                Ok(kinds[0])
            }
            Node::Compare(..) => need(kinds[0] == kinds[1], "compares two of one kind").map(|()| Kind::Bool),
            Node::Select(..) => {
                need(
                    kinds[0] == Kind::Bool && kinds[1] == kinds[2],
                    "selects by a bool from two of one kind",
                )?;
                Ok(kinds[1])
            }
            Node::Convert(dtype, _) => Ok(Kind::of(*dtype)),
            Node::RowReduce(..) => need(kinds == [Kind::Float], "reduces a float").map(|()| Kind::Float),
        }
    }

    fn check_store(&self, store: &Store, info: &KernelInfo, written: &mut [bool]) -> Result<(), String> {
        let access = self.access(store.access, true)?;
        if std::mem::replace(&mut written[store.access as usize], true) {
            return Err(format!("access {} is written twice", store.access));
        }
        let node = store.node as usize;
        let kind = info.kinds.get(node).ok_or_else(|| format!("no node {node}"))?;
        if *kind != Kind::of(access.dtype) {
            return Err(format!("writes a {kind:?} to {}", access.dtype));
        }
        let mut varies = info.varies[node];
        if let Some(at) = &store.at {
            let index = at.index as usize;
            if info.kinds.get(index) != Some(&Kind::Int) {
                return Err(format!("index {index} is no integer node"));
            }
            self.check_scalar(at.stride)?;
            self.check_scalar(at.limit)?;
            varies |= info.varies[index];
        }
        if varies && access.lane == Lane::Broadcast {
            return Err("writes a per-element value, or at a per-element index, once per row".into());
        }
        Ok(())
    }
}

impl Node {
    /// The nodes this one uses, in order.
    pub fn operands(&self) -> Vec<NodeId> {
        match *self {
            Node::Load(_) | Node::Const { .. } | Node::Scalar(_) | Node::Index(_) => vec![],
            Node::LoadAt { index, .. } => vec![index],
            Node::Unary(_, a) | Node::Convert(_, a) | Node::RowReduce(_, a) => vec![a],
            Node::Binary(_, a, b) | Node::Compare(_, a, b) => vec![a, b],
            Node::Select(a, b, c) => vec![a, b, c],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ReduceKind;

    fn access(lane: Lane, write: bool) -> Access {
        Access { dtype: DType::F32, lane, write }
    }

    /// `y = x / sum(x)` over a row.
    fn normalise() -> Kernel {
        Kernel {
            name: "n".into(),
            rank: 2,
            accesses: vec![access(Lane::Unit, false), access(Lane::Unit, true)],
            scalars: 0,
            nodes: vec![
                Node::Load(0),
                Node::RowReduce(ReduceKind::Sum, 0),
                Node::Binary(BinaryKind::Div, 0, 1),
            ],
            stores: vec![Store { access: 1, node: 2, at: None }],
        }
    }

    #[test]
    fn phases_follow_reductions() {
        let info = normalise().check().unwrap();
        assert_eq!(info.phase, [0, 1, 1]);
        assert_eq!(info.varies, [true, false, true]);
        assert_eq!(info.passes, 1);
    }

    #[test]
    fn broken_rules_are_named() {
        type Break = fn(&mut Kernel);
        let cases: [(Break, &str); 9] = [
            (|k| k.rank = 0, "rank 0"),
            (|k| k.nodes[2] = Node::Binary(BinaryKind::Div, 0, 2), "not before it"),
            (|k| k.nodes[0] = Node::Load(7), "no access 7"),
            (|k| k.nodes[0] = Node::Load(1), "which is written"),
            (|k| k.nodes[0] = Node::Scalar(0), "no scalar 0"),
            (|k| k.nodes[0] = Node::Index(1), "reduces a float"),
            (|k| k.stores[0].access = 0, "read-only"),
            (|k| k.accesses[1].lane = Lane::Broadcast, "once per row"),
            (|k| k.stores.push(k.stores[0].clone()), "written twice"),
        ];
        for (change, expected) in cases {
            let mut kernel = normalise();
            change(&mut kernel);
            let error = kernel.check().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
