//! Elements in memory and as they are computed with.

use super::ir::{FP, IP, Ir, Machine, Op, V};
use inkwell::types::BasicTypeEnum;
use pcc_ir::types::DType;

impl<'c> Ir<'c> {
    /// Elements as they lie in memory; 16-bit floats as integers.
    pub(crate) fn memory_type(&self, dtype: DType, w: u32) -> BasicTypeEnum<'c> {
        match dtype {
            DType::F64 => self.f64(w),
            DType::F32 => self.f32(w),
            DType::BF16 | DType::F16 => self.int(16, w),
            DType::I64 => self.int(64, w),
            DType::I32 => self.int(32, w),
            DType::Bool => self.int(8, w),
        }
    }

    /// From memory to the type that is computed with.
    pub(crate) fn widen(&self, dtype: DType, v: V<'c>) -> V<'c> {
        let w = self.width(v);
        match dtype {
            DType::F64 => self.cast(Op::FPTrunc, v, self.f32(w)),
            DType::F32 | DType::I32 => v,
            DType::BF16 => {
                let bits = self.cast(Op::ZExt, v, self.int(32, w));
                self.float(self.bin(Op::Shl, bits, self.ci(w, 16)))
            }
            DType::F16 => {
                let half = self.vector(self.context.f16_type().into(), w);
                self.cast(Op::FPExt, self.cast(Op::BitCast, v, half), self.f32(w))
            }
            DType::I64 => self.cast(Op::Trunc, v, self.int(32, w)),
            DType::Bool => self.icmp(IP::NE, v, self.zero(self.int(8, w))),
        }
    }

    /// The inverse of [`Self::widen`], rounding to nearest even.
    pub(crate) fn narrow(&self, dtype: DType, v: V<'c>) -> V<'c> {
        let w = self.width(v);
        match dtype {
            DType::F64 => self.cast(Op::FPExt, v, self.f64(w)),
            DType::F32 | DType::I32 => v,
            DType::BF16 if self.machine == Machine::Ptx => {
                let short = self.vector(self.context.bf16_type().into(), w);
                self.cast(Op::BitCast, self.cast(Op::FPTrunc, v, short), self.int(16, w))
            }
            DType::BF16 => self.bf16_bits(v),
            DType::F16 => {
                let half = self.vector(self.context.f16_type().into(), w);
                self.cast(Op::BitCast, self.cast(Op::FPTrunc, v, half), self.int(16, w))
            }
            DType::I64 => self.cast(Op::SExt, v, self.int(64, w)),
            DType::Bool => self.cast(Op::ZExt, v, self.int(8, w)),
        }
    }

    /// The nearest bf16, ties to even, subnormals kept (which the CPU's own instruction does not); NaN stays NaN.
    fn bf16_bits(&self, v: V<'c>) -> V<'c> {
        let w = self.width(v);
        let bits = self.bits(v);
        let upper = self.bin(Op::LShr, bits, self.ci(w, 16));
        let tie = self.bin(Op::And, upper, self.ci(w, 1));
        let rounded = self.bin(Op::Add, self.bin(Op::Add, bits, self.ci(w, 0x7fff)), tie);
        let rounded = self.bin(Op::LShr, rounded, self.ci(w, 16));
        let quiet = self.bin(Op::Or, upper, self.ci(w, 0x40));
        let short = self.select(self.fcmp(FP::UNO, v, v), quiet, rounded);
        self.cast(Op::Trunc, short, self.int(16, w))
    }

    /// A float rounded to the precision of a type.
    pub(crate) fn round_to(&self, dtype: DType, v: V<'c>) -> V<'c> {
        self.widen(dtype, self.narrow(dtype, v))
    }
}
