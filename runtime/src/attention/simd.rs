//! Vectors of f32, the same operations for every instruction set.
//!
//! Code over [`Simd`] is inlined into functions compiled for one instruction set each; nothing else may call it.

use std::arch::x86_64::*;

/// A register of [`Simd::LANES`] floats.
///
/// All functions are unsafe: the machine must have the instructions, and pointers must be good for [`Simd::LANES`] elements.
pub(super) trait Simd: Copy {
    const LANES: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(at: *const f32) -> Self;
    /// bf16 elements, widened.
    unsafe fn load_bf16(at: *const u16) -> Self;
    unsafe fn store(self, at: *mut f32);
    unsafe fn add(self, y: Self) -> Self;
    unsafe fn sub(self, y: Self) -> Self;
    unsafe fn mul(self, y: Self) -> Self;
    unsafe fn div(self, y: Self) -> Self;
    /// `self * y + z`, rounded once where the machine can.
    unsafe fn fma(self, y: Self, z: Self) -> Self;
    /// The larger; `y` when either is no number.
    unsafe fn max(self, y: Self) -> Self;
    /// The nearest integer.
    unsafe fn round(self) -> Self;
    /// Two to the power of an integer from -127 (which gives 0) to 127.
    unsafe fn power_of_two(self) -> Self;
    /// `then` where `self < bound`, else `other`.
    unsafe fn select_less(self, bound: Self, then: Self, other: Self) -> Self;
    /// Minus infinity in the lanes that do not hold `low < k <= high`.
    unsafe fn hide_unseen(self, k: i32, low: *const i32, high: *const i32) -> Self;
    /// The sum of all lanes, in a fixed order.
    unsafe fn sum(self) -> f32;
    /// The sums of [`Simd::LANES`] registers, one a lane, each in a fixed order.
    unsafe fn sums(x: &[Self]) -> Self;
    /// The largest of all lanes.
    unsafe fn largest(self) -> f32;
    /// The first lane.
    unsafe fn first(self) -> f32;
    /// Transposes a matrix of [`Simd::LANES`] rows and columns of 32 bits; rows are so many words apart.
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize);

    /// `2^self`, within 2e-7 of it; 0 below 2^-126. At most 2^127.
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let x = Self::splat(-127.0).max(self);
            let n = x.round();
            let p = exp2_fraction(x.sub(n));
            self.select_less(Self::splat(-126.0), Self::splat(0.0), p.mul(n.power_of_two()))
        }
    }

    /// The hyperbolic tangent, within 3e-7 of it.
    #[inline(always)]
    unsafe fn tanh(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            // 1 - 2 / (e^2y + 1) for y >= 0.
            let zero = Self::splat(0.0);
            let y = zero.sub(self).max(self);
            let limit = Self::splat(10.0);
            let capped = limit.select_less(y, limit, y);
            let e = capped.mul(Self::splat(2.0 * std::f32::consts::LOG2_E)).exp2();
            let large = Self::splat(1.0).sub(Self::splat(2.0).div(e.add(Self::splat(1.0))));
            // The Taylor series where that loses digits.
            let square = y.mul(y);
            let mut p = Self::splat(62.0 / 2835.0);
            for c in [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
                p = p.fma(square, Self::splat(c));
            }
            let t = y.select_less(Self::splat(0.3), p.mul(y), large);
            self.select_less(zero, zero.sub(t), t)
        }
    }
}

/// Two to the power of -0.5 to 0.5.
#[inline(always)]
unsafe fn exp2_fraction<V: Simd>(f: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        // Cephes, exp2f: minimax on -0.5..0.5.
        let mut p = V::splat(1.535_336_2e-4);
        for c in [1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0] {
            p = p.fma(f, V::splat(c));
        }
        p
    }
}

#[derive(Clone, Copy)]
pub(super) struct Avx512(pub(super) __m512);

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

#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256);

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

/// Plain Rust, for any machine.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, y: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (x, y) in out.iter_mut().zip(y.0) {
            *x = f(*x, y);
        }
        Self(out)
    }
}

