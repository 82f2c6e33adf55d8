//! GGUF's quantised element types: blocks of integer codes with shared scales.
//!
//! Every type unpacks to the same form: groups of 16 or 32 neighbours of a row with a scale and, for some types, an
//! offset; the value of an element is `scale * code + offset`, rounded twice (no fused multiply-add), as the reference
//! implementation has it. Source of the layouts: ggml-common.h and ggml-quants.c of the ggml repository.

use half::f16;
use pcc_ir::source::{BlockFormat, BlockRows};

/// Elements of the largest block.
pub(super) const MAX_BLOCK: usize = 256;
/// Groups of the largest block.
const MAX_GROUPS: usize = 16;

/// A quantised type, named as GGUF names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the names of the format")]
pub enum Quantised {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
}

/// One block, unpacked. What lies behind the block's elements or groups is left as it was.
#[derive(Clone, Debug)]
pub(super) struct Unpacked {
    pub(super) codes: [i8; MAX_BLOCK],
    pub(super) scales: [f32; MAX_GROUPS],
    /// Only set for types with offsets.
    pub(super) offsets: [f32; MAX_GROUPS],
}

impl Default for Unpacked {
    fn default() -> Self {
        Self { codes: [0; MAX_BLOCK], scales: [0.0; MAX_GROUPS], offsets: [0.0; MAX_GROUPS] }
    }
}

