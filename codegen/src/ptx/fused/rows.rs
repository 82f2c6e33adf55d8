//! Kernels with reductions over the lane dim: a block runs a row, its threads side by side over the row's groups, in one pass for each level
//! of reductions and one that stores.
//!
//! A pass ends in shuffles within each warp; then one lane of each warp writes the warp's value to shared memory, all wait for each
//! other, and every warp combines what the warps wrote. Each pass has shared memory of its own, so a pass need not wait until
//! the one before has been read: between two writes to the same place all threads have met at another pass's barrier, or, where there is only one
//! pass, at a barrier behind the row.

use super::row::Row;
use super::{Fused, IP, IntValue, Op, PointerValue, Special, V};
use crate::emit::cost;
use crate::emit::order::{live, reductions};
use pcc_ir::gpu::WARP;
use pcc_ir::kernel::{Node, NodeId};
use pcc_ir::types::ReduceKind;

/// Work and loads of a pass for an element, at most, for which a thread takes two groups at a time: it waits for memory half as often, which is
/// what a single row of a decode step spends its time on. More would take registers of which two blocks could not have enough.
const UNROLLED: (u32, usize) = (12, 2);
/// Warps of a block, at most.
const WARPS: u32 = 32;

/// Reductions of one pass: node, kind and operand.
type Reductions = Vec<(usize, ReduceKind, NodeId)>;

