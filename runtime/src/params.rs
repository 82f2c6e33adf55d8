//! Loads parameters and constants into the mapping: every distinct slice once, in parallel.

mod blocks;

use crate::layout::{Layout, ParamSlice};
use crate::memory::{Mapping, Window, encode};
use crate::product::load::pack_piece;
use crate::product::panels::Place;
use pcc_ir::program::{ConstantData, LocalParam, Program, Storage};
use pcc_ir::source::ReadParams;
use pcc_ir::{DType, Diagnostic};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Told after each piece: bytes done, bytes in all. Called by several threads.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Elements read at a time, about: pieces are spread over threads.
const PIECE: usize = 1 << 20;

/// Fills every slice of the layout from `weights`; padding stays zero.
///
/// # Errors
/// What the reader reports, with the parameter's name.
pub(crate) fn load(
    program: &Program,
    layout: &Layout,
    memory: &Mapping,
    weights: &dyn ReadParams,
    progress: Progress<'_>,
) -> Result<(), Diagnostic> {
    for (index, constant) in program.constants.iter().enumerate() {
        let window = memory.window(layout.constant(index), constant.ty.bytes());
        store_constant(constant, &window);
    }
    let pieces: Vec<Piece> = layout.slices.iter().flat_map(|slice| pieces(program, slice)).collect();
    let total = pieces.iter().map(|p| p.bytes).sum();
    let done = AtomicU64::new(0);
    pieces.par_iter().try_for_each(|Piece { slice, range, bytes }| {
        let param = &program.params[slice.param];
        let window = memory.window(slice.at.offset, slice.at.len);
        let loaded = match param.storage {
            Storage::Blocks { .. } => blocks::load_panels(param, slice, range.clone(), &window, weights),
            Storage::Dense | Storage::Panels { .. } => {
                load_piece(param, slice, range.clone(), window, weights)
            }
        };
        loaded
            .map_err(|d| if d.place.is_none() { d.at(format!("parameter `{}`", param.name)) } else { d })?;
        progress(done.fetch_add(*bytes, Ordering::Relaxed) + bytes, total);
        Ok(())
    })
}

/// Fills a window with one slice, which begins at its start; padding stays zero.
///
/// # Errors
/// As [`load`].
#[cfg(feature = "cuda")]
pub(crate) fn load_slice(
    program: &Program,
    slice: &ParamSlice,
    window: &Window<'_>,
    weights: &dyn ReadParams,
) -> Result<(), Diagnostic> {
    let param = &program.params[slice.param];
    let named =
        |d: Diagnostic| if d.place.is_none() { d.at(format!("parameter `{}`", param.name)) } else { d };
    let pieces = pieces(program, slice);
    pieces.par_iter().try_for_each(|p| {
        load_piece(param, slice, p.range.clone(), window.part(0, window.len()), weights).map_err(named)
    })
}

/// A constant as it lies in memory.
#[cfg(feature = "cuda")]
pub(crate) fn constant_bytes(constant: &ConstantData) -> Result<Vec<u8>, Diagnostic> {
    let memory = Mapping::new(constant.ty.bytes())?;
    let window = memory.window(0, constant.ty.bytes());
    store_constant(constant, &window);
    let mut bytes = vec![0; constant.ty.bytes()];
    window.read(0, &mut bytes);
    Ok(bytes)
}

fn store_constant(constant: &ConstantData, window: &Window<'_>) {
    for (i, &value) in constant.data.iter().enumerate() {
        // The window has an element for each value: validation compared their number with the shape.
        let _ = window.store(constant.ty.dtype, i, value);
    }
}

/// A part of a slice: indices of its first dim, or panels where it is quantised.
struct Piece<'a> {
    slice: &'a ParamSlice,
    range: Range<usize>,
    /// What it is worth in the progress.
    bytes: u64,
}

/// Elements of one index of the first dim, padding left out.
fn row_elements(slice: &ParamSlice) -> usize {
    slice.spans.iter().skip(1).map(|s| s.1).product()
}

