//! Matrix products: loops over panels of b, which are packed on the way, and loops that read b as it lies for few rows.
//!
//! A product is cut into *parts* that depend on its shape alone, never on the number of workers, and each part is computed by one
//! call in one order: so results are the same bits whoever computes which part.

pub(crate) mod blocks;
mod double;
mod few_rows;
pub(crate) mod load;
mod packing;
pub(crate) mod panels;
pub(crate) mod rows;
mod shape;
mod widen;

pub(crate) use shape::Shape;

use crate::kernels::Operand;
use pcc_ir::DType;
use pcc_ir::program::{Matrix, PackedMatrix};
use pcc_ir::storage::BlockMatrix;
use std::ops::Range;

/// Work in one part, at least: 40 microseconds at 250 GFLOP/s, well above handing a part over.
const PART_FLOPS: f64 = 1e7;
/// Least extent of a part along the dim that is cut: the other operand is packed again for each part.
const PART_EXTENT: u64 = 256;
/// Bytes of the matrix that a part of a product with few rows reads, at least.
const PART_BYTES: u64 = 1 << 18;
/// Most parts that rows, or columns, of a product with a packed matrix are cut into for parallel work.
const MOST_PARTS: u64 = 64;
/// Rows and panels in a part of such a product, at least, where it is not bound by reading.
const PART_ROWS: u64 = 56;
const PART_PANELS: u64 = 4;
/// Panels that rows are copied for, at least: copying an element takes as long as ten products, about.
const WIDE: u64 = 32;
/// A packed matrix that a third-level cache holds.
const CACHED_BYTES: u64 = 8 << 20;
/// A product with few rows of a matrix as it lies has this many parts at most, unless each still reads [`LONG_RUN`] adjacent elements of every row.
const FEW_PARTS: u64 = 4;
const LONG_RUN: u64 = 2048;
/// Most rows computed by the loops for few rows.
const FEW: u64 = 8;

/// A product with its operands' buffers.
pub(crate) struct Product<'a> {
    pub(crate) gemm: &'a Shape,
    pub(crate) a: Operand<'a>,
    pub(crate) b: Operand<'a>,
    pub(crate) c: Operand<'a>,
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Indices of the batch dims in a part; 1 when a single product is cut.
    batches: u64,
    /// Extent of m in a part.
    m: u64,
    /// Extent of n in a part.
    n: u64,
}

/// One plain matrix product: addresses of the first elements, extents, strides in elements.
#[derive(Clone, Copy)]
struct Tile {
    m: usize,
    n: usize,
    k: usize,
    a: Side,
    b: Side,
    c: Side,
    alpha: f64,
    accumulate: bool,
}

#[derive(Clone, Copy)]
struct Side {
    start: *mut u8,
    dtype: DType,
    row: isize,
    col: isize,
}

impl Tile {
    /// The same product with the roles of rows and columns exchanged.
    fn transposed(self) -> Self {
        let flip = |s: Side| Side { row: s.col, col: s.row, ..s };
        Tile { m: self.n, n: self.m, a: flip(self.b), b: flip(self.a), c: flip(self.c), ..self }
    }
}

/// Number of indices of the batch dims. Validation bounds it.
fn batches(g: &Shape) -> u64 {
    g.batch.iter().map(|d| d.extent).product()
}

fn cut(g: &Shape) -> Cut {
    if g.packed.is_some() {
        return cut_packed(g);
    }
    let flops = 2.0 * g.m as f64 * g.n as f64 * g.k as f64;
    if flops < PART_FLOPS && g.m.min(g.n) > FEW {
        let batches = (PART_FLOPS / flops.max(1.0)).clamp(1.0, 1e6) as u64;
        return Cut { batches, m: g.m.max(1), n: g.n.max(1) };
    }
    let long = g.m.max(g.n);
    let extent = if g.m.min(g.n) <= FEW {
        // Bound by reading: few parts, so that the runs read of every row stay long.
        let pieces = (g.k.saturating_mul(4).saturating_mul(long) / PART_BYTES)
            .min(long / PART_EXTENT)
            .min(FEW_PARTS.max(long / LONG_RUN));
        long.div_ceil(pieces.max(1)).next_multiple_of(32)
    } else {
        let wanted = (PART_FLOPS / (flops / long as f64)).ceil() as u64;
        // Equal pieces, so that two workers get equal work.
        let pieces = (long / wanted.max(PART_EXTENT)).max(1);
        long.div_ceil(pieces).next_multiple_of(32)
    };
    if long <= extent {
        let bytes = g.k.max(1).saturating_mul(4).saturating_mul(long.max(1));
        return Cut { batches: (PART_BYTES / bytes).max(1), m: g.m.max(1), n: g.n.max(1) };
    }
    if g.n >= g.m {
        Cut { batches: 1, m: g.m.max(1), n: extent }
    } else {
        Cut { batches: 1, m: extent, n: g.n.max(1) }
    }
}

