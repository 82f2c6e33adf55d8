//! A pass over part of a row: groups as vectors where that is possible, else element by element.

use super::row::{Pass, Row};
use super::{Fused, IntValue, Op, V};
use pcc_ir::kernel::{Lane, Node, NodeId};

/// What becomes of the values of an element: the loop's values before and after.
pub(super) type Fold<'f, 'c> = &'f dyn Fn(&[V<'c>], &[Option<V<'c>>]) -> Vec<V<'c>>;

impl<'c> Fused<'_, 'c> {
    /// Runs the pass over the elements of the group from `at` on that exist, and folds their values, in order. `aligned` is what
    /// [`Fused::aligned`] says.
    pub(super) fn group(
        &self,
        row: &Row<'c>,
        pass: &Pass,
        aligned: V<'c>,
        at: IntValue<'c>,
        state: &[V<'c>],
        fold: Fold<'_, 'c>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let end = ir.add(at, ir.long(self.vector.into()));
        let whole = ir.icmp(super::IP::SLE, end.into(), self.lanes().into());
        let vector = || self.whole_groups(row, pass, &[at], state, fold);
        let single = || {
            let end = self.least(end, self.lanes());
            self.entry
                .count(at, end, ir.long(1), state, |at, state| fold(state, &self.element(row, pass, at)))
        };
        self.entry.choose(ir.bin(Op::And, whole, aligned), vector, single)
    }

    /// Works out and stores one element.
    fn element(&self, row: &Row<'c>, pass: &Pass, at: IntValue<'c>) -> Vec<Option<V<'c>>> {
        let mut values = row.values.clone();
        for &node in &pass.nodes {
            values[node as usize] = Some(self.element_node(row, &values, node, at));
        }
        for &store in &pass.stores {
            self.store_single(row, &values, store, at);
        }
        values
    }

    fn element_node(&self, row: &Row<'c>, values: &[Option<V<'c>>], node: NodeId, at: IntValue<'c>) -> V<'c> {
        match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load_element(row, access, None, at),
            Node::LoadAt { access, index, stride, limit } => match row.load_sites[node as usize] {
                Some(site) => self.load_element(row, access, Some(site), at),
                None => {
                    let index = values[index as usize].unwrap_or(self.ir.ci(0, 0));
                    self.load_indexed(row, access, index, (stride, limit), at)
                }
            },
            Node::Index(_) => self.ir.cast(Op::Trunc, at.into(), self.ir.int(32, 0)),
            _ => self.formula(node, values),
        }
    }

    fn store_single(&self, row: &Row<'c>, values: &[Option<V<'c>>], store: usize, at: IntValue<'c>) {
        let to = &self.kernel.stores[store];
        let value = values[to.node as usize].unwrap_or(self.ir.cf(0, 0.0));
        let index = to.at.and_then(|at| values[at.index as usize]);
        self.store_element(row, store, value, index, at);
    }

    /// The same for two groups `step` elements apart: where both are whole, all loads of both come first.
    pub(super) fn two_groups(
        &self,
        row: &Row<'c>,
        pass: &Pass,
        aligned: V<'c>,
        (at, step): (IntValue<'c>, IntValue<'c>),
        state: &[V<'c>],
        fold: Fold<'_, 'c>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let second = ir.add(at, step);
        let end = ir.add(second, ir.long(self.vector.into()));
        let whole = ir.icmp(super::IP::SLE, end.into(), self.lanes().into());
        let together = || self.whole_groups(row, pass, &[at, second], state, fold);
        let apart = || {
            self.entry
                .count(at, end, step, state, |at, state| self.group(row, pass, aligned, at, state, fold))
        };
        self.entry.choose(ir.bin(Op::And, whole, aligned), together, apart)
    }

    /// Works out, stores and folds groups that exist whole, at aligned addresses.
    fn whole_groups(
        &self,
        row: &Row<'c>,
        pass: &Pass,
        groups: &[IntValue<'c>],
        state: &[V<'c>],
        fold: Fold<'_, 'c>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let places: Vec<IntValue> = groups
            .iter()
            .flat_map(|&at| (0..self.vector).map(move |i| ir.add(at, ir.long(i.into()))))
            .collect();
        let mut values = vec![row.values.clone(); places.len()];
        for &node in &pass.nodes {
            let site = row.load_sites[node as usize];
            let vector = match self.kernel.nodes[node as usize] {
                Node::Load(access) => Some(access),
                Node::LoadAt { access, .. } if site.is_some() => Some(access),
                _ => None,
            };
            let results: Vec<V> = match vector.filter(|&a| self.lane(a) == Lane::Unit) {
                Some(access) => {
                    groups.iter().flat_map(|&at| self.load_group(row, access, site, at)).collect()
                }
                None => {
                    let each = values.iter().zip(&places);
                    each.map(|(values, &at)| self.element_node(row, values, node, at)).collect()
                }
            };
            values.iter_mut().zip(results).for_each(|(values, v)| values[node as usize] = Some(v));
        }
        for &store in &pass.stores {
            let access = self.kernel.stores[store].access;
            if self.lane(access) == Lane::Unit && self.store_base(row, store).is_some() {
                let node = self.kernel.stores[store].node as usize;
                for (values, &at) in values.chunks(self.vector as usize).zip(groups) {
                    let group: Vec<V> = values.iter().map(|v| v[node].unwrap_or(ir.cf(0, 0.0))).collect();
                    self.store_group(row, store, &group, at);
                }
            } else {
                values.iter().zip(&places).for_each(|(v, &at)| self.store_single(row, v, store, at));
            }
        }
        values.iter().fold(state.to_vec(), |state, values| fold(&state, values))
    }

    /// Stores to accesses that are written once a row, and the others.
    pub(super) fn stores_by_kind(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.kernel.stores.len())
            .partition(|&i| self.lane(self.kernel.stores[i].access) == Lane::Broadcast)
    }
}
