//! Top-k and sampling as instructions of the runtime's library, over operands in buffers.

use super::func::FuncLowering;
use pcc_ir::ops::TopK;
use pcc_ir::program::{InstrKind, SampleCall, Strided, TopKCall};
use pcc_ir::{DType, Diagnostic, Inst, ValueId};

impl FuncLowering<'_> {
    /// Shapes as [`TopK`] says.
    pub fn lower_top_k(&mut self, inst: &Inst, op: &TopK) -> Result<(), Diagnostic> {
        let &[x] = &inst.args[..] else { return Err(Diagnostic::internal("top_k of other operands")) };
        let &[values, indices] = &inst.results[..] else {
            return Err(Diagnostic::internal("top_k with other results"));
        };
        let mut rows = self.extents(values);
        rows.pop();
        let n = self.func.ty(x).shape.last().copied().unwrap_or(1) as u64;
        let x = self.operand(x)?;
        let [values, indices] = [values, indices].map(|v| self.result(v));
        let call = TopKCall { rows, n, k: op.k as u64, x, values, indices };
        self.emit(InstrKind::TopK(Box::new(call)), &Self::what(inst), String::new());
        Ok(())
    }

    /// Shapes as [`pcc_ir::ops::Sample`] says.
    pub fn lower_sample(&mut self, inst: &Inst) -> Result<(), Diagnostic> {
        let (&[logits, settings, key], &[token]) = (&inst.args[..], &inst.results[..]) else {
            return Err(Diagnostic::internal("sample of other operands"));
        };
        let Some(rows) = self.extents(token).into_iter().next() else {
            return Err(Diagnostic::internal("sample without rows"));
        };
        let tokens = self.func.ty(logits).shape.last().copied().unwrap_or(1) as u64;
        let call = SampleCall {
            rows,
            tokens,
            logits: self.operand(logits)?,
            settings: self.operand(settings)?,
            key: self.operand(key)?,
            out: self.result(token),
        };
        self.emit(InstrKind::Sample(Box::new(call)), &Self::what(inst), String::new());
        Ok(())
    }

    fn operand(&self, v: ValueId) -> Result<Strided, Diagnostic> {
        let (view, dtype) = (self.view(v)?, self.func.ty(v).dtype);
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16 | DType::I32) {
            return Err(Diagnostic::input(format!("selection among {dtype}"))
                .why("targets select among f32, bf16 and f16")
                .help("convert the operand to f32"));
        }
        Ok(Strided { loc: Self::loc(&view, dtype.bytes()), dtype, strides: view.strides })
    }

    fn result(&mut self, v: ValueId) -> Strided {
        let (view, dtype) = (self.destination(v), self.func.ty(v).dtype);
        Strided { loc: Self::loc(&view, dtype.bytes()), dtype, strides: view.strides }
    }
}
