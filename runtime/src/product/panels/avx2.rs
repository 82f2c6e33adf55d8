//! Loops over panels by AVX2 and FMA. bf16 is widened to f32 in registers: a shift for the second of a pair, a mask for the first.

use super::{Block, CHUNK, Element, ROW, WIDTH};
use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_set1_epi32, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

/// Most rows worked on together: 6 * 2 sums, 2 registers for b and one for a. Widening bf16 takes two registers more.
pub(super) const ROWS: usize = 6;

pub(super) fn rows(element: Element) -> usize {
    match element {
        Element::F32 => ROWS,
        Element::Bf16 => 5,
    }
}
/// Lanes of a register.
const LANES: usize = 8;
const _: () = assert!(WIDTH == 4 * LANES);

macro_rules! kernel {
    ($name:ident, $multiply:ident) => {
        /// M rows times R registers of columns, from column `first` on.
        ///
        /// # Safety
        /// As [`Block::run`], for M rows and one panel; `first + 8 R <= 32`.
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $name<const M: usize, const R: usize>(block: &Block, first: usize) {
            let mut sums = [[_mm256_setzero_ps(); R]; M];
            if block.resumes {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let from = block.c.wrapping_offset(row as isize * block.c_row).wrapping_add(first);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: the block's result has this row and these columns.
                        *sum = unsafe { _mm256_loadu_ps(from.add(r * LANES)) };
                    }
                }
            }
            let (mut a, mut b, mut left) = (block.a, block.b.wrapping_add(first), block.units);
            while left > 0 {
                let steps = left.min(CHUNK);
                for step in 0..steps {
                    let at = b.wrapping_add(step * WIDTH);
                    let mut columns = [_mm256_set1_epi32(0); R];
                    for (r, column) in columns.iter_mut().enumerate() {
                        // SAFETY: a step of a panel has 32 units, of which these are `8 R` from `first`.
                        *column = unsafe { _mm256_loadu_si256(at.add(r * LANES).cast()) };
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: the scratch has this unit of this row.
                        let unit = unsafe { a.add(row * ROW + step).read() };
                        let unit = _mm256_set1_epi32(unit as i32);
                        for (sum, column) in sums.iter_mut().zip(columns) {
                            *sum = $multiply(*sum, unit, column);
                        }
                    }
                }
                a = a.wrapping_add(M * ROW);
                b = b.wrapping_add(steps * WIDTH);
                left -= steps;
            }
            for (row, sums) in sums.iter().enumerate() {
                let to = block.c.wrapping_offset(row as isize * block.c_row).wrapping_add(first);
                for (r, sum) in sums.iter().enumerate() {
                    // SAFETY: the block's result has this row and these columns.
                    unsafe { _mm256_storeu_ps(to.add(r * LANES), *sum) };
                }
            }
        }
    };
}

kernel!(singles, single);
kernel!(halves, pair);

#[target_feature(enable = "avx2,fma")]
fn single(sum: __m256, a: __m256i, b: __m256i) -> __m256 {
    _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), sum)
}

#[target_feature(enable = "avx2,fma")]
fn pair(sum: __m256, a: __m256i, b: __m256i) -> __m256 {
    // No closures: they would not be inlined with the instructions of this function.
    let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    let a1 = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a));
    let b1 = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b));
    let a2 = _mm256_castsi256_ps(_mm256_and_si256(a, high));
    let b2 = _mm256_castsi256_ps(_mm256_and_si256(b, high));
    _mm256_fmadd_ps(a2, b2, _mm256_fmadd_ps(a1, b1, sum))
}

/// # Safety
/// As [`Block::run`].
pub(super) unsafe fn run(block: &Block) {
    macro_rules! choose {
        ($kernel:ident) => {
            // SAFETY: the caller's promise; the kernels are those for these rows, and cover the panel.
            unsafe {
                match block.rows {
                    1 => $kernel::<1, 4>(block, 0),
                    2 => $kernel::<2, 4>(block, 0),
                    3 => $kernel::<3, 4>(block, 0),
                    4 => [0, 16].into_iter().for_each(|first| $kernel::<4, 2>(block, first)),
                    5 => [0, 16].into_iter().for_each(|first| $kernel::<5, 2>(block, first)),
                    6 => [0, 16].into_iter().for_each(|first| $kernel::<6, 2>(block, first)),
                    // invariant: callers keep to `rows`
                    rows => unreachable!("no loop for {rows} rows"),
                }
            }
        };
    }
    match block.element {
        Element::F32 => choose!(singles),
        Element::Bf16 => choose!(halves),
    }
}
