//! f32 products with at most [`super::FEW`] rows: bound by reading the matrix, once, in the order it is stored.
//!
//! Every element of c is a sum over k in a fixed order, so columns can be cut anywhere.

use super::{Side, Tile};
use std::cell::RefCell;

/// Columns worked on at a time when b's rows are contiguous: c stays in the first-level cache.
const COLUMNS: usize = 2048;
/// Rows of b read together.
const STREAMS: usize = 8;
/// Lanes of one accumulator of a dot product.
const LANES: usize = 16;
/// Columns whose dot products run together.
const DOTS: usize = 4;

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
            if is_x86_feature_detected!("avx512f") {
                if by_rows { rows_avx512(t, scaled) } else { dots_avx512(t, scaled) }
            } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                if by_rows { rows_avx2(t, scaled) } else { dots_avx2(t, scaled) }
            } else {
                return false;
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

/// # Safety
/// As [`super::run`], and the machine has AVX-512F.
#[target_feature(enable = "avx512f,fma")]
unsafe fn dots_avx512(t: &Tile, a: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe { dots(t, a) }
}

/// # Safety
/// As [`super::run`], and the machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn dots_avx2(t: &Tile, a: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe { dots(t, a) }
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
/// As [`super::run`]; rows of b are adjacent.
#[inline(always)]
unsafe fn dots(t: &Tile, a: &[f32]) {
    let mut j = 0;
    while j < t.n {
        let count = DOTS.min(t.n - j);
        // SAFETY: a column of b has k adjacent elements. Past the last column the last one is repeated.
        let column = |d: usize| unsafe {
            std::slice::from_raw_parts(at(&t.b, 0, (j + d.min(count - 1)) as isize).cast_const(), t.k)
        };
        let columns: [&[f32]; DOTS] = std::array::from_fn(column);
        for i in 0..t.m {
            let sums = dot(&a[i * t.k..][..t.k], columns);
            for (d, sum) in sums.into_iter().enumerate().take(count) {
                let c = at(&t.c, i as isize, (j + d) as isize);
                // SAFETY: the caller's promise for elements of c.
                unsafe { *c = if t.accumulate { *c + sum } else { sum } };
            }
        }
        j += count;
    }
}

#[inline(always)]
fn dot(a: &[f32], b: [&[f32]; DOTS]) -> [f32; DOTS] {
    let k = a.len();
    let b = b.map(|column| &column[..k]);
    let mut sums = [[0.0f32; LANES]; DOTS];
    let whole = k / LANES * LANES;
    for p in (0..whole).step_by(LANES) {
        for d in 0..DOTS {
            for l in 0..LANES {
                sums[d][l] = a[p + l].mul_add(b[d][p + l], sums[d][l]);
            }
        }
    }
    std::array::from_fn(|d| {
        let tail = (whole..k).fold(0.0f32, |sum, p| a[p].mul_add(b[d][p], sum));
        sums[d].iter().sum::<f32>() + tail
    })
}
