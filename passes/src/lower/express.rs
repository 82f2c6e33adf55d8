//! Turns inlined values into kernel nodes.

use super::func::{FuncLowering, View, unit_reshape};
use super::kernel_build::KernelBuilder;
use pcc_ir::kernel::{Node, NodeId};
use pcc_ir::ops::{
    BinaryKind, CompareKind, Gather, Iota, Literal, MaskTail, Op, ShardBase, ShardSlice, UnaryKind,
};
use pcc_ir::program::Scalar;
use pcc_ir::{DType, Diagnostic, Inst, ReduceKind, ValueId};

/// Where one dim of a value stands in the iteration space: index = scale * iteration index + offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    /// `None`: the index is the offset.
    pub iter: Option<usize>,
    pub scale: i64,
    pub offset: i64,
}

impl Dim {
    pub fn iter(d: usize) -> Self {
        Self { iter: Some(d), scale: 1, offset: 0 }
    }

    pub fn fixed(offset: i64) -> Self {
        Self { iter: None, scale: 0, offset }
    }
}

/// One entry per dim of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map(pub Vec<Dim>);

impl Map {
    /// Element offset and strides along the iteration dims of a view indexed through this map.
    pub fn address(&self, view: &View, rank: usize) -> (i64, Vec<i64>) {
        let mut offset = view.offset;
        let mut strides = vec![0; rank];
        for (dim, &stride) in self.0.iter().zip(&view.strides) {
            offset += dim.offset * stride;
            if let Some(d) = dim.iter {
                strides[d] += dim.scale * stride;
            }
        }
        (offset, strides)
    }
}

