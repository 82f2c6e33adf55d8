//! Softmax over a dim.

use super::{Define, Op, need_dim, need_float, operands, same_shape_rule};
use crate::Diagnostic;
use crate::eval::{At, Tensor, strides};
use crate::graph::{Func, ValueId};
use crate::ops::{BinaryKind, UnaryKind};
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `softmax(x)` over `dim`: `exp(x - max) / sum(exp(x - max))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    pub dim: usize,
}

impl Define for Softmax {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        need_float(x)?;
        need_dim(self.dim, x)?;
        Ok(vec![x.clone()])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        let mut rule = same_shape_rule(1, &results[0].shape);
        rule.factors[self.dim].kind = FactorKind::Replicate;
        rule
    }

    /// An exponential counts as 8, and maximum, difference, sum and quotient as one each.
    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        12.0 * results[0].elements() as f64
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Softmax(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let mut out = Tensor { ty: results[0].clone(), data: args[0].data.clone() };
        let (step, n) = (strides(&out.ty.shape)[self.dim], out.ty.shape[self.dim]);
        for base in (0..out.data.len()).filter(|i| i / step % n == 0) {
            let at = |k: usize| base + k * step;
            let max = (0..n).map(|k| out.data[at(k)]).fold(f64::NEG_INFINITY, f64::max);
            (0..n).for_each(|k| out.data[at(k)] = (out.data[at(k)] - max).exp());
            let sum: f64 = (0..n).map(|k| out.data[at(k)]).sum();
            (0..n).for_each(|k| out.data[at(k)] /= sum);
        }
        Ok(vec![out])
    }

    fn decompose(&self, f: &mut Func, args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        let build = |f: &mut Func| {
            let x = *args.first().ok_or_else(|| Diagnostic::internal("softmax without an operand"))?;
            let max = f.reduce_keep(ReduceKind::Max, x, self.dim)?;
            let shifted = f.binary(BinaryKind::Sub, x, max)?;
            let e = f.unary(UnaryKind::Exp, shifted)?;
            let sum = f.reduce_keep(ReduceKind::Sum, e, self.dim)?;
            Ok(vec![f.binary(BinaryKind::Div, e, sum)?])
        };
        Some(build(f))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused, wave};
    use super::*;

    #[test]
    fn equals_numpy() {
        let rows = [
            0.7254051959,
            0.6439718162,
            0.3420054229,
            0.2803489157,
            0.2745948041,
            0.3560281838,
            0.6579945771,
            0.7196510843,
        ];
        check(Op::Softmax(Softmax { dim: 0 }), &[wave(&[2, 4], 1.3, 0.2)], &rows);
        let columns = [
            0.2113863758,
            0.4698968862,
            0.2422587677,
            0.0764579703,
            0.0798455414,
            0.2592281194,
            0.4650834119,
            0.1958429273,
        ];
        check(Op::Softmax(Softmax { dim: 1 }), &[wave(&[2, 4], 1.3, 0.2)], &columns);
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        check(Op::Softmax(Softmax { dim: 0 }), &[floats(&[2], &[1e4, 1e4])], &[0.5, 0.5]);
        refused(Op::Softmax(Softmax { dim: 1 }), &[Type::f32([2])], "no dim 1");
        refused(Op::Softmax(Softmax { dim: 0 }), &[Type::i32([2])], "floating-point");
    }
}
