//! The largest elements of each row, and where they are.

use super::{Define, Op, need_float, operands};
use crate::eval::{At, Tensor};
use crate::rule::{FactorKind, Rule, Split};
use crate::types::{DType, Type};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Most elements of a row: indices of it, and of what blocks of threads read beyond its end, are i32.
pub const MOST: usize = 1 << 30;

/// `top_k(x [.., n]) -> (values [.., k], indices i32 [.., k])`: the `k` largest elements of each row, largest first. Of equal elements the
/// one with the lower index comes first; NaN counts as larger than any number, and zeros of either sign are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    pub k: usize,
}

impl TopK {
    /// Orders elements with their indices as the op does, first come first.
    pub fn order(a: (f64, usize), b: (f64, usize)) -> Ordering {
        let larger = match (a.0.is_nan(), b.0.is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            // invariant: numbers that are not NaN can be compared.
            (false, false) => b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal),
        };
        larger.then(a.1.cmp(&b.1))
    }
}

impl Define for TopK {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        need_float(x)?;
        let Some((&n, rows)) = x.shape.split_last() else { return Err("needs at least one dim".to_owned()) };
        if self.k == 0 || self.k > n {
            return Err(format!("k is {}, of rows of {n}", self.k));
        }
        if n > MOST {
            return Err(format!("rows of {n} elements are too long: at most {MOST}"));
        }
        let shape = [rows, &[self.k]].concat();
        Ok(vec![Type::new(x.dtype, shape.clone()), Type::new(DType::I32, shape)])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let (&n, rows) = args[0].shape.split_last().unwrap_or((&1, &[]));
        let rows = rule.dims(rows, FactorKind::Pass);
        let whole = rule.factor(n, FactorKind::Replicate);
        let kept = rule.factor(self.k, FactorKind::Replicate);
        rule.operands.push([&rows[..], &[vec![whole]]].concat());
        rule.results = vec![[&rows[..], &[vec![kept]]].concat(); 2];
        rule
    }

    /// A comparison an element.
    fn flops(&self, args: &[&Type], _: &[&Type]) -> f64 {
        args[0].elements() as f64
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::TopK(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        let n = args[0].ty.shape.last().copied().unwrap_or(1).max(1);
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for row in args[0].data.chunks_exact(n) {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| Self::order((row[a], a), (row[b], b)));
            values.extend(order[..self.k].iter().map(|&i| row[i]));
            indices.extend(order[..self.k].iter().map(|&i| i as f64));
        }
        Ok(vec![Tensor::new(results[0].clone(), values)?, Tensor::new(results[1].clone(), indices)?])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{floats, refused};
    use super::*;

    fn top(k: usize, x: &Tensor) -> (Vec<f64>, Vec<f64>) {
        let op = Op::TopK(TopK { k });
        let types = op.infer(&[&x.ty]).unwrap();
        let mut out = op.eval(&[x], &types.iter().collect::<Vec<_>>(), At::default()).unwrap();
        let indices = out.pop().unwrap().data;
        (out.pop().unwrap().data, indices)
    }

    #[test]
    fn largest_first_and_ties_by_index() {
        let x = floats(&[2, 4], &[1.0, 3.0, 2.0, 3.0, -1.0, -0.0, 0.0, -5.0]);
        assert_eq!(top(3, &x), (vec![3.0, 3.0, 2.0, 0.0, 0.0, -1.0], vec![1.0, 3.0, 2.0, 1.0, 2.0, 0.0]));
        let all = top(4, &x).1;
        assert_eq!(all, [1.0, 3.0, 2.0, 0.0, 1.0, 2.0, 0.0, 3.0]);
        let odd = floats(&[4], &[f64::INFINITY, f64::NAN, f64::NEG_INFINITY, f64::NAN]);
        assert_eq!(top(4, &odd).1, [1.0, 3.0, 0.0, 2.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        refused(Op::TopK(TopK { k: 0 }), &[Type::f32([3])], "k is 0, of rows of 3");
        refused(Op::TopK(TopK { k: 4 }), &[Type::f32([2, 3])], "k is 4");
        refused(Op::TopK(TopK { k: 1 }), &[Type::f32([])], "at least one dim");
        refused(Op::TopK(TopK { k: 1 }), &[Type::i32([3])], "floating-point");
        refused(Op::TopK(TopK { k: 1 }), &[Type::f32([MOST + 1])], "too long");
        assert!(Op::TopK(TopK { k: 1 }).infer(&[&Type::f32([MOST])]).is_ok());
    }
}
