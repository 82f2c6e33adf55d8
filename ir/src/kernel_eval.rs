//! What a kernel means: a scalar interpreter over byte buffers, for tests of lowering and of code generators.
//!
//! Follows [`crate::kernel`]'s words one by one. Every float node is worked out in f64 and rounded once to f32 (which for `+ - * /` and the
//! square root is what f32 arithmetic gives); sums over a row are f64 inside. Every access is checked against its buffer.

use crate::eval::round_to;
use crate::kernel::{Access, AccessId, At, Kernel, Lane, Node, NodeId};
use crate::kernel_check::{KernelInfo, Kind};
use crate::ops::{BinaryKind, CompareKind, UnaryKind};
use crate::types::{DType, ReduceKind};
use std::ops::Range;

/// Run-time arguments of a kernel, as in [`crate::kernel::KernelArgs`].
pub struct KernelData<'a> {
    pub buffers: &'a mut [Vec<u8>],
    /// By access: buffer and byte offset of the base.
    pub bases: &'a [(usize, usize)],
    /// One per iteration dim.
    pub extents: &'a [i64],
    /// `accesses * rank`, in elements.
    pub strides: &'a [i64],
    pub scalars: &'a [i64],
}

/// A node's value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Val {
    F(f32),
    I(i32),
    B(bool),
}

/// Runs rows `rows` of a kernel.
///
/// # Errors
/// The kernel is invalid, an argument is missing, or an element lies outside its buffer.
pub fn eval_kernel(kernel: &Kernel, data: &mut KernelData, rows: Range<i64>) -> Result<(), String> {
    let info = kernel.check()?;
    let rank = kernel.rank as usize;
    let (accesses, scalars) = (kernel.accesses.len(), kernel.scalars as usize);
    if data.bases.len() != accesses
        || data.strides.len() != accesses * rank
        || data.extents.len() != rank
        || data.scalars.len() != scalars
    {
        return Err(format!("needs {accesses} accesses of rank {rank} and {scalars} scalars"));
    }
    if data.extents.iter().any(|&e| !(0..1 << 40).contains(&e)) {
        return Err(format!("extents {:?}", data.extents));
    }
    let count =
        data.extents[..rank - 1].iter().try_fold(1i64, |n, &e| n.checked_mul(e)).ok_or("too many rows")?;
    if rows.start < 0 || rows.end > count {
        return Err(format!("rows {rows:?} of {count}"));
    }
    for row in rows {
        let mut index = vec![0; rank];
        let mut rest = row;
        for dim in (0..rank - 1).rev() {
            index[dim] = rest % data.extents[dim];
            rest /= data.extents[dim];
        }
        RowEval { kernel, info: &info, data, index, values: vec![None; kernel.nodes.len()] }.run()?;
    }
    Ok(())
}

struct RowEval<'a, 'b> {
    kernel: &'a Kernel,
    info: &'a KernelInfo,
    data: &'a mut KernelData<'b>,
    /// Where we are, lane dim last.
    index: Vec<i64>,
    values: Vec<Option<Val>>,
}

impl RowEval<'_, '_> {
    fn run(mut self) -> Result<(), String> {
        let lanes = self.data.extents[self.kernel.rank as usize - 1];
        for phase in 0..self.info.passes {
            self.reduce(phase, lanes)?;
        }
        let per_row =
            |s: &&crate::kernel::Store| self.kernel.accesses[s.access as usize].lane == Lane::Broadcast;
        let kernel = self.kernel;
        for lane in 0..lanes {
            self.element(lane, self.info.passes)?;
            for store in kernel.stores.iter().filter(|s| !per_row(s)) {
                self.store(store.access, store.node, store.at)?;
            }
        }
        // Per-row stores happen even in a row without elements; only per-row nodes are read.
        if lanes == 0 {
            self.element(0, self.info.passes)?;
        }
        for store in kernel.stores.iter().filter(per_row) {
            self.store(store.access, store.node, store.at)?;
        }
        Ok(())
    }

