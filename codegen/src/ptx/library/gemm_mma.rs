//! Products on tensor cores. A block copies tiles of a and b to shared memory some stages ahead, each warp multiplies its part of them.

use super::accumulator::Accumulator;
use super::gemm::Product;
use super::stages::{Operand, Stages};
use super::tile::{self, CHUNK_ELEMENTS, Fragments, SIDE, Side, Tile};
use super::value::Num;
use crate::ptx::entry::Special;
use pcc_ir::gpu::gemm::MmaTile;

/// Builds the body of the kernel.
pub(super) fn emit(product: &Product<'_, '_, '_>) {
    let (code, kernel) = (product.code, product.kernel);
    let size = kernel.mma_tile();
    let warp = code.special(Special::Thread) >> 5u32;
    let across = size.cols / size.warp_cols;
    let corner = (warp.quotient(across) * size.warp_rows, warp.remainder(across) * size.warp_cols);
    // In the order in which the matrix has its elements.
    let tile = |by_k: bool, outer: u32| {
        let (rows, line) = if by_k { (outer, size.depth) } else { (size.depth, outer) };
        Tile { rows, chunks: line / CHUNK_ELEMENTS }
    };
    let (a, b) = (tile(kernel.a_by_k, size.rows), tile(kernel.b_by_k, size.cols));
    let operand = |by_k, tile| Operand::of(code, by_k, tile, size.depth, size.threads());
    let operands = [operand(kernel.a_by_k, a), operand(kernel.b_by_k, b)];
    let fragments = [
        Fragments::of(code, a, kernel.a_by_k, Side::A, corner.0),
        Fragments::of(code, b, kernel.b_by_k, Side::B, corner.1),
    ];
    let shared = code.shared();
    product.tiles(size.rows, size.cols, |place| {
        let accumulator = Accumulator { rows: size.warp_rows, cols: size.warp_cols, corner };
        let stages = Stages::of(product, &operands, &place, (size.stages, shared));
        let sums = Pipeline { product, stages, fragments: &fragments, size }.run(&accumulator);
        match product.follows {
            None => accumulator.store(product, place, size.cols, &sums),
            Some(_) => accumulator.finish(product, place, (shared, warp), &sums),
        }
    });
}

/// The turns of one tile of c over k.
struct Pipeline<'p, 'e, 'c, 'k> {
    product: &'p Product<'e, 'c, 'k>,
    stages: Stages<'p, 'e, 'c, 'k>,
    fragments: &'p [Fragments<'e, 'c>; 2],
    size: MmaTile,
}

impl<'e, 'c> Pipeline<'_, 'e, 'c, '_> {
    /// The sums of a warp.
    fn run(&self, accumulator: &Accumulator<'e, 'c>) -> Vec<Num<'e, 'c>> {
        let code = self.product.code;
        let ahead = self.size.stages - 1;
        let turns = self.stages.turns();
        let at = self.stages.begin(ahead, turns);
        let first = [vec![code.f32(0.0); accumulator.registers()], at.to_vec()].concat();
        let mut values = code.count((code.i32(0), turns), 1i64, &first, |turn, values| {
            let (sums, at) = values.split_at(accumulator.registers());
            // Groups are empty at the end, so that this always waits for the turn's own.
            tile::wait(code, ahead - 1);
            code.barrier();
            // The stage that the turn before has read, which every warp has left.
            let at = self.stages.copy(turn + ahead, turns, [at[0], at[1]]);
            let sums = self.multiply(self.stages.tiles(turn), accumulator, sums);
            [sums, at.to_vec()].concat()
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
                (0..extent / SIDE).map(|o| self.fragments[i].load(tiles[i], o, depth)).collect()
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
