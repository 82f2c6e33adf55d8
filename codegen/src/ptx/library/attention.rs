//! Attention: what its paths have in common, which is the parameters, what a query sees, and what scores become.
//!
//! Scores are kept in units of log2(e), so that weights are powers of two.

use super::attention_ranges::Partials;
use super::value::{Code, Num};
use super::{attention_mma, attention_simt};
use crate::ptx::entry::Special;
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath, RANGE_KEYS};
use pcc_ir::types::DType;
use std::f32::consts::LOG2_E;

/// Builds the body of the kernel.
pub(super) fn emit(code: Code<'_, '_>, kernel: &AttentionKernel) {
    let call = Call::of(code, kernel);
    match kernel.path {
        AttentionPath::Simt => attention_simt::emit(&call),
        AttentionPath::Mma | AttentionPath::Wide | AttentionPath::Few => attention_mma::emit(&call),
    }
}

/// An operand: its first element, and strides in elements.
pub(super) struct View<'e, 'c> {
    pub dtype: DType,
    first: Num<'e, 'c>,
    strides: Vec<Num<'e, 'c>>,
}

impl<'e, 'c> View<'e, 'c> {
    pub fn of(dtype: DType, first: Num<'e, 'c>, strides: Vec<Num<'e, 'c>>) -> Self {
        View { dtype, first, strides }
    }

    /// The address of the element with these first indices (i64), the others 0.
    pub fn at(&self, index: &[Num<'e, 'c>]) -> Num<'e, 'c> {
        let terms = index.iter().zip(&self.strides).map(|(&i, &stride)| i * stride);
        match terms.reduce(|a, b| a + b) {
            Some(offset) => self.first.elements(self.dtype, offset),
            None => self.first,
        }
    }

    /// Elements from an index of a dim to the next.
    pub fn stride(&self, dim: usize) -> Num<'e, 'c> {
        self.strides[dim]
    }
}

/// The parameters of a kernel, [`AttentionKernel::PARAMS`]. Extents and indices are i64.
pub(super) struct Call<'e, 'c, 'k> {
    pub code: Code<'e, 'c>,
    pub kernel: &'k AttentionKernel,
    pub q: View<'e, 'c>,
    pub k: View<'e, 'c>,
    pub v: View<'e, 'c>,
    q_pos: View<'e, 'c>,
    pub k_pos: View<'e, 'c>,
    slopes: View<'e, 'c>,
    pub out: View<'e, 'c>,
    pub b: Num<'e, 'c>,
    pub s: Num<'e, 'c>,
    pub t: Num<'e, 'c>,
    pub g: Num<'e, 'c>,
    pub r: Num<'e, 'c>,
    /// What a product of a query and a key is multiplied by; with a soft cap twice what the tangent is taken of.
    factor: Num<'e, 'c>,
    /// The soft cap, and what rounded biases are multiplied by, in units of log2(e).
    cap: Num<'e, 'c>,
    bias_factor: Num<'e, 'c>,
    window: Num<'e, 'c>,
    /// Where ranges of keys leave what they give, of a split kernel.
    pub partials: Option<Partials<'e, 'c>>,
}

/// A query: row of the batch, position, kv head, head of its group.
#[derive(Clone, Copy)]
pub(super) struct Query<'e, 'c> {
    pub b: Num<'e, 'c>,
    pub s: Num<'e, 'c>,
    pub g: Num<'e, 'c>,
    pub r: Num<'e, 'c>,
}

/// The positions (i32) that a query sees: above `low`, not above `high`.
#[derive(Clone, Copy)]
pub(super) struct Sight<'e, 'c> {
    pub low: Num<'e, 'c>,
    pub high: Num<'e, 'c>,
}

impl<'e, 'c> Sight<'e, 'c> {
    pub fn sees(self, k_pos: Num<'e, 'c>) -> Num<'e, 'c> {
        k_pos.gt(self.low) & k_pos.le(self.high)
    }
}

/// What a query's scores become.
#[derive(Clone, Copy)]
pub(super) struct Scoring<'e, 'c> {
    /// The slope of its head, and what is taken off its biases: those of its own position, so that the scores that matter are small and
    /// keep their digits. Weights do not depend on it.
    bias: Option<(Num<'e, 'c>, Num<'e, 'c>)>,
}

