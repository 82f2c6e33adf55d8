//! Attention in one pass over the keys, with online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022).
//!
//! The queries of one kv head, over positions and the heads of its group, are the rows of one problem, so that keys and values are
//! read once for a whole group. Many rows are cut into tiles, which go over the keys in tiles ([`tile`]); few rows, as in decoding,
//! read keys one by one as fast as memory gives them ([`few`]), long runs of keys in ranges that are put together at the end.
//!
//! Keys that no query of a tile sees are found by their positions and never read. Work is cut into *parts* by shape alone, and each
//! part is computed in one order: results are the same bits whoever computes which part.

mod bias;
mod few;
mod lines;
mod rows;
mod simd;
mod tile;
mod words;

use crate::kernels::Operand;
use crate::machine::Binding;
use few::Piece;
use pcc_ir::program::{AttentionCall, Strided};
use pcc_ir::{DType, Extent};
use rows::Rows;
use simd::{Avx2, Avx512, Portable, Simd};
use std::ops::Range;

/// Keys worked on at a time.
const KEYS: usize = 64;
/// Time of one part, at least: well above handing a part over.
const PART_NANOSECONDS: u64 = 15_000;

/// Keys and values that few queries of neighbouring heads read at a time, at least.
const UNIT_FLOATS: usize = 64 * 1024;

/// An instruction set to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// With products of pairs of bf16.
    Avx512Bf16,
    Avx512,
    Avx2,
    Portable,
}

impl Path {
    /// The best that the machine has.
    pub(crate) fn best() -> Self {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            if is_x86_feature_detected!("avx512bf16") { Path::Avx512Bf16 } else { Path::Avx512 }
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            Path::Avx2
        } else {
            Path::Portable
        }
    }

    /// Rows of a full tile.
    fn tile(self) -> usize {
        match self {
            Path::Avx512Bf16 | Path::Avx512 => 3 * Avx512::LANES,
            Path::Avx2 => 2 * Avx2::LANES,
            Path::Portable => Portable::LANES,
        }
    }
}

/// A call with its operands' buffers.
pub(crate) struct Attention<'a> {
    pub(crate) call: &'a AttentionCall,
    pub(crate) q: Operand<'a>,
    pub(crate) k: Operand<'a>,
    pub(crate) v: Operand<'a>,
    pub(crate) q_pos: Option<Operand<'a>>,
    pub(crate) k_pos: Operand<'a>,
    pub(crate) slopes: Option<Operand<'a>>,
    pub(crate) out: Operand<'a>,
    pub(crate) scratch: Option<Operand<'a>>,
    pub(crate) dims: Dims,
    pub(crate) path: Path,
}

/// Extents at hand; names as in [`AttentionCall`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    pub(crate) b: usize,
    pub(crate) s: usize,
    pub(crate) t: usize,
    pub(crate) g: usize,
    pub(crate) r: usize,
    pub(crate) d: usize,
    pub(crate) e: usize,
}

impl Dims {
    /// A call's, as `extent` says.
    fn of(c: &AttentionCall, mut extent: impl FnMut(&Extent) -> u64) -> Self {
        let [b, s, t, g, r, d, e] = c.extents().map(|e| extent(e) as usize);
        Self { b, s, t, g, r, d, e }
    }

    /// Queries of one kv head.
    fn rows(&self) -> usize {
        self.s * self.r
    }
}

/// How a call is cut into units, and units into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Tiles of the rows of one head.
    tiles: usize,
    /// Ranges of keys.
    ranges: usize,
    /// Heads of one unit.
    heads: usize,
    units: usize,
    /// Units of one part.
    group: usize,
}

fn cut(d: &Dims, path: Path, splits: bool) -> Cut {
    let few = d.rows() <= AttentionCall::FEW as usize;
    let tiles = if few { 1 } else { d.rows().div_ceil(path.tile()) };
    let ranges = if few && splits { d.t.div_ceil(AttentionCall::RANGE as usize).max(1) } else { 1 };
    let row = (d.t / ranges) * (d.d + d.e);
    let heads = if few { (UNIT_FLOATS / row.max(1)).clamp(1, d.g.max(1)) } else { 1 };
    let units = d.b * d.g.div_ceil(heads) * tiles * ranges;
    // 100 floating-point operations or 14 bytes in a nanosecond.
    let (rows, row) = (d.rows().div_ceil(tiles.max(1)) as u64, (row * heads) as u64);
    let nanoseconds = (2 * rows * row / 100).max(4 * row / 14);
    let group = (PART_NANOSECONDS / nanoseconds.max(1)).clamp(1, units.max(1) as u64) as usize;
    Cut { tiles, ranges, heads, units, group }
}

