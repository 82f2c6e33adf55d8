//! What top-k and sampling have in common: a block walks over a row, finds thresholds by radix, and places by sums.
//!
//! Elements are compared by *keys*, i32 in the order of the elements: NaN has the largest, zeros of either sign have one. Sums are of u64.

use super::value::{Code, Num};
use crate::emit::ir::V;
use crate::ptx::entry::Special;
use pcc_ir::gpu::WARP;
use pcc_ir::gpu::selection::THREADS;
use pcc_ir::types::DType;

const WARPS: u32 = THREADS / WARP;
/// Bins of a histogram: digits have 11 bits, 11 and 10.
const BINS: u32 = 2048;
/// Elements that a thread loads at a time, so that memory is kept busy.
const AT_ONCE: u32 = 16;

/// The key of NaN, and the one below that of every element: of what is none.
pub(super) const NAN: i32 = i32::MAX;
pub(super) const NONE: i32 = i32::MIN;
/// Of the infinities.
pub(super) const INFINITY: i32 = 0x7f80_0000;
pub(super) const MINUS_INFINITY: i32 = 0x807f_ffff_u32 as i32;

/// The key of an f32.
pub(super) fn key_of<'e, 'c>(code: Code<'e, 'c>, value: Num<'e, 'c>) -> Num<'e, 'c> {
    // Minus zero and zero are zero.
    let bits = (value + code.f32(0.0)).bits();
    let key = bits.lt(0i64).choose(bits ^ i64::from(i32::MAX), bits);
    value.ne(value).choose(code.i32(NAN), key)
}

/// The f32 of a key that is not NaN's.
pub(super) fn value_of<'e, 'c>(key: Num<'e, 'c>) -> Num<'e, 'c> {
    key.lt(0i64).choose(key ^ i64::from(i32::MAX), key).as_float()
}

/// An element of a row; one beyond its end has the key [`NONE`].
#[derive(Clone, Copy)]
pub(super) struct Element<'e, 'c> {
    /// i32, as the key is.
    pub index: Num<'e, 'c>,
    pub key: Num<'e, 'c>,
    pub value: Num<'e, 'c>,
}

/// A row in global memory.
pub(super) struct Row<'e, 'c> {
    code: Code<'e, 'c>,
    dtype: DType,
    first: Num<'e, 'c>,
    /// In elements, i64.
    stride: Num<'e, 'c>,
    /// Elements, i32.
    pub n: Num<'e, 'c>,
    /// Whether groups of 16 bytes can be read at once.
    wide: Num<'e, 'c>,
}

impl<'e, 'c> Row<'e, 'c> {
    pub fn of(
        code: Code<'e, 'c>,
        dtype: DType,
        first: Num<'e, 'c>,
        stride: Num<'e, 'c>,
        n: Num<'e, 'c>,
    ) -> Self {
        let wide = stride.eq(1i64) & (first.address() & 15i64).eq(0i64);
        Row { code, dtype, first, stride, n, wide }
    }

    /// Elements of a group.
    fn run(&self) -> u32 {
        16 / self.dtype.bytes() as u32
    }

    /// Groups of the row.
    pub fn groups(&self) -> Num<'e, 'c> {
        self.n.tiles(self.run())
    }

    /// The address of an element.
    pub fn at(&self, index: Num<'e, 'c>) -> Num<'e, 'c> {
        self.first.elements(self.dtype, index.long() * self.stride)
    }

    /// The key of an element.
    pub fn key(&self, index: Num<'e, 'c>) -> Num<'e, 'c> {
        key_of(self.code, self.at(index).load(self.dtype))
    }

    /// The elements of a group, if it lies before `to`.
    fn group(&self, group: Num<'e, 'c>, to: Num<'e, 'c>) -> Vec<Element<'e, 'c>> {
        let (code, run) = (self.code, self.run());
        let first = group * run;
        let end = group.lt(to).choose(self.n, code.i32(0));
        let whole = self.wide & (first + run).le(end);
        let one = |i: u32| {
            let index = first + i;
            let load = || vec![self.at(index).load(self.dtype)];
            code.either(index.lt(end), load, || vec![code.f32(0.0)])[0]
        };
        let values =
            code.either(whole, || self.at(first).load_run(self.dtype, run), || (0..run).map(one).collect());
        let element = |(i, value): (u32, Num<'e, 'c>)| {
            let index = first + i;
            Element { index, key: index.lt(end).choose(key_of(code, value), code.i32(NONE)), value }
        };
        (0..).zip(values).map(element).collect()
    }