impl FuncLowering<'_> {
    /// Node of `v` at the element that `map` names.
    pub fn express(&mut self, k: &mut KernelBuilder, v: ValueId, map: &Map) -> Result<NodeId, Diagnostic> {
        if let Some(view) = self.views.get(&v) {
            let (offset, strides) = map.address(view, k.rank());
            let access = k.access(view.buf, offset, strides, self.func.ty(v).dtype, false);
            return Ok(k.load(access));
        }
        let func = self.func;
        match self.def.get(&v).and_then(|&at| func.insts.get(at)) {
            Some(inst) => self.express_inst(k, inst, map),
            None => Err(Diagnostic::internal(format!("{v} is used before it is defined"))),
        }
    }

    /// Node of the (single) result of `inst` at the element that `map` names.
    pub fn express_inst(
        &mut self,
        k: &mut KernelBuilder,
        inst: &Inst,
        map: &Map,
    ) -> Result<NodeId, Diagnostic> {
        let arg = |i: usize| inst.args[i];
        match &inst.op {
            Op::Constant(c) => match c.value {
                Literal::Splat(x) => Ok(k.constant(c.ty.dtype, x)),
                Literal::Dense(_) => Err(Diagnostic::internal("dense constant without a buffer")),
            },
            Op::Iota(i) => Ok(self.express_iota(k, i, map)),
            Op::Unary(kind) => {
                let a = self.express(k, arg(0), map)?;
                Ok(k.unary(*kind, a))
            }
            Op::Binary(kind) => {
                let a = self.express(k, arg(0), map)?;
                let b = self.express(k, arg(1), map)?;
                Ok(k.binary(*kind, a, b))
            }
            Op::Compare(kind) => {
                let a = self.express(k, arg(0), map)?;
                let b = self.express(k, arg(1), map)?;
                Ok(k.compare(*kind, a, b))
            }
            Op::Select => {
                let p = self.express(k, arg(0), map)?;
                let a = self.express(k, arg(1), map)?;
                let b = self.express(k, arg(2), map)?;
                Ok(k.select(p, a, b))
            }
            Op::Convert(to) => {
                let a = self.express(k, arg(0), map)?;
                Ok(self.convert(k, a, self.func.ty(arg(0)).dtype, *to))
            }
            Op::Broadcast(_) | Op::Transpose(_) | Op::Slice(_) | Op::Reshape(_) => {
                if let Some(view) = self.view_of(inst) {
                    let (offset, strides) = map.address(&view, k.rank());
                    let access =
                        k.access(view.buf, offset, strides, self.func.ty(inst.results[0]).dtype, false);
                    return Ok(k.load(access));
                }
                let inner = self.through_shape_op(inst, map)?;
                self.express(k, arg(0), &inner)
            }
            Op::MaskTail(m) => self.express_mask(k, inst, m, map),
            Op::ShardSlice(s) => self.express_shard_slice(k, inst, s, map),
            Op::Gather(g) => self.express_gather(k, inst, g, map),
            Op::RmsNorm(n) => self.express_rms_norm(k, inst, n.eps, map),
            Op::LayerNorm(n) => self.express_layer_norm(k, inst, n.eps, map),
            Op::Softmax(_) => {
                let x = self.express(k, arg(0), map)?;
                Ok(softmax(k, x))
            }
            op => Err(Diagnostic::internal(format!("`{}` cannot be part of a kernel", op.name()))),
        }
    }

    fn convert(&self, k: &mut KernelBuilder, a: NodeId, from: DType, to: DType) -> NodeId {
        let wide = |d: DType| match d {
            DType::I64 => DType::I32,
            DType::F64 => DType::F32,
            d => d,
        };
        if wide(from) == wide(to) { a } else { k.node(Node::Convert(wide(to), a)) }
    }

    /// The map of a shape op's operand.
    fn through_shape_op(&self, inst: &Inst, map: &Map) -> Result<Map, Diagnostic> {
        let in_shape = &self.func.ty(inst.args[0]).shape;
        let mut inner = vec![Dim::fixed(0); in_shape.len()];
        match &inst.op {
            Op::Broadcast(b) => {
                for (i, &d) in b.dims.iter().enumerate() {
                    inner[i] = map.0[d];
                }
            }
            Op::Transpose(perm) => {
                for (i, &p) in perm.iter().enumerate() {
                    inner[p] = map.0[i];
                }
            }
            Op::Slice(s) => {
                for (i, &start) in s.start.iter().enumerate() {
                    inner[i] = Dim { offset: map.0[i].offset + start as i64, ..map.0[i] };
                }
            }
            Op::Reshape(shape) => {
                let Some(from) = unit_reshape(in_shape, shape) else {
                    return Err(Diagnostic::internal(
                        "a reshape inside a kernel whose operand has no buffer",
                    ));
                };
                for (to, from) in from.iter().enumerate() {
                    if let Some(d) = *from {
                        inner[d] = map.0[to];
                    }
                }
            }
            op => return Err(Diagnostic::internal(format!("`{}` is no shape op", op.name()))),
        }
        Ok(Map(inner))
    }

    /// Index of a dim as an i32 node.
    fn index(&self, k: &mut KernelBuilder, dim: Dim) -> NodeId {
        let Some(d) = dim.iter else { return k.i32(dim.offset) };
        let mut n = k.node(Node::Index(d as u32));
        if dim.scale != 1 {
            let s = k.i32(dim.scale);
            n = k.binary(BinaryKind::Mul, n, s);
        }
        if dim.offset != 0 {
            let o = k.i32(dim.offset);
            n = k.binary(BinaryKind::Add, n, o);
        }
        n
    }

    fn express_iota(&self, k: &mut KernelBuilder, i: &Iota, map: &Map) -> NodeId {
        let mut n = self.index(k, map.0[i.dim]);
        if let Some(base) = &i.base {
            let b = k.scalar(base_scalar(base));
            n = k.binary(BinaryKind::Add, n, b);
        }
        self.convert(k, n, DType::I32, i.ty.dtype)
    }

    fn express_mask(
        &mut self,
        k: &mut KernelBuilder,
        inst: &Inst,
        m: &MaskTail,
        map: &Map,
    ) -> Result<NodeId, Diagnostic> {
        let x = self.express(k, inst.args[0], map)?;
        let at = self.index(k, map.0[m.dim]);
        let valid = k.scalar(Scalar::Valid { global: m.global as u64, axes: m.axes.clone() });
        let inside = k.compare(CompareKind::Lt, at, valid);
        let fill = k.constant(self.func.ty(inst.args[0]).dtype, m.value);
        Ok(k.select(inside, x, fill))
    }

    /// Address of an operand whose dim `dim` is indexed by a node instead of the map, and that dim's stride.
    fn indexed_access(
        &self,
        k: &mut KernelBuilder,
        v: ValueId,
        map: &Map,
        dim: usize,
    ) -> Result<(u32, i64), Diagnostic> {
        let view = self
            .views
            .get(&v)
            .ok_or_else(|| Diagnostic::internal(format!("{v} is indexed but has no buffer")))?;
        let (offset, strides) = map.address(view, k.rank());
        let access = k.access(view.buf, offset, strides, self.func.ty(v).dtype, false);
        Ok((access, view.strides[dim]))
    }

    fn express_shard_slice(
        &mut self,
        k: &mut KernelBuilder,
        inst: &Inst,
        s: &ShardSlice,
        map: &Map,
    ) -> Result<NodeId, Diagnostic> {
        let whole = self.func.ty(inst.args[0]).shape[s.dim].min(s.global);
        let mut rest = map.clone();
        rest.0[s.dim] = Dim::fixed(0);
        let (access, stride) = self.indexed_access(k, inst.args[0], &rest, s.dim)?;
        // Past the valid part of the piece nothing is read: an index outside gives zero.
        let at = self.index(k, map.0[s.dim]);
        let skip = k.scalar(Scalar::Base { global: s.global as u64, axes: s.axes.clone() });
        let valid = k.scalar(Scalar::Valid { global: s.global as u64, axes: s.axes.clone() });
        let inside = k.compare(CompareKind::Lt, at, valid);
        let shifted = k.binary(BinaryKind::Add, at, skip);
        let outside = k.i32(-1);
        let index = k.select(inside, shifted, outside);
        let stride = k.scalar_id(Scalar::Const(stride));
        let limit = k.scalar_id(Scalar::Const(whole as i64));
        Ok(k.node(Node::LoadAt { access, index, stride, limit }))
    }

    fn express_gather(
        &mut self,
        k: &mut KernelBuilder,
        inst: &Inst,
        g: &Gather,
        map: &Map,
    ) -> Result<NodeId, Diagnostic> {
        let (table, indices) = (inst.args[0], inst.args[1]);
        let index_rank = self.func.ty(indices).rank();
        let mut index = self.express(k, indices, &Map(map.0[..index_rank].to_vec()))?;
        let rows = self.func.ty(table).shape[g.batch];
        let mut limit = Scalar::Const(rows as i64);
        if let Some(base) = &g.base {
            let b = k.scalar(base_scalar(base));
            index = k.binary(BinaryKind::Sub, index, b);
            limit = Scalar::Valid { global: base.global as u64, axes: base.axes.clone() };
        }
        // Of a table of positions, those that the run does not have are not there either.
        if let Some(there) = self.clips.table(g, inst) {
            limit = Scalar::There(Box::new(there));
        }
        let limit = k.scalar_id(limit);
        let mut dims = map.0[..g.batch].to_vec();
        dims.push(Dim::fixed(0));
        dims.extend_from_slice(&map.0[index_rank..]);
        let (access, stride) = self.indexed_access(k, table, &Map(dims), g.batch)?;
        let stride = k.scalar_id(Scalar::Const(stride));
        Ok(k.node(Node::LoadAt { access, index, stride, limit }))
    }

    fn express_rms_norm(
        &mut self,
        k: &mut KernelBuilder,
        inst: &Inst,
        eps: f64,
        map: &Map,
    ) -> Result<NodeId, Diagnostic> {
        let x = self.express(k, inst.args[0], map)?;
        let squares = k.binary(BinaryKind::Mul, x, x);
        let r = mean_rsqrt(k, squares, eps);
        let normal = k.binary(BinaryKind::Mul, x, r);
        let weight = self.express(k, inst.args[1], &Map(vec![map.0[map.0.len() - 1]]))?;
        Ok(k.binary(BinaryKind::Mul, normal, weight))
    }

    fn express_layer_norm(
        &mut self,
        k: &mut KernelBuilder,
        inst: &Inst,
        eps: f64,
        map: &Map,
    ) -> Result<NodeId, Diagnostic> {
        let x = self.express(k, inst.args[0], map)?;
        let sum = k.row_reduce(ReduceKind::Sum, x);
        let inverse = k.f32(1.0 / k.extent(k.lane()) as f64);
        let mean = k.binary(BinaryKind::Mul, sum, inverse);
        let centred = k.binary(BinaryKind::Sub, x, mean);
        let squares = k.binary(BinaryKind::Mul, centred, centred);
        let r = mean_rsqrt(k, squares, eps);
        let normal = k.binary(BinaryKind::Mul, centred, r);
        let last = Map(vec![map.0[map.0.len() - 1]]);
        let weight = self.express(k, inst.args[1], &last)?;
        let scaled = k.binary(BinaryKind::Mul, normal, weight);
        let bias = self.express(k, inst.args[2], &last)?;
        Ok(k.binary(BinaryKind::Add, scaled, bias))
    }
}

/// The offset of a device's piece.
pub(super) fn base_scalar(base: &ShardBase) -> Scalar {
    Scalar::Base { global: base.global as u64, axes: base.axes.clone() }
}

/// `1 / sqrt(mean over the lane + eps)`.
fn mean_rsqrt(k: &mut KernelBuilder, squares: NodeId, eps: f64) -> NodeId {
    let sum = k.row_reduce(ReduceKind::Sum, squares);
    let inverse = k.f32(1.0 / k.extent(k.lane()) as f64);
    let mean = k.binary(BinaryKind::Mul, sum, inverse);
    let eps = k.f32(eps);
    let shifted = k.binary(BinaryKind::Add, mean, eps);
    k.unary(UnaryKind::Rsqrt, shifted)
}

/// Softmax over the lane.
fn softmax(k: &mut KernelBuilder, x: NodeId) -> NodeId {
    let max = k.row_reduce(ReduceKind::Max, x);
    let shifted = k.binary(BinaryKind::Sub, x, max);
    let e = k.unary(UnaryKind::Exp, shifted);
    let sum = k.row_reduce(ReduceKind::Sum, e);
    k.binary(BinaryKind::Div, e, sum)
}
