//! Tiles of many queries: a register holds one score of 16 queries, so that neither maxima nor sums are taken across a register,
//! keys and values are read as they lie, one word for all queries, and only the queries are transposed, once.
//!
//! A *word* of 32 bits is an f32, or two neighbours of bf16 of which a register multiplies and sums both at once ([`Word`]): elements of
//! queries and keys along the head, weights and values along the keys.

use super::rows::{Carver, rounded, with_scratch};
use super::simd::{Avx2, Avx512, Portable, Simd};
use super::words::{Pair, Single, Word, Words};
use super::{Attention, Head, KEYS, Path, Seen, read_positions};
use std::ops::Range;

/// Keys from which on weights are rounded to bf16 beside values of that type, which doubles the speed: the errors of many average out.
/// Those of a few would show, and cost little to avoid.
const PAIRED_KEYS: usize = 64;

/// Computes the `index`th tile of rows of a head.
pub(super) fn run(a: &Attention<'_>, head: Head, index: usize) {
    let first = index * a.path.tile();
    let count = (a.dims.rows() - first).min(a.path.tile());
    let rows = first..first + count;
    // Rows are filled up to whole registers of any path.
    let (w, d, e) = (a.path.tile(), a.dims.d.next_multiple_of(16), a.dims.e.next_multiple_of(16));
    let arrays = rounded(w * d) + rounded(w * e) + rounded(w * KEYS) + 7 * rounded(w);
    let floats = arrays + KEYS.max(w) * d.max(e) + 64;
    let halves = a.halves() && a.dims.t >= PAIRED_KEYS;
    // Not the other way round: a closure would be compiled for the least of machines.
    with_scratch(floats, |s| {
        // SAFETY: validation checked that every element the strides reach lies in the operands' buffers, aligned; the executor lets
        // no one else at the rows of out; a path is only chosen where its instructions are.
        unsafe {
            match (a.path, count.div_ceil(16)) {
                (Path::Avx512Bf16, 1) if halves => pairs::<1>(a, head, rows, s),
                (Path::Avx512Bf16, 2) if halves => pairs::<2>(a, head, rows, s),
                (Path::Avx512Bf16, _) if halves => pairs::<3>(a, head, rows, s),
                (Path::Avx512Bf16 | Path::Avx512, 1) => avx512::<1>(a, head, rows, s),
                (Path::Avx512Bf16 | Path::Avx512, 2) => avx512::<2>(a, head, rows, s),
                (Path::Avx512Bf16 | Path::Avx512, _) => avx512::<3>(a, head, rows, s),
                (Path::Avx2, _) if count <= 8 => avx2::<1>(a, head, rows, s),
                (Path::Avx2, _) => avx2::<2>(a, head, rows, s),
                (Path::Portable, _) => tile::<Portable, Single, 1, 4>(a, head, rows, s),
            }
        }
    });
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
unsafe fn pairs<const C: usize>(a: &Attention<'_>, head: Head, rows: Range<usize>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Avx512, Pair, C, 8>(a, head, rows, s) }
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
unsafe fn avx512<const C: usize>(a: &Attention<'_>, head: Head, rows: Range<usize>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Avx512, Single, C, 8>(a, head, rows, s) }
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const C: usize>(a: &Attention<'_>, head: Head, rows: Range<usize>, s: Carver) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Avx2, Single, C, 4>(a, head, rows, s) }
}

/// The state of a tile of W = `C * LANES` rows, each array with one lane a row.
struct Tile {
    /// Queries: `[words of d][W]`, filled up to whole registers of words.
    q: *mut f32,
    /// Scores of a tile of keys, `[KEYS][W]`, then words of weights.
    p: *mut f32,
    /// Weighted values so far: `[e][W]`, filled up.
    o: *mut f32,
    /// Largest score so far.
    max: *mut f32,
    /// Sum of weights so far.
    sum: *mut f32,
    /// What the last tile of keys made of earlier weights.
    shrink: *mut f32,
    /// [`Attention::slope`]
    slopes: *mut f32,
    from: *mut f32,
    /// Keys and values of a tile where they have to be copied, or rows of q and out.
    copy: *mut f32,
}

/// # Safety
/// The operands are valid, no one else accesses the rows of out, and the machine has the instructions of V and W.
#[inline(always)]
unsafe fn tile<V: Simd, W: Word<V>, const C: usize, const R: usize>(
    a: &Attention<'_>,
    head: Head,
    rows: Range<usize>,
    mut s: Carver,
) {
    let (w, d, e, t) = (C * V::LANES, a.dims.d, a.dims.e, a.dims.t);
    let (wide_d, wide_e) = (d.next_multiple_of(V::LANES), e.next_multiple_of(V::LANES));
    let tile = Tile {
        q: s.take(w * wide_d),
        p: s.take(w * KEYS),
        o: s.take(w * wide_e),
        max: s.take(w),
        sum: s.take(w),
        shrink: s.take(w),
        slopes: s.take(w),
        from: s.take(w),
        copy: std::ptr::null_mut(),
    };
    let (low, high) = (s.take(w).cast::<i32>(), s.take(w).cast::<i32>());
    let tile = Tile { copy: s.take(KEYS.max(w) * wide_d.max(wide_e)), ..tile };
    // SAFETY: the caller's promise; each piece of scratch has the size that the functions below say.
    unsafe {
        let sight = a.sight(head.batch, rows.clone(), w, low, high);
        begin::<V, W, C>(a, head, rows.clone(), &tile);
        let positions = Attention::positions(&a.call.k_pos, &a.k_pos, head.batch);
        let (keys, values) = (a.keys(head), a.values(head));
        let (factor, _) = a.factors();
        let mut k_pos = [0i32; KEYS];
        for start in (0..t).step_by(KEYS) {
            let n = KEYS.min(t - start);
            read_positions(&positions, start..start + n, &mut k_pos);
            let Some(Seen { keys: seen, all }) = sight.of(&k_pos[..n]) else { continue };
            let (n, k_pos) = (seen.len(), &k_pos[seen.clone()]);
            let k = W::keys(&keys.from(start + seen.start), n, d, tile.copy);
            scores::<V, W, C, R>(&tile, k, n, d.div_ceil(W::ELEMENTS), factor);
            finish_scores::<V, W, C>(a, &tile, k_pos, (!all).then_some((low, high)));
            let v = W::values(&values.from(start + seen.start), n, e, tile.copy);
            let words = n.div_ceil(W::ELEMENTS);
            if all || finite::<V, W>(v, words, e) {
                mix::<V, W, C, R>(&tile, v, words, e);
            } else {
                mix_seen::<V, W, C>(&tile, v, words, e);
            }
        }
        end::<V, C>(a, head, rows, &tile);
    }
}

/// Packs the queries and clears the state.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn begin<V: Simd, W: Word<V>, const C: usize>(
    a: &Attention<'_>,
    head: Head,
    rows: Range<usize>,
    tile: &Tile,
) {
    let (w, count) = (C * V::LANES, rows.len());
    let words = a.dims.d.div_ceil(W::ELEMENTS).next_multiple_of(V::LANES);
    let wide_e = a.dims.e.next_multiple_of(V::LANES);
    // SAFETY: the arrays have w entries for each row of theirs; queries exist for the rows of the tile; `copy` has room for a row of
    // words for each of them.
    unsafe {
        std::slice::from_raw_parts_mut(tile.copy.add(count * words), (w - count) * words).fill(0.0);
        std::slice::from_raw_parts_mut(tile.o, w * wide_e).fill(0.0);
        let queries = a.queries(head);
        for (i, row) in rows.enumerate() {
            W::query(&queries.row(row), a.dims.d, tile.copy.add(i * words), words);
            (*tile.slopes.add(i), *tile.from.add(i)) = a.slope(head, row);
        }
        for i in (0..w).step_by(V::LANES) {
            for p in (0..words).step_by(V::LANES) {
                V::transpose(tile.copy.add(i * words + p), words, tile.q.add(p * w + i), w);
            }
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
#[inline(always)]
unsafe fn end<V: Simd, const C: usize>(a: &Attention<'_>, head: Head, rows: Range<usize>, tile: &Tile) {
    let (w, e) = (C * V::LANES, a.dims.e);
    let wide = e.next_multiple_of(V::LANES);
    // SAFETY: as in `begin`.
    unsafe {
        for i in (0..w).step_by(V::LANES) {
            for p in (0..wide).step_by(V::LANES) {
                V::transpose(tile.o.add(p * w + i), w, tile.copy.add(i * wide + p), wide);
            }
        }
        let results = a.results(head);
        for (i, row) in rows.enumerate() {
            let o = std::slice::from_raw_parts_mut(tile.copy.add(i * wide), e);
            results.row(row).put(o, *tile.sum.add(i));
        }
    }
}

/// `p[j] = q . k[j]`, scaled, for n keys.
///
/// # Safety
/// As [`tile`]; a key has as many words as a query.
#[inline(always)]
unsafe fn scores<V: Simd, W: Word<V>, const C: usize, const R: usize>(
    tile: &Tile,
    k: Words,
    n: usize,
    words: usize,
    factor: f32,
) {
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j + R <= n {
            score_rows::<V, W, C, R>(tile, k, j, words, factor);
            j += R;
        }
        while j < n {
            score_rows::<V, W, C, 1>(tile, k, j, words, factor);
            j += 1;
        }
    }
}

/// # Safety
/// As [`scores`], for R keys from `j` on.
#[inline(always)]
unsafe fn score_rows<V: Simd, W: Word<V>, const C: usize, const R: usize>(
    tile: &Tile,
    k: Words,
    j: usize,
    words: usize,
    factor: f32,
) {
    let w = C * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut keys = [std::ptr::null(); R];
        for (i, key) in keys.iter_mut().enumerate() {
            *key = k.at(j + i, 0);
        }
        let mut sums = [[V::splat(0.0); C]; R];
        for p in 0..words {
            let mut query = [V::splat(0.0); C];
            for (c, x) in query.iter_mut().enumerate() {
                *x = V::load(tile.q.add(p * w + c * V::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let key = V::splat(keys[i].add(p).read_unaligned());
                for c in 0..C {
                    sums[c] = W::dot(key, query[c], sums[c]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (c, x) in sums.iter().enumerate() {
                x.mul(V::splat(factor)).store(tile.p.add((j + i) * w + c * V::LANES));
            }
        }
    }
}

/// Caps, biases and masks scores, then turns them into words of weights, with the maximum and the sum brought up to date.
///
/// # Safety
/// As [`tile`]; bounds of sight have one entry a row.
#[inline(always)]
unsafe fn finish_scores<V: Simd, W: Word<V>, const C: usize>(
    a: &Attention<'_>,
    tile: &Tile,
    k_pos: &[i32],
    sight: Option<(*mut i32, *mut i32)>,
) {
    let (w, n) = (C * V::LANES, k_pos.len());
    let (_, softcap) = a.factors();
    for lane in (0..w).step_by(V::LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let score = |j: usize| tile.p.add(j * w + lane);
            if let Some((inverse, cap)) = softcap {
                for j in 0..n {
                    let x = V::load(score(j)).mul(V::splat(inverse)).tanh();
                    x.mul(V::splat(cap)).store(score(j));
                }
            }
            if a.slopes.is_some() {
                a.add_biases::<V>(score, k_pos, (tile.slopes.add(lane), tile.from.add(lane)));
            }
            if let Some((low, high)) = sight {
                for (j, &k) in k_pos.iter().enumerate() {
                    let x = V::load(score(j)).hide_unseen(k, low.add(lane), high.add(lane));
                    x.store(score(j));
                }
            }
            let old = V::load(tile.max.add(lane));
            let mut max = old;
            for j in 0..n {
                max = max.max(V::load(score(j)));
            }
            let shrink = old.sub(max).exp2();
            let mut sum = V::load(tile.sum.add(lane)).mul(shrink);
            for (i, j) in (0..n).step_by(W::ELEMENTS).enumerate() {
                let x = V::load(score(j)).sub(max).exp2();
                let mut y = V::splat(0.0);
                if W::ELEMENTS > 1 && j + 1 < n {
                    y = V::load(score(j + 1)).sub(max).exp2();
                }
                let words = W::weights(x, y);
                sum = W::dot(words, W::ones(), sum);
                // No score is written over that is still to be read.
                words.store(score(i));
            }
            max.store(tile.max.add(lane));
            sum.store(tile.sum.add(lane));
            shrink.store(tile.shrink.add(lane));
        }
    }
}

/// `o = shrink * o + sum of p[j] . v[j]` over n rows of words.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn mix<V: Simd, W: Word<V>, const C: usize, const R: usize>(
    tile: &Tile,
    v: Words,
    n: usize,
    e: usize,
) {
    let mut i = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while i + R <= e {
            mix_columns::<V, W, C, R>(tile, v, n, i);
            i += R;
        }
        while i < e {
            mix_columns::<V, W, C, 1>(tile, v, n, i);
            i += 1;
        }
    }
}

/// # Safety
/// As [`mix`], for R columns of v from `at` on.
#[inline(always)]
unsafe fn mix_columns<V: Simd, W: Word<V>, const C: usize, const R: usize>(
    tile: &Tile,
    v: Words,
    n: usize,
    at: usize,
) {
    let w = C * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let o = tile.o.add(at * w);
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
            for (i, sums) in sums.iter_mut().enumerate() {
                let value = V::splat(v.at(j, at + i).read_unaligned());
                for c in 0..C {
                    sums[c] = W::dot(value, weights[c], sums[c]);
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
/// The n rows of words exist.
#[inline(always)]
unsafe fn finite<V: Simd, W: Word<V>>(v: Words, n: usize, e: usize) -> bool {
    let mut bad = 0;
    for j in 0..n {
        let row = v.at(j, 0).cast::<u32>();
        for i in 0..e {
            // SAFETY: the caller's promise.
            bad |= u32::from(!W::finite(unsafe { row.add(i).read_unaligned() }));
        }
    }
    bad == 0
}

/// As [`mix`], element by element, leaving out weights of zero.
///
/// # Safety
/// As [`tile`].
unsafe fn mix_seen<V: Simd, W: Word<V>, const C: usize>(tile: &Tile, v: Words, n: usize, e: usize) {
    let w = C * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        for (i, lane) in (0..e).flat_map(|i| (0..w).map(move |lane| (i, lane))) {
            let o = tile.o.add(i * w + lane);
            let mut sum = *o * *tile.shrink.add(lane);
            for j in 0..n {
                let weights = W::elements((*tile.p.add(j * w + lane)).to_bits());
                let values = W::elements(v.at(j, i).cast::<u32>().read_unaligned());
                for (weight, value) in weights.into_iter().zip(values) {
                    if weight != 0.0 {
                        sum += weight * value;
                    }
                }
            }
            *o = sum;
        }
    }
}