    /// Runs `body` for all elements of groups `from, from + step, ..` below `to`, in order of their index, with values carried along.
    pub fn scan(
        &self,
        (from, to): (Num<'e, 'c>, Num<'e, 'c>),
        step: u32,
        first: &[Num<'e, 'c>],
        mut body: impl FnMut(&Element<'e, 'c>, Vec<Num<'e, 'c>>) -> Vec<Num<'e, 'c>>,
    ) -> Vec<Num<'e, 'c>> {
        let groups = AT_ONCE / self.run();
        self.code.count((from, to), step * groups, first, |at, state| {
            // All are loaded before the first is looked at.
            let elements: Vec<Element> = (0..groups).flat_map(|i| self.group(at + i * step, to)).collect();
            elements.iter().fold(state.to_vec(), |state, element| body(element, state))
        })
    }
}

/// A block and its shared memory.
pub(super) struct Block<'e, 'c> {
    pub code: Code<'e, 'c>,
    pub thread: Num<'e, 'c>,
    lane: Num<'e, 'c>,
    warp: Num<'e, 'c>,
    /// The low halves of the bins, then the high ones.
    bins: Num<'e, 'c>,
    /// A u64 of each warp.
    sums: Num<'e, 'c>,
    /// What one thread found: a bin, the rest and the sum of the bin.
    found: Num<'e, 'c>,
}

/// The element at which the sum over all of the largest keys passes a target.
#[derive(Clone, Copy)]
pub(super) struct Threshold<'e, 'c> {
    pub key: Num<'e, 'c>,
    /// The target less the sum over all larger keys: below `sum`.
    pub rest: Num<'e, 'c>,
    /// The sum over all elements of the key.
    pub sum: Num<'e, 'c>,
}

impl<'e, 'c> Block<'e, 'c> {
    pub fn of(code: Code<'e, 'c>) -> Self {
        let thread = code.special(Special::Thread);
        let shared = |name: &str, bytes: u32| code.of(V::from(code.entry.shared(name, bytes)));
        Block {
            code,
            thread,
            lane: code.special(Special::Lane),
            warp: thread >> 5u32,
            bins: shared("bins", BINS * 8),
            sums: shared("sums", WARPS * 8),
            found: shared("found", 32),
        }
    }

    /// Runs `body` for each row of the block.
    pub fn each_row(&self, rows: Num<'e, 'c>, body: impl FnOnce(Num<'e, 'c>)) {
        let special = |which| self.code.special(which).long();
        self.code.each((special(Special::BlockX), rows), special(Special::BlocksX), body);
    }

    /// All groups of a row, shared out among the threads.
    pub fn all(&self, row: &Row<'e, 'c>) -> (Num<'e, 'c>, Num<'e, 'c>) {
        (self.thread, row.groups())
    }

    /// A value of each warp, in every thread. Every lane of a warp has it.
    fn of_warps(&self, value: Num<'e, 'c>) -> Vec<Num<'e, 'c>> {
        let code = self.code;
        let place = |warp: Num<'e, 'c>| self.sums.bytes((warp * 8u32).long());
        code.when(self.lane.eq(0i64), || place(self.warp).store_long(value));
        code.barrier();
        let all = (0..WARPS).map(|w| self.sums.bytes(i64::from(w * 8)).load_long()).collect();
        // The next values come into the same memory.
        code.barrier();
        all
    }

    /// Key and index of the largest element, the first one of several.
    pub fn largest(&self, row: &Row<'e, 'c>) -> (Num<'e, 'c>, Num<'e, 'c>) {
        let code = self.code;
        let first = [code.i32(NONE), code.i32(0)];
        let best = row.scan(self.all(row), THREADS, &first, |element, best| {
            let better = element.key.gt(best[0]);
            vec![better.choose(element.key, best[0]), better.choose(element.index, best[1])]
        });
        let most = |a: Num<'e, 'c>, b| a.max(b);
        let mine = best[0].long() << 32u32 | (code.i32(i32::MAX) - best[1]).long();
        let mine = [16, 8, 4, 2, 1].iter().fold(mine, |x, &mask| most(x, x.of_lane_xor_long(mask)));
        let best = self.of_warps(mine).into_iter().reduce(most).unwrap_or(mine);
        ((best >> 32u32).int(), code.i32(i32::MAX) - best.int())
    }

