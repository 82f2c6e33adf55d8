//! Reads a slice of an affine view: only the elements needed, in long runs of the file, written row-major.

use super::Quantised;
use super::element::ElementType;
use pcc_ir::source::{BlockRows, Segment, TensorView};
use std::ops::Range;

/// Rows and columns of the tile a transposed read goes through: 16 KiB, inside the first-level cache, and each
/// write of a tile row fills a cache line.
const TILE_ROWS: usize = 16;
const TILE_COLS: usize = 256;

/// A stretch of a logical dim whose stored elements are evenly spaced.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    /// Stored elements before the first one.
    first: usize,
    stride: usize,
    len: usize,
    /// Position of the first one in the slice, along the dim.
    at: usize,
}

/// One loop of a copy: `len` steps of `from` stored elements and `to` elements of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loop {
    len: usize,
    from: usize,
    to: usize,
}

/// Reads `slice` of `view` from the tensor's bytes into `out`, row-major.
///
/// The caller has checked the view, the slice and the length of `out`; `None` means that an element lies outside
/// `data` all the same, or that the type is not decoded.
pub(super) fn read_view(
    element: &ElementType,
    data: &[u8],
    view: &TensorView,
    slice: &[Range<usize>],
    out: &mut [f32],
) -> Option<()> {
    if out.is_empty() {
        return Some(());
    }
    let runs: Vec<Vec<Run>> = view.dims.iter().zip(slice).map(|(s, r)| runs(s, r.clone())).collect();
    let mut strides = vec![1usize; slice.len()];
    for d in (1..slice.len()).rev() {
        strides[d - 1] = strides[d] * slice[d].len();
    }
    // An odometer over one run of each dim; nearly always there is just one combination.
    let mut chosen = vec![0usize; runs.len()];
    loop {
        let (mut from, mut to, mut loops) = (view.offset, 0, Vec::with_capacity(runs.len()));
        for ((runs, &c), &stride) in runs.iter().zip(&chosen).zip(&strides) {
            let run = runs.get(c)?;
            from += run.first;
            to += run.at * stride;
            add_loop(&mut loops, Loop { len: run.len, from: run.stride, to: stride });
        }
        copy(element, data, from, &loops, out.get_mut(to..)?)?;
        if !advance(&mut chosen, |d| runs[d].len()) {
            return Some(());
        }
    }
}

/// Reads the groups under rows of a slice whose dims `k` run along the stored rows. The caller has checked the view and the slice;
/// `None` means that a row lies outside it, that the slice is no run, or that `out` has another length.
pub(super) fn read_blocks(
    kind: Quantised,
    data: &[u8],
    view: &TensorView,
    k: &[usize],
    slice: &[Range<usize>],
    rows: Range<usize>,
    out: BlockRows<'_>,
) -> Option<()> {
    let lens: Vec<usize> = slice.iter().map(Range::len).collect();
    let span = view.group_span(k, slice, &lens)?;
    let (group, groups) = (kind.group(), span.groups);
    let lengths = [out.codes.len(), out.scales.len(), out.offsets.len()];
    if lengths != [groups * group, groups, groups].map(|n| n * rows.len()) {
        return None;
    }
    if groups == 0 {
        return Some(());
    }
    let lines = out.codes.chunks_exact_mut(groups * group).zip(out.scales.chunks_exact_mut(groups));
    for ((row, (codes, scales)), offsets) in rows.zip(lines).zip(out.offsets.chunks_exact_mut(groups)) {
        let mut index: Vec<usize> = slice.iter().map(|r| r.start).collect();
        let mut rest = row;
        for d in (0..slice.len()).rev().filter(|d| !k.contains(d)) {
            index[d] += rest.checked_rem(lens[d])?;
            rest /= lens[d];
        }
        if rest > 0 {
            return None;
        }
        let start = view.element_at(&index)?.checked_sub(span.phase)?;
        kind.read_groups(data, start, &mut BlockRows { codes, scales, offsets })?;
    }
    Some(())
}

