//! Constants: one number everywhere, or listed elements.

use super::{Define, Op, operands};
use crate::eval::{At, Tensor, round_to};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::Type;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Literal {
    Splat(#[serde(with = "crate::types::float")] f64),
    /// Row-major elements, at most 2^20 of them.
    Dense(#[serde(with = "crate::types::floats")] Vec<f64>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    pub ty: Type,
    pub value: Literal,
}

/// The most elements a [`Literal::Dense`] may list.
const MAX_DENSE: usize = 1 << 20;

impl Define for Constant {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [] = operands(args)?;
        if self.ty.checked().is_none() {
            return Err(format!("{} is empty or too large", self.ty));
        }
        match &self.value {
            Literal::Dense(data) if data.len() > MAX_DENSE => {
                Err(format!("lists {} elements, more than {MAX_DENSE}", data.len()))
            }
            Literal::Dense(data) if data.len() != self.ty.elements() => {
                Err(format!("lists {} elements for {}", data.len(), self.ty))
            }
            _ => Ok(vec![self.ty.clone()]),
        }
    }

    /// A splat can be made in any piece; listed elements are the same on all devices.
    fn rule(&self, _: &[&Type], _: &[&Type]) -> Rule {
        let kind = match self.value {
            Literal::Splat(_) => FactorKind::Pass,
            Literal::Dense(_) => FactorKind::Replicate,
        };
        let mut rule = Rule::default();
        let dims = rule.dims(&self.ty.shape, kind);
        rule.results.push(dims);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn result_pads(&self, rule: &Rule, _: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        let pad = match self.value {
            Literal::Splat(0.0) => sharding::Pad::Zero,
            _ => sharding::Pad::Unspecified,
        };
        vec![vec![pad; rule.results[0].len()]]
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], results: &[&Type]) -> Op {
        Op::Constant(Constant { ty: results[0].clone(), value: self.value.clone() })
    }

    fn eval(&self, _: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let element = |i: usize| match &self.value {
            Literal::Splat(x) => *x,
            Literal::Dense(data) => data[i],
        };
        let dtype = self.ty.dtype;
        Ok(vec![Tensor::from_fn(results[0].clone(), |i| round_to(dtype, element(i)))])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, refused};
    use super::*;
    use crate::types::DType;

    #[test]
    fn elements_are_of_the_type() {
        let constant = |ty, value| Op::Constant(Constant { ty, value });
        check(constant(Type::i32([2]), Literal::Dense(vec![1.0, -2.0])), &[], &[1.0, -2.0]);
        // 0.1 in bf16 is 0x3dcd.
        check(constant(Type::new(DType::BF16, [1]), Literal::Splat(0.1)), &[], &[0.10009765625]);
        refused(constant(Type::i32([3]), Literal::Dense(vec![1.0])), &[], "lists 1 elements");
        refused(constant(Type::f32([0]), Literal::Splat(1.0)), &[], "empty");
        let long = Literal::Dense(vec![0.0; MAX_DENSE + 1]);
        refused(constant(Type::f32([MAX_DENSE + 1]), long), &[], "more than");
    }
}
