//! Ops that write their result in parts, or reduce it: rope, concat, pad, update, reduce.

use super::express::{Dim, Map, base_scalar};
use super::func::{FuncLowering, View, dense_strides};
use super::kernel_build::KernelBuilder;
use pcc_ir::kernel::At;
use pcc_ir::ops::{BinaryKind, Op, Pad, Reduce, Rope, Update};
use pcc_ir::program::Scalar;
use pcc_ir::{DType, Diagnostic, Extent, Func, Inst, Type, ValueId};

/// Arguments that an `update` may change in place: used by nothing else, and its result is a result of the function.
pub(super) fn in_place_pairs(func: &Func) -> Vec<(usize, usize)> {
    let uses = |v: ValueId| {
        func.insts.iter().flat_map(|i| &i.args).filter(|&&a| a == v).count()
            + func.results.iter().filter(|&&r| r == v).count()
    };
    let mut pairs = Vec::new();
    for inst in func.insts.iter().filter(|i| matches!(i.op, Op::Update(_))) {
        let arg = func.args.iter().position(|&a| a == inst.args[0]);
        let result = func.results.iter().position(|&r| r == inst.results[0]);
        let once = func.results.iter().filter(|&&r| r == inst.results[0]).count() == 1;
        if let (Some(a), Some(r)) = (arg, result)
            && once
            && uses(inst.args[0]) == 1
        {
            pairs.push((a, r));
        }
    }
    pairs
}

impl<'a> FuncLowering<'a> {
    /// The rotation that makes `v`, if that is stored where it is converted and not before.
    pub fn rotation(&self, v: ValueId) -> Option<(&'a Inst, &'a Rope)> {
        let func: &'a Func = self.func;
        let inst = func.insts.get(*self.def.get(&v)?)?;
        match &inst.op {
            Op::Rope(r) if !self.owned.contains(&v) => Some((inst, r)),
            _ => None,
        }
    }
}

