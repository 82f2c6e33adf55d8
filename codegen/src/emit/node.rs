//! Values of nodes: the same formulas for per-row scalars and per-element vectors.

use super::ir::{FP, IP, Op, V, Width};
use super::kernel::Emitter;
use super::row::{Block, Row};
use pcc_ir::kernel::{Node, NodeId};
use pcc_ir::kernel_check::Kind;
use pcc_ir::ops::{BinaryKind, CompareKind, UnaryKind};
use pcc_ir::types::DType;

impl<'c> Emitter<'_, 'c> {
    /// A per-row node; its operands are in `row.values`.
    pub(super) fn row_node(&self, row: &mut Row<'c>, node: NodeId) -> V<'c> {
        match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load_row(row, access, None),
            Node::LoadAt { access, index, stride, limit } => {
                let site = self.site(row, access, index, stride, limit);
                self.load_row(row, access, Some(site))
            }
            Node::Index(dim) => {
                let index = row.index[dim as usize];
                self.ir.cast(Op::Trunc, index.into(), self.ir.int(32, 0))
            }
            _ => self.formula(node, 0, &row.values),
        }
    }

    /// A per-element node for a block; its operands are in `values`.
    pub(super) fn lane_node(
        &self,
        row: &Row<'c>,
        values: &[Option<V<'c>>],
        node: NodeId,
        block: Block<'c>,
    ) -> V<'c> {
        let (ir, w) = (self.ir, self.w);
        match self.kernel.nodes[node as usize] {
            Node::Load(access) => self.load_lanes(row, access, None, block),
            Node::LoadAt { access, index, stride, limit } => match row.load_sites[node as usize] {
                Some(site) => self.load_lanes(row, access, Some(site), block),
                None => {
                    let index = values[index as usize].unwrap_or(ir.ci(w, 0));
                    self.load_indexed(row, access, index, (stride, limit), block)
                }
            },
            Node::Index(_) => {
                let first = ir.cast(Op::Trunc, block.at.into(), ir.int(32, 0));
                ir.bin(Op::Add, ir.splat(first, w), ir.iota(32, w))
            }
            _ => self.formula(node, w, values),
        }
    }

    /// A node that is neither a load nor an index.
    fn formula(&self, node: NodeId, w: Width, values: &[Option<V<'c>>]) -> V<'c> {
        let ir = self.ir;
        let value = |n: NodeId| values[n as usize].unwrap_or(ir.cf(w, 0.0));
        let kind = |n: NodeId| self.info.kinds[n as usize];
        match self.kernel.nodes[node as usize] {
            Node::Const { dtype, bits } => self.constant(w, dtype, bits),
            Node::Scalar(s) => {
                ir.splat(ir.cast(Op::Trunc, self.scalars[s as usize].into(), ir.int(32, 0)), w)
            }
            Node::Unary(unary, a) => match kind(a) {
                Kind::Float => ir.float_unary(unary, value(a)),
                _ => self.int_unary(unary, value(a)),
            },
            Node::Binary(binary, a, b) => match kind(a) {
                Kind::Float => self.float_binary(binary, value(a), value(b)),
                _ => self.int_binary(binary, value(a), value(b)),
            },
            Node::Compare(compare, a, b) => self.compare(compare, kind(a), value(a), value(b)),
            Node::Select(c, a, b) => ir.select(value(c), value(a), value(b)),
            Node::Convert(dtype, a) => self.convert(dtype, kind(a), value(a)),
            // Loads and indices are handled above, reductions by their pass.
            Node::Load(_) | Node::LoadAt { .. } | Node::Index(_) | Node::RowReduce(..) => ir.cf(w, 0.0),
        }
    }

    fn constant(&self, w: Width, dtype: DType, bits: u64) -> V<'c> {
        let ir = self.ir;
        match dtype {
            DType::F64 => ir.cf(w, f64::from_bits(bits) as f32),
            DType::F32 => ir.cf(w, f32::from_bits(bits as u32)),
            DType::BF16 => ir.cf(w, half::bf16::from_bits(bits as u16).to_f32()),
            DType::F16 => ir.cf(w, half::f16::from_bits(bits as u16).to_f32()),
            DType::I64 | DType::I32 => ir.ci(w, bits as i32),
            DType::Bool => ir.cb(w, bits != 0),
        }
    }

    /// Integers and booleans.
    fn int_unary(&self, unary: UnaryKind, a: V<'c>) -> V<'c> {
        let ir = self.ir;
        let zero = ir.zero(a.get_type());
        let negative = |a| ir.icmp(IP::SLT, a, zero);
        match unary {
            UnaryKind::Neg => ir.bin(Op::Sub, zero, a),
            UnaryKind::Abs => ir.select(negative(a), ir.bin(Op::Sub, zero, a), a),
            UnaryKind::Relu => ir.select(negative(a), zero, a),
            UnaryKind::Not => {
                let ones = match a.get_type() == ir.int(1, ir.width(a)) {
                    true => ir.cb(ir.width(a), true),
                    false => ir.ci(ir.width(a), -1),
                };
                ir.bin(Op::Xor, a, ones)
            }
            _ => a,
        }
    }

    fn float_binary(&self, binary: BinaryKind, a: V<'c>, b: V<'c>) -> V<'c> {
        let ir = self.ir;
        match binary {
            BinaryKind::Add => ir.fadd(a, b),
            BinaryKind::Sub => ir.fsub(a, b),
            BinaryKind::Mul => ir.fmul(a, b),
            BinaryKind::Div => ir.fdiv(a, b),
            BinaryKind::Max => ir.extreme(true, a, b),
            BinaryKind::Min => ir.extreme(false, a, b),
            BinaryKind::Pow => ir.pow(a, b),
            BinaryKind::And | BinaryKind::Or => a,
        }
    }

    fn int_binary(&self, binary: BinaryKind, a: V<'c>, b: V<'c>) -> V<'c> {
        let ir = self.ir;
        match binary {
            BinaryKind::Add => ir.bin(Op::Add, a, b),
            BinaryKind::Sub => ir.bin(Op::Sub, a, b),
            BinaryKind::Mul => ir.bin(Op::Mul, a, b),
            BinaryKind::Div => ir.int_div(a, b),
            BinaryKind::Max => ir.select(ir.icmp(IP::SGT, a, b), a, b),
            BinaryKind::Min => ir.select(ir.icmp(IP::SLT, a, b), a, b),
            BinaryKind::And => ir.bin(Op::And, a, b),
            BinaryKind::Or => ir.bin(Op::Or, a, b),
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
                self.ir.fcmp(predicate, a, b)
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
                self.ir.icmp(predicate, a, b)
            }
        }
    }

    fn convert(&self, dtype: DType, from: Kind, a: V<'c>) -> V<'c> {
        let ir = self.ir;
        let w = ir.width(a);
        let to = Kind::of(dtype);
        let value = match (from, to) {
            (Kind::Float, Kind::Int) => ir.float_to_int(a),
            (Kind::Float, Kind::Bool) => ir.fcmp(FP::UNE, a, ir.cf(w, 0.0)),
            (Kind::Int, Kind::Float) => ir.cast(Op::SIToFP, a, ir.f32(w)),
            (Kind::Int, Kind::Bool) => ir.icmp(IP::NE, a, ir.ci(w, 0)),
            (Kind::Bool, Kind::Int) => ir.cast(Op::ZExt, a, ir.int(32, w)),
            (Kind::Bool, Kind::Float) => ir.cast(Op::UIToFP, a, ir.f32(w)),
            _ => a,
        };
        match dtype {
            DType::BF16 | DType::F16 => ir.round_to(dtype, value),
            _ => value,
        }
    }
}