impl Quantised {
    pub const ALL: [Quantised; 11] = [
        Quantised::Q4_0,
        Quantised::Q4_1,
        Quantised::Q5_0,
        Quantised::Q5_1,
        Quantised::Q8_0,
        Quantised::Q2_K,
        Quantised::Q3_K,
        Quantised::Q4_K,
        Quantised::Q5_K,
        Quantised::Q6_K,
        Quantised::Q8_K,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Quantised::Q4_0 => "Q4_0",
            Quantised::Q4_1 => "Q4_1",
            Quantised::Q5_0 => "Q5_0",
            Quantised::Q5_1 => "Q5_1",
            Quantised::Q8_0 => "Q8_0",
            Quantised::Q2_K => "Q2_K",
            Quantised::Q3_K => "Q3_K",
            Quantised::Q4_K => "Q4_K",
            Quantised::Q5_K => "Q5_K",
            Quantised::Q6_K => "Q6_K",
            Quantised::Q8_K => "Q8_K",
        }
    }

    /// Elements of a block and its bytes.
    pub fn block(self) -> (usize, usize) {
        match self {
            Quantised::Q4_0 => (32, 18),
            Quantised::Q4_1 => (32, 20),
            Quantised::Q5_0 => (32, 22),
            Quantised::Q5_1 => (32, 24),
            Quantised::Q8_0 => (32, 34),
            Quantised::Q2_K => (256, 84),
            Quantised::Q3_K => (256, 110),
            Quantised::Q4_K => (256, 144),
            Quantised::Q5_K => (256, 176),
            Quantised::Q6_K => (256, 210),
            Quantised::Q8_K => (256, 292),
        }
    }

    /// Neighbours that share a scale.
    pub fn group(self) -> usize {
        match self {
            Quantised::Q2_K | Quantised::Q3_K | Quantised::Q6_K => 16,
            Quantised::Q8_K => 256,
            _ => 32,
        }
    }

    /// Whether groups have an offset beside the scale.
    pub fn has_offsets(self) -> bool {
        matches!(
            self,
            Quantised::Q4_1 | Quantised::Q5_1 | Quantised::Q2_K | Quantised::Q4_K | Quantised::Q5_K
        )
    }

    /// How tensors of this type can be kept in memory, if without loss.
    pub fn format(self) -> Option<BlockFormat> {
        let (bits, low) = match self {
            Quantised::Q4_0 => (4, -8),
            Quantised::Q3_K => (4, -4),
            Quantised::Q4_1 | Quantised::Q2_K | Quantised::Q4_K => (4, 0),
            Quantised::Q5_0 | Quantised::Q5_1 | Quantised::Q8_0 | Quantised::Q5_K | Quantised::Q6_K => {
                (8, i8::MIN)
            }
            // Only ever an intermediate form of other tools.
            Quantised::Q8_K => return None,
        };
        // The scales of the larger blocks are products of two numbers.
        let half = self.block().0 == 32;
        Some(BlockFormat { group: self.group() as u32, bits, low, offsets: self.has_offsets(), half })
    }

    /// Copies groups from element `start` on, a multiple of the group, as many as `out` holds in one row. `None` when one lies
    /// outside `data`.
    pub(super) fn read_groups(self, data: &[u8], start: usize, out: &mut BlockRows<'_>) -> Option<()> {
        let (size, group) = (self.block().0, self.group());
        let mut block = Unpacked::default();
        let mut last = None;
        let scales = out.scales.iter_mut().zip(out.offsets.iter_mut());
        for (i, (codes, (scale, offset))) in out.codes.chunks_exact_mut(group).zip(scales).enumerate() {
            let at = start.checked_add(i.checked_mul(group)?)?;
            if last != Some(at / size) {
                self.unpack(data, at / size, &mut block)?;
                last = Some(at / size);
            }
            codes.copy_from_slice(block.codes.get(at % size..)?.get(..group)?);
            *scale = *block.scales.get(at % size / group)?;
            *offset = if self.has_offsets() { *block.offsets.get(at % size / group)? } else { 0.0 };
        }
        Some(())
    }

    /// Unpacks block number `index` of `data`; `None` when it lies outside.
    pub(super) fn unpack(self, data: &[u8], index: usize, out: &mut Unpacked) -> Option<()> {
        match self {
            Quantised::Q4_0 => q4_0(nth(data, index)?, out),
            Quantised::Q4_1 => q4_1(nth(data, index)?, out),
            Quantised::Q5_0 => q5_0(nth(data, index)?, out),
            Quantised::Q5_1 => q5_1(nth(data, index)?, out),
            Quantised::Q8_0 => q8_0(nth(data, index)?, out),
            Quantised::Q2_K => q2_k(nth(data, index)?, out),
            Quantised::Q3_K => q3_k(nth(data, index)?, out),
            Quantised::Q4_K => q4_k(nth(data, index)?, out),
            Quantised::Q5_K => q5_k(nth(data, index)?, out),
            Quantised::Q6_K => q6_k(nth(data, index)?, out),
            Quantised::Q8_K => q8_k(nth(data, index)?, out),
        }
        Some(())
    }

    /// Values of block number `index`; what `out` has beyond the block is left as it was.
    fn values(
        self,
        data: &[u8],
        index: usize,
        block: &mut Unpacked,
        out: &mut [f32; MAX_BLOCK],
    ) -> Option<()> {
        self.unpack(data, index, block)?;
        let group = self.group();
        let groups = out.chunks_exact_mut(group).zip(block.codes.chunks_exact(group));
        let scaled = groups.zip(block.scales.iter().zip(&block.offsets)).take(self.block().0 / group);
        for ((out, codes), (&scale, &offset)) in scaled {
            if self.has_offsets() {
                out.iter_mut().zip(codes).for_each(|(v, &q)| *v = scale * f32::from(q) + offset);
            } else {
                out.iter_mut().zip(codes).for_each(|(v, &q)| *v = scale * f32::from(q));
            }
        }
        Some(())
    }

    /// Decodes the elements `start`, `start + stride`, ..., as many as `out` holds; `None` when one lies outside.
    pub(super) fn decode(self, data: &[u8], start: usize, stride: usize, out: &mut [f32]) -> Option<()> {
        let size = self.block().0;
        let (mut block, mut values) = (Unpacked::default(), [0.0; MAX_BLOCK]);
        if stride == 1 {
            let (mut at, mut rest) = (start, out);
            while !rest.is_empty() {
                self.values(data, at / size, &mut block, &mut values)?;
                let (part, after) = rest.split_at_mut(rest.len().min(size - at % size));
                part.copy_from_slice(values.get(at % size..)?.get(..part.len())?);
                at = at.checked_add(part.len())?;
                rest = after;
            }
            return Some(());
        }
        // Strided reads are rare and short (one column of a matrix, a permuted bias): a block per element, unless it
        // is the one just unpacked.
        let mut last = None;
        for (i, v) in out.iter_mut().enumerate() {
            let element = start.checked_add(i.checked_mul(stride)?)?;
            if last != Some(element / size) {
                self.values(data, element / size, &mut block, &mut values)?;
                last = Some(element / size);
            }
            *v = *values.get(element % size)?;
        }
        Some(())
    }
}