impl FuncLowering<'_> {
    /// `out` is what the rotation makes, or a conversion of it.
    pub fn lower_rope(&mut self, inst: &Inst, rope: &Rope, out: ValueId) -> Result<(), Diagnostic> {
        let (x, cos, sin) = (inst.args[0], inst.args[1], inst.args[2]);
        let ty = self.func.ty(out).clone();
        let last = ty.rank() - 1;
        let half = self.func.ty(cos).shape[2];
        let mut shape = ty.shape.clone();
        shape[last] = half;
        let to = self.destination(out);
        let mut extents = self.extents(out);
        extents[last] = Extent::full(half as u64);
        let mut k = KernelBuilder::new(extents);
        let part = |second: bool| {
            let mut map = Map::identity(&shape);
            map.0[last] = match (rope.interleaved, second) {
                (true, s) => Dim { iter: Some(last), scale: 2, offset: i64::from(s) },
                (false, s) => Dim { iter: Some(last), scale: 1, offset: if s { half as i64 } else { 0 } },
            };
            map
        };
        let angle = Map(vec![Dim::iter(0), Dim::iter(1), Dim::iter(last)]);
        let (first, second) = (part(false), part(true));
        let (a, b) = (self.express(&mut k, x, &first)?, self.express(&mut k, x, &second)?);
        let (c, s) = (self.express(&mut k, cos, &angle)?, self.express(&mut k, sin, &angle)?);
        let mut product = |p, q| k.binary(BinaryKind::Mul, p, q);
        let (ac, bs, bc, as_) = (product(a, c), product(b, s), product(b, c), product(a, s));
        let lo = k.binary(BinaryKind::Sub, ac, bs);
        let hi = k.binary(BinaryKind::Add, bc, as_);
        self.store(&mut k, &to, &first, &ty, lo);
        self.store(&mut k, &to, &second, &ty, hi);
        self.launch(k.finish("rope"), &Self::what(inst));
        if 2 * half < ty.shape[last] {
            self.copy_tail((x, out), &to, ty.dtype, last, 2 * half, &Self::what(inst))?;
        }
        Ok(())
    }

    /// Copies elements `from..` of dim `dim` of `v`, as far as `out` is there, to the same place of `to`, which has elements of `dtype`.
    fn copy_tail(
        &mut self,
        (v, out): (ValueId, ValueId),
        to: &View,
        dtype: DType,
        dim: usize,
        from: usize,
        what: &str,
    ) -> Result<(), Diagnostic> {
        let ty = Type { dtype, ..self.func.ty(v).clone() };
        let mut shape = ty.shape.clone();
        shape[dim] -= from;
        let mut extents = self.extents(out);
        extents[dim] = Extent::full(shape[dim] as u64);
        let mut k = KernelBuilder::new(extents);
        let mut map = Map::identity(&shape);
        map.0[dim].offset = from as i64;
        let node = self.express(&mut k, v, &map)?;
        self.store(&mut k, to, &map, &ty, node);
        self.launch(k.finish("copy"), what);
        Ok(())
    }

    pub fn lower_concat(&mut self, inst: &Inst, dim: usize) -> Result<(), Diagnostic> {
        let to = self.destination(inst.results[0]);
        let mut at = 0;
        for &a in &inst.args {
            let part = View { offset: to.offset + at * to.strides[dim], ..to.clone() };
            let length = self.func.ty(a).shape[dim];
            let mut extents = self.extents(inst.results[0]);
            extents[dim] = Extent::full(length as u64);
            self.copy_part(a, extents, &part, &Self::what(inst))?;
            at += length as i64;
        }
        Ok(())
    }

    pub fn lower_pad(&mut self, inst: &Inst, pad: &Pad) -> Result<(), Diagnostic> {
        let out = inst.results[0];
        let ty = self.func.ty(out).clone();
        let to = self.destination(out);
        if pad.low.iter().chain(&pad.high).any(|&n| n > 0) {
            let mut k = KernelBuilder::new(self.extents(out));
            let fill = k.constant(ty.dtype, pad.value);
            self.store(&mut k, &to, &Map::identity(&ty.shape), &ty, fill);
            self.launch(k.finish("fill"), &Self::what(inst));
        }
        let skip: i64 = pad.low.iter().zip(&to.strides).map(|(&l, &s)| l as i64 * s).sum();
        let inner = self.func.ty(inst.args[0]).shape.clone();
        let whole = |(d, e): (usize, Extent)| match pad.low[d] + pad.high[d] {
            0 => e,
            _ => Extent::full(inner[d] as u64),
        };
        let extents = self.extents(out).into_iter().enumerate().map(whole).collect();
        let to = View { offset: to.offset + skip, ..to };
        self.copy_part(inst.args[0], extents, &to, &Self::what(inst))
    }

    pub fn lower_update(&mut self, inst: &Inst, u: &Update) -> Result<(), Diagnostic> {
        let (old, new, start, out) = (inst.args[0], inst.args[1], inst.args[2], inst.results[0]);
        let to = match self.in_place_of(out) {
            Some(view) => {
                self.views.insert(out, view.clone());
                view
            }
            None => {
                let to = self.destination(out);
                self.copy_to(old, &to, &Self::what(inst))?;
                to
            }
        };
        let shape = self.func.ty(new).shape.clone();
        // Rows of the state are updated as far as they are there, and with as many as there are.
        let mut extents = self.extents(out);
        extents[u.batch] = self.extents(new)[u.batch].clone();
        let mut k = KernelBuilder::new(extents);
        let map = Map::identity(&shape);
        let node = self.express(&mut k, new, &map)?;
        let first = self.express(&mut k, start, &Map(map.0[..u.batch].to_vec()))?;
        let row = k.node(pcc_ir::kernel::Node::Index(u.batch as u32));
        let mut index = k.binary(BinaryKind::Add, first, row);
        let limit = match &u.base {
            Some(base) => {
                let b = k.scalar(base_scalar(base));
                index = k.binary(BinaryKind::Sub, index, b);
                Scalar::Valid { global: base.global as u64, axes: base.axes.clone() }
            }
            None => Scalar::Const(self.func.ty(out).shape[u.batch] as i64),
        };
        let limit = k.scalar_id(limit);
        let stride = k.scalar_id(Scalar::Const(to.strides[u.batch]));
        let mut place = map.clone();
        place.0[u.batch] = Dim::fixed(0);
        let (offset, strides) = place.address(&to, k.rank());
        let access = k.access(to.buf, offset, strides, self.func.ty(out).dtype, true);
        k.store(access, node, Some(At { index, stride, limit }));
        self.launch(k.finish("update"), &Self::what(inst));
        Ok(())
    }

    /// Loops over the operand of a reduction: what is reduced as a whole, the rest as far as the result is there.
    fn reduced_extents(&self, inst: &Inst, dims: &[usize]) -> Vec<Extent> {
        let mut kept = self.extents(inst.results[0]).into_iter();
        let extent = |(d, &n): (usize, &usize)| match dims.contains(&d) {
            true => Extent::full(n as u64),
            false => kept.next().unwrap_or(Extent::full(n as u64)),
        };
        self.func.ty(inst.args[0]).shape.iter().enumerate().map(extent).collect()
    }

    /// One row kernel per reduced dim, last dim first.
    pub fn lower_reduce(&mut self, inst: &Inst, reduce: &Reduce) -> Result<(), Diagnostic> {
        let out = inst.results[0];
        let ty = self.func.ty(inst.args[0]).clone();
        if !ty.dtype.is_float() {
            return Err(Diagnostic::input(format!("a reduction of {}", ty.dtype))
                .at(Self::what(inst))
                .why("the CPU target reduces floats")
                .help("convert the operand to f32 before the reduction"));
        }
        let mut dims = reduce.dims.clone();
        dims.sort_unstable();
        if dims.is_empty() {
            let to = self.destination(out);
            return self.copy_to(inst.args[0], &to, &Self::what(inst));
        }
        let mut shape = ty.shape.clone();
        let mut extents = self.reduced_extents(inst, &dims);
        let mut from: Option<View> = None;
        while let Some(dim) = dims.pop() {
            let order: Vec<usize> = (0..shape.len()).filter(|&d| d != dim).chain([dim]).collect();
            let mut k = KernelBuilder::new(order.iter().map(|&d| extents[d].clone()).collect());
            let map = Map::permuted(&order, &shape);
            let x = match &from {
                None => self.express(&mut k, inst.args[0], &map)?,
                Some(view) => {
                    let (offset, strides) = map.address(view, k.rank());
                    let access = k.access(view.buf, offset, strides, ty.dtype, false);
                    k.load(access)
                }
            };
            let r = k.row_reduce(reduce.kind, x);
            shape.remove(dim);
            extents.remove(dim);
            let part = Type::new(ty.dtype, shape.clone());
            let to = if dims.is_empty() {
                self.destination(out)
            } else {
                View { buf: self.frame_buffer(&part), offset: 0, strides: dense_strides(&shape) }
            };
            self.store(&mut k, &to, &Map::identity(&shape), &part, r);
            self.launch(k.finish("reduce"), &Self::what(inst));
            from = Some(to);
        }
        Ok(())
    }
}
