//! Grouped-query attention (Vaswani et al., 2017; Ainslie et al., 2023) with positions, window, soft cap and linear
//! biases (ALiBi: Press et al., 2022).

use super::{Define, Op, need, need_float, operands};
use crate::Diagnostic;
use crate::eval::{At, Tensor, round_to, rounded};
use crate::graph::{Func, ValueId};
use crate::ops::{BinaryKind, CompareKind, DotGeneral, UnaryKind};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `attention(q [b,s,g,r,d], k [b,t,g,d], v [b,t,g,e], q_pos i32 [b,s], k_pos i32 [b,t] (, slopes f32 [g,r])) -> [b,s,g,r,e]`, g the kv heads,
/// r the query heads of each. Scores are `scale * q.k`, soft-capped as `cap * tanh(x / cap)`, plus `slope * k_pos` of the head if there are
/// slopes. Key t is seen by query s iff `k_pos >= 0`, and when causal `k_pos <= q_pos`, and with a window w `k_pos > q_pos - w`. A query
/// that sees no key gives zeros.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    pub scale: f64,
    pub causal: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
    /// What slopes add is `scale * round(round(slope) * round(k_pos))`, each rounded to bf16: as the published Falcon class has it, whose
    /// models have learnt with that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bf16_bias: bool,
}

impl Attention {
    /// What a key at position `k` adds to the scores of a head with this slope.
    pub fn bias(&self, slope: f64, k: f64) -> f64 {
        if !self.bf16_bias {
            return slope * k;
        }
        let round = |x| round_to(DType::BF16, x);
        self.scale * round(round(slope) * round(k))
    }

    /// Whether a query at position `q` sees a key at position `k`.
    pub fn sees(&self, q: f64, k: f64) -> bool {
        k >= 0.0 && (!self.causal || k <= q) && self.window.is_none_or(|w| k > q - w as f64)
    }
}

/// Number of the optional operand.
const SLOPES: usize = 5;

impl Define for Attention {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let (slopes, args) = match args.split_last() {
            Some((slopes, rest)) if rest.len() == SLOPES => (Some(slopes), rest),
            _ => (None, args),
        };
        let [q, k, v, q_pos, k_pos] = operands(args)?;
        need_float(q)?;
        let (&[b, s, g, r, d], &[_, t, _, _], &[_, _, _, e]) = (&q.shape[..], &k.shape[..], &v.shape[..])
        else {
            return Err(format!("{q}, {k} and {v} are not [b,s,g,r,d], [b,t,g,d] and [b,t,g,e]"));
        };
        need("k", k, &Type::new(q.dtype, [b, t, g, d]))?;
        need("v", v, &Type::new(q.dtype, [b, t, g, e]))?;
        need("q_pos", q_pos, &Type::i32([b, s]))?;
        need("k_pos", k_pos, &Type::i32([b, t]))?;
        if let Some(slopes) = slopes {
            // As precise as a softmax is computed: f32 beside bf16 as well.
            let dtype = if q.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            need("the slopes", slopes, &Type::new(dtype, [g, r]))?;
        } else if self.bf16_bias {
            return Err("biases in bf16 need slopes".to_owned());
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !self.scale.is_finite() || self.window == Some(0) || !self.softcap.is_none_or(positive) {
            return Err(format!("scale, window or softcap is out of range: {self:?}"));
        }
        Ok(vec![Type::new(q.dtype, [b, s, g, r, e])])
    }

