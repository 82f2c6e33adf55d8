//! The results of a warp of a product on tensor cores: fragments of 16 x 8 over a part of the block's tile, and how they leave the registers.

use super::epilogue::Element;
use super::gemm::{Place, Product};
use super::tile::{SIDE, place};
use super::value::Num;
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::types::DType;
use std::ops::Range;

/// Columns of a fragment.
const COLS: u32 = 8;
/// Registers of a fragment, of each lane.
const REGISTERS: usize = 4;

/// A warp's results.
pub(super) struct Accumulator<'e, 'c> {
    pub rows: u32,
    pub cols: u32,
    /// Their first row and column in the block's tile.
    pub corner: (Num<'e, 'c>, Num<'e, 'c>),
}

impl<'e, 'c> Accumulator<'e, 'c> {
    /// Registers of a lane.
    pub fn registers(&self) -> usize {
        (self.rows / SIDE * (self.cols / COLS)) as usize * REGISTERS
    }

    /// The registers of a fragment, by its number among those below and beside each other.
    pub fn fragment(&self, row: usize, col: usize) -> Range<usize> {
        let first = (row * (self.cols / COLS) as usize + col) * REGISTERS;
        first..first + REGISTERS
    }

    /// Row and column of register `i` in the block's tile.
    pub fn place(&self, lane: Num<'e, 'c>, i: usize) -> (Num<'e, 'c>, Num<'e, 'c>) {
        let (fragment, i) = (i / REGISTERS, (i % REGISTERS) as u32);
        let (row, col) = (fragment as u32 / (self.cols / COLS), fragment as u32 % (self.cols / COLS));
        let (r, c) = place(lane, i);
        (self.corner.0 + r + row * SIDE, self.corner.1 + c + col * COLS)
    }

    /// Writes `alpha * sums` to c. Every register's value passes through here with its place.
    pub fn store(&self, product: &Product<'e, 'c, '_>, at: Place<'e, 'c>, cols: u32, sums: &[Num<'e, 'c>]) {
        let code = product.code;
        let (c, size) = (at.c, at.c.dtype.bytes() as i64);
        let lane = code.special(Special::Lane);
        // Neighbours of a row leave together where the whole row is there and all pairs are aligned.
        let pairs = c.first.address() | (c.row * size);
        let whole = c.col.eq(1i64) & (pairs & (2 * size - 1)).eq(0i64) & at.cols.eq(i64::from(cols));
        for line in self.lines() {
            let (row, _) = self.place(lane, line[0]);
            code.when(row.lt(at.rows), || {
                let value = |i: usize| sums[i] * product.alpha;
                let to = |i: usize| c.at(row, self.place(lane, i).1);
                let together = || {
                    for pair in line.chunks(2) {
                        to(pair[0]).store_run(c.dtype, &[value(pair[0]), value(pair[1])]);
                    }
                    vec![]
                };
                let apart = || {
                    for &i in &line {
                        let inside = self.place(lane, i).1.lt(at.cols);
                        code.when(inside, || to(i).store(c.dtype, value(i)));
                    }
                    vec![]
                };
                code.either(whole, together, apart);
            });
        }
    }

    /// As [`Accumulator::store`], with an epilogue: by way of the block's shared memory, where elements of a row get to lanes side by side, and
    /// one after another to the same code. Nobody else uses that memory; `warp` is the warp's number.
    pub fn finish(
        &self,
        product: &Product<'e, 'c, '_>,
        at: Place<'e, 'c>,
        shared: (Num<'e, 'c>, Num<'e, 'c>),
        sums: &[Num<'e, 'c>],
    ) {
        let code = product.code;
        let lane = code.special(Special::Lane);
        let (all, warp) = shared;
        let part = all.bytes((warp * (self.rows * self.cols * 4)).long());
        // Elements of one column and adjacent rows lie in different banks.
        let to = |row: Num<'e, 'c>, col: Num<'e, 'c>| {
            let turned = col ^ ((row & (self.cols / COLS - 1).min(7)) << COLS.trailing_zeros());
            part.bytes(((row * self.cols + turned) * 4u32).long())
        };
        let inner = Accumulator { corner: (code.i32(0), code.i32(0)), ..*self };
        for pair in (0..sums.len()).step_by(2) {
            let (row, col) = inner.place(lane, pair);
            to(row, col).store_run(DType::F32, &sums[pair..pair + 2]);
        }
        code.warp_barrier();
        let together = product.together();
        let count = code.i32((self.rows * self.cols) as i32);
        code.each((lane, count), together * WARP, |number| {
            let element = |i: u32| {
                let number = number + i * WARP;
                let (row, col) = (number.quotient(self.cols), number.remainder(self.cols));
                let sum = to(row, col).load(DType::F32);
                let (row, col) = (self.corner.0 + row, self.corner.1 + col);
                Element { row, col, inside: row.lt(at.rows) & col.lt(at.cols), sum }
            };
            product.put(&at, &(0..together).map(element).collect::<Vec<_>>());
        });
        // The next tile's stages begin here.
        code.barrier();
    }

    /// The registers of each row of a lane, from left to right.
    fn lines(&self) -> Vec<Vec<usize>> {
        let fragments = (self.cols / COLS) as usize;
        let line = |row: usize, half: usize| {
            (0..fragments).flat_map(|col| self.fragment(row, col).skip(half * 2).take(2)).collect()
        };
        (0..(self.rows / SIDE) as usize).flat_map(|row| [line(row, 0), line(row, 1)]).collect()
    }
}
