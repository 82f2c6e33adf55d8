//! Few queries: every key and value is read once, in order and ahead of its use; registers lie along a head's elements.

use super::rows::{Carver, Rows, with_scratch};
use super::simd::{Avx2, Avx512, Portable, Simd};
use super::{Attention, Head, KEYS, Path, Seen, read_positions};
use pcc_ir::DType;
use pcc_ir::program::AttentionCall;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

/// Most rows.
const FEW: usize = AttentionCall::FEW as usize;
/// Keys whose products with a query are summed side by side.
const TOGETHER: usize = 4;
/// Registers of weighted values summed at a time.
const WIDE: usize = 4;

/// Computes a range of the keys for all rows of a head; all of them when there is one range.
pub(super) fn run(a: &Attention<'_>, head: Head, index: usize, ranges: usize) {
    let range = AttentionCall::RANGE as usize;
    let keys = if ranges > 1 { index * range..((index + 1) * range).min(a.dims.t) } else { 0..a.dims.t };
    let to = (ranges > 1).then(|| a.partial(head, index, ranges)).flatten();
    // The most that the registers of any path fill rows up to.
    let (d, e) = (a.dims.d.next_multiple_of(16), a.dims.e.next_multiple_of(16));
    let floats = FEW * d + FEW * e + FEW * KEYS + KEYS * d.max(e) + 64;
    // Not the other way round: a closure would be compiled for the least of machines.
    with_scratch(floats, |s| {
        // SAFETY: validation checked that every element the strides reach lies in the operands' buffers, aligned; the executor lets
        // no one else at what the part writes; a path is only chosen where its instructions are.
        unsafe {
            match a.path {
                Path::Avx512 => avx512(a, head, keys, to, s),
                Path::Avx2 => avx2(a, head, keys, to, s),
                Path::Portable => attend::<Portable>(a, head, keys, to, s),
            }
        }
    });
}

/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
unsafe fn avx512(a: &Attention<'_>, head: Head, keys: Range<usize>, to: Option<*mut f32>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { attend::<Avx512>(a, head, keys, to, s) }
}

/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(a: &Attention<'_>, head: Head, keys: Range<usize>, to: Option<*mut f32>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { attend::<Avx2>(a, head, keys, to, s) }
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

/// The state of up to [`FEW`] rows.
struct State {
    /// Queries, scaled and filled up with zeros: `[row][d]`.
    q: *mut f32,
    /// Scores of some keys, then their weights: `[row][KEYS]`.
    p: *mut f32,
    /// Weighted values so far: `[row][e]`, filled up.
    o: *mut f32,
    max: [f32; FEW],
    sum: [f32; FEW],
    /// What scores gain for each position, and from which one on.
    slopes: [(f32, f32); FEW],
    low: [i32; FEW],
    high: [i32; FEW],
}

/// Keys or values as registers can load them.
#[derive(Clone, Copy)]
enum Lines {
    Single { start: *const f32, stride: isize },
    Half { start: *const u16, stride: isize },
}

/// # Safety
/// The operands are valid, no one else accesses what is written, and the machine has V's instructions.
#[inline(always)]
unsafe fn attend<V: Simd>(
    a: &Attention<'_>,
    head: Head,
    keys: Range<usize>,
    to: Option<*mut f32>,
    mut s: Carver,
) {
    let (rows, d, e) = (a.dims.rows(), a.dims.d, a.dims.e);
    let (wide_d, wide_e) = (d.next_multiple_of(V::LANES), e.next_multiple_of(V::LANES));
    let mut state = State {
        q: s.take(FEW * wide_d),
        p: s.take(FEW * KEYS),
        o: s.take(FEW * wide_e),
        max: [f32::MIN; FEW],
        sum: [0.0; FEW],
        slopes: [(0.0, 0.0); FEW],
        low: [0; FEW],
        high: [0; FEW],
    };
    let copy = s.take(KEYS * wide_d.max(wide_e));
    let (factor, _) = a.factors();
    // SAFETY: the caller's promise; each piece of scratch has the size that the functions below say.
    unsafe {
        let (low, high) = (state.low.as_mut_ptr(), state.high.as_mut_ptr());
        let sight = a.sight(head.batch, 0..rows, FEW, low, high);
        std::slice::from_raw_parts_mut(state.o, FEW * wide_e).fill(0.0);
        for row in 0..rows {
            a.query(head, row).widen(1, d, state.q.add(row * wide_d), wide_d);
            let q = std::slice::from_raw_parts_mut(state.q.add(row * wide_d), d);
            q.iter_mut().for_each(|x| *x *= factor);
            state.slopes[row] = a.slope(head, row);
        }
        let positions = Attention::positions(&a.call.k_pos, &a.k_pos, head.batch);
        let (all_keys, all_values) = (a.keys(head), a.values(head));
        let mut k_pos = [0i32; KEYS];
        for start in keys.clone().step_by(KEYS) {
            let n = KEYS.min(keys.end - start);
            read_positions(&positions, start..start + n, &mut k_pos);
            let Some(Seen { keys: seen, all }) = sight.of(&k_pos[..n]) else { continue };
            let (n, k_pos) = (seen.len(), &k_pos[seen.clone()]);
            let (k, v) = (all_keys.from(start + seen.start), all_values.from(start + seen.start));
            let k_lines = lines::<V>(&k, n, d, copy);
            for j in (0..n).step_by(TOGETHER) {
                // Values of these keys, and the keys after the next ones: read while the products are formed.
                for i in j..(j + TOGETHER).min(n) {
                    ahead(&v, i, e);
                    ahead(&k, i + KEYS, d);
                }
                score::<V>(&state, rows, k_lines, j, n.min(j + TOGETHER) - j, wide_d);
            }
            let shrink = weigh::<V>(a, &mut state, rows, k_pos, all);
            let v_lines = lines::<V>(&v, n, e, copy);
            for (row, &shrink) in shrink.iter().enumerate().take(rows) {
                mix::<V>(&state, row, shrink, v_lines, n, wide_e, all);
            }
        }
        write(a, head, &state, wide_e, to);
    }
}

/// Asks for a row's bytes before they are needed.
///
/// # Safety
/// None is needed: an address outside memory is ignored.
#[inline(always)]
unsafe fn ahead(rows: &Rows, i: usize, width: usize) {
    let start = rows.from(i).start;
    if rows.col == 1 {
        for byte in (0..width * rows.dtype.bytes()).step_by(64) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(byte).cast::<i8>()) };
        }
    }
}

