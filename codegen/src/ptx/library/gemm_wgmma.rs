//! Products on tensor cores by warpgroups. A block copies tiles of a and b to shared memory some stages ahead; each of its warpgroups multiplies its rows of
//! a by all of b, while the copies of later stages and the products of one stage before are under way.

use super::accumulator::Accumulator;
use super::gemm::Product;
use super::gemm_mma::there;
use super::tile::{self, CHUNK, CHUNK_ELEMENTS, Share, Tile};
use super::value::{Code, Num};
use super::wgmma::{self, ATOM, ATOM_ELEMENTS, DEPTH, Layout, Sums};
use crate::ptx::entry::Special;
use pcc_ir::gpu::gemm::{WGMMA_TILE, WgmmaTile};

/// Stages whose products may be under way when those of the next are begun.
const BEHIND: u32 = 1;

/// Builds the body of the kernel.
pub(super) fn emit(product: &Product<'_, '_, '_>) {
    let (code, kernel, size) = (product.code, product.kernel, WGMMA_TILE);
    let sums = Sums::declare(code, size.cols);
    let warp = code.special(Special::Thread) >> 5u32;
    let operand = |by_k: bool, outer: u32| Operand::of(code, Layout { by_k, depth: size.depth }, outer, size);
    let (a, b) = (operand(kernel.a_by_k, size.rows), operand(kernel.b_by_k, size.cols));
    let shared = code.shared_aligned(ATOM);
    product.tiles(size.rows, size.cols, |place| {
        let sources = [
            a.source(place.a.first, place.a.row, place.a.col, place.rows),
            b.source(place.b.first, place.b.col, place.b.row, place.cols),
        ];
        let group = warp.quotient(WgmmaTile::GROUP_WARPS);
        Pipeline { product, operands: [&a, &b], sources, size, shared, group, sums: &sums }.run();
        // A warp has 16 of its warpgroup's rows.
        let rows = WgmmaTile::GROUP_ROWS / WgmmaTile::GROUP_WARPS;
        let accumulator = Accumulator { rows, cols: size.cols, corner: (warp * rows, code.i32(0)) };
        match product.follows {
            None => accumulator.store(product, place, size.cols, &sums.get()),
            Some(_) => accumulator.finish(product, place, (shared, warp), &sums.get()),
        }
    });
}

/// A tile of a matrix for each stage: atoms one behind the other, which are rows of 128 bytes.
struct Operand<'e, 'c> {
    code: Code<'e, 'c>,
    layout: Layout,
    share: Share<'e, 'c>,
}

/// Where a thread copies an operand's chunks from.
struct Source<'e, 'c> {
    /// The thread's first chunk, at depth 0.
    first: Num<'e, 'c>,
    /// Bytes between its chunks, unless another 64 rows (columns) begin.
    apart: Num<'e, 'c>,
    /// Bytes from a stage to the next.
    advance: Num<'e, 'c>,
    /// Rows, or for b columns, that are there.
    outer: Num<'e, 'c>,
}

impl<'e, 'c> Operand<'e, 'c> {
    fn of(code: Code<'e, 'c>, layout: Layout, outer: u32, size: WgmmaTile) -> Self {
        // By k a row of the tile is a row of a (column of b), else one of depth of 64 of them: they are equally many, as stages are 64 deep.
        let tile = Tile { rows: outer, chunks: ATOM_ELEMENTS / CHUNK_ELEMENTS };
        Operand { code, layout, share: Share::of(tile, code.special(Special::Thread), size.threads()) }
    }

    fn apart(&self) -> u32 {
        // invariant: tiles have 128 or 256 rows of 8 chunks, which 256 threads copy evenly.
        self.share.rows_apart().expect("chunks of a tile of a product stand in columns")
    }

    /// `strides` along the outer dim and along k, one of which is 1.
    fn source(
        &self,
        first: Num<'e, 'c>,
        outer_stride: Num<'e, 'c>,
        depth_stride: Num<'e, 'c>,
        outer: Num<'e, 'c>,
    ) -> Source<'e, 'c> {
        let Layout { by_k, depth } = self.layout;
        let stride = if by_k { outer_stride } else { depth_stride } * 2u32;
        let begin = self.share.column(self.apart()).next();
        let begin = begin.map(|c| c.row.long() * stride + c.chunk.long() * CHUNK);
        Source {
            first: begin.map_or(first, |begin| first.bytes(begin)),
            apart: stride * self.apart(),
            advance: if by_k { self.code.i64(i64::from(depth * 2)) } else { stride * depth },
            outer,
        }
    }

