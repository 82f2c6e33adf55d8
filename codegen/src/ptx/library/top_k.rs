//! [`pcc_ir::program::TopKCall`]: a block a row. Elements are kept by a threshold of their keys, then ranked in shared memory, [`BATCH`] at a time.

use super::selection::{Block, Element, NONE, Row};
use super::value::{Code, Num};
use pcc_ir::gpu::selection::{ROW_DIMS, THREADS, TopKKernel};
use pcc_ir::types::DType;

/// Elements that are ranked together: one a thread.
const BATCH: u32 = THREADS;

/// Builds the body of the kernel.
pub(super) fn emit(code: Code<'_, '_>, kernel: &TopKKernel) {
    let block = Block::of(code);
    let [x, values, indices] = [0, 1, 2].map(|i| code.param_global(i));
    let n = code.param(3).int();
    let dims: Vec<[Num; 4]> =
        (0..ROW_DIMS).map(|d| [0, 1, 2, 3].map(|i| code.param(4 + 4 * d + i))).collect();
    let steps = [0, 1, 2].map(|i| code.param(4 + 4 * ROW_DIMS + i));
    let rows = dims.iter().skip(1).fold(dims[0][0], |rows, dim| rows * dim[0]);
    let list = code.of(code.entry.shared("list", BATCH * 8));
    let count = code.of(code.entry.shared("count", 16));
    block.each_row(rows, |number| {
        let (mut rest, mut offsets) = (number, [code.i64(0); 3]);
        for dim in dims.iter().rev() {
            let index = rest.remainder(dim[0]);
            rest = rest.quotient(dim[0]);
            for (offset, &stride) in offsets.iter_mut().zip(&dim[1..]) {
                *offset = *offset + index * stride;
            }
        }
        let row = Row::of(code, kernel.dtype, x.elements(kernel.dtype, offsets[0]), steps[0], n);
        let top = Top {
            block: &block,
            kernel,
            row: &row,
            values: values.elements(kernel.dtype, offsets[1]),
            indices: indices.elements(DType::I32, offsets[2]),
            steps: [steps[1], steps[2]],
            list,
            count,
        };
        code.either(
            n.le(i64::from(BATCH)),
            || {
                top.take_all();
                vec![]
            },
            || {
                top.take_batches();
                vec![]
            },
        );
    });
}

/// One row, and where its elements go.
struct Top<'p, 'e, 'c> {
    block: &'p Block<'e, 'c>,
    kernel: &'p TopKKernel,
    row: &'p Row<'e, 'c>,
    values: Num<'e, 'c>,
    indices: Num<'e, 'c>,
    steps: [Num<'e, 'c>; 2],
    /// Keys with indices, and their number.
    list: Num<'e, 'c>,
    count: Num<'e, 'c>,
}

impl<'e, 'c> Top<'_, 'e, 'c> {
    fn code(&self) -> Code<'e, 'c> {
        self.block.code
    }

    /// Writes an element to a place of the list: what comes first is the larger i64.
    fn put(&self, place: Num<'e, 'c>, key: Num<'e, 'c>, index: Num<'e, 'c>) {
        let both = key.long() << 32u32 | (self.code().i32(i32::MAX) - index).long();
        self.list.bytes((place * 8u32).long()).store_long(both);
    }

    /// Ranks a row of few elements whole.
    fn take_all(&self) {
        let (code, thread) = (self.code(), self.block.thread);
        code.when(thread.lt(self.row.n), || self.put(thread, self.row.key(thread), thread));
        code.barrier();
        self.rank(code.i32(0), self.row.n);
    }

    /// Finds and ranks the first elements, then those behind them, and so on.
    fn take_batches(&self) {
        let (code, block, row) = (self.code(), self.block, self.row);
        let k = code.i32(self.kernel.k as i32);
        let first = [code.i32(i32::MAX), code.i32(0)];
        code.count((code.i32(0), k), BATCH, &first, |from, last| {
            let until = (from + BATCH).min(k);
            let always = |_: &Element<'e, 'c>| code.i32(0).eq(0i64);
            let (key, before) = block.first(row, until.long(), always);
            code.when(block.thread.eq(0i64), || self.count.store_words(&[code.i32(0)]));
            code.barrier();
            row.scan(block.all(row), THREADS, &[], |element, _| {
                let within = |key: Num<'e, 'c>, before: Num<'e, 'c>| {
                    element.key.gt(key) | (element.key.eq(key) & element.index.lt(before))
                };
                // Those before were ranked already.
                let done = within(last[0], last[1]);
                let here = within(key, before) & element.key.ne(i64::from(NONE)) & done.int().eq(0i64);
                code.when(here, || {
                    let place = self.count.add_atomic(code.i32(1));
                    self.put(place, element.key, element.index);
                });
                vec![]
            });
            code.barrier();
            self.rank(from, until - from);
            vec![key, before]
        });
    }

    /// Writes the elements of the list, of which the first has this rank.
    fn rank(&self, from: Num<'e, 'c>, count: Num<'e, 'c>) {
        let (code, thread) = (self.code(), self.block.thread);
        let at = |place: Num<'e, 'c>| self.list.bytes((place * 8u32).long()).load_long();
        code.when(thread.lt(count), || {
            let mine = at(thread);
            let rank = code.count((code.i32(0), count), 1i64, &[from], |other, rank| {
                vec![rank[0] + at(other).gt(mine).int()]
            })[0];
            code.when(rank.lt(i64::from(self.kernel.k)), || {
                let index = code.i32(i32::MAX) - mine.int();
                let dtype = self.kernel.dtype;
                let [value, place] = self.steps.map(|step| rank.long() * step);
                self.values.elements(dtype, value).store(dtype, self.row.at(index).load(dtype));
                self.indices.elements(DType::I32, place).store_words(&[index]);
            });
        });
        // The next list comes into the same memory.
        code.barrier();
    }
}