/// Steps an odometer whose digit `d` counts to `extent(d)`, last digit fastest; `false` after the last state.
fn advance(digits: &mut [usize], extent: impl Fn(usize) -> usize) -> bool {
    for d in (0..digits.len()).rev() {
        digits[d] += 1;
        if digits[d] < extent(d) {
            return true;
        }
        digits[d] = 0;
    }
    false
}

/// Cuts a range of a logical dim at the wraps of its innermost segment.
fn runs(segments: &[Segment], range: Range<usize>) -> Vec<Run> {
    let (inner, outer) = match segments.split_last() {
        Some((inner, outer)) => (*inner, outer),
        None => (Segment { extent: 1, stride: 0 }, segments),
    };
    let mut out = Vec::new();
    let mut index = range.start;
    while index < range.end {
        let digit = index % inner.extent;
        let len = (inner.extent - digit).min(range.end - index);
        let (mut first, mut rest) = (digit * inner.stride, index / inner.extent);
        for s in outer.iter().rev() {
            first += rest % s.extent * s.stride;
            rest /= s.extent;
        }
        out.push(Run { first, stride: inner.stride, len, at: index - range.start });
        index += len;
    }
    out
}

/// Appends a loop, dropping loops of one step and joining it with the one outside when the two walk as one.
fn add_loop(loops: &mut Vec<Loop>, new: Loop) {
    if new.len == 1 {
        return;
    }
    match loops.last_mut() {
        Some(outer) if outer.from == new.from * new.len && outer.to == new.to * new.len => {
            *outer = Loop { len: outer.len * new.len, ..new };
        }
        _ => loops.push(new),
    }
}

/// Copies a nest of loops. `out` starts at the output of index zero.
fn copy(element: &ElementType, data: &[u8], from: usize, loops: &[Loop], out: &mut [f32]) -> Option<()> {
    // The row runs along the file, so that whole blocks are decoded; the column runs along the output.
    let row = (0..loops.len()).min_by_key(|&i| loops[i].from);
    let column = (0..loops.len()).min_by_key(|&i| loops[i].to);
    let (Some(row), Some(column)) = (row, column) else {
        return element.decode(data, from, 1, out.get_mut(..1)?);
    };
    let others: Vec<Loop> = (0..loops.len()).filter(|&i| i != row && i != column).map(|i| loops[i]).collect();
    let mut digits = vec![0usize; others.len()];
    loop {
        let (mut start, mut to) = (from, 0);
        for (l, &i) in others.iter().zip(&digits) {
            start += i * l.from;
            to += i * l.to;
        }
        let out = out.get_mut(to..)?;
        if row != column {
            copy_tiled(element, data, start, loops[row], loops[column], out)?;
        } else if loops[row].to == 1 {
            element.decode(data, start, loops[row].from, out.get_mut(..loops[row].len)?)?;
        } else {
            copy_tiled(element, data, start, loops[row], Loop { len: 1, from: 0, to: 0 }, out)?;
        }
        if !advance(&mut digits, |d| others[d].len) {
            return Some(());
        }
    }
}

