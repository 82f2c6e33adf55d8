//! Reductions over dims.

use super::{Define, Op, first_partial, need_dim, operands};
use crate::eval::{At, Tensor, strides};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// Reduces and drops `dims` (increasing).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    pub kind: ReduceKind,
    pub dims: Vec<usize>,
}

impl Define for Reduce {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        if x.dtype == DType::Bool {
            return Err(format!("needs numbers, got {x}"));
        }
        self.dims.iter().try_for_each(|&d| need_dim(d, x))?;
        if !self.dims.windows(2).all(|w| w[0] < w[1]) {
            return Err(format!("dims {:?} are not increasing", self.dims));
        }
        let kept = (0..x.rank()).filter(|d| !self.dims.contains(d)).map(|d| x.shape[d]);
        Ok(vec![Type::new(x.dtype, kept.collect::<Vec<_>>())])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let dims = rule.dims(&args[0].shape, FactorKind::Pass);
        self.dims.iter().for_each(|&d| rule.factors[dims[d][0]].kind = FactorKind::Reduce(self.kind));
        let kept = (0..dims.len()).filter(|d| !self.dims.contains(d)).map(|d| dims[d].clone()).collect();
        rule.operands.push(dims);
        rule.results.push(kept);
        rule
    }

    fn flops(&self, args: &[&Type], _: &[&Type]) -> f64 {
        args[0].elements() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        first_partial(args).filter(|&kind| kind == self.kind)
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[0])
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Reduce(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let shape = &args[0].ty.shape;
        let steps = strides(shape);
        let kept = (0..shape.len()).filter(|d| !self.dims.contains(d));
        let order: Vec<_> = kept.chain(self.dims.iter().copied()).collect();
        let ordered = args[0].view(
            0,
            &order.iter().map(|&d| shape[d]).collect::<Vec<_>>(),
            &order.iter().map(|&d| steps[d]).collect::<Vec<_>>(),
        );
        let run: usize = self.dims.iter().map(|&d| shape[d]).product();
        let dtype = results[0].dtype;
        let reduce = |chunk: &[f64]| {
            let (first, rest) = chunk.split_first().map_or((self.kind.identity(), chunk), |(f, r)| (*f, r));
            super::elementwise::keep_exact(dtype, rest.iter().fold(first, |a, &b| self.kind.apply(a, b)))
        };
        let data = ordered.chunks_exact(run).map(reduce).collect::<Result<_, _>>()?;
        Ok(vec![Tensor { ty: results[0].clone(), data }])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused};
    use super::*;

    #[test]
    fn reduces_by_hand() {
        let x = floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 6.0, 5.0]);
        let reduce = |kind, dims: &[usize]| Op::Reduce(Reduce { kind, dims: dims.to_vec() });
        check(reduce(ReduceKind::Sum, &[1]), std::slice::from_ref(&x), &[6.0, 15.0]);
        check(reduce(ReduceKind::Max, &[0]), std::slice::from_ref(&x), &[4.0, 6.0, 5.0]);
        check(reduce(ReduceKind::Min, &[0, 1]), std::slice::from_ref(&x), &[1.0]);
        check(reduce(ReduceKind::Sum, &[]), std::slice::from_ref(&x), &x.data);
        refused(reduce(ReduceKind::Sum, &[2]), &[Type::f32([2, 3])], "no dim 2");
        refused(reduce(ReduceKind::Sum, &[1, 1]), &[Type::f32([2, 3])], "increasing");
        refused(reduce(ReduceKind::Max, &[0]), &[Type::new(DType::Bool, [2])], "needs numbers");
    }
}
