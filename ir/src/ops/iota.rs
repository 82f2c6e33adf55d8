//! Indices along a dim.

use super::{Define, Op, ShardBase, need_dim, operands};
use crate::eval::{At, Tensor, strides};
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{DType, Type};
use serde::{Deserialize, Serialize};

/// Element = its index along `dim` (plus the base of the device's piece).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iota {
    pub ty: Type,
    pub dim: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ShardBase>,
}

impl Define for Iota {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [] = operands(args)?;
        need_dim(self.dim, &self.ty)?;
        if self.ty.dtype == DType::Bool || self.ty.checked().is_none() {
            return Err(format!("cannot count in {}", self.ty));
        }
        Ok(vec![self.ty.clone()])
    }

    fn rule(&self, _: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let dims = rule.dims(&self.ty.shape, FactorKind::Pass);
        rule.results.push(dims);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn localize(&self, rule: &Rule, split: &Split, _: &[&Type], results: &[&Type]) -> Op {
        let base = ShardBase::of(rule, split, &rule.results[0][self.dim]);
        Op::Iota(Iota { ty: results[0].clone(), dim: self.dim, base })
    }

    fn eval(&self, _: &[&Tensor], results: &[&Type], at: At) -> Result<Vec<Tensor>, String> {
        let start = self.base.as_ref().map_or(0, |b| b.span(&at.mesh, at.device).start);
        let (step, n) = (strides(&self.ty.shape)[self.dim], self.ty.shape[self.dim]);
        Ok(vec![Tensor::from_fn(results[0].clone(), |i| (i / step % n + start) as f64)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, refused};
    use super::*;

    #[test]
    fn counts_along_a_dim() {
        let iota = |dim| Op::Iota(Iota { ty: Type::i32([2, 3]), dim, base: None });
        check(iota(0), &[], &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        check(iota(1), &[], &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
        refused(iota(2), &[], "no dim 2");
    }
}