    /// Works out the reductions whose operands have the phase.
    fn reduce(&mut self, phase: u32, lanes: i64) -> Result<(), String> {
        let kernel = self.kernel;
        let found = kernel.nodes.iter().enumerate().filter_map(|(i, n)| match *n {
            Node::RowReduce(kind, of) if self.info.phase[of as usize] == phase => Some((i, kind, of)),
            _ => None,
        });
        let reductions: Vec<_> = found.collect();
        let mut sums: Vec<f64> = reductions.iter().map(|r| r.1.identity()).collect();
        for lane in 0..lanes {
            self.element(lane, phase)?;
            for (sum, &(_, kind, of)) in sums.iter_mut().zip(&reductions) {
                let x = f64::from(self.float(of)?);
                *sum = match kind {
                    ReduceKind::Sum => *sum + x,
                    ReduceKind::Max => extreme(true, *sum, x),
                    ReduceKind::Min => extreme(false, *sum, x),
                };
            }
        }
        for (sum, &(node, ..)) in sums.iter().zip(&reductions) {
            self.values[node] = Some(Val::F(*sum as f32));
        }
        Ok(())
    }

    /// Values of all nodes up to a phase at a lane, but for reductions.
    fn element(&mut self, lane: i64, phase: u32) -> Result<(), String> {
        if let Some(last) = self.index.last_mut() {
            *last = lane;
        }
        // A row without elements has no per-element values.
        let empty = self.data.extents.last() == Some(&0);
        for i in 0..self.kernel.nodes.len() {
            let reduction = matches!(self.kernel.nodes[i], Node::RowReduce(..));
            if self.info.phase[i] <= phase && !reduction && !(empty && self.info.varies[i]) {
                self.values[i] = Some(self.node(i as NodeId)?);
            }
        }
        Ok(())
    }

    fn value(&self, node: NodeId) -> Result<Val, String> {
        self.values[node as usize].ok_or_else(|| format!("node {node} has no value yet"))
    }

    fn float(&self, node: NodeId) -> Result<f32, String> {
        match self.value(node)? {
            Val::F(x) => Ok(x),
            other => Err(format!("node {node} is {other:?}, no float")),
        }
    }

