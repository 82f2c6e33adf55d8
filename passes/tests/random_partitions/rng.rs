//! A small deterministic generator (splitmix64): the same seed gives the same graph everywhere.

/// The seeds to run: those that a variable of the environment names, `7` or `0..20000`.
pub fn seeds(variable: &str, all: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var(variable) else { return all };
    let number =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("{variable}={asked}: give 7 or 0..20000"));
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&asked)..number(&asked) + 1,
    }
}

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A number in `low..=high`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    pub fn shuffled<T: Clone>(&mut self, from: &[T]) -> Vec<T> {
        let mut out = from.to_vec();
        for i in (1..out.len()).rev() {
            out.swap(i, self.below(i + 1));
        }
        out
    }

    /// A number in -1..1 with few bits, so that sums are exact more often.
    pub fn number(&mut self) -> f64 {
        (self.below(255) as f64 - 127.0) / 128.0
    }
}
