//! Products on tensor cores. A block copies tiles of a and b to shared memory some stages ahead, each warp multiplies its part of them.

use super::accumulator::Accumulator;
use super::gemm::Product;
use super::tile::{self, CHUNK, CHUNK_ELEMENTS, Fragments, SIDE, Share, Side, Tile};
use super::value::{Code, Num};
use crate::ptx::entry::Special;
use pcc_ir::gpu::gemm::MmaTile;

/// Builds the body of the kernel.
pub(super) fn emit(product: &Product<'_, '_, '_>) {
    let (code, kernel) = (product.code, product.kernel);
    let size = kernel.mma_tile();
    let thread = code.special(Special::Thread);
    let warp = thread >> 5u32;
    let across = size.cols / size.warp_cols;
    let corner = (warp.quotient(across) * size.warp_rows, warp.remainder(across) * size.warp_cols);
    let a = Operand::of(code, kernel.a_by_k, Side::A, size.rows, corner.0, size);
    let b = Operand::of(code, kernel.b_by_k, Side::B, size.cols, corner.1, size);
    let shared = code.shared();
    product.tiles(size.rows, size.cols, |place| {
        let sources = [
            a.source(place.a.first, place.a.row, place.a.col, place.rows),
            b.source(place.b.first, place.b.col, place.b.row, place.cols),
        ];
        let accumulator = Accumulator { rows: size.warp_rows, cols: size.warp_cols, corner };
        let pipeline = Pipeline { product, operands: [&a, &b], sources, size, shared };
        let sums = pipeline.run(&accumulator);
        match product.follows {
            None => accumulator.store(product, place, size.cols, &sums),
            Some(_) => accumulator.finish(product, place, (shared, warp), &sums),
        }
    });
}

/// A tile of a matrix for each stage, in the order in which the matrix has its elements.
struct Operand<'e, 'c> {
    code: Code<'e, 'c>,
    by_k: bool,
    tile: Tile,
    share: Share<'e, 'c>,
    fragments: Fragments<'e, 'c>,
    depth: u32,
}

/// Where a thread copies an operand's chunks from.
struct Source<'e, 'c> {
    /// The thread's first chunk, at depth 0.
    first: Num<'e, 'c>,
    /// Bytes between its chunks, and from a stage to the next.
    apart: Num<'e, 'c>,
    advance: Num<'e, 'c>,
    /// Rows, or for b columns, that are there.
    outer: Num<'e, 'c>,
}

/// Bytes of a chunk that are there, of elements that begin at it.
pub(super) fn there<'e, 'c>(elements: Num<'e, 'c>) -> Num<'e, 'c> {
    (elements * 2u32).max(0i64).min(i64::from(CHUNK))
}

impl<'e, 'c> Operand<'e, 'c> {
    fn of(code: Code<'e, 'c>, by_k: bool, side: Side, outer: u32, from: Num<'e, 'c>, size: MmaTile) -> Self {
        let (rows, line) = if by_k { (outer, size.depth) } else { (size.depth, outer) };
        let tile = Tile { rows, chunks: line / CHUNK_ELEMENTS };
        let share = Share::of(tile, code.special(Special::Thread), size.threads());
        Operand {
            code,
            by_k,
            tile,
            share,
            fragments: Fragments::of(code, tile, by_k, side, from),
            depth: size.depth,
        }
    }

    /// `strides` along the outer dim and along k, one of which is 1.
    fn source(
        &self,
        first: Num<'e, 'c>,
        outer_stride: Num<'e, 'c>,
        depth_stride: Num<'e, 'c>,
        outer: Num<'e, 'c>,
    ) -> Source<'e, 'c> {
        let stride = if self.by_k { outer_stride } else { depth_stride } * 2u32;
        let apart = self.apart();
        let begin = self.share.column(apart).next();
        let begin = begin.map(|c| c.row.long() * stride + c.chunk.long() * CHUNK);
        Source {
            first: begin.map_or(first, |begin| first.bytes(begin)),
            apart: stride * apart,
            advance: if self.by_k { self.code.i64(i64::from(self.depth * 2)) } else { stride * self.depth },
            outer,
        }
    }

    fn apart(&self) -> u32 {
        // invariant: tiles are 32 deep and 64 or 128 wide, which powers of two of threads copy evenly.
        self.share.rows_apart().expect("chunks of a tile of a product stand in columns")
    }

