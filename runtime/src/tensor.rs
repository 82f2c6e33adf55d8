//! Tensors of the host: what a user gives to and gets from an entry.

use bytemuck::Pod;
use pcc_ir::{DType, Diagnostic};

/// Row-major elements of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    Bool(Vec<bool>),
}

/// A dense tensor in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    pub shape: Vec<usize>,
    pub data: HostData,
}

impl HostData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            HostData::F32(v) => v.len(),
            HostData::F64(v) => v.len(),
            HostData::I32(v) => v.len(),
            HostData::I64(v) => v.len(),
            HostData::Bool(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `elements` elements of a `dtype` in memory that `fill` writes; the inverse of [`HostTensor::to_bytes`]. 16-bit floats become
    /// f32. What `used` has of memory is taken where it is enough and of the same type.
    pub(crate) fn from_bits(
        dtype: DType,
        elements: usize,
        used: Option<HostData>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Self {
        macro_rules! of {
            ($used:ident, $kind:ident) => {
                match $used {
                    Some(HostData::$kind(v)) => Some(v),
                    _ => None,
                }
            };
        }
        fn filled<T: Pod>(used: Option<Vec<T>>, elements: usize, fill: impl FnOnce(&mut [u8])) -> Vec<T> {
            let mut data = used.filter(|v| v.capacity() >= elements).unwrap_or_default();
            if data.is_empty() {
                data = vec![T::zeroed(); elements];
            } else {
                data.resize(elements, T::zeroed());
            }
            fill(bytemuck::cast_slice_mut(&mut data));
            data
        }
        match dtype {
            DType::F32 => HostData::F32(filled(of!(used, F32), elements, fill)),
            DType::F64 => HostData::F64(filled(of!(used, F64), elements, fill)),
            DType::I32 => HostData::I32(filled(of!(used, I32), elements, fill)),
            DType::I64 => HostData::I64(filled(of!(used, I64), elements, fill)),
            DType::Bool => {
                HostData::Bool(filled::<u8>(None, elements, fill).iter().map(|&b| b != 0).collect())
            }
            DType::BF16 | DType::F16 => {
                let bits = filled::<[u8; 2]>(None, elements, fill);
                let wide = |b: &[u8; 2]| crate::memory::decode(dtype, [b[0], b[1], 0, 0, 0, 0, 0, 0]) as f32;
                HostData::F32(bits.iter().map(wide).collect())
            }
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            HostData::F32(_) => DType::F32,
            HostData::F64(_) => DType::F64,
            HostData::I32(_) => DType::I32,
            HostData::I64(_) => DType::I64,
            HostData::Bool(_) => DType::Bool,
        }
    }
}

impl HostTensor {
    pub fn f32(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Self {
        Self { shape: shape.into(), data: HostData::F32(data) }
    }

    pub fn i32(shape: impl Into<Vec<usize>>, data: Vec<i32>) -> Self {
        Self { shape: shape.into(), data: HostData::I32(data) }
    }

    /// The elements, when they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        if let HostData::F32(v) = &self.data { Some(v) } else { None }
    }

    /// The elements, when they are i32.
    pub fn as_i32(&self) -> Option<&[i32]> {
        if let HostData::I32(v) = &self.data { Some(v) } else { None }
    }

    /// The elements as little-endian bytes of `dtype`. Integers go to integers of either width if they fit, floats to any float.
    pub(crate) fn to_bytes(&self, dtype: DType, name: &str) -> Result<Vec<u8>, Diagnostic> {
        let wrong = |why: String| Err(Diagnostic::input(why).at(format!("input `{name}`")));
        let floats = |values: &mut dyn Iterator<Item = f64>| {
            let mut out = Vec::new();
            values.for_each(|v| out.extend(&crate::memory::encode(dtype, v)[..dtype.bytes()]));
            out
        };
        Ok(match (&self.data, dtype) {
            (HostData::I32(v), DType::I32) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (HostData::I32(v), DType::I64) => v.iter().flat_map(|&x| i64::from(x).to_le_bytes()).collect(),
            (HostData::I64(v), DType::I64) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (HostData::I64(v), DType::I32) => {
                let mut out = Vec::with_capacity(v.len() * 4);
                for (i, &x) in v.iter().enumerate() {
                    let Ok(x) = i32::try_from(x) else {
                        return wrong(format!("element {i} is {x}, which is no i32"));
                    };
                    out.extend(x.to_le_bytes());
                }
                out
            }
            (HostData::Bool(v), DType::Bool) => v.iter().map(|&x| u8::from(x)).collect(),
            (HostData::F32(v), DType::F32) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            (HostData::F32(v), d) if d.is_float() => floats(&mut v.iter().map(|&x| x.into())),
            (HostData::F64(v), d) if d.is_float() => floats(&mut v.iter().copied()),
            (data, _) => {
                let what = format!("it holds {}, but the program takes {dtype}", data.dtype());
                let kinds = "floats go to floats of any width and integers to integers; convert others first, as with NumPy's `astype`";
                return Err(Diagnostic::input(what).at(format!("input `{name}`")).help(kinds));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_where_it_is_enough() {
        let fill = |to: &mut [u8]| {
            let twos = 2f32.to_le_bytes();
            to.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&twos));
        };
        let used = vec![1.0; 8];
        let start = used.as_ptr();
        let HostData::F32(twos) = HostData::from_bits(DType::F32, 6, Some(HostData::F32(used)), fill) else {
            panic!("f32 stays f32");
        };
        assert_eq!((twos.as_slice(), twos.as_ptr()), ([2.0; 6].as_slice(), start));
        for other in [HostData::F32(vec![1.0; 2]), HostData::I32(vec![7; 8])] {
            assert_eq!(HostData::from_bits(DType::F32, 6, Some(other), fill), HostData::F32(vec![2.0; 6]));
        }
    }

    #[test]
    fn integers_are_checked_and_floats_rounded() {
        let t = |data| HostTensor { shape: vec![2], data };
        assert_eq!(
            t(HostData::I64(vec![1, -2])).to_bytes(DType::I32, "x").unwrap(),
            t(HostData::I32(vec![1, -2])).to_bytes(DType::I32, "x").unwrap()
        );
        let big = t(HostData::I64(vec![1, 1 << 40])).to_bytes(DType::I32, "x").unwrap_err();
        assert!(big.what.contains("1099511627776") && big.place.unwrap().contains("`x`"));
        assert!(t(HostData::F32(vec![0.0, 1.0])).to_bytes(DType::I32, "x").is_err());
        let bytes = t(HostData::F64(vec![1.0, 0.1])).to_bytes(DType::BF16, "x").unwrap();
        // 0.1 in bf16 is 0x3DCD, 0.10009765625.
        assert_eq!(
            HostData::from_bits(DType::BF16, 2, None, |to| to.copy_from_slice(&bytes)),
            HostData::F32(vec![1.0, 0.100_097_656])
        );
    }
}
