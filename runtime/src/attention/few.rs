//! Few queries: every key and value is read once, in order and ahead of its use; registers lie along a head's elements.
//!
//! A cache holds the heads of a position side by side: several heads are worked on in turn, a block of keys each, so that memory is
//! read in longer runs than a head is wide.

use super::lines::{Kind, Lines, Next, mix, score};
use super::rows::{Carver, Rows, rounded, with_scratch};
use super::simd::{Avx2, Avx512, Portable, Simd};
use super::words::{Half, Lane, Pair, Single};
use super::{Attention, Head, KEYS, Path, Seen, Sight, read_positions};
use pcc_ir::program::AttentionCall;
use std::ops::Range;

/// Most rows.
const FEW: usize = AttentionCall::FEW as usize;

/// What is computed at once: the rows of some heads, over some keys.
pub(super) struct Piece {
    pub(super) batch: usize,
    pub(super) heads: Range<usize>,
    /// Which of the ranges of keys.
    pub(super) index: usize,
    pub(super) ranges: usize,
}

pub(super) fn run(a: &Attention<'_>, piece: &Piece) {
    // The most that the registers of any path fill rows up to.
    let (d, e) = (a.dims.d.next_multiple_of(32), a.dims.e.next_multiple_of(32));
    let floats = piece.heads.len() * (FEW * (d + e) + 4 * rounded(FEW)) + FEW * KEYS + KEYS * d.max(e) + 64;
    // Not the other way round: a closure would be compiled for the least of machines.
    with_scratch(floats, |s| {
        // SAFETY: validation checked that every element the strides reach lies in the operands' buffers, aligned; the executor lets
        // no one else at what the part writes; a path is only chosen where its instructions are.
        unsafe {
            match a.path {
                Path::Avx512Bf16 => pairs(a, piece, s),
                Path::Avx512 => avx512(a, piece, s),
                Path::Avx2 => avx2(a, piece, s),
                Path::Portable => attend::<Portable, Half, 8, 1, 1>(a, piece, s),
            }
        }
    });
}

/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
unsafe fn pairs(a: &Attention<'_>, piece: &Piece, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe {
        match a.dims.rows() {
            0..=1 => attend::<Avx512, Pair, 1, 16, 4>(a, piece, s),
            2 => attend::<Avx512, Pair, 2, 8, 4>(a, piece, s),
            3..=4 => attend::<Avx512, Pair, 4, 4, 4>(a, piece, s),
            _ => attend::<Avx512, Pair, 8, 2, 2>(a, piece, s),
        }
    }
}

/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
unsafe fn avx512(a: &Attention<'_>, piece: &Piece, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe {
        match a.dims.rows() {
            0..=1 => attend::<Avx512, Half, 1, 16, 4>(a, piece, s),
            2..=4 => attend::<Avx512, Half, 4, 4, 4>(a, piece, s),
            _ => attend::<Avx512, Half, 8, 2, 2>(a, piece, s),
        }
    }
}

/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(a: &Attention<'_>, piece: &Piece, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe {
        match a.dims.rows() {
            0..=1 => attend::<Avx2, Half, 1, 8, 4>(a, piece, s),
            2..=4 => attend::<Avx2, Half, 4, 2, 2>(a, piece, s),
            _ => attend::<Avx2, Half, 8, 1, 1>(a, piece, s),
        }
    }
}

impl Attention<'_> {
    /// Where a range of keys leaves its results: for each row a maximum, a sum, and e weighted values.
    fn partial(&self, head: Head, index: usize, ranges: usize) -> Option<*mut f32> {
        let scratch = self.scratch.as_ref()?;
        let floats = ((head.batch * self.dims.g + head.head) * ranges + index) * self.partial_floats();
        Some(scratch.window.as_ptr().wrapping_add(scratch.offset).cast::<f32>().wrapping_add(floats))
    }

    fn partial_floats(&self) -> usize {
        self.dims.rows() * (self.dims.e + 2)
    }
}

