//! One row: its addresses, the values that are the same for all of its elements, and what passes over elements start from.

use super::access::Site;
use super::{Fused, IP, IntValue, Op, PointerValue, V};
use crate::emit::order::{needed, pending};
use pcc_ir::kernel::{Kernel, Lane, Node, NodeId};

/// What is known at a row. Its values are worked out where control passes before all later code of the row.
pub(super) struct Row<'c> {
    /// Address of the row's first element, by access.
    pub ptrs: Vec<PointerValue<'c>>,
    /// Index along each row dim.
    pub index: Vec<IntValue<'c>>,
    /// Per-row nodes.
    pub values: Vec<Option<V<'c>>>,
    /// Places that per-row indices point at, by load node and by store.
    pub load_sites: Vec<Option<Site<'c>>>,
    pub store_sites: Vec<Option<Site<'c>>>,
}

/// A pass over elements, ready to be emitted.
pub(super) struct Pass {
    /// What is worked out for each element, in order.
    pub nodes: Vec<NodeId>,
    /// What is stored for each element.
    pub stores: Vec<usize>,
}

impl<'c> Fused<'_, 'c> {
    /// The row of an index.
    pub(super) fn row(&self, index: Vec<IntValue<'c>>) -> Row<'c> {
        let Kernel { nodes, stores, .. } = self.kernel;
        let ptrs = self.ptrs.iter().enumerate().map(|(a, &ptr)| {
            let offset = index.iter().zip(&self.strides[a]).fold(None, |sum, (&i, &stride)| {
                let part = self.ir.mul(i, stride);
                Some(sum.map_or(part, |s| self.ir.add(s, part)))
            });
            offset.map_or(ptr, |o| self.ir.offset(self.memory(a as u32), ptr, o))
        });
        Row {
            ptrs: ptrs.collect(),
            index,
            values: vec![None; nodes.len()],
            load_sites: vec![None; nodes.len()],
            store_sites: vec![None; stores.len()],
        }
    }

    /// A per-row node, worked out where the builder is unless it was before.
    pub(super) fn row_value(&self, row: &mut Row<'c>, node: NodeId) -> V<'c> {
        for i in pending(self.kernel, &row.values, node) {
            row.values[i as usize] = Some(self.row_node(row, i));
        }
        row.values[node as usize].unwrap_or_else(|| self.ir.cf(0, 0.0))
    }

    fn row_node(&self, row: &mut Row<'c>, node: NodeId) -> V<'c> {
        match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load_row(row, access, None),
            Node::LoadAt { access, index, stride, limit } => {
                let site = self.site(row, access, index, stride, limit);
                self.load_row(row, access, Some(site))
            }
            Node::Index(dim) => self.ir.cast(Op::Trunc, row.index[dim as usize].into(), self.ir.int(32, 0)),
            _ => self.formula(node, &row.values),
        }
    }

    /// A node that is neither a load nor an index.
    pub(super) fn formula(&self, node: NodeId, values: &[Option<V<'c>>]) -> V<'c> {
        self.ir.formula((self.kernel, self.info), &self.scalars, node, 0, values)
    }

    /// Works out the per-row nodes that need no reduction and that a store depends on: reads of memory come before any store of the row.
    pub(super) fn read_row(&self, row: &mut Row<'c>, live: &[bool]) {
        for (i, _) in live.iter().enumerate().filter(|(_, live)| **live) {
            if !self.info.varies[i] && self.info.phase[i] == 0 {
                self.row_value(row, i as NodeId);
            }
        }
    }

    /// A pass that works out `roots` and stores the per-element `stores`: what is the same for the row is worked out here.
    pub(super) fn pass(&self, row: &mut Row<'c>, roots: &[NodeId], stores: &[usize]) -> Pass {
        let mut roots = roots.to_vec();
        for &i in stores {
            let store = &self.kernel.stores[i];
            roots.push(store.node);
            roots.extend(store.at.map(|at| at.index));
        }
        let needed = needed(self.kernel, self.info, &roots);
        for &node in &needed.per_row {
            self.row_value(row, node);
        }
        for &node in &needed.per_element {
            if let Node::LoadAt { access, index, stride, limit } = self.kernel.nodes[node as usize]
                && !self.info.varies[index as usize]
                && row.load_sites[node as usize].is_none()
            {
                row.load_sites[node as usize] = Some(self.site(row, access, index, stride, limit));
            }
        }
        for &i in stores {
            self.store_site(row, i);
        }
        Pass { nodes: needed.per_element, stores: stores.to_vec() }
    }

    /// Where a store at a per-row index goes.
    pub(super) fn store_site(&self, row: &mut Row<'c>, store: usize) {
        let Some(at) = self.kernel.stores[store].at else { return };
        if !self.info.varies[at.index as usize] && row.store_sites[store].is_none() {
            let access = self.kernel.stores[store].access;
            row.store_sites[store] = Some(self.site(row, access, at.index, at.stride, at.limit));
        }
    }

    /// Whether the addresses of the pass's vector accesses are aligned to their size.
    pub(super) fn aligned(&self, row: &Row<'c>, pass: &Pass) -> V<'c> {
        let ir = self.ir;
        let mut bases = vec![];
        for &node in &pass.nodes {
            match self.kernel.nodes[node as usize] {
                Node::Load(access) => bases.push((access, row.ptrs[access as usize])),
                Node::LoadAt { access, .. } => {
                    bases.extend(row.load_sites[node as usize].map(|s| (access, s.ptr)));
                }
                _ => {}
            }
        }
        for &store in &pass.stores {
            let Some(base) = self.store_base(row, store) else { continue };
            bases.push((self.kernel.stores[store].access, base));
        }
        let unaligned = bases
            .into_iter()
            .filter(|&(access, _)| self.lane(access) == Lane::Unit)
            .map(|(access, base)| {
                let address = ir.cast(Op::PtrToInt, base.into(), ir.int(64, 0));
                ir.bin(Op::And, address, ir.long(i64::from(self.vector_bytes(access)) - 1).into())
            })
            .reduce(|a, b| ir.bin(Op::Or, a, b));
        unaligned.map_or(ir.cb(0, true), |bits| ir.icmp(IP::EQ, bits, ir.long(0).into()))
    }
}
