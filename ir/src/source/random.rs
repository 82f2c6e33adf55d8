//! Noise for parameters of models without weights: every element is a function of (seed, name, index).

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Approximately normal values with mean 0 and standard deviation `scale`.
///
/// The value of an element depends on nothing but `(seed, name, global row-major index)`, so any slice on any
/// mesh sees the same values. With `mix` the finaliser of SplitMix64 (Steele, Lea, Flood 2014) and all integers
/// wrapping in 64 bits:
///
/// ```text
/// key   = mix(seed ^ mix(fnv1a64(name)))
/// bits  = mix(key + (index + 1) * 0x9E3779B97F4A7C15)      the SplitMix64 stream started at `key`
/// sum   = the four 16-bit parts of `bits`, added           mean 131070, variance (2^32 - 1) / 3
/// value = (sum - 131070) * (scale / sqrt((2^32 - 1) / 3))
/// ```
///
/// A sum of four uniforms has the mean and variance of the normal, an excess kurtosis of -0.3 and no value
/// beyond 3.47 standard deviations. It needs no logarithm or cosine, so every platform makes the same bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Random {
    pub seed: u64,
    /// Keeps the parameters of one model apart; usually the parameter's name.
    pub name: String,
    /// Standard deviation.
    pub scale: f32,
}

impl Random {
    /// The key of the parameter's stream.
    fn key(&self) -> u64 {
        mix(self.seed ^ mix(fnv1a64(self.name.as_bytes())))
    }

    /// The factor from the centred sum to the value.
    fn factor(&self) -> f32 {
        (f64::from(self.scale) / ((((1u64 << 32) - 1) as f64) / 3.0).sqrt()) as f32
    }

    /// The element at a global row-major index.
    pub fn value(&self, index: u64) -> f32 {
        element(self.key(), self.factor(), index)
    }

    /// Fills `out`, row-major over the slice of a tensor of `shape`. The slice was checked by the caller.
    pub(super) fn fill(&self, shape: &[usize], slice: &[Range<usize>], out: &mut [f32]) {
        let (key, factor) = (self.key(), self.factor());
        let Some((inner, outer)) = slice.split_last() else {
            out.fill(element(key, factor, 0));
            return;
        };
        let row = inner.end - inner.start;
        if row == 0 || out.is_empty() {
            return;
        }
        for (r, values) in out.chunks_exact_mut(row).enumerate() {
            // The global index of the row's first element, from its position in the slice.
            let (mut rest, mut stride, mut index) = (r, 1usize, inner.start);
            for (d, range) in outer.iter().enumerate().rev() {
                stride *= shape[d + 1];
                let extent = range.end - range.start;
                index += (range.start + rest % extent) * stride;
                rest /= extent;
            }
            for (i, v) in values.iter_mut().enumerate() {
                *v = element(key, factor, (index + i) as u64);
            }
        }
    }
}

fn element(key: u64, factor: f32, index: u64) -> f32 {
    let bits = mix(key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let sum = (bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48);
    (sum as i32 - 131_070) as f32 * factor
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParamSource;

    #[test]
    fn parts_have_published_values() {
        // SplitMix64 from state 0 and FNV-1a of "a", as their authors publish them.
        assert_eq!(mix(0x9E37_79B9_7F4A_7C15), 0xE220_A839_7B1D_CDAF);
        assert_eq!(fnv1a64(b"a"), 0xAF63_DC4C_8601_EC8C);
    }

    #[test]
    fn values_match_the_documented_formula() {
        // From Python integers, following the formula in the documentation of `Random`.
        let r = Random { seed: 42, name: "model.layers.0.w".into(), scale: 1.0 };
        let factor = (1.0f64 / (4294967295.0f64 / 3.0).sqrt()) as f32;
        let expected = PYTHON_SUMS.map(|s| (s - 131_070) as f32 * factor);
        assert_eq!([0u64, 1, 2, 3, 1_000_000_007].map(|i| r.value(i)), expected);
    }

    const PYTHON_SUMS: [i32; 5] = [144_239, 105_089, 140_132, 87_579, 98_664];

    #[test]
    fn moments_are_those_of_the_normal() {
        let n = 1 << 18;
        let mut out = vec![0.0; n];
        ParamSource::random([n], 3, "w", 0.5).fill(&vec![0..n; 1], &mut out).unwrap();
        let moment = |p: i32| out.iter().map(|&v| f64::from(v).powi(p)).sum::<f64>() / n as f64;
        // Standard errors at n = 2^18: mean 0.001, variance 0.0006; bounds are five of them.
        assert!(moment(1).abs() < 5e-3, "{}", moment(1));
        assert!((moment(2) - 0.25).abs() < 3e-3, "{}", moment(2));
        // Kurtosis of a sum of four uniforms: 3 - 6/5/4 = 2.7.
        assert!((moment(4) / moment(2).powi(2) - 2.7).abs() < 0.05, "{}", moment(4));
        let lag = out.windows(2).map(|w| f64::from(w[0] * w[1])).sum::<f64>() / n as f64;
        assert!(lag.abs() < 3e-3, "neighbours correlate: {lag}");
    }

    #[test]
    fn slices_agree_with_the_whole() {
        let source = ParamSource::random([4, 5, 6], 9, "w", 1.0);
        let mut whole = vec![0.0; 120];
        source.fill(&[0..4, 0..5, 0..6], &mut whole).unwrap();
        let mut part = vec![0.0; 2 * 3 * 4];
        source.fill(&[1..3, 2..5, 1..5], &mut part).unwrap();
        for (i, v) in part.iter().enumerate() {
            let (a, b, c) = (1 + i / 12, 2 + i / 4 % 3, 1 + i % 4);
            assert_eq!(*v, whole[(a * 5 + b) * 6 + c]);
        }
        let mut scalar = [0.0];
        ParamSource::random([], 9, "w", 1.0).fill(&[], &mut scalar).unwrap();
        assert_eq!(scalar[0], whole[0]);
    }

    #[test]
    fn names_and_seeds_differ() {
        let v = |seed, name: &str| Random { seed, name: name.into(), scale: 1.0 }.value(0);
        assert_ne!(v(1, "a"), v(2, "a"));
        assert_ne!(v(1, "a"), v(1, "b"));
    }
}