/// The state of M rows of one head.
#[derive(Clone, Copy)]
struct State {
    /// Queries, as keys are multiplied by them: `[row][wide_d]`, filled up with zeros.
    q: *mut f32,
    /// Weighted values so far: `[row][wide_e]`, filled up.
    o: *mut f32,
    /// Largest score so far, and sum of weights.
    max: *mut f32,
    sum: *mut f32,
    /// [`Attention::slope`]
    slopes: *mut f32,
    from: *mut f32,
}

/// What rows see, and scratch for a block of keys.
struct Block {
    sight: Sight,
    low: [i32; FEW],
    high: [i32; FEW],
    k_pos: [i32; KEYS],
    /// Scores of the keys, then their weights: `[row][KEYS]`.
    p: *mut f32,
    /// Keys or values that have to be copied.
    copy: *mut f32,
}

/// All rows, up to M of them, of a piece's heads; scores of M by N are summed side by side, weighted values of M by C registers.
///
/// # Safety
/// The operands are valid, no one else accesses what is written, and the machine has the instructions of V and P. M times N is V's
/// lanes.
#[inline(always)]
unsafe fn attend<V: Simd, P: Lane<V>, const M: usize, const N: usize, const C: usize>(
    a: &Attention<'_>,
    piece: &Piece,
    mut s: Carver,
) {
    let (rows, d, e) = (a.dims.rows(), a.dims.d, a.dims.e);
    let range = AttentionCall::RANGE as usize;
    let all_keys = match piece.ranges {
        0..=1 => 0..a.dims.t,
        _ => piece.index * range..((piece.index + 1) * range).min(a.dims.t),
    };
    let head = |i: usize| Head { batch: piece.batch, head: piece.heads.start + i };
    let count = piece.heads.len();
    let (keys, values) = (a.keys(head(0)), a.values(head(0)));
    let [k_head, v_head] = [&a.call.k, &a.call.v].map(|x| x.strides[2] as isize);
    let k_kind = Kind::of::<V>(&keys, d, P::ELEMENTS > 1 && a.halves());
    let v_kind = Kind::of::<V>(&values, e, false);
    let (wide_d, wide_e) = (k_kind.words(d, V::LANES), v_kind.words(e, V::LANES));
    let one = M * (wide_d + wide_e);
    let (vectors, numbers) = (s.take(count * one), s.take(count * 4 * FEW));
    let state = |i: usize| {
        let (vectors, numbers) = (vectors.wrapping_add(i * one), numbers.wrapping_add(i * 4 * FEW));
        let number = |n: usize| numbers.wrapping_add(n * FEW);
        let o = vectors.wrapping_add(M * wide_d);
        State { q: vectors, o, max: number(0), sum: number(1), slopes: number(2), from: number(3) }
    };
    let (mut low, mut high) = ([0; FEW], [0; FEW]);
    // SAFETY: the caller's promise; each piece of scratch has the size that the functions below say.
    unsafe {
        let sight = a.sight(piece.batch, 0..rows, FEW, low.as_mut_ptr(), high.as_mut_ptr());
        let (p, copy) = (s.take(M * KEYS), s.take(KEYS * d.max(e).next_multiple_of(V::LANES)));
        let mut block = Block { sight, low, high, k_pos: [0; KEYS], p, copy };
        std::slice::from_raw_parts_mut(vectors, count * one).fill(0.0);
        for i in 0..count {
            begin::<V, P>(a, head(i), &state(i), k_kind, wide_d);
        }
        let positions = Attention::positions(&a.call.k_pos, &a.k_pos, piece.batch);
        for start in all_keys.clone().step_by(KEYS) {
            let n = KEYS.min(all_keys.end - start);
            read_positions(&positions, start..start + n, &mut block.k_pos);
            let Some(seen) = block.sight.of(&block.k_pos[..n]) else { continue };
            for i in 0..count {
                let first = start + seen.keys.start;
                let k = keys.from(first).skip(i as isize * k_head);
                let v = values.from(first).skip(i as isize * v_head);
                // What is read after these keys: those of the next head, or the next ones of the first head.
                let next = if i + 1 < count { k.skip(k_head) } else { keys.from(start + KEYS) };
                step::<V, P, M, N, C>(a, &state(i), &mut block, &seen, [k, v, next], [k_kind, v_kind]);
            }
        }
        for i in 0..count {
            let to = (piece.ranges > 1).then(|| a.partial(head(i), piece.index, piece.ranges)).flatten();
            write(a, head(i), &state(i), wide_e, to);
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn begin<V: Simd, P: Lane<V>>(a: &Attention<'_>, head: Head, state: &State, kind: Kind, wide: usize) {
    let queries = a.queries(head);
    for row in 0..a.dims.rows() {
        // SAFETY: the caller's promise.
        unsafe {
            let to = state.q.add(row * wide);
            match kind {
                Kind::Pair => P::query(&queries.row(row), a.dims.d, to, wide),
                _ => <Single as Lane<V>>::query(&queries.row(row), a.dims.d, to, wide),
            }
            (*state.max.add(row), *state.sum.add(row)) = (f32::MIN, 0.0);
            (*state.slopes.add(row), *state.from.add(row)) = a.slope(head, row);
        }
    }
}

/// Takes in a block of keys of a head.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn step<V: Simd, P: Lane<V>, const M: usize, const N: usize, const C: usize>(
    a: &Attention<'_>,
    state: &State,
    block: &mut Block,
    seen: &Seen,
    [k, v, next]: [Rows; 3],
    [k_kind, v_kind]: [Kind; 2],
) {
    let (rows, d, e, n) = (a.dims.rows(), a.dims.d, a.dims.e, seen.keys.len());
    let (factor, _) = a.factors();
    let ahead = [Next::of(&v, e), Next::of(&next, d)];
    // SAFETY: the caller's promise; rows are filled up to whole registers where they are copied.
    unsafe {
        let k = Lines::of::<V>(&k, k_kind, n, d, block.copy);
        match k_kind {
            Kind::Single | Kind::Copy => score::<V, Single, M, N>(state.q, k, n, block.p, factor, ahead),
            Kind::Half => score::<V, Half, M, N>(state.q, k, n, block.p, factor, ahead),
            Kind::Pair => score::<V, P, M, N>(state.q, k, n, block.p, factor, ahead),
        }
        let mut shrink = [0.0; M];
        for (row, shrink) in shrink.iter_mut().enumerate().take(rows) {
            *shrink = weigh::<V>(a, state, row, block, seen);
        }
        let lines = Lines::of::<V>(&v, v_kind, n, e, block.copy);
        if !(seen.all || v.finite(n, e)) {
            mix_seen(state, rows, &shrink, block.p, &v, n, (e, lines.words));
        } else if v_kind == Kind::Half {
            mix::<V, Half, M, C>(state.o, &shrink, block.p, lines, n);
        } else {
            mix::<V, Single, M, C>(state.o, &shrink, block.p, lines, n);
        }
    }
}

/// Caps, biases and masks a row's scores and turns them into weights. Gives what earlier weights are multiplied by.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn weigh<V: Simd>(
    a: &Attention<'_>,
    state: &State,
    row: usize,
    block: &mut Block,
    seen: &Seen,
) -> f32 {
    let (_, softcap) = a.factors();
    let k_pos = &block.k_pos[seen.keys.clone()];
    // SAFETY: the caller's promise; a row has KEYS scores, a whole number of registers.
    unsafe {
        let scores = std::slice::from_raw_parts_mut(block.p.add(row * KEYS), KEYS);
        let at = scores.as_mut_ptr();
        if let Some((inverse, cap)) = softcap {
            for j in (0..k_pos.len()).step_by(V::LANES) {
                V::load(at.add(j)).mul(V::splat(inverse)).tanh().mul(V::splat(cap)).store(at.add(j));
            }
        }
        if a.slopes.is_some() {
            a.add_bias(scores, k_pos, (*state.slopes.add(row), *state.from.add(row)));
        }
        if !seen.all {
            for (x, &k) in scores.iter_mut().zip(k_pos) {
                if !(block.low[row] < k && k <= block.high[row]) {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        scores[k_pos.len()..].fill(f32::NEG_INFINITY);
        let old = *state.max.add(row);
        let mut max = V::splat(old);
        for j in (0..KEYS).step_by(V::LANES) {
            max = max.max(V::load(at.add(j)));
        }
        let max = max.largest();
        let mut sum = V::splat(0.0);
        for j in (0..KEYS).step_by(V::LANES) {
            let weight = V::load(at.add(j)).sub(V::splat(max)).exp2();
            weight.store(at.add(j));
            sum = sum.add(weight);
        }
        let shrink = V::splat(old - max).exp2().first();
        *state.sum.add(row) = *state.sum.add(row) * shrink + sum.sum();
        *state.max.add(row) = max;
        shrink
    }
}

/// As [`mix`], element by element, leaving out weights of zero.
///
/// # Safety
/// As [`attend`].
unsafe fn mix_seen(
    state: &State,
    rows: usize,
    shrink: &[f32],
    p: *const f32,
    v: &Rows,
    n: usize,
    (e, wide): (usize, usize),
) {
    for (row, i) in (0..rows).flat_map(|row| (0..e).map(move |i| (row, i))) {
        // SAFETY: the caller's promise.
        unsafe {
            let o = state.o.add(row * wide + i);
            *o *= shrink[row];
            for j in 0..n {
                let weight = *p.add(row * KEYS + j);
                if weight != 0.0 {
                    *o += weight * v.load(j, i);
                }
            }
        }
    }
}

/// Writes the rows of out, or what a range of keys gives.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn write(a: &Attention<'_>, head: Head, state: &State, wide: usize, to: Option<*mut f32>) {
    let (e, results) = (a.dims.e, a.results(head));
    for row in 0..a.dims.rows() {
        // SAFETY: the caller's promise; a partial result has e + 2 floats a row.
        unsafe {
            let o = std::slice::from_raw_parts_mut(state.o.add(row * wide), e);
            let (max, sum) = (*state.max.add(row), *state.sum.add(row));
            match to {
                Some(to) => {
                    let to = std::slice::from_raw_parts_mut(to.add(row * (e + 2)), e + 2);
                    (to[0], to[1]) = (max, sum);
                    to[2..].copy_from_slice(o);
                }
                None => results.row(row).put(o, sum),
            }
        }
    }
}

/// Puts the results of all ranges of keys together.
pub(super) fn combine(a: &Attention<'_>, ranges: usize) {
    let e = a.dims.e;
    let mut o = vec![0.0f32; e];
    let heads = (0..a.dims.b).flat_map(|batch| (0..a.dims.g).map(move |head| Head { batch, head }));
    for (head, row) in heads.flat_map(|h| (0..a.dims.rows()).map(move |row| (h, row))) {
        let partial = |index: usize| {
            let start = a.partial(head, index, ranges)?;
            // SAFETY: validation checked that scratch has room for all partial results, aligned; all parts are done, and left e + 2
            // floats for each row.
            Some(unsafe { std::slice::from_raw_parts(start.add(row * (e + 2)), e + 2) })
        };
        let partials = || (0..ranges).filter_map(partial);
        let max = partials().fold(f32::MIN, |m, p| if m > p[0] { m } else { p[0] });
        let mut sum = 0.0;
        o.fill(0.0);
        for p in partials().filter(|p| p[1] != 0.0) {
            let weight = (p[0] - max).exp2();
            sum += p[1] * weight;
            o.iter_mut().zip(&p[2..]).for_each(|(o, x)| *o += x * weight);
        }
        // SAFETY: as above for out; the parts have not written it.
        unsafe { a.results(head).row(row).put(&mut o, sum) };
    }
}