    /// The sum of a u64 over the elements from group to group.
    fn sum_of_warp(
        &self,
        row: &Row<'e, 'c>,
        range: (Num<'e, 'c>, Num<'e, 'c>),
        step: u32,
        amount: impl Fn(&Element<'e, 'c>) -> Num<'e, 'c>,
    ) -> Num<'e, 'c> {
        let mine = row.scan(range, step, &[self.code.i64(0)], |element, sum| vec![sum[0] + amount(element)]);
        [16, 8, 4, 2, 1].iter().fold(mine[0], |x, &mask| x + x.of_lane_xor_long(mask))
    }

    /// The sum of a u64 over the elements of the row.
    pub fn sum(&self, row: &Row<'e, 'c>, amount: impl Fn(&Element<'e, 'c>) -> Num<'e, 'c>) -> Num<'e, 'c> {
        let mine = self.sum_of_warp(row, self.all(row), THREADS, amount);
        self.of_warps(mine).into_iter().reduce(|a, b| a + b).unwrap_or(mine)
    }

    /// The index of the first element for which the sum of a u64 over all elements up to it passes a target. Each turn finds a warp's
    /// part of what is left.
    pub fn place(
        &self,
        row: &Row<'e, 'c>,
        target: Num<'e, 'c>,
        amount: impl Fn(&Element<'e, 'c>) -> Num<'e, 'c>,
    ) -> Num<'e, 'c> {
        let code = self.code;
        let found = code.repeat(
            &[code.i32(0), row.groups(), target],
            |state| state[1].gt(state[0] + 1i64),
            |state| {
                let (from, to, target) = (state[0], state[1], state[2]);
                let part = (to - from).tiles(WARPS);
                let mine = (from + self.warp * part).min(to);
                let range = (mine + self.lane, (mine + part).min(to));
                let sums = self.of_warps(self.sum_of_warp(row, range, WARP, &amount));
                let (mut before, mut begin, mut rest) = (code.i64(0), from, target);
                for (warp, sum) in (1u32..).zip(&sums[..WARPS as usize - 1]) {
                    // The target is not within this warp's part.
                    before = before + *sum;
                    let beyond = before.not_above(target);
                    begin = beyond.choose(from + part * warp, begin);
                    rest = beyond.choose(target - before, rest);
                }
                vec![begin, (begin + part).min(to), rest]
            },
        );
        let mut sum = code.i64(0);
        let mut place = code.i32(0);
        for element in row.group(found[0], found[1]) {
            let beyond = sum.not_above(found[2]);
            place = (beyond & element.key.ne(i64::from(NONE))).choose(element.index, place);
            sum = sum + amount(&element);
        }
        place
    }

    /// The largest key for which the sum of a u64 over the elements of that key and all larger ones passes a target, digit by digit.
    /// Elements count of which `counts` holds.
    pub fn threshold(
        &self,
        row: &Row<'e, 'c>,
        target: Num<'e, 'c>,
        counts: impl Fn(&Element<'e, 'c>) -> Num<'e, 'c>,
        amount: impl Fn(&Element<'e, 'c>) -> Num<'e, 'c>,
    ) -> Threshold<'e, 'c> {
        let code = self.code;
        // The first key of the digits found so far, how many less one there are, bits behind the next digit.
        let first = [code.i32(i32::MIN), code.i32(-1), code.i32(21), target, code.i64(0), code.i32(0)];
        let last = code.repeat(
            &first,
            |state| state[5].lt(3i64),
            |state| {
                let (low, span, shift) = (state[0], state[1], state[2]);
                self.clear();
                row.scan(self.all(row), THREADS, &[], |element, _| {
                    let beyond = element.key - low;
                    let inside = beyond.not_above(span) & element.key.ne(i64::from(NONE));
                    code.when(inside & counts(element), || self.add(beyond >> shift, amount(element)));
                    vec![]
                });
                code.barrier();
                let (bin, rest, sum) = self.find(state[3]);
                let next = (shift - 11i64).max(0i64);
                vec![low + (bin << shift), (code.i32(1) << shift) - 1i64, next, rest, sum, state[5] + 1i64]
            },
        );
        Threshold { key: last[0], rest: last[3], sum: last[4] }
    }

