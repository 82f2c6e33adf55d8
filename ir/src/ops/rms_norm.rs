//! Root-mean-square normalisation (Zhang and Sennrich, 2019).

use super::{Define, Op, need, need_float, operands};
use crate::Diagnostic;
use crate::eval::{At, Tensor};
use crate::graph::{Func, ValueId};
use crate::ops::{BinaryKind, UnaryKind};
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `rms_norm(x [.., h], weight [h])`: `x / sqrt(mean(x^2) + eps) * weight` over the last dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    pub eps: f64,
}

/// Types of a normalisation over the last dim of `x` with `vectors` of its extent.
pub(super) fn infer_norm(x: &Type, vectors: &[(&str, &Type)], eps: f64) -> Result<Vec<Type>, String> {
    need_float(x)?;
    let h = *x.shape.last().ok_or("needs a dim to normalise over")?;
    vectors.iter().try_for_each(|(what, ty)| need(what, ty, &Type::new(x.dtype, [h])))?;
    if !eps.is_finite() || eps < 0.0 {
        return Err(format!("eps {eps} is not a number from 0 on"));
    }
    Ok(vec![x.clone()])
}

/// The last dim is whole on each device, the others pass.
pub(super) fn norm_rule(vectors: usize, shape: &[usize]) -> Rule {
    let mut rule = Rule::default();
    let dims = rule.dims(shape, FactorKind::Pass);
    if let Some(last) = rule.factors.last_mut() {
        last.kind = FactorKind::Replicate;
    }
    rule.operands.push(dims.clone());
    rule.operands.extend(vec![dims[dims.len() - 1..].to_vec(); vectors]);
    rule.results.push(dims);
    rule
}

impl Define for RmsNorm {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x, weight] = operands(args)?;
        infer_norm(x, &[("the weight", weight)], self.eps)
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        norm_rule(1, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        4.0 * results[0].elements() as f64
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::RmsNorm(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let weight = &args[1].data;
        let mut out = Tensor { ty: results[0].clone(), data: args[0].data.clone() };
        for row in out.data.chunks_exact_mut(weight.len()) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / weight.len() as f64;
            let scale = 1.0 / (mean + self.eps).sqrt();
            row.iter_mut().zip(weight).for_each(|(x, w)| *x *= scale * w);
        }
        Ok(vec![out])
    }

    fn decompose(&self, f: &mut Func, args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        let build = |f: &mut Func| {
            let &[x, weight] = args else { return Err(Diagnostic::internal("rms_norm takes 2 operands")) };
            let last = f.ty(x).rank().saturating_sub(1);
            let normal = scaled_to_unit(f, x, x, self.eps)?;
            let weight = f.broadcast_like(weight, &[last], x)?;
            Ok(vec![f.binary(BinaryKind::Mul, normal, weight)?])
        };
        Some(build(f))
    }
}

/// `x / sqrt(mean(of^2) + eps)` over the last dim.
pub(super) fn scaled_to_unit(f: &mut Func, x: ValueId, of: ValueId, eps: f64) -> Result<ValueId, Diagnostic> {
    let last = f.ty(x).rank().saturating_sub(1);
    let square = f.binary(BinaryKind::Mul, of, of)?;
    let mean = f.mean_keep(square, last)?;
    let eps = f.splat_like(mean, eps)?;
    let sum = f.binary(BinaryKind::Add, mean, eps)?;
    let scale = f.unary(UnaryKind::Rsqrt, sum)?;
    f.binary(BinaryKind::Mul, x, scale)
}

impl Func {
    /// Mean over `dim`, repeated along it.
    pub(super) fn mean_keep(&mut self, x: ValueId, dim: usize) -> Result<ValueId, Diagnostic> {
        let n = self.ty(x).shape.get(dim).copied().unwrap_or(1);
        let sum = self.reduce_keep(ReduceKind::Sum, x, dim)?;
        let scale = self.splat_like(sum, 1.0 / n as f64)?;
        self.binary(BinaryKind::Mul, sum, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, refused, wave};
    use super::*;

    #[test]
    fn equals_numpy() {
        let want = [
            0.2480882237,
            1.4679518115,
            0.3357896459,
            -0.0504926288,
            -0.9815781969,
            0.6060347995,
            1.0087739544,
            0.0078116062,
        ];
        check(Op::RmsNorm(RmsNorm { eps: 1e-5 }), &[wave(&[2, 4], 1.3, 0.2), wave(&[4], 0.7, 1.0)], &want);
    }

    #[test]
    fn misfits_are_refused() {
        let norm = || Op::RmsNorm(RmsNorm { eps: 1e-5 });
        refused(norm(), &[Type::f32([2, 4]), Type::f32([2])], "the weight must be f32[4]");
        refused(norm(), &[Type::f32([]), Type::f32([])], "needs a dim");
        refused(Op::RmsNorm(RmsNorm { eps: -1.0 }), &[Type::f32([4]), Type::f32([4])], "eps");
    }
}
