//! Kernels without reductions over the lane dim: a thread runs over groups of all rows, in row-major order.
//!
//! What is stored once a row is stored by the thread of the row's first group. Such a store may be to where a per-row value is loaded
//! from, which the row's other threads may not have read yet: a kernel that has both runs a whole row in one thread.

use super::{Fused, IntValue, Special};
use crate::emit::order::live;
use pcc_ir::kernel::Node;

/// What a thread takes at a time.
enum Share {
    /// A group of a row.
    Group,
    /// A row, group by group.
    Row,
}

impl<'c> Fused<'_, 'c> {
    pub(super) fn flat(&self) {
        let ir = self.ir;
        let (once, each) = self.stores_by_kind();
        let reads_rows = self
            .kernel
            .nodes
            .iter()
            .enumerate()
            .any(|(i, node)| !self.info.varies[i] && matches!(node, Node::Load(_) | Node::LoadAt { .. }));
        let share = match each.is_empty() || (!once.is_empty() && reads_rows) {
            true => Share::Row,
            false => Share::Group,
        };
        let groups = self.groups();
        let rows = self.row_count();
        let total = match share {
            Share::Group => ir.mul(rows, groups),
            Share::Row => rows,
        };
        let threads = self.entry.place(Special::Threads);
        let first =
            ir.add(ir.mul(self.entry.place(Special::BlockX), threads), self.entry.place(Special::Thread));
        let step = ir.mul(self.entry.place(Special::BlocksX), threads);
        self.entry.count(first, total, step, &[], |at, _| {
            match share {
                Share::Group => self.one_group(at, groups, (&once, &each)),
                Share::Row => self.one_row(at, (&once, &each)),
            }
            vec![]
        });
    }

    /// Groups of a row.
    fn groups(&self) -> IntValue<'c> {
        let ir = self.ir;
        let up = ir.add(self.lanes(), ir.long(i64::from(self.vector) - 1));
        ir.as_int(ir.bin(super::Op::LShr, up.into(), ir.long(self.vector.trailing_zeros().into()).into()))
    }

    fn one_group(&self, number: IntValue<'c>, groups: IntValue<'c>, (once, each): (&[usize], &[usize])) {
        let ir = self.ir;
        let (row, group) = match self.kernel.rank {
            1 => (ir.long(0), number),
            _ => {
                let row = ir.as_int(ir.bin(super::Op::UDiv, number.into(), groups.into()));
                (row, ir.sub(number, ir.mul(row, groups)))
            }
        };
        let at = ir.mul(group, ir.long(self.vector.into()));
        let mut row = self.row(self.row_index(row));
        let pass = self.pass(&mut row, &[], each);
        let aligned = self.aligned(&row, &pass);
        self.group(&row, &pass, aligned, at, &[], &|_, _| vec![]);
        if !once.is_empty() {
            let first = ir.icmp(super::IP::EQ, at.into(), ir.long(0).into());
            self.entry.when(first, || once.iter().for_each(|&store| self.store_row_here(&mut row, store)));
        }
    }

    fn one_row(&self, number: IntValue<'c>, (once, each): (&[usize], &[usize])) {
        let ir = self.ir;
        let mut row = self.row(self.row_index(number));
        self.read_row(&mut row, &live(self.kernel));
        if !each.is_empty() {
            let pass = self.pass(&mut row, &[], each);
            let aligned = self.aligned(&row, &pass);
            self.entry.count(ir.long(0), self.lanes(), ir.long(self.vector.into()), &[], |at, _| {
                self.group(&row, &pass, aligned, at, &[], &|_, _| vec![])
            });
        }
        once.iter().for_each(|&store| self.store_row_here(&mut row, store));
    }

    /// Stores a per-row value once, at its index.
    pub(super) fn store_row_here(&self, row: &mut super::row::Row<'c>, store: usize) {
        self.store_site(row, store);
        self.store_row(row, store);
    }
}
