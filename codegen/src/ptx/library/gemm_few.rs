//! Products of few rows, as of decode steps: b is read once, 16 bytes a thread and instruction, and many of these are under way at a time.
//! The threads share k; their sums are added by shuffles and through shared memory.

use super::epilogue::Element;
use super::gemm::{Matrix, Place, Product};
use super::tile::CHUNK;
use super::value::Num;
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::gemm::FEW_THREADS;
use pcc_ir::types::DType;

/// Chunks of each column that a lane has under way, where k is b's unit dim: as many as there are registers for with the chunks of a's rows.
fn under_way(rows: u32) -> u32 {
    (8 / rows).clamp(1, 4)
}

/// Rows of b that a thread has under way, where n is.
fn depth(rows: u32) -> u32 {
    if rows <= 2 { 8 } else { 4 }
}

const WARPS: u32 = FEW_THREADS / WARP;

/// Builds the body of the kernel.
pub(super) fn emit(product: &Product<'_, '_, '_>) {
    let (code, kernel) = (product.code, product.kernel);
    let (rows, tile) = (kernel.few_rows(), kernel.few_tile());
    let part = |place| Part { product, place, rows, tile };
    if kernel.b_by_k {
        return product.tiles(rows, tile, |place| part(place).along_k());
    }
    let shared = code.of(code.entry.shared("sums", WARPS * rows * tile * 4));
    product.tiles(rows, tile, |place| part(place).along_n(shared));
}

/// A tile; rows that are not there repeat the last one and are not stored.
struct Part<'p, 'e, 'c, 'k> {
    product: &'p Product<'e, 'c, 'k>,
    place: Place<'e, 'c>,
    rows: u32,
    tile: u32,
}

/// Elements of b that are 16 bytes.
fn chunk(b: DType) -> u32 {
    CHUNK / b.bytes() as u32
}

/// The number of one sum among those of `across` columns.
fn number(row: u32, col: u32, across: u32) -> usize {
    (row * across + col) as usize
}

impl<'e, 'c> Part<'_, 'e, 'c, '_> {
    /// The first elements of the rows of a.
    fn a_rows(&self) -> Vec<Num<'e, 'c>> {
        let (code, a) = (self.product.code, self.place.a);
        let row = |r: u32| a.at(code.i32(r as i32).min(self.place.rows - 1i64), code.i64(0));
        (0..self.rows).map(row).collect()
    }

    /// `count` elements of a row of a from `at` on.
    fn a_run(&self, row: Num<'e, 'c>, at: Num<'e, 'c>, count: u32) -> Vec<Num<'e, 'c>> {
        let Matrix { dtype, col, .. } = self.place.a;
        if self.product.kernel.a_by_k {
            return row.elements(dtype, at).load_run(dtype, count);
        }
        (0..count).map(|i| row.elements(dtype, (at + i) * col).load(dtype)).collect()
    }

    fn a_element(&self, row: Num<'e, 'c>, at: Num<'e, 'c>) -> Num<'e, 'c> {
        let Matrix { dtype, col, .. } = self.place.a;
        row.elements(dtype, at * col).load(dtype)
    }

    fn store(&self, row: Num<'e, 'c>, col: Num<'e, 'c>, sum: Num<'e, 'c>) {
        let inside = row.lt(self.place.rows) & col.lt(self.place.cols);
        self.product.put(&self.place, &[Element { row, col, inside, sum }]);
    }

    /// A column of b is one run of memory: its chunks go round the lanes of a warp.
    fn along_k(&self) {
        let (code, b, k) = (self.product.code, self.place.b, self.product.k);
        let across = self.tile / WARPS;
        let lane = code.special(Special::Lane);
        let first = (code.special(Special::Thread) >> 5u32) * across;
        let last = self.place.cols - 1i64;
        let cols: Vec<Num> = (0..across).map(|j| b.at(code.i64(0), (first + j).min(last))).collect();
        let rows = self.a_rows();
        let size = chunk(b.dtype);
        let add = |sums: &mut [Num<'e, 'c>], at: Num<'e, 'c>, of_b: &[Vec<Num<'e, 'c>>], count: u32| {
            for (r, &row) in rows.iter().enumerate() {
                let of_a = self.a_run(row, at, count);
                for (j, of_b) in of_b.iter().enumerate() {
                    let sum = &mut sums[number(r as u32, j as u32, across)];
                    *sum = of_a.iter().zip(of_b).fold(*sum, |sum, (a, b)| a.fma(*b, sum));
                }
            }
        };
        let load = |at: Num<'e, 'c>, count: u32| -> Vec<Vec<Num>> {
            cols.iter().map(|col| col.elements(b.dtype, at).load_run(b.dtype, count)).collect()
        };
        let chunks = k.quotient(size);
        let turn = |at: Num<'e, 'c>, values: &[Num<'e, 'c>], count: u32| {
            let mut sums = values.to_vec();
            let place = |i: u32| (at + i * WARP) * size;
            let loaded: Vec<_> = (0..count).map(|i| load(place(i), size)).collect();
            for (i, of_b) in loaded.iter().enumerate() {
                add(&mut sums, place(i as u32), of_b, size);
            }
            sums
        };
        let zeros = vec![code.f32(0.0); (self.rows * across) as usize];
        let under_way = under_way(self.rows);
        let end = chunks - i64::from((under_way - 1) * WARP);
        let begin = [zeros, vec![lane.long()]].concat();
        // The last value is where the lane goes on.
        let mut sums = code.count((lane.long(), end), under_way * WARP, &begin, |at, values| {
            let next = at + under_way * WARP;
            [turn(at, &values[..values.len() - 1], under_way), vec![next]].concat()
        });
        let at = sums.pop().unwrap_or(lane.long());
        let sums = code.count((at, chunks), WARP, &sums, |at, sums| turn(at, sums, 1));
        // Less than a chunk is left.
        let at = chunks * size + lane.long();
        let rest = || {
            let mut sums = sums.clone();
            add(&mut sums, at, &load(at, 1), 1);
            sums
        };
        let sums = code.either(at.lt(k), rest, || sums.clone());
        // Every lane has all sums and stores one; the others' rows are beyond those that are there.
        let mut own = code.f32(0.0);
        for (i, sum) in sums.iter().enumerate() {
            own = lane.eq(i as i64).choose(sum.sum_over(&[16, 8, 4, 2, 1]), own);
        }
        self.store(lane.quotient(across), first + lane.remainder(across), own);
    }

