//! Tiles of 16-bit elements in shared memory, and the fragments of `mma.sync` that warps read out of them.
//!
//! A tile has rows of whole *chunks* of 16 bytes. Chunk c of row r lies at place `c ^ s(r)` of the row, s so chosen that the eight rows that
//! `ldmatrix` reads at a time lie in different banks; `cp.async` writes whole chunks anyway.

use super::value::{Code, Num};
use crate::emit::ir::{Op, V};
use crate::ptx::entry::Special;
use pcc_ir::types::DType;

/// Bytes that are copied and swizzled together.
pub(super) const CHUNK: u32 = 16;
/// Elements of a chunk.
pub(super) const CHUNK_ELEMENTS: u32 = CHUNK / 2;
/// Rows of a fragment of a, columns of a pair of fragments of b, and the depth of both.
pub(super) const SIDE: u32 = 16;

/// The shape of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub rows: u32,
    /// Chunks of a row: an even number.
    pub chunks: u32,
}

impl Tile {
    pub fn row_bytes(self) -> u32 {
        self.chunks * CHUNK
    }

    pub fn bytes(self) -> u32 {
        self.rows * self.row_bytes()
    }

    /// s(r) is `r >> shift & mask`: eight rows of 2 (odd) chunks begin in four of the eight groups of banks, those of 4 (odd) chunks in two,
    /// those of 8 chunks and their multiples in one.
    fn swizzle(self) -> (u32, u32) {
        match self.chunks.trailing_zeros() {
            0 | 1 => (2, 1),
            2 => (1, 3),
            _ => (0, 7),
        }
    }

    fn key<'e, 'c>(self, row: Num<'e, 'c>) -> Num<'e, 'c> {
        let (shift, mask) = self.swizzle();
        (row >> shift) & mask
    }

    /// Where a chunk lies, in bytes from the tile's first.
    pub fn at<'e, 'c>(self, row: Num<'e, 'c>, chunk: Num<'e, 'c>) -> Num<'e, 'c> {
        row * self.row_bytes() + ((chunk ^ self.key(row)) << 4u32)
    }
}

/// The chunks of a tile that a thread copies: number `thread + i * threads` for every i.
pub(super) struct Share<'e, 'c> {
    tile: Tile,
    threads: u32,
    thread: Num<'e, 'c>,
}

/// One of them.
pub(super) struct Chunk<'e, 'c> {
    pub row: Num<'e, 'c>,
    pub chunk: Num<'e, 'c>,
    /// Where it lies in the tile, in bytes.
    pub at: Num<'e, 'c>,
}

impl<'e, 'c> Share<'e, 'c> {
    pub fn of(tile: Tile, thread: Num<'e, 'c>, threads: u32) -> Self {
        Share { tile, threads, thread }
    }

    /// Rows from one of a thread's chunks to the next where they stand in one column and every thread has equally many: a power of two, as the
    /// number of threads is.
    pub fn rows_apart(&self) -> Option<u32> {
        let even = self.threads.is_multiple_of(self.tile.chunks);
        let apart = self.threads / self.tile.chunks;
        (even && self.tile.rows.is_multiple_of(apart)).then_some(apart)
    }

    /// A thread's chunks so far apart.
    pub fn column(&self, apart: u32) -> impl Iterator<Item = Chunk<'e, 'c>> {
        let (first, chunk) =
            (self.thread.quotient(self.tile.chunks), self.thread.remainder(self.tile.chunks));
        let tile = self.tile;
        // The swizzle has a period of 8 rows: what lies whole periods apart is a constant apart.
        let period = (8 / apart).max(1);
        (0..self.tile.rows / apart).map(move |i| {
            let at = tile.at(first + i % period * apart, chunk);
            Chunk { row: first + i * apart, chunk, at: at + i / period * period * apart * tile.row_bytes() }
        })
    }

    /// Runs `body` for a thread's chunks, one by one.
    pub fn each(&self, code: Code<'e, 'c>, body: impl FnOnce(Chunk<'e, 'c>)) {
        let all = code.i32((self.tile.rows * self.tile.chunks) as i32);
        code.each((self.thread, all), self.threads, |number| {
            let (row, chunk) = (number.quotient(self.tile.chunks), number.remainder(self.tile.chunks));
            body(Chunk { row, chunk, at: self.tile.at(row, chunk) });
        });
    }
}

/// Which operand of the product a tile holds: the fragments' halves stand in another order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// 16 rows x 16 of depth: the four registers of a's fragment.
    A,
    /// 16 of depth x 16 columns: two registers of b's fragment for 8 columns, two for the next 8.
    B,
}

