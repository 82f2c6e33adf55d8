//! `select(pred bool, on_true, on_false)`: elementwise choice.

use super::{Define, Op, all_partial, need, operands, same_shape_rule};
use crate::eval::{At, Tensor};
use crate::rule::{Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};

pub(super) struct Select;

impl Define for Select {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [pred, a, b] = operands(args)?;
        need("the last operand", b, a)?;
        need("the predicate", pred, &Type::new(DType::Bool, a.shape.clone()))?;
        Ok(vec![a.clone()])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        same_shape_rule(3, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        results[0].elements() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        if args[0].is_some() { None } else { all_partial(&args[1..]) }
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[1, 2])
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Select
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let choose = |i| if args[0].data[i] != 0.0 { args[1].data[i] } else { args[2].data[i] };
        Ok(vec![Tensor::from_fn(results[0].clone(), choose)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn chooses_elementwise() {
        let pred = Tensor::new(Type::new(DType::Bool, [3]), vec![1.0, 0.0, 1.0]).unwrap();
        let (a, b) = (floats(&[3], &[1.0, 2.0, 3.0]), floats(&[3], &[4.0, f64::NAN, 6.0]));
        check(Op::Select, &[pred.clone(), a.clone(), floats(&[3], &[4.0, 5.0, 6.0])], &[1.0, 5.0, 3.0]);
        let (a_ty, b_ty) = (a.ty.clone(), Type::f32([3]));
        refused(Op::Select, &[pred.ty, a_ty.clone(), b_ty], "the last operand");
        refused(Op::Select, &[b.ty, a_ty.clone(), a_ty], "the predicate");
    }
}
