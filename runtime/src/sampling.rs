//! Chooses a token from logits.

use pcc_ir::Diagnostic;
use pcc_ir::ops::TopK;
use pcc_ir::ops::sample::{Draw, random_bits, share, target, weight};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token; otherwise logits are divided by it.
    pub temperature: f32,
    /// Tokens are drawn from the fewest likeliest ones that make up this probability; 1 means from all.
    pub top_p: f32,
    /// Tokens are drawn from this many likeliest ones, before top-p counts; 0 means from all.
    pub top_k: u32,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 }
    }
}

impl Sampling {
    /// Refuses settings that mean nothing.
    ///
    /// # Errors
    /// A temperature that is negative or not finite, a top-p outside `(0, 1]`.
    pub(crate) fn check(&self) -> Result<(), Diagnostic> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(Diagnostic::input(format!("temperature {} is not 0 or more", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Diagnostic::input(format!("top-p {} is not above 0 and at most 1", self.top_p)));
        }
        Ok(())
    }

    /// A row's `step`th draw: it depends on the logits, the settings and `step` alone, so that a row gets the same tokens alone and in a batch.
    pub(crate) fn draw(&self, step: u32) -> Draw {
        let top_k = i32::try_from(self.top_k).unwrap_or(i32::MAX);
        Draw { temperature: self.temperature, top_p: self.top_p, top_k, seed: self.seed, draw: step }
    }
}

/// The token of [`pcc_ir::ops::Sample`] for a row of logits; `None` where one is NaN, or there are none.
pub(crate) fn choose(logits: &[f32], draw: &Draw) -> Option<u32> {
    if logits.iter().any(|l| l.is_nan()) {
        return None;
    }
    let best = (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best })?;
    // NaN is no temperature either.
    let drawn = draw.temperature > 0.0 && logits[best].is_finite();
    if !drawn {
        return Some(best as u32);
    }
    let (top, temperature) = (f64::from(logits[best]), f64::from(draw.temperature));
    let weigh = |i: usize| weight((f64::from(logits[i]) - top) / temperature);
    let order = |a: &usize, b: &usize| TopK::order((logits[*a].into(), *a), (logits[*b].into(), *b));
    let mut kept: Vec<usize> = (0..logits.len()).collect();
    let top_k = usize::try_from(draw.top_k).unwrap_or(0);
    if (1..kept.len()).contains(&top_k) {
        kept.select_nth_unstable_by(top_k - 1, order);
        kept.truncate(top_k);
        kept.sort_unstable();
    }
    let mut weights: Vec<u64> = kept.iter().map(|&i| weigh(i)).collect();
    let total: u64 = weights.iter().sum();
    if draw.top_p < 1.0 || draw.top_p.is_nan() {
        kept = likeliest(&kept, &weights, order, share(draw.top_p, total), total);
        kept.sort_unstable();
        weights = kept.iter().map(|&i| weigh(i)).collect();
    }
    let target = target(weights.iter().sum(), random_bits(draw.seed, draw.draw.into()));
    let mut running = 0;
    let passes = |w: &u64| {
        running += w;
        running > target
    };
    // invariant: the weight of the largest is not 0, so the sum is more than the target.
    let at = weights.iter().position(passes)?;
    Some(kept[at] as u32)
}

/// The fewest likeliest of `kept` whose weights, of `total`, sum to `need`; one at least.
fn likeliest(
    kept: &[usize],
    weights: &[u64],
    order: impl Fn(&usize, &usize) -> std::cmp::Ordering,
    need: u64,
    total: u64,
) -> Vec<usize> {
    // Tokens below this bound make up at most `total - need` together: the others are enough, and those need no sorting.
    let bound = (total - need.min(total)) / kept.len().max(1) as u64;
    let mut likely: Vec<(usize, u64)> =
        kept.iter().copied().zip(weights.iter().copied()).filter(|&(_, w)| w >= bound).collect();
    likely.sort_unstable_by(|a, b| order(&a.0, &b.0));
    let (mut sum, mut count) = (0, 0);
    while count < likely.len() && (count == 0 || sum < need) {
        sum += likely[count].1;
        count += 1;
    }
    likely[..count].iter().map(|l| l.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::eval::{At, Tensor};
    use pcc_ir::ops::{Op, Sample};
    use pcc_ir::types::Type;

    fn defined(logits: &[f32], draw: &Draw) -> f64 {
        let args = [
            Tensor::new(Type::f32([1, logits.len()]), logits.iter().map(|&x| x.into()).collect()),
            Tensor::new(Type::f32([1, 2]), draw.settings().map(f64::from).to_vec()),
            Tensor::new(Type::i32([1, 4]), draw.key().map(f64::from).to_vec()),
        ]
        .map(Result::unwrap);
        let out = Op::Sample(Sample {}).eval(&args.each_ref(), &[&Type::i32([1])], At::default());
        out.unwrap()[0].data[0]
    }

    #[test]
    fn the_token_is_the_one_defined() {
        let mut state = 1u64;
        let mut next = || {
            state = random_bits(state, 0);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        for round in 0..600u32 {
            let n = [1, 2, 7, 300][round as usize % 4];
            // Coarse, so that there are ties.
            let mut logits: Vec<f32> = (0..n).map(|_| (next() * 24.0).floor() / 3.0 - 4.0).collect();
            if round % 7 == 0 {
                logits[n / 2] = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0][round as usize / 7 % 4];
            }
            let temperature = [0.0, 0.3, 1.0, 2.0][(next() * 4.0) as usize];
            let top_p = [1.0, 0.9, 0.5, 1e-6][(next() * 4.0) as usize];
            let top_k = [0, 1, 3, 50][(next() * 4.0) as usize];
            let draw =
                Sampling { temperature, top_p, top_k, seed: u64::MAX / 3 + u64::from(round) }.draw(round);
            let found = choose(&logits, &draw).map_or(-1.0, f64::from);
            assert_eq!(found, defined(&logits, &draw), "{draw:?} of {logits:?}");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equal_logits() {
        let greedy = Sampling::default().draw(7);
        assert_eq!(choose(&[0.0, 2.0, 1.0, 2.0], &greedy), Some(1));
        assert_eq!(choose(&[0.0, f32::NAN], &greedy), None);
        assert_eq!(choose(&[], &greedy), None);
    }

    #[test]
    fn settings_without_meaning_are_refused() {
        for (temperature, top_p) in
            [(-1.0, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 0.0), (1.0, 1.5)]
        {
            assert!(Sampling { temperature, top_p, ..Sampling::default() }.check().is_err());
        }
    }
}