    fn node(&self, node: NodeId) -> Result<Val, String> {
        Ok(match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load(access, Some(0))?,
            Node::LoadAt { access, index, stride, limit } => {
                self.load(access, self.extra(index, stride, limit)?)?
            }
            Node::Const { dtype, bits } => decode(dtype, bits),
            Node::Scalar(s) => Val::I(self.data.scalars[s as usize] as i32),
            Node::Index(dim) => Val::I(self.index[dim as usize] as i32),
            Node::Unary(kind, a) => unary(kind, self.value(a)?),
            Node::Binary(kind, a, b) => binary(kind, self.value(a)?, self.value(b)?),
            Node::Compare(kind, a, b) => compare(kind, self.value(a)?, self.value(b)?),
            Node::Select(c, a, b) => match self.value(c)? {
                Val::B(true) => self.value(a)?,
                _ => self.value(b)?,
            },
            Node::Convert(dtype, a) => convert(dtype, self.value(a)?),
            Node::RowReduce(..) => self.value(node)?,
        })
    }

    /// Extra offset of a run-time index in elements; none if it is out of its limit.
    fn extra(&self, index: NodeId, stride: u32, limit: u32) -> Result<Option<i64>, String> {
        let Val::I(i) = self.value(index)? else { return Err(format!("index {index} is no integer")) };
        let inside = (0..self.data.scalars[limit as usize]).contains(&i64::from(i));
        Ok(inside.then(|| i64::from(i).wrapping_mul(self.data.scalars[stride as usize])))
    }

    /// The bytes of an access here, plus an offset in elements: buffer and range.
    fn place(&self, access: AccessId, extra: i64) -> Result<(usize, Range<usize>), String> {
        let Access { dtype, lane, .. } = self.kernel.accesses[access as usize];
        let rank = self.kernel.rank as usize;
        let strides = &self.data.strides[access as usize * rank..][..rank];
        let mut at = i128::from(extra);
        for (dim, (&stride, &index)) in strides.iter().zip(&self.index).enumerate() {
            let stride = match lane {
                Lane::Unit if dim + 1 == rank => 1,
                Lane::Broadcast if dim + 1 == rank => 0,
                _ => stride,
            };
            at += i128::from(stride) * i128::from(index);
        }
        let (buffer, base) = self.data.bases[access as usize];
        let bytes = dtype.bytes();
        let start = base as i128 + at * bytes as i128;
        let size = self.data.buffers.get(buffer).map_or(0, Vec::len);
        match usize::try_from(start) {
            Ok(start) if start.checked_add(bytes).is_some_and(|end| end <= size) => {
                Ok((buffer, start..start + bytes))
            }
            _ => Err(format!("access {access} at {:?} is at byte {start} of a buffer of {size}", self.index)),
        }
    }

    fn load(&self, access: AccessId, extra: Option<i64>) -> Result<Val, String> {
        let dtype = self.kernel.accesses[access as usize].dtype;
        let Some(extra) = extra else { return Ok(decode(dtype, 0)) };
        let (buffer, range) = self.place(access, extra)?;
        let bytes = &self.data.buffers[buffer][range];
        Ok(decode(dtype, bytes.iter().rev().fold(0, |bits, &b| bits << 8 | u64::from(b))))
    }

    fn store(&mut self, access: AccessId, node: NodeId, at: Option<At>) -> Result<(), String> {
        let extra = match at {
            None => Some(0),
            Some(at) => self.extra(at.index, at.stride, at.limit)?,
        };
        let Some(extra) = extra else { return Ok(()) };
        let bits = encode(self.kernel.accesses[access as usize].dtype, self.value(node)?);
        let (buffer, range) = self.place(access, extra)?;
        let n = range.len();
        self.data.buffers[buffer][range].copy_from_slice(&bits.to_le_bytes()[..n]);
        Ok(())
    }
}

/// NaN if an operand is NaN; of equal operands the second.
fn extreme(max: bool, a: f64, b: f64) -> f64 {
    let first = if max { a > b } else { a < b };
    if a.is_nan() || first { a } else { b }
}

fn unary(kind: UnaryKind, a: Val) -> Val {
    match a {
        Val::F(x) if kind == UnaryKind::Relu => Val::F(if x < 0.0 { 0.0 } else { x }),
        Val::F(x) => Val::F(kind.apply(f64::from(x)) as f32),
        Val::I(x) => Val::I(match kind {
            UnaryKind::Neg => x.wrapping_neg(),
            UnaryKind::Abs => x.wrapping_abs(),
            UnaryKind::Relu => x.max(0),
            UnaryKind::Not => !x,
            _ => x,
        }),
        Val::B(x) => Val::B(!x),
    }
}

fn binary(kind: BinaryKind, a: Val, b: Val) -> Val {
    match (a, b) {
        (Val::F(a), Val::F(b)) => {
            let (a, b) = (f64::from(a), f64::from(b));
            Val::F(match kind {
                BinaryKind::Max => extreme(true, a, b),
                BinaryKind::Min => extreme(false, a, b),
                _ => kind.apply(DType::F32, a, b),
            } as f32)
        }
        (Val::I(a), Val::I(b)) => Val::I(match kind {
            BinaryKind::Add => a.wrapping_add(b),
            BinaryKind::Sub => a.wrapping_sub(b),
            BinaryKind::Mul => a.wrapping_mul(b),
            BinaryKind::Div if b == 0 => 0,
            BinaryKind::Div => a.wrapping_div(b),
            BinaryKind::Max => a.max(b),
            BinaryKind::Min => a.min(b),
            BinaryKind::And => a & b,
            BinaryKind::Or => a | b,
            BinaryKind::Pow => a,
        }),
        (Val::B(a), Val::B(b)) => Val::B(if kind == BinaryKind::And { a & b } else { a | b }),
        // Refused by the check.
        _ => a,
    }
}