    /// Every query needs all keys, and every score all of d; the rest passes.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let q = rule.dims(&args[0].shape, FactorKind::Pass);
        rule.factors[4].kind = FactorKind::Replicate;
        let t = vec![rule.factor(args[1].shape[1], FactorKind::Replicate)];
        let e = vec![rule.factor(results[0].shape[4], FactorKind::Pass)];
        let [b, s, g, r, d] = [0, 1, 2, 3, 4].map(|i: usize| q[i].clone());
        rule.operands = vec![
            q,
            vec![b.clone(), t.clone(), g.clone(), d],
            vec![b.clone(), t.clone(), g.clone(), e.clone()],
            vec![b.clone(), s.clone()],
            vec![b.clone(), t],
        ];
        if args.len() > SLOPES {
            rule.operands.push(vec![g.clone(), r.clone()]);
        }
        rule.results.push(vec![b, s, g, r, e]);
        rule
    }

    /// Two products over every pair of positions, masked ones counted, and the softmax.
    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        let [queries, d, t, e] =
            [args[0].shape[..4].iter().product(), args[0].shape[4], args[1].shape[1], results[0].shape[4]]
                .map(|n: usize| n as f64);
        queries * t * (2.0 * (d + e) + 12.0)
    }

    /// Linear in v.
    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        match args {
            [None, None, Some(ReduceKind::Sum), rest @ ..] if rest.iter().all(Option::is_none) => {
                Some(ReduceKind::Sum)
            }
            _ => None,
        }
    }

    /// Heads of zeros attend, evenly unless they have slopes, to zeros.
    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        let mut result = vec![vec![sharding::Pad::Unspecified; 5]];
        let heads = [0, 1, 2, SLOPES];
        let heads = if pads.len() > SLOPES { &heads[..] } else { &heads[..3] };
        result[0][2] = rule.carried_pads(pads, heads)[0][2];
        result
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Attention(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let [q, k, v, q_pos, k_pos] = [0, 1, 2, 3, 4].map(|i: usize| args[i]);
        let [s, g, r, d] = [1, 2, 3, 4].map(|i: usize| q.ty.shape[i]);
        let (t, e) = (k.ty.shape[1], v.ty.shape[3]);
        let slopes = args.get(SLOPES);
        let mut out = Tensor::zeros(results[0].clone());
        let mut scores = vec![0.0; t];
        for (i, row) in out.data.chunks_exact_mut(e).enumerate() {
            let (query, head) = (i / (g * r), i / r % g);
            let (batch, at) = (query / s, q_pos.data[query]);
            let slope = slopes.map_or(0.0, |slopes| slopes.data[i % (g * r)]);
            let qs = &q.data[i * d..(i + 1) * d];
            let kv = |j: usize| (batch * t + j) * g + head;
            for (j, score) in scores.iter_mut().enumerate() {
                let ks = &k.data[kv(j) * d..(kv(j) + 1) * d];
                let x = self.scale * qs.iter().zip(ks).map(|(a, b)| a * b).sum::<f64>();
                let x = self.softcap.map_or(x, |cap| cap * (x / cap).tanh());
                let k_pos = k_pos.data[batch * t + j];
                *score = if self.sees(at, k_pos) { x + self.bias(slope, k_pos) } else { f64::NEG_INFINITY };
            }
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max == f64::NEG_INFINITY && !scores.iter().any(|x| x.is_nan()) {
                continue;
            }
            scores.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f64 = scores.iter().sum();
            for (j, weight) in scores.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                let vs = &v.data[kv(j) * e..(kv(j) + 1) * e];
                row.iter_mut().zip(vs).for_each(|(o, x)| *o += weight / sum * x);
            }
        }
        Ok(vec![rounded(out)])
    }

    fn decompose(&self, f: &mut Func, args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        Some(self.build(f, args))
    }
}

