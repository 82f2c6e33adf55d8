//! exp, tanh and erf.

use crate::emit::ir::{FP, Ir, Machine, Op, V};

/// `P` in `exp(r) = 1 + r + r^2 P(r)`, |r| <= ln(2) / 2: relative error 3.3e-9.
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_15, 0.041_668_084, 0.008_369_349, 0.001_384_039];
/// `P(z)` in `tanh(x) = x + x^3 P(x^2)`, |x| <= 0.625: relative error 4.5e-9.
const TANH: [f32; 5] = [-0.333_332_84, 0.133_314_79, -0.053_742_34, 0.020_646_822, -0.005_713_026];
/// `P(z)` in `erf(x) = x + x P(x^2)`, |x| <= 0.928: relative error 1.8e-8.
const ERF_SMALL: [f32; 6] =
    [0.128_379_15, -0.376_124_92, 0.112_817_66, -0.026_764_272, 0.004_989_283, -0.000_596_943_14];
/// `Q(t)` in `erfc(t) = exp(-t + t Q(t))`, 0.9 <= t <= 4: error 1.1e-9 relative to erf.
const ERFC_LARGE: [f32; 7] = [
    -0.128_637_08,
    -0.635_198_06,
    -0.106_158_98,
    0.023_694_497,
    -0.003_610_326_7,
    0.000_314_869_95,
    -0.000_010_438_062,
];

/// log2 e less the f32 nearest to it.
const LOG2_E_REST: f32 = 1.925_963e-8;
/// The exponential of more is no finite f32.
const OVERFLOW: f32 = 88.722_84;
/// Adding it rounds a small float to an integer, which then lies in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

impl<'c> Ir<'c> {
    /// `exp(x)`: `x = n ln 2 + r`, a polynomial in r, scaled by 2^n. On a GPU `2^t (1 + ln 2 l)`, where `t + l` is the product of x and log2 e,
    /// t rounded; `ex2.approx` is off by at most 2^-22 of its value (PTX ISA).
    pub(crate) fn exp(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        if self.machine == Machine::Ptx {
            let bounded = self.at_least(x, self.cf(w, -104.0));
            let log2_e = self.cf(w, std::f32::consts::LOG2_E);
            let t = self.fmul(bounded, log2_e);
            let rest = self.fma(bounded, log2_e, self.fneg(t));
            let rest = self.fma(bounded, self.cf(w, LOG2_E_REST), rest);
            let power = self.intrinsic("llvm.nvvm.ex2.approx", &[self.f32(w)], &[t]);
            let power = self.fma(power, self.fmul(rest, self.cf(w, std::f32::consts::LN_2)), power);
            // Where 2^t is infinite the correction may be of either sign, or NaN.
            return self.select(
                self.fcmp(FP::OGT, x, self.cf(w, OVERFLOW)),
                self.cf(w, f32::INFINITY),
                power,
            );
        }
        // Beyond these bounds the result is 0 or infinite anyway.
        let x = self.at_least(self.at_most(x, self.cf(w, 89.0)), self.cf(w, -104.0));
        let round = self.cf(w, ROUND);
        let shifted = self.fma(x, self.cf(w, std::f32::consts::LOG2_E), round);
        let n = self.fsub(shifted, round);
        // ln 2 as the sum of a float of few bits (n times it is exact) and the rest.
        let r = self.fma(n, self.cf(w, -0.693_359_4), x);
        let r = self.fma(n, self.cf(w, 2.121_944_4e-4), r);
        let p = self.fma(self.poly(r, &EXP), self.fmul(r, r), r);
        let p = self.fadd(p, self.cf(w, 1.0));
        self.scale(p, n, || self.bin(Op::Sub, self.bits(shifted), self.ci(w, ROUND.to_bits() as i32)))
    }

    /// `tanh(x)`: a polynomial near 0, `1 - 2 / (exp(2|x|) + 1)` elsewhere.
    pub(crate) fn tanh(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let (size, square, one) = (self.fabs(x), self.fmul(x, x), self.cf(w, 1.0));
        let small = self.fma(self.fmul(self.poly(square, &TANH), square), x, x);
        let e = self.exp(self.fadd(size, size));
        let large = self.fsub(one, self.quotient(self.cf(w, 2.0), self.fadd(e, one)));
        self.select(self.fcmp(FP::OLT, size, self.cf(w, 0.625)), small, self.copysign(large, x))
    }

    /// `erf(x)`: a polynomial near 0, `1 - exp(-t + t Q(t))` elsewhere.
    pub(crate) fn erf(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let (size, square) = (self.fabs(x), self.fmul(x, x));
        let small = self.fma(self.poly(square, &ERF_SMALL), x, x);
        // From 4 on erf is 1 in f32.
        let t = self.at_most(size, self.cf(w, 4.0));
        let e = self.exp(self.fma(self.poly(t, &ERFC_LARGE), t, self.fneg(t)));
        let large = self.fsub(self.cf(w, 1.0), e);
        self.select(self.fcmp(FP::OLT, size, self.cf(w, 0.921_875)), small, self.copysign(large, x))
    }
}