fn compare(kind: CompareKind, a: Val, b: Val) -> Val {
    let number = |v| match v {
        Val::F(x) => f64::from(x),
        Val::I(x) => f64::from(x),
        Val::B(x) => f64::from(u8::from(x)),
    };
    Val::B(kind.apply(number(a), number(b)))
}

fn convert(dtype: DType, a: Val) -> Val {
    match (a, Kind::of(dtype)) {
        (Val::F(x), Kind::Float) => match dtype {
            DType::BF16 | DType::F16 => Val::F(round_to(dtype, f64::from(x)) as f32),
            _ => Val::F(x),
        },
        (Val::F(x), Kind::Int) => Val::I(x as i32),
        (Val::F(x), Kind::Bool) => Val::B(x != 0.0),
        (Val::I(x), Kind::Float) => convert(dtype, Val::F(x as f32)),
        (Val::I(x), Kind::Int) => Val::I(x),
        (Val::I(x), Kind::Bool) => Val::B(x != 0),
        (Val::B(x), Kind::Float) => Val::F(f32::from(u8::from(x))),
        (Val::B(x), Kind::Int) => Val::I(i32::from(x)),
        (Val::B(x), Kind::Bool) => Val::B(x),
    }
}

/// A value from the bits of its type in memory.
fn decode(dtype: DType, bits: u64) -> Val {
    match dtype {
        DType::F64 => Val::F(f64::from_bits(bits) as f32),
        DType::F32 => Val::F(f32::from_bits(bits as u32)),
        DType::BF16 => Val::F(f32::from_bits((bits as u32 & 0xffff) << 16)),
        DType::F16 => Val::F(f16_value(bits as u16)),
        DType::I64 | DType::I32 => Val::I(bits as i32),
        DType::Bool => Val::B(bits != 0),
    }
}

/// The bits of a value as its type has them in memory.
fn encode(dtype: DType, value: Val) -> u64 {
    match value {
        Val::B(x) => u64::from(x),
        Val::I(x) => i64::from(x) as u64,
        Val::F(x) => match dtype {
            DType::F64 => f64::from(x).to_bits(),
            DType::BF16 => u64::from((round_to(dtype, f64::from(x)) as f32).to_bits() >> 16),
            DType::F16 => u64::from(f16_bits(round_to(dtype, f64::from(x)))),
            _ => u64::from(x.to_bits()),
        },
    }
}

