//! Quantised tensors that stay quantised: groups of neighbours along a stored row share a scale and an offset.

use super::view::{Segment, TensorView};
use crate::storage::PANEL;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Columns that lie side by side in a panel of blocks.
const WIDTH: usize = PANEL as usize;

/// Form of the groups: the value of an element is `scale * code + offset`, two roundings to f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockFormat {
    /// Neighbours that share a scale: 16 or 32. Rows are whole groups.
    pub group: u32,
    /// Bits a code takes in memory: 4 or 8.
    pub bits: u32,
    /// The least code: codes of 4 bits are `low .. low + 16`, those of 8 bits are an i8 and this is -128.
    pub low: i8,
    /// Whether groups have an offset; it is zero otherwise.
    pub offsets: bool,
    /// Whether f16 holds scales and offsets exactly; they are kept in f32 otherwise.
    pub half: bool,
}

/// The groups that a device's slice touches, the same in every stored row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpan {
    /// Elements of the first group before the slice.
    pub phase: usize,
    /// Number of groups.
    pub groups: usize,
}

/// Where codes, scales and offsets of whole groups go, rows one after another.
#[derive(Debug)]
pub struct BlockRows<'a> {
    /// `rows * groups * group` codes.
    pub codes: &'a mut [i8],
    /// `rows * groups` scales.
    pub scales: &'a mut [f32],
    /// As many offsets; zero where the format has none.
    pub offsets: &'a mut [f32],
}

impl BlockFormat {
    /// Checks what an edited artifact could have broken, for a tensor of this stored shape.
    pub fn check(&self, file_shape: &[usize]) -> Result<(), String> {
        let codes = match self.bits {
            4 => (-16..=0).contains(&self.low),
            8 => self.low == i8::MIN,
            _ => false,
        };
        if !codes || !(self.group == 16 || self.group == 32) {
            return Err(format!(
                "there are no groups of {} codes of {} bits from {}",
                self.group, self.bits, self.low
            ));
        }
        match file_shape.last() {
            Some(row) if row.is_multiple_of(self.group as usize) => Ok(()),
            _ => Err(format!("the rows of {file_shape:?} are not whole groups of {}", self.group)),
        }
    }

    /// Bytes of a scale, or of an offset.
    pub fn scale_bytes(&self) -> usize {
        if self.half { 2 } else { 4 }
    }

    /// Bytes of scales and offsets of one group of a panel, before the codes.
    pub fn head_bytes(&self) -> usize {
        WIDTH * self.scale_bytes() * (1 + usize::from(self.offsets))
    }

    /// Bytes of one group of the 32 columns of a panel.
    pub fn group_bytes(&self) -> usize {
        self.head_bytes() + WIDTH * (self.group * self.bits) as usize / 8
    }
}

impl TensorView {
    /// The groups under a device's slice, where dims `k`, major to minor, run along stored rows and all others across them.
    ///
    /// `slice` has the logical indices per dim, `local` the extents of the device's buffer, padding included. `None` when the
    /// tensor is not quantised, or the slice, as the buffer counts its `k` dims, is no run of neighbours.
    pub fn group_span(&self, k: &[usize], slice: &[Range<usize>], local: &[usize]) -> Option<GroupSpan> {
        let group = self.blocks?.group as usize;
        let row = self.file_shape.last().copied().filter(|&n| n > 0)?;
        if slice.len() != self.dims.len() || local.len() != self.dims.len() {
            return None;
        }
        let across = self.dims.iter().enumerate().filter(|(d, _)| !k.contains(d)).flat_map(|(_, s)| s);
        if across.into_iter().any(|s| s.extent > 1 && !s.stride.is_multiple_of(row)) {
            return None;
        }
        let mut first = self.offset % row;
        let (mut length, mut stride, mut whole) = (1usize, 1usize, true);
        for &d in k.iter().rev() {
            let (dim, range, &local) = (self.dims.get(d)?, slice.get(d)?, local.get(d)?);
            let extent = run(dim, stride)?;
            // Beside a dim that is not whole, those outside must be single indices, in the buffer too.
            if !whole && local != 1 {
                return None;
            }
            first = first.checked_add(range.start.checked_mul(stride)?)?;
            length = length.checked_mul(range.len())?;
            stride = stride.checked_mul(extent)?;
            whole &= range.len() == extent && local == extent;
        }
        let end = first.checked_add(length).filter(|&end| end <= row)?;
        let (start, end) = (first / group, end.div_ceil(group));
        Some(GroupSpan { phase: first % group, groups: end.saturating_sub(start) })
    }
}