    /// The first so many elements of those that count, in descending order and by index where keys are equal: those of larger keys than this one, and those
    /// of it before this index.
    pub fn first(
        &self,
        row: &Row<'e, 'c>,
        number: Num<'e, 'c>,
        counts: impl Fn(&Element<'e, 'c>) -> Num<'e, 'c>,
    ) -> (Num<'e, 'c>, Num<'e, 'c>) {
        let code = self.code;
        let found = self.threshold(row, number - 1i64, &counts, |_| code.i64(1));
        let equal = |x: &Element<'e, 'c>| (x.key.eq(found.key) & counts(x)).int().long();
        let before = code.either(
            (found.rest + 1i64).ne(found.sum),
            || vec![self.place(row, found.rest, equal) + 1i64],
            || vec![code.i32(i32::MAX)],
        );
        (found.key, before[0])
    }

    /// Empties the bins.
    fn clear(&self) {
        let code = self.code;
        let zero = [code.i32(0); 4];
        for i in 0..BINS * 8 / (THREADS * 16) {
            self.bins.bytes((self.thread * 16u32).long() + i * THREADS * 16).store_words(&zero);
        }
        code.barrier();
    }

    /// Adds a u64 to a bin, its halves one after another: who makes the low one pass its end carries.
    fn add(&self, bin: Num<'e, 'c>, amount: Num<'e, 'c>) {
        let code = self.code;
        let low = self.bins.bytes((bin * 4u32).long());
        let before = low.add_atomic(amount.int());
        let sum = before + amount.int();
        let carry = before.not_above(sum).choose(code.i32(0), code.i32(1));
        let high = (amount >> 32u32).int() + carry;
        code.when(high.ne(0i64), || {
            low.bytes(i64::from(BINS * 4)).add_atomic(high);
        });
    }

    /// The bin at which the sum from the last one down passes a target, what is left of that, and the sum of the bin.
    fn find(&self, target: Num<'e, 'c>) -> (Num<'e, 'c>, Num<'e, 'c>, Num<'e, 'c>) {
        let code = self.code;
        let each = BINS / THREADS;
        // The thread's bins, the last one first.
        let top = code.i32(BINS as i32 - 1) - self.thread * each;
        let half = |i: u32, half: u32| {
            let at = (top - i64::from(i)) * 4u32 + half * BINS * 4;
            self.bins.bytes(at.long()).load_words(1)[0]
        };
        let mine: Vec<Num> = (0..each).map(|i| half(i, 0).joined(half(i, 1))).collect();
        let own = mine.iter().skip(1).fold(mine[0], |sum, &x| sum + x);
        let mut until = own;
        for distance in [1i64, 2, 4, 8, 16] {
            let other = until.of_lane_long((self.lane - distance) & (WARP - 1));
            until = until + self.lane.lt(distance).choose(code.i64(0), other);
        }
        let warps = self.of_warps(until.of_lane_long(code.i32(WARP as i32 - 1)));
        let earlier = |(w, &sum): (i64, &Num<'e, 'c>)| self.warp.gt(w).choose(sum, code.i64(0));
        let before = (0..).zip(&warps).map(earlier).fold(code.i64(0), |sum, x| sum + x);
        let mut sum = before + until - own;
        for (i, &amount) in (0i64..).zip(&mine) {
            let next = sum + amount;
            let here = sum.not_above(target) & next.above(target);
            code.when(here, || {
                self.found.store_words(&[top - i]);
                self.found.bytes(8i64).store_long(target - sum);
                self.found.bytes(16i64).store_long(amount);
            });
            sum = next;
        }
        code.barrier();
        let found = (
            self.found.load_words(1)[0],
            self.found.bytes(8i64).load_long(),
            self.found.bytes(16i64).load_long(),
        );
        code.barrier();
        found
    }
}
