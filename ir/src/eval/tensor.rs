//! Tensors of the evaluator and the primitive moves on them.

use crate::mesh::Mesh;
use crate::types::{DType, Type};

/// A tensor: row-major elements, all as f64. Bools are 0 and 1, integers whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub ty: Type,
    pub data: Vec<f64>,
}

/// Where an op runs. Graph-level ops do not look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    pub mesh: Mesh,
    pub device: usize,
}

impl Tensor {
    /// # Errors
    /// The number of elements differs from the type's.
    pub fn new(ty: Type, data: Vec<f64>) -> Result<Self, String> {
        match ty.checked() {
            Some(_) if ty.elements() == data.len() => Ok(Self { ty, data }),
            _ => Err(format!("{} elements given for {ty}", data.len())),
        }
    }

    /// Every element `value`.
    pub fn splat(ty: Type, value: f64) -> Self {
        let data = vec![value; ty.elements()];
        Self { ty, data }
    }

    pub fn zeros(ty: Type) -> Self {
        Self::splat(ty, 0.0)
    }

    /// Elements computed from their row-major position.
    pub fn from_fn(ty: Type, f: impl FnMut(usize) -> f64) -> Self {
        let data = (0..ty.elements()).map(f).collect();
        Self { ty, data }
    }

    /// `result[i, j, ..] = data[offset + i * steps[0] + j * steps[1] + ..]`: transposes, slices, repeats.
    /// Every index reached must be inside.
    pub(crate) fn view(&self, offset: usize, shape: &[usize], steps: &[usize]) -> Vec<f64> {
        let mut out = Vec::with_capacity(shape.iter().product());
        copy_view(&self.data, offset, shape, steps, &mut out);
        out
    }

    /// Copies the block `from..from + extent` of every dim of `source` to `to` in this tensor.
    pub(crate) fn paste(&mut self, to: &[usize], source: &Tensor, from: &[usize], extent: &[usize]) {
        let block = source.view(offset(&source.ty.shape, from), extent, &strides(&source.ty.shape));
        let steps = strides(&self.ty.shape);
        let row = extent.last().copied().unwrap_or(1);
        if row == 0 {
            return;
        }
        let outer = extent.split_last().map_or(&[][..], |(_, outer)| outer);
        let base = offset(&self.ty.shape, to);
        for (r, chunk) in block.chunks_exact(row).enumerate() {
            let (mut rest, mut at) = (r, base);
            for (&n, &step) in outer.iter().zip(&steps).rev() {
                at += rest % n * step;
                rest /= n;
            }
            self.data[at..at + row].copy_from_slice(chunk);
        }
    }

    /// The largest absolute difference; infinite when types or NaN positions differ.
    pub fn max_abs_diff(&self, other: &Tensor) -> f64 {
        if self.ty != other.ty {
            return f64::INFINITY;
        }
        let diff = |(a, b): (&f64, &f64)| match (a.is_nan(), b.is_nan()) {
            (true, true) => 0.0,
            (false, false) if a == b => 0.0,
            (false, false) => (a - b).abs(),
            _ => f64::INFINITY,
        };
        self.data.iter().zip(&other.data).map(diff).fold(0.0, f64::max)
    }
}

fn copy_view(data: &[f64], offset: usize, shape: &[usize], steps: &[usize], out: &mut Vec<f64>) {
    match (shape, steps) {
        ([], _) => out.push(data[offset]),
        ([n], [1]) => out.extend_from_slice(&data[offset..offset + n]),
        ([n], [step, ..]) => out.extend((0..*n).map(|i| data[offset + i * step])),
        ([n, shape @ ..], [step, steps @ ..]) => {
            (0..*n).for_each(|i| copy_view(data, offset + i * step, shape, steps, out));
        }
        (_, []) => {}
    }
}

/// Row-major strides in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut steps = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        steps[i - 1] = steps[i] * shape[i];
    }
    steps
}

fn offset(shape: &[usize], at: &[usize]) -> usize {
    strides(shape).iter().zip(at).map(|(s, i)| s * i).sum()
}

