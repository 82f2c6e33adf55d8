//! Contractions as matrix products: dims of equal kind that step alike are merged; what remains of rows and columns beyond one dim
//! becomes outer loops, and operands whose contracted dims do not merge are copied dense first.

use super::func::{FuncLowering, View, dense_strides};
use super::storage;
use pcc_ir::ops::DotGeneral;
use pcc_ir::program::{BatchDim, Gemm, InstrKind, Matrix};
use pcc_ir::{DType, Diagnostic, Extent, Inst, ValueId};

/// One dim of a product: its extent and its stride in each of a, b and c (0 where it does not occur).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub extent: Extent,
    pub a: i64,
    pub b: i64,
    pub c: i64,
}

/// The dims of a product, each list major to minor.
#[derive(Default)]
struct Product {
    batch: Vec<Step>,
    m: Vec<Step>,
    n: Vec<Step>,
    k: Vec<Step>,
}

/// Drops dims of extent 1 and merges neighbours that step alike in all three matrices. All of the inner one has to be there.
pub(super) fn merge(steps: &[Step]) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for s in steps.iter().filter(|s| s.extent != Extent::full(1)) {
        let n = s.extent.full as i64;
        let goes_on = |o: &Step| o.extent.full == 1 || o.a == s.a * n && o.b == s.b * n && o.c == s.c * n;
        match out.last_mut() {
            Some(o) if s.extent.clip.is_none() && goes_on(o) => {
                *o = Step { extent: o.extent.times(s.extent.full), ..s.clone() };
            }
            _ => out.push(s.clone()),
        }
    }
    out
}

/// Takes the longest dim out of a merged list; an empty list gives a dim of extent 1.
pub(super) fn take_longest(steps: &mut Vec<Step>) -> Step {
    let longest = (0..steps.len()).max_by_key(|&i| (steps[i].extent.full, i));
    longest.map_or(Step { extent: Extent::full(1), a: 0, b: 0, c: 0 }, |i| steps.remove(i))
}

impl FuncLowering<'_> {
    /// The view of a value that something other than a kernel reads.
    pub fn view(&self, v: ValueId) -> Result<View, Diagnostic> {
        let view = self.views.get(&v).cloned();
        view.ok_or_else(|| Diagnostic::internal(format!("{v} enters an instruction without a buffer")))
    }

    fn emit_product(&mut self, p: Product, alpha: f64, views: [(&View, DType); 3], what: &str) {
        let (mut m, mut n, mut k) = (merge(&p.m), merge(&p.n), merge(&p.k));
        let (m1, n1, k1) = (take_longest(&mut m), take_longest(&mut n), take_longest(&mut k));
        let mut outer = p.batch;
        outer.extend(m);
        outer.extend(n);
        let batch = merge(&outer);
        let matrix = |(view, dtype): (&View, DType), row, col| Matrix {
            loc: Self::loc(view, dtype.bytes()),
            dtype,
            row,
            col,
        };
        let gemm = Gemm {
            m: m1.extent,
            n: n1.extent,
            k: k1.extent,
            alpha,
            a: matrix(views[0], m1.a, k1.a),
            b: matrix(views[1], k1.b, n1.b),
            c: matrix(views[2], m1.c, n1.c),
            batch: batch.into_iter().map(|s| BatchDim { extent: s.extent, a: s.a, b: s.b, c: s.c }).collect(),
            accumulate: false,
            packed: None,
        };
        self.emit(InstrKind::Gemm(gemm), what, String::new());
    }

    pub fn lower_dot(&mut self, inst: &Inst, dot: &DotGeneral) -> Result<(), Diagnostic> {
        if let Some(side) = storage::weight_side(self.func, inst)
            && let Some(&packed) = self.packed.get(&inst.args[side])
        {
            return self.lower_weight(inst, dot, side, packed);
        }
        let (lhs, rhs, out) = (inst.args[0], inst.args[1], inst.results[0]);
        let types = [lhs, rhs, out].map(|v| self.func.ty(v).dtype);
        if let Some(dtype) = types.iter().find(|d| !matches!(d, DType::F32 | DType::BF16 | DType::F16)) {
            return Err(Diagnostic::input(format!("a matrix product of {dtype}"))
                .at(Self::what(inst))
                .why("the CPU target multiplies f32, bf16 and f16 matrices")
                .help("convert the operands to f32 before the product"));
        }
        let (mut a, mut b) = (self.view(lhs)?, self.view(rhs)?);
        let c = self.destination(out);
        let mut p = self.dot_dims(dot, inst, &a, &b, &c);
        if merge(&p.k).len() > 1 {
            let what = Self::what(inst);
            a = self.dense_copy(lhs, &dot.lhs_batch, &dot.lhs_contract, &what)?;
            b = self.dense_copy(rhs, &dot.rhs_batch, &dot.rhs_contract, &what)?;
            p = self.dot_dims(dot, inst, &a, &b, &c);
        }
        self.emit_product(p, 1.0, [(&a, types[0]), (&b, types[1]), (&c, types[2])], &Self::what(inst));
        Ok(())
    }

    fn dot_dims(&self, dot: &DotGeneral, inst: &Inst, a: &View, b: &View, c: &View) -> Product {
        let (lhs, rhs) = (&self.func.ty(inst.args[0]).shape, &self.func.ty(inst.args[1]).shape);
        let made = self.extents(inst.results[0]);
        let contracted = self.clips.contracted(dot, inst, self.func);
        let mut p = Product::default();
        for (i, (&l, &r)) in dot.lhs_batch.iter().zip(&dot.rhs_batch).enumerate() {
            p.batch.push(Step { extent: made[i].clone(), a: a.strides[l], b: b.strides[r], c: c.strides[i] });
        }
        let mut at = dot.lhs_batch.len();
        for l in (0..lhs.len()).filter(|l| !dot.lhs_batch.contains(l) && !dot.lhs_contract.contains(l)) {
            p.m.push(Step { extent: made[at].clone(), a: a.strides[l], b: 0, c: c.strides[at] });
            at += 1;
        }
        for r in (0..rhs.len()).filter(|r| !dot.rhs_batch.contains(r) && !dot.rhs_contract.contains(r)) {
            p.n.push(Step { extent: made[at].clone(), a: 0, b: b.strides[r], c: c.strides[at] });
            at += 1;
        }
        for ((&l, &r), part) in dot.lhs_contract.iter().zip(&dot.rhs_contract).zip(contracted) {
            p.k.push(Step {
                extent: Extent::part(lhs[l] as u64, part),
                a: a.strides[l],
                b: b.strides[r],
                c: 0,
            });
        }
        p
    }

    /// A copy of `v` laid out as [batch, free, contracted], in the order the product names them.
    pub fn dense_copy(
        &mut self,
        v: ValueId,
        batch: &[usize],
        contract: &[usize],
        what: &str,
    ) -> Result<View, Diagnostic> {
        let ty = self.func.ty(v).clone();
        let free = (0..ty.rank()).filter(|d| !batch.contains(d) && !contract.contains(d));
        let order: Vec<usize> = batch.iter().copied().chain(free).chain(contract.iter().copied()).collect();
        let shape: Vec<usize> = order.iter().map(|&d| ty.shape[d]).collect();
        let mut strides = vec![0; order.len()];
        for (&d, s) in order.iter().zip(dense_strides(&shape)) {
            strides[d] = s;
        }
        let view = View { buf: self.frame_buffer(&ty), offset: 0, strides };
        self.copy_to(v, &view, what)?;
        Ok(view)
    }
}
