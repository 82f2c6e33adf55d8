//! Logarithm and power.

use super::trig::ROUND64;
use crate::emit::ir::{FP, IP, Ir, Op, V};

/// `P` in `log(1 + f) = f - f^2/2 + f^3 P(f)`, sqrt(1/2) <= 1 + f <= sqrt(2): relative error 6.4e-9.
const LOG: [f32; 8] = [
    0.333_333_3,
    -0.250_008_23,
    0.200_012_62,
    -0.166_232_28,
    0.142_007_22,
    -0.131_612_21,
    0.127_707_68,
    -0.076_427_11,
];
const SQRT_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
const LOG2_E: f64 = std::f64::consts::LOG2_E;
const LN_2: f64 = std::f64::consts::LN_2;

impl<'c> Ir<'c> {
    /// Positive finite `x = m * 2^e` with m in [sqrt(1/2), sqrt(2)); e as i32. Anything else gives some finite m and e.
    fn split_exponent(&self, x: V<'c>) -> (V<'c>, V<'c>) {
        let w = self.width(x);
        let subnormal = self.fcmp(FP::OLT, x, self.cf(w, f32::MIN_POSITIVE));
        let scaled = self.select(subnormal, self.fmul(x, self.cf(w, 8_388_608.0)), x); // 2^23
        let bits = self.bits(scaled);
        let e = self.bin(
            Op::AShr,
            self.bin(Op::Sub, bits, self.ci(w, SQRT_HALF.to_bits() as i32)),
            self.ci(w, 23),
        );
        let m = self.float(self.bin(Op::Sub, bits, self.bin(Op::Shl, e, self.ci(w, 23))));
        let lift = self.select(subnormal, self.ci(w, -23), self.ci(w, 0));
        (m, self.bin(Op::Add, e, lift))
    }

    /// Natural logarithm; of 0 minus infinity, of less NaN.
    pub(crate) fn log(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let (m, e) = self.split_exponent(x);
        let e = self.cast(Op::SIToFP, e, self.f32(w));
        let f = self.fsub(m, self.cf(w, 1.0));
        let square = self.fmul(f, f);
        // ln 2 as the sum of a float of few bits (e times it is exact) and the rest.
        let low = self.fmul(e, self.cf(w, -2.121_944_4e-4));
        let y = self.fma(self.fmul(f, square), self.poly(f, &LOG), low);
        let y = self.fadd(f, self.fma(square, self.cf(w, -0.5), y));
        let y = self.fma(e, self.cf(w, 0.693_359_4), y);
        let y = self.select(self.fcmp(FP::OLT, x, self.cf(w, f32::INFINITY)), y, x);
        let y = self.select(self.fcmp(FP::OLT, x, self.cf(w, 0.0)), self.cf(w, f32::NAN), y);
        self.select(self.fcmp(FP::OEQ, x, self.cf(w, 0.0)), self.cf(w, f32::NEG_INFINITY), y)
    }

    /// `x^y` with C's special cases: `2^(y log2 |x|)` in f64, then the sign.
    pub(crate) fn pow(&self, x: V<'c>, y: V<'c>) -> V<'c> {
        let w = self.width(x);
        let (one, zero) = (self.cf(w, 1.0), self.cf(w, 0.0));
        let size = self.fabs(x);
        let exponent = self.fmul(self.cast(Op::FPExt, y, self.f64(w)), self.log2_wide(size));
        let power = self.cast(Op::FPTrunc, self.exp2_wide(exponent), self.f32(w));
        // 1 to any power, infinity too: the product was NaN.
        let unit = self.bin(Op::And, self.fcmp(FP::OEQ, size, one), self.fcmp(FP::ORD, y, y));
        let power = self.select(unit, one, power);

        let trunc = |v: V<'c>| self.intrinsic("llvm.trunc", &[v.get_type()], &[v]);
        let half = self.fmul(y, self.cf(w, 0.5));
        let fraction = self.fcmp(FP::ONE, trunc(y), y);
        let odd = self.bin(Op::And, self.fcmp(FP::ONE, trunc(half), half), self.fcmp(FP::OEQ, trunc(y), y));
        let minus = self.icmp(IP::SLT, self.bits(x), self.ci(w, 0));
        let power = self.select(self.bin(Op::And, odd, minus), self.fneg(power), power);
        // A finite negative number to a fraction.
        let finite = self.fcmp(FP::OGT, x, self.cf(w, f32::NEG_INFINITY));
        let negative = self.bin(Op::And, self.fcmp(FP::OLT, x, zero), finite);
        let power = self.select(self.bin(Op::And, negative, fraction), self.cf(w, f32::NAN), power);
        let always_one = self.bin(Op::Or, self.fcmp(FP::OEQ, x, one), self.fcmp(FP::OEQ, y, zero));
        self.select(always_one, one, power)
    }

    /// `log2(x)` in f64 of an f32 `x >= 0` to about 2e-12: twice the series of artanh at `(m - 1) / (m + 1)`, below 0.172.
    fn log2_wide(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let (m, e) = self.split_exponent(x);
        let (m, e) = (self.cast(Op::FPExt, m, self.f64(w)), self.cast(Op::SIToFP, e, self.f64(w)));
        let one = self.cd(w, 1.0);
        let s = self.fdiv(self.fsub(m, one), self.fadd(m, one));
        let series: Vec<f64> = (0..7).map(|k| 2.0 * LOG2_E / f64::from(2 * k + 1)).collect();
        let log = self.fma(s, self.poly64(self.fmul(s, s), &series), e);
        let log = self.select(self.fcmp(FP::OEQ, x, self.cf(w, 0.0)), self.cd(w, f64::NEG_INFINITY), log);
        // Infinity and NaN.
        self.select(
            self.fcmp(FP::OLT, x, self.cf(w, f32::INFINITY)),
            log,
            self.cast(Op::FPExt, x, self.f64(w)),
        )
    }

    /// `2^t` in f64 to about 2e-11 (Taylor's series at |f| <= 1/2), right for results that f32 can hold, 0 or infinite beyond.
    fn exp2_wide(&self, t: V<'c>) -> V<'c> {
        let w = self.width(t);
        let t = self.at_least(self.at_most(t, self.cd(w, 160.0)), self.cd(w, -160.0));
        let round = self.cd(w, ROUND64);
        let shifted = self.fadd(t, round);
        let f = self.fsub(t, self.fsub(shifted, round));
        let mut term = 1.0;
        let series: Vec<f64> = (0..10)
            .map(|k| {
                let this = term;
                term *= LN_2 / f64::from(k + 1);
                this
            })
            .collect();
        let n = self.bin(
            Op::Sub,
            self.cast(Op::BitCast, shifted, self.int(64, w)),
            self.cl(w, ROUND64.to_bits() as i64),
        );
        let scale = self.bin(Op::Shl, self.bin(Op::Add, n, self.cl(w, 1023)), self.cl(w, 52));
        self.fmul(self.poly64(f, &series), self.cast(Op::BitCast, scale, self.f64(w)))
    }
}
