//! Chooses a token from logits.

use super::top_k::TopK;
use super::{Define, Op, need, operands};
use crate::eval::{At, Tensor};
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{DType, Type};
use serde::{Deserialize, Serialize};

/// `sample(logits f32 [b, n], settings f32 [b, 2], key i32 [b, 4]) -> token i32 [b]`. Row by row, `settings` are temperature and top-p, `key`
/// top-k, the low and the high half of a seed, and the number of the draw. The token is
///
/// 1. -1 if a logit is NaN;
/// 2. the first of the largest logits, if the temperature is not above 0 or the largest logit is not finite;
/// 3. otherwise drawn: tokens have weights [`weight`] of `(logit - largest) / temperature`, and are ranked as [`TopK`] ranks logits. Kept are the
///    first top-k of them (all if top-k is 0 or less, or more than there are), and of those the fewest first ones whose weights sum to at least
///    top-p times the sum of all of those, rounded down, but one at least (all, if top-p is 1 or more). With [`target`] of the sum of the kept ones'
///    weights, the token is the first kept one, by index, for which the weights of the kept ones up to it sum to more than that.
///
/// Weights are integers, so their sums are exact in any order, and the draw depends on the row's own operands alone: neither on the mesh nor on the
/// batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {}

/// Bits behind the point of [`weight`]s.
pub const WEIGHT_BITS: u32 = 40;
/// Most tokens: so many weights of 1 still sum to less than 2^64.
pub const MOST: usize = (1 << (u64::BITS - WEIGHT_BITS)) - 1;

/// `exp(x)` of an x of at most 0, in units of 2^-40, rounded down.
pub fn weight(x: f64) -> u64 {
    (x.exp() * (1u64 << WEIGHT_BITS) as f64) as u64
}

