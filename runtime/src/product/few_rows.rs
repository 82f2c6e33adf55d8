//! f32 products with at most [`super::FEW`] rows: bound by reading the matrix, once, in the order it is stored.
//!
//! Every element of c is a sum over k in a fixed order, so columns can be cut anywhere.

use super::{Side, Tile};
use std::arch::x86_64::{
    _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_loadu_ps, _mm512_reduce_add_ps,
    _mm512_setzero_ps,
};
use std::cell::RefCell;

/// Columns worked on at a time when b's rows are contiguous: c stays in the first-level cache.
const COLUMNS: usize = 2048;
/// Rows of b read together.
const STREAMS: usize = 8;
/// Lanes of a register.
const LANES: usize = 16;

thread_local! {
    /// alpha * a, row-major.
    static SCALED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes the tile, or returns `false` when its layout or the machine has no loop here.
///
/// # Safety
/// As [`super::run`]; all matrices are f32.
pub(super) unsafe fn run(t: &Tile) -> bool {
    let by_rows = t.b.col == 1 && t.c.col == 1;
    let by_dots = t.b.row == 1;
    if t.k == 0 || !(by_rows || by_dots) {
        return false;
    }
    SCALED.with_borrow_mut(|scaled| {
        scaled.clear();
        for i in 0..t.m as isize {
            for p in 0..t.k as isize {
                // SAFETY: the caller's promise for elements of a.
                scaled.push(t.alpha as f32 * unsafe { *at(&t.a, i, p) });
            }
        }
        // SAFETY: the caller's promise, and the features are checked right here.
        unsafe {
            match (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("fma"), by_rows) {
                (true, true, true) => rows_avx512(t, scaled),
                (true, _, false) => dots(t, scaled),
                (false, true, true) if is_x86_feature_detected!("avx2") => rows_avx2(t, scaled),
                _ => return false,
            }
        }
        true
    })
}

fn at(side: &Side, i: isize, j: isize) -> *mut f32 {
    side.start.cast::<f32>().wrapping_offset(i * side.row + j * side.col)
}

/// # Safety
/// As [`super::run`], and the machine has AVX-512F.
#[target_feature(enable = "avx512f,fma")]
unsafe fn rows_avx512(t: &Tile, a: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe { rows(t, a) }
}

/// # Safety
/// As [`super::run`], and the machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows_avx2(t: &Tile, a: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe { rows(t, a) }
}

/// c row += a element * b row, several rows of b at a time.
///
/// # Safety
/// As [`super::run`]; columns of b and c are adjacent.
#[inline(always)]
unsafe fn rows(t: &Tile, a: &[f32]) {
    for start in (0..t.n).step_by(COLUMNS) {
        let width = COLUMNS.min(t.n - start);
        for i in 0..t.m {
            // SAFETY: row i of c has n adjacent elements, of which these are `width` from `start`.
            let c = unsafe { std::slice::from_raw_parts_mut(at(&t.c, i as isize, start as isize), width) };
            if !t.accumulate {
                c.fill(0.0);
            }
        }
        let mut p = 0;
        while p < t.k {
            let streams = STREAMS.min(t.k - p);
            // SAFETY: rows p.. of b have n adjacent elements each, of which these are `width` from `start`.
            let row = |s: usize| unsafe {
                std::slice::from_raw_parts(at(&t.b, (p + s) as isize, start as isize).cast_const(), width)
            };
            for i in 0..t.m {
                // SAFETY: as above for c; b and c do not overlap.
                let c =
                    unsafe { std::slice::from_raw_parts_mut(at(&t.c, i as isize, start as isize), width) };
                let a = &a[i * t.k + p..][..streams];
                if streams == STREAMS {
                    add_rows(c, a, std::array::from_fn::<_, STREAMS, _>(row));
                } else {
                    (0..streams).for_each(|s| add_rows(c, &a[s..], [row(s)]));
                }
            }
            p += streams;
        }
    }
}

#[inline(always)]
fn add_rows<const N: usize>(c: &mut [f32], a: &[f32], b: [&[f32]; N]) {
    let n = c.len();
    let b = b.map(|row| &row[..n]);
    for j in 0..n {
        let mut sum = c[j];
        for s in 0..N {
            sum = a[s].mul_add(b[s][j], sum);
        }
        c[j] = sum;
    }
}

/// Dot products of rows of a with columns of b, whose elements are adjacent.
///
/// # Safety
/// As [`super::run`]; rows of b are adjacent, and the machine has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn dots(t: &Tile, a: &[f32]) {
    for j in 0..t.n as isize {
        // SAFETY: a column of b has k adjacent elements.
        let column = unsafe { std::slice::from_raw_parts(at(&t.b, 0, j).cast_const(), t.k) };
        for i in 0..t.m {
            let sum = dot(&a[i * t.k..][..t.k], column);
            let c = at(&t.c, i as isize, j);
            // SAFETY: the caller's promise for elements of c.
            unsafe { *c = if t.accumulate { *c + sum } else { sum } };
        }
    }
}

/// Four accumulators of 16 lanes, added in a fixed order at the end: the order of the sum depends on the length alone.
#[target_feature(enable = "avx512f")]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let mut sums = [_mm512_setzero_ps(); 4];
    let (pa, pb) = (a.as_ptr(), b.as_ptr());
    let mut p = 0;
    while p + 4 * LANES <= n {
        for (s, sum) in sums.iter_mut().enumerate() {
            // SAFETY: 16 elements from `p + 16 s` are inside both slices.
            let (x, y) =
                unsafe { (_mm512_loadu_ps(pa.add(p + s * LANES)), _mm512_loadu_ps(pb.add(p + s * LANES))) };
            *sum = _mm512_fmadd_ps(x, y, *sum);
        }
        p += 4 * LANES;
    }
    while p < n {
        let mask = if n - p >= LANES { u16::MAX } else { (1 << (n - p)) - 1 };
        // SAFETY: lanes past the end of the slices are masked, and not read.
        let (x, y) =
            unsafe { (_mm512_maskz_loadu_ps(mask, pa.add(p)), _mm512_maskz_loadu_ps(mask, pb.add(p))) };
        sums[0] = _mm512_fmadd_ps(x, y, sums[0]);
        p += LANES;
    }
    let low = _mm512_add_ps(sums[0], sums[1]);
    let high = _mm512_add_ps(sums[2], sums[3]);
    _mm512_reduce_add_ps(_mm512_add_ps(low, high))
}
