//! General matrix product.

use super::{Define, Op, need_dim, need_float, operands};
use crate::eval::{At, Tensor, rounded, strides};
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// General matrix product. Result dims: batch dims, then the lhs's free dims, then the rhs's free dims, each in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DotGeneral {
    pub lhs_batch: Vec<usize>,
    pub rhs_batch: Vec<usize>,
    pub lhs_contract: Vec<usize>,
    pub rhs_contract: Vec<usize>,
    /// Element type of the result (StableHLO's preferred element type); the operands' without one. Sums are rounded once, to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<DType>,
}

impl DotGeneral {
    /// Dims of the left operand, of that rank, that are neither batch nor contracted.
    pub fn lhs_free(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|d| !self.lhs_batch.contains(d) && !self.lhs_contract.contains(d)).collect()
    }

    /// Dims of the right operand, of that rank, that are neither batch nor contracted.
    pub fn rhs_free(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|d| !self.rhs_batch.contains(d) && !self.rhs_contract.contains(d)).collect()
    }

    fn check_side(&self, ty: &Type, batch: &[usize], contract: &[usize]) -> Result<(), String> {
        let mut seen = vec![false; ty.rank()];
        for &d in batch.iter().chain(contract) {
            need_dim(d, ty)?;
            if std::mem::replace(&mut seen[d], true) {
                return Err(format!("dim {d} of {ty} is named twice"));
            }
        }
        Ok(())
    }
}

impl Define for DotGeneral {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [lhs, rhs] = operands(args)?;
        need_float(lhs)?;
        if lhs.dtype != rhs.dtype {
            return Err(format!("the operands {lhs} and {rhs} have different elements"));
        }
        self.check_side(lhs, &self.lhs_batch, &self.lhs_contract)?;
        self.check_side(rhs, &self.rhs_batch, &self.rhs_contract)?;
        let paired = |l: &[usize], r: &[usize]| {
            l.len() == r.len() && l.iter().zip(r).all(|(&l, &r)| lhs.shape[l] == rhs.shape[r])
        };
        if !paired(&self.lhs_batch, &self.rhs_batch) || !paired(&self.lhs_contract, &self.rhs_contract) {
            return Err(format!("batch or contracted dims of {lhs} and {rhs} do not match"));
        }
        let left = self.lhs_batch.iter().copied().chain(self.lhs_free(lhs.rank())).map(|d| lhs.shape[d]);
        let right = self.rhs_free(rhs.rank()).into_iter().map(|d| rhs.shape[d]);
        let dtype = self.result.unwrap_or(lhs.dtype);
        if !dtype.is_float() {
            return Err(format!("the result of a product cannot be {dtype}"));
        }
        Ok(vec![Type::new(dtype, left.chain(right).collect::<Vec<_>>())])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let left = rule.dims(&args[0].shape, FactorKind::Pass);
        let mut right = vec![Vec::new(); args[1].rank()];
        for (&l, &r) in self.lhs_contract.iter().zip(&self.rhs_contract) {
            rule.factors[left[l][0]].kind = FactorKind::Reduce(ReduceKind::Sum);
            right[r] = left[l].clone();
        }
        for (&l, &r) in self.lhs_batch.iter().zip(&self.rhs_batch) {
            right[r] = left[l].clone();
        }
        let free = self.rhs_free(args[1].rank());
        for &r in &free {
            right[r] = vec![rule.factor(args[1].shape[r], FactorKind::Pass)];
        }
        let lhs_dims = self.lhs_batch.iter().copied().chain(self.lhs_free(args[0].rank()));
        let result =
            lhs_dims.map(|d| left[d].clone()).chain(free.iter().map(|&d| right[d].clone())).collect();
        rule.operands = vec![left, right];
        rule.results = vec![result];
        rule
    }

    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        let depth: usize = self.lhs_contract.iter().map(|&d| args[0].shape[d]).product();
        2.0 * results[0].elements() as f64 * depth as f64
    }

    /// Linear in each operand, so exactly one may be a partial sum.
    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        match (args[0], args[1]) {
            (Some(ReduceKind::Sum), None) | (None, Some(ReduceKind::Sum)) => Some(ReduceKind::Sum),
            _ => None,
        }
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::DotGeneral(self.clone())
    }

    /// Both operands are laid out as [batch, rows, depth] and [batch, depth, columns].
    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let (lhs, rhs) = (args[0], args[1]);
        let (lhs_free, rhs_free) = (self.lhs_free(lhs.ty.rank()), self.rhs_free(rhs.ty.rank()));
        let a = reorder(lhs, &[&self.lhs_batch, &lhs_free, &self.lhs_contract]);
        let b = reorder(rhs, &[&self.rhs_batch, &self.rhs_contract, &rhs_free]);
        let size = |t: &Tensor, dims: &[usize]| dims.iter().map(|&d| t.ty.shape[d]).product::<usize>();
        let (rows, depth, columns) =
            (size(lhs, &lhs_free), size(lhs, &self.lhs_contract), size(rhs, &rhs_free));
        let mut out = vec![0.0; results[0].elements()];
        for (i, row) in out.chunks_exact_mut(columns).enumerate() {
            let left = &a[i * depth..(i + 1) * depth];
            let right = &b[i / rows * depth * columns..(i / rows + 1) * depth * columns];
            for (&x, line) in left.iter().zip(right.chunks_exact(columns)) {
                row.iter_mut().zip(line).for_each(|(sum, &y)| *sum += x * y);
            }
        }
        Ok(vec![rounded(Tensor { ty: results[0].clone(), data: out })])
    }
}

