//! Attention with linear biases (Press, Smith and Lewis, 2022): a slope for each head.

/// Slopes of so many heads, in their order: `2^(-8 i / n)` for i from 1 when n is a power of two. Other counts take the slopes of the power
/// of two below, then every other one of those of the power of two above.
pub fn slopes(heads: usize) -> Vec<f64> {
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let slope = |i: usize, n: usize| (-8.0 * i as f64 / n as f64).exp2();
    let more = (0..heads.saturating_sub(below)).map(|i| slope(2 * i + 1, 2 * below));
    (1..=below).map(|i| slope(i, below)).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's numbers for 8 heads; 12 heads as its reference code has them.
    #[test]
    fn slopes_are_the_papers() {
        let eight: Vec<f64> = (1..=8).map(|i| 0.5f64.powi(i)).collect();
        assert_eq!(slopes(8), eight);
        let twelve: Vec<f64> =
            eight.into_iter().chain([0.5, 1.5, 2.5, 3.5].map(|i: f64| (-i).exp2())).collect();
        let off = slopes(12).iter().zip(&twelve).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-15 && slopes(12).len() == 12, "{:?}", slopes(12));
        assert_eq!(slopes(1), [2f64.powi(-8)]);
        assert_eq!(slopes(112).len(), 112);
    }
}
