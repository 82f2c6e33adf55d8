//! When two lists of axes split a dim in the same way: sub-axes cut and merged.
//!
//! `[tp]` and `[tp:(1)2, tp:(2)4]` put the same elements on the same devices only when the extent they split is a multiple
//! of their product: 10 elements over 8 devices are 2,2,2,2,2,0,0,0, but over 2 and then 4 they are 2,2,1,0,2,2,1,0. Unreduced
//! partials have no extent, so over them sub-axes can always be cut and merged.

use pcc_ir::mesh::{Axis, AxisRef};
use pcc_ir::sharding::local_extent;
use pcc_ir::{ReduceKind, Sharding};
use std::collections::BTreeSet;

/// The points, as products of the sizes before them, at which references cut their axes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts(BTreeSet<(Axis, u32)>);

impl Cuts {
    pub(crate) fn of<'a>(shardings: impl IntoIterator<Item = &'a Sharding>) -> Self {
        let refs = shardings.into_iter().flat_map(Sharding::axes);
        Self(refs.flat_map(|r| [(r.axis, r.pre), (r.axis, r.pre * r.size)]).collect())
    }

    /// The parts of `r` between the cuts, major to minor; `r` itself when the cuts inside it do not divide one another
    /// (6 cut at 2 and at 3). An axis of size 1 has none: it splits nothing.
    pub(crate) fn parts(&self, r: AxisRef) -> Vec<AxisRef> {
        if r.size <= 1 {
            return Vec::new();
        }
        let end = r.pre * r.size;
        let mut parts = Vec::new();
        let mut pre = r.pre;
        for &(_, cut) in self.0.range((r.axis, r.pre + 1)..=(r.axis, end)) {
            if !cut.is_multiple_of(pre) {
                return vec![r];
            }
            parts.push(AxisRef { axis: r.axis, pre, size: cut / pre });
            pre = cut;
        }
        if pre < end {
            if !end.is_multiple_of(pre) {
                return vec![r];
            }
            parts.push(AxisRef { axis: r.axis, pre, size: end / pre });
        }
        parts
    }

    /// The axes of a dim of extent `n`, each cut where that leaves the layout as it is.
    pub(crate) fn refine_dim(&self, n: usize, axes: &[AxisRef]) -> Vec<AxisRef> {
        let mut n = n;
        let mut refined = Vec::new();
        for &r in axes {
            if n.is_multiple_of(r.size as usize) {
                refined.extend(self.parts(r));
            } else {
                refined.push(r);
            }
            n = n.div_ceil(r.size as usize);
        }
        refined
    }

    /// A sharding of a value of this shape with every axis cut where that leaves the layout as it is.
    pub(crate) fn refine(&self, shape: &[usize], s: &Sharding) -> Sharding {
        let dims = shape.iter().zip(&s.dims).map(|(&n, axes)| self.refine_dim(n, axes)).collect();
        Sharding { dims, partial: self.refine_partial(&s.partial) }
    }

    pub(crate) fn refine_partial(&self, partial: &[(AxisRef, ReduceKind)]) -> Vec<(AxisRef, ReduceKind)> {
        let mut partial: Vec<_> =
            partial.iter().flat_map(|&(r, k)| self.parts(r).into_iter().map(move |r| (r, k))).collect();
        partial.sort_unstable();
        partial
    }

    /// All parts of several references.
    pub(crate) fn parts_of(&self, axes: &[AxisRef]) -> Vec<AxisRef> {
        axes.iter().flat_map(|&r| self.parts(r)).collect()
    }
}

/// Sub-axes that follow one another merged, in a list that splits a dim of extent `n`, where that leaves the layout as it is.
pub(crate) fn merge_dim(n: usize, axes: &[AxisRef]) -> Vec<AxisRef> {
    let mut merged: Vec<AxisRef> = Vec::new();
    // Extent before the last entry of `merged`.
    let mut before = n;
    for &r in axes {
        if let Some(last) = merged.last_mut() {
            let whole = AxisRef { size: last.size * r.size, ..*last };
            if last.axis == r.axis
                && last.pre * last.size == r.pre
                && before.is_multiple_of(whole.size as usize)
            {
                *last = whole;
                continue;
            }
            before = before.div_ceil(last.size as usize);
        }
        merged.push(r);
    }
    merged
}

