//! Parameters in panels: products with them, and rows looked up in them.

use super::express::base_scalar;
use super::func::{FuncLowering, View};
use super::gemm::{Step, merge, take_longest};
use pcc_ir::ops::{DotGeneral, Gather};
use pcc_ir::program::{BatchDim, Gemm, InstrKind, Matrix, PackedMatrix, Rows, Scalar};
use pcc_ir::{Diagnostic, Extent, Inst};

/// The one dim that merged steps are; none is a dim of extent 1.
fn single(steps: &[Step]) -> Option<Step> {
    match merge(steps).as_slice() {
        [] => Some(Step { extent: Extent::full(1), a: 0, b: 0, c: 0 }),
        [step] => Some(step.clone()),
        _ => None,
    }
}

impl FuncLowering<'_> {
    /// A product whose operand `side` is a parameter in panels of the matrix `packed`. Its contracted dims, ascending, are k.
    pub fn lower_weight(
        &mut self,
        inst: &Inst,
        dot: &DotGeneral,
        side: usize,
        packed: PackedMatrix,
    ) -> Result<(), Diagnostic> {
        let (weight, x, out) = (inst.args[side], inst.args[1 - side], inst.results[0]);
        let contracted = match side {
            0 => dot.lhs_contract.iter().zip(&dot.rhs_contract),
            _ => dot.rhs_contract.iter().zip(&dot.lhs_contract),
        };
        let mut pairs: Vec<(usize, usize)> = contracted.map(|(&w, &x)| (w, x)).collect();
        pairs.sort_unstable();
        let order: Vec<usize> = pairs.iter().map(|p| p.1).collect();
        let (types, what) = ([x, weight, out].map(|v| self.func.ty(v).clone()), Self::what(inst));
        let c = self.destination(out);
        let free: Vec<usize> = (0..types[0].rank()).filter(|d| !order.contains(d)).collect();
        // The left operand's free dims come first in the result.
        let (rows, columns) = match side {
            0 => c.strides.split_at(c.strides.len() - free.len()),
            _ => c.strides.split_at(free.len()),
        };
        let (rows, columns) = if side == 0 { (columns, rows) } else { (rows, columns) };
        let made = self.extents(out);
        let (tall, wide) = match side {
            0 => made.split_at(made.len() - free.len()),
            _ => made.split_at(free.len()),
        };
        let (tall, wide) = if side == 0 { (wide, tall) } else { (tall, wide) };
        let parts = self.clips.contracted(dot, inst, self.func);
        let part = |d: usize| match side {
            0 => dot.rhs_contract.iter().position(|&r| r == d).and_then(|i| parts[i].clone()),
            _ => dot.lhs_contract.iter().position(|&l| l == d).and_then(|i| parts[i].clone()),
        };
        let step = |d: usize, extent: Extent, a: &View, c: i64| Step { extent, a: a.strides[d], b: 0, c };
        // Rows that are clipped inside of the batch stay a loop around the product.
        let dims = |a: &View| {
            let rows = free.iter().zip(tall).zip(rows);
            let m: Vec<Step> = rows.map(|((&d, e), &c)| step(d, e.clone(), a, c)).collect();
            let whole = |d: usize| types[0].shape[d] as u64;
            let k: Vec<Step> =
                order.iter().map(|&d| step(d, Extent::part(whole(d), part(d)), a, 0)).collect();
            Some((merge(&m), single(&k)?))
        };
        let mut a = self.view(x)?;
        let (mut m, k) = match dims(&a) {
            Some(found) => found,
            None => {
                a = self.dense_copy(x, &[], &order, &what)?;
                dims(&a).ok_or_else(|| Diagnostic::internal(format!("terms of {what} do not step evenly")))?
            }
        };
        let one = take_longest(&mut m);
        let across = |clipped: bool| {
            let extent = |e: &Extent| if clipped { e.clone() } else { Extent::full(e.full) };
            let steps = wide.iter().zip(columns).map(|(e, &c)| Step { extent: extent(e), a: 0, b: 0, c });
            single(&steps.collect::<Vec<_>>())
        };
        // Panels have one dim of columns: a clip inside of another dim is left out.
        let n = across(true)
            .or_else(|| across(false))
            .ok_or_else(|| Diagnostic::internal(format!("columns of {what} do not step evenly")))?;
        let matrix = |view: &View, i: usize, row, col| {
            let dtype = types[i].dtype;
            Matrix { loc: Self::loc(view, dtype.bytes()), dtype, row, col }
        };
        let gemm = Gemm {
            m: one.extent,
            n: n.extent,
            k: k.extent,
            alpha: 1.0,
            a: matrix(&a, 0, one.a, k.a),
            b: matrix(&self.view(weight)?, 1, 0, 0),
            c: matrix(&c, 2, one.c, n.c),
            batch: m.into_iter().map(|s| BatchDim { extent: s.extent, a: s.a, b: 0, c: s.c }).collect(),
            accumulate: false,
            packed: Some(packed),
        };
        self.emit(InstrKind::Gemm(gemm), &what, String::new());
        Ok(())
    }

    /// Rows of a table in panels, into a buffer.
    pub fn lower_look_up(&mut self, inst: &Inst, gather: &Gather) -> Result<(), Diagnostic> {
        let (table, indices, out) = (inst.args[0], inst.args[1], inst.results[0]);
        let what = Self::what(inst);
        let Some(&packed) = self.packed.get(&table) else {
            return Err(Diagnostic::internal(format!("{what} looks up rows of no panels")));
        };
        let rows = self.func.ty(table).shape[0];
        let (base, valid) = match &gather.base {
            Some(base) => {
                (base_scalar(base), Scalar::Valid { global: base.global as u64, axes: base.axes.clone() })
            }
            None => (Scalar::Const(0), Scalar::Const(rows as i64)),
        };
        // One loop: along the major dim, which alone may be clipped.
        let made = self.extents(out);
        let dims = self.func.ty(indices).rank();
        let count = made[..dims].iter().fold(Extent::full(1), |count, e| match count == Extent::full(1) {
            true => e.clone(),
            false => count.times(e.full),
        });
        let (index, dtype) = (self.dense(indices, &what)?, self.func.ty(out).dtype);
        let (table, to) = (self.view(table)?, self.destination(out));
        let rows = Rows {
            table: Self::loc(&table, 1),
            packed,
            dtype,
            indices: Self::loc(&index, 4),
            count,
            out: Self::loc(&to, dtype.bytes()),
            base,
            valid,
        };
        self.emit(InstrKind::Rows(rows), &what, String::new());
        Ok(())
    }
}