/// One kv head of one row of the batch, and its queries.
#[derive(Clone, Copy)]
struct Head {
    batch: usize,
    head: usize,
}

/// The rows of a head in q or out, positions before heads of the group.
#[derive(Clone, Copy)]
struct HeadRows {
    first: Rows,
    position: isize,
    group: isize,
    r: usize,
}

impl HeadRows {
    fn of(view: &Strided, operand: &Operand<'_>, head: Head, r: usize) -> Self {
        let first = Rows::of(view, operand, &[head.batch, 0, head.head, 0, 0], 4, 4);
        Self { first, position: view.strides[1] as isize, group: view.strides[3] as isize, r }
    }

    /// One row of them, as the first of a matrix.
    fn row(&self, row: usize) -> Rows {
        let (position, head) = if self.r == 1 { (row, 0) } else { (row / self.r, row % self.r) };
        self.first.skip(position as isize * self.position + head as isize * self.group)
    }
}

/// Which keys the rows of a tile see: those with a position above `low` and not above `high`, which are those of a row.
struct Sight {
    /// Least and largest of the rows' bounds.
    lows: (i32, i32),
    highs: (i32, i32),
}

/// A run of keys of which some row sees some.
struct Seen {
    keys: Range<usize>,
    /// Whether every row sees every key.
    all: bool,
}