impl<'c> Fused<'_, 'c> {
    pub(super) fn rows(&self) {
        let live = live(self.kernel);
        let passes: Vec<(Reductions, PointerValue)> = (1..=self.info.passes)
            .map(|phase| (phase, reductions(self.kernel, self.info, &live, phase)))
            .filter(|(_, reductions)| !reductions.is_empty())
            .map(|(phase, reductions)| {
                let bytes = reductions.len() as u32 * WARPS * 4;
                (reductions, self.entry.shared(&format!("pass{phase}"), bytes))
            })
            .collect();
        let (first, step) = (self.entry.place(Special::BlockX), self.entry.place(Special::BlocksX));
        self.entry.count(first, self.row_count(), step, &[], |number, _| {
            let mut row = self.row(self.row_index(number));
            self.read_row(&mut row, &live);
            for (reductions, shared) in &passes {
                self.reduce(&mut row, reductions, *shared);
            }
            self.store_pass(&mut row, self.stores_wait(&live, passes.len()));
            if passes.len() == 1 && !self.stores_wait(&live, passes.len()) {
                self.entry.barrier();
            }
            vec![]
        });
    }

    /// Runs a pass over this thread's groups of the row.
    fn each_group(
        &self,
        row: &Row<'c>,
        pass: &super::row::Pass,
        state: &[V<'c>],
        fold: super::group::Fold<'_, 'c>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let vector = ir.long(self.vector.into());
        let first = ir.mul(self.entry.place(Special::Thread), vector);
        let step = ir.mul(self.entry.place(Special::Threads), vector);
        let aligned = self.aligned(row, pass);
        let nodes = || pass.nodes.iter().map(|&n| &self.kernel.nodes[n as usize]);
        let work: u32 = nodes().map(cost).sum();
        let loads = nodes().filter(|n| matches!(n, Node::Load(_) | Node::LoadAt { .. })).count();
        if work > UNROLLED.0 || loads > UNROLLED.1 {
            return self.entry.count(first, self.lanes(), step, state, |at, state| {
                self.group(row, pass, aligned, at, state, fold)
            });
        }
        self.entry.count(first, self.lanes(), ir.add(step, step), state, |at, state| {
            self.two_groups(row, pass, aligned, (at, step), state, fold)
        })
    }

    fn reduce(&self, row: &mut Row<'c>, reductions: &Reductions, shared: PointerValue<'c>) {
        let ir = self.ir;
        let roots: Vec<NodeId> = reductions.iter().map(|r| r.2).collect();
        let pass = self.pass(row, &roots, &[]);
        let identities: Vec<V> = reductions.iter().map(|r| ir.cf(0, r.1.identity() as f32)).collect();
        let sums = self.each_group(row, &pass, &identities, &|sums, values| {
            let add = |(&sum, &(_, kind, of)): (&V<'c>, &(usize, ReduceKind, NodeId))| {
                self.combine(kind, sum, values[of as usize].unwrap_or(ir.cf(0, 0.0)))
            };
            sums.iter().zip(reductions).map(add).collect()
        });
        let sums: Vec<V> = sums.iter().zip(reductions).map(|(&s, r)| self.reduce_warp(r.1, s)).collect();
        let word = ir.f32(0);
        let place = |r: usize, warp: IntValue<'c>| {
            let index = ir.add(warp, ir.long(r as i64 * i64::from(WARPS)));
            ir.offset(word, shared, index)
        };
        let (thread, lane) = (self.entry.place(Special::Thread), self.entry.place(Special::Lane));
        let warp_size = ir.long(WARP.into());
        let is_first = ir.icmp(IP::EQ, lane.into(), ir.long(0).into());
        self.entry.when(is_first, || {
            let warp = ir.as_int(ir.bin(Op::UDiv, thread.into(), warp_size.into()));
            sums.iter().enumerate().for_each(|(r, &sum)| ir.store(sum, place(r, warp), 4));
        });
        self.entry.barrier();
        let warps = ir.bin(Op::UDiv, self.entry.place(Special::Threads).into(), warp_size.into());
        let parts = self.entry.choose(
            ir.icmp(IP::SLT, lane.into(), warps),
            || (0..sums.len()).map(|r| ir.load(word, place(r, lane), 4)).collect(),
            || identities.clone(),
        );
        for (&part, &(node, kind, _)) in parts.iter().zip(reductions) {
            // Of zeros of both signs lanes may be left with either: the first lane's counts.
            let value = self.reduce_warp(kind, part);
            row.values[node] = Some(self.entry.shuffle_from(value, ir.ci(0, 0)));
        }
    }

    /// The values of a warp's lanes combined.
    fn reduce_warp(&self, kind: ReduceKind, value: V<'c>) -> V<'c> {
        let distances = std::iter::successors(Some(WARP / 2), |d| Some(d / 2).filter(|&d| d > 0));
        distances.fold(value, |value, d| self.combine(kind, value, self.entry.shuffle_xor(value, d)))
    }

    fn combine(&self, kind: ReduceKind, a: V<'c>, b: V<'c>) -> V<'c> {
        match kind {
            ReduceKind::Sum => self.ir.fadd(a, b),
            ReduceKind::Max => self.ir.extreme(true, a, b),
            ReduceKind::Min => self.ir.extreme(false, a, b),
        }
    }

    /// Whether per-row stores, which may be to where a per-row value is loaded from, have to wait until all threads have loaded: values that
    /// need no reduction are loaded before the first pass, and so before its barrier.
    fn stores_wait(&self, live: &[bool], passes: usize) -> bool {
        let loads_late = self.kernel.nodes.iter().enumerate().any(|(i, node)| {
            let loads = matches!(node, Node::Load(_) | Node::LoadAt { .. });
            live[i] && loads && !self.info.varies[i] && (self.info.phase[i] > 0 || passes == 0)
        });
        loads_late && !self.stores_by_kind().0.is_empty()
    }

    /// Stores per-element nodes in one pass over the row, then per-row ones, by one thread.
    fn store_pass(&self, row: &mut Row<'c>, wait: bool) {
        let ir = self.ir;
        let (once, each) = self.stores_by_kind();
        for &store in &once {
            self.row_value(row, self.kernel.stores[store].node);
            self.store_site(row, store);
        }
        if !each.is_empty() {
            let pass = self.pass(row, &[], &each);
            self.each_group(row, &pass, &[], &|_, _| vec![]);
        }
        if once.is_empty() {
            return;
        }
        if wait {
            self.entry.barrier();
        }
        let first = ir.icmp(IP::EQ, self.entry.place(Special::Thread).into(), ir.long(0).into());
        self.entry.when(first, || once.iter().for_each(|&store| self.store_row_here(row, store)));
    }
}
