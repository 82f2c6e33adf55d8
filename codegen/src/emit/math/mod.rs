//! Elementwise mathematics as inline polynomials over scalars or vectors: calls to a maths library would scalarise. All in f32, but
//! for the range reduction of sine and cosine and for powers, which pass through f64. Coefficients are minimax fits by the
//! Remez exchange with the error weighted to be relative to the function, rounded to f32 one at a time, the others refitted.

mod exp;
mod log_pow;
mod trig;

use super::ir::{FP, Ir, Machine, Op, V};
use pcc_ir::ops::UnaryKind;

impl<'c> Ir<'c> {
    /// A unary function of floats.
    pub(crate) fn float_unary(&self, kind: UnaryKind, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let one = self.cf(w, 1.0);
        match kind {
            UnaryKind::Neg => self.fneg(x),
            UnaryKind::Abs => self.fabs(x),
            UnaryKind::Exp => self.exp(x),
            UnaryKind::Log => self.log(x),
            UnaryKind::Sqrt => self.sqrt(x),
            UnaryKind::Rsqrt => self.rsqrt(x),
            UnaryKind::Recip => self.fdiv(one, x),
            UnaryKind::Sin => self.sin_cos(x, 0),
            UnaryKind::Cos => self.sin_cos(x, 1),
            UnaryKind::Tanh => self.tanh(x),
            UnaryKind::Erf => self.erf(x),
            UnaryKind::Sigmoid => self.quotient(one, self.fadd(one, self.exp(self.fneg(x)))),
            UnaryKind::Silu => self.quotient(x, self.fadd(one, self.exp(self.fneg(x)))),
            UnaryKind::Gelu => self.gelu(x),
            UnaryKind::GeluTanh => self.gelu_tanh(x),
            // `x < 0` is false for NaN, which passes.
            UnaryKind::Relu => self.select(self.fcmp(FP::OLT, x, self.cf(w, 0.0)), self.cf(w, 0.0), x),
            UnaryKind::Not => x,
        }
    }

    pub(crate) fn fabs(&self, x: V<'c>) -> V<'c> {
        self.intrinsic("llvm.fabs", &[x.get_type()], &[x])
    }

    pub(crate) fn sqrt(&self, x: V<'c>) -> V<'c> {
        self.intrinsic("llvm.sqrt", &[x.get_type()], &[x])
    }

    /// `1 / sqrt(x)`; on a GPU off by at most 2^-22.4 of its value (PTX ISA).
    fn rsqrt(&self, x: V<'c>) -> V<'c> {
        match self.machine {
            Machine::X86 { .. } => self.fdiv(self.cf(self.width(x), 1.0), self.sqrt(x)),
            Machine::Ptx => self.intrinsic("llvm.nvvm.rsqrt.approx.f", &[], &[x]),
        }
    }

    /// `a / b` within formulas, for b of at least 1: on a GPU by a reciprocal, off by at most 1 ulp and rounded once more.
    fn quotient(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        match self.machine {
            Machine::X86 { .. } => self.fdiv(a, b),
            Machine::Ptx => self.fmul(a, self.reciprocal_approx(b)),
        }
    }

    pub(crate) fn copysign(&self, x: V<'c>, sign: V<'c>) -> V<'c> {
        self.intrinsic("llvm.copysign", &[x.get_type()], &[x, sign])
    }

    /// The lesser of x and a bound; NaN passes.
    fn at_most(&self, x: V<'c>, bound: V<'c>) -> V<'c> {
        self.select(self.fcmp(FP::OGT, x, bound), bound, x)
    }

    /// The greater of x and a bound; NaN passes.
    fn at_least(&self, x: V<'c>, bound: V<'c>) -> V<'c> {
        self.select(self.fcmp(FP::OLT, x, bound), bound, x)
    }

    /// `max` or `min`: NaN if an operand is NaN, and of equal operands the second.
    pub(crate) fn extreme(&self, max: bool, a: V<'c>, b: V<'c>) -> V<'c> {
        let first = self.fcmp(if max { FP::OGT } else { FP::OLT }, a, b);
        // If b is NaN the comparison is false and b is taken; if a is, the outer select takes it.
        self.select(self.fcmp(FP::UNO, a, a), a, self.select(first, a, b))
    }

    /// `0.5 x (1 + erf(x / sqrt 2))`.
    fn gelu(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let half = self.fmul(x, self.cf(w, 0.5));
        self.fma(half, self.erf(self.fmul(x, self.cf(w, std::f32::consts::FRAC_1_SQRT_2))), half)
    }

    /// `0.5 x (1 + tanh(u))`, `u = sqrt(2/pi) (x + 0.044715 x^3)`, as `x / (1 + exp(-2u))`, which is the same and does not cancel.
    fn gelu_tanh(&self, x: V<'c>) -> V<'c> {
        let w = self.width(x);
        let scale = -2.0 * (2.0 / std::f64::consts::PI).sqrt();
        let square = self.fmul(x, x);
        let factor = self.fma(square, self.cf(w, (scale * 0.044715) as f32), self.cf(w, scale as f32));
        let one = self.cf(w, 1.0);
        self.quotient(x, self.fadd(one, self.exp(self.fmul(x, factor))))
    }

    /// To i32: truncates and saturates, NaN gives 0.
    pub(crate) fn float_to_int(&self, x: V<'c>) -> V<'c> {
        let to = self.int(32, self.width(x));
        self.intrinsic("llvm.fptosi.sat", &[to, x.get_type()], &[x])
    }

    /// Truncating division of i32; by zero gives 0, and the least integer by -1 wraps to itself. In f64, which holds every
    /// quotient of two i32 well enough to truncate it rightly, where there is no vector integer division (x86).
    pub(crate) fn int_div(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        let w = self.width(a);
        let zero = self.ci(w, 0);
        let by_zero = self.icmp(super::ir::IP::EQ, b, zero);
        let by_minus = self.icmp(super::ir::IP::EQ, b, self.ci(w, -1));
        let safe = self.select(self.bin(Op::Or, by_zero, by_minus), self.ci(w, 1), b);
        let wide = |v| self.cast(Op::SIToFP, v, self.f64(w));
        let quotient = match self.machine {
            Machine::Ptx => self.bin(Op::SDiv, a, safe),
            Machine::X86 { .. } => self.cast(Op::FPToSI, self.fdiv(wide(a), wide(safe)), self.int(32, w)),
        };
        let negated = self.bin(Op::Sub, zero, a);
        self.select(by_zero, zero, self.select(by_minus, negated, quotient))
    }
}