/// Copies the two loops `row` (short steps in the file) and `column` (short steps in the output) tile by tile.
fn copy_tiled(
    element: &ElementType,
    data: &[u8],
    from: usize,
    row: Loop,
    column: Loop,
    out: &mut [f32],
) -> Option<()> {
    let mut tile = [0f32; TILE_ROWS * TILE_COLS];
    for c0 in (0..column.len).step_by(TILE_ROWS) {
        let rows = TILE_ROWS.min(column.len - c0);
        for r0 in (0..row.len).step_by(TILE_COLS) {
            let cols = TILE_COLS.min(row.len - r0);
            for (c, line) in tile.chunks_exact_mut(TILE_COLS).take(rows).enumerate() {
                let start = from + (c0 + c) * column.from + r0 * row.from;
                element.decode(data, start, row.from, &mut line[..cols])?;
            }
            for r in 0..cols {
                let to = out.get_mut((r0 + r) * row.to + c0 * column.to..)?;
                for c in 0..rows {
                    *to.get_mut(c * column.to)? = tile[c * TILE_COLS + r];
                }
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads with element `i` of the stored tensor holding the value `i`, and compares with the definition.
    fn check(view: &TensorView, slice: &[Range<usize>]) {
        let stored: usize = view.file_shape.iter().product();
        let data: Vec<u8> = (0..stored).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let shape: Vec<usize> = slice.iter().map(|r| r.len()).collect();
        let mut out = vec![-1.0; shape.iter().product()];
        read_view(&ElementType::F32, &data, view, slice, &mut out).unwrap();
        for (flat, &value) in out.iter().enumerate() {
            let mut rest = flat;
            let mut index = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                index[d] = slice[d].start + rest % shape[d];
                rest /= shape[d];
            }
            assert_eq!(value, view.element_at(&index).unwrap() as f32, "{view:?} {slice:?} {index:?}");
        }
    }

    #[test]
    fn scalars_vectors_and_empty_slices() {
        check(&TensorView::whole("s", []), &[]);
        check(&TensorView::whole("v", [7]), std::slice::from_ref(&(2..5)));
        check(&TensorView::whole("v", [7, 3]), &[3..3, 0..3]);
    }

    #[test]
    fn linear_layer_larger_than_a_tile() {
        let view =
            TensorView::whole("q", [60, 300]).split(0, &[3, 2, 10]).unwrap().permute(&[3, 0, 1, 2]).unwrap();
        check(&view, &[0..300, 0..3, 0..2, 0..10]);
        check(&view, &[17..290, 1..2, 0..2, 3..9]);
    }

    #[test]
    fn rope_rows_in_both_directions() {
        let rows = TensorView::whole("q", [24, 10]).undo_rope_interleave(0, 3).unwrap();
        check(&rows, &[0..24, 0..10]);
        check(&rows, &[3..21, 2..9]);
        check(&rows.transpose().unwrap(), &[2..9, 3..21]);
        check(
            &TensorView::whole("b", [24]).undo_rope_interleave(0, 3).unwrap(),
            std::slice::from_ref(&(5..23)),
        );
    }

    #[test]
    fn repeated_elements() {
        let mut view = TensorView::whole("b", [5]);
        view.dims.insert(0, vec![Segment { extent: 3, stride: 0 }]);
        check(&view, &[0..3, 1..5]);
        check(&view.permute(&[1, 0]).unwrap(), &[1..5, 1..3]);
    }

    #[test]
    fn outside_is_none() {
        let view = TensorView::whole("w", [4, 4]);
        let mut out = [0.0; 16];
        assert!(read_view(&ElementType::F32, &[0; 60], &view, &[0..4, 0..4], &mut out).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Any splits, merges, orders and slices of a view, then any slice of the result.
        #[test]
        fn any_view(
            shape in prop::collection::vec(1usize..7, 1..4),
            steps in prop::collection::vec((0usize..4, any::<u32>(), any::<u32>()), 0..6),
            cuts in prop::collection::vec((any::<u32>(), any::<u32>()), 8),
        ) {
            let mut view = TensorView::whole("w", shape);
            for (kind, a, b) in steps {
                let (a, b) = (a as usize, b as usize);
                let dim = a % view.dims.len();
                let extent = view.shape()[dim];
                let next = match kind {
                    0 => view.clone().split(dim, &[extent / (1 + b % extent), 1 + b % extent]),
                    1 => view.clone().merge(dim, 1 + b % 2),
                    2 => {
                        let mut order: Vec<usize> = (0..view.dims.len()).collect();
                        order.swap(dim, b % view.dims.len());
                        view.clone().permute(&order)
                    }
                    _ => view.clone().slice(dim, b % extent, 1 + (b / 7) % extent),
                };
                // A step that does not fit the view is refused; the view stays.
                if let Ok(next) = next {
                    prop_assert!(next.check().is_ok());
                    view = next;
                }
            }
            let slice: Vec<Range<usize>> = view.shape().iter().zip(&cuts).map(|(&d, &(a, b))| {
                let start = a as usize % d;
                start..start + 1 + b as usize % (d - start)
            }).collect();
            if slice.len() == view.dims.len() {
                check(&view, &slice);
            }
        }
    }
}
