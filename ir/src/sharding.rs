//! Shardings: which mesh axes split which dim of a value, and over which axes it is still a partial.
//!
//! **Split rule.** Axes `[a, b]` on a dim of extent n split it by a into pieces of `ceil(n/a)`, then each piece by b
//! into pieces of `ceil(ceil(n/a)/b)`. The local extent is the same on every device; a device whose piece is
//! short (or empty) has padding at its tail. With several axes padding can occur inside the dim, not only at
//! its end. [`Sharding::span`] says which global elements a device holds.

use crate::graph::ValueId;
use crate::mesh::{AxisRef, Mesh, group_size};
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// Placement of a value over the mesh. An axis (or sub-axis) appears at most once in all of `dims` and
/// `partial`. Axes that do not appear hold replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sharding {
    /// For each dim, the axes that split it, major to minor.
    pub dims: Vec<Vec<AxisRef>>,
    /// Axes over which the value is still unreduced: the value is the reduction of what the devices hold.
    pub partial: Vec<(AxisRef, ReduceKind)>,
}

/// The global elements of one dim that a device holds: `start..start + len` (len may be 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub len: usize,
}

impl Sharding {
    /// Every device holds the whole value.
    pub fn replicated(rank: usize) -> Self {
        Self { dims: vec![Vec::new(); rank], partial: Vec::new() }
    }

    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.dims.iter().all(Vec::is_empty)
    }

    /// Local shape of a value of the global shape: every dim divided as the split rule says.
    pub fn local_shape(&self, global: &[usize]) -> Vec<usize> {
        global.iter().zip(&self.dims).map(|(&n, axes)| local_extent(n, axes)).collect()
    }

    pub fn local_type(&self, global: &Type) -> Type {
        Type::new(global.dtype, self.local_shape(&global.shape))
    }

    /// Whether some device has padding in `dim` of a value of global extent `n`.
    pub fn pads(&self, dim: usize, n: usize) -> bool {
        local_extent(n, &self.dims[dim]) * group_size(&self.dims[dim]) != n
    }

    /// The global elements of `dim`, of global extent `n`, that `device` holds.
    pub fn span(&self, mesh: &Mesh, device: usize, dim: usize, n: usize) -> Span {
        span(mesh, device, n, &self.dims[dim])
    }

    /// Every axis used, splits first.
    pub fn axes(&self) -> impl Iterator<Item = AxisRef> + '_ {
        self.dims.iter().flatten().copied().chain(self.partial.iter().map(|p| p.0))
    }

    /// Text form: `[{dp}, {}, {tp:(1)4}] partial{tp sum}`.
    pub fn text(&self, mesh: &Mesh) -> String {
        let dim = |axes: &Vec<AxisRef>| {
            format!("{{{}}}", axes.iter().map(|&a| mesh.axis_text(a)).collect::<Vec<_>>().join(","))
        };
        let mut s = format!("[{}]", self.dims.iter().map(dim).collect::<Vec<_>>().join(", "));
        if !self.partial.is_empty() {
            let p = |(a, k): &(AxisRef, ReduceKind)| format!("{} {}", mesh.axis_text(*a), k.name());
            s += &format!(" partial{{{}}}", self.partial.iter().map(p).collect::<Vec<_>>().join(","));
        }
        s
    }
}

/// Extent of a device's piece of a dim of extent `n` split by `axes`, padding included.
pub fn local_extent(n: usize, axes: &[AxisRef]) -> usize {
    axes.iter().fold(n, |n, a| n.div_ceil(a.size as usize))
}

/// The global elements of a dim of extent `n` split by `axes` that `device` holds.
pub fn span(mesh: &Mesh, device: usize, n: usize, axes: &[AxisRef]) -> Span {
    let (mut start, mut len, mut padded) = (0, n, n);
    for &a in axes {
        let piece = padded.div_ceil(a.size as usize);
        let skip = piece * mesh.coord(device, a);
        start += skip;
        len = len.saturating_sub(skip).min(piece);
        padded = piece;
    }
    Span { start: if len == 0 { n.min(start) } else { start }, len }
}

/// The elements of a dim of extent `n` split by `axes` that the member of a group over `axes` has, by its position in the group
/// (first axis major): [`span`] without a mesh.
pub fn member_span(n: usize, axes: &[AxisRef], member: usize) -> Span {
    let (mut start, mut len, mut padded) = (0, n, n);
    let mut rest = member;
    for (i, a) in axes.iter().enumerate() {
        let inner = group_size(&axes[i + 1..]);
        let piece = padded.div_ceil(a.size as usize);
        let skip = piece * (rest / inner);
        rest %= inner;
        start += skip;
        len = len.saturating_sub(skip).min(piece);
        padded = piece;
    }
    Span { start: start.min(n), len }
}

/// What the padding of one dim of a local value holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pad {
    /// Zero, or there is no padding at all.
    Zero,
    /// Anything, NaN included: may not be read by a reduction.
    Unspecified,
}

/// A value of the global function, or a linear term over such values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Term {
    Value(ValueId),
    /// Sum of terms of one shape.
    Sum(Vec<Term>),
}

/// What a local value stands for: `term`, laid out as `sharding` says, with `pad` in the padding of each dim.
/// The checker proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub term: Term,
    pub sharding: Sharding,
    /// One entry a dim.
    pub pad: Vec<Pad>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Axis;

    #[test]
    fn uneven_and_nested_splits() {
        let mesh = Mesh { tp: 8, ..Mesh::default() };
        let tp = mesh.whole(Axis::Tp);
        assert_eq!(local_extent(12, &[tp]), 2);
        let lens: Vec<_> = (0..8).map(|d| span(&mesh, d, 12, &[tp]).len).collect();
        assert_eq!(lens, [2, 2, 2, 2, 2, 2, 0, 0]);
        // 10 by 4 is 3,3,3,1; each by 2 is 2,1 2,1 2,1 1,0: interior padding.
        let (a, b) = (mesh.part(Axis::Tp, 1, 4).unwrap(), mesh.part(Axis::Tp, 4, 2).unwrap());
        let spans: Vec<_> = (0..8).map(|d| span(&mesh, d, 10, &[a, b])).map(|s| (s.start, s.len)).collect();
        assert_eq!(spans, [(0, 2), (2, 1), (3, 2), (5, 1), (6, 2), (8, 1), (9, 1), (10, 0)]);
        let members: Vec<_> = (0..8).map(|m| member_span(10, &[a, b], m)).map(|s| (s.start, s.len)).collect();
        assert_eq!(members, spans);
    }
}