    /// Copies the thread's chunks of one stage to `tile`, from `at` on, where `left` of k are there.
    fn copy(&self, source: &Source<'e, 'c>, tile: Num<'e, 'c>, at: Num<'e, 'c>, left: Num<'e, 'c>) {
        let (none, Layout { by_k, depth }) = (self.code.i32(0), self.layout);
        // Chunks of one depth after another, then the next 64 rows (columns).
        let deep = if by_k { u32::MAX } else { depth / self.apart() };
        let mut from = at;
        for (i, chunk) in (0..).zip(self.share.column(self.apart())) {
            let begin = chunk.chunk * CHUNK_ELEMENTS;
            let beyond = i / deep;
            if beyond > 0 && i.is_multiple_of(deep) {
                from = at.bytes(i64::from(beyond * ATOM_ELEMENTS * 2));
            }
            let bytes = if by_k {
                chunk.row.lt(source.outer).choose(there(left - begin), none)
            } else {
                let row = chunk.row - beyond * depth;
                row.lt(left).choose(there(source.outer - begin - beyond * ATOM_ELEMENTS), none)
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
    size: WgmmaTile,
    shared: Num<'e, 'c>,
    /// The warpgroup's number.
    group: Num<'e, 'c>,
    sums: &'p Sums<'e, 'c>,
}

impl<'e, 'c> Pipeline<'_, 'e, 'c, '_> {
    /// Where a stage's tile of a, and that of b, begin.
    fn stage(&self, number: Num<'e, 'c>) -> [Num<'e, 'c>; 2] {
        let place = number.remainder(self.size.stages) * self.size.stage_bytes();
        let a = self.shared.bytes(place.long());
        [a, a.bytes(i64::from(self.size.rows * self.size.depth * 2))]
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

    /// Makes the sums.
    fn run(&self) {
        let code = self.product.code;
        let ahead = self.size.stages - 1 - BEHIND;
        let turns = self.product.k.tiles(self.size.depth).int();
        let mut at = [self.sources[0].first, self.sources[1].first];
        let advance = |at: [Num<'e, 'c>; 2]| [0, 1].map(|i| at[i].bytes(self.sources[i].advance));
        for stage in 0..ahead {
            let number = code.i32(stage as i32);
            code.when(number.lt(turns), || self.copy(number, at));
            tile::commit(code);
            at = advance(at);
        }
        self.sums.clear();
        code.count((code.i32(0), turns), 1i64, &at, |turn, at| {
            // Groups are empty at the end, so that this always waits for the turn's own.
            tile::wait(code, ahead - 1);
            wgmma::publish(code);
            code.barrier();
            self.multiply(self.stage(turn));
            // The stage whose products every warp has waited for before the barrier.
            let next = turn + ahead;
            code.when(next.lt(turns), || self.copy(next, [at[0], at[1]]));
            tile::commit(code);
            wgmma::wait(code, BEHIND);
            advance([at[0], at[1]]).to_vec()
        });
        wgmma::wait(code, 0);
        // The next tile of c begins with copies into these stages.
        code.barrier();
    }

    /// Begins to add the product of one stage's tiles.
    fn multiply(&self, [a, b]: [Num<'e, 'c>; 2]) {
        let code = self.product.code;
        let layouts = [self.operands[0].layout, self.operands[1].layout];
        let rows = (self.group * layouts[0].next_rows()).long();
        let first = [layouts[0].descriptor(code, a.bytes(rows)), layouts[1].descriptor(code, b)];
        let step = |i| [0, 1].map(|side: usize| layouts[side].deeper(first[side], i));
        let steps: Vec<_> = (0..self.size.depth / DEPTH).map(step).collect();
        self.sums.add(self.product.kernel.a, layouts, &steps);
    }
}