/// Many rows are cut into rows, so that each is copied to a scratch once, or once for each [`WIDE`] panels of a matrix that no cache
/// holds; of few rows columns are cut, and b is read once.
fn cut_packed(g: &Shape) -> Cut {
    let panel = panels::WIDTH as u64;
    let bytes = match &g.blocks {
        Some(blocks) => blocks.bytes(),
        None => g.k.saturating_mul(g.n).saturating_mul(g.b.dtype.bytes() as u64),
    };
    let flops = 2.0 * g.m as f64 * g.n as f64 * g.k as f64;
    let worth = ((flops / PART_FLOPS) as u64).max(bytes / PART_BYTES).min(MOST_PARTS);
    // An even number of equal parts, so that two workers finish together.
    let pieces = |extent: u64, least: u64| match worth.min(extent / least) {
        0 | 1 => 1,
        n => n / 2 * 2,
    };
    let panels = g.n.div_ceil(panel);
    let cached = bytes <= CACHED_BYTES;
    // Blocks are expanded again for each part of the rows.
    if g.m >= 2 * PART_ROWS && (cached || g.blocks.is_none()) {
        let wide = if cached { 1 } else { (panels / WIDE).max(1) };
        let n = panels.div_ceil(wide).max(1) * panel;
        Cut { batches: 1, m: g.m.div_ceil(pieces(g.m, PART_ROWS)), n }
    } else {
        let least = if g.m <= FEW { 1 } else { PART_PANELS };
        Cut { batches: 1, m: g.m.max(1), n: panels.div_ceil(pieces(panels, least)).max(1) * panel }
    }
}

/// Number of parts of a product: none where it has no element.
pub(crate) fn parts(g: &Shape) -> usize {
    let cut = cut(g);
    let tiles = g.m.div_ceil(cut.m) * g.n.div_ceil(cut.n);
    (batches(g).div_ceil(cut.batches) * tiles) as usize
}

/// Rows and columns of c that one of the [`parts`] computes, and the part's number among those with the same ones.
fn tile_of(g: &Shape, cut: Cut, part: usize) -> (Range<u64>, Range<u64>, u64) {
    let (across, down) = (g.n.div_ceil(cut.n).max(1), g.m.div_ceil(cut.m).max(1));
    let (tile, group) = (part as u64 % (across * down), part as u64 / (across * down));
    // Workers that take parts one after another read the same columns.
    (piece(g.m, cut.m, tile % down), piece(g.n, cut.n, tile / down), group)
}

/// Rows and columns of c that a part of a product without batch dims computes.
pub(crate) fn tile(g: &Shape, part: usize) -> (Range<u64>, Range<u64>) {
    let (rows, cols, _) = tile_of(g, cut(g), part);
    (rows, cols)
}

impl Product<'_> {
    /// Computes one of the [`parts`].
    pub(crate) fn run_part(&self, part: usize) {
        let g = self.gemm;
        let cut = cut(g);
        let (rows, cols, group) = tile_of(g, cut, part);
        let all = batches(g);
        for batch in group * cut.batches..((group + 1) * cut.batches).min(all) {
            self.run_tile(batch, rows.clone(), cols.clone());
        }
    }

    fn run_tile(&self, batch: u64, rows: Range<u64>, cols: Range<u64>) {
        let g = self.gemm;
        let (mut at, mut rest) = ([0i64; 3], batch);
        for dim in g.batch.iter().rev() {
            let index = (rest % dim.extent) as i64;
            rest /= dim.extent;
            at = [at[0] + index * dim.a, at[1] + index * dim.b, at[2] + index * dim.c];
        }
        let (i, j) = (rows.start as i64, cols.start as i64);
        if let Some(blocks) = &g.blocks {
            // SAFETY: validation checked the operands, and that b's buffer is all of the blocks.
            return unsafe { self.run_blocks(blocks, at, rows, cols) };
        }
        if let Some(packed) = &g.packed {
            // SAFETY: validation checked the operands, and that b's buffer is all of the panels.
            return unsafe { self.run_packed(packed, at, rows, cols) };
        }
        let tile = Tile {
            m: (rows.end - rows.start) as usize,
            n: (cols.end - cols.start) as usize,
            k: g.k as usize,
            a: side(&g.a, &self.a, at[0] + i * g.a.row),
            b: side(&g.b, &self.b, at[1] + j * g.b.col),
            c: side(&g.c, &self.c, at[2] + i * g.c.row + j * g.c.col),
            alpha: g.alpha,
            accumulate: g.accumulate,
        };
        // SAFETY: validation checked that every element the strides reach lies in the operands' buffers, aligned; a tile is a
        // subset of the product; the executor lets no one else at its part of c.
        unsafe { run(tile) };
    }
}