/// The elements with dims in the given order.
fn reorder(t: &Tensor, groups: &[&[usize]]) -> Vec<f64> {
    let order: Vec<usize> = groups.iter().flat_map(|g| g.iter().copied()).collect();
    let steps = strides(&t.ty.shape);
    let shape: Vec<_> = order.iter().map(|&d| t.ty.shape[d]).collect();
    let steps: Vec<_> = order.iter().map(|&d| steps[d]).collect();
    t.view(0, &shape, &steps)
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, refused, wave};
    use super::*;

    /// `numpy.einsum("abcd,aecd->abe")`.
    #[test]
    fn batch_and_two_contracted_dims_equal_numpy() {
        let dot = DotGeneral {
            lhs_batch: vec![0],
            rhs_batch: vec![0],
            lhs_contract: vec![2, 3],
            rhs_contract: vec![2, 3],
            result: None,
        };
        let want = [
            3.3310250349,
            -1.9727919399,
            -0.4215762778,
            -3.3213732546,
            2.2102891423,
            0.0616666085,
            1.9618820073,
            -3.192836244,
            2.7468727549,
            -1.5832626515,
            2.9896030633,
            -2.8257663702,
        ];
        check(Op::DotGeneral(dot), &[wave(&[2, 2, 2, 3], 0.5, 0.1), wave(&[2, 3, 2, 3], 0.4, 0.2)], &want);
    }

    #[test]
    fn a_product_by_hand() {
        let dot = DotGeneral { lhs_contract: vec![0], rhs_contract: vec![1], ..DotGeneral::default() };
        // Columns of the first, rows of the second.
        let (a, b) = (floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), floats(&[2, 2], &[5.0, 6.0, 7.0, 8.0]));
        check(Op::DotGeneral(dot.clone()), &[a, b], &[23.0, 31.0, 34.0, 46.0]);
        let (a, b) = (Type::f32([4, 3]), Type::f32([5, 4]));
        assert_eq!(Op::DotGeneral(dot).flops(&[&a, &b], &[&Type::f32([3, 5])]), 120.0);
    }

    #[test]
    fn misfits_are_refused() {
        let dot = |l: &[usize], r: &[usize]| {
            let (lhs_contract, rhs_contract) = (l.to_vec(), r.to_vec());
            Op::DotGeneral(DotGeneral { lhs_contract, rhs_contract, ..DotGeneral::default() })
        };
        let types = [Type::f32([2, 3]), Type::f32([4, 5])];
        refused(dot(&[1], &[0]), &types, "do not match");
        refused(dot(&[2], &[0]), &types, "no dim 2");
        refused(dot(&[0, 0], &[0, 1]), &types, "named twice");
        refused(dot(&[0], &[0]), &[Type::f32([2]), Type::new(crate::DType::BF16, [2])], "different elements");
    }
}
