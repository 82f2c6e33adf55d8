//! 8 floats of AVX2 and FMA.

use super::Simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(in crate::attention) struct Avx2(__m256);

impl Simd for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller's promise, here and below.
        Self(unsafe { _mm256_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_loadu_ps(at) })
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> Self {
        // SAFETY: as above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(at, self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_add_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_sub_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_mul_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn div(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_div_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn fma(self, y: Self, z: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_fmadd_ps(self.0, y.0, z.0) })
    }

    #[inline(always)]
    unsafe fn max(self, y: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_max_ps(self.0, y.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: as above.
        unsafe {
            let n = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(n)))
        }
    }

    #[inline(always)]
    unsafe fn select_less(self, bound: Self, then: Self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let less = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0);
            Self(_mm256_blendv_ps(other.0, then.0, less))
        }
    }

    #[inline(always)]
    unsafe fn hide_unseen(self, k: i32, low: *const i32, high: *const i32) -> Self {
        // SAFETY: as above.
        unsafe {
            let k = _mm256_set1_epi32(k);
            let above = _mm256_cmpgt_epi32(k, _mm256_loadu_si256(low.cast()));
            let beyond = _mm256_cmpgt_epi32(k, _mm256_loadu_si256(high.cast()));
            let seen = _mm256_castsi256_ps(_mm256_andnot_si256(beyond, above));
            Self(_mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), self.0, seen))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn sums(x: &[Self]) -> Self {
        // SAFETY: as above.
        unsafe {
            let mut two = [_mm256_setzero_ps(); 4];
            for (i, sum) in two.iter_mut().enumerate() {
                *sum = _mm256_hadd_ps(x[2 * i].0, x[2 * i + 1].0);
            }
            let (low, high) = (_mm256_hadd_ps(two[0], two[1]), _mm256_hadd_ps(two[2], two[3]));
            let first = _mm256_permute2f128_ps::<0x20>(low, high);
            Self(_mm256_add_ps(first, _mm256_permute2f128_ps::<0x31>(low, high)))
        }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: as above.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn first(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm256_cvtss_f32(self.0) }
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: as above.
        unsafe {
            let mut x = [_mm256_setzero_ps(); 8];
            for (i, x) in x.iter_mut().enumerate() {
                *x = _mm256_loadu_ps(from.add(i * stride));
            }
            let mut y = x;
            for i in (0..8).step_by(2) {
                y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
                y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
            }
            for i in (0..8).step_by(4) {
                x[i] = _mm256_shuffle_ps::<0x44>(y[i], y[i + 2]);
                x[i + 1] = _mm256_shuffle_ps::<0xee>(y[i], y[i + 2]);
                x[i + 2] = _mm256_shuffle_ps::<0x44>(y[i + 1], y[i + 3]);
                x[i + 3] = _mm256_shuffle_ps::<0xee>(y[i + 1], y[i + 3]);
            }
            for i in 0..4 {
                let (low, high) = (x[i], x[i + 4]);
                _mm256_storeu_ps(to.add(i * to_stride), _mm256_permute2f128_ps::<0x20>(low, high));
                _mm256_storeu_ps(to.add((i + 4) * to_stride), _mm256_permute2f128_ps::<0x31>(low, high));
            }
        }
    }
}
