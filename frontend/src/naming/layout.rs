//! From the shape a checkpoint stores to the logical one: transposed, split into heads, and cut out of fused tensors.

use super::{Matrices, Piece, Qkv};
use crate::transformer::{Kind, Weight};
use pcc_ir::source::{TensorView, ViewError};

/// The stored tensor in the weight's logical shape; what is wrong with it otherwise.
pub(super) fn arrange(
    weight: &Weight,
    piece: Piece,
    matrices: Matrices,
    stored: TensorView,
) -> Result<TensorView, String> {
    let inputs = match weight.kind {
        Kind::Matrix { inputs } => inputs,
        Kind::Table => weight.shape.len(),
        Kind::Bias | Kind::Scale => 0,
    };
    let (ins, outs) = weight.shape.split_at_checked(inputs).unwrap_or((&weight.shape, &[]));
    let n_in = ins.iter().product();
    let shape = stored.shape();
    let outputs_first = matrices == Matrices::OutputsFirst;
    // The dim of the outputs, and the stored shape with so many of them.
    let axis = usize::from(weight.kind.is_matrix() && !outputs_first);
    let needed = |n_out: usize| match weight.kind {
        Kind::Table => weight.shape.clone(),
        Kind::Bias | Kind::Scale => vec![n_out],
        Kind::Matrix { .. } if outputs_first => vec![n_out, n_in],
        Kind::Matrix { .. } => vec![n_in, n_out],
    };
    let cut = Cut::of(piece, outs, shape.get(axis).copied().unwrap_or(0));
    if shape != needed(cut.outputs()) {
        return Err(format!("has shape {shape:?} where {:?} is needed", needed(cut.outputs())));
    }
    let view = match weight.kind {
        Kind::Table => Ok(stored),
        Kind::Bias | Kind::Scale => cut.take(stored, 0).and_then(|v| v.split(0, outs)),
        Kind::Matrix { .. } if outputs_first => {
            let order: Vec<usize> = (outs.len()..weight.shape.len()).chain(0..outs.len()).collect();
            cut.take(stored, 0)
                .and_then(|v| v.split(1, ins))
                .and_then(|v| v.split(0, outs))
                .and_then(|v| v.permute(&order))
        }
        Kind::Matrix { .. } => {
            cut.take(stored, 1).and_then(|v| v.split(1, outs)).and_then(|v| v.split(0, ins))
        }
    };
    view.map_err(|e: ViewError| format!("cannot be arranged: {}", e.why))
}

/// A piece of the outputs: seen as `[outer, blocks, unit]`, the blocks from `start` on, `len` of them.
struct Cut {
    outer: usize,
    blocks: usize,
    unit: usize,
    start: usize,
    len: usize,
}

impl Cut {
    /// The piece with logical outputs `outs` of a tensor that has `stored` outputs.
    fn of(piece: Piece, outs: &[usize], stored: usize) -> Self {
        let n_out: usize = outs.iter().product();
        let (which, per_head) = match piece {
            Piece::Whole => return Self { outer: 1, blocks: 1, unit: n_out, start: 0, len: 1 },
            Piece::Part(k, n) => return Self { outer: 1, blocks: n, unit: n_out, start: k, len: 1 },
            Piece::Stacked(which) => (which, false),
            Piece::PerHead(which) => (which, true),
        };
        let (kv, d) = (outs.first().copied().unwrap_or(1), outs.last().copied().unwrap_or(1));
        let rows = kv.saturating_mul(d).max(1);
        // Only the queries know their group; for keys and values it is what the tensor leaves for it.
        let group = match which {
            Qkv::Queries => n_out / rows,
            Qkv::Keys | Qkv::Values => (stored / rows).saturating_sub(2).max(1),
        };
        let (start, len) = match which {
            Qkv::Queries => (0, group),
            Qkv::Keys => (group, 1),
            Qkv::Values => (group + 1, 1),
        };
        let (outer, unit) = if per_head { (kv, d) } else { (1, rows) };
        Self { outer, blocks: group + 2, unit, start, len }
    }

    /// Outputs of the whole tensor.
    fn outputs(&self) -> usize {
        self.outer.saturating_mul(self.blocks).saturating_mul(self.unit)
    }

    /// The piece as one dim in place of the whole.
    fn take(&self, stored: TensorView, axis: usize) -> Result<TensorView, ViewError> {
        stored
            .split(axis, &[self.outer, self.blocks, self.unit])?
            .slice(axis + 1, self.start, self.len)?
            .merge(axis, 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored elements of an arranged `[inputs, ..outs]` or `[..outs]`, row-major.
    fn elements(view: &TensorView) -> Vec<usize> {
        let shape = view.shape();
        let index = |mut flat: usize| {
            let mut at = vec![0; shape.len()];
            for (i, &d) in at.iter_mut().zip(&shape).rev() {
                (*i, flat) = (flat % d, flat / d);
            }
            at
        };
        (0..shape.iter().product()).map(|i| view.element_at(&index(i)).unwrap()).collect()
    }

    fn bias(shape: &[usize], piece: Piece, stored: usize) -> Result<Vec<usize>, String> {
        let weight = Weight::new("b", shape, Kind::Bias);
        arrange(&weight, piece, Matrices::OutputsFirst, TensorView::whole("t", [stored]))
            .map(|v| elements(&v))
    }

    /// 2 kv heads, 3 queries each, heads of 2: rows of q|k|v, and of q q q k v for each kv head.
    #[test]
    fn fused_projections_come_apart() {
        let (q, kv) = ([2, 3, 2], [2, 2]);
        let stacked = |which, shape| bias(shape, Piece::Stacked(which), 20).unwrap();
        assert_eq!(stacked(Qkv::Queries, &q), (0..12).collect::<Vec<_>>());
        assert_eq!(stacked(Qkv::Keys, &kv), [12, 13, 14, 15]);
        assert_eq!(stacked(Qkv::Values, &kv), [16, 17, 18, 19]);
        let per_head = |which, shape| bias(shape, Piece::PerHead(which), 20).unwrap();
        assert_eq!(per_head(Qkv::Queries, &q), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
        assert_eq!(per_head(Qkv::Keys, &kv), [6, 7, 16, 17]);
        assert_eq!(per_head(Qkv::Values, &kv), [8, 9, 18, 19]);
    }

    #[test]
    fn matrices_come_apart_whichever_side_is_first() {
        // 2 heads of 1, 3 inputs; rows q k v q k v.
        let weight = Weight::new("w", [3, 2, 1], Kind::Matrix { inputs: 1 });
        let keys = Piece::PerHead(Qkv::Keys);
        let view = arrange(&weight, keys, Matrices::OutputsFirst, TensorView::whole("t", [6, 3])).unwrap();
        assert_eq!((view.shape(), elements(&view)), (vec![3, 2, 1], vec![3, 12, 4, 13, 5, 14]));
        let view = arrange(&weight, keys, Matrices::InputsFirst, TensorView::whole("t", [3, 6])).unwrap();
        assert_eq!(elements(&view), [1, 4, 7, 10, 13, 16]);
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let wrong = |shape: &[usize], piece, stored| bias(shape, piece, stored).unwrap_err();
        assert!(wrong(&[2, 3, 2], Piece::Stacked(Qkv::Queries), 16).contains("[20] is needed"));
        assert!(wrong(&[2, 2], Piece::PerHead(Qkv::Keys), 18).contains("[18] where [16]"));
        assert!(wrong(&[2, 2], Piece::Stacked(Qkv::Values), 0).contains("[12] is needed"));
        assert!(wrong(&[4], Piece::Part(1, 3), 8).contains("[12] is needed"));
    }
}