impl<'e, 'c, 'k> Call<'e, 'c, 'k> {
    fn of(code: Code<'e, 'c>, kernel: &'k AttentionKernel) -> Self {
        let mut next = 12;
        let mut view = |pointer: usize, dtype: DType, rank: usize| {
            let strides = (next..next + rank).map(|i| code.param(i)).collect();
            next += rank;
            View { dtype, first: code.param_global(pointer), strides }
        };
        let dtype = kernel.dtype;
        let of_slopes = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let [q, k, v] = [(0, 5), (1, 4), (2, 4)].map(|(p, rank)| view(p, dtype, rank));
        let [q_pos, k_pos] = [3, 4].map(|p| view(p, DType::I32, 2));
        let slopes = view(5, of_slopes, 2);
        let out = view(6, dtype, 5);
        let [b, s, t, g, r] = [7, 8, 9, 10, 11].map(|i| code.param(i));
        let [scale, softcap] = [36, 37].map(|i| code.param_float(i) * code.f32(LOG2_E));
        let factor =
            if kernel.softcap { scale * code.f32(2.0) * code.param_float(37).inverse() } else { scale };
        Call {
            code,
            kernel,
            q,
            k,
            v,
            q_pos,
            k_pos,
            slopes,
            out,
            b,
            s,
            t,
            g,
            r,
            factor,
            cap: softcap,
            bias_factor: scale,
            window: code.param(38),
            partials: kernel.split.then(|| {
                let ranges = t.tiles(RANGE_KEYS).max(1i64);
                Partials::of(code.param_global(39), (b * g, ranges, s * r), kernel.e)
            }),
        }
    }

    /// Runs `body` with the keys of each range that the block works on: its number, the first and the one behind the last (i64).
    pub fn each_range(&self, body: impl FnOnce(Num<'e, 'c>, (Num<'e, 'c>, Num<'e, 'c>))) {
        let code = self.code;
        let Some(partials) = &self.partials else { return body(code.i64(0), (code.i64(0), self.t)) };
        let of_block = [Special::BlockZ, Special::BlocksZ].map(|which| code.special(which).long());
        code.each((of_block[0], partials.ranges), of_block[1], |range| {
            let from = range * RANGE_KEYS;
            body(range, (from, self.t.min(from + RANGE_KEYS)));
        });
    }

    /// Where a query stands; 0 where the call has no positions.
    fn position(&self, query: Query<'e, 'c>) -> Num<'e, 'c> {
        let code = self.code;
        let there = self.q_pos.first.address().ne(0i64);
        let load = || self.q_pos.at(&[query.b, query.s]).load_words(1);
        code.either(there, load, || vec![code.i32(0)])[0]
    }

    /// What a query sees.
    pub fn sight(&self, query: Query<'e, 'c>) -> Sight<'e, 'c> {
        let (code, kernel) = (self.code, self.kernel);
        let (mut low, mut high) = (code.i32(-1), code.i32(i32::MAX));
        if kernel.causal || kernel.window {
            let at = self.position(query);
            if kernel.causal {
                high = at;
            }
            if kernel.window {
                // Windows of more than all positions are all alike.
                low = (at.long() - self.window.min(1i64 << 40)).max(-1i64).int();
            }
        }
        Sight { low, high }
    }

    pub fn scoring(&self, query: Query<'e, 'c>) -> Scoring<'e, 'c> {
        if !self.kernel.slopes {
            return Scoring { bias: None };
        }
        let code = self.code;
        let slope = self.slopes.at(&[query.g, query.r]).load(self.slopes.dtype);
        let at = self.position(query);
        // Differences of larger ones are not exact in f32.
        let exact = at.gt(-(1i64 << 23) - 1) & at.lt(1i64 << 23);
        let from = exact.choose(at, code.i32(0)).float();
        let bias = if self.kernel.bf16_bias {
            let slope = slope.rounded(DType::BF16);
            (slope, (slope * from.rounded(DType::BF16)).rounded(DType::BF16))
        } else {
            (slope * code.f32(LOG2_E), from)
        };
        Scoring { bias: Some(bias) }
    }

    /// What a product of a query and a key is as a score, but for biases.
    pub fn scaled(&self, product: Num<'e, 'c>) -> Num<'e, 'c> {
        let code = self.code;
        if !self.kernel.softcap {
            return product * self.factor;
        }
        // tanh(x) = 1 - 2 / (1 + exp(2 x)), which keeps all digits that a sum of scores does.
        let doubled = (product * self.factor).exp2();
        let tanh = (doubled + 1i64).reciprocal().fma(code.f32(-2.0), code.f32(1.0));
        tanh * self.cap
    }

    /// A score with the bias of a key at a position.
    pub fn biased(&self, score: Num<'e, 'c>, scoring: Scoring<'e, 'c>, k_pos: Num<'e, 'c>) -> Num<'e, 'c> {
        let Some((slope, from)) = scoring.bias else { return score };
        if self.kernel.bf16_bias {
            let bias = (slope * k_pos.float().rounded(DType::BF16)).rounded(DType::BF16) - from;
            return bias.fma(self.bias_factor, score);
        }
        (k_pos.float() - from).fma(slope, score)
    }

    /// What scores are compared with, given their maximum: finite also where no key is seen.
    pub fn base(&self, max: Num<'e, 'c>) -> Num<'e, 'c> {
        max.eq(self.code.f32(f32::NEG_INFINITY)).choose(self.code.f32(0.0), max)
    }

    /// What weighted sums are multiplied by, given the sum of the weights: 0 where no key is seen.
    pub fn normaliser(&self, sum: Num<'e, 'c>) -> Num<'e, 'c> {
        sum.eq(0i64).choose(self.code.f32(0.0), sum.inverse())
    }
}
