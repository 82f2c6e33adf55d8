//! Linear biases of scores (ALiBi), in units of log2(e) as scores are.
//!
//! Weights do not depend on where positions are counted from: from the query on, the scores that matter are small and keep their digits.

use super::rows::Rows;
use super::simd::Simd;
use super::{Attention, Head};
use half::bf16;
use std::f32::consts::LOG2_E;

/// In bf16, as the nearest one.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    // With ties to even. Written out, because the half crate's own has branches that keep loops from being vectorised.
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

impl Attention<'_> {
    /// What [`Attention::add_bias`] needs to know of a row: the slope of its head, and what is taken off.
    ///
    /// # Safety
    /// The operands are valid.
    pub(super) unsafe fn slope(&self, head: Head, row: usize) -> (f32, f32) {
        let (Some(view), Some(operand)) = (&self.call.slopes, &self.slopes) else { return (0.0, 0.0) };
        let slopes = Rows::of(view, operand, &[head.head, 0], 1, 1);
        // SAFETY: the caller's promise.
        let slope = unsafe { slopes.load(0, row % self.dims.r) };
        let from = self.q_positions(head.batch).map_or(0, |p| {
            // SAFETY: the caller's promise.
            unsafe { p.load_i32(0, row / self.dims.r) }
        });
        // Differences of larger ones are not exact in f32.
        let exact = (-(1 << 23)..1 << 23).contains(&from);
        let from = if exact { from as f32 } else { 0.0 };
        if self.call.bf16_bias {
            let slope = bf16::from_f32(slope).to_f32();
            return (slope, nearest(slope * nearest(from)));
        }
        (slope * LOG2_E, from)
    }

    /// What biases that were rounded are multiplied by, if they are.
    fn rounded(&self) -> Option<f32> {
        self.call.bf16_bias.then_some((self.call.scale * std::f64::consts::LOG2_E) as f32)
    }

    /// Adds the biases to a row's scores of keys at `k_pos`.
    #[inline(always)]
    pub(super) fn add_bias(&self, scores: &mut [f32], k_pos: &[i32], (slope, from): (f32, f32)) {
        let scores = scores.iter_mut().zip(k_pos);
        match self.rounded() {
            None => scores.for_each(|(x, &k)| *x += slope * (k as f32 - from)),
            Some(scale) => {
                scores.for_each(|(x, &k)| *x += scale * (nearest(slope * nearest(k as f32)) - from));
            }
        }
    }

    /// The same for a register of rows: `score(j)` are their scores of the key at `k_pos[j]`.
    ///
    /// # Safety
    /// Each pointer is that of a register's floats, which no one else accesses, and the machine has V's instructions.
    #[inline(always)]
    pub(super) unsafe fn add_biases<V: Simd>(
        &self,
        score: impl Fn(usize) -> *mut f32,
        k_pos: &[i32],
        (slopes, from): (*const f32, *const f32),
    ) {
        let rounded = self.rounded();
        for (j, &k) in k_pos.iter().enumerate() {
            let (k, at) = (k as f32, score(j));
            // SAFETY: the caller's promise.
            unsafe {
                let Some(scale) = rounded else {
                    V::load(slopes).fma(V::splat(k).sub(V::load(from)), V::load(at)).store(at);
                    continue;
                };
                for lane in 0..V::LANES {
                    let bias = nearest(*slopes.add(lane) * nearest(k));
                    *at.add(lane) += scale * (bias - *from.add(lane));
                }
            }
        }
        assert!(nearest(f32::NAN).is_nan() && nearest(-f32::INFINITY) == -f32::INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of every exponent: numbers between neighbours, ties, and the neighbours themselves.
    #[test]
    fn nearest_is_that_of_the_half_crate() {
        for high in 0..0x7f80u32 {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(high << 16 | low);
                for x in [x, -x] {
                    assert_eq!(nearest(x).to_bits(), bf16::from_f32(x).to_f32().to_bits(), "{x}");
                }
            }
        }
    }
}
