//! Another shape for the same row-major elements.

use super::{Define, Op, first_partial, operands};
use crate::eval::{At, Tensor};
use crate::rule::{Factor, FactorId, FactorKind, Rule, Split};
use crate::sharding;
use crate::types::{ReduceKind, Type};

pub(super) struct Reshape<'a>(pub(super) &'a [usize]);

impl Define for Reshape<'_> {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        let ty = Type::new(x.dtype, self.0);
        if ty.checked().is_none() || ty.elements() != x.elements() {
            return Err(format!("{x} has {} elements, which {:?} does not hold", x.elements(), self.0));
        }
        Ok(vec![ty])
    }

    /// Factors are found by walking both shapes: a run of operand dims and a run of result dims of equal product share
    /// them. `[12, 5] -> [3, 4, 5]` has factors 3, 4 and 5: operand dims (3 4) and (5), result dims (3), (4) and (5).
    ///
    /// A piece of a dim is contiguous, so of a compound dim only the major factor can be split, and evenly: padding
    /// would come between the elements.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        let mut rule = Rule::default();
        let (from, to) = (&args[0].shape, &results[0].shape);
        let mut dims = (vec![Vec::new(); from.len()], vec![Vec::new(); to.len()]);
        // Of the leading dims that stay as they are, those of size 1 are the same dim too: a batch of one row stays a batch.
        let same = from.iter().zip(to).take_while(|(n, m)| n == m).count();
        for d in (0..same).filter(|&d| from[d] == 1) {
            let f = rule.factor(1, FactorKind::Pass);
            dims.0[d].push(f);
            dims.1[d].push(f);
        }
        let (mut i, mut j) = (0, 0);
        let (mut a, mut b) = (1, 1);
        loop {
            // Other dims of size 1 have no factor.
            while a == 1 && i < from.len() {
                (a, i) = (from[i], i + 1);
            }
            while b == 1 && j < to.len() {
                (b, j) = (to[j], j + 1);
            }
            if a == 1 || b == 1 {
                break;
            }
            let common = if a.is_multiple_of(b) || b.is_multiple_of(a) { a.min(b) } else { gcd(a, b) };
            if common > 1 {
                let f = rule.factor(common, FactorKind::Pass);
                dims.0[i - 1].push(f);
                dims.1[j - 1].push(f);
                (a, b) = (a / common, b / common);
            } else {
                // No common factor from here to the end of the run: each side has its own, whole on every device.
                (a, b) = self::finish_run(&mut rule, (from, to), &mut dims, (&mut i, &mut j), (a, b));
            }
        }
        restrict(&mut rule.factors, &dims.0);
        restrict(&mut rule.factors, &dims.1);
        rule.operands.push(dims.0);
        rule.results.push(dims.1);
        rule
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        first_partial(args)
    }

    fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.carried_pads(pads, &[0])
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], results: &[&Type]) -> Op {
        Op::Reshape(results[0].shape.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        Ok(vec![Tensor { ty: results[0].clone(), data: args[0].data.clone() }])
    }
}

/// Adds whole factors for the rest of the dims at hand and for further dims, until both sides have equal products.
fn finish_run(
    rule: &mut Rule,
    (from, to): (&[usize], &[usize]),
    dims: &mut (Vec<Vec<FactorId>>, Vec<Vec<FactorId>>),
    (i, j): (&mut usize, &mut usize),
    (a, b): (usize, usize),
) -> (usize, usize) {
    let (mut left, mut right) = (a, b);
    dims.0[*i - 1].push(rule.factor(a, FactorKind::Replicate));
    dims.1[*j - 1].push(rule.factor(b, FactorKind::Replicate));
    while left != right {
        let (side, shape, at, product) = if left < right {
            (&mut dims.0, from, &mut *i, &mut left)
        } else {
            (&mut dims.1, to, &mut *j, &mut right)
        };
        let Some(&n) = shape.get(*at) else { break };
        side[*at].push(rule.factor(n, FactorKind::Replicate));
        *product *= n;
        *at += 1;
    }
    (1, 1)
}

/// In compound dims the major factor must divide and the others stay whole.
fn restrict(factors: &mut [Factor], dims: &[Vec<FactorId>]) {
    for dim in dims.iter().filter(|d| d.len() > 1) {
        factors[dim[0]].even = true;
        dim[1..].iter().for_each(|&f| factors[f].kind = FactorKind::Replicate);
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::check::refused;
    use super::*;

    fn rule(from: &[usize], to: &[usize]) -> Rule {
        Op::Reshape(to.to_vec()).rule(&[&Type::f32(from)], &[&Type::f32(to)])
    }

    #[test]
    fn heads_split_from_a_flat_dim() {
        // [batch, heads * dim] -> [batch, heads, dim]: batch and heads can be split, heads evenly.
        let rule = rule(&[5, 12], &[5, 3, 4]);
        let kinds: Vec<_> = rule.factors.iter().map(|f| (f.size, f.kind, f.even)).collect();
        let (pass, whole) = (FactorKind::Pass, FactorKind::Replicate);
        assert_eq!(kinds, [(5, pass, false), (3, pass, true), (4, whole, false)]);
        assert_eq!(rule.operands[0], [vec![0], vec![1, 2]]);
        assert_eq!(rule.results[0], [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn a_batch_of_one_row_stays_a_batch() {
        let rule = rule(&[1, 1, 48], &[1, 48]);
        assert_eq!(rule.operands[0], [vec![0], vec![], vec![1]]);
        assert_eq!(rule.results[0], [vec![0], vec![1]]);
    }

    /// A split dim viewed with another major extent ([12, 8] over 4 as [16, 6]) has no valid local form beyond the common
    /// factor.
    #[test]
    fn only_common_factors_are_shared() {
        let rule = rule(&[12, 8], &[16, 6]);
        assert_eq!((rule.factors[0].size, rule.factors[0].even), (4, true));
        assert!(rule.factors[1..].iter().all(|f| f.kind == FactorKind::Replicate));
    }

    #[test]
    fn counts_must_match() {
        refused(Op::Reshape(vec![7]), &[Type::f32([2, 3])], "6 elements");
        refused(Op::Reshape(vec![0]), &[Type::f32([2, 3])], "6 elements");
        refused(Op::Reshape(vec![usize::MAX, 9]), &[Type::f32([2, 3])], "6 elements");
    }
}
