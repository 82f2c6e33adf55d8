//! Sine and cosine.

use crate::emit::ir::{FP, Ir, Op, V};

/// `P(z)` in `sin(r) = r + r^3 P(r^2)`, |r| <= pi/4: relative error 1.7e-10.
const SIN: [f32; 4] = [-0.166_666_67, 0.008_333_378, -0.000_198_525_62, 2.826_345e-6];
/// `P(z)` in `cos(r) = 1 - r^2/2 + r^4 P(r^2)`, |r| <= pi/4: relative error 1.4e-10.
const COS: [f32; 3] = [0.041_666_646, -0.001_388_729_8, 2.443_008_5e-5];

/// pi/2 as the f64 nearest to it and the rest.
const HALF_PI: f64 = std::f64::consts::FRAC_PI_2;
const HALF_PI_REST: f64 = 6.123_233_995_736_766e-17;
/// Adding it rounds an f64 below 2^51 to an integer, whose low bits are then the low bits of the sum.
pub(crate) const ROUND64: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
/// From here on the quotient by pi/2 no longer fits.
const LARGEST: f32 = 281_474_976_710_656.0; // 2^48

impl<'c> Ir<'c> {
    /// `sin(x + quarters * pi/2)`: 0 for sine, 1 for cosine. `x = j pi/2 + r` in f64, where `x - j HALF_PI` is exact (both are
    /// multiples of 2^-52 and the difference is below 2), then a polynomial in r in f32.
    pub(crate) fn sin_cos(&self, x: V<'c>, quarters: i32) -> V<'c> {
        let w = self.width(x);
        let wide = self.cast(Op::FPExt, x, self.f64(w));
        let round = self.cd(w, ROUND64);
        let shifted = self.fma(wide, self.cd(w, std::f64::consts::FRAC_2_PI), round);
        let j = self.fsub(shifted, round);
        let r = self.fma(j, self.cd(w, -HALF_PI), wide);
        let r = self.fma(j, self.cd(w, -HALF_PI_REST), r);
        let r = self.cast(Op::FPTrunc, r, self.f32(w));
        let bits = self.cast(Op::BitCast, shifted, self.int(64, w));
        let quadrant = self.cast(Op::Trunc, bits, self.int(32, w));
        let quadrant = self.bin(Op::Add, quadrant, self.ci(w, quarters));

        let z = self.fmul(r, r);
        let sin = self.fma(self.fmul(r, z), self.poly(z, &SIN), r);
        let one = self.fma(z, self.cf(w, -0.5), self.cf(w, 1.0));
        let cos = self.fma(self.fmul(z, z), self.poly(z, &COS), one);
        let even =
            self.icmp(super::super::ir::IP::EQ, self.bin(Op::And, quadrant, self.ci(w, 1)), self.ci(w, 0));
        let value = self.select(even, sin, cos);
        let sign = self.bin(Op::Shl, self.bin(Op::And, quadrant, self.ci(w, 2)), self.ci(w, 30));
        let value = self.float(self.bin(Op::Xor, self.bits(value), sign));
        let known = self.fcmp(FP::OLT, self.fabs(x), self.cf(w, LARGEST));
        self.select(known, value, self.cf(w, f32::NAN))
    }
}