impl Simd for Portable {
    const LANES: usize = 8;

    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }

    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the caller's promise, here and below.
        Self(unsafe { at.cast::<[f32; 8]>().read_unaligned() })
    }

    unsafe fn load_bf16(at: *const u16) -> Self {
        // SAFETY: as above.
        let bits = unsafe { at.cast::<[u16; 8]>().read_unaligned() };
        Self(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }

    unsafe fn store(self, at: *mut f32) {
        // SAFETY: as above.
        unsafe { at.cast::<[f32; 8]>().write_unaligned(self.0) };
    }

    unsafe fn add(self, y: Self) -> Self {
        self.zip(y, |x, y| x + y)
    }

    unsafe fn sub(self, y: Self) -> Self {
        self.zip(y, |x, y| x - y)
    }

    unsafe fn mul(self, y: Self) -> Self {
        self.zip(y, |x, y| x * y)
    }

    unsafe fn div(self, y: Self) -> Self {
        self.zip(y, |x, y| x / y)
    }

    unsafe fn fma(self, y: Self, z: Self) -> Self {
        self.zip(y, |x, y| x * y).zip(z, |x, z| x + z)
    }

    unsafe fn max(self, y: Self) -> Self {
        self.zip(y, |x, y| if x > y { x } else { y })
    }

    unsafe fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }

    unsafe fn power_of_two(self) -> Self {
        Self(self.0.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23)))
    }

    unsafe fn select_less(self, bound: Self, then: Self, other: Self) -> Self {
        let mut out = other.0;
        for (i, x) in out.iter_mut().enumerate() {
            if self.0[i] < bound.0[i] {
                *x = then.0[i];
            }
        }
        Self(out)
    }

    unsafe fn hide_unseen(self, k: i32, low: *const i32, high: *const i32) -> Self {
        let mut out = self.0;
        for (i, x) in out.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let (low, high) = unsafe { (*low.add(i), *high.add(i)) };
            if !(low < k && k <= high) {
                *x = f32::NEG_INFINITY;
            }
        }
        Self(out)
    }

    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }

    unsafe fn sums(x: &[Self]) -> Self {
        Self(std::array::from_fn(|i| x[i].0.iter().sum()))
    }

    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    unsafe fn first(self) -> f32 {
        self.0[0]
    }

    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        for (i, j) in (0..8).flat_map(|i| (0..8).map(move |j| (i, j))) {
            // SAFETY: the caller's promise.
            unsafe { to.add(j * to_stride + i).write(from.add(i * stride + j).read()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<V: Simd>() {
        let inputs: Vec<f32> =
            (-2000..=300).map(|i| i as f32 / 10.0).chain([f32::NEG_INFINITY, f32::MIN, -0.0, 1e-6]).collect();
        for x in inputs {
            let mut out = [0f32; 16];
            // SAFETY: the caller has checked the machine; `out` has room for any register.
            let (exp, tanh) = unsafe {
                V::splat(x).exp2().store(out.as_mut_ptr());
                let exp = out[V::LANES - 1];
                V::splat(x / 16.0).tanh().store(out.as_mut_ptr());
                (exp, out[0])
            };
            let wanted = f64::from(x).exp2();
            let least = f64::from(f32::MIN_POSITIVE);
            assert!((f64::from(exp) - wanted).abs() <= wanted * 2e-7 + least, "2^{x}: {exp}");
            assert!(x >= -126.0 || exp == 0.0);
            let wanted = (f64::from(x) / 16.0).tanh();
            assert!((f64::from(tanh) - wanted).abs() <= wanted.abs() * 3e-7, "tanh {}: {tanh}", x / 16.0);
        }
        // SAFETY: as above.
        unsafe {
            let mut out = [0f32; 16];
            V::splat(f32::NAN).exp2().store(out.as_mut_ptr());
            assert!(out[..V::LANES].iter().all(|x| x.is_nan()));
            assert_eq!(V::splat(1.5).sum(), 1.5 * V::LANES as f32);
            let ramp: [f32; 31] = std::array::from_fn(|i| (i * i) as f32);
            let many: Vec<V> = (0..V::LANES).map(|i| V::load(ramp.as_ptr().add(i))).collect();
            assert_eq!((many[2].largest(), many[2].first()), (((V::LANES + 1) * (V::LANES + 1)) as f32, 4.0));
            V::sums(&many).store(out.as_mut_ptr());
            for (i, sum) in out[..V::LANES].iter().enumerate() {
                assert_eq!(*sum, ramp[i..i + V::LANES].iter().sum::<f32>());
            }
            V::splat(2.0).hide_unseen(3, [2; 16].as_ptr(), [3; 16].as_ptr()).store(out.as_mut_ptr());
            assert_eq!(out[0], 2.0);
            for (low, high) in [(3, 9), (-1, 2)] {
                V::splat(2.0).hide_unseen(3, [low; 16].as_ptr(), [high; 16].as_ptr()).store(out.as_mut_ptr());
                assert_eq!(out[0], f32::NEG_INFINITY);
            }
            let block: [f32; 18 * 16] = std::array::from_fn(|i| i as f32);
            let mut turned = [0f32; 17 * 16];
            V::transpose(block.as_ptr(), 18, turned.as_mut_ptr(), 17);
            for (i, j) in (0..V::LANES).flat_map(|i| (0..V::LANES).map(move |j| (i, j))) {
                assert_eq!(turned[j * 17 + i], (i * 18 + j) as f32);
            }
            V::load_bf16([0x3fc0; 16].as_ptr()).store(out.as_mut_ptr());
            assert_eq!(out[V::LANES - 1], 1.5);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
    fn check_avx512() {
        check::<Avx512>();
    }

    #[target_feature(enable = "avx2,fma")]
    fn check_avx2() {
        check::<Avx2>();
    }

    #[test]
    fn functions_are_exact_enough_on_every_instruction_set() {
        check::<Portable>();
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features are there.
            unsafe { check_avx2() };
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the features are there.
            unsafe { check_avx512() };
        }
    }
}
