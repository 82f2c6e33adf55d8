//! Numbers of PTX in the bits of a slot, and their rounding.

use half::{bf16, f16};

/// A type of numbers that a slot's low bits hold.
pub(crate) trait Number: Copy {
    fn of(bits: u64) -> Self;
    /// Zero-extended. A NaN of f32, f16 or bf16 is the canonical one, as arithmetic makes it (PTX ISA, floating point instructions).
    fn bits(self) -> u64;
}

macro_rules! integers {
    ($($t:ty as $u:ty),*) => {
        $(impl Number for $t {
            #[inline(always)]
            fn of(bits: u64) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                self as $u as u64
            }
        })*
    };
}
integers!(u8 as u8, u16 as u16, u32 as u32, u64 as u64, i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl Number for bool {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        bits != 0
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Number for f32 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        if self.is_nan() { 0x7fff_ffff } else { self.to_bits().into() }
    }
}

impl Number for f64 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f64::from_bits(bits)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Number for f16 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        f16::from_bits(bits as u16)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        if self.is_nan() { 0x7fff } else { self.to_bits().into() }
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn of(bits: u64) -> Self {
        bf16::from_bits(bits as u16)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        if self.is_nan() { 0x7fff } else { self.to_bits().into() }
    }
}

/// A float type, seen as f64, which has all its values.
pub(crate) trait Float: Number {
    fn wide(self) -> f64;
    /// Rounded to nearest, ties to even.
    fn near(x: f64) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self.into()
    }
    #[inline(always)]
    fn near(x: f64) -> Self {
        x as f32
    }
}

impl Float for f64 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
    #[inline(always)]
    fn near(x: f64) -> Self {
        x
    }
}

impl Float for f16 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self.to_f64()
    }
    #[inline(always)]
    fn near(x: f64) -> Self {
        f16::from_bits(narrow::<5, 10>(x, false))
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self.to_f32())
    }
    #[inline(always)]
    fn near(x: f64) -> Self {
        bf16::from_bits(narrow::<8, 7>(x, false))
    }
}

/// The bits of a 16-bit float with so many bits of exponent and mantissa: to nearest with ties to even, or towards zero.
pub(crate) fn narrow<const EXPONENT: i32, const MANTISSA: i32>(x: f64, to_zero: bool) -> u16 {
    let sign = (u16::from(x.is_sign_negative())) << 15;
    let bias = (1 << (EXPONENT - 1)) - 1;
    let infinite = ((1u32 << EXPONENT) - 1) << MANTISSA;
    if x.is_nan() {
        return 0x7fff;
    }
    if x.is_infinite() {
        return sign | infinite as u16;
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(1 - bias);
    // x in units of the last place. Powers of two change no bit of it.
    let units = x.abs() * f64::from_bits(((1023 - (exponent - MANTISSA)) as u64) << 52);
    // Adding this leaves no bit behind the point, rounded to nearest even. There are at most 2^11 units.
    let whole = (1u64 << 52) as f64;
    let units = if to_zero { units as u32 } else { ((units + whole) - whole) as u32 };
    // The implicit bit of a normal number adds one to the exponent field, and so does a carry.
    let field = (exponent + bias - 1) as u32;
    let magnitude = units + (field << MANTISSA);
    let largest = if to_zero { infinite - 1 } else { infinite };
    sign | magnitude.min(largest) as u16
}

/// `a * b + c` rounded to odd, so that rounding it again to a type of at most half the precision gives the nearest. `a` and `b` have at most 26
/// significant bits, so that their product is exact. (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008.)
#[inline(always)]
pub(crate) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    let p = a * b;
    let s = p + c;
    // Two-sum: what s lacks.
    let part = s - p;
    let error = (p - (s - part)) + (c - part);
    let bits = s.to_bits();
    if error == 0.0 || error.is_nan() || bits & 1 == 1 || !s.is_finite() {
        return s;
    }
    let away = (error > 0.0) == (s > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// An integer as f64, rounded to odd.
pub(crate) fn odd_of(x: i128) -> f64 {
    let near = x as f64;
    let back = near as i128;
    let bits = near.to_bits();
    if back == x || bits & 1 == 1 {
        return near;
    }
    let away = (x > back) == (near > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}

/// Subnormal numbers as zero of their sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a linear congruence (Knuth, MMIX).
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state ^ *state >> 29
    }

    #[test]
    fn narrowing_agrees_with_another_implementation() {
        let mut state = 1;
        for n in 0..200_000 {
            let mut x = f32::from_bits(random(&mut state) as u32);
            if n % 2 == 0 {
                // Near the range of f16, where ties are frequent.
                x = (random(&mut state) as i32 as f32 / 4096.0).round() * 2f32.powi((n % 61) - 40);
            }
            if x.is_nan() {
                continue;
            }
            assert_eq!(f16::near(x.into()).to_bits(), f16::from_f32(x).to_bits(), "{x:e}");
            assert_eq!(bf16::near(x.into()).to_bits(), bf16::from_f32(x).to_bits(), "{x:e}");
        }
    }

    #[test]
    fn narrowing_to_zero_and_of_f64() {
        assert_eq!(narrow::<5, 10>(65519.9, false), 0x7bff);
        assert_eq!(narrow::<5, 10>(65520.0, false), 0x7c00);
        assert_eq!(narrow::<5, 10>(1e300, true), 0x7bff);
        assert_eq!(narrow::<5, 10>(-1.9995, true), 0xbfff);
        // Above a tie by less than f32 can tell.
        let tie = 1.0 + 2f64.powi(-11);
        assert_eq!(narrow::<5, 10>(tie, false), 0x3c00);
        assert_eq!(narrow::<5, 10>(tie + 2f64.powi(-40), false), 0x3c01);
        assert_eq!(narrow::<8, 7>(f64::MIN_POSITIVE / 4.0, false), 0);
        assert_eq!(narrow::<8, 7>(-0.0, false), 0x8000);
    }

    #[test]
    fn fused_sums_round_once() {
        let mut state = 7;
        for _ in 0..100_000 {
            let mut draw = || {
                let x = random(&mut state);
                f32::from_bits((x as u32 & 0x807f_ffff) | ((100 + (x >> 40) as u32 % 50) << 23))
            };
            let (a, b, c) = (draw(), draw(), draw());
            let got = fma_odd(a.into(), b.into(), c.into()) as f32;
            assert_eq!(got.to_bits(), a.mul_add(b, c).to_bits(), "{a:e} {b:e} {c:e}");
        }
        // 1 + 2^-24 is a tie of f32 that the third operand decides.
        let c = f64::from(f32::from_bits(1));
        assert_eq!(fma_odd(1.0, 1.0 + 2f64.powi(-24), c) as f32, 1.0 + f32::EPSILON);
    }

    #[test]
    fn large_integers_round_once() {
        for x in [(1i128 << 62) + (1 << 38) + 1, -(1i128 << 62) - (1 << 38) - 1, i128::from(u64::MAX), 12345]
        {
            assert_eq!(odd_of(x) as f32, x as f32);
        }
    }
}
