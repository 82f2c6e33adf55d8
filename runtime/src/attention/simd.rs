//! Vectors of f32, the same operations for every instruction set.
//!
//! Code over [`Simd`] is inlined into functions compiled for one instruction set each; nothing else may call it.

mod avx2;
mod avx512;
mod portable;

pub(super) use avx2::Avx2;
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

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

#[cfg(test)]
mod tests;
