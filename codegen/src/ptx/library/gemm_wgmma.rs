//! Products on tensor cores by warpgroups. A block copies tiles of a and b to shared memory some stages ahead; each of its warpgroups multiplies its rows of
//! a by all of b, while the copies of later stages and the products of one stage before are under way.

use super::accumulator::Accumulator;
use super::gemm::Product;
use super::stages::{Operand, Stages};
use super::tile::{self, CHUNK_ELEMENTS, Tile};
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
    let operands = [operand(code, kernel.a_by_k, size.rows), operand(code, kernel.b_by_k, size.cols)];
    let shared = code.shared_aligned(ATOM);
    product.tiles(size.rows, size.cols, |place| {
        let stages = Stages::of(product, &operands, &place, (size.stages, shared));
        let group = warp.quotient(WgmmaTile::GROUP_WARPS);
        let layouts = operands.each_ref().map(|o| Layout { by_k: o.by_k, depth: size.depth });
        Pipeline { product, stages, layouts, size, group, sums: &sums }.run();
        // A warp has 16 of its warpgroup's rows.
        let rows = WgmmaTile::GROUP_ROWS / WgmmaTile::GROUP_WARPS;
        let accumulator = Accumulator { rows, cols: size.cols, corner: (warp * rows, code.i32(0)) };
        match product.follows {
            None => accumulator.store(product, place, size.cols, &sums.get()),
            Some(_) => accumulator.finish(product, place, (shared, warp), &sums.get()),
        }
    });
}

/// Atoms one behind the other, which are lines of 128 bytes: by k a line is of a row of a (column of b), else of one depth of 64 of them. They are equally
/// many, as stages are 64 deep.
fn operand<'e, 'c>(code: Code<'e, 'c>, by_k: bool, outer: u32) -> Operand<'e, 'c> {
    let tile = Tile { rows: outer, chunks: ATOM_ELEMENTS / CHUNK_ELEMENTS };
    Operand::of(code, by_k, tile, WGMMA_TILE.depth, WGMMA_TILE.threads())
}

/// The turns of one tile of c over k.
struct Pipeline<'p, 'e, 'c, 'k> {
    product: &'p Product<'e, 'c, 'k>,
    stages: Stages<'p, 'e, 'c, 'k>,
    layouts: [Layout; 2],
    size: WgmmaTile,
    /// The warpgroup's number.
    group: Num<'e, 'c>,
    sums: &'p Sums<'e, 'c>,
}

impl<'e, 'c> Pipeline<'_, 'e, 'c, '_> {
    /// Makes the sums.
    fn run(&self) {
        let code = self.product.code;
        let ahead = self.size.stages - 1 - BEHIND;
        let turns = self.stages.turns();
        let at = self.stages.begin(ahead, turns);
        self.sums.clear();
        code.count((code.i32(0), turns), 1i64, &at, |turn, at| {
            // Groups are empty at the end, so that this always waits for the turn's own.
            tile::wait(code, ahead - 1);
            wgmma::publish(code);
            code.barrier();
            self.multiply(self.stages.tiles(turn));
            // The stage whose products every warp has waited for before the barrier.
            let at = self.stages.copy(turn + ahead, turns, [at[0], at[1]]);
            wgmma::wait(code, BEHIND);
            at.to_vec()
        });
        wgmma::wait(code, 0);
        // The next tile of c begins with copies into these stages.
        code.barrier();
    }

    /// Begins to add the product of one stage's tiles.
    fn multiply(&self, [a, b]: [Num<'e, 'c>; 2]) {
        let code = self.product.code;
        let layouts = self.layouts;
        let rows = (self.group * layouts[0].next_rows()).long();
        let first = [layouts[0].descriptor(code, a.bytes(rows)), layouts[1].descriptor(code, b)];
        let step = |i| [0, 1].map(|side: usize| layouts[side].deeper(first[side], i));
        let steps: Vec<_> = (0..self.size.depth / DEPTH).map(step).collect();
        self.sums.add(self.product.kernel.a, layouts, &steps);
    }
}
