//! Chooses a token from logits.

use pcc_ir::Diagnostic;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token; otherwise logits are divided by it.
    pub temperature: f32,
    /// Tokens are drawn from the fewest likeliest ones that make up this probability; 1 means from all.
    pub top_p: f32,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0, seed: 0 }
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

    /// The token for a row's `step`th draw. It depends on the logits, the settings and `step` alone, so that a row gets the same
    /// tokens alone and in a batch. Of equal logits the token with the lowest number counts as likelier.
    ///
    /// # Errors
    /// The logits are empty or one is NaN.
    pub(crate) fn choose(&self, logits: &[f32], step: u64) -> Result<u32, Diagnostic> {
        if let Some(token) = logits.iter().position(|l| l.is_nan()) {
            return Err(Diagnostic::run(format!("the model gives NaN for token {token}")));
        }
        let best = (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best });
        let Some(best) = best else { return Err(Diagnostic::run("the model gives no logits")) };
        if self.temperature == 0.0 || !logits[best].is_finite() {
            return Ok(best as u32);
        }
        let (top, temperature) = (f64::from(logits[best]), f64::from(self.temperature));
        let weights: Vec<f64> = logits.iter().map(|&l| ((f64::from(l) - top) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        Ok(self.draw(&weights, total, uniform(self.seed, step)) as u32)
    }

    /// The index drawn by a `uniform` number in `[0, 1)`.
    fn draw(&self, weights: &[f64], total: f64, uniform: f64) -> usize {
        if self.top_p >= 1.0 {
            return pick(0..weights.len(), weights, total * uniform);
        }
        let top_p = f64::from(self.top_p);
        // Tokens below this bound make up less than 1 - top-p together: they are never among the likeliest, and need no sorting.
        let bound = total * (1.0 - top_p) / weights.len() as f64;
        let mut likely: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] >= bound).collect();
        likely.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
        let mut kept = 0.0;
        let mut count = 0;
        while count < likely.len() && (count == 0 || kept < top_p * total) {
            kept += weights[likely[count]];
            count += 1;
        }
        pick(likely[..count].iter().copied(), weights, kept * uniform)
    }
}

/// The first index at which the running sum of weights passes `target`; the last one if rounding keeps it from doing so.
fn pick(indices: impl Iterator<Item = usize>, weights: &[f64], target: f64) -> usize {
    let (mut sum, mut last) = (0.0, 0);
    for i in indices {
        sum += weights[i];
        if weights[i] > 0.0 {
            last = i;
        }
        if sum > target {
            return i;
        }
    }
    last
}

/// Number `step` of the SplitMix64 stream of `seed` (Steele, Lea, Flood 2014), its upper 53 bits as a fraction in `[0, 1)`.
fn uniform(seed: u64, step: u64) -> f64 {
    let mut z = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, 2.0];

    /// How often each token comes in `n` draws.
    fn counts(sampling: Sampling, n: u64) -> [f64; 4] {
        let mut counts = [0.0; 4];
        (0..n).for_each(|step| counts[sampling.choose(&LOGITS, step).unwrap() as usize] += 1.0 / n as f64);
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_equal_logits() {
        assert_eq!(Sampling::default().choose(&LOGITS, 7).unwrap(), 1);
        assert!(Sampling::default().choose(&[0.0, f32::NAN], 0).is_err());
        assert!(Sampling::default().choose(&[], 0).is_err());
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        for temperature in [0.5f32, 1.0, 2.0] {
            let weights = LOGITS.map(|l| (f64::from(l) / f64::from(temperature)).exp());
            let total: f64 = weights.iter().sum();
            let found = counts(Sampling { temperature, top_p: 1.0, seed: 3 }, 40_000);
            for (f, w) in found.iter().zip(weights) {
                // The standard error is at most 0.0025.
                assert!((f - w / total).abs() < 0.012, "{found:?}");
            }
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_likeliest() {
        // Softmax: 0.054, 0.401, 0.147, 0.401: 0.5 needs tokens 1 and 3, 0.85 also token 2, 0.3 token 1 alone.
        let top = |top_p| counts(Sampling { temperature: 1.0, top_p, seed: 5 }, 20_000);
        let one = top(0.3);
        assert!(one[0] == 0.0 && one[2] == 0.0 && one[3] == 0.0);
        let half = top(0.5);
        assert!(half[0] == 0.0 && half[2] == 0.0 && (half[1] - 0.5).abs() < 0.02);
        let most = top(0.85);
        assert!(most[0] == 0.0 && (most[2] - 0.147 / 0.949).abs() < 0.02, "{most:?}");
    }

    #[test]
    fn settings_without_meaning_are_refused() {
        for (temperature, top_p) in
            [(-1.0, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 0.0), (1.0, 1.5)]
        {
            assert!(Sampling { temperature, top_p, seed: 0 }.check().is_err());
        }
    }
}
