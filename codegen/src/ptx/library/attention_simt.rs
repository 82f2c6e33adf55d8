//! Attention for any types, sizes and strides: a warp for each query. Lanes take a key each for the scores, then columns of the values.

use super::attention::{Call, Query, Scoring, Sight};
use super::value::Num;
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::types::DType;

/// Columns of the values that a pass over the keys sums at most, a few in each lane.
const COLUMNS: u32 = 256;
/// Elements of the dot product in one turn of its loop.
const UNROLLED: u32 = 4;

/// Builds the body of the kernel.
pub(super) fn emit(call: &Call<'_, '_, '_>) {
    let code = call.code;
    let special = |which| code.special(which).long();
    let row = special(Special::BlockX) * call.kernel.rows() + (special(Special::Thread) >> 5i64);
    let heads = call.b * call.g * call.r;
    code.each((special(Special::BlockY), heads), special(Special::BlocksY), |y| {
        let rest = y.quotient(call.r);
        let query =
            Query { b: rest.quotient(call.g), s: row, g: rest.remainder(call.g), r: y.remainder(call.r) };
        // A warp by itself: no other waits for it.
        code.when(row.lt(call.s), || {
            let sight = call.sight(query);
            let scoring = call.scoring(query);
            let lane = code.special(Special::Lane).long();
            call.each_range(|range, keys| {
                let warp = Warp { call, query, sight, scoring, lane, range, keys };
                let columns = (code.i64(0), code.i64(call.kernel.e.into()));
                code.each(columns, COLUMNS, |column| warp.pass(column));
            });
        });
    });
}

/// One query.
struct Warp<'p, 'e, 'c, 'k> {
    call: &'p Call<'e, 'c, 'k>,
    query: Query<'e, 'c>,
    sight: Sight<'e, 'c>,
    scoring: Scoring<'e, 'c>,
    lane: Num<'e, 'c>,
    /// A range of keys: its number, the first key and the one behind the last.
    range: Num<'e, 'c>,
    keys: (Num<'e, 'c>, Num<'e, 'c>),
}

impl<'e, 'c> Warp<'_, 'e, 'c, '_> {
    /// Columns `column..` of the result, [`COLUMNS`] at most.
    fn pass(&self, column: Num<'e, 'c>) {
        let (call, code) = (self.call, self.call.code);
        let e = call.kernel.e;
        let mine: Vec<Num> =
            (0..COLUMNS.min(e).div_ceil(WARP)).map(|i| column + self.lane + i * WARP).collect();
        let zero = code.f32(0.0);
        let first = [vec![code.f32(f32::NEG_INFINITY), zero], vec![zero; mine.len()]].concat();
        let state = code.count(self.keys, WARP, &first, |from, state| {
            let key = from + self.lane;
            let load = || call.k_pos.at(&[self.query.b, key]).load_words(1);
            let k_pos = code.either(key.lt(self.keys.1), load, || vec![code.i32(-1)])[0];
            let seen = self.sight.sees(k_pos);
            let some = seen.ballot().ne(0i64);
            code.either(some, || self.add(from, (key, k_pos, seen), &mine, state), || state.to_vec())
        });
        let Query { b, s, g, r } = self.query;
        if let Some(partials) = &call.partials {
            let place = partials.place(b * call.g + g, self.range, s * call.r + r);
            let (max, sum) = (state[0], state[1]);
            for (&column, &x) in mine.iter().zip(&state[2..]) {
                let there = column.lt(i64::from(e)) & sum.ne(0i64);
                code.when(there, || partials.values(place, column).store(DType::F32, x));
            }
            // Passes over other columns find the same.
            code.when(self.lane.eq(0i64), || partials.summary(place).store_run(DType::F32, &[max, sum]));
            return;
        }
        let normaliser = call.normaliser(state[1]);
        for (&column, &sum) in mine.iter().zip(&state[2..]) {
            let to = call.out.at(&[b, s, g, r, column]);
            code.when(column.lt(i64::from(e)), || to.store(call.out.dtype, sum * normaliser));
        }
    }

    /// Adds 32 keys, of which some are seen, to the largest score, the sum of weights and the weighted sums.
    fn add(
        &self,
        from: Num<'e, 'c>,
        (key, k_pos, seen): (Num<'e, 'c>, Num<'e, 'c>, Num<'e, 'c>),
        mine: &[Num<'e, 'c>],
        state: &[Num<'e, 'c>],
    ) -> Vec<Num<'e, 'c>> {
        let (call, code) = (self.call, self.call.code);
        let hidden = code.f32(f32::NEG_INFINITY);
        let score = || vec![call.biased(call.scaled(self.product(key)), self.scoring, k_pos)];
        let score = code.either(seen, score, || vec![hidden])[0];
        let all = [16, 8, 4, 2, 1];
        let max = state[0].max(score.max_over(&all));
        let base = call.base(max);
        let weight = (score - base).exp2();
        let correction = (state[0] - base).exp2();
        let sum = state[1].fma(correction, weight.sum_over(&all));
        let sums: Vec<Num> = state[2..].iter().map(|&x| x * correction).collect();
        let keys = (code.i64(0), (self.keys.1 - from).min(i64::from(WARP)));
        let sums = code.count(keys, 1i64, &sums, |j, sums| {
            let weight = weight.of_lane(j.int());
            // The values of hidden keys are never read: there may be anything.
            let add = || self.add_value(from + j, weight, mine, sums);
            code.either(weight.ne(0i64), add, || sums.to_vec())
        });
        [vec![max, sum], sums].concat()
    }

    /// The dot product of the query and a key.
    fn product(&self, key: Num<'e, 'c>) -> Num<'e, 'c> {
        let (call, code) = (self.call, self.call.code);
        let Query { b, s, g, r } = self.query;
        let d = call.kernel.d;
        let (q, k) = (call.q.at(&[b, s, g, r]), call.k.at(&[b, key, g]));
        let term = |i: Num<'e, 'c>, sum: Num<'e, 'c>| {
            let x = q.elements(call.q.dtype, i * call.q.stride(4)).load(call.q.dtype);
            x.fma(k.elements(call.k.dtype, i * call.k.stride(3)).load(call.k.dtype), sum)
        };
        let whole = code.i64(i64::from(d / UNROLLED * UNROLLED));
        let sum = code.count((code.i64(0), whole), UNROLLED, &[code.f32(0.0)], |i, sum| {
            vec![(0..UNROLLED).fold(sum[0], |sum, j| term(i + j, sum))]
        })[0];
        (0..d % UNROLLED).fold(sum, |sum, j| term(whole + j, sum))
    }

    /// Adds a key's values.
    fn add_value(
        &self,
        key: Num<'e, 'c>,
        weight: Num<'e, 'c>,
        mine: &[Num<'e, 'c>],
        sums: &[Num<'e, 'c>],
    ) -> Vec<Num<'e, 'c>> {
        let (call, code) = (self.call, self.call.code);
        let e = call.kernel.e;
        let row = call.v.at(&[self.query.b, key, self.query.g]);
        let one = |(&column, &sum): (&Num<'e, 'c>, &Num<'e, 'c>)| {
            let add = || {
                let value = row.elements(call.v.dtype, column * call.v.stride(3)).load(call.v.dtype);
                vec![weight.fma(value, sum)]
            };
            // Every lane has a column where these are many enough.
            if e.is_multiple_of(COLUMNS.min(e.next_multiple_of(WARP))) {
                return add();
            }
            code.either(column.lt(i64::from(e)), add, || vec![sum])
        };
        mine.iter().zip(sums).flat_map(one).collect()
    }
}
