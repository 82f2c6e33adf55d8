//! Repeats an operand along new dims.

use super::{Define, Op, first_partial, operands};
use crate::eval::{At, Tensor, strides};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `dims[i]` is the result dim that operand dim i becomes (increasing, equal extents); the other result dims repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Broadcast {
    pub shape: Vec<usize>,
    pub dims: Vec<usize>,
}

impl Define for Broadcast {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        let increasing = self.dims.windows(2).all(|w| w[0] < w[1]);
        let equal = x.shape.iter().zip(&self.dims).all(|(n, &d)| self.shape.get(d) == Some(n));
        if self.dims.len() != x.rank() || !increasing || !equal {
            return Err(format!("{x} does not become dims {:?} of {:?}", self.dims, self.shape));
        }
        Ok(vec![Type::new(x.dtype, self.shape.clone())])
    }

    fn rule(&self, _: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let dims = rule.dims(&self.shape, FactorKind::Pass);
        rule.operands.push(self.dims.iter().map(|&d| dims[d].clone()).collect());
        rule.results.push(dims);
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

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], results: &[&Type]) -> Op {
        Op::Broadcast(Broadcast { shape: results[0].shape.clone(), dims: self.dims.clone() })
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let mut steps = vec![0; self.shape.len()];
        for (&d, step) in self.dims.iter().zip(strides(&args[0].ty.shape)) {
            steps[d] = step;
        }
        let data = args[0].view(0, &self.shape, &steps);
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn repeats_along_new_dims() {
        let to = |dims: &[usize]| Op::Broadcast(Broadcast { shape: vec![2, 3], dims: dims.to_vec() });
        check(to(&[1]), &[floats(&[3], &[1.0, 2.0, 3.0])], &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        check(to(&[0]), &[floats(&[2], &[1.0, 2.0])], &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        check(to(&[]), &[floats(&[], &[4.0])], &[4.0; 6]);
        refused(to(&[0]), &[Type::f32([3])], "does not become");
        refused(to(&[5]), &[Type::f32([3])], "does not become");
        refused(to(&[1, 0]), &[Type::f32([3, 2])], "does not become");
        let huge = Op::Broadcast(Broadcast { shape: vec![usize::MAX, 8], dims: vec![] });
        refused(huge, &[Type::f32([])], "too large");
    }
}