impl Product<'_> {
    /// # Safety
    /// As [`run`]; b's buffer holds the panels of the matrix; `cols` starts with a panel.
    unsafe fn run_packed(&self, packed: &PackedMatrix, at: [i64; 3], rows: Range<u64>, cols: Range<u64>) {
        let g = self.gemm;
        let Some(element) = packing::element([g.a.dtype, g.b.dtype, g.c.dtype]) else {
            // invariant: validation refuses panels of other types
            unreachable!("a product in panels of {} and {}", g.a.dtype, g.b.dtype)
        };
        let panel = (packed.k as usize).div_ceil(element.per_unit()) * panels::WIDTH;
        let first = cols.start as usize / panels::WIDTH * panel;
        let start = self.b.window.as_ptr().wrapping_add(self.b.offset).cast::<u32>();
        let (i, j) = (rows.start as i64, cols.start as i64);
        let task = panels::Task {
            m: (rows.end - rows.start) as usize,
            n: (cols.end - cols.start) as usize,
            k: g.k as usize,
            element,
            a: packing::term(&side(&g.a, &self.a, at[0] + i * g.a.row)),
            b: start.wrapping_add(first),
            panel,
            c: packing::term(&side(&g.c, &self.c, at[2] + i * g.c.row + j * g.c.col)),
            alpha: g.alpha as f32,
            accumulate: g.accumulate,
        };
        // SAFETY: the caller's promise; a task is a subset of the product.
        unsafe { panels::multiply(&task) };
    }
}

impl Product<'_> {
    /// # Safety
    /// As [`run`]; b's buffer holds the blocks of the matrix; `cols` starts with a panel; a and c are f32.
    unsafe fn run_blocks(&self, b: &BlockMatrix, at: [i64; 3], rows: Range<u64>, cols: Range<u64>) {
        let g = self.gemm;
        let i = rows.start as i64;
        let f32s = |s: Side| blocks::Rows { start: s.start.cast(), row: s.row, col: s.col };
        let task = blocks::Task {
            m: (rows.end - rows.start) as usize,
            n: cols.end as usize,
            k: g.k as usize,
            a: f32s(side(&g.a, &self.a, at[0] + i * g.a.row)),
            b: blocks::Blocks::new(b, &self.b),
            c: f32s(side(&g.c, &self.c, at[2] + i * g.c.row)),
            alpha: g.alpha as f32,
            accumulate: g.accumulate,
        };
        let panels = cols.start as usize / panels::WIDTH..(cols.end as usize).div_ceil(panels::WIDTH);
        // SAFETY: the caller's promise; a task is a subset of the product.
        unsafe { task.run(panels) };
    }
}

fn piece(whole: u64, piece: u64, index: u64) -> Range<u64> {
    (index * piece).min(whole)..((index + 1) * piece).min(whole)
}

fn side(matrix: &Matrix, operand: &Operand<'_>, elements: i64) -> Side {
    let bytes = elements as isize * matrix.dtype.bytes() as isize;
    let start = operand.window.as_ptr().wrapping_add(operand.offset).wrapping_offset(bytes);
    Side { start, dtype: matrix.dtype, row: matrix.row as isize, col: matrix.col as isize }
}

/// # Safety
/// Every element of the tile's matrices is valid and aligned, c is not accessed by anyone else and overlaps neither a nor b.
unsafe fn run(tile: Tile) {
    if tile.m == 0 || tile.n == 0 {
        return;
    }
    let types = [tile.a.dtype, tile.b.dtype, tile.c.dtype];
    if types == [DType::F64; 3] {
        // SAFETY: the caller's promise.
        return unsafe { double::run(&tile) };
    }
    let Some(element) = packing::element(types) else {
        // SAFETY: the caller's promise.
        return unsafe { widen::run(tile) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        if element == panels::Element::F32 {
            let flat = if tile.n < tile.m { tile.transposed() } else { tile };
            if flat.m <= FEW as usize && few_rows::run(&flat) {
                return;
            }
        }
        packing::run(&tile, element);
    }
}

#[cfg(test)]
mod tests;
