//! Top-k and sampling of rows, as [`pcc_ir::ops::TopK`] and [`pcc_ir::ops::Sample`] say. A part is a row.

use crate::kernels::Operand;
use crate::machine::Binding;
use crate::sampling;
use pcc_ir::DType;
use pcc_ir::ops::TopK;
use pcc_ir::ops::sample::Draw;
use pcc_ir::program::{SampleCall, Strided, TopKCall};

/// A view, bound to its buffer.
struct Bound<'a> {
    view: &'a Strided,
    operand: Operand<'a>,
}

impl<'a> Bound<'a> {
    fn new(view: &'a Strided, binding: &Binding<'a>) -> Self {
        Self { view, operand: binding.operand(&view.loc) }
    }

    /// Element offset of the row with this index.
    fn row(&self, index: &[u64]) -> i64 {
        index.iter().zip(&self.view.strides).map(|(&i, &s)| i as i64 * s).sum()
    }

    fn load(&self, row: i64, i: usize) -> f64 {
        let stride = self.view.strides.last().copied().unwrap_or(0);
        // invariant: validation has shown that every element lies in the buffer
        self.operand.load(self.view.dtype, row + i as i64 * stride).unwrap_or(f64::NAN)
    }

    /// The `n` elements of a row, of a float type of at most 32 bits.
    fn floats(&self, row: i64, n: usize) -> Vec<f32> {
        let start = usize::try_from(self.operand.offset as i64 + row * DType::F32.bytes() as i64);
        match (self.view.dtype, self.view.strides.last(), start) {
            (DType::F32, Some(1), Ok(start)) => {
                let mut bytes = vec![0; n * DType::F32.bytes()];
                self.operand.window.read(start, &mut bytes);
                bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
            }
            _ => (0..n).map(|i| self.load(row, i) as f32).collect(),
        }
    }

    fn store(&self, at: i64, value: f64) {
        // invariant: as above
        let _ = self.operand.store(self.view.dtype, at, value);
    }
}

/// A top-k, bound.
pub(crate) struct TopRows<'a> {
    call: &'a TopKCall,
    rows: Vec<u64>,
    views: [Bound<'a>; 3],
}

impl<'a> TopRows<'a> {
    pub(crate) fn bind(call: &'a TopKCall, binding: &Binding<'a>, instr: usize) -> Self {
        let rows = call.rows.iter().map(binding.extents(instr)).collect();
        let views = [&call.x, &call.values, &call.indices].map(|view| Bound::new(view, binding));
        Self { call, rows, views }
    }

    pub(crate) fn parts(&self) -> usize {
        self.rows.iter().product::<u64>() as usize
    }

    pub(crate) fn run_part(&self, part: usize) {
        let mut index = vec![0; self.rows.len()];
        let mut rest = part as u64;
        for (i, &n) in index.iter_mut().zip(&self.rows).rev() {
            *i = rest % n;
            rest /= n;
        }
        let [x, values, indices] = &self.views;
        let (n, k, from) = (self.call.n as usize, self.call.k as usize, x.row(&index));
        let mut elements: Vec<(f32, usize)> = x.floats(from, n).into_iter().zip(0..).collect();
        let order = |a: &(f32, usize), b: &(f32, usize)| TopK::order((a.0.into(), a.1), (b.0.into(), b.1));
        if k < n {
            elements.select_nth_unstable_by(k - 1, order);
        }
        elements[..k].sort_unstable_by(order);
        let step = |b: &Bound<'_>| b.view.strides.last().copied().unwrap_or(0);
        for (i, &(value, at)) in elements[..k].iter().enumerate() {
            values.store(values.row(&index) + i as i64 * step(values), value.into());
            indices.store(indices.row(&index) + i as i64 * step(indices), at as f64);
        }
    }
}

/// A sampling, bound.
pub(crate) struct SampleRows<'a> {
    tokens: usize,
    rows: u64,
    views: [Bound<'a>; 4],
}

impl<'a> SampleRows<'a> {
    pub(crate) fn bind(call: &'a SampleCall, binding: &Binding<'a>, instr: usize) -> Self {
        let views =
            [&call.logits, &call.settings, &call.key, &call.out].map(|view| Bound::new(view, binding));
        Self { tokens: call.tokens as usize, rows: binding.extents(instr)(&call.rows), views }
    }

    pub(crate) fn parts(&self) -> usize {
        self.rows as usize
    }

    pub(crate) fn run_part(&self, part: usize) {
        let index = [part as u64];
        let [logits, settings, key, out] = &self.views;
        let of = |b: &Bound<'_>, i| b.load(b.row(&index), i);
        let draw = Draw::of(
            std::array::from_fn(|i| of(settings, i) as f32),
            std::array::from_fn(|i| of(key, i) as i32),
        );
        let token = sampling::choose(&logits.floats(logits.row(&index), self.tokens), &draw);
        out.store(out.row(&index), token.map_or(-1.0, f64::from));
    }
}
