//! Element types of stored tensors and how their bytes become f32.

use super::Quantised;
use half::{bf16, f16};
use pcc_ir::source::BlockFormat;
use std::borrow::Cow;
use std::fmt;

/// How a file stores the elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F16,
    BF16,
    /// Blocks of a GGUF file.
    Quantised(Quantised),
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
            ElementType::Quantised(q) => q.name(),
            ElementType::Other { name, .. } => name,
        }
    }

    /// Elements of a block and its bytes, if known.
    pub fn block(&self) -> Option<(usize, usize)> {
        match self {
            ElementType::F32 => Some((1, 4)),
            ElementType::F16 | ElementType::BF16 => Some((1, 2)),
            ElementType::Quantised(q) => Some(q.block()),
            ElementType::Other { block, .. } => *block,
        }
    }

    /// Bytes that so many elements take in a file, about.
    pub(super) fn stored_bytes(&self, elements: usize) -> usize {
        self.block().map_or(0, |(per_block, bytes)| (elements / per_block).saturating_mul(bytes))
    }

    /// How tensors of this type can be kept quantised in memory, if they can.
    pub(super) fn format(&self) -> Option<BlockFormat> {
        if let ElementType::Quantised(kind) = self { kind.format() } else { None }
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
            ElementType::Quantised(q) => q.decode(data, start, stride, out),
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
    fn outside_is_none() {
        for element in [ElementType::F32, ElementType::F16, ElementType::BF16] {
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
        assert_eq!(ElementType::Quantised(Quantised::Q4_0).bytes(&[3, 64]), Ok(3 * 2 * 18));
        assert_eq!(ElementType::F16.bytes(&[]), Ok(2));
        assert!(
            ElementType::Quantised(Quantised::Q8_0).bytes(&[64, 3]).is_err(),
            "a row is not whole blocks"
        );
        assert_eq!(ElementType::Quantised(Quantised::Q6_K).bytes(&[3, 512]), Ok(3 * 2 * 210));
        assert!(ElementType::Quantised(Quantised::Q4_K).bytes(&[256, 32]).is_err(), "an eighth of a block");
        assert!(ElementType::F32.bytes(&[usize::MAX, 2]).is_err());
        assert!(ElementType::F32.bytes(&[usize::MAX / 2]).is_err());
    }
}