fn nth<const N: usize>(data: &[u8], index: usize) -> Option<&[u8; N]> {
    data.as_chunks::<N>().0.get(index)
}

fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// The 4-bit codes of 32 elements: the low nibbles of 16 bytes are elements 0..16, the high ones 16..32.
fn nibbles(bytes: &[u8; 16], out: &mut Unpacked, code: impl Fn(usize, u8) -> i8) {
    let (low, rest) = out.codes.split_at_mut(16);
    for (i, ((&byte, l), h)) in bytes.iter().zip(low).zip(rest).enumerate() {
        *l = code(i, byte & 0xF);
        *h = code(16 + i, byte >> 4);
    }
}

/// d, 32 x 4 bits; value d * (q - 8).
fn q4_0(&[d0, d1, ref codes @ ..]: &[u8; 18], out: &mut Unpacked) {
    out.scales[0] = half(d0, d1);
    nibbles(codes, out, |_, q| q as i8 - 8);
}

/// d, m, 32 x 4 bits; value d * q + m.
fn q4_1(&[d0, d1, m0, m1, ref codes @ ..]: &[u8; 20], out: &mut Unpacked) {
    (out.scales[0], out.offsets[0]) = (half(d0, d1), half(m0, m1));
    nibbles(codes, out, |_, q| q as i8);
}

/// d, the fifth bits of 32 elements, 32 x 4 bits; value d * (q - 16).
fn q5_0(&[d0, d1, h0, h1, h2, h3, ref codes @ ..]: &[u8; 22], out: &mut Unpacked) {
    out.scales[0] = half(d0, d1);
    let high = u32::from_le_bytes([h0, h1, h2, h3]);
    nibbles(codes, out, |i, q| (q | ((high >> i & 1) << 4) as u8) as i8 - 16);
}

/// d, m, the fifth bits, 32 x 4 bits; value d * q + m.
fn q5_1(&[d0, d1, m0, m1, h0, h1, h2, h3, ref codes @ ..]: &[u8; 24], out: &mut Unpacked) {
    (out.scales[0], out.offsets[0]) = (half(d0, d1), half(m0, m1));
    let high = u32::from_le_bytes([h0, h1, h2, h3]);
    nibbles(codes, out, |i, q| (q | ((high >> i & 1) << 4) as u8) as i8);
}

/// d, 32 x i8; value d * q.
fn q8_0(&[d0, d1, ref codes @ ..]: &[u8; 34], out: &mut Unpacked) {
    out.scales[0] = half(d0, d1);
    out.codes.iter_mut().zip(codes).for_each(|(o, &q)| *o = q as i8);
}

/// Two bits of each of 256 elements in 64 bytes: per half of the block four rows of 32, in the bits from 2 row on.
fn pairs(bytes: &[u8], out: &mut [i8; MAX_BLOCK]) {
    for (half, bytes) in out.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (row, codes) in half.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(q, &b)| *q = (b >> (2 * row) & 3) as i8);
        }
    }
}

/// 16 x (4 bits scale, 4 bits minimum), 256 x 2 bits, d, dmin; groups of 16, value (d * scale) * q - dmin * minimum.
fn q2_k(block: &[u8; 84], out: &mut Unpacked) {
    let (scales, rest) = block.split_at(16);
    let (codes, rest) = rest.split_at(64);
    let (d, dmin) = (half(rest[0], rest[1]), half(rest[2], rest[3]));
    for ((&s, scale), offset) in scales.iter().zip(&mut out.scales).zip(&mut out.offsets) {
        *scale = d * f32::from(s & 0xF);
        *offset = -(dmin * f32::from(s >> 4));
    }
    pairs(codes, &mut out.codes);
}

