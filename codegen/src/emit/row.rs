//! One row: a pass over its elements for each level of reductions, then the pass that stores. Each pass works out anew whatever
//! per-element values it needs; loads hit the nearest cache by then.

use super::ir::{IP, Op, V};
use super::kernel::Emitter;
use super::order::{live, needed, pending, reductions};
use super::{access::Site, cost};
use inkwell::values::{IntValue, PointerValue};
use pcc_ir::kernel::{Kernel, Node, NodeId};
use pcc_ir::types::ReduceKind;

/// What is known at a row. Per-row values are worked out outside loops over elements, so they reach all later code of the row.
pub(super) struct Row<'c> {
    /// Address of the row's first element, by access.
    pub ptrs: Vec<PointerValue<'c>>,
    /// Index along each row dim.
    pub index: Vec<IntValue<'c>>,
    /// Per-row nodes, as scalars.
    pub values: Vec<Option<V<'c>>>,
    /// The same repeated over lanes.
    pub wide: Vec<Option<V<'c>>>,
    /// Places that per-row indices point at, by load node and by store.
    pub load_sites: Vec<Option<Site<'c>>>,
    pub store_sites: Vec<Option<Site<'c>>>,
}

impl<'c> Row<'c> {
    pub fn new(kernel: &Kernel, ptrs: Vec<PointerValue<'c>>, index: Vec<IntValue<'c>>) -> Self {
        let nodes = kernel.nodes.len();
        Row {
            ptrs,
            index,
            values: vec![None; nodes],
            wide: vec![None; nodes],
            load_sites: vec![None; nodes],
            store_sites: vec![None; kernel.stores.len()],
        }
    }
}

/// Up to `w` elements from `at` on.
#[derive(Clone, Copy)]
pub(super) struct Block<'c> {
    pub at: IntValue<'c>,
    /// Which of them exist; None: all.
    pub mask: Option<V<'c>>,
}