impl Attention<'_> {
    /// A call and the buffers it is bound to.
    pub(crate) fn bind<'a>(call: &'a AttentionCall, binding: &Binding<'a>, instr: usize) -> Attention<'a> {
        let at = |view: &Strided| binding.operand(&view.loc);
        Attention {
            call,
            q: at(&call.q),
            k: at(&call.k),
            v: at(&call.v),
            q_pos: call.q_pos.as_ref().map(at),
            k_pos: at(&call.k_pos),
            slopes: call.slopes.as_ref().map(at),
            out: at(&call.out),
            scratch: call.scratch.as_ref().map(|loc| binding.operand(loc)),
            dims: Dims::of(call, binding.extents(instr)),
            path: Path::best(),
        }
    }

    /// Whether products of pairs of bf16 can be formed.
    fn halves(&self) -> bool {
        [&self.call.q, &self.call.k, &self.call.v].iter().all(|x| x.dtype == DType::BF16)
    }

    fn cut(&self) -> Cut {
        cut(&self.dims, self.path, self.scratch.is_some())
    }

    /// Number of parts.
    pub(crate) fn parts(&self) -> usize {
        let cut = self.cut();
        cut.units.div_ceil(cut.group)
    }

    /// Computes one of the [`Attention::parts`].
    pub(crate) fn run_part(&self, part: usize) {
        let cut = self.cut();
        let groups = self.dims.g.div_ceil(cut.heads);
        for unit in part * cut.group..((part + 1) * cut.group).min(cut.units) {
            if self.dims.rows() <= AttentionCall::FEW as usize {
                // Heads of one position are neighbours in memory.
                let (first, outer) = (unit % groups * cut.heads, unit / groups);
                let heads = first..(first + cut.heads).min(self.dims.g);
                let (index, ranges) = (outer % cut.ranges, cut.ranges);
                few::run(self, &Piece { batch: outer / ranges, heads, index, ranges });
            } else {
                let (index, outer) = (unit % cut.tiles, unit / cut.tiles);
                let head = Head { batch: outer / groups, head: outer % groups };
                // The last rows see the most keys under a causal mask: they are begun first.
                tile::run(self, head, cut.tiles - 1 - index);
            }
        }
    }

    /// What is left to do, by one worker, when all parts are done.
    pub(crate) fn finish(&self) {
        let cut = self.cut();
        if cut.ranges > 1 {
            few::combine(self, cut.ranges);
        }
    }

    /// The queries of a head.
    fn queries(&self, head: Head) -> HeadRows {
        HeadRows::of(&self.call.q, &self.q, head, self.dims.r)
    }

    /// The results of a head.
    fn results(&self, head: Head) -> HeadRows {
        HeadRows::of(&self.call.out, &self.out, head, self.dims.r)
    }

    fn keys(&self, head: Head) -> Rows {
        Rows::of(&self.call.k, &self.k, &[head.batch, 0, head.head, 0], 1, 3)
    }

    fn values(&self, head: Head) -> Rows {
        Rows::of(&self.call.v, &self.v, &[head.batch, 0, head.head, 0], 1, 3)
    }

    fn positions(view: &Strided, operand: &Operand<'_>, batch: usize) -> Rows {
        Rows::of(view, operand, &[batch, 0], 1, 1)
    }

    /// Scores are kept in units of log2(e), so that weights are powers of two: what q is multiplied by, and what a capped score is.
    fn factors(&self) -> (f32, Option<(f32, f32)>) {
        let log2e = std::f64::consts::LOG2_E;
        match self.call.softcap {
            None => ((self.call.scale * log2e) as f32, None),
            Some(cap) => (self.call.scale as f32, Some(((1.0 / cap) as f32, (cap * log2e) as f32))),
        }
    }

    fn q_positions(&self, batch: usize) -> Option<Rows> {
        let (view, operand) = (self.call.q_pos.as_ref()?, self.q_pos.as_ref()?);
        Some(Self::positions(view, operand, batch))
    }

    /// Works out what the rows `rows` see. Entries of `low` and `high` beyond them, up to `width`, see nothing.
    ///
    /// # Safety
    /// The operands are valid, and `low` and `high` have room for `width` integers.
    unsafe fn sight(
        &self,
        batch: usize,
        rows: Range<usize>,
        width: usize,
        low: *mut i32,
        high: *mut i32,
    ) -> Sight {
        let q_pos = self.q_positions(batch);
        let none = (i32::MAX, i32::MIN);
        let mut sight = Sight { lows: none, highs: none };
        let count = rows.len();
        for (i, row) in rows.enumerate() {
            // SAFETY: the caller's promise.
            let at = q_pos.map(|p| unsafe { p.load_i32(0, row / self.dims.r) });
            let behind = |w: u64| (i64::from(at.unwrap_or(0)) - w.min(1 << 40) as i64).max(-1) as i32;
            let (l, h) =
                (self.call.window.map_or(-1, behind), at.filter(|_| self.call.causal).unwrap_or(i32::MAX));
            sight.lows = (sight.lows.0.min(l), sight.lows.1.max(l));
            sight.highs = (sight.highs.0.min(h), sight.highs.1.max(h));
            // SAFETY: the caller's promise.
            unsafe { (low.add(i).write(l), high.add(i).write(h)) };
        }
        for i in count..width {
            // SAFETY: the caller's promise.
            unsafe { (low.add(i).write(i32::MAX), high.add(i).write(i32::MIN)) };
        }
        sight
    }
}

impl Sight {
    /// The part of a run of keys, with these positions, that some row may see.
    fn of(&self, positions: &[i32]) -> Option<Seen> {
        let some = |k: &i32| *k > self.lows.0 && *k <= self.highs.1;
        // Most of a cache that is not full is passed over here: counting has no branches.
        if positions.iter().map(|k| u32::from(some(k))).sum::<u32>() == 0 {
            return None;
        }
        let first = positions.iter().position(some)?;
        let end = positions.iter().rposition(some)? + 1;
        let all = positions[first..end].iter().all(|&k| k > self.lows.1 && k <= self.highs.0);
        Some(Seen { keys: first..end, all })
    }
}

/// Reads positions of keys into `to`.
///
/// # Safety
/// The keys exist.
unsafe fn read_positions(positions: &Rows, keys: Range<usize>, to: &mut [i32; KEYS]) {
    if positions.col == 1 {
        // SAFETY: the caller's promise; the positions are adjacent.
        unsafe { positions.copy_i32(keys.start, &mut to[..keys.len()]) };
        return;
    }
    for (x, j) in to.iter_mut().zip(keys) {
        // SAFETY: the caller's promise.
        *x = unsafe { positions.load_i32(0, j) };
    }
}

#[cfg(test)]
mod tests;
