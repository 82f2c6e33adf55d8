//! Values of nodes at a row and for a block of elements.

use super::ir::{Op, V, Width};
use super::kernel::Emitter;
use super::row::{Block, Row};
use pcc_ir::kernel::{Node, NodeId};

impl<'c> Emitter<'_, 'c> {
    /// A per-row node; its operands are in `row.values`.
    pub(super) fn row_node(&self, row: &mut Row<'c>, node: NodeId) -> V<'c> {
        match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load_row(row, access, None),
            Node::LoadAt { access, index, stride, limit } => {
                let site = self.site(row, access, index, stride, limit);
                self.load_row(row, access, Some(site))
            }
            Node::Index(dim) => {
                let index = row.index[dim as usize];
                self.ir.cast(Op::Trunc, index.into(), self.ir.int(32, 0))
            }
            _ => self.formula(node, 0, &row.values),
        }
    }

    /// A per-element node for a block; its operands are in `values`.
    pub(super) fn lane_node(
        &self,
        row: &Row<'c>,
        values: &[Option<V<'c>>],
        node: NodeId,
        block: Block<'c>,
    ) -> V<'c> {
        let (ir, w) = (self.ir, self.w);
        match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load_lanes(row, access, None, block),
            Node::LoadAt { access, index, stride, limit } => match row.load_sites[node as usize] {
                Some(site) => self.load_lanes(row, access, Some(site), block),
                None => {
                    let index = values[index as usize].unwrap_or(ir.ci(w, 0));
                    self.load_indexed(row, access, index, (stride, limit), block)
                }
            },
            Node::Index(_) => {
                let first = ir.cast(Op::Trunc, block.at.into(), ir.int(32, 0));
                ir.bin(Op::Add, ir.splat(first, w), ir.iota(32, w))
            }
            _ => self.formula(node, w, values),
        }
    }

    /// A node that is neither a load nor an index.
    fn formula(&self, node: NodeId, w: Width, values: &[Option<V<'c>>]) -> V<'c> {
        self.ir.formula((self.kernel, self.info), &self.scalars, node, w, values)
    }
}