/// Where a lane reads fragments of a tile.
pub(super) struct Fragments<'e, 'c> {
    code: Code<'e, 'c>,
    tile: Tile,
    /// Rows of the tile are rows (columns for b), its chunks run along the depth; otherwise the other way round.
    by_depth: bool,
    /// Where the first one lies. In those beside it only bits of the chunk's place differ, as rows begin at multiples of what the swizzle spans.
    place: Num<'e, 'c>,
}

impl<'e, 'c> Fragments<'e, 'c> {
    /// Fragments whose first row (column for b) is `from`, which what is read through it does not exceed by more than a power of two that divides
    /// `from`.
    pub fn of(code: Code<'e, 'c>, tile: Tile, by_depth: bool, side: Side, from: Num<'e, 'c>) -> Self {
        let lane = code.special(Special::Lane);
        // Each group of eight lanes names the rows of one of four 8 x 8 matrices.
        let bit = |shift: u32| (lane >> shift) & 1u32;
        let (outer, depth) = match side {
            Side::A => (bit(3), bit(4)),
            Side::B => (bit(4), bit(3)),
        };
        let eighth = lane & 7u32;
        let (row, chunk) = if by_depth {
            (from + outer * 8u32 + eighth, depth)
        } else {
            (depth * 8u32 + eighth, from.quotient(CHUNK_ELEMENTS) + outer)
        };
        let place = row * tile.row_bytes() + ((chunk ^ tile.key(eighth)) << 4u32);
        Fragments { code, tile, by_depth, place }
    }

    /// The registers of the fragment at `outer * 16` rows (columns) and `depth * 16`, of the tile that begins at `tile`.
    pub fn load(&self, tile: Num<'e, 'c>, outer: u32, depth: u32) -> [Num<'e, 'c>; 4] {
        let (rows, pair) = if self.by_depth { (outer, depth) } else { (depth, outer) };
        let (_, mask) = self.tile.swizzle();
        let low = (pair * 2) & mask;
        let beyond = rows * SIDE * self.tile.row_bytes() + (pair * 2 - low) * CHUNK;
        let place = if low == 0 { self.place } else { self.place ^ (low * CHUNK) };
        let at = tile.bytes(place.long()).bytes(i64::from(beyond));
        let transposed = if self.by_depth { "" } else { ".trans" };
        let name = format!("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{transposed}.b16");
        let entry = self.code.entry;
        let all = entry.ir.intrinsic(&name, &[at.v.get_type()], &[at.v]);
        [0, 1, 2, 3].map(|i| self.code.of(entry.member(all, i)))
    }
}

/// What a warp's fragment of 16 x 8 results has where: register `i` of a lane is at this row and column.
pub(super) fn place<'e, 'c>(lane: Num<'e, 'c>, i: u32) -> (Num<'e, 'c>, Num<'e, 'c>) {
    ((lane >> 2u32) + i / 2 * 8, (lane & 3u32) * 2u32 + i % 2)
}

/// `a b + c` of 16 x 16 by 16 x 8 elements of a 16-bit type, in f32.
pub(super) fn mma<'e, 'c>(
    code: Code<'e, 'c>,
    dtype: DType,
    a: &[Num<'e, 'c>; 4],
    b: &[Num<'e, 'c>],
    c: &[Num<'e, 'c>],
) -> [Num<'e, 'c>; 4] {
    let ir = code.entry.ir;
    let half = |v: V<'c>| ir.cast(Op::BitCast, v, ir.vector(ir.context.f16_type().into(), 2));
    let (name, operands): (_, Vec<V>) = match dtype {
        DType::F16 => ("f32.f32", a.iter().chain(b).map(|n| half(n.v)).collect()),
        _ => ("bf16", a.iter().chain(b).map(|n| n.v).collect()),
    };
    let args: Vec<V> = operands.into_iter().chain(c.iter().map(|n| n.v)).collect();
    let all = ir.intrinsic(&format!("llvm.nvvm.mma.m16n8k16.row.col.{name}"), &[], &args);
    [0, 1, 2, 3].map(|i| code.of(code.entry.member(all, i)))
}

/// Copies a chunk from global to shared memory without waiting: `bytes` (0 to 16) of it, zeros for the rest.
pub(super) fn copy<'e, 'c>(code: Code<'e, 'c>, to: Num<'e, 'c>, from: Num<'e, 'c>, bytes: Num<'e, 'c>) {
    let args = [to.v, from.v, bytes.v];
    code.entry.ir.call("llvm.nvvm.cp.async.cg.shared.global.16.s", &[], &args);
}

/// Ends a group of copies.
pub(super) fn commit(code: Code<'_, '_>) {
    code.entry.ir.call("llvm.nvvm.cp.async.commit.group", &[], &[]);
}

/// Waits until all but the last `but` groups of this thread's copies are done.
pub(super) fn wait(code: Code<'_, '_>, but: u32) {
    code.entry.ir.call("llvm.nvvm.cp.async.wait.group", &[], &[code.i32(but as i32).v]);
}
