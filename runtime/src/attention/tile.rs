//! Tiles of many queries: a register holds one score of 16 queries, so that neither maxima nor sums are taken across a register,
//! keys and values are read as they lie, one element for all queries, and only the queries are transposed, once.

use super::rows::{Carver, Rows, rounded, with_scratch};
use super::simd::{Avx2, Avx512, Portable, Simd};
use super::{Attention, Head, KEYS, Path, Seen, read_positions};
use pcc_ir::DType;
use std::ops::Range;

/// Computes the `index`th tile of rows of a head.
pub(super) fn run(a: &Attention<'_>, head: Head, index: usize) {
    let first = index * a.path.tile();
    let count = (a.dims.rows() - first).min(a.path.tile());
    let rows = first..first + count;
    let (w, d, e) = (a.path.tile(), a.dims.d, a.dims.e);
    let floats = rounded(w * d) + rounded(w * e) + rounded(w * KEYS) + 7 * rounded(w) + KEYS * d.max(e) + 64;
    // Not the other way round: a closure would be compiled for the least of machines.
    with_scratch(floats, |s| {
        // SAFETY: validation checked that every element the strides reach lies in the operands' buffers, aligned; the executor lets
        // no one else at the rows of out; a path is only chosen where its instructions are.
        unsafe {
            match (a.path, count.div_ceil(16)) {
                (Path::Avx512, 1) => avx512::<1>(a, head, rows, s),
                (Path::Avx512, 2) => avx512::<2>(a, head, rows, s),
                (Path::Avx512, _) => avx512::<3>(a, head, rows, s),
                (Path::Avx2, _) if count <= 8 => avx2::<1>(a, head, rows, s),
                (Path::Avx2, _) => avx2::<2>(a, head, rows, s),
                (Path::Portable, _) => tile::<Portable, 1, 4>(a, head, rows, s),
            }
        }
    });
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
unsafe fn avx512<const C: usize>(a: &Attention<'_>, head: Head, rows: Range<usize>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Avx512, C, 8>(a, head, rows, s) }
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const C: usize>(a: &Attention<'_>, head: Head, rows: Range<usize>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Avx2, C, 4>(a, head, rows, s) }
}

/// The state of a tile of W = `C * LANES` rows, each array with one lane a row.
struct Tile {
    /// Queries, scaled: `[d][W]`.
    q: *mut f32,
    /// Scores of a tile of keys, then weights: `[KEYS][W]`.
    p: *mut f32,
    /// Weighted values so far: `[e][W]`.
    o: *mut f32,
    /// Largest score so far.
    max: *mut f32,
    /// Sum of weights so far.
    sum: *mut f32,
    /// What the last tile of keys made of earlier weights.
    shrink: *mut f32,
    /// What scores gain for each position, and from which one on.
    slopes: *mut f32,
    from: *mut f32,
    /// Keys and values of a tile where they have to be copied.
    copy: *mut f32,
}

/// # Safety
/// The operands are valid, no one else accesses the rows of out, and the machine has V's instructions.
#[inline(always)]
unsafe fn tile<V: Simd, const C: usize, const R: usize>(
    a: &Attention<'_>,
    head: Head,
    rows: Range<usize>,
    mut s: Carver,
) {
    let (w, d, e, t) = (C * V::LANES, a.dims.d, a.dims.e, a.dims.t);
    let tile = Tile {
        q: s.take(w * d),
        p: s.take(w * KEYS),
        o: s.take(w * e),
        max: s.take(w),
        sum: s.take(w),
        shrink: s.take(w),
        slopes: s.take(w),
        from: s.take(w),
        copy: std::ptr::null_mut(),
    };
    let (low, high) = (s.take(w).cast::<i32>(), s.take(w).cast::<i32>());
    let tile = Tile { copy: s.take(KEYS * d.max(e)), ..tile };
    // SAFETY: the caller's promise; each piece of scratch has the size that the functions below say.
    unsafe {
        let sight = a.sight(head.batch, rows.clone(), w, low, high);
        begin(a, head, rows.clone(), w, &tile);
        let positions = Attention::positions(&a.call.k_pos, &a.k_pos, head.batch);
        let (keys, values) = (a.keys(head), a.values(head));
        let mut k_pos = [0i32; KEYS];
        for start in (0..t).step_by(KEYS) {
            let n = KEYS.min(t - start);
            read_positions(&positions, start..start + n, &mut k_pos);
            let Some(Seen { keys: seen, all }) = sight.of(&k_pos[..n]) else { continue };
            let (n, k_pos) = (seen.len(), &k_pos[seen.clone()]);
            let (k, stride) = plain(&keys.from(start + seen.start), n, d, tile.copy);
            scores::<V, C, R>(&tile, k, stride, n, d);
            finish_scores::<V, C>(a, &tile, k_pos, (!all).then_some((low, high)));
            let (v, stride) = plain(&values.from(start + seen.start), n, e, tile.copy);
            if all || finite(v, stride, n, e) {
                mix::<V, C, R>(&tile, v, stride, n, e);
            } else {
                mix_seen::<V, C>(&tile, v, stride, n, e);
            }
        }
        end(a, head, rows, w, &tile);
    }
}

/// Packs the queries and clears the state.
///
/// # Safety
/// As [`tile`].
unsafe fn begin(a: &Attention<'_>, head: Head, rows: Range<usize>, w: usize, tile: &Tile) {
    let (factor, _) = a.factors();
    let count = rows.len();
    // SAFETY: the arrays have w entries for each row of theirs; queries exist for the rows of the tile.
    unsafe {
        for p in 0..a.dims.d {
            std::slice::from_raw_parts_mut(tile.q.add(p * w + count), w - count).fill(0.0);
        }
        std::slice::from_raw_parts_mut(tile.o, w * a.dims.e).fill(0.0);
        for (i, row) in rows.enumerate() {
            let query = a.query(head, row);
            for p in 0..a.dims.d {
                *tile.q.add(p * w + i) = query.load(0, p) * factor;
            }
            (*tile.slopes.add(i), *tile.from.add(i)) = a.slope(head, row);
        }
        for array in [tile.slopes, tile.from] {
            std::slice::from_raw_parts_mut(array.add(count), w - count).fill(0.0);
        }
        std::slice::from_raw_parts_mut(tile.max, w).fill(f32::MIN);
        std::slice::from_raw_parts_mut(tile.sum, w).fill(0.0);
    }
}

/// Writes the rows of out.
///
/// # Safety
/// As [`tile`].
unsafe fn end(a: &Attention<'_>, head: Head, rows: Range<usize>, w: usize, tile: &Tile) {
    for (i, row) in rows.enumerate() {
        let out = a.result(head, row);
        // SAFETY: as in `begin`.
        unsafe {
            let sum = *tile.sum.add(i);
            let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            for p in 0..a.dims.e {
                out.store(0, p, *tile.o.add(p * w + i) * scale);
            }
        }
    }
}

/// Rows as f32 with adjacent elements, where they lie or else in `copy`, and how far apart they are.
///
/// # Safety
/// The rows exist, and `copy` has room for them.
unsafe fn plain(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> (*const f32, isize) {
    if rows.dtype == DType::F32 && rows.col == 1 {
        return (rows.start.cast(), rows.row);
    }
    // SAFETY: the caller's promise.
    unsafe { rows.widen(n, width, copy, width) };
    (copy, width as isize)
}

/// `p[j] = q . k[j]` for n keys.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn scores<V: Simd, const C: usize, const R: usize>(
    tile: &Tile,
    k: *const f32,
    stride: isize,
    n: usize,
    d: usize,
) {
    let w = C * V::LANES;
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j + R <= n {
            score_rows::<V, C, R>(tile.q, k.offset(j as isize * stride), stride, d, tile.p.add(j * w));
            j += R;
        }
        while j < n {
            score_rows::<V, C, 1>(tile.q, k.offset(j as isize * stride), stride, d, tile.p.add(j * w));
            j += 1;
        }
    }
}

/// # Safety
/// As [`tile`], for R keys.
#[inline(always)]
unsafe fn score_rows<V: Simd, const C: usize, const R: usize>(
    q: *const f32,
    k: *const f32,
    stride: isize,
    d: usize,
    out: *mut f32,
) {
    let w = C * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); C]; R];
        for p in 0..d {
            let mut query = [V::splat(0.0); C];
            for (c, x) in query.iter_mut().enumerate() {
                *x = V::load(q.add(p * w + c * V::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let key = V::splat(*k.offset(i as isize * stride + p as isize));
                for c in 0..C {
                    sums[c] = key.fma(query[c], sums[c]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (c, x) in sums.iter().enumerate() {
                x.store(out.add(i * w + c * V::LANES));
            }
        }
    }
}

/// Caps, biases and masks scores, then turns them into weights, with the maximum and the sum brought up to date.
///
/// # Safety
/// As [`tile`]; bounds of sight have one entry a row.
#[inline(always)]
unsafe fn finish_scores<V: Simd, const C: usize>(
    a: &Attention<'_>,
    tile: &Tile,
    k_pos: &[i32],
    sight: Option<(*mut i32, *mut i32)>,
) {
    let w = C * V::LANES;
    let (_, softcap) = a.factors();
    for lane in (0..w).step_by(V::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let score = |j: usize| tile.p.add(j * w + lane);
            if let Some((inverse, cap)) = softcap {
                for j in 0..k_pos.len() {
                    let x = V::load(score(j)).mul(V::splat(inverse)).tanh();
                    x.mul(V::splat(cap)).store(score(j));
                }
            }
            if a.slopes.is_some() {
                let (slope, from) = (V::load(tile.slopes.add(lane)), V::load(tile.from.add(lane)));
                for (j, &k) in k_pos.iter().enumerate() {
                    slope.fma(V::splat(k as f32).sub(from), V::load(score(j))).store(score(j));
                }
            }
            if let Some((low, high)) = sight {
                for (j, &k) in k_pos.iter().enumerate() {
                    let x = V::load(score(j)).hide_unseen(k, low.add(lane), high.add(lane));
                    x.store(score(j));
                }
            }
            let old = V::load(tile.max.add(lane));
            let mut max = old;
            for j in 0..k_pos.len() {
                max = max.max(V::load(score(j)));
            }
            let shrink = old.sub(max).exp2();
            let mut sum = V::load(tile.sum.add(lane)).mul(shrink);
            for j in 0..k_pos.len() {
                let weight = V::load(score(j)).sub(max).exp2();
                weight.store(score(j));
                sum = sum.add(weight);
            }
            max.store(tile.max.add(lane));
            sum.store(tile.sum.add(lane));
            shrink.store(tile.shrink.add(lane));
        }
    }
}

/// `o = shrink * o + sum of p[j] * v[j]` over n keys.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn mix<V: Simd, const C: usize, const R: usize>(
    tile: &Tile,
    v: *const f32,
    stride: isize,
    n: usize,
    e: usize,
) {
    let w = C * V::LANES;
    let mut i = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while i + R <= e {
            mix_columns::<V, C, R>(tile, v.add(i), stride, n, tile.o.add(i * w));
            i += R;
        }
        while i < e {
            mix_columns::<V, C, 1>(tile, v.add(i), stride, n, tile.o.add(i * w));
            i += 1;
        }
    }
}

