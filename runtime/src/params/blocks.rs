//! Loads quantised parameters as they are stored, panel by panel.

use crate::layout::ParamSlice;
use crate::memory::Window;
use crate::product::blocks::{HEADER, pack};
use crate::product::panels::WIDTH;
use pcc_ir::Diagnostic;
use pcc_ir::program::LocalParam;
use pcc_ir::source::{BlockRows, ReadParams, Values};
use pcc_ir::storage::{BlockMatrix, Storage};
use std::ops::Range;

/// Columns of a slice and where they go: `(column of the panel, row of the slice)`.
type Columns = Vec<(usize, usize)>;

/// Number of panels, and elements of each.
pub(super) fn panels(blocks: &BlockMatrix) -> (usize, usize) {
    ((blocks.matrix.n as usize).div_ceil(WIDTH), (blocks.matrix.k as usize).saturating_mul(WIDTH))
}

/// Loads some panels; columns that are padding stay zero, as the window is.
pub(super) fn load_panels(
    param: &LocalParam,
    slice: &ParamSlice,
    panels: Range<usize>,
    window: &Window<'_>,
    weights: &dyn ReadParams,
) -> Result<(), Diagnostic> {
    let local = param.sharding.local_shape(&param.ty.shape);
    let (Storage::Blocks { k, n, .. }, Some(blocks)) = (&param.storage, param.storage.blocks(&local)) else {
        return Err(Diagnostic::internal("a parameter that is not quantised is loaded in blocks"));
    };
    let ranges: Vec<Range<usize>> = slice.spans.iter().map(|&(start, len)| start..start + len).collect();
    if ranges.iter().any(Range::is_empty) {
        return Ok(());
    }
    let Values::Tensor(view) = &param.source.values else {
        return Err(Diagnostic::internal("a parameter without a tensor is loaded in blocks"));
    };
    let span = view.group_span(k, &ranges, &local).filter(|s| s.groups as u64 <= blocks.groups);
    let Some(span) = span else {
        return Err(
            Diagnostic::input("the artifact is damaged").why("a slice does not fit its quantised blocks")
        );
    };
    if panels.start == 0 {
        let rows: usize = k.iter().map(|&d| ranges[d].len()).product();
        window.write(0, &(span.phase as u32).to_le_bytes());
        window.write(4, &(rows as u32).to_le_bytes());
    }
    let bytes = blocks.groups as usize * blocks.format.group_bytes();
    let group = blocks.format.group as usize;
    let mut codes = vec![0i8; WIDTH * span.groups * group];
    let mut scales = vec![0f32; WIDTH * span.groups];
    let mut offsets = scales.clone();
    let mut packed = vec![0u8; bytes];
    for panel in panels {
        let columns = columns_of(panel, n, &ranges, &local);
        let mut done = 0;
        while let Some(&(_, first)) = columns.get(done) {
            let count = columns[done..].iter().enumerate().take_while(|(i, c)| c.1 == first + i).count();
            let at = done * span.groups..(done + count) * span.groups;
            let out = BlockRows {
                codes: &mut codes[at.start * group..at.end * group],
                scales: &mut scales[at.clone()],
                offsets: &mut offsets[at],
            };
            weights.read_param_blocks(&param.source, k, &ranges, first..first + count, out)?;
            done += count;
        }
        packed.fill(0);
        let rows = BlockRows { codes: &mut codes, scales: &mut scales, offsets: &mut offsets };
        let places = columns.iter().enumerate().map(|(i, &(column, _))| (column, i));
        pack(&blocks.format, span.groups, places, &rows, &mut packed);
        window.write(HEADER + panel * bytes, &packed);
    }
    Ok(())
}

/// The columns of a panel that are no padding. Columns run row-major over dims `n` of the buffer, rows over those of the slice.
fn columns_of(panel: usize, n: &[usize], slice: &[Range<usize>], local: &[usize]) -> Columns {
    let column = |place: usize| {
        let (mut rest, mut row, mut stride) = (panel * WIDTH + place, 0, 1);
        for &d in n.iter().rev() {
            let index = rest % local[d];
            if index >= slice[d].len() {
                return None;
            }
            row += index * stride;
            stride *= slice[d].len();
            rest /= local[d];
        }
        (rest == 0).then_some((place, row))
    };
    (0..WIDTH).filter_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_inside_a_panel_has_no_rows() {
        // A buffer of 3 x 20 columns, of which 2 x 15 are there: columns 0..15 and 20..35.
        let columns = |panel| columns_of(panel, &[0, 2], &[4..6, 0..8, 5..20], &[3, 8, 20]);
        let first: Columns = (0..15).map(|i| (i, i)).chain((20..32).map(|i| (i, i - 5))).collect();
        assert_eq!(columns(0), first);
        assert_eq!(columns(1), [(0, 27), (1, 28), (2, 29)]);
        assert_eq!(columns(2), []);
    }
}
