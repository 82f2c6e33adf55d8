//! Permutes dims: `result dim i = operand dim perm[i]`.

use super::{Define, Op, first_partial, operands};
use crate::eval::{At, Tensor, strides};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{ReduceKind, Type};

pub(super) struct Transpose<'a>(pub(super) &'a [usize]);

impl Define for Transpose<'_> {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        let mut sorted = self.0.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.rank()) {
            return Err(format!("{:?} is no permutation of the dims of {x}", self.0));
        }
        Ok(vec![Type::new(x.dtype, self.0.iter().map(|&d| x.shape[d]).collect::<Vec<_>>())])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let dims = rule.dims(&args[0].shape, FactorKind::Pass);
        rule.results.push(self.0.iter().map(|&d| dims[d].clone()).collect());
        rule.operands.push(dims);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        first_partial(args)
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[0])
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Transpose(self.0.to_vec())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let steps = strides(&args[0].ty.shape);
        let steps: Vec<_> = self.0.iter().map(|&d| steps[d]).collect();
        let data = args[0].view(0, &results[0].shape, &steps);
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn moves_dims() {
        let x = floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        check(Op::Transpose(vec![1, 0]), &[x], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        let ty = Op::Transpose(vec![2, 0, 1]).infer(&[&Type::f32([2, 3, 4])]).unwrap();
        assert_eq!(ty, [Type::f32([4, 2, 3])]);
        refused(Op::Transpose(vec![0, 0]), &[Type::f32([2, 3])], "no permutation");
        refused(Op::Transpose(vec![0]), &[Type::f32([2, 3])], "no permutation");
    }
}
