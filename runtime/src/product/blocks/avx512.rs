//! Few rows by AVX-512: codes of 4 bits are looked up in a register of 16 floats, codes of 8 bits converted.

use super::Work;
use crate::product::panels::WIDTH;
use std::arch::x86_64::{
    __m512, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_loadu_si256, _mm512_add_ps,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_srli_epi32,
    _mm512_storeu_ps,
};

/// Most rows worked on together.
pub(super) const ROWS: usize = 12;
/// Lanes of a register.
const LANES: usize = 16;
const _: () = assert!(WIDTH == 2 * LANES);
/// How far ahead a panel is asked for, in bytes.
const AHEAD: usize = 2048;

/// Sums of a group: rows, ways (sums that take turns, so that an addition need not wait for the one before), halves of the panel.
type Sums<const M: usize, const S: usize> = [[[__m512; 2]; S]; M];

/// # Safety
/// As [`Work::run`], for at most [`ROWS`] rows.
pub(super) unsafe fn run(work: &Work) {
    macro_rules! choose {
        ($($rows:literal)*) => {
            // SAFETY: the caller's promise; the loop is the one for these rows.
            unsafe {
                match (work.format.bits, work.rows) {
                    (4, 1) => rows::<4, 1, 2>(work),
                    (_, 1) => rows::<8, 1, 2>(work),
                    $((4, $rows) => rows::<4, $rows, 1>(work),)*
                    $((_, $rows) => rows::<8, $rows, 1>(work),)*
                    // invariant: callers keep to `ROWS`
                    (_, rows) => unreachable!("no loop for {rows} rows"),
                }
            }
        };
    }
    choose!(2 3 4 5 6 7 8 9 10 11 12);
}

/// # Safety
/// As [`Work::run`], for M rows.
#[target_feature(enable = "avx512f")]
unsafe fn rows<const BITS: u32, const M: usize, const S: usize>(work: &Work) {
    let format = &work.format;
    let (group, scale_bytes) = (format.group as usize, WIDTH * format.scale_bytes());
    let (head, bytes) = (format.head_bytes(), format.group_bytes());
    let length = work.groups * group;
    let table: [f32; LANES] = std::array::from_fn(|i| f32::from(format.low) + i as f32);
    // SAFETY: the table has 16 floats.
    let table = unsafe { _mm512_loadu_ps(table.as_ptr()) };
    let mut y = [[_mm512_setzero_ps(); 2]; M];
    let mut at = work.panel;
    for g in 0..work.groups {
        let mut sums: Sums<M, S> = [[[_mm512_setzero_ps(); 2]; S]; M];
        let x = work.x.wrapping_add(g * group);
        let mut codes = at.wrapping_add(head);
        for step in 0..group / 8 {
            let x = x.wrapping_add(8 * step);
            // SAFETY: the group has codes of these 8 rows, and the scratch their elements of a in each of M rows.
            unsafe {
                if BITS == 4 {
                    nibbles(&mut sums, codes, x, length, table);
                    codes = codes.wrapping_add(4 * WIDTH);
                } else {
                    bytes_of_rows(&mut sums, codes, x, length);
                    codes = codes.wrapping_add(8 * WIDTH);
                }
            }
        }
        for half in 0..2 {
            // SAFETY: the group has 32 scales, of which these are 16, and as many offsets if the format has any.
            let (scale, offset) = unsafe {
                let scale = sixteen(at, half, format.half);
                (scale, format.offsets.then(|| sixteen(at.wrapping_add(scale_bytes), half, format.half)))
            };
            for (row, (y, sums)) in y.iter_mut().zip(&sums).enumerate() {
                let mut sum = sums[0][half];
                for other in &sums[1..] {
                    sum = _mm512_add_ps(sum, other[half]);
                }
                y[half] = _mm512_fmadd_ps(sum, scale, y[half]);
                if let Some(offset) = offset {
                    // SAFETY: the scratch has a sum of this row and group.
                    let x = _mm512_set1_ps(unsafe { *work.sums.wrapping_add(row * work.groups + g) });
                    y[half] = _mm512_fmadd_ps(x, offset, y[half]);
                }
            }
        }
        at = at.wrapping_add(bytes);
    }
    for (row, y) in y.iter().enumerate() {
        for (half, y) in y.iter().enumerate() {
            // SAFETY: the result has M rows of 32 columns.
            unsafe { _mm512_storeu_ps(work.y.wrapping_add(row * WIDTH + half * LANES), *y) };
        }
    }
}

/// 16 scales or offsets, of the first or the second half of the columns.
///
/// # Safety
/// There are 32 from `at` on.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sixteen(at: *const u8, half: usize, f16: bool) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if f16 {
            _mm512_cvtph_ps(_mm256_loadu_si256(at.wrapping_add(half * 2 * LANES).cast()))
        } else {
            _mm512_loadu_ps(at.wrapping_add(half * 4 * LANES).cast())
        }
    }
}

/// Adds 8 rows of b with codes of 4 bits.
///
/// # Safety
/// There are 32 words of codes; `x` has 8 elements in each of M rows, `length` apart.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn nibbles<const M: usize, const S: usize>(
    sums: &mut Sums<M, S>,
    codes: *const u8,
    x: *const f32,
    length: usize,
    table: __m512,
) {
    _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD).cast());
    _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD + 64).cast());
    // SAFETY: the caller's promise.
    let mut words =
        unsafe { [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.wrapping_add(64).cast())] };
    for k in 0..8 {
        // The look-up takes the low four bits of a lane.
        let b = words.map(|w| _mm512_permutexvar_ps(w, table));
        words = words.map(|w| _mm512_srli_epi32::<4>(w));
        // SAFETY: the caller's promise.
        unsafe { add(sums, b, x.wrapping_add(k), length, k % S) };
    }
}

/// Adds 8 rows of b with codes of 8 bits.
///
/// # Safety
/// There are 8 times 32 bytes of codes; `x` has 8 elements in each of M rows, `length` apart.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes_of_rows<const M: usize, const S: usize>(
    sums: &mut Sums<M, S>,
    codes: *const u8,
    x: *const f32,
    length: usize,
) {
    for k in 0..8 {
        let row = codes.wrapping_add(k * WIDTH);
        if k % 2 == 0 {
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(AHEAD).cast());
        }
        // SAFETY: the caller's promise.
        let b = [0, LANES].map(|first| unsafe {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(row.wrapping_add(first).cast())))
        });
        // SAFETY: the caller's promise.
        unsafe { add(sums, b, x.wrapping_add(k), length, k % S) };
    }
}

/// Adds one row of b times an element of each row of a.
///
/// # Safety
/// `x` is an element of the first of M rows, `length` apart.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add<const M: usize, const S: usize>(
    sums: &mut Sums<M, S>,
    b: [__m512; 2],
    x: *const f32,
    length: usize,
    way: usize,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = _mm512_set1_ps(unsafe { *x.wrapping_add(row * length) });
        for (sum, b) in sums[way].iter_mut().zip(b) {
            *sum = _mm512_fmadd_ps(x, b, *sum);
        }
    }
}
