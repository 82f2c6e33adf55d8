//! Products of any types and strides: tiles of a and b as f32 in shared memory, 4 x 4 results a thread.

use super::epilogue::Element as Made;
use super::gemm::{Matrix, Place, Product};
use super::value::{Code, Num};
use crate::ptx::entry::Special;
use pcc_ir::gpu::gemm::{SIMT_DEPTH, SIMT_LINE, SIMT_THREADS, SIMT_TILE};
use pcc_ir::types::DType;

/// Rows and columns of a thread.
const SIDE: u32 = 4;
/// Elements of each tile that a thread brings.
const SHARE: u32 = SIMT_TILE * SIMT_DEPTH / SIMT_THREADS;

/// Builds the body of the kernel.
pub(super) fn emit(product: &Product<'_, '_, '_>) {
    let code = product.code;
    let thread = code.special(Special::Thread);
    let a_tile = code.shared();
    let b_tile = a_tile.bytes(i64::from(SIMT_DEPTH * SIMT_LINE * 4));
    product.tiles(SIMT_TILE, SIMT_TILE, |place| {
        let a = Loader::of(code, thread, place.a, (place.a.row, place.a.col), place.rows, a_tile);
        let b = Loader::of(code, thread, place.b, (place.b.col, place.b.row), place.cols, b_tile);
        let threads_across = SIMT_TILE / SIDE;
        let (y, x) = (thread.quotient(threads_across) * SIDE, thread.remainder(threads_across) * SIDE);
        let (a_line, b_line) = (a_tile.bytes(y.long() * 4u32), b_tile.bytes(x.long() * 4u32));
        let sums = vec![code.f32(0.0); (SIDE * SIDE) as usize];
        let depth = i64::from(SIMT_DEPTH);
        let zero = code.i64(0);
        // What is multiplied in the next turn is on its way while this turn's is multiplied.
        let first = [sums, a.load(zero, product.k), b.load(zero, product.k)].concat();
        let values = code.count((zero, product.k), depth, &first, |at, values| {
            let (sums, loaded) = values.split_at((SIDE * SIDE) as usize);
            let (of_a, of_b) = loaded.split_at(SHARE as usize);
            a.keep(of_a);
            b.keep(of_b);
            code.barrier();
            let next = at + depth;
            let loaded = [a.load(next, product.k - next), b.load(next, product.k - next)].concat();
            let mut sums = sums.to_vec();
            for k in 0..SIMT_DEPTH {
                let line = i64::from(k * SIMT_LINE * 4);
                let of_a = a_line.bytes(line).load_run(DType::F32, SIDE);
                let of_b = b_line.bytes(line).load_run(DType::F32, SIDE);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = of_a[i / SIDE as usize].fma(of_b[i % SIDE as usize], *sum);
                }
            }
            code.barrier();
            [sums, loaded].concat()
        });
        store(product, place, (y, x), &values[..(SIDE * SIDE) as usize]);
    });
}

/// How a thread brings its elements of a tile: lines of the tile go along the outer dim (m or n), one for each k.
struct Loader<'e, 'c> {
    code: Code<'e, 'c>,
    dtype: DType,
    /// Elements that lie `depth` deeper are this far apart.
    along: Num<'e, 'c>,
    elements: Vec<Element<'e, 'c>>,
}

struct Element<'e, 'c> {
    from: Num<'e, 'c>,
    depth: Num<'e, 'c>,
    /// Whether its row or column is in the matrix.
    inside: Num<'e, 'c>,
    to: Num<'e, 'c>,
}

impl<'e, 'c> Loader<'e, 'c> {
    /// `strides` along the outer dim, of which `outer` are there, and along k.
    fn of(
        code: Code<'e, 'c>,
        thread: Num<'e, 'c>,
        matrix: Matrix<'e, 'c>,
        strides: (Num<'e, 'c>, Num<'e, 'c>),
        outer: Num<'e, 'c>,
        tile: Num<'e, 'c>,
    ) -> Self {
        // Neighbouring threads bring neighbouring elements.
        let by_depth = strides.1.lt(strides.0);
        let element = |i: u32| {
            let number = thread + i * SIMT_THREADS;
            let (deep, wide) = (number & (SIMT_DEPTH - 1), number & (SIMT_TILE - 1));
            let depth = by_depth.choose(deep, number.quotient(SIMT_TILE));
            let out = by_depth.choose(number.quotient(SIMT_DEPTH), wide);
            Element {
                from: matrix.first.elements(matrix.dtype, out.long() * strides.0 + depth.long() * strides.1),
                depth,
                inside: out.lt(outer),
                to: tile.bytes((depth * SIMT_LINE + out).long() * 4u32),
            }
        };
        Loader { code, dtype: matrix.dtype, along: strides.1, elements: (0..SHARE).map(element).collect() }
    }

    /// The elements from depth `at` on, of which `left` are there; zeros beyond.
    fn load(&self, at: Num<'e, 'c>, left: Num<'e, 'c>) -> Vec<Num<'e, 'c>> {
        let one = |e: &Element<'e, 'c>| {
            let there = e.inside & e.depth.long().lt(left);
            let load = || vec![e.from.elements(self.dtype, at * self.along).load(self.dtype)];
            self.code.either(there, load, || vec![self.code.f32(0.0)])
        };
        self.elements.iter().flat_map(one).collect()
    }

    /// Puts what was loaded into the tile.
    fn keep(&self, loaded: &[Num<'e, 'c>]) {
        for (element, value) in self.elements.iter().zip(loaded) {
            element.to.store(DType::F32, *value);
        }
    }
}

fn store<'e, 'c>(
    product: &Product<'e, 'c, '_>,
    place: Place<'e, 'c>,
    (y, x): (Num<'e, 'c>, Num<'e, 'c>),
    sums: &[Num<'e, 'c>],
) {
    let code = product.code;
    for (i, line) in sums.chunks(SIDE as usize).enumerate() {
        let row = y + i as i64;
        code.when(row.lt(place.rows), || {
            let element = |(j, &sum): (usize, &Num<'e, 'c>)| {
                let col = x + j as i64;
                Made { row, col, inside: col.lt(place.cols), sum }
            };
            product.put(&place, &line.iter().enumerate().map(element).collect::<Vec<_>>());
        });
    }
}