/// Rows as registers can load them: where they lie, if whole registers fit, else a copy.
///
/// # Safety
/// The rows exist, and `copy` has room for them, filled up to whole registers.
#[inline(always)]
unsafe fn lines<V: Simd>(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Lines {
    let whole = rows.col == 1 && width.is_multiple_of(V::LANES);
    match rows.dtype {
        DType::F32 if whole => Lines::Single { start: rows.start.cast(), stride: rows.row },
        DType::BF16 if whole => Lines::Half { start: rows.start.cast(), stride: rows.row },
        _ => {
            let wide = width.next_multiple_of(V::LANES);
            // SAFETY: the caller's promise.
            unsafe { rows.widen(n, width, copy, wide) };
            Lines::Single { start: copy, stride: wide as isize }
        }
    }
}

impl Lines {
    /// Elements `i..` of row `j`.
    ///
    /// # Safety
    /// They exist, as many as a register holds, and the machine has V's instructions.
    #[inline(always)]
    unsafe fn load<V: Simd>(self, j: usize, i: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Lines::Single { start, stride } => V::load(start.offset(j as isize * stride).add(i)),
                Lines::Half { start, stride } => V::load_bf16(start.offset(j as isize * stride).add(i)),
            }
        }
    }
}

/// Scores of `n` keys from `j` on, for every row.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn score<V: Simd>(state: &State, rows: usize, k: Lines, j: usize, n: usize, wide: usize) {
    for row in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            let (q, out) = (state.q.add(row * wide), state.p.add(row * KEYS + j));
            if n == TOGETHER {
                let mut sums = [V::splat(0.0); TOGETHER];
                for p in (0..wide).step_by(V::LANES) {
                    let query = V::load(q.add(p));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = query.fma(k.load::<V>(j + i, p), *sum);
                    }
                }
                for (i, sum) in sums.iter().enumerate() {
                    *out.add(i) = sum.sum();
                }
            } else {
                for i in 0..n {
                    let mut sum = V::splat(0.0);
                    for p in (0..wide).step_by(V::LANES) {
                        sum = V::load(q.add(p)).fma(k.load::<V>(j + i, p), sum);
                    }
                    *out.add(i) = sum.sum();
                }
            }
        }
    }
}

