//! Adds a border of one number.

use super::slice::cut_dims;
use super::{Define, Op, first_partial, operands};
use crate::eval::{At, Tensor, round_to};
use crate::rule::{Rule, Split};
use crate::sharding;
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `low[i]` elements before and `high[i]` after dim i, all `value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pad {
    pub low: Vec<usize>,
    pub high: Vec<usize>,
    #[serde(with = "crate::types::float")]
    pub value: f64,
}

impl Define for Pad {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        if self.low.len() != x.rank() || self.high.len() != x.rank() {
            return Err(format!("{x} needs {} borders on either side", x.rank()));
        }
        let grown = x.shape.iter().zip(&self.low).zip(&self.high);
        let shape: Option<Vec<_>> = grown.map(|((n, l), h)| n.checked_add(*l)?.checked_add(*h)).collect();
        Ok(vec![Type::new(x.dtype, shape.ok_or("the borders are too large")?)])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let whole: Vec<_> = self.low.iter().zip(&self.high).map(|(&l, &h)| l + h == 0).collect();
        cut_dims(&mut rule, &args[0].shape, &results[0].shape, &whole);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        // The border is counted once a device: a sum allows only zeros, max and min any number.
        first_partial(args).filter(|&kind| kind != ReduceKind::Sum || self.value == 0.0)
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        // The border runs through the padding of the other dims.
        let borders = self.low.iter().chain(&self.high).any(|&n| n > 0);
        rule.carried_pads(pads, if borders && self.value != 0.0 { &[] } else { &[0] })
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Pad(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let mut out = Tensor::splat(results[0].clone(), round_to(results[0].dtype, self.value));
        out.paste(&self.low, args[0], &vec![0; self.low.len()], &args[0].ty.shape);
        Ok(vec![out])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn adds_a_border() {
        let pad = Pad { low: vec![1, 0], high: vec![0, 1], value: 9.0 };
        let x = floats(&[1, 2], &[1.0, 2.0]);
        check(Op::Pad(pad), &[x], &[9.0, 9.0, 9.0, 1.0, 2.0, 9.0]);
        let huge = Pad { low: vec![usize::MAX], high: vec![1], value: 0.0 };
        refused(Op::Pad(huge.clone()), &[Type::f32([2])], "too large");
        refused(Op::Pad(huge), &[Type::f32([2, 2])], "needs 2 borders");
    }
}
