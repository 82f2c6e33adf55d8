//! Writes rows into a tensor at a per-batch offset: the KV cache.

use super::{Define, Op, ShardBase, all_partial, need, operands};
use crate::eval::{At, Tensor};
use crate::rule::{FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// `update(operand [B.., N, rest..], new [B.., s, rest..], start i32 [B..]) -> operand` with rows `start..start+s` of N replaced; rows
/// outside `0..N` (after subtracting the base) are dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    pub batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ShardBase>,
}

impl Define for Update {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x, new, start] = operands(args)?;
        let b = self.batch;
        if x.rank() <= b || new.rank() != x.rank() {
            return Err(format!("{new} does not fit rows after {b} batch dims of {x}"));
        }
        let mut rows = x.clone();
        rows.shape[b] = new.shape[b];
        need("the new rows", new, &rows)?;
        need("the start", start, &Type::new(DType::I32, &x.shape[..b]))?;
        Ok(vec![x.clone()])
    }

    fn rule(&self, args: &[&Type], _: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let dims = rule.dims(&args[0].shape, FactorKind::Pass);
        let mut new = dims.clone();
        new[self.batch] = vec![rule.factor(args[1].shape[self.batch], FactorKind::Replicate)];
        rule.operands = vec![dims.clone(), new, dims[..self.batch].to_vec()];
        rule.results.push(dims);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    /// The operand is updated in place.
    fn bytes(&self, args: &[&Type], _: &[&Type]) -> f64 {
        2.0 * args[1].bytes() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        if args[2].is_some() { None } else { all_partial(&args[..2]) }
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        // Rows in the padding of N are never written, unless they are of a batch or column that has zeros.
        rule.carried_pads(pads, &[0, 1])
    }

    fn localize(&self, rule: &Rule, split: &Split, _: &[&Type], _: &[&Type]) -> Op {
        let base = ShardBase::of(rule, split, &rule.operands[0][self.batch]);
        Op::Update(Update { batch: self.batch, base })
    }

    fn eval(&self, args: &[&Tensor], _: &[&Type], at: At) -> Result<Vec<Tensor>, String> {
        let (new, start) = (args[1], args[2]);
        let mut out = args[0].clone();
        let (rows, news) = (out.ty.shape[self.batch], new.ty.shape[self.batch]);
        let row: usize = out.ty.shape[self.batch + 1..].iter().product();
        let held = ShardBase::held(&self.base, rows, at);
        for (i, from) in new.data.chunks_exact(row).enumerate() {
            let (batch, r) = (i / news, i % news);
            if let Some(r) = held.local(start.data[batch] + r as f64) {
                let to = (batch * rows + r) * row;
                out.data[to..to + row].copy_from_slice(from);
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
    fn rows_are_replaced_and_dropped_outside() {
        let update = |batch| Op::Update(Update { batch, base: None });
        let args = |start: [i32; 2]| {
            let (x, new) = (floats(&[2, 3], &[0.0; 6]), floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
            [x, new, ints(&[2], &start)]
        };
        check(update(1), &args([1, 0]), &[0.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
        check(update(1), &args([2, -1]), &[0.0, 0.0, 1.0, 4.0, 0.0, 0.0]);
        let x = Type::f32([2, 3]);
        refused(update(1), &[x.clone(), Type::f32([3, 1]), Type::i32([2])], "the new rows");
        refused(update(1), &[x.clone(), Type::f32([2, 1]), Type::i32([])], "the start");
        refused(update(2), &[x.clone(), x, Type::i32([2, 3])], "does not fit");
    }
}
