//! Factor-based sharding rules, in the manner of Shardy.
//!
//! A rule maps every dim of every operand and result of an op to *factors*: `dot ([i,k],[k,j]) -> [i,j]` has factors
//! i and j (pass-through) and k (a sum reduction). Propagation, search, partitioning, cost and checking all derive
//! from the one rule an op gives; each rule is tested by executing every factor split.
//!
//! Meaning: if each factor f is split by axes A(f) and every operand dim is split by the axes of its factors
//! (major to minor), then running [`crate::ops::Op::localize`] on the local pieces gives the result whose dims are split
//! the same way, partial over the axes of every reduction factor.

use crate::mesh::AxisRef;
use crate::sharding::Sharding;
use crate::types::ReduceKind;

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
        self.factors.push(Factor { size, kind, even: false });
        self.factors.len() - 1
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
        let dims = dims.iter().map(|fs| fs.iter().flat_map(|&f| split[f].iter().copied()).collect()).collect();
        Sharding { dims, partial: Vec::new() }
    }
}
