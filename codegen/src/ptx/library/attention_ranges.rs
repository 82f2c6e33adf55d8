//! What ranges of keys give, and the kernel that joins it ("flash decoding": Dao et al., 2023).

use super::attention::View;
use super::value::{Code, Num};
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::attention::JoinKernel;
use pcc_ir::types::DType;

/// Partial results in global memory, as [`JoinKernel`] describes them. Numbers are i64.
pub(super) struct Partials<'e, 'c> {
    pub ranges: Num<'e, 'c>,
    /// Rows of a head, and columns of the values.
    rows: Num<'e, 'c>,
    e: u32,
    values: Num<'e, 'c>,
    summaries: Num<'e, 'c>,
}

impl<'e, 'c> Partials<'e, 'c> {
    pub fn of(
        first: Num<'e, 'c>,
        (heads, ranges, rows): (Num<'e, 'c>, Num<'e, 'c>, Num<'e, 'c>),
        e: u32,
    ) -> Self {
        let values = first.bytes(heads * ranges * rows * 8u32);
        Partials { ranges, rows, e, values, summaries: first }
    }

    /// The number of a row's result over a range.
    pub fn place(&self, head: Num<'e, 'c>, range: Num<'e, 'c>, row: Num<'e, 'c>) -> Num<'e, 'c> {
        (head * self.ranges + range) * self.rows + row
    }

    /// The address of its values from a column on.
    pub fn values(&self, place: Num<'e, 'c>, column: Num<'e, 'c>) -> Num<'e, 'c> {
        self.values.elements(DType::F32, place * self.e + column)
    }

    /// The address of its largest score and sum of weights.
    pub fn summary(&self, place: Num<'e, 'c>) -> Num<'e, 'c> {
        self.summaries.elements(DType::F32, place * 2u32)
    }
}

/// Builds the body of the kernel that joins ranges.
pub(super) fn emit(code: Code<'_, '_>, kernel: &JoinKernel) {
    let [b, s, g, r, ranges] = [2, 3, 4, 5, 6].map(|i| code.param(i));
    let strides = (7..12).map(|i| code.param(i)).collect();
    let out = View::of(kernel.dtype, code.param_global(1), strides);
    let partials = Partials::of(code.param_global(0), (b * g, ranges, s * r), kernel.e);
    let special = |which| code.special(which).long();
    let queries = (special(Special::BlockX), b * g * s * r);
    code.each(queries, special(Special::BlocksX), |query| {
        let rows = s * r;
        let (head, row) = (query.quotient(rows), query.remainder(rows));
        let index = [head.quotient(g), row.quotient(r), head.remainder(g), row.remainder(r)];
        let join = Join { code, kernel, partials: &partials, head, row };
        let max = join.max();
        let columns = (code.i64(0), code.i64(kernel.e.into()));
        code.each(columns, JoinKernel::COLUMNS, |column| {
            join.sum(column, max, |column, value| {
                let [b, s, g, r] = index;
                out.at(&[b, s, g, r, column]).store(kernel.dtype, value);
            });
        });
    });
}

/// One query's results.
struct Join<'p, 'e, 'c> {
    code: Code<'e, 'c>,
    kernel: &'p JoinKernel,
    partials: &'p Partials<'e, 'c>,
    head: Num<'e, 'c>,
    row: Num<'e, 'c>,
}

impl<'e, 'c> Join<'_, 'e, 'c> {
    fn place(&self, range: Num<'e, 'c>) -> Num<'e, 'c> {
        self.partials.place(self.head, range, self.row)
    }

    /// The largest score of all ranges, in every lane of every warp.
    fn max(&self) -> Num<'e, 'c> {
        let code = self.code;
        let lane = code.special(Special::Lane).long();
        let first = [code.f32(f32::MIN)];
        let max = code.count((lane, self.partials.ranges), WARP, &first, |range, max| {
            vec![max[0].max(self.partials.summary(self.place(range)).load(DType::F32))]
        });
        max[0].max_over(&[16, 8, 4, 2, 1])
    }

    /// Joins columns `from..`, [`JoinKernel::COLUMNS`] at most: each warp sums the ranges of its turn, and the block sums the warps.
    fn sum(&self, from: Num<'e, 'c>, max: Num<'e, 'c>, store: impl FnOnce(Num<'e, 'c>, Num<'e, 'c>)) {
        let (code, e) = (self.code, self.kernel.e);
        let width = e.min(JoinKernel::COLUMNS);
        let thread = code.special(Special::Thread);
        let (warp, lane) = ((thread >> 5u32).long(), code.special(Special::Lane).long());
        let mine: Vec<Num> = (0..width.div_ceil(WARP)).map(|i| lane + i * WARP).collect();
        let inside = |column: Num<'e, 'c>| column.lt(i64::from(width)) & (from + column).lt(i64::from(e));
        let first = vec![code.f32(0.0); 1 + mine.len()];
        let sums = code.count((warp, self.partials.ranges), JoinKernel::WARPS, &first, |range, sums| {
            let place = self.place(range);
            let summary = self.partials.summary(place).load_run(DType::F32, 2);
            let add = || {
                let weight = (summary[0] - max).exp2();
                let one = |(&column, &sum): (&Num<'e, 'c>, &Num<'e, 'c>)| {
                    let add =
                        || vec![weight.fma(self.partials.values(place, from + column).load(DType::F32), sum)];
                    code.either(inside(column), add, || vec![sum])[0]
                };
                let values = mine.iter().zip(&sums[1..]).map(one).collect();
                [vec![weight.fma(summary[1], sums[0])], values].concat()
            };
            // Where nothing was seen there are no values.
            code.either(summary[1].ne(0i64), add, || sums.to_vec())
        });
        let line = (width + 1) * 4;
        let region = code.shared().bytes(warp * line);
        code.when(lane.eq(0i64), || region.store(DType::F32, sums[0]));
        for (&column, &sum) in mine.iter().zip(&sums[1..]) {
            code.when(column.lt(i64::from(width)), || {
                region.bytes(column * 4u32 + 4u32).store(DType::F32, sum);
            });
        }
        code.barrier();
        let column = thread.long();
        code.when(inside(column), || {
            let total = |offset: Num<'e, 'c>| {
                let of_warp = |w: u32| code.shared().bytes(offset + w * line).load(DType::F32);
                (1..JoinKernel::WARPS).fold(of_warp(0), |sum, w| sum + of_warp(w))
            };
            let (weights, sum) = (total(code.i64(0)), total(column * 4u32 + 4u32));
            let none = weights.eq(0i64);
            store(from + column, sum * none.choose(code.f32(0.0), weights.inverse()));
        });
        // The next columns come into the same memory.
        code.barrier();
    }
}