/// Caps, biases and masks scores and turns them into weights. Gives what each row's earlier weights are multiplied by.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn weigh<V: Simd>(
    a: &Attention<'_>,
    state: &mut State,
    rows: usize,
    k_pos: &[i32],
    all: bool,
) -> [f32; FEW] {
    let (_, softcap) = a.factors();
    let mut shrink = [0.0; FEW];
    for (row, shrink) in shrink.iter_mut().enumerate().take(rows) {
        // SAFETY: the caller's promise; a row has KEYS scores, a whole number of registers.
        unsafe {
            let scores = std::slice::from_raw_parts_mut(state.p.add(row * KEYS), KEYS);
            scores[k_pos.len()..].fill(f32::NEG_INFINITY);
            let at = scores.as_mut_ptr();
            if let Some((inverse, cap)) = softcap {
                for j in (0..k_pos.len()).step_by(V::LANES) {
                    V::load(at.add(j)).mul(V::splat(inverse)).tanh().mul(V::splat(cap)).store(at.add(j));
                }
                // Capped too.
                scores[k_pos.len()..].fill(f32::NEG_INFINITY);
            }
            for (x, &k) in scores.iter_mut().zip(k_pos) {
                let (slope, from) = state.slopes[row];
                *x += slope * (k as f32 - from);
                let sees = state.low[row] < k && k <= state.high[row];
                if !(all || sees) {
                    *x = f32::NEG_INFINITY;
                }
            }
            let old = state.max[row];
            let mut lanes = [f32::MIN; KEYS];
            let mut max = V::splat(old);
            for j in (0..KEYS).step_by(V::LANES) {
                max = max.max(V::load(at.add(j)));
            }
            max.store(lanes.as_mut_ptr());
            let max = lanes[..V::LANES].iter().fold(old, |m, &x| if m > x { m } else { x });
            let mut sum = V::splat(0.0);
            for j in (0..KEYS).step_by(V::LANES) {
                let weight = V::load(at.add(j)).sub(V::splat(max)).exp2();
                weight.store(at.add(j));
                sum = sum.add(weight);
            }
            V::splat(old - max).exp2().store(lanes.as_mut_ptr());
            *shrink = lanes[0];
            state.sum[row] = state.sum[row] * *shrink + sum.sum();
            state.max[row] = max;
        }
    }
    shrink
}

/// `o = shrink * o + sum of p[j] * v[j]` over n keys, leaving out weights of zero unless all rows see all keys.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn mix<V: Simd>(state: &State, row: usize, shrink: f32, v: Lines, n: usize, wide: usize, all: bool) {
    let registers = wide / V::LANES;
    let mut done = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let (p, o) = (state.p.add(row * KEYS), state.o.add(row * wide));
        while done + WIDE <= registers {
            mix_registers::<V, WIDE>(p, o, shrink, v, n, done * V::LANES, all);
            done += WIDE;
        }
        while done < registers {
            mix_registers::<V, 1>(p, o, shrink, v, n, done * V::LANES, all);
            done += 1;
        }
    }
}

/// # Safety
/// As [`attend`], for N registers from element `at` on.
#[inline(always)]
unsafe fn mix_registers<V: Simd, const N: usize>(
    p: *const f32,
    o: *mut f32,
    shrink: f32,
    v: Lines,
    n: usize,
    at: usize,
    all: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [V::splat(0.0); N];
        for (c, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(o.add(at + c * V::LANES)).mul(V::splat(shrink));
        }
        for j in 0..n {
            let weight = *p.add(j);
            if all || weight != 0.0 {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = V::splat(weight).fma(v.load::<V>(j, at + c * V::LANES), *sum);
                }
            }
        }
        for (c, sum) in sums.iter().enumerate() {
            sum.store(o.add(at + c * V::LANES));
        }
    }
}

/// Writes the rows of out, or what a range of keys gives.
///
/// # Safety
/// As [`attend`].
unsafe fn write(a: &Attention<'_>, head: Head, state: &State, wide: usize, to: Option<*mut f32>) {
    let e = a.dims.e;
    for row in 0..a.dims.rows() {
        // SAFETY: the caller's promise; a partial result has e + 2 floats a row.
        unsafe {
            let o = std::slice::from_raw_parts(state.o.add(row * wide), e);
            match to {
                Some(to) => {
                    let to = std::slice::from_raw_parts_mut(to.add(row * (e + 2)), e + 2);
                    (to[0], to[1]) = (state.max[row], state.sum[row]);
                    to[2..].copy_from_slice(o);
                }
                None => store(&a.result(head, row), o, state.sum[row]),
            }
        }
    }
}

/// # Safety
/// The row of out is valid, and no one else accesses it.
unsafe fn store(out: &Rows, o: &[f32], sum: f32) {
    let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    for (p, x) in o.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { out.store(0, p, x * scale) };
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
        unsafe { store(&a.result(head, row), &o, sum) };
    }
}
