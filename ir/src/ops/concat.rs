//! Joins operands along a dim.

use super::{Define, Op, all_partial, need_dim};
use crate::eval::{At, Tensor};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{ReduceKind, Type};

pub(super) struct Concat(pub(super) usize);

impl Define for Concat {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [first, rest @ ..] = args else { return Err("takes at least 1 operand".into()) };
        need_dim(self.0, first)?;
        let mut ty = (*first).clone();
        for other in rest {
            let mut same = (*other).clone();
            if same.rank() == first.rank() {
                same.shape[self.0] = first.shape[self.0];
            }
            if same != **first {
                return Err(format!("{other} does not join {first} along dim {}", self.0));
            }
            let n = ty.shape[self.0].checked_add(other.shape[self.0]);
            ty.shape[self.0] = n.ok_or("the result is too large")?;
        }
        Ok(vec![ty])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let mut dims = rule.dims(&results[0].shape, FactorKind::Pass);
        let joined = dims[self.0][0];
        for ty in args {
            // One operand alone is not joined to anything: its dim passes.
            if args.len() > 1 {
                dims[self.0] = vec![rule.factor(ty.shape[self.0], FactorKind::Replicate)];
            }
            rule.operands.push(dims.clone());
        }
        if args.len() > 1 {
            rule.factors[joined].kind = FactorKind::Replicate;
        }
        dims[self.0] = vec![joined];
        rule.results.push(dims);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        all_partial(args)
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &(0..pads.len()).collect::<Vec<_>>())
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Concat(self.0)
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let mut out = Tensor::zeros(results[0].clone());
        let zero = vec![0; results[0].rank()];
        let mut to = zero.clone();
        for arg in args {
            out.paste(&to, arg, &zero, &arg.ty.shape);
            to[self.0] += arg.ty.shape[self.0];
        }
        Ok(vec![out])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn joins_along_a_dim() {
        let (a, b) = (floats(&[2, 1], &[1.0, 2.0]), floats(&[2, 2], &[3.0, 4.0, 5.0, 6.0]));
        check(Op::Concat(1), &[a, b], &[1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
        refused(Op::Concat(0), &[Type::f32([2, 1]), Type::f32([2, 2])], "does not join");
        refused(Op::Concat(0), &[Type::f32([2, 1]), Type::f32([2])], "does not join");
        refused(Op::Concat(2), &[Type::f32([2, 1])], "no dim 2");
        refused(Op::Concat(0), &[], "at least 1");
    }
}