/// What memory holds that nothing has written: NaN, or for types without one a number no program makes.
pub(crate) fn undefined(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::F32 | DType::BF16 | DType::F16 => f64::NAN,
        DType::I64 | DType::I32 => f64::from(i32::MIN + 12_345),
        DType::Bool => 1.0,
    }
}

/// The value of `dtype` nearest to `x`: floats round to nearest even, integers truncate and saturate (NaN gives 0), and
/// bool is `x != 0`.
pub fn round_to(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::BF16 => round_bits(x, 8, -126, 127),
        DType::F16 => round_bits(x, 11, -14, 15),
        DType::I64 => (x as i64) as f64,
        DType::I32 => f64::from(x as i32),
        DType::Bool => f64::from(u8::from(x != 0.0)),
    }
}

/// Elements rounded to a 16-bit type; others, which computing in f64 stands for, as they are.
pub(crate) fn rounded(mut t: Tensor) -> Tensor {
    if matches!(t.ty.dtype, DType::BF16 | DType::F16) {
        t.data.iter_mut().for_each(|x| *x = round_to(t.ty.dtype, *x));
    }
    t
}

/// Rounds to `digits` binary digits (the hidden one counted), exponents from `low` (subnormals below) to `high`.
/// Scaling by powers of two is exact in f64, so there is one rounding.
fn round_bits(x: f64, digits: i32, low: i32, high: i32) -> f64 {
    if !x.is_finite() || x == 0.0 {
        return x;
    }
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let ulp = 2f64.powi(exponent.max(low) - digits + 1);
    let rounded = (x / ulp).round_ties_even() * ulp;
    if rounded.abs() >= 2f64.powi(high + 1) { f64::INFINITY.copysign(x) } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_once_to_nearest_even() {
        // bf16 has 8 digits: 1 + 2^-8 is half way and goes to even, a little more goes up.
        let half = 1.0 + 2f64.powi(-8);
        assert_eq!(round_to(DType::BF16, half), 1.0);
        assert_eq!(round_to(DType::BF16, half + 1e-12), 1.0 + 2f64.powi(-7));
        assert_eq!(round_to(DType::BF16, 3.0 * 2f64.powi(-8) + 1.0), 1.0 + 2f64.powi(-6));
        // f16: largest 65504, overflow from 65520 on, smallest subnormal 2^-24.
        assert_eq!(round_to(DType::F16, 65519.9), 65504.0);
        assert_eq!(round_to(DType::F16, 65520.0), f64::INFINITY);
        assert_eq!(round_to(DType::F16, -1.4 * 2f64.powi(-24)), -2f64.powi(-24));
        assert_eq!(round_to(DType::F16, 0.5 * 2f64.powi(-24)), 0.0);
        // numpy.float16(0.1) = 0.0999755859375; bf16 of 0.1 is 0x3dcd = 0.10009765625.
        assert_eq!(round_to(DType::F16, 0.1), 0.0999755859375);
        assert_eq!(round_to(DType::BF16, 0.1), 0.10009765625);
        assert_eq!(round_to(DType::I32, -2.9), -2.0);
        assert_eq!(round_to(DType::I32, f64::NEG_INFINITY), f64::from(i32::MIN));
        assert_eq!(round_to(DType::Bool, f64::NAN), 1.0);
    }

    #[test]
    fn paste_moves_a_block() {
        let source = Tensor::from_fn(Type::f32([3, 4]), |i| i as f64);
        let mut out = Tensor::zeros(Type::f32([2, 3]));
        out.paste(&[0, 1], &source, &[1, 2], &[2, 2]);
        assert_eq!(out.data, [0.0, 6.0, 7.0, 0.0, 10.0, 11.0]);
        let mut scalar = Tensor::zeros(Type::f32([]));
        scalar.paste(&[], &Tensor::splat(Type::f32([]), 3.0), &[], &[]);
        assert_eq!(scalar.data, [3.0]);
    }
}
