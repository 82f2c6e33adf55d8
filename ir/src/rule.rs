//! Factor-based sharding rules, in the manner of Shardy.
//!
//! A rule maps every dim of every operand and result of an op to *factors*: `dot ([i,k],[k,j]) -> [i,j]` has factors
//! i and j (pass-through) and k (a sum reduction). Propagation, search, partitioning, cost and checking all derive
//! from the one rule an op gives; each rule is tested by executing every factor split.
//!
//! Meaning: if each factor f is split by axes A(f) and every operand dim is split by the axes of its factors
//! (major to minor), then running [`crate::ops::Op::localize`] on the local pieces gives the result whose dims are split
//! the same way, partial over the axes of every reduction factor.

use crate::mesh::{AxisRef, group_size};
use crate::sharding::{Pad, Sharding};
use crate::types::{ReduceKind, Type};

/// Index into [`Rule::factors`].
pub type FactorId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// Splitting it splits the result the same way.
    Pass,
    /// Absent from the results: splitting it leaves the results partial.
    Reduce(ReduceKind),
    /// May not be split: the op needs the whole dim on each device.
    Replicate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    pub size: usize,
    pub kind: FactorKind,
    /// May only be split by axes whose sizes divide it (compound dims of a reshape): padding is not allowed.
    pub even: bool,
    /// The local form knows its span of this dim and never reads the padding (rows of a gathered table), so the
    /// padding may hold anything although the factor is a reduction.
    pub skips_padding: bool,
}

/// For each dim of each operand (result), its factors major to minor: one, except for compound reshape dims; none for
/// a dim of size 1 that nothing splits.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Rule {
    pub factors: Vec<Factor>,
    pub operands: Vec<Vec<Vec<FactorId>>>,
    pub results: Vec<Vec<Vec<FactorId>>>,
}

/// The axes that split each factor, major to minor; one entry a factor.
pub type Split = Vec<Vec<AxisRef>>;

impl Rule {
    pub fn factor(&mut self, size: usize, kind: FactorKind) -> FactorId {
        self.factors.push(Factor { size, kind, even: false, skips_padding: false });
        self.factors.len() - 1
    }

    /// One new factor of `kind` for each extent of `shape`, in the form of a dim list.
    pub fn dims(&mut self, shape: &[usize], kind: FactorKind) -> Vec<Vec<FactorId>> {
        shape.iter().map(|&n| vec![self.factor(n, kind)]).collect()
    }

    /// No dim may be split: calls, and ops that exist only where shardings are already decided.
    pub fn replicated(args: &[&Type], results: &[&Type]) -> Self {
        let mut rule = Self::default();
        for ty in args {
            let dims = rule.dims(&ty.shape, FactorKind::Replicate);
            rule.operands.push(dims);
        }
        for ty in results {
            let dims = rule.dims(&ty.shape, FactorKind::Replicate);
            rule.results.push(dims);
        }
        rule
    }

    /// The factor axes that the dims of operands and results imply (partials are not looked at). `None` when two dims of
    /// one factor differ, or the split is not [`Rule::allows`]ed.
    pub fn split_from(&self, args: &[&Sharding], results: &[&Sharding]) -> Option<Split> {
        if args.len() != self.operands.len() || results.len() != self.results.len() {
            return None;
        }
        let mut split: Vec<Option<&[AxisRef]>> = vec![None; self.factors.len()];
        let sides = self.operands.iter().zip(args).chain(self.results.iter().zip(results));
        for (dims, sharding) in sides {
            if dims.len() != sharding.dims.len() {
                return None;
            }
            for (factors, axes) in dims.iter().zip(&sharding.dims) {
                // Only the major factor of a compound dim can be split, so the axes are all its own.
                let Some((&major, minors)) = factors.split_first() else {
                    if axes.is_empty() {
                        continue;
                    }
                    return None;
                };
                let wanted = std::iter::once((major, &axes[..])).chain(minors.iter().map(|&f| (f, &[][..])));
                for (f, axes) in wanted {
                    if *split[f].get_or_insert(axes) != axes {
                        return None;
                    }
                }
            }
        }
        let split: Split = split.into_iter().map(|axes| axes.unwrap_or_default().to_vec()).collect();
        self.allows(&split).then_some(split)
    }

    /// Whether the op can run with its factors split so: nothing that must be whole is split, even factors divide, and
    /// no operand or result would use one axis twice.
    pub fn allows(&self, split: &Split) -> bool {
        let fits = |f: &Factor, axes: &[AxisRef]| {
            axes.is_empty()
                || f.kind != FactorKind::Replicate && (!f.even || f.size.is_multiple_of(group_size(axes)))
        };
        split.len() == self.factors.len()
            && self.factors.iter().zip(split).all(|(f, axes)| fits(f, axes))
            && (0..self.operands.len()).all(|i| disjoint(&self.operand_sharding(i, split)))
            && (0..self.results.len()).all(|i| disjoint(&self.result_sharding(i, split)))
    }

    /// The reduction that runs over `dim` of `operand`: the dim's padding must hold its identity. `None` where
    /// padding is harmless.
    pub fn reduce_need(&self, operand: usize, dim: usize) -> Option<ReduceKind> {
        self.operands.get(operand)?.get(dim)?.iter().find_map(|&f| match self.factors[f] {
            Factor { kind: FactorKind::Reduce(kind), skips_padding: false, .. } => Some(kind),
            _ => None,
        })
    }