    /// Copies the thread's chunks of one stage to `tile`, from `at` on, where `left` of k are there.
    fn copy(&self, source: &Source<'e, 'c>, tile: Num<'e, 'c>, at: Num<'e, 'c>, left: Num<'e, 'c>) {
        let none = self.code.i32(0);
        let mut from = at;
        for chunk in self.share.column(self.apart()) {
            let begin = chunk.chunk * CHUNK_ELEMENTS;
            let bytes = if self.by_k {
                chunk.row.lt(source.outer).choose(there(left - begin), none)
            } else {
                chunk.row.lt(left).choose(there(source.outer - begin), none)
            };
            tile::copy(self.code, tile.bytes(chunk.at.long()), from, bytes);
            from = from.bytes(source.apart);
        }
    }
}

/// The turns of one tile of c over k.
struct Pipeline<'p, 'e, 'c, 'k> {
    product: &'p Product<'e, 'c, 'k>,
    operands: [&'p Operand<'e, 'c>; 2],
    sources: [Source<'e, 'c>; 2],
    size: MmaTile,
    shared: Num<'e, 'c>,
}

impl<'e, 'c> Pipeline<'_, 'e, 'c, '_> {
    /// Where a stage's tile of a, and that of b, begin.
    fn stage(&self, number: Num<'e, 'c>) -> [Num<'e, 'c>; 2] {
        let place = number.remainder(self.size.stages) * self.size.stage_bytes();
        let a = self.shared.bytes(place.long());
        [a, a.bytes(i64::from(self.operands[0].tile.bytes()))]
    }

    /// Begins the copies of a stage, `at` being where the thread's chunks of it lie.
    fn copy(&self, number: Num<'e, 'c>, at: [Num<'e, 'c>; 2]) {
        let depth = i64::from(self.size.depth);
        let left = (self.product.k - number.long() * depth).min(depth).int();
        let tiles = self.stage(number);
        for i in 0..2 {
            self.operands[i].copy(&self.sources[i], tiles[i], at[i], left);
        }
    }

    /// The sums of a warp.
    fn run(&self, accumulator: &Accumulator<'e, 'c>) -> Vec<Num<'e, 'c>> {
        let code = self.product.code;
        let ahead = self.size.stages - 1;
        let turns = self.product.k.tiles(self.size.depth).int();
        let mut at = [self.sources[0].first, self.sources[1].first];
        let advance = |at: [Num<'e, 'c>; 2]| [0, 1].map(|i| at[i].bytes(self.sources[i].advance));
        for stage in 0..ahead {
            let number = code.i32(stage as i32);
            code.when(number.lt(turns), || self.copy(number, at));
            tile::commit(code);
            at = advance(at);
        }
        let first = [vec![code.f32(0.0); accumulator.registers()], at.to_vec()].concat();
        let mut values = code.count((code.i32(0), turns), 1i64, &first, |turn, values| {
            let (sums, at) = values.split_at(accumulator.registers());
            // Groups are empty at the end, so that this always waits for the turn's own.
            tile::wait(code, ahead - 1);
            code.barrier();
            // The stage that the turn before has read, which every warp has left.
            let next = turn + ahead;
            code.when(next.lt(turns), || self.copy(next, [at[0], at[1]]));
            tile::commit(code);
            let sums = self.multiply(self.stage(turn), accumulator, sums);
            [sums, advance([at[0], at[1]]).to_vec()].concat()
        });
        // The next tile of c begins with copies into these stages.
        code.barrier();
        values.truncate(accumulator.registers());
        values
    }

    /// Adds the product of one stage's tiles.
    fn multiply(
        &self,
        tiles: [Num<'e, 'c>; 2],
        accumulator: &Accumulator<'e, 'c>,
        sums: &[Num<'e, 'c>],
    ) -> Vec<Num<'e, 'c>> {
        let (code, dtype) = (self.product.code, self.product.kernel.a);
        let mut sums = sums.to_vec();
        for depth in 0..self.size.depth / SIDE {
            let load = |i: usize, extent: u32| -> Vec<_> {
                (0..extent / SIDE).map(|o| self.operands[i].fragments.load(tiles[i], o, depth)).collect()
            };
            let (a, b) = (load(0, accumulator.rows), load(1, accumulator.cols));
            for (row, a) in a.iter().enumerate() {
                for (col, b) in b.iter().flat_map(|pair| pair.chunks(2)).enumerate() {
                    let range = accumulator.fragment(row, col);
                    let sum = tile::mma(code, dtype, a, b, &sums[range.clone()]);
                    sums[range].copy_from_slice(&sum);
                }
            }
        }
        sums
    }
}
