//! Element types of stored tensors and how their bytes become f32.

use half::{bf16, f16};
use std::borrow::Cow;
use std::fmt;

/// Elements of one block of the quantised types: 32 neighbours of a row share a scale.
const BLOCK: usize = 32;

/// How a file stores the elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F16,
    BF16,
    /// GGUF: f16 scale d, 32 x i8 q; value d * q. 34 bytes.
    Q8_0,
    /// GGUF: f16 scale d, 32 x 4 bits q; value d * (q - 8). 18 bytes, low nibbles first.
    Q4_0,
    /// GGUF: f16 scale d, f16 minimum m, 32 x 4 bits q; value d * q + m. 20 bytes, low nibbles first.
    Q4_1,
    /// A type this reader knows of but does not decode; harmless unless the model uses the tensor.
    Other {
        name: Cow<'static, str>,
        /// Elements a block holds and its bytes; `None` when the size is unknown too.
        block: Option<(usize, usize)>,
    },
}

impl ElementType {
    pub fn name(&self) -> &str {
        match self {
            ElementType::F32 => "F32",
            ElementType::F16 => "F16",
            ElementType::BF16 => "BF16",
            ElementType::Q8_0 => "Q8_0",
            ElementType::Q4_0 => "Q4_0",
            ElementType::Q4_1 => "Q4_1",
            ElementType::Other { name, .. } => name,
        }
    }

    /// Elements of a block and its bytes, if known.
    pub fn block(&self) -> Option<(usize, usize)> {
        match self {
            ElementType::F32 => Some((1, 4)),
            ElementType::F16 | ElementType::BF16 => Some((1, 2)),
            ElementType::Q8_0 => Some((BLOCK, 34)),
            ElementType::Q4_0 => Some((BLOCK, 18)),
            ElementType::Q4_1 => Some((BLOCK, 20)),
            ElementType::Other { block, .. } => *block,
        }
    }

    /// Bytes of a tensor of this shape (outermost first), or why there is no such tensor.
    pub(super) fn bytes(&self, shape: &[usize]) -> Result<usize, String> {
        let Some((per_block, block_bytes)) = self.block() else {
            return Err(format!("the size of a {} element is not known", self.name()));
        };
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(per_block) {
            return Err(format!(
                "its rows of {row} are not whole blocks of {per_block} {} elements",
                self.name()
            ));
        }
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        elements
            .and_then(|n| (n / per_block).checked_mul(block_bytes))
            .ok_or_else(|| format!("the size of a {} tensor of shape {shape:?} overflows", self.name()))
    }