impl Attention {
    fn build(&self, f: &mut Func, args: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        let &[q, k, v, q_pos, k_pos, ref slopes @ ..] = args else {
            return Err(Diagnostic::internal("attention takes 5 or 6 operands"));
        };
        // [b,s,g,r,d] x [b,t,g,d] -> [b,g,s,r,t].
        let dot = DotGeneral {
            lhs_batch: vec![0, 2],
            rhs_batch: vec![0, 2],
            lhs_contract: vec![4],
            rhs_contract: vec![3],
            result: None,
        };
        let products = f.one(Op::DotGeneral(dot), &[q, k])?;
        let mut scores = f.scaled(products, self.scale)?;
        if let Some(cap) = self.softcap {
            scores = f.scaled(scores, 1.0 / cap)?;
            scores = f.unary(UnaryKind::Tanh, scores)?;
            scores = f.scaled(scores, cap)?;
        }
        if let Some(&slopes) = slopes.first() {
            let ty = f.ty(scores).dtype;
            // Only conversions round in every evaluator.
            let rounded = |f: &mut Func, v: ValueId| {
                let v = if self.bf16_bias { f.one(Op::Convert(DType::BF16), &[v])? } else { v };
                f.one(Op::Convert(ty), &[v])
            };
            let (slopes, at) = (rounded(f, slopes)?, rounded(f, k_pos)?);
            let slopes = f.broadcast_like(slopes, &[1, 3], scores)?;
            let at = f.broadcast_like(at, &[0, 4], scores)?;
            let mut bias = f.binary(BinaryKind::Mul, slopes, at)?;
            if self.bf16_bias {
                bias = rounded(f, bias)?;
                bias = f.scaled(bias, self.scale)?;
            }
            scores = f.binary(BinaryKind::Add, scores, bias)?;
        }
        let mask = self.mask(f, scores, q_pos, k_pos)?;
        let low = f.splat_like(scores, -1e30)?;
        let seen = f.one(Op::Select, &[mask, scores, low])?;
        let max = f.reduce_keep(ReduceKind::Max, seen, 4)?;
        let shifted = f.binary(BinaryKind::Sub, seen, max)?;
        let e = f.unary(UnaryKind::Exp, shifted)?;
        let zero = f.splat_like(e, 0.0)?;
        let e = f.one(Op::Select, &[mask, e, zero])?;
        // The largest term is 1, so a sum below that means that no key is seen: 0 / 1 gives the zeros.
        let sum = f.reduce_keep(ReduceKind::Sum, e, 4)?;
        let one = f.splat_like(sum, 1.0)?;
        let sum = f.binary(BinaryKind::Max, sum, one)?;
        let weights = f.binary(BinaryKind::Div, e, sum)?;
        // [b,g,s,r,t] x [b,t,g,e] -> [b,g,s,r,e].
        let dot = DotGeneral {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 2],
            lhs_contract: vec![4],
            rhs_contract: vec![1],
            result: None,
        };
        let mixed = f.one(Op::DotGeneral(dot), &[weights, v])?;
        Ok(vec![f.one(Op::Transpose(vec![0, 2, 1, 3, 4]), &[mixed])?])
    }

    /// Which keys each query sees, bool of the shape of `scores` [b,g,s,r,t].
    fn mask(
        &self,
        f: &mut Func,
        scores: ValueId,
        q_pos: ValueId,
        k_pos: ValueId,
    ) -> Result<ValueId, Diagnostic> {
        let q = f.broadcast_like(q_pos, &[0, 2], scores)?;
        let k = f.broadcast_like(k_pos, &[0, 4], scores)?;
        let zero = f.splat_like(k, 0.0)?;
        let mut mask = f.one(Op::Compare(CompareKind::Ge), &[k, zero])?;
        if self.causal {
            let past = f.one(Op::Compare(CompareKind::Le), &[k, q])?;
            mask = f.binary(BinaryKind::And, mask, past)?;
        }
        if let Some(w) = self.window {
            let w = f.splat_like(k, w as f64)?;
            let first = f.binary(BinaryKind::Sub, q, w)?;
            let near = f.one(Op::Compare(CompareKind::Gt), &[k, first])?;
            mask = f.binary(BinaryKind::And, mask, near)?;
        }
        debug_assert_eq!(f.ty(mask).dtype, DType::Bool);
        Ok(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, ints, refused, wave};
    use super::*;

    fn with(causal: bool, window: Option<usize>, softcap: Option<f64>) -> Op {
        Op::Attention(Attention { scale: 0.75, causal, window, softcap, bf16_bias: false })
    }

    /// NumPy, by einsum over repeated kv heads. The last key is hidden by its position.
    #[test]
    fn masks_and_soft_cap_equal_numpy() {
        let args = [
            wave(&[1, 3, 1, 2, 2], 0.9, 0.3),
            wave(&[1, 4, 1, 2], 1.7, -0.2),
            wave(&[1, 4, 1, 2], 0.6, 0.5),
            ints(&[1, 3], &[1, 2, 0]),
            ints(&[1, 4], &[0, 1, 2, -1]),
        ];
        let all = [
            0.4277378141,
            0.3107055877,
            0.5174184398,
            0.327745227,
            0.7998705074,
            0.6171685614,
            0.5272419384,
            0.442693719,
            0.4174895355,
            0.2446503463,
            0.7215160964,
            0.5316000148,
        ];
        check(with(false, None, None), &args, &all);
        let causal = [
            0.5846338988,
            0.8613228057,
            0.7203585226,
            0.8227700719,
            0.7998705074,
            0.6171685614,
            0.5272419384,
            0.442693719,
            0.4794255386,
            0.8912073601,
            0.4794255386,
            0.8912073601,
        ];
        check(with(true, None, None), &args, &causal);
        let windowed = [
            0.5846338988,
            0.8613228057,
            0.7203585226,
            0.8227700719,
            0.8651527732,
            0.5613403369,
            0.5617331111,
            0.1191695414,
            0.4794255386,
            0.8912073601,
            0.4794255386,
            0.8912073601,
        ];
        check(with(true, Some(2), None), &args, &windowed);
        let capped = [
            0.6302080935,
            0.8483774038,
            0.7208262518,
            0.8226372129,
            0.7094255703,
            0.5378377574,
            0.5293053275,
            0.436989123,
            0.4794255386,
            0.8912073601,
            0.4794255386,
            0.8912073601,
        ];
        check(with(true, None, Some(0.5)), &args, &capped);
    }

    /// NumPy, as above, with a slope for each of the two heads; with a soft cap it is added to the capped score.
    #[test]
    fn slopes_equal_numpy() {
        let args = [
            wave(&[1, 3, 1, 2, 2], 0.9, 0.3),
            wave(&[1, 4, 1, 2], 1.7, -0.2),
            wave(&[1, 4, 1, 2], 0.6, 0.5),
            ints(&[1, 3], &[1, 2, 0]),
            ints(&[1, 4], &[0, 1, 2, -1]),
            floats(&[1, 2], &[0.5, -0.25]),
        ];
        check(
            with(true, None, None),
            &args,
            &[
                0.6324903963,
                0.8477291131,
                0.6888535591,
                0.8317190926,
                0.7710996306,
                0.5136934241,
                0.5420235710,
                0.5494716356,
                0.4794255386,
                0.8912073601,
                0.4794255386,
                0.8912073601,
            ],
        );
        check(
            with(true, Some(2), Some(0.5)),
            &args,
            &[
                0.6881638338,
                0.8319150099,
                0.6893074412,
                0.8315901669,
                0.6934640167,
                0.3111398274,
                0.6105644577,
                0.1903310318,
                0.4794255386,
                0.8912073601,
                0.4794255386,
                0.8912073601,
            ],
        );
    }

    /// PyTorch: `(0.707).bfloat16() * torch.tensor([257, 259, 300])` is [181, 184, 212], since the slope becomes 0.70703125 and the
    /// positions 256, 260 and 300.
    #[test]
    fn biases_in_bf16_equal_pytorch() {
        let op = Attention { scale: 0.1, causal: true, window: None, softcap: None, bf16_bias: true };
        for (k, bias) in [(257.0, 181.0), (259.0, 184.0), (300.0, 212.0)] {
            assert_eq!(op.bias(0.707, k), 0.1 * bias, "{k}");
        }
    }

    #[test]
    fn a_query_that_sees_nothing_gives_zeros() {
        let args = [
            wave(&[1, 1, 1, 1, 2], 0.9, 0.3),
            wave(&[1, 2, 1, 2], 1.7, -0.2),
            wave(&[1, 2, 1, 2], 0.6, 0.5),
            ints(&[1, 1], &[3]),
            ints(&[1, 2], &[4, -1]),
        ];
        check(with(true, None, None), &args, &[0.0, 0.0]);
    }

    #[test]
    fn misfits_are_refused() {
        let args = |kv_heads| {
            let (q, k) = (Type::f32([1, 3, 2, 2, 4]), Type::f32([1, 5, kv_heads, 4]));
            [q, k.clone(), k, Type::i32([1, 3]), Type::i32([1, 5])]
        };
        refused(with(true, None, None), &args(3), "k must be f32[1,5,2,4]");
        refused(with(true, Some(0), None), &args(2), "out of range");
        let more = |slopes: Type| [&args(2)[..], &[slopes]].concat();
        refused(with(true, None, None), &more(Type::f32([2, 3])), "the slopes must be f32[2,2]");
        refused(with(true, None, None), &args(2)[..4], "takes 5 operands");
        refused(with(true, None, Some(0.0)), &args(2), "out of range");
        let bf16_bias = Op::Attention(Attention {
            scale: 1.0,
            causal: true,
            window: None,
            softcap: None,
            bf16_bias: true,
        });
        refused(bf16_bias, &args(2), "need slopes");
    }
}