/// The third bits of 256 elements, 256 x 2 bits, 16 x 6 bits scale, d; groups of 16, value (d * (scale - 32)) * (q - 4).
fn q3_k(block: &[u8; 110], out: &mut Unpacked) {
    let (high, rest) = block.split_at(32);
    let (codes, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(12);
    let d = half(d[0], d[1]);
    for (i, scale) in out.scales.iter_mut().enumerate() {
        let low = scales[i % 8] >> (4 * (i / 8)) & 0xF;
        let top = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        *scale = d * f32::from((low | top << 4) as i8 - 32);
    }
    pairs(codes, &mut out.codes);
    for (row, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        // A bit that is not set takes four away.
        codes.iter_mut().zip(high).for_each(|(q, &h)| *q -= 4 * (1 - (h >> row & 1) as i8));
    }
}

/// The eight 6-bit scales and minimums of 12 bytes, times d and -dmin.
fn six_bit_scales(head: &[u8; 16], out: &mut Unpacked) {
    let (d, dmin) = (half(head[0], head[1]), half(head[2], head[3]));
    let (low, rest) = head[4..].split_at(4);
    let (middle, high) = rest.split_at(4);
    for i in 0..4 {
        let (a, b, c) = (low[i], middle[i], high[i]);
        out.scales[i] = d * f32::from(a & 63);
        out.offsets[i] = -(dmin * f32::from(b & 63));
        out.scales[4 + i] = d * f32::from(c & 0xF | a >> 6 << 4);
        out.offsets[4 + i] = -(dmin * f32::from(c >> 4 | b >> 6 << 4));
    }
}

/// Four times 64 elements of 4 bits in 32 bytes: the low nibbles, then the high ones.
fn rows_of_nibbles(bytes: &[u8], out: &mut [i8; MAX_BLOCK]) {
    for (codes, bytes) in out.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        let (low, high) = codes.split_at_mut(32);
        for ((l, h), &byte) in low.iter_mut().zip(high).zip(bytes) {
            *l = (byte & 0xF) as i8;
            *h = (byte >> 4) as i8;
        }
    }
}

/// d, dmin, 8 x (6 bits scale, 6 bits minimum), 256 x 4 bits; groups of 32, value (d * scale) * q - dmin * minimum.
fn q4_k(block: &[u8; 144], out: &mut Unpacked) {
    if let Some((head, codes)) = block.split_first_chunk() {
        six_bit_scales(head, out);
        rows_of_nibbles(codes, &mut out.codes);
    }
}

/// As Q4_K, with the fifth bits of 256 elements before the others.
fn q5_k(block: &[u8; 176], out: &mut Unpacked) {
    if let Some((head, rest)) = block.split_first_chunk() {
        let (high, codes) = rest.split_at(32);
        six_bit_scales(head, out);
        rows_of_nibbles(codes, &mut out.codes);
        for (row, codes) in out.codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(high).for_each(|(q, &h)| *q |= ((h >> row & 1) << 4) as i8);
        }
    }
}

/// The low four bits, then the high two of 256 elements, 16 x i8 scale, d; groups of 16, value (d * scale) * (q - 32).
fn q6_k(block: &[u8; 210], out: &mut Unpacked) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let d = half(d[0], d[1]);
    out.scales.iter_mut().zip(scales).for_each(|(o, &s)| *o = d * f32::from(s as i8));
    pairs(high, &mut out.codes);
    for (half, low) in out.codes.chunks_exact_mut(128).zip(low.chunks_exact(64)) {
        let (first, second) = half.split_at_mut(64);
        for ((a, b), &byte) in first.iter_mut().zip(second).zip(low) {
            *a = (*a << 4 | (byte & 0xF) as i8) - 32;
            *b = (*b << 4 | (byte >> 4) as i8) - 32;
        }
    }
}