    /// Padding of results that is zero where it is zero in every dim of `operands` that has the same factor, and in at
    /// least one: the rule of ops that map zeros to zero.
    pub(crate) fn carried_pads(&self, pads: &[Vec<Pad>], operands: &[usize]) -> Vec<Vec<Pad>> {
        let carried = |factors: &Vec<FactorId>| {
            let mut found = operands
                .iter()
                .flat_map(|&i| self.operands[i].iter().zip(&pads[i]))
                .filter_map(|(theirs, &pad)| theirs.iter().any(|f| factors.contains(f)).then_some(pad));
            match found.next() {
                Some(Pad::Zero) if found.all(|p| p == Pad::Zero) => Pad::Zero,
                _ => Pad::Unspecified,
            }
        };
        self.results.iter().map(|dims| dims.iter().map(carried).collect()).collect()
    }

    /// The sharding that operand `i` must have when the factors are split so (never partial).
    pub fn operand_sharding(&self, i: usize, split: &Split) -> Sharding {
        Self::of_dims(&self.operands[i], split)
    }

    /// The sharding that result `i` has when the factors are split so: partial over the reduction factors' axes.
    pub fn result_sharding(&self, i: usize, split: &Split) -> Sharding {
        let mut s = Self::of_dims(&self.results[i], split);
        for (f, axes) in self.factors.iter().zip(split) {
            if let FactorKind::Reduce(kind) = f.kind {
                s.partial.extend(axes.iter().map(|&a| (a, kind)));
            }
        }
        s.partial.sort_unstable();
        s
    }

    fn of_dims(dims: &[Vec<FactorId>], split: &Split) -> Sharding {
        let dims =
            dims.iter().map(|fs| fs.iter().flat_map(|&f| split[f].iter().copied()).collect()).collect();
        Sharding { dims, partial: Vec::new() }
    }
}

fn disjoint(sharding: &Sharding) -> bool {
    let axes: Vec<_> = sharding.axes().collect();
    axes.iter().enumerate().all(|(i, a)| axes[..i].iter().all(|b| !a.overlaps(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::{Axis, Mesh};

    /// `[i, k] x [k, j] -> [i, j]`.
    fn dot() -> Rule {
        let mut rule = Rule::default();
        let [i, j] = [3, 4].map(|n| rule.factor(n, FactorKind::Pass));
        let k = rule.factor(5, FactorKind::Reduce(ReduceKind::Sum));
        rule.operands = vec![vec![vec![i], vec![k]], vec![vec![k], vec![j]]];
        rule.results = vec![vec![vec![i], vec![j]]];
        rule
    }

    fn of(dims: [&[AxisRef]; 2]) -> Sharding {
        Sharding { dims: dims.map(<[_]>::to_vec).to_vec(), partial: vec![] }
    }

    #[test]
    fn a_split_follows_from_the_dims_or_contradicts_them() {
        let mesh = Mesh { tp: 2, dp: 2, ..Mesh::default() };
        let (tp, dp) = (mesh.whole(Axis::Tp), mesh.whole(Axis::Dp));
        let (rule, whole) = (dot(), of([&[], &[]]));
        // Row parallel: the contracted dim is split on both sides, the result partial.
        let split = rule.split_from(&[&of([&[dp], &[tp]]), &of([&[tp], &[]])], &[&of([&[dp], &[]])]).unwrap();
        assert_eq!(split, [vec![dp], vec![], vec![tp]]);
        assert_eq!(rule.result_sharding(0, &split).partial, [(tp, ReduceKind::Sum)]);
        // One side of a contracted dim, an operand without its result, one axis for two dims of the result.
        assert_eq!(rule.split_from(&[&of([&[], &[tp]]), &whole], &[&whole]), None);
        assert_eq!(rule.split_from(&[&of([&[tp], &[]]), &whole], &[&whole]), None);
        let (rows, columns) = (of([&[tp], &[]]), of([&[], &[tp]]));
        assert_eq!(rule.split_from(&[&rows, &columns], &[&of([&[tp], &[tp]])]), None);
        assert_eq!(rule.split_from(&[&whole], &[&whole]), None);
        assert_eq!(rule.split_from(&[&whole, &Sharding::replicated(3)], &[&whole]), None);
    }

    #[test]
    fn what_must_be_whole_or_even_is_not_split_otherwise() {
        let mesh = Mesh { tp: 2, ..Mesh::default() };
        let split = vec![vec![mesh.whole(Axis::Tp)], vec![], vec![]];
        let mut rule = dot();
        assert!(rule.allows(&split));
        rule.factors[0].even = true;
        assert!(!rule.allows(&split), "3 by 2 is not even");
        rule.factors[0].size = 4;
        assert!(rule.allows(&split));
        rule.factors[0].kind = FactorKind::Replicate;
        assert!(!rule.allows(&split));
    }

    #[test]
    fn only_reduced_dims_need_an_identity() {
        let mut rule = dot();
        let sum = Some(ReduceKind::Sum);
        assert_eq!([rule.reduce_need(0, 1), rule.reduce_need(1, 0)], [sum, sum]);
        assert_eq!([(0, 0), (2, 0), (0, 2)].map(|(i, d)| rule.reduce_need(i, d)), [None; 3]);
        rule.factors[2].skips_padding = true;
        assert_eq!(rule.reduce_need(0, 1), None);
    }
}