/// IEEE binary16: one sign bit, five of the exponent (bias 15), ten of the significand.
fn f16_value(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        e => (1024.0 + fraction) * 2f32.powi(e - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The inverse of [`f16_value`], for values that f16 has.
fn f16_bits(x: f64) -> u16 {
    let sign = u16::from(x.is_sign_negative()) << 15;
    let size = x.abs();
    let bits = if size.is_nan() {
        0x7e00
    } else if size.is_infinite() {
        0x7c00
    } else if size < 2f64.powi(-14) {
        (size * 2f64.powi(24)) as u16
    } else {
        let exponent = ((size.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        ((exponent + 14) * 1024) as u16 + (size / 2f64.powi(exponent - 10)) as u16
    };
    sign | bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Store;

    fn floats(v: &[f32]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn access(dtype: DType, lane: Lane, write: bool) -> Access {
        Access { dtype, lane, write }
    }

    fn kernel(rank: u32, scalars: u32, accesses: &[Access], nodes: &[Node], stores: &[Store]) -> Kernel {
        let (accesses, nodes, stores) = (accesses.to_vec(), nodes.to_vec(), stores.to_vec());
        Kernel { name: "k".into(), rank, accesses, scalars, nodes, stores }
    }

    #[test]
    fn softmax_of_two_rows() {
        use Node::*;
        let k = kernel(
            2,
            0,
            &[access(DType::F32, Lane::Unit, false), access(DType::F32, Lane::Unit, true)],
            &[
                Load(0),
                RowReduce(ReduceKind::Max, 0),
                Binary(BinaryKind::Sub, 0, 1),
                Unary(UnaryKind::Exp, 2),
                RowReduce(ReduceKind::Sum, 3),
                Binary(BinaryKind::Div, 3, 4),
            ],
            &[Store { access: 1, node: 5, at: None }],
        );
        let mut buffers = [floats(&[0.0, 3f32.ln(), 5.0, 5.0]), vec![0; 16]];
        let mut data = KernelData {
            buffers: &mut buffers,
            bases: &[(0, 0), (1, 0)],
            extents: &[2, 2],
            strides: &[2, 1, 2, 1],
            scalars: &[],
        };
        eval_kernel(&k, &mut data, 0..2).unwrap();
        for (bytes, want) in buffers[1].chunks(4).zip([0.25, 0.75, 0.5, 0.5]) {
            let got = f32::from_le_bytes(bytes.try_into().unwrap());
            assert!((got - want).abs() < 1e-7, "{got} {want}");
        }
    }

    #[test]
    fn indices_out_of_range_read_zero_and_write_nothing() {
        use Node::*;
        let k = kernel(
            1,
            2,
            &[
                access(DType::I32, Lane::Unit, false),
                access(DType::F32, Lane::Broadcast, false),
                access(DType::F32, Lane::Unit, true),
            ],
            &[Load(0), LoadAt { access: 1, index: 0, stride: 0, limit: 1 }],
            &[Store { access: 2, node: 1, at: None }],
        );
        let indices: Vec<u8> = [2i32, -1, 3, 0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut buffers = [indices, floats(&[10.0, 11.0, 12.0]), vec![7; 16]];
        let mut data = KernelData {
            buffers: &mut buffers,
            bases: &[(0, 0), (1, 0), (2, 0)],
            extents: &[4],
            strides: &[1, 0, 1],
            scalars: &[1, 3],
        };
        eval_kernel(&k, &mut data, 0..1).unwrap();
        assert_eq!(buffers[2], floats(&[12.0, 0.0, 0.0, 10.0]));
    }

    #[test]
    fn elements_outside_a_buffer_are_an_error() {
        let k = kernel(
            1,
            0,
            &[access(DType::F32, Lane::Unit, false), access(DType::F32, Lane::Unit, true)],
            &[Node::Load(0)],
            &[Store { access: 1, node: 0, at: None }],
        );
        let mut buffers = [floats(&[1.0, 2.0]), vec![0; 4]];
        let mut data = KernelData {
            buffers: &mut buffers,
            bases: &[(0, 0), (1, 0)],
            extents: &[2],
            strides: &[1, 1],
            scalars: &[],
        };
        let error = eval_kernel(&k, &mut data, 0..1).unwrap_err();
        assert!(error.contains("byte 4 of a buffer of 4"), "{error}");
    }

    #[test]
    fn half_precision_is_ieee() {
        // Python: struct.pack('<e', x).
        for (x, bits) in [
            (1.0, 0x3c00),
            (-2.5, 0xc100),
            (65504.0, 0x7bff),
            (2f64.powi(-24), 1),
            (0.1, 0x2e66),
            (6e-5, 0x03ef),
        ] {
            let rounded = round_to(DType::F16, x);
            assert_eq!(f16_bits(rounded), bits, "{x}");
            assert_eq!(f64::from(f16_value(bits)), rounded, "{x}");
        }
    }
}