/// d as f32, 256 x i8, sums that products of codes would use; value d * q.
fn q8_k(block: &[u8; 292], out: &mut Unpacked) {
    let (d, codes) = block.split_at(4);
    out.scales[0] = f32::from_le_bytes([d[0], d[1], d[2], d[3]]);
    out.codes.iter_mut().zip(codes).for_each(|(o, &q)| *o = q as i8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(kind: Quantised, data: &[u8], start: usize, stride: usize, len: usize) -> Option<Vec<f32>> {
        let mut out = vec![0.0; len];
        kind.decode(data, start, stride, &mut out).map(|()| out)
    }

    #[test]
    fn blocks_by_hand() {
        // Scale 0.5 (0x3800); q = 0, 1, 2, ... -1 at the end.
        let mut q8 = vec![0x00, 0x38];
        q8.extend((0..31u8).chain([0xFF]));
        let expected: Vec<f32> = (0..31).map(|i| i as f32 * 0.5).chain([-0.5]).collect();
        assert_eq!(decode(Quantised::Q8_0, &q8, 0, 1, 32).unwrap(), expected);
        // Byte j holds code j % 16 low and 15 - j high: elements j and 16 + j.
        let codes: Vec<u8> = (0..16u8).map(|j| j | (15 - j) << 4).collect();
        let code = |i: usize| if i < 16 { i as f32 } else { (31 - i) as f32 };
        let q40 = [&[0x00, 0x40][..], &codes].concat(); // scale 2
        let expected: Vec<f32> = (0..32).map(|i| 2.0 * (code(i) - 8.0)).collect();
        assert_eq!(decode(Quantised::Q4_0, &q40, 0, 1, 32).unwrap(), expected);
        let q41 = [&[0x00, 0x38, 0x00, 0xC0][..], &codes].concat(); // scale 0.5, minimum -2
        let expected: Vec<f32> = (0..32).map(|i| 0.5 * code(i) - 2.0).collect();
        assert_eq!(decode(Quantised::Q4_1, &q41, 0, 1, 32).unwrap(), expected);
        // Scale 0.25 as f32, codes 127 and -128 in turn, sums that must not matter.
        let mut q8k = 0.25f32.to_le_bytes().to_vec();
        q8k.extend((0..256).map(|i| if i % 2 == 0 { 127 } else { 0x80 }));
        q8k.extend([0xAA; 32]);
        let expected: Vec<f32> = (0..256).map(|i| if i % 2 == 0 { 31.75 } else { -32.0 }).collect();
        assert_eq!(decode(Quantised::Q8_K, &q8k, 0, 1, 256).unwrap(), expected);
    }

    #[test]
    fn parts_of_blocks_and_steps() {
        // Three blocks with scales 1, 2, 4 and codes 0..32.
        let data: Vec<u8> = [[0x00, 0x3C], [0x00, 0x40], [0x00, 0x44]]
            .iter()
            .flat_map(|d| d.iter().copied().chain(0..32u8).collect::<Vec<u8>>())
            .collect();
        let value = |i: usize| (1 << (i / 32)) as f32 * (i % 32) as f32;
        for (start, stride, len) in [(0, 1, 96), (5, 1, 3), (30, 1, 40), (31, 1, 1), (32, 1, 64), (33, 1, 20)]
        {
            let expected: Vec<f32> = (0..len).map(|i| value(start + i * stride)).collect();
            assert_eq!(
                decode(Quantised::Q8_0, &data, start, stride, len).unwrap(),
                expected,
                "{start} {len}"
            );
        }
        assert_eq!(decode(Quantised::Q8_0, &data, 3, 31, 3).unwrap(), [value(3), value(34), value(65)]);
        assert_eq!(decode(Quantised::Q8_0, &data, 7, 0, 2).unwrap(), [7.0, 7.0]);
    }

    #[test]
    fn outside_is_none() {
        for kind in Quantised::ALL {
            let (per, bytes) = kind.block();
            assert_eq!(per % kind.group(), 0);
            let data = vec![0; bytes];
            assert!(decode(kind, &data, 0, 1, per).is_some());
            assert!(decode(kind, &data, 0, 1, per + 1).is_none());
            assert!(decode(kind, &data, per, 1, 1).is_none());
            assert!(decode(kind, &data, 0, per, 2).is_none());
            assert!(decode(kind, &data, 0, usize::MAX, 3).is_none());
            assert!(decode(kind, &data, usize::MAX, 1, 2).is_none());
        }
    }
}