/// Extent of a dim whose elements are `stride` apart.
fn run(dim: &[Segment], stride: usize) -> Option<usize> {
    let mut expected = stride;
    for s in dim.iter().rev().filter(|s| s.extent != 1) {
        if s.stride != expected {
            return None;
        }
        expected = expected.checked_mul(s.extent)?;
    }
    Some(expected / stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantised(shape: [usize; 2], group: u32) -> TensorView {
        let format = BlockFormat { group, bits: 4, low: 0, offsets: true, half: true };
        TensorView { blocks: Some(format), ..TensorView::whole("w", shape) }
    }

    fn span(phase: usize, groups: usize) -> Option<GroupSpan> {
        Some(GroupSpan { phase, groups })
    }

    #[test]
    fn a_linear_layer_is_cut_along_its_inputs() {
        let w = quantised([6, 128], 32).transpose().unwrap();
        assert_eq!(w.group_span(&[0], &[0..128, 0..6], &[128, 6]), span(0, 4));
        assert_eq!(w.group_span(&[0], &[64..128, 2..4], &[64, 2]), span(0, 2));
        // 43 of 128 inputs a device: blocks are cut.
        assert_eq!(w.group_span(&[0], &[43..86, 0..6], &[43, 6]), span(11, 2));
        assert_eq!(w.group_span(&[0], &[86..128, 0..6], &[43, 6]), span(22, 2));
        // Outputs do not run along rows.
        assert_eq!(w.group_span(&[1], &[0..128, 0..6], &[128, 6]), None);
        assert_eq!(TensorView::whole("w", [6, 128]).group_span(&[1], &[0..6, 0..128], &[6, 128]), None);
    }

    #[test]
    fn heads_are_a_run_while_only_the_outermost_is_cut() {
        // [hidden 4, kv 2 * group 2 * d 32] as [kv, group, d, hidden].
        let w = quantised([4, 128], 32).split(1, &[2, 2, 32]).unwrap().permute(&[1, 2, 3, 0]).unwrap();
        let k = [0, 1, 2];
        assert_eq!(w.group_span(&k, &[0..2, 0..2, 0..32, 0..4], &[2, 2, 32, 4]), span(0, 4));
        assert_eq!(w.group_span(&k, &[1..2, 0..2, 0..32, 0..4], &[1, 2, 32, 4]), span(0, 2));
        assert_eq!(w.group_span(&k, &[1..2, 1..2, 0..32, 0..4], &[1, 1, 32, 4]), span(0, 1));
        assert_eq!(w.group_span(&k, &[0..2, 1..2, 0..32, 0..4], &[2, 1, 32, 4]), None);
        assert_eq!(w.group_span(&k, &[0..1, 1..2, 0..32, 0..4], &[2, 1, 32, 4]), None, "padding between");
        assert_eq!(
            w.group_span(&[1, 0, 2], &[0..2, 0..2, 0..32, 0..4], &[2, 2, 32, 4]),
            None,
            "another order"
        );
    }

    #[test]
    fn part_of_a_row_and_permuted_rows() {
        // The middle third of a fused row, and rows in another order than stored.
        let w = quantised([8, 96], 16).slice(1, 40, 32).unwrap().undo_rope_interleave(0, 2).unwrap();
        assert_eq!(w.group_span(&[1], &[0..8, 0..32], &[8, 32]), span(8, 3));
        assert_eq!(w.group_span(&[1], &[3..5, 10..20], &[2, 10]), span(2, 1));
        // Columns in another order are no run.
        let w = quantised([4, 96], 16).undo_rope_interleave(1, 1).unwrap();
        assert_eq!(w.group_span(&[1], &[0..4, 0..96], &[4, 96]), None);
    }

    #[test]
    fn edited_formats_are_refused() {
        let good = BlockFormat { group: 16, bits: 8, low: -128, offsets: false, half: false };
        assert!(good.check(&[2, 48]).is_ok() && good.check(&[2, 40]).is_err() && good.check(&[]).is_err());
        assert_eq!((good.head_bytes(), good.group_bytes()), (128, 128 + 512));
        for bad in [
            BlockFormat { group: 0, ..good },
            BlockFormat { group: 64, ..good },
            BlockFormat { bits: 0, ..good },
            BlockFormat { bits: 16, ..good },
            BlockFormat { low: 0, ..good },
            BlockFormat { bits: 4, low: -17, ..good },
            BlockFormat { bits: 4, low: 1, ..good },
        ] {
            assert!(bad.check(&[64]).is_err(), "{bad:?}");
        }
    }
}
