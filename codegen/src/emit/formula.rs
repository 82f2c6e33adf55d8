//! Values of nodes from those of their operands: the same formulas for scalars and vectors, and on every machine.

use super::ir::{FP, IP, Ir, Op, V, Width};
use inkwell::values::IntValue;
use pcc_ir::kernel::{Kernel, Node, NodeId};
use pcc_ir::kernel_check::{KernelInfo, Kind};
use pcc_ir::ops::{BinaryKind, CompareKind, UnaryKind};
use pcc_ir::types::DType;

impl<'c> Ir<'c> {
    /// A node that is neither a load, an index nor a reduction, of operands of width `w`.
    pub(crate) fn formula(
        &self,
        (kernel, info): (&Kernel, &KernelInfo),
        scalars: &[IntValue<'c>],
        node: NodeId,
        w: Width,
        values: &[Option<V<'c>>],
    ) -> V<'c> {
        let value = |n: NodeId| values[n as usize].unwrap_or(self.cf(w, 0.0));
        let kind = |n: NodeId| info.kinds[n as usize];
        match kernel.nodes[node as usize] {
            Node::Const { dtype, bits } => self.constant(w, dtype, bits),
            Node::Scalar(s) => {
                self.splat(self.cast(Op::Trunc, scalars[s as usize].into(), self.int(32, 0)), w)
            }
            Node::Unary(unary, a) => match kind(a) {
                Kind::Float => self.float_unary(unary, value(a)),
                _ => self.int_unary(unary, value(a)),
            },
            Node::Binary(binary, a, b) => match kind(a) {
                Kind::Float => self.float_binary(binary, value(a), value(b)),
                _ => self.int_binary(binary, value(a), value(b)),
            },
            Node::Compare(compare, a, b) => self.compare(compare, kind(a), value(a), value(b)),
            Node::Select(c, a, b) => self.select(value(c), value(a), value(b)),
            Node::Convert(dtype, a) => self.convert(dtype, kind(a), value(a)),
            // Loads and indices are handled above, reductions by their pass.
            Node::Load(_) | Node::LoadAt { .. } | Node::Index(_) | Node::RowReduce(..) => self.cf(w, 0.0),
        }
    }

    fn constant(&self, w: Width, dtype: DType, bits: u64) -> V<'c> {
        match dtype {
            DType::F64 => self.cf(w, f64::from_bits(bits) as f32),
            DType::F32 => self.cf(w, f32::from_bits(bits as u32)),
            DType::BF16 => self.cf(w, half::bf16::from_bits(bits as u16).to_f32()),
            DType::F16 => self.cf(w, half::f16::from_bits(bits as u16).to_f32()),
            DType::I64 | DType::I32 => self.ci(w, bits as i32),
            DType::Bool => self.cb(w, bits != 0),
        }
    }

    /// Integers and booleans.
    fn int_unary(&self, unary: UnaryKind, a: V<'c>) -> V<'c> {
        let zero = self.zero(a.get_type());
        let negative = |a| self.icmp(IP::SLT, a, zero);
        match unary {
            UnaryKind::Neg => self.bin(Op::Sub, zero, a),
            UnaryKind::Abs => self.select(negative(a), self.bin(Op::Sub, zero, a), a),
            UnaryKind::Relu => self.select(negative(a), zero, a),
            UnaryKind::Not => {
                let ones = match a.get_type() == self.int(1, self.width(a)) {
                    true => self.cb(self.width(a), true),
                    false => self.ci(self.width(a), -1),
                };
                self.bin(Op::Xor, a, ones)
            }
            _ => a,
        }
    }

    fn float_binary(&self, binary: BinaryKind, a: V<'c>, b: V<'c>) -> V<'c> {
        match binary {
            BinaryKind::Add => self.fadd(a, b),
            BinaryKind::Sub => self.fsub(a, b),
            BinaryKind::Mul => self.fmul(a, b),
            BinaryKind::Div => self.fdiv(a, b),
            BinaryKind::Max => self.extreme(true, a, b),
            BinaryKind::Min => self.extreme(false, a, b),
            BinaryKind::Pow => self.pow(a, b),
            BinaryKind::And | BinaryKind::Or => a,
        }
    }

    fn int_binary(&self, binary: BinaryKind, a: V<'c>, b: V<'c>) -> V<'c> {
        match binary {
            BinaryKind::Add => self.bin(Op::Add, a, b),
            BinaryKind::Sub => self.bin(Op::Sub, a, b),
            BinaryKind::Mul => self.bin(Op::Mul, a, b),
            BinaryKind::Div => self.int_div(a, b),
            BinaryKind::Max => self.select(self.icmp(IP::SGT, a, b), a, b),
            BinaryKind::Min => self.select(self.icmp(IP::SLT, a, b), a, b),
            BinaryKind::And => self.bin(Op::And, a, b),
            BinaryKind::Or => self.bin(Op::Or, a, b),
            BinaryKind::Pow => a,
        }
    }

    fn compare(&self, compare: CompareKind, kind: Kind, a: V<'c>, b: V<'c>) -> V<'c> {
        use CompareKind::*;
        match kind {
            Kind::Float => {
                let predicate = match compare {
                    Eq => FP::OEQ,
                    Ne => FP::UNE,
                    Lt => FP::OLT,
                    Le => FP::OLE,
                    Gt => FP::OGT,
                    Ge => FP::OGE,
                };
                self.fcmp(predicate, a, b)
            }
            // False is less than true: as unsigned numbers of one bit.
            Kind::Int | Kind::Bool => {
                let predicate = match (compare, kind) {
                    (Eq, _) => IP::EQ,
                    (Ne, _) => IP::NE,
                    (Lt, Kind::Int) => IP::SLT,
                    (Le, Kind::Int) => IP::SLE,
                    (Gt, Kind::Int) => IP::SGT,
                    (Ge, Kind::Int) => IP::SGE,
                    (Lt, _) => IP::ULT,
                    (Le, _) => IP::ULE,
                    (Gt, _) => IP::UGT,
                    (Ge, _) => IP::UGE,
                };
                self.icmp(predicate, a, b)
            }
        }
    }

    fn convert(&self, dtype: DType, from: Kind, a: V<'c>) -> V<'c> {
        let w = self.width(a);
        let to = Kind::of(dtype);
        let value = match (from, to) {
            (Kind::Float, Kind::Int) => self.float_to_int(a),
            (Kind::Float, Kind::Bool) => self.fcmp(FP::UNE, a, self.cf(w, 0.0)),
            (Kind::Int, Kind::Float) => self.cast(Op::SIToFP, a, self.f32(w)),
            (Kind::Int, Kind::Bool) => self.icmp(IP::NE, a, self.ci(w, 0)),
            (Kind::Bool, Kind::Int) => self.cast(Op::ZExt, a, self.int(32, w)),
            (Kind::Bool, Kind::Float) => self.cast(Op::UIToFP, a, self.f32(w)),
            _ => a,
        };
        match dtype {
            DType::BF16 | DType::F16 => self.round_to(dtype, value),
            _ => value,
        }
    }
}
