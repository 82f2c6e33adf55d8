//! Loops over panels by AVX-512: two registers hold a step of a panel, up to 28 hold sums.

use super::{Block, CHUNK, Element, ROW, WIDTH};
use std::arch::x86_64::{
    __m512, __m512bh, _MM_HINT_T0, _mm_prefetch, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};

/// Most rows worked on together: 14 * 2 sums, 2 registers for b and one for a.
pub(super) const ROWS: usize = 14;
/// Lanes of a register.
const LANES: usize = 16;
const _: () = assert!(WIDTH == 2 * LANES);
/// How many steps of k ahead a panel is asked for: 4 KiB.
const AHEAD: usize = 32;

/// Panels worked on together: at least eight sums keep both adders busy.
pub(super) const fn panels(rows: usize) -> usize {
    match rows {
        1..=3 => 4,
        4..=7 => 2,
        _ => 1,
    }
}

/// Stores the sums of each row, one after another in so many words: sums stay in registers only where every index is a constant.
macro_rules! store_rows {
    ($block:ident, $sums:ident, $rows:ident, $($row:literal)*) => {
        $(if $row < $rows {
            let to = $block.c.wrapping_offset($row * $block.c_row);
            // SAFETY: the block's result has this row.
            unsafe { store(&$sums[$row % $rows], to) };
        })*
    };
}

/// As [`store_rows`], the other way.
macro_rules! load_rows {
    ($block:ident, $sums:ident, $rows:ident, $($row:literal)*) => {
        $(if $row < $rows {
            let from = $block.c.wrapping_offset($row * $block.c_row);
            // SAFETY: the block's result has this row.
            unsafe { load(&mut $sums[$row % $rows], from) };
        })*
    };
}

/// # Safety
/// The row's sums are there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const P: usize>(sums: &mut [[__m512; 2]; P], from: *const f32) {
    for (p, [first, second]) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            *first = _mm512_loadu_ps(from.add(p * WIDTH));
            *second = _mm512_loadu_ps(from.add(p * WIDTH + LANES));
        }
    }
}

/// # Safety
/// There is room for the row's sums.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const P: usize>(sums: &[[__m512; 2]; P], to: *mut f32) {
    for (p, [first, second]) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            _mm512_storeu_ps(to.add(p * WIDTH), *first);
            _mm512_storeu_ps(to.add(p * WIDTH + LANES), *second);
        }
    }
}

macro_rules! kernel {
    ($name:ident, $features:literal, $multiply:expr) => {
        /// # Safety
        /// As [`Block::run`], for M rows and P panels.
        #[target_feature(enable = $features)]
        unsafe fn $name<const M: usize, const P: usize>(block: &Block) {
            let mut sums = [[[_mm512_setzero_ps(); 2]; P]; M];
            if block.resumes {
                load_rows!(block, sums, M, 0 1 2 3 4 5 6 7 8 9 10 11 12 13);
            }
            let (mut a, mut b, mut left) = (block.a, block.b, block.units);
            while left > 0 {
                let steps = left.min(CHUNK);
                for step in 0..steps {
                    let mut columns = [[_mm512_setzero_ps(); 2]; P];
                    for (p, pair) in columns.iter_mut().enumerate() {
                        let at = b.wrapping_add(p * block.panel + step * WIDTH);
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * WIDTH).cast());
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * WIDTH + LANES).cast());
                        for (half, register) in pair.iter_mut().enumerate() {
                            // SAFETY: a step of a panel has 32 units.
                            *register = unsafe { _mm512_loadu_ps(at.add(half * LANES).cast()) };
                        }
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: the scratch has this unit of this row.
                        let unit = unsafe { a.add(row * ROW + step).read() };
                        let unit = _mm512_set1_epi32(unit as i32);
                        for (pair, columns) in sums.iter_mut().zip(&columns) {
                            for (sum, column) in pair.iter_mut().zip(columns) {
                                *sum = $multiply(*sum, unit, *column);
                            }
                        }
                    }
                }
                a = a.wrapping_add(M * ROW);
                b = b.wrapping_add(steps * WIDTH);
                left -= steps;
            }
            store_rows!(block, sums, M, 0 1 2 3 4 5 6 7 8 9 10 11 12 13);
        }
    };
}

kernel!(singles, "avx512f", |sum: __m512, a, b: __m512| {
    _mm512_fmadd_ps(std::arch::x86_64::_mm512_castsi512_ps(a), b, sum)
});
kernel!(halves, "avx512f,avx512bf16", |sum: __m512, a, b: __m512| {
    // SAFETY: both are 512 bits that hold 32 bf16.
    let (a, b) = unsafe {
        (
            std::mem::transmute::<std::arch::x86_64::__m512i, __m512bh>(a),
            std::mem::transmute::<__m512, __m512bh>(b),
        )
    };
    _mm512_dpbf16_ps(sum, a, b)
});

/// # Safety
/// As [`Block::run`].
pub(super) unsafe fn run(block: &Block) {
    macro_rules! choose {
        ($kernel:ident, $($rows:literal $panels:literal),*) => {
            match (block.rows, block.panels) {
                // SAFETY: the caller's promise; the kernel is the one for these rows and panels.
                $(($rows, $panels) => unsafe { $kernel::<$rows, $panels>(block) },)*
                // invariant: callers keep to `ROWS` and `panels`
                _ => unreachable!("no loop for {} rows, {} panels", block.rows, block.panels),
            }
        };
    }
    macro_rules! all {
        ($kernel:ident) => {
            choose!($kernel, 1 4, 2 4, 3 4, 4 2, 5 2, 6 2, 7 2,
                1 1, 2 1, 3 1, 4 1, 5 1, 6 1, 7 1, 8 1, 9 1, 10 1, 11 1, 12 1, 13 1, 14 1)
        };
    }
    match block.element {
        Element::F32 => all!(singles),
        Element::Bf16 => all!(halves),
    }
}
