//! What a lane of 32 bits multiplies at once: one f32, or two neighbours of bf16.

use super::rows::Rows;
use super::simd::{Avx512, Simd};
use pcc_ir::DType;
use std::arch::x86_64::*;

/// What a lane of a register is read from, and how lanes are multiplied.
///
/// All functions are unsafe: the machine must have the instructions, rows must be valid, and room must be as large as said.
pub(super) trait Lane<V: Simd> {
    /// Elements of a lane.
    const ELEMENTS: usize;
    /// Bytes of it in memory.
    const BYTES: usize;
    /// A register of lanes, adjacent in memory, at any address.
    unsafe fn load(at: *const u8) -> V;
    /// `sum + x . y`, lane by lane.
    unsafe fn dot(x: V, y: V, sum: V) -> V;
    /// Copies `width` elements of a row to `words` words, which can be multiplied by lanes that are read; filled up with zeros.
    unsafe fn query(row: &Rows, width: usize, to: *mut f32, words: usize);
}

/// How operands are made of words of 32 bits.
///
/// All functions are unsafe, as above.
pub(super) trait Word<V: Simd>: Lane<V> {
    /// Words of ones.
    unsafe fn ones() -> V;
    /// Words of the weights of one key, or of two neighbours.
    unsafe fn weights(x: V, y: V) -> V;
    /// The elements of a word; zeros behind them.
    fn elements(word: u32) -> [f32; 2];
    /// Whether no element of a word is infinite or no number.
    fn finite(word: u32) -> bool;
    /// Rows as words, neighbours along a row: where they lie, or in `copy`, which has room for `n * width` floats.
    unsafe fn keys(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Words;
    /// Rows as words, neighbours along a column: where they lie, or in `copy`, as above.
    unsafe fn values(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Words;
}

/// A matrix of words: where it starts, and bytes from one row to the next.
#[derive(Clone, Copy)]
pub(super) struct Words {
    start: *const u8,
    row: isize,
}

impl Words {
    /// Where the word lies; its address may be any.
    #[inline(always)]
    pub(super) fn at(self, i: usize, j: usize) -> *const f32 {
        self.start.wrapping_offset(i as isize * self.row).wrapping_add(4 * j).cast()
    }
}

/// An f32.
pub(super) struct Single;

impl<V: Simd> Lane<V> for Single {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> V {
        // SAFETY: the caller's promise, here and below.
        unsafe { V::load(at.cast()) }
    }

    #[inline(always)]
    unsafe fn dot(x: V, y: V, sum: V) -> V {
        // SAFETY: as above.
        unsafe { x.fma(y, sum) }
    }

    #[inline(always)]
    unsafe fn query(row: &Rows, width: usize, to: *mut f32, words: usize) {
        // SAFETY: as above.
        unsafe { row.widen(1, width, to, words) };
    }
}

impl<V: Simd> Word<V> for Single {
    #[inline(always)]
    unsafe fn ones() -> V {
        // SAFETY: as above.
        unsafe { V::splat(1.0) }
    }

    #[inline(always)]
    unsafe fn weights(x: V, _: V) -> V {
        x
    }

    fn elements(word: u32) -> [f32; 2] {
        [f32::from_bits(word), 0.0]
    }

    #[inline(always)]
    fn finite(word: u32) -> bool {
        word & 0x7f80_0000 != 0x7f80_0000
    }

    #[inline(always)]
    unsafe fn keys(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Words {
        if rows.dtype == DType::F32 && rows.col == 1 {
            return Words { start: rows.start, row: 4 * rows.row };
        }
        // SAFETY: as above.
        unsafe { rows.widen(n, width, copy, width) };
        Words { start: copy.cast(), row: 4 * width as isize }
    }

    #[inline(always)]
    unsafe fn values(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Words {
        // SAFETY: as above.
        unsafe { <Self as Word<V>>::keys(rows, n, width, copy) }
    }
}

/// One of bf16, widened as it is read.
pub(super) struct Half;

impl<V: Simd> Lane<V> for Half {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> V {
        // SAFETY: as above.
        unsafe { V::load_bf16(at.cast()) }
    }

    #[inline(always)]
    unsafe fn dot(x: V, y: V, sum: V) -> V {
        // SAFETY: as above.
        unsafe { x.fma(y, sum) }
    }

    #[inline(always)]
    unsafe fn query(row: &Rows, width: usize, to: *mut f32, words: usize) {
        // SAFETY: as above.
        unsafe { row.widen(1, width, to, words) };
    }
}

/// Two of bf16, the first one in the lower half; rows are of that type.
pub(super) struct Pair;

impl Lane<Avx512> for Pair {
    const ELEMENTS: usize = 2;
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Avx512 {
        // SAFETY: as above.
        unsafe { Avx512::load(at.cast()) }
    }

    #[inline(always)]
    unsafe fn dot(x: Avx512, y: Avx512, sum: Avx512) -> Avx512 {
        // SAFETY: as above; registers of both types are the same bits.
        unsafe {
            let (x, y) =
                (std::mem::transmute::<__m512, __m512bh>(x.0), std::mem::transmute::<__m512, __m512bh>(y.0));
            Avx512(_mm512_dpbf16_ps(sum.0, x, y))
        }
    }

    #[inline(always)]
    unsafe fn query(row: &Rows, width: usize, to: *mut f32, words: usize) {
        // SAFETY: as above.
        unsafe { row.copy_halves(0, width, std::slice::from_raw_parts_mut(to.cast(), 2 * words)) };
    }
}

impl Word<Avx512> for Pair {
    #[inline(always)]
    unsafe fn ones() -> Avx512 {
        // SAFETY: as above.
        unsafe { Avx512::splat(f32::from_bits(0x3f80_3f80)) }
    }

    #[inline(always)]
    unsafe fn weights(x: Avx512, y: Avx512) -> Avx512 {
        // SAFETY: as above.
        unsafe {
            let halves = _mm512_cvtne2ps_pbh(y.0, x.0);
            let halves = std::mem::transmute::<__m512bh, __m512i>(halves);
            Avx512(_mm512_castsi512_ps(_mm512_permutexvar_epi16(interleaved(0, 16), halves)))
        }
    }

    fn elements(word: u32) -> [f32; 2] {
        [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
    }

    #[inline(always)]
    fn finite(word: u32) -> bool {
        (word & 0x7f80_0000 != 0x7f80_0000) & (word & 0x7f80 != 0x7f80)
    }

    #[inline(always)]
    unsafe fn keys(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Words {
        if rows.col == 1 && width.is_multiple_of(2) {
            return Words { start: rows.start, row: 2 * rows.row };
        }
        let words = width.div_ceil(2);
        for i in 0..n {
            // SAFETY: as above.
            unsafe {
                let to = std::slice::from_raw_parts_mut(copy.add(i * words).cast(), 2 * words);
                rows.copy_halves(i, width, to);
            }
        }
        Words { start: copy.cast(), row: 4 * words as isize }
    }

    #[inline(always)]
    unsafe fn values(rows: &Rows, n: usize, width: usize, copy: *mut f32) -> Words {
        // SAFETY: as above; a pair of rows has `width` words, and whole registers of elements are read as far as there are some.
        unsafe {
            let (first, second) = (interleaved(0, 32), interleaved(16, 48));
            for i in (0..n).step_by(2) {
                let to = copy.add(i / 2 * width);
                let mut done = 0;
                if rows.col == 1 && i + 1 < n {
                    let (x, y) = (rows.from(i).start.cast::<u16>(), rows.from(i + 1).start.cast::<u16>());
                    while done + 32 <= width {
                        let x = _mm512_loadu_si512(x.add(done).cast());
                        let y = _mm512_loadu_si512(y.add(done).cast());
                        let to = to.add(done);
                        _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(x, first, y));
                        _mm512_storeu_si512(to.add(16).cast(), _mm512_permutex2var_epi16(x, second, y));
                        done += 32;
                    }
                }
                for j in done..width {
                    let y = if i + 1 < n { rows.load_bits(i + 1, j) } else { 0 };
                    to.add(j).cast::<u32>().write(u32::from(rows.load_bits(i, j)) | u32::from(y) << 16);
                }
            }
        }
        Words { start: copy.cast(), row: 4 * width as isize }
    }
}

/// Indices of elements of 16 bits: those from `x` on and those from `y` on in turn.
#[inline(always)]
unsafe fn interleaved(x: u32, y: u32) -> __m512i {
    let index: [u32; 16] = std::array::from_fn(|i| (x + i as u32) | ((y + i as u32) << 16));
    // SAFETY: both types are 64 bytes.
    unsafe { std::mem::transmute::<[u32; 16], __m512i>(index) }
}
