//! A box of an operand.

use super::{Define, Op, first_partial, operands};
use crate::eval::{At, Tensor, strides};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// Elements `start..limit` of every dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    pub start: Vec<usize>,
    pub limit: Vec<usize>,
}

impl Slice {
    /// Whether the dim, of extent `n`, is taken whole.
    fn whole(&self, dim: usize, n: usize) -> bool {
        self.start[dim] == 0 && self.limit[dim] == n
    }
}

impl Define for Slice {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        let bounds = || self.start.iter().zip(&self.limit);
        let inside = bounds().zip(&x.shape).all(|((s, l), n)| s < l && l <= n);
        if self.start.len() != x.rank() || self.limit.len() != x.rank() || !inside {
            return Err(format!("{:?} to {:?} is no box inside {x}", self.start, self.limit));
        }
        Ok(vec![Type::new(x.dtype, bounds().map(|(s, l)| l - s).collect::<Vec<_>>())])
    }

    /// A dim that is cut has one factor before and another after.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let whole = (0..args[0].rank()).map(|d| self.whole(d, args[0].shape[d])).collect::<Vec<_>>();
        cut_dims(&mut rule, &args[0].shape, &results[0].shape, &whole);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn bytes(&self, _: &[&Type], results: &[&Type]) -> f64 {
        2.0 * results[0].bytes() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        first_partial(args)
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[0])
    }

    fn localize(&self, rule: &Rule, _: &Split, args: &[&Type], _: &[&Type]) -> Op {
        // A dim with one factor on both sides is taken whole, whatever its local extent.
        let pass = |d: usize| rule.operands[0][d] == rule.results[0][d];
        let limit = |d: usize| if pass(d) { args[0].shape[d] } else { self.limit[d] };
        Op::Slice(Slice { start: self.start.clone(), limit: (0..self.limit.len()).map(limit).collect() })
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let steps = strides(&args[0].ty.shape);
        let offset = steps.iter().zip(&self.start).map(|(s, i)| s * i).sum();
        let data = args[0].view(offset, &results[0].shape, &steps);
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}

/// Dims of an operand and a result: `whole` dims pass, the others have a factor each that may not be split.
pub(super) fn cut_dims(rule: &mut Rule, operand: &[usize], result: &[usize], whole: &[bool]) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for ((&n, &m), &whole) in operand.iter().zip(result).zip(whole) {
        let kind = if whole { FactorKind::Pass } else { FactorKind::Replicate };
        let f = rule.factor(n, kind);
        before.push(vec![f]);
        after.push(vec![if whole { f } else { rule.factor(m, kind) }]);
    }
    rule.operands.push(before);
    rule.results.push(after);
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn takes_a_box() {
        let x = floats(&[3, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let slice = |start: &[usize], limit: &[usize]| {
            Op::Slice(Slice { start: start.to_vec(), limit: limit.to_vec() })
        };
        check(slice(&[1, 0], &[3, 2]), &[x], &[3.0, 4.0, 6.0, 7.0]);
        for (start, limit) in [([0, 2], [3, 2]), ([0, 0], [4, 3]), ([5, 0], [3, 3])] {
            refused(slice(&start, &limit), &[Type::f32([3, 3])], "no box");
        }
        refused(slice(&[0], &[1]), &[Type::f32([3, 3])], "no box");
    }
}