/// # Safety
/// As [`tile`], for R columns of v.
#[inline(always)]
unsafe fn mix_columns<V: Simd, const C: usize, const R: usize>(
    tile: &Tile,
    v: *const f32,
    stride: isize,
    n: usize,
    o: *mut f32,
) {
    let w = C * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); C]; R];
        for (i, sums) in sums.iter_mut().enumerate() {
            for (c, x) in sums.iter_mut().enumerate() {
                *x = V::load(o.add(i * w + c * V::LANES)).mul(V::load(tile.shrink.add(c * V::LANES)));
            }
        }
        for j in 0..n {
            let mut weights = [V::splat(0.0); C];
            for (c, x) in weights.iter_mut().enumerate() {
                *x = V::load(tile.p.add(j * w + c * V::LANES));
            }
            let row = v.offset(j as isize * stride);
            for (i, sums) in sums.iter_mut().enumerate() {
                let value = V::splat(*row.add(i));
                for c in 0..C {
                    sums[c] = value.fma(weights[c], sums[c]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (c, x) in sums.iter().enumerate() {
                x.store(o.add(i * w + c * V::LANES));
            }
        }
    }
}

/// Whether all values are finite: only then may they be multiplied by the zero weights of queries that do not see them.
///
/// # Safety
/// The values exist.
unsafe fn finite(v: *const f32, stride: isize, n: usize, e: usize) -> bool {
    (0..n).all(|j| {
        // SAFETY: the caller's promise.
        let row = unsafe { std::slice::from_raw_parts(v.offset(j as isize * stride), e) };
        // Zero times a number is zero, times anything else it is no number.
        row.iter().fold(0u32, |bad, x| bad | u32::from((x.to_bits() & 0x7f80_0000) == 0x7f80_0000)) == 0
    })
}

/// As [`mix`], element by element, leaving out weights of zero.
///
/// # Safety
/// As [`tile`].
unsafe fn mix_seen<V: Simd, const C: usize>(tile: &Tile, v: *const f32, stride: isize, n: usize, e: usize) {
    let w = C * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        for (i, lane) in (0..e).flat_map(|i| (0..w).map(move |lane| (i, lane))) {
            let o = tile.o.add(i * w + lane);
            let mut sum = *o * *tile.shrink.add(lane);
            for j in 0..n {
                let weight = *tile.p.add(j * w + lane);
                if weight != 0.0 {
                    sum += weight * *v.offset(j as isize * stride).add(i);
                }
            }
            *o = sum;
        }
    }
}
