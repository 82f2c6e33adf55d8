//! Rotary position embedding: frequencies, and the angles of a function's positions.

use super::func::FuncBuilder;
use pcc_ir::ops::{self, BinaryKind, Broadcast, Constant, Literal, Op, UnaryKind};
use pcc_ir::{DType, Diagnostic, Type, ValueId};

/// Rotation of the first `dim` elements of each head.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Even; at most head_dim.
    pub dim: usize,
    pub theta: f64,
    pub scaling: RopeScaling,
    /// Pairs are neighbours instead of halves.
    pub interleaved: bool,
}

/// How the frequencies are changed for contexts longer than the model was trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// All divided by the factor.
    Linear {
        factor: f64,
    },
    /// Llama 3.1: wavelengths beyond `original / low` are divided by the factor, those under `original / high` kept,
    /// and between them the two are blended.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// Each divided by its own number, as GGUF files store them.
    Divisors(Vec<f64>),
    /// LongRoPE (Ding et al., 2024): each divided by its own number, `short` for sequences of up to `original` positions and `long` for longer
    /// ones; cosines and sines are multiplied by `factor`. Positions in a cache must all be rotated alike, so what counts is
    /// the sequence capacity the model is built for, not the length of an input.
    Long {
        short: Vec<f64>,
        long: Vec<f64>,
        original: f64,
        factor: f64,
    },
}

/// Cosines and sines `[b, s, dim / 2]` of a function's positions, made once and used by q and k.
#[derive(Clone, Copy, Debug)]
pub(super) struct Angles {
    pub(super) cos: ValueId,
    pub(super) sin: ValueId,
}

impl Rope {
    /// Radians a position, for each pair: `theta^(-2 i / dim)`, scaled for sequences of up to `seq` positions.
    pub fn frequencies(&self, seq: usize) -> Vec<f64> {
        let plain = (0..self.dim / 2).map(|i| self.theta.powf(-(2.0 * i as f64) / self.dim as f64));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            &RopeScaling::Llama3 { factor, low, high, original } => {
                plain.map(|f| llama3(f, factor, low, high, original)).collect()
            }
            RopeScaling::Divisors(by) => plain.zip(by).map(|(f, d)| f / d).collect(),
            RopeScaling::Long { short, long, original, .. } => {
                let by = if seq as f64 > *original { long } else { short };
                plain.zip(by).map(|(f, d)| f / d).collect()
            }
        }
    }

    /// Angles of `positions`, i32 `[b, s]`, of a model for `seq` of them.
    pub(super) fn angles(
        &self,
        f: &mut FuncBuilder,
        positions: ValueId,
        seq: usize,
        loc: &str,
    ) -> Result<Angles, Diagnostic> {
        let pairs = self.dim / 2;
        let mut shape = f.shape(positions);
        let outer: Vec<usize> = (0..shape.len()).collect();
        shape.push(pairs);
        let ty = Type::f32([pairs]);
        let value = Literal::Dense(self.frequencies(seq));
        let frequencies = f.op(Op::Constant(Constant { ty, value }), &[], loc)?;
        let frequencies = f.broadcast_leading(frequencies, &shape, loc)?;
        let positions = f.convert(positions, DType::F32, loc)?;
        let positions = f.op(Op::Broadcast(Broadcast { shape, dims: outer }), &[positions], loc)?;
        let angle = f.binary(BinaryKind::Mul, positions, frequencies, loc)?;
        let mut trig = |kind| {
            let y = f.unary(kind, angle, loc)?;
            match self.scaling {
                RopeScaling::Long { factor, .. } if factor != 1.0 => f.scaled(y, factor, loc),
                _ => Ok(y),
            }
        };
        Ok(Angles { cos: trig(UnaryKind::Cos)?, sin: trig(UnaryKind::Sin)? })
    }

    pub(super) fn rotate(
        &self,
        f: &mut FuncBuilder,
        x: ValueId,
        angles: Angles,
        loc: &str,
    ) -> Result<ValueId, Diagnostic> {
        f.op(Op::Rope(ops::Rope { interleaved: self.interleaved }), &[x, angles.cos, angles.sin], loc)
    }
}

/// The rule of Llama 3.1's `rope_scaling` of type `llama3`, as its reference code gives it.
fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength < original / high {
        return frequency;
    }
    if wavelength > original / low {
        return frequency / factor;
    }
    let smooth = (original / wavelength - low) / (high - low);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}