    /// Decodes the elements `start`, `start + stride`, ... of `data`, as many as `out` holds. `None` when one lies
    /// outside `data` or the type is not decoded.
    pub(super) fn decode(&self, data: &[u8], start: usize, stride: usize, out: &mut [f32]) -> Option<()> {
        match self {
            ElementType::F32 => decode_plain(data, start, stride, out, f32::from_le_bytes),
            ElementType::F16 => decode_plain(data, start, stride, out, |b| f16::from_le_bytes(b).to_f32()),
            ElementType::BF16 => decode_plain(data, start, stride, out, |b| bf16::from_le_bytes(b).to_f32()),
            ElementType::Q8_0 => decode_blocks::<34>(data, start, stride, out, q8_0),
            ElementType::Q4_0 => decode_blocks::<18>(data, start, stride, out, q4_0),
            ElementType::Q4_1 => decode_blocks::<20>(data, start, stride, out, q4_1),
            ElementType::Other { .. } => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Unquantised elements of `N` bytes each.
fn decode_plain<const N: usize>(
    data: &[u8],
    start: usize,
    stride: usize,
    out: &mut [f32],
    convert: impl Fn([u8; N]) -> f32,
) -> Option<()> {
    let (elements, _) = data.as_chunks::<N>();
    if stride == 1 {
        let run = elements.get(start..start.checked_add(out.len())?)?;
        out.iter_mut().zip(run).for_each(|(v, &e)| *v = convert(e));
        return Some(());
    }
    for (i, v) in out.iter_mut().enumerate() {
        *v = convert(*elements.get(start.checked_add(i.checked_mul(stride)?)?)?);
    }
    Some(())
}

/// Quantised blocks of `N` bytes, `unpack` giving the values of one.
fn decode_blocks<const N: usize>(
    data: &[u8],
    start: usize,
    stride: usize,
    out: &mut [f32],
    unpack: impl Fn(&[u8; N]) -> [f32; BLOCK],
) -> Option<()> {
    let (blocks, _) = data.as_chunks::<N>();
    if stride == 1 {
        // A part of a block at either end, whole ones between.
        let (head, rest) = out.split_at_mut(out.len().min((BLOCK - start % BLOCK) % BLOCK));
        if !head.is_empty() {
            let values = unpack(blocks.get(start / BLOCK)?);
            head.copy_from_slice(values.get(start % BLOCK..)?.get(..head.len())?);
        }
        let mut block = (start + head.len()) / BLOCK;
        let (whole, tail) = rest.as_chunks_mut::<BLOCK>();
        for values in whole {
            *values = unpack(blocks.get(block)?);
            block += 1;
        }
        if !tail.is_empty() {
            let values = unpack(blocks.get(block)?);
            tail.copy_from_slice(values.get(..tail.len())?);
        }
        return Some(());
    }
    // Strided reads are rare and short (one column of a matrix, a permuted bias): a block per element, unless it is
    // the one just unpacked.
    let mut last = None;
    let mut values = [0.0; BLOCK];
    for (i, v) in out.iter_mut().enumerate() {
        let element = start.checked_add(i.checked_mul(stride)?)?;
        if last != Some(element / BLOCK) {
            values = unpack(blocks.get(element / BLOCK)?);
            last = Some(element / BLOCK);
        }
        *v = values[element % BLOCK];
    }
    Some(())
}

fn scale(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// The 4-bit codes: the low nibbles of 16 bytes are elements 0..16, the high ones 16..32.
fn nibbles(codes: [u8; 16], value: impl Fn(u8) -> f32) -> [f32; BLOCK] {
    let mut out = [0.0; BLOCK];
    let (low, high) = out.split_at_mut(16);
    for ((code, l), h) in codes.into_iter().zip(low).zip(high) {
        *l = value(code & 0xF);
        *h = value(code >> 4);
    }
    out
}

fn q8_0(&[d0, d1, ref codes @ ..]: &[u8; 34]) -> [f32; BLOCK] {
    let d = scale(d0, d1);
    codes.map(|q| d * f32::from(q as i8))
}

fn q4_0(&[d0, d1, ref codes @ ..]: &[u8; 18]) -> [f32; BLOCK] {
    let d = scale(d0, d1);
    nibbles(*codes, |q| d * f32::from(q as i8 - 8))
}

fn q4_1(&[d0, d1, m0, m1, ref codes @ ..]: &[u8; 20]) -> [f32; BLOCK] {
    let (d, m) = (scale(d0, d1), scale(m0, m1));
    // Two roundings, as the reference implementation has: no fused multiply-add.
    nibbles(*codes, |q| d * f32::from(q) + m)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(
        element: ElementType,
        data: &[u8],
        start: usize,
        stride: usize,
        len: usize,
    ) -> Option<Vec<f32>> {
        let mut out = vec![0.0; len];
        element.decode(data, start, stride, &mut out).map(|()| out)
    }

    #[test]
    fn plain_types() {
        let f32s: Vec<u8> = [1.5f32, -2.0, 3.25, 7.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(decode(ElementType::F32, &f32s, 1, 2, 2).unwrap(), [-2.0, 7.0]);
        // f16: 0x3C00 is 1, 0xC100 is -2.5, 0x0001 is 2^-24; bf16: 0x3F80 is 1, 0xC020 is -2.5.
        let f16s = [0x00, 0x3C, 0x00, 0xC1, 0x01, 0x00];
        assert_eq!(decode(ElementType::F16, &f16s, 0, 1, 3).unwrap(), [1.0, -2.5, 2f32.powi(-24)]);
        assert_eq!(decode(ElementType::BF16, &[0x80, 0x3F, 0x20, 0xC0], 0, 1, 2).unwrap(), [1.0, -2.5]);
    }

    #[test]
    fn quantised_blocks_by_hand() {
        // Scale 0.5 (0x3800); q = 0, 1, 2, ... -1 at the end.
        let mut q8 = vec![0x00, 0x38];
        q8.extend((0..31u8).chain([0xFF]));
        let expected: Vec<f32> = (0..31).map(|i| i as f32 * 0.5).chain([-0.5]).collect();
        assert_eq!(decode(ElementType::Q8_0, &q8, 0, 1, 32).unwrap(), expected);
        // Byte j holds code j % 16 low and 15 - j high: elements j and 16 + j.
        let codes: Vec<u8> = (0..16u8).map(|j| j | (15 - j) << 4).collect();
        let code = |i: usize| if i < 16 { i as f32 } else { (31 - i) as f32 };
        let q40 = [&[0x00, 0x40][..], &codes].concat(); // scale 2
        let expected: Vec<f32> = (0..32).map(|i| 2.0 * (code(i) - 8.0)).collect();
        assert_eq!(decode(ElementType::Q4_0, &q40, 0, 1, 32).unwrap(), expected);
        let q41 = [&[0x00, 0x38, 0x00, 0xC0][..], &codes].concat(); // scale 0.5, minimum -2
        let expected: Vec<f32> = (0..32).map(|i| 0.5 * code(i) - 2.0).collect();
        assert_eq!(decode(ElementType::Q4_1, &q41, 0, 1, 32).unwrap(), expected);
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
                decode(ElementType::Q8_0, &data, start, stride, len).unwrap(),
                expected,
                "{start} {len}"
            );
        }
        assert_eq!(decode(ElementType::Q8_0, &data, 3, 31, 3).unwrap(), [value(3), value(34), value(65)]);
        assert_eq!(decode(ElementType::Q8_0, &data, 7, 0, 2).unwrap(), [7.0, 7.0]);
    }

    #[test]
    fn outside_is_none() {
        for element in [ElementType::F32, ElementType::F16, ElementType::Q8_0, ElementType::Q4_1] {
            let (per, bytes) = element.block().unwrap();
            let data = vec![0; bytes];
            assert!(decode(element.clone(), &data, 0, 1, per).is_some());
            assert!(decode(element.clone(), &data, 0, 1, per + 1).is_none());
            assert!(decode(element.clone(), &data, per, 1, 1).is_none());
            assert!(decode(element.clone(), &data, 0, per, 2).is_none());
            assert!(decode(element.clone(), &data, 0, usize::MAX, 3).is_none());
            assert!(decode(element, &data, usize::MAX, 1, 2).is_none());
        }
        let other = ElementType::Other { name: "I64".into(), block: Some((1, 8)) };
        assert!(decode(other, &[0; 8], 0, 1, 1).is_none());
    }

    #[test]
    fn sizes() {
        assert_eq!(ElementType::Q4_0.bytes(&[3, 64]), Ok(3 * 2 * 18));
        assert_eq!(ElementType::F16.bytes(&[]), Ok(2));
        assert!(ElementType::Q8_0.bytes(&[64, 3]).is_err(), "a row is not whole blocks");
        assert!(ElementType::F32.bytes(&[usize::MAX, 2]).is_err());
        assert!(ElementType::F32.bytes(&[usize::MAX / 2]).is_err());
    }
}