impl<'c> Emitter<'_, 'c> {
    /// Code of one row.
    pub(super) fn row(&self, row: &mut Row<'c>) {
        let live = live(self.kernel);
        for phase in 1..=self.info.passes {
            let reductions = reductions(self.kernel, self.info, &live, phase);
            if !reductions.is_empty() {
                self.reduce_pass(row, &reductions);
            }
        }
        self.store_pass(row);
    }

    /// Works out the per-row nodes that `roots` need in an element pass, and gives the per-element ones in order.
    fn prepare(&self, row: &mut Row<'c>, roots: &[NodeId]) -> Vec<NodeId> {
        let needed = needed(self.kernel, self.info, roots);
        for &node in &needed.per_row {
            let i = node as usize;
            let value = self.row_value(row, node);
            row.wide[i] = row.wide[i].or_else(|| Some(self.ir.splat(value, self.w)));
        }
        for &node in &needed.per_element {
            if let Node::LoadAt { access, index, stride, limit } = self.kernel.nodes[node as usize]
                && !self.info.varies[index as usize]
                && row.load_sites[node as usize].is_none()
            {
                row.load_sites[node as usize] = Some(self.site(row, access, index, stride, limit));
            }
        }
        needed.per_element
    }

    /// A per-row node as a scalar, worked out where the builder is unless it was before.
    pub(super) fn row_value(&self, row: &mut Row<'c>, node: NodeId) -> V<'c> {
        for i in pending(self.kernel, &row.values, node) {
            row.values[i as usize] = Some(self.row_node(row, i));
        }
        row.values[node as usize].unwrap_or_else(|| self.ir.cf(0, 0.0))
    }

    /// Values of the per-element nodes `elements` for a block.
    fn block(&self, row: &Row<'c>, elements: &[NodeId], block: Block<'c>) -> Vec<Option<V<'c>>> {
        let mut values = row.wide.clone();
        for &node in elements {
            values[node as usize] = Some(self.lane_node(row, &values, node, block));
        }
        values
    }

    /// Mask of the elements from `at` on that exist.
    fn tail(&self, at: IntValue<'c>) -> V<'c> {
        let ir = self.ir;
        let left = ir.sub(self.extents[self.kernel.rank as usize - 1], at);
        let left = ir.splat(ir.cast(Op::Trunc, left.into(), ir.int(32, 0)), self.w);
        ir.icmp(IP::SLT, ir.iota(32, self.w), left)
    }

    /// The row's length rounded down to a multiple of a power of two.
    fn whole(&self, multiple: u32) -> IntValue<'c> {
        let extent = self.extents[self.kernel.rank as usize - 1];
        self.ir.as_int(self.ir.bin(Op::And, extent.into(), self.ir.long(-i64::from(multiple)).into()))
    }

    /// Accumulators of a reduction: enough to hide the latency of an addition behind the work on other blocks.
    fn accumulators(&self, elements: &[NodeId]) -> u32 {
        let work: u32 = elements.iter().map(|&n| cost(&self.kernel.nodes[n as usize])).sum();
        if work <= 12 { 4 } else { 2 }
    }

    fn reduce_pass(&self, row: &mut Row<'c>, reductions: &[(usize, ReduceKind, NodeId)]) {
        let (ir, w) = (self.ir, self.w);
        let roots: Vec<NodeId> = reductions.iter().map(|r| r.2).collect();
        let elements = self.prepare(row, &roots);
        let n = self.accumulators(&elements) as usize;
        let identity = |kind: ReduceKind| ir.cf(w, kind.identity() as f32);
        let first: Vec<V> = reductions.iter().flat_map(|r| vec![identity(r.1); n]).collect();
        let whole = self.whole(w * n as u32);
        let sums = self.count(ir.long(0), whole, i64::from(w) * n as i64, &first, &mut |at, sums| {
            let mut next = sums.to_vec();
            for k in 0..n {
                let at = ir.add(at, ir.long(k as i64 * i64::from(w)));
                let values = self.block(row, &elements, Block { at, mask: None });
                for (r, &(_, kind, of)) in reductions.iter().enumerate() {
                    let value = values[of as usize].unwrap_or(first[0]);
                    next[r * n + k] = self.combine(kind, next[r * n + k], value);
                }
            }
            next
        });
        let firsts: Vec<V> = sums.iter().step_by(n).copied().collect();
        let extent = self.extents[self.kernel.rank as usize - 1];
        let tails = self.count(whole, extent, i64::from(w), &firsts, &mut |at, sums| {
            let mask = self.tail(at);
            let values = self.block(row, &elements, Block { at, mask: Some(mask) });
            let add = |(&sum, &(_, kind, of)): (&V<'c>, &(usize, ReduceKind, NodeId))| {
                let value = values[of as usize].unwrap_or(first[0]);
                self.combine(kind, sum, ir.select(mask, value, identity(kind)))
            };
            sums.iter().zip(reductions).map(add).collect()
        });
        for (r, &(node, kind, _)) in reductions.iter().enumerate() {
            let mut parts = vec![tails[r]];
            parts.extend_from_slice(&sums[r * n + 1..(r + 1) * n]);
            row.values[node] = Some(self.horizontal(kind, parts));
        }
    }

    fn combine(&self, kind: ReduceKind, a: V<'c>, b: V<'c>) -> V<'c> {
        match kind {
            ReduceKind::Sum => self.ir.fadd(a, b),
            ReduceKind::Max => self.ir.extreme(true, a, b),
            ReduceKind::Min => self.ir.extreme(false, a, b),
        }
    }

    /// All lanes of all accumulators combined, pairwise.
    fn horizontal(&self, kind: ReduceKind, mut parts: Vec<V<'c>>) -> V<'c> {
        while parts.len() > 1 {
            parts = parts
                .chunks(2)
                .map(|p| if p.len() == 2 { self.combine(kind, p[0], p[1]) } else { p[0] })
                .collect();
        }
        let mut value = parts[0];
        let mut lanes = self.w;
        while lanes > 1 {
            lanes /= 2;
            value = self.combine(kind, self.ir.lanes(value, 0, lanes), self.ir.lanes(value, lanes, lanes));
        }
        value
    }

    /// Stores per-element nodes in one pass over the row, then per-row ones.
    fn store_pass(&self, row: &mut Row<'c>) {
        let (ir, w) = (self.ir, self.w);
        let (mut per_row, mut per_element) = (vec![], vec![]);
        for (i, store) in self.kernel.stores.iter().enumerate() {
            let once = self.lane(store.access) == pcc_ir::kernel::Lane::Broadcast;
            if once { per_row.push(i) } else { per_element.push(i) }
        }
        // All per-row loads come before any store, which may be to the same place.
        for &i in &per_row {
            self.row_value(row, self.kernel.stores[i].node);
        }
        let mut roots = vec![];
        for &i in &per_element {
            let store = &self.kernel.stores[i];
            roots.push(store.node);
            roots.extend(store.at.iter().filter(|at| self.info.varies[at.index as usize]).map(|at| at.index));
        }
        let elements = self.prepare(row, &roots);
        for (i, store) in self.kernel.stores.iter().enumerate() {
            if let Some(at) = store.at
                && !self.info.varies[at.index as usize]
            {
                row.store_sites[i] = Some(self.site(row, store.access, at.index, at.stride, at.limit));
            }
        }
        if !per_element.is_empty() {
            let store_all = |at, mask| {
                let block = Block { at, mask };
                let values = self.block(row, &elements, block);
                per_element.iter().for_each(|&i| self.store_lanes(row, &values, i, block));
            };
            let whole = self.whole(w);
            self.count(ir.long(0), whole, i64::from(w), &[], &mut |at, _| {
                store_all(at, None);
                vec![]
            });
            let (rest, done) = (ir.block(self.function, "rest"), ir.block(self.function, "stored"));
            ir.br_if(ir.less(whole, self.extents[self.kernel.rank as usize - 1]), rest, done);
            ir.at(rest);
            store_all(whole, Some(self.tail(whole)));
            ir.br(done);
            ir.at(done);
        }
        for &i in &per_row {
            self.store_row(row, i);
        }
    }
}
