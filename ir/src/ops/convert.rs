//! Conversion of the element type. Floats round to nearest even; float to integer truncates and saturates (NaN gives
//! 0); to bool is `x != 0`.

use super::{Define, Op, operands, same_shape_rule};
use crate::eval::{At, Tensor, round_to};
use crate::rule::{Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};

pub(super) struct Convert(pub(super) DType);

impl Define for Convert {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        Ok(vec![Type::new(self.0, x.shape.clone())])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        same_shape_rule(1, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        results[0].elements() as f64
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[0])
    }

    /// The operand's type is not known here, so only the conversion that never rounds commutes with sums.
    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        args[0].filter(|&kind| kind == ReduceKind::Sum && self.0 == DType::F64)
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Convert(self.0)
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let data = args[0].data.iter().map(|&x| round_to(self.0, x)).collect();
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats};
    use super::*;

    #[test]
    fn rounds_truncates_and_saturates() {
        let x = floats(&[4], &[2.7, -2.7, 1e12, f64::NAN]);
        check(Op::Convert(DType::I32), &[x], &[2.0, -2.0, f64::from(i32::MAX), 0.0]);
        check(Op::Convert(DType::Bool), &[floats(&[2], &[0.0, -0.5])], &[0.0, 1.0]);
        check(Op::Convert(DType::F32), &[floats(&[1], &[0.1])], &[f64::from(0.1f32)]);
    }
}
