//! The products of few queries with keys, and of few rows of weights with values, by registers along a head's elements.

use super::KEYS;
use super::rows::Rows;
use super::simd::Simd;
use super::words::Lane;
use pcc_ir::DType;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// How keys or values are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As they lie: f32.
    Single,
    /// As they lie: bf16, widened.
    Half,
    /// As they lie: pairs of bf16.
    Pair,
    /// As f32, from a copy.
    Copy,
}

impl Kind {
    /// The best one for rows of so many elements.
    pub(super) fn of<V: Simd>(rows: &Rows, width: usize, pairs: bool) -> Self {
        match rows.dtype {
            _ if rows.col != 1 || !width.is_multiple_of(V::LANES) => Kind::Copy,
            DType::F32 => Kind::Single,
            DType::BF16 if pairs && width.is_multiple_of(2 * V::LANES) => Kind::Pair,
            DType::BF16 => Kind::Half,
            _ => Kind::Copy,
        }
    }

    /// Words of 32 bits that rows of so many elements are computed with.
    pub(super) fn words(self, width: usize, lanes: usize) -> usize {
        match self {
            Kind::Pair => width / 2,
            _ => width.next_multiple_of(lanes),
        }
    }
}

/// Keys or values as registers can load them.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    start: *const u8,
    /// Bytes from one row to the next.
    row: isize,
    /// Words of a row: whole registers.
    pub(super) words: usize,
}

impl Lines {
    /// Of n rows.
    ///
    /// # Safety
    /// The rows exist, and `copy` has room for them, filled up to whole registers.
    #[inline(always)]
    pub(super) unsafe fn of<V: Simd>(
        rows: &Rows,
        kind: Kind,
        n: usize,
        width: usize,
        copy: *mut f32,
    ) -> Self {
        let words = kind.words(width, V::LANES);
        if kind == Kind::Copy {
            // SAFETY: the caller's promise.
            unsafe { rows.widen(n, width, copy, words) };
            return Self { start: copy.cast(), row: 4 * words as isize, words };
        }
        Self { start: rows.start, row: rows.row * rows.dtype.bytes() as isize, words }
    }

    #[inline(always)]
    fn at(self, j: usize) -> *const u8 {
        self.start.wrapping_offset(j as isize * self.row)
    }
}

/// Rows that are read next.
#[derive(Clone, Copy)]
pub(super) struct Next {
    start: *const u8,
    row: isize,
    bytes: usize,
}

impl Next {
    /// The first `width` elements of each row.
    pub(super) fn of(rows: &Rows, width: usize) -> Self {
        let size = rows.dtype.bytes();
        let bytes = if rows.col == 1 { width * size } else { 0 };
        Self { start: rows.start, row: rows.row * size as isize, bytes }
    }

    /// Asks for row `i` before it is needed; it need not exist.
    #[inline(always)]
    fn ask(&self, i: usize) {
        let start = self.start.wrapping_offset(i as isize * self.row).cast::<i8>();
        let mut byte = 0;
        while byte < self.bytes {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(byte)) };
            byte += 64;
        }
    }
}

/// Scores of `n` keys for M rows, N keys at a time, times `factor`: `p[row][key]`. Rows that are read next are asked for on the way.
///
/// # Safety
/// The operands are valid, rows of q have as many words as keys, p has room for M times [`KEYS`] floats, the machine has the
/// instructions of V and L, and M times N is V's lanes.
#[inline(always)]
pub(super) unsafe fn score<V: Simd, L: Lane<V>, const M: usize, const N: usize>(
    q: *const f32,
    k: Lines,
    n: usize,
    p: *mut f32,
    factor: f32,
    next: [Next; 2],
) {
    for j in (0..n).step_by(N) {
        for i in j..j + N {
            next[0].ask(i);
            next[1].ask(i);
        }
        // SAFETY: the caller's promise; the last key is read again in place of those behind it.
        unsafe {
            let mut keys = [k.start; N];
            for (i, key) in keys.iter_mut().enumerate() {
                *key = k.at((j + i).min(n - 1));
            }
            let mut sums = [[V::splat(0.0); N]; M];
            for word in (0..k.words).step_by(V::LANES) {
                let mut query = [V::splat(0.0); M];
                for (row, x) in query.iter_mut().enumerate() {
                    *x = V::load(q.add(row * k.words + word));
                }
                for i in 0..N {
                    let key = L::load(keys[i].add(word * L::BYTES));
                    for row in 0..M {
                        sums[row][i] = L::dot(key, query[row], sums[row][i]);
                    }
                }
            }
            let sums = V::sums(sums.as_flattened()).mul(V::splat(factor));
            if M == 1 {
                sums.store(p.add(j));
            } else {
                let mut lanes = [[0f32; N]; M];
                sums.store(lanes.as_mut_ptr().cast());
                for (row, lanes) in lanes.iter().enumerate() {
                    p.add(row * KEYS + j).cast::<[f32; N]>().write_unaligned(*lanes);
                }
            }
        }
    }
}

/// `o = shrink * o + sum of p[j] * v[j]` over n keys, for M rows, C registers of each at a time.
///
/// # Safety
/// As [`score`]; rows of o have as many words as values.
#[inline(always)]
pub(super) unsafe fn mix<V: Simd, L: Lane<V>, const M: usize, const C: usize>(
    o: *mut f32,
    shrink: &[f32; M],
    p: *const f32,
    v: Lines,
    n: usize,
) {
    let mut word = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while word + C * V::LANES <= v.words {
            mix_registers::<V, L, M, C>(o, shrink, p, v, n, word);
            word += C * V::LANES;
        }
        while word < v.words {
            mix_registers::<V, L, M, 1>(o, shrink, p, v, n, word);
            word += V::LANES;
        }
    }
}

/// # Safety
/// As [`mix`], for C registers from word `at` on.
#[inline(always)]
unsafe fn mix_registers<V: Simd, L: Lane<V>, const M: usize, const C: usize>(
    o: *mut f32,
    shrink: &[f32; M],
    p: *const f32,
    v: Lines,
    n: usize,
    at: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); C]; M];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(o.add(row * v.words + at + c * V::LANES)).mul(V::splat(shrink[row]));
            }
        }
        for j in 0..n {
            let mut values = [V::splat(0.0); C];
            for (c, x) in values.iter_mut().enumerate() {
                *x = L::load(v.at(j).add((at + c * V::LANES) * L::BYTES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*p.add(row * KEYS + j));
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = weight.fma(values[c], *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                sum.store(o.add(row * v.words + at + c * V::LANES));
            }
        }
    }
}
