//! Layer normalisation (Ba, Kiros and Hinton, 2016).

use super::rms_norm::{infer_norm, norm_rule, scaled_to_unit};
use super::{Define, Op, operands};
use crate::Diagnostic;
use crate::eval::{At, Tensor};
use crate::graph::{Func, ValueId};
use crate::ops::BinaryKind;
use crate::rule::{Rule, Split};
use crate::types::Type;
use serde::{Deserialize, Serialize};

/// `layer_norm(x [.., h], weight [h], bias [h])`: `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dim, the
/// variance being the biased one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    pub eps: f64,
}

impl Define for LayerNorm {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x, weight, bias] = operands(args)?;
        infer_norm(x, &[("the weight", weight), ("the bias", bias)], self.eps)
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> Rule {
        norm_rule(2, &results[0].shape)
    }

    fn flops(&self, _: &[&Type], results: &[&Type]) -> f64 {
        7.0 * results[0].elements() as f64
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::LayerNorm(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let (weight, bias) = (&args[1].data, &args[2].data);
        let n = weight.len() as f64;
        let mut out = Tensor { ty: results[0].clone(), data: args[0].data.clone() };
        for row in out.data.chunks_exact_mut(weight.len()) {
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
            let scale = 1.0 / (variance + self.eps).sqrt();
            let affine = weight.iter().zip(bias);
            row.iter_mut().zip(affine).for_each(|(x, (w, b))| *x = (*x - mean) * scale * w + b);
        }
        Ok(vec![out])
    }

    fn decompose(&self, f: &mut Func, args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        let build = |f: &mut Func| {
            let &[x, weight, bias] = args else {
                return Err(Diagnostic::internal("layer_norm takes 3 operands"));
            };
            let last = f.ty(x).rank().saturating_sub(1);
            let mean = f.mean_keep(x, last)?;
            let centred = f.binary(BinaryKind::Sub, x, mean)?;
            let normal = scaled_to_unit(f, centred, centred, self.eps)?;
            let weight = f.broadcast_like(weight, &[last], x)?;
            let scaled = f.binary(BinaryKind::Mul, normal, weight)?;
            let bias = f.broadcast_like(bias, &[last], x)?;
            Ok(vec![f.binary(BinaryKind::Add, scaled, bias)?])
        };
        Some(build(f))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, refused, wave};
    use super::*;

    #[test]
    fn equals_numpy() {
        let want = [
            -0.3629378766,
            1.7296210451,
            1.1483963854,
            0.6819450134,
            -1.6592032001,
            0.8200946599,
            1.8385861802,
            0.7416483706,
        ];
        let args = [wave(&[2, 4], 1.3, 0.2), wave(&[4], 0.7, 1.0), wave(&[4], 0.9, -0.4)];
        check(Op::LayerNorm(LayerNorm { eps: 1e-5 }), &args, &want);
    }

    #[test]
    fn misfits_are_refused() {
        let args = [Type::f32([2, 4]), Type::f32([4]), Type::f32([4, 1])];
        refused(Op::LayerNorm(LayerNorm { eps: 1e-5 }), &args, "the bias must be f32[4]");
    }
}