/// Cuts a slice; a scalar is one piece.
fn pieces<'a>(program: &Program, slice: &'a ParamSlice) -> Vec<Piece<'a>> {
    let param = &program.params[slice.param];
    let blocks = param.storage.blocks(&param.sharding.local_shape(&param.ty.shape));
    let (count, each) = match blocks {
        Some(blocks) => blocks::panels(&blocks),
        None => (slice.spans.first().map_or(1, |s| s.1), row_elements(slice)),
    };
    let step = (PIECE / each.max(1)).max(1);
    let piece = |start: usize| {
        let range = start..(start + step).min(count);
        Piece { slice, bytes: range.len() as u64 * each as u64 * 4, range }
    };
    (0..count).step_by(step).map(piece).collect()
}

/// Loads indices `rows` (of the slice) of the first dim.
fn load_piece(
    param: &LocalParam,
    slice: &ParamSlice,
    rows: Range<usize>,
    window: Window<'_>,
    weights: &dyn ReadParams,
) -> Result<(), Diagnostic> {
    let mut ranges: Vec<Range<usize>> = slice.spans.iter().map(|&(start, len)| start..start + len).collect();
    if let Some(first) = ranges.first_mut() {
        *first = first.start + rows.start..first.start + rows.end;
    }
    let lens: Vec<usize> = ranges.iter().map(Range::len).collect();
    let count: usize = lens.iter().product();
    if count == 0 {
        return Ok(());
    }
    let local = param.sharding.local_shape(&param.ty.shape);
    if let (Storage::Panels { k, n }, Some(matrix)) = (&param.storage, param.storage.matrix(&local)) {
        let mut values = vec![0.0f32; count];
        weights.read_param_slice(&param.source, &ranges, &mut values)?;
        let places = |dims: &[usize]| places(dims, rows.start, &lens, &local);
        pack_piece(&values, &places(k), &places(n), matrix, param.ty.dtype, &window);
        return Ok(());
    }
    let size = param.ty.dtype.bytes();
    let row_bytes = local.iter().skip(1).product::<usize>() * size;
    let target = window.part(rows.start * row_bytes, rows.len() * row_bytes);
    if param.ty.dtype == DType::F32 && lens.get(1..) == local.get(1..) {
        return target.fill_f32(|out| weights.read_param_slice(&param.source, &ranges, out));
    }
    let mut values = vec![0.0f32; count];
    weights.read_param_slice(&param.source, &ranges, &mut values)?;
    let inner = lens.last().copied().unwrap_or(1);
    let mut bytes = vec![0u8; inner * size];
    for (row, values) in values.chunks_exact(inner).enumerate() {
        for (out, &v) in bytes.chunks_exact_mut(size).zip(values) {
            out.copy_from_slice(&encode(param.ty.dtype, v.into())[..size]);
        }
        target.write(row_offset(row, &lens, &local) * size, &bytes);
    }
    Ok(())
}

/// For each index over `dims` (row-major) of a piece that has shape `lens` and begins at index `start` of dim 0: where it is in
/// the piece, and its place along these dims of a slice of shape `local`.
fn places(dims: &[usize], start: usize, lens: &[usize], local: &[usize]) -> Vec<Place> {
    let mut places = vec![Place { from: 0, to: 0 }];
    for &d in dims {
        let stride: usize = lens[d + 1..].iter().product();
        let skipped = if d == 0 { start } else { 0 };
        let along = |p: &Place| {
            let to = p.to * local[d] + skipped;
            let from = p.from;
            (0..lens[d])
                .map(move |i| Place { from: from + (i * stride) as isize, to: to + i })
                .collect::<Vec<_>>()
        };
        places = places.iter().flat_map(along).collect();
    }
    places
}

/// Element offset, in a buffer of shape `local`, of the `row`th innermost row of a block of shape `lens` at its start.
/// The first dim of `local` is not looked at.
pub(crate) fn row_offset(row: usize, lens: &[usize], local: &[usize]) -> usize {
    let (mut rest, mut stride, mut offset) = (row, 1, 0);
    for dim in (0..lens.len().saturating_sub(1)).rev() {
        stride *= local[dim + 1];
        offset += rest % lens[dim] * stride;
        rest /= lens[dim];
    }
    offset
}
