//! 16 floats of AVX-512.

use super::{Simd, exp2_fraction};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(in crate::attention) struct Avx512(pub(in crate::attention) __m512);

impl Simd for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller's promise, here and below.
        Self(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_loadu_ps(at) })
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> Self {
        // SAFETY: as above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(at, self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_add_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_sub_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_mul_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn div(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_div_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn fma(self, y: Self, z: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_fmadd_ps(self.0, y.0, z.0) })
    }

    #[inline(always)]
    unsafe fn max(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_max_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: as above.
        unsafe {
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        }
    }

    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: as above.
        unsafe {
            let n = self.round();
            let p = exp2_fraction(self.sub(n));
            // What is no number is not less.
            let large = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(-126.0));
            Self(_mm512_maskz_scalef_ps(large, p.0, n.0))
        }
    }

    #[inline(always)]
    unsafe fn select_less(self, bound: Self, then: Self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0);
            Self(_mm512_mask_blend_ps(less, other.0, then.0))
        }
    }

    #[inline(always)]
    unsafe fn hide_unseen(self, k: i32, low: *const i32, high: *const i32) -> Self {
        // SAFETY: as above.
        unsafe {
            let k = _mm512_set1_epi32(k);
            let above = _mm512_cmpgt_epi32_mask(k, _mm512_loadu_si512(low.cast()));
            let seen = _mm512_mask_cmple_epi32_mask(above, k, _mm512_loadu_si512(high.cast()));
            Self(_mm512_mask_blend_ps(seen, _mm512_set1_ps(f32::NEG_INFINITY), self.0))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn sums(x: &[Self]) -> Self {
        // SAFETY: as above.
        unsafe {
            // Halves of lanes of 128 bits, of two registers each, then of four: sums of lanes, one a register.
            let mut four = [_mm512_setzero_ps(); 4];
            for (i, sum) in four.iter_mut().enumerate() {
                let (a, b, c, d) = (x[4 * i].0, x[4 * i + 1].0, x[4 * i + 2].0, x[4 * i + 3].0);
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                *sum = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
            }
            let mut two = [_mm512_setzero_ps(); 2];
            for (i, sum) in two.iter_mut().enumerate() {
                let (a, b) = (four[2 * i], four[2 * i + 1]);
                let low = _mm512_shuffle_f32x4::<0x44>(a, b);
                *sum = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(a, b));
            }
            let even = _mm512_shuffle_f32x4::<0x88>(two[0], two[1]);
            Self(_mm512_add_ps(even, _mm512_shuffle_f32x4::<0xdd>(two[0], two[1])))
        }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn first(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_cvtss_f32(self.0) }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: as above.
        unsafe {
            let mut x = [_mm512_setzero_ps(); 16];
            for (i, x) in x.iter_mut().enumerate() {
                *x = _mm512_loadu_ps(from.add(i * stride));
            }
            // Blocks of two by two, of four by four within lanes of 128 bits, then the lanes.
            let mut y = x;
            for i in (0..16).step_by(2) {
                y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
                y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
            }
            for i in (0..16).step_by(4) {
                x[i] = _mm512_shuffle_ps::<0x44>(y[i], y[i + 2]);
                x[i + 1] = _mm512_shuffle_ps::<0xee>(y[i], y[i + 2]);
                x[i + 2] = _mm512_shuffle_ps::<0x44>(y[i + 1], y[i + 3]);
                x[i + 3] = _mm512_shuffle_ps::<0xee>(y[i + 1], y[i + 3]);
            }
            for i in 0..4 {
                for j in [0, 8] {
                    y[i + j] = _mm512_shuffle_f32x4::<0x88>(x[i + j], x[i + j + 4]);
                    y[i + j + 4] = _mm512_shuffle_f32x4::<0xdd>(x[i + j], x[i + j + 4]);
                }
            }
            for i in 0..8 {
                // Rows i and i + 4 of the pairs above hold lanes 0 and 2, 1 and 3.
                x[i] = _mm512_shuffle_f32x4::<0x88>(y[i], y[i + 8]);
                x[i + 8] = _mm512_shuffle_f32x4::<0xdd>(y[i], y[i + 8]);
            }
            for (i, x) in x.iter().enumerate() {
                _mm512_storeu_ps(to.add(i * to_stride), *x);
            }
        }
    }
}
