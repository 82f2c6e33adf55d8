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

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused, wave};
    use super::*;

    /// NumPy, as a product of complex numbers.
    #[test]
    fn both_forms_equal_numpy() {
        let angles = [0.3, 1.1, 2.0, -0.5];
        let of = |f: fn(f64) -> f64| floats(&[1, 2, 2], &angles.map(f));
        let args = [wave(&[1, 2, 2, 6], 0.8, 0.1), of(f64::cos), of(f64::sin)];
        let half = [
            -0.197682484,
            -0.1780487316,
            0.9768763703,
            0.9695713505,
            -0.1577456941,
            -0.8182771111,
            -1.002145133,
            -1.0077042018,
            -0.084822625,
            -0.105020256,
            0.9698898108,
            0.5010208565,
            0.9805795741,
            -0.9875781366,
            0.1499008545,
            0.0271458397,
            0.3274744391,
            0.9059547423,
            -0.0416370634,
            -0.0972731717,
            1.0090954799,
            -1.0055905944,
            -0.9125824498,
            -0.3424806185,
        ];
        check(Op::Rope(Rope { interleaved: false }), &args, &half);
        let interleaved = [
            -0.1361144245,
            0.7778435716,
            -0.0835474678,
            1.1552436211,
            -0.1577456941,
            -0.8182771111,
            -0.7758341243,
            -0.816424592,
            -0.6603377833,
            0.5774712693,
            0.9698898108,
            0.5010208565,
            0.9129974159,
            0.1189713693,
            -1.0528031353,
            0.0627784188,
            0.3274744391,
            0.9059547423,
            -0.7498088021,
            0.6849953339,
            -0.7807449934,
            -0.6322082364,
            -0.9125824498,
            -0.3424806185,
        ];
        check(Op::Rope(Rope { interleaved: true }), &args, &interleaved);
    }

    #[test]
    fn misfits_are_refused() {
        let rope = || Op::Rope(Rope { interleaved: false });
        let (x, angles) = (Type::f32([2, 3, 5]), Type::f32([2, 3, 3]));
        refused(rope(), &[x.clone(), angles.clone(), angles], "more elements");
        refused(rope(), &[x.clone(), Type::f32([3, 2, 1]), Type::f32([3, 2, 1])], "first two dims");
        refused(rope(), &[x, Type::f32([2, 3, 1]), Type::f32([2, 3, 2])], "sin must be");
    }
}