/// The same set of devices with sub-axes merged, outermost first: for reductions, where order does not matter.
pub(crate) fn merge_group(axes: &[AxisRef]) -> Vec<AxisRef> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    merge_dim(0, &axes)
}

/// Whether two lists split a dim of extent `n` into the same pieces.
pub(crate) fn same_split(n: usize, a: &[AxisRef], b: &[AxisRef]) -> bool {
    a == b || {
        let cuts =
            Cuts(a.iter().chain(b).flat_map(|r| [(r.axis, r.pre), (r.axis, r.pre * r.size)]).collect());
        cuts.refine_dim(n, a) == cuts.refine_dim(n, b)
    }
}

/// Whether two shardings of a value of this shape put the same numbers on the same devices.
pub(crate) fn same_layout(shape: &[usize], a: &Sharding, b: &Sharding) -> bool {
    a == b || {
        let cuts = Cuts::of([a, b]);
        shape.iter().enumerate().all(|(d, &n)| same_split(n, &a.dims[d], &b.dims[d]))
            && cuts.refine_partial(&a.partial) == cuts.refine_partial(&b.partial)
    }
}

/// Two uses of one part of the mesh in a sharding, which would make it meaningless.
pub(crate) fn overlap(s: &Sharding) -> Option<(AxisRef, AxisRef)> {
    let axes: Vec<_> = s.axes().collect();
    let pairs = axes.iter().enumerate().flat_map(|(i, &a)| axes[i + 1..].iter().map(move |&b| (a, b)));
    pairs.into_iter().find(|(a, b)| a.overlaps(*b))
}

/// Extent of a dim before the last `taken` of its axes split it.
pub(crate) fn extent_before(n: usize, axes: &[AxisRef], taken: usize) -> usize {
    local_extent(n, &axes[..axes.len() - taken])
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Mesh;
    use pcc_ir::sharding::span;

    fn sub(pre: u32, size: u32) -> AxisRef {
        AxisRef { axis: Axis::Tp, pre, size }
    }

    /// The definition: every device holds the same elements in the same local extent.
    fn same_by_spans(mesh: &Mesh, n: usize, a: &[AxisRef], b: &[AxisRef]) -> bool {
        local_extent(n, a) == local_extent(n, b)
            && (0..mesh.devices()).all(|d| {
                let (x, y) = (span(mesh, d, n, a), span(mesh, d, n, b));
                x.len == y.len && (x.len == 0 || x.start == y.start)
            })
    }

    #[test]
    fn a_cut_that_is_called_equal_puts_the_same_elements_everywhere() {
        let mesh = Mesh { tp: 8, ..Mesh::default() };
        let lists: [&[AxisRef]; 5] = [
            &[sub(1, 8)],
            &[sub(1, 2), sub(2, 4)],
            &[sub(1, 4), sub(4, 2)],
            &[sub(1, 2), sub(2, 2), sub(4, 2)],
            &[sub(2, 4), sub(1, 2)],
        ];
        for n in 1..40 {
            for a in lists {
                for b in lists {
                    assert!(!same_split(n, a, b) || same_by_spans(&mesh, n, a, b), "{n} {a:?} {b:?}");
                }
                assert!(same_by_spans(&mesh, n, a, &merge_dim(n, a)), "{n} {a:?}");
            }
        }
        assert!(same_split(16, lists[0], lists[3]) && !same_split(10, lists[0], lists[1]));
        assert_eq!(merge_dim(8, lists[3]), lists[0]);
        assert_eq!(merge_dim(4, lists[3]), vec![sub(1, 4), sub(4, 2)]);
    }

    #[test]
    fn cuts_that_do_not_divide_one_another_leave_an_axis_whole() {
        let s = |r| Sharding { dims: vec![vec![r]], partial: vec![] };
        let cuts = Cuts::of([&s(sub(1, 2)), &s(sub(1, 3))]);
        assert_eq!(cuts.parts(sub(1, 6)), vec![sub(1, 6)]);
        assert_eq!(merge_group(&[sub(2, 3), sub(1, 2)]), vec![sub(1, 6)]);
    }
}