/// Number `draw` of the SplitMix64 stream of `seed` (Steele, Lea, Flood 2014).
pub fn random_bits(seed: u64, draw: u64) -> u64 {
    let mut z = seed.wrapping_add(draw.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number below `total` (0 for 0): the fraction of it that random bits stand for.
pub fn target(total: u64, bits: u64) -> u64 {
    ((u128::from(total) * u128::from(bits)) >> 64) as u64
}

/// The weight that the kept tokens must have at least: top-p of `total`, rounded down.
pub fn share(top_p: f32, total: u64) -> u64 {
    if top_p >= 1.0 { total } else { (f64::from(top_p) * total as f64) as u64 }
}

/// The operands of a row but its logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    pub seed: u64,
    /// Number of the draw: 32 bits of it count.
    pub draw: u32,
}

impl Draw {
    /// The row of `settings`.
    pub fn settings(&self) -> [f32; 2] {
        [self.temperature, self.top_p]
    }

    /// The row of `key`.
    pub fn key(&self) -> [i32; 4] {
        [self.top_k, self.seed as i32, (self.seed >> 32) as i32, self.draw as i32]
    }

    /// From a row of `settings` and one of `key`.
    pub fn of(settings: [f32; 2], key: [i32; 4]) -> Self {
        let half = |i: usize| u64::from(key[i] as u32);
        let seed = half(1) | half(2) << 32;
        Self { temperature: settings[0], top_p: settings[1], top_k: key[0], seed, draw: key[3] as u32 }
    }

    /// The token, by definition: sorts all.
    fn choose(&self, logits: &[f64]) -> i32 {
        let mut ranked: Vec<usize> = (0..logits.len()).collect();
        ranked.sort_by(|&a, &b| TopK::order((logits[a], a), (logits[b], b)));
        let Some(&best) = ranked.first() else { return -1 };
        let largest = logits[best];
        if largest.is_nan() {
            return -1;
        }
        let drawn = self.temperature > 0.0 && largest.is_finite();
        if !drawn {
            return best as i32;
        }
        let weigh = |i: usize| weight((logits[i] - largest) / f64::from(self.temperature));
        if self.top_k > 0 {
            ranked.truncate(self.top_k as usize);
        }
        let need = share(self.top_p, ranked.iter().map(|&i| weigh(i)).sum());
        let (mut count, mut sum) = (0, 0);
        while count < ranked.len() && (count == 0 || sum < need || self.top_p >= 1.0) {
            sum += weigh(ranked[count]);
            count += 1;
        }
        ranked.truncate(count);
        ranked.sort_unstable();
        let target = target(sum, random_bits(self.seed, self.draw.into()));
        let mut running = 0;
        let passes = |&i: &usize| {
            running += weigh(i);
            running > target
        };
        // invariant: the weight of the largest is 2^40, so the sum is more than the target.
        ranked.iter().copied().find(passes).map_or(-1, |i| i as i32)
    }
}

impl Define for Sample {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [logits, settings, key] = operands(args)?;
        let &[b, n] = &logits.shape[..] else {
            return Err(format!("logits must be f32 [rows, tokens], got {logits}"));
        };
        need("logits", logits, &Type::f32([b, n]))?;
        need("settings", settings, &Type::f32([b, 2]))?;
        need("key", key, &Type::i32([b, 4]))?;
        if n > MOST {
            return Err(format!("{n} tokens are too many: at most {MOST}"));
        }
        Ok(vec![Type::new(DType::I32, [b])])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let row = rule.factor(args[0].shape[0], FactorKind::Pass);
        for arg in args {
            let whole = rule.factor(arg.shape[1], FactorKind::Replicate);
            rule.operands.push(vec![vec![row], vec![whole]]);
        }
        rule.results = vec![vec![vec![row]]];
        rule
    }

    /// As of a softmax.
    fn flops(&self, args: &[&Type], _: &[&Type]) -> f64 {
        12.0 * args[0].elements() as f64
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Sample(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let n = args[0].ty.shape[1];
        let rows =
            args[0].data.chunks_exact(n).zip(args[1].data.chunks_exact(2)).zip(args[2].data.chunks_exact(4));
        let token = |((logits, settings), key): ((&[f64], &[f64]), &[f64])| {
            let draw =
                Draw::of(std::array::from_fn(|i| settings[i] as f32), std::array::from_fn(|i| key[i] as i32));
            f64::from(draw.choose(logits))
        };
        Ok(vec![Tensor::new(results[0].clone(), rows.map(token).collect())?])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::refused;
    use super::*;

    const LOGITS: [f64; 4] = [0.0, 2.0, 1.0, 2.0];
    const PLAIN: Draw = Draw { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 3, draw: 0 };

    /// How often each token comes in `n` draws.
    fn counts(draw: Draw, n: u32) -> [f64; 4] {
        let mut counts = [0.0; 4];
        (0..n).for_each(|i| counts[Draw { draw: i, ..draw }.choose(&LOGITS) as usize] += 1.0 / f64::from(n));
        counts
    }

    fn token(draw: Draw, logits: &[f32]) -> f64 {
        let args = [
            Tensor::new(Type::f32([1, logits.len()]), logits.iter().map(|&x| x.into()).collect()),
            Tensor::new(Type::f32([1, 2]), draw.settings().map(f64::from).to_vec()),
            Tensor::new(Type::i32([1, 4]), draw.key().map(f64::from).to_vec()),
        ]
        .map(Result::unwrap);
        let out = Op::Sample(Sample {}).eval(&args.each_ref(), &[&Type::i32([1])], At::default()).unwrap();
        out[0].data[0]
    }

    #[test]
    fn splitmix_of_its_authors() {
        // The first numbers of seed 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64").
        let found: Vec<u64> = (0..3).map(|i| random_bits(1_234_567, i)).collect();
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_eq!(target(10, u64::MAX), 9);
        assert_eq!(target(10, 1 << 63), 5);
        assert_eq!((weight(0.0), weight(-1e9), share(0.5, 7), share(1.0, 7)), (1 << 40, 0, 3, 7));
    }

    #[test]
    fn greedy_takes_the_first_of_equal_logits() {
        let greedy = Draw { temperature: 0.0, ..PLAIN };
        assert_eq!(token(greedy, &[0.0, 2.0, 1.0, 2.0]), 1.0);
        assert_eq!(token(greedy, &[0.0, f32::NAN]), -1.0);
        assert_eq!(token(PLAIN, &[f32::NEG_INFINITY; 2]), 0.0);
        assert_eq!(token(PLAIN, &[0.0, f32::INFINITY, f32::INFINITY]), 1.0);
        // A token without probability is never drawn.
        assert!((0..50).all(|draw| token(Draw { draw, ..PLAIN }, &[f32::NEG_INFINITY, 0.0]) == 1.0));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        for temperature in [0.5f32, 1.0, 2.0] {
            let weights = LOGITS.map(|l| (l / f64::from(temperature)).exp());
            let total: f64 = weights.iter().sum();
            let found = counts(Draw { temperature, ..PLAIN }, 40_000);
            for (f, w) in found.iter().zip(weights) {
                // The standard error is at most 0.0025.
                assert!((f - w / total).abs() < 0.012, "{found:?}");
            }
        }
    }

    #[test]
    fn top_p_and_top_k_keep_the_likeliest() {
        // Softmax: 0.054, 0.401, 0.147, 0.401: 0.5 needs tokens 1 and 3, 0.85 also token 2, 0.3 token 1 alone.
        let top = |top_p, top_k| counts(Draw { top_p, top_k, ..PLAIN }, 20_000);
        for one in [top(0.3, 0), top(1.0, 1), top(0.0, 0), top(f32::NAN, 0)] {
            assert_eq!(one, [0.0, one[1], 0.0, 0.0]);
        }
        for half in [top(0.5, 0), top(1.0, 2)] {
            assert!(half[0] == 0.0 && half[2] == 0.0 && (half[1] - 0.5).abs() < 0.02, "{half:?}");
        }
        for most in [top(0.85, 0), top(0.99, 3), top(1.0, 3)] {
            assert!(most[0] == 0.0 && (most[2] - 0.147 / 0.949).abs() < 0.02, "{most:?}");
        }
        // Of two tokens kept by top-k, 0.45 of their sum needs one.
        assert_eq!(top(0.45, 2)[1..], [top(0.45, 2)[1], 0.0, 0.0]);
        for all in [top(1.0, 4), top(1.0, -1), top(2.0, 9)] {
            assert!((all[0] - 0.0542).abs() < 0.01, "{all:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let types = [Type::f32([2, 9]), Type::f32([2, 2]), Type::i32([2, 4])];
        let with = |i: usize, ty: Type| {
            let mut types = types.clone();
            types[i] = ty;
            types
        };
        refused(Op::Sample(Sample {}), &with(0, Type::f32([9])), "[rows, tokens]");
        refused(Op::Sample(Sample {}), &with(0, Type::i32([2, 9])), "logits must be");
        refused(Op::Sample(Sample {}), &with(1, Type::f32([2, 3])), "settings must be");
        refused(Op::Sample(Sample {}), &with(2, Type::i32([1, 4])), "key must be");
        refused(Op::Sample(Sample {}), &with(0, Type::f32([2, MOST + 1])), "too many");
        assert!(Op::Sample(Sample {}).infer(&with(0, Type::f32([2, MOST])).each_ref()).is_ok());
        assert!(
            weight(0.0).checked_mul(MOST as u64).is_some()
                && weight(0.0).checked_mul(MOST as u64 + 1).is_none()
        );
    }
}
