//! Rows of a table by index: embedding look-up, and picking each row's last token.

use super::{Define, Op, ShardBase, operands};
use crate::eval::{At, Tensor};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `gather(operand [B.., N, rest..], indices i32 [B.., I..]) -> [B.., I.., rest..]`, the first `batch` dims shared. An index
/// outside `0..N` (after subtracting the base) gives zeros.
///
/// N is a sum reduction: each device gives the rows it holds and zeros for the others. The local form
/// ([`Gather::base`]) knows the span it holds, so the padding of N is never read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    pub batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ShardBase>,
}

impl Define for Gather {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x, indices] = operands(args)?;
        if indices.dtype != DType::I32 {
            return Err(format!("indices must be i32, got {indices}"));
        }
        let b = self.batch;
        if x.rank() <= b || indices.rank() < b || x.shape[..b] != indices.shape[..b] {
            return Err(format!("{x} and {indices} do not share {b} batch dims before the indexed one"));
        }
        let shape = [&indices.shape[..], &x.shape[b + 1..]].concat();
        Ok(vec![Type::new(x.dtype, shape)])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let indices = rule.dims(&args[1].shape, FactorKind::Pass);
        let rows = rule.factor(args[0].shape[self.batch], FactorKind::Reduce(ReduceKind::Sum));
        rule.factors[rows].skips_padding = true;
        let rest = rule.dims(&args[0].shape[self.batch + 1..], FactorKind::Pass);
        let table = [&indices[..self.batch], &[vec![rows]], &rest[..]].concat();
        rule.results.push([&indices[..], &rest[..]].concat());
        rule.operands = vec![table, indices];
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    /// Only the rows named are read.
    fn bytes(&self, args: &[&Type], results: &[&Type]) -> f64 {
        (args[1].bytes() + 2 * results[0].bytes()) as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        if args[1].is_some() { None } else { args[0] }
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        // Only of dims that indices do not have: an index in the padding may name any row.
        let mut result = rule.carried_pads(pads, &[0]);
        let indexed = rule.operands[1].len();
        result[0][..indexed].fill(sharding::Pad::Unspecified);
        result
    }

    fn localize(&self, rule: &Rule, split: &Split, _: &[&Type], _: &[&Type]) -> Op {
        let base = ShardBase::of(rule, split, &rule.operands[0][self.batch]);
        Op::Gather(Gather { batch: self.batch, base })
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], at: At) -> Result<Vec<Tensor>, String> {
        let (x, indices) = (args[0], args[1]);
        let rows = x.ty.shape[self.batch];
        let row: usize = x.ty.shape[self.batch + 1..].iter().product();
        let each: usize = indices.ty.shape[self.batch..].iter().product();
        let held = ShardBase::held(&self.base, rows, at);
        let mut out = Tensor::zeros(results[0].clone());
        for (i, (&index, to)) in indices.data.iter().zip(out.data.chunks_exact_mut(row)).enumerate() {
            if let Some(r) = held.local(index) {
                let from = (i / each * rows + r) * row;
                to.copy_from_slice(&x.data[from..from + row]);
            }
        }
        Ok(vec![out])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, floats, ints, refused};
    use super::*;

    #[test]
    fn rows_by_index_and_zeros_outside() {
        let table = floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let gather = |batch| Op::Gather(Gather { batch, base: None });
        check(
            gather(0),
            &[table.clone(), ints(&[4], &[2, 0, 3, -1])],
            &[5.0, 6.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0],
        );
        // One column of each row: the batch dim is shared.
        check(gather(1), &[table, ints(&[3], &[1, 0, 1])], &[2.0, 3.0, 6.0]);
        refused(gather(0), &[Type::f32([3]), Type::f32([1])], "must be i32");
        refused(gather(1), &[Type::f32([3, 2]), Type::i32([2])], "do not share");
        refused(gather(1), &[Type::f32([3]), Type::i32([3])], "do not share");
    }
}