    /// A row of b is one run of memory: threads side by side take chunks of it, groups of them take turns along k.
    fn along_n(&self, shared: Num<'e, 'c>) {
        let (code, b, k) = (self.product.code, self.place.b, self.product.k);
        let size = chunk(b.dtype);
        let across = self.tile / size;
        let groups = FEW_THREADS / across;
        let thread = code.special(Special::Thread);
        let (group, col) = (thread.quotient(across).long(), thread.remainder(across) * size);
        let rows = self.a_rows();
        let from = b.at(code.i64(0), col);
        let zeros = vec![code.f32(0.0); (self.rows * size) as usize];
        let add = |sums: &mut [Num<'e, 'c>], of_a: &dyn Fn(usize) -> Num<'e, 'c>, of_b: &[Num<'e, 'c>]| {
            for r in 0..rows.len() {
                let a = of_a(r);
                for (j, b) in of_b.iter().enumerate() {
                    let sum = &mut sums[number(r as u32, j as u32, size)];
                    *sum = a.fma(*b, *sum);
                }
            }
        };
        let one = |at: Num<'e, 'c>, sums: &[Num<'e, 'c>], of_b: Vec<Num<'e, 'c>>| {
            let mut sums = sums.to_vec();
            add(&mut sums, &|r| self.a_element(rows[r], at), &of_b);
            sums
        };
        let line = |at: Num<'e, 'c>| from.elements(b.dtype, at * b.row);
        let whole = || {
            let depth = depth(self.rows);
            let full = k - k.remainder(depth);
            let sums = code.count((group * depth, full), groups * depth, &zeros, |at, sums| {
                let of_b: Vec<_> = (0..depth).map(|i| line(at + i).load_run(b.dtype, size)).collect();
                let of_a: Vec<_> = rows.iter().map(|&row| self.a_run(row, at, depth)).collect();
                let mut sums = sums.to_vec();
                for (i, of_b) in of_b.iter().enumerate() {
                    add(&mut sums, &|r| of_a[r][i], of_b);
                }
                sums
            });
            let last = |at, sums: &[Num<'e, 'c>]| one(at, sums, line(at).load_run(b.dtype, size));
            code.count((full + group, k), groups, &sums, last)
        };
        // The last columns of c, fewer than a chunk.
        let partial = || {
            code.count((group, k), groups, &zeros, |at, sums| {
                let load = |j: u32| {
                    let there = (col + j).lt(self.place.cols);
                    let load = || vec![line(at).bytes(i64::from(j) * b.dtype.bytes() as i64).load(b.dtype)];
                    code.either(there, load, || vec![code.f32(0.0)])
                };
                one(at, sums, (0..size).flat_map(load).collect())
            })
        };
        let sums = code.either((col + (size - 1)).lt(self.place.cols), whole, partial);
        self.join(shared, &sums, size);
    }

    /// Adds the sums of all groups of threads, each thread having `size` columns, and stores them.
    fn join(&self, shared: Num<'e, 'c>, sums: &[Num<'e, 'c>], size: u32) {
        let code = self.product.code;
        let across = self.tile / size;
        let (thread, lane) = (code.special(Special::Thread), code.special(Special::Lane));
        let masks: Vec<u32> = [16, 8, 4, 2, 1].into_iter().filter(|&mask| mask >= across).collect();
        let sums: Vec<Num> = sums.iter().map(|sum| sum.sum_over(&masks)).collect();
        let line = self.tile * 4;
        let of_warp = shared.bytes((thread >> 5u32).long() * (self.rows * line));
        code.when(lane.lt(i64::from(across)), || {
            for (row, sums) in sums.chunks(size as usize).enumerate() {
                let to = of_warp.bytes((lane * (size * 4)).long() + i64::from(row as u32 * line));
                to.store_run(DType::F32, sums);
            }
        });
        code.barrier();
        let all = code.i32((self.rows * self.tile) as i32);
        code.each((thread, all), FEW_THREADS, |number| {
            let at = shared.bytes(number.long() * 4u32);
            let of = |warp: u32| at.bytes(i64::from(warp * self.rows * line)).load(DType::F32);
            let sum = (1..WARPS).fold(of(0), |sum, warp| sum + of(warp));
            self.store(number.quotient(self.tile), number.remainder(self.tile), sum);
        });
        code.barrier();
    }
}
