//! Rotary position embedding (Su et al., 2021).

use super::{Define, Op, need, need_float, operands};
use crate::Diagnostic;
use crate::eval::{At, Tensor};
use crate::graph::{Func, ValueId};
use crate::ops::BinaryKind;
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `rope(x [b, s, .., d], cos [b, s, r/2], sin [b, s, r/2])`: rotates the first r elements of the last dim. Half form: pairs
/// (i, i + r/2); interleaved: pairs (2i, 2i + 1). Elements from r on pass unchanged.
///
/// The pair (x, y) becomes (x cos - y sin, y cos + x sin).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    pub interleaved: bool,
}

impl Define for Rope {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x, cos, sin] = operands(args)?;
        need_float(x)?;
        need("sin", sin, cos)?;
        if x.rank() < 3 || cos.rank() != 3 || cos.dtype != x.dtype || cos.shape[..2] != x.shape[..2] {
            return Err(format!("{cos} gives no angles for the first two dims of {x}"));
        }
        if x.shape[x.rank() - 1] / 2 < cos.shape[2] {
            return Err(format!("{cos} rotates more elements than the last dim of {x} has"));
        }
        Ok(vec![x.clone()])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let dims = rule.dims(&args[0].shape, FactorKind::Pass);
        let half = rule.factor(args[1].shape[2], FactorKind::Replicate);
        rule.factors[dims.len() - 1].kind = FactorKind::Replicate;
        let angles = vec![dims[0].clone(), dims[1].clone(), vec![half]];
        rule.operands = vec![dims.clone(), angles.clone(), angles];
        rule.results.push(dims);
        rule
    }

    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        let d = args[0].shape.last().copied().unwrap_or(1);
        6.0 * (results[0].elements() / d * args[1].shape[2]) as f64
    }

    /// Linear in x.
    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        super::first_partial(args).filter(|&kind| kind == ReduceKind::Sum)
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Rope(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let (x, cos, sin) = (args[0], args[1], args[2]);
        let (d, half) = (x.ty.shape[x.ty.rank() - 1], cos.ty.shape[2]);
        let heads: usize = x.ty.shape[2..x.ty.rank() - 1].iter().product();
        let mut out = Tensor { ty: results[0].clone(), data: x.data.clone() };
        for (i, row) in out.data.chunks_exact_mut(d).enumerate() {
            let angles = i / heads * half..(i / heads + 1) * half;
            for (k, (c, s)) in cos.data[angles.clone()].iter().zip(&sin.data[angles]).enumerate() {
                let (i, j) = if self.interleaved { (2 * k, 2 * k + 1) } else { (k, k + half) };
                (row[i], row[j]) = (row[i] * c - row[j] * s, row[j] * c + row[i] * s);
            }
        }
        Ok(vec![out])
    }

    fn decompose(&self, f: &mut Func, args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        let build = |f: &mut Func| {
            let &[x, cos, sin] = args else { return Err(Diagnostic::internal("rope takes 3 operands")) };
            let shape = f.ty(x).shape.clone();
            let (last, half) = (shape.len() - 1, f.ty(cos).shape[2]);
            // The two members of each pair, [.., half] each.
            let (a, b) = if self.interleaved {
                let rotated = f.slice_dim(x, last, 0, 2 * half)?;
                let pairs = f.reshape(rotated, [&shape[..last], &[half, 2]].concat())?;
                let member = |f: &mut Func, i| {
                    let one = f.slice_dim(pairs, last + 1, i, i + 1)?;
                    f.reshape(one, [&shape[..last], &[half]].concat())
                };
                (member(f, 0)?, member(f, 1)?)
            } else {
                (f.slice_dim(x, last, 0, half)?, f.slice_dim(x, last, half, 2 * half)?)
            };
            let cos = f.broadcast_like(cos, &[0, 1, last], a)?;
            let sin = f.broadcast_like(sin, &[0, 1, last], a)?;
            let (ac, bs) = (f.binary(BinaryKind::Mul, a, cos)?, f.binary(BinaryKind::Mul, b, sin)?);
            let (bc, as_) = (f.binary(BinaryKind::Mul, b, cos)?, f.binary(BinaryKind::Mul, a, sin)?);
            let a = f.binary(BinaryKind::Sub, ac, bs)?;
            let b = f.binary(BinaryKind::Add, bc, as_)?;
            let mut parts = if self.interleaved {
                let pair = [&shape[..last], &[half, 1]].concat();
                let (a, b) = (f.reshape(a, pair.clone())?, f.reshape(b, pair)?);
                let pairs = f.concat(&[a, b], last + 1)?;
                vec![f.reshape(pairs, [&shape[..last], &[2 * half]].concat())?]
            } else {
                vec![a, b]
            };
            if shape[last] > 2 * half {
                parts.push(f.slice_dim(x, last, 2 * half, shape[last])?);
            }
            Ok(vec![f.concat(&parts, last)?])
        };
        Some(build(f))
    }
}
