//! Axes that split dims: when two lists split alike, and what is left when some are taken away.
//!
//! `[tp]` and `[tp:(1)2, tp:(2)4]` put the same elements on the same devices only where the extent they split is a multiple of their
//! product (10 elements over 8 devices are 2,2,2,2,2,0,0,0; over 2 and then 4 they are 2,2,1,0,2,2,1,0), so sub-axes are merged and
//! cut only there. Unreduced partials have no extent: over them sub-axes can always be merged and cut.

use pcc_ir::mesh::AxisRef;
use pcc_ir::sharding::local_extent;
use pcc_ir::{ReduceKind, Sharding};

/// The one way to write the axes of a dim of extent `n`: axes of size 1 dropped, neighbours merged where nothing moves.
pub(super) fn merged(n: usize, axes: &[AxisRef]) -> Vec<AxisRef> {
    let mut out: Vec<AxisRef> = Vec::new();
    // Extent that the last entry of `out` splits.
    let mut extent = n;
    for &a in axes.iter().filter(|a| a.size > 1) {
        if let Some(last) = out.last_mut() {
            let both = AxisRef { size: last.size * a.size, ..*last };
            if last.axis == a.axis
                && last.pre * last.size == a.pre
                && extent.is_multiple_of(both.size as usize)
            {
                *last = both;
                continue;
            }
            extent = extent.div_ceil(last.size as usize);
        }
        out.push(a);
    }
    out
}

/// The one way to write a set of partial axes.
pub(super) fn merged_partial(partial: &[(AxisRef, ReduceKind)]) -> Vec<(AxisRef, ReduceKind)> {
    let mut sorted: Vec<_> = partial.iter().copied().filter(|p| p.0.size > 1).collect();
    sorted.sort_unstable();
    let mut out: Vec<(AxisRef, ReduceKind)> = Vec::new();
    for (a, kind) in sorted {
        match out.last_mut() {
            Some((last, k)) if *k == kind && last.axis == a.axis && last.pre * last.size == a.pre => {
                last.size *= a.size
            }
            _ => out.push((a, kind)),
        }
    }
    out
}

/// The one way to write the sharding of a value of this shape.
pub(super) fn canonical(shape: &[usize], s: &Sharding) -> Sharding {
    let dims = shape.iter().zip(&s.dims).map(|(&n, axes)| merged(n, axes)).collect();
    Sharding { dims, partial: merged_partial(&s.partial) }
}

/// Whether two lists put the same elements of a dim of extent `n` on the same devices.
pub(super) fn splits_alike(n: usize, a: &[AxisRef], b: &[AxisRef]) -> bool {
    a == b || merged(n, a) == merged(n, b)
}

/// `a` cut at each of `points` (products of the sizes before them) that lies inside it and divides it.
fn cut(a: AxisRef, points: &[(pcc_ir::Axis, u32)]) -> Vec<AxisRef> {
    let end = a.pre * a.size;
    let mut inside: Vec<u32> =
        points.iter().filter(|p| p.0 == a.axis && a.pre < p.1 && p.1 < end).map(|p| p.1).collect();
    inside.sort_unstable();
    inside.dedup();
    let (mut parts, mut pre) = (Vec::new(), a.pre);
    for point in inside {
        if point.is_multiple_of(pre) && end.is_multiple_of(point) {
            parts.push(AxisRef { axis: a.axis, pre, size: point / pre });
            pre = point;
        }
    }
    parts.push(AxisRef { axis: a.axis, pre, size: end / pre });
    parts
}

/// Where references begin and end.
pub(super) fn points(axes: impl IntoIterator<Item = AxisRef>) -> Vec<(pcc_ir::Axis, u32)> {
    axes.into_iter().flat_map(|a| [(a.axis, a.pre), (a.axis, a.pre * a.size)]).collect()
}

/// Partial axes cut at `points`.
pub(super) fn cut_partial(
    partial: &[(AxisRef, ReduceKind)],
    points: &[(pcc_ir::Axis, u32)],
) -> Vec<(AxisRef, ReduceKind)> {
    partial.iter().flat_map(|&(a, k)| cut(a, points).into_iter().map(move |a| (a, k))).collect()
}

/// The axes of a dim of extent `n` without the minor ones, which must split what is left as `taken` does. Also gives the extent of the
/// dim before `taken` split it.
pub(super) fn without_minor(n: usize, axes: &[AxisRef], taken: &[AxisRef]) -> Option<(Vec<AxisRef>, usize)> {
    let points = points(taken.iter().copied());
    let mut fine = Vec::new();
    let mut extent = n;
    for &a in axes {
        match extent.is_multiple_of(a.size as usize) {
            true => fine.extend(cut(a, &points)),
            false => fine.push(a),
        }
        extent = extent.div_ceil(a.size as usize);
    }
    (0..=fine.len()).find_map(|k| {
        let before = local_extent(n, &fine[..k]);
        splits_alike(before, &fine[k..], taken).then(|| (merged(n, &fine[..k]), before))
    })
}

/// The partial axes that remain when those over `axes` are reduced by `kind`; `None` when some of `axes` is not partial so.
pub(super) fn without_partial(
    partial: &[(AxisRef, ReduceKind)],
    axes: &[AxisRef],
    kind: ReduceKind,
) -> Option<Vec<(AxisRef, ReduceKind)>> {
    let points = points(partial.iter().map(|p| p.0).chain(axes.iter().copied()));
    let gone: Vec<_> = axes.iter().filter(|a| a.size > 1).map(|&a| (a, kind)).collect();
    let (have, gone) = (cut_partial(partial, &points), cut_partial(&gone, &points));
    if !gone.iter().all(|p| have.contains(p)) {
        return None;
    }
    let rest: Vec<_> = have.into_iter().filter(|p| !gone.contains(p)).collect();
    Some(merged_partial(&rest))
}

/// Whether a sharding uses none of the devices' coordinates that `axes` name.
pub(super) fn is_free_of(s: &Sharding, axes: &[AxisRef]) -> bool {
    s.axes().all(|a| axes.iter().all(|b| a.size == 1 || b.size == 1 || !a.overlaps(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::sharding::span;
    use pcc_ir::{Axis, Mesh};

    const MESH: Mesh = Mesh { pp: 1, dp: 2, cp: 1, ep: 1, tp: 12 };

    fn tp(pre: u32, size: u32) -> AxisRef {
        AxisRef { axis: Axis::Tp, pre, size }
    }

    fn lists() -> Vec<Vec<AxisRef>> {
        let dp = AxisRef { axis: Axis::Dp, pre: 1, size: 2 };
        vec![
            vec![],
            vec![tp(1, 12)],
            vec![tp(1, 2), tp(2, 6)],
            vec![tp(1, 4), tp(4, 3)],
            vec![tp(1, 2), tp(2, 2), tp(4, 3)],
            vec![tp(1, 6), tp(6, 2)],
            vec![tp(2, 6), tp(1, 2)],
            vec![dp, tp(1, 12)],
            vec![tp(1, 3), dp],
            vec![tp(1, 1), tp(4, 3)],
        ]
    }

    /// The definition: every device holds the same elements in the same local extent.
    fn same_by_spans(n: usize, a: &[AxisRef], b: &[AxisRef]) -> bool {
        let same = |d| {
            let (x, y) = (span(&MESH, d, n, a), span(&MESH, d, n, b));
            x.len == y.len && (x.len == 0 || x.start == y.start)
        };
        local_extent(n, a) == local_extent(n, b) && (0..MESH.devices()).all(same)
    }

    #[test]
    fn lists_that_are_called_alike_put_the_same_elements_everywhere() {
        for n in 1..60 {
            for a in lists() {
                assert!(same_by_spans(n, &a, &merged(n, &a)), "{n} {a:?}");
                assert_eq!(merged(n, &merged(n, &a)), merged(n, &a));
                for b in lists() {
                    assert!(!splits_alike(n, &a, &b) || same_by_spans(n, &a, &b), "{n} {a:?} {b:?}");
                }
            }
        }
        assert!(splits_alike(24, &lists()[1], &lists()[4]) && !splits_alike(10, &lists()[1], &lists()[2]));
    }

    #[test]
    fn what_is_taken_and_what_is_left_make_the_whole() {
        let mut found = 0;
        for n in 1..60 {
            for whole in lists() {
                for taken in lists() {
                    let Some((rest, before)) = without_minor(n, &whole, &taken) else { continue };
                    assert_eq!(before, local_extent(n, &rest));
                    assert!(same_by_spans(n, &whole, &[rest, taken].concat()), "{n} {whole:?}");
                    found += 1;
                }
            }
        }
        assert!(found > 500, "{found}");
        assert_eq!(without_minor(24, &[tp(1, 12)], &[tp(4, 3)]), Some((vec![tp(1, 4)], 6)));
        assert_eq!(without_minor(24, &[tp(1, 12)], &[tp(1, 4)]), None);
    }

    #[test]
    fn partials_end_over_exactly_the_axes_reduced() {
        let sum = |a| (a, ReduceKind::Sum);
        let whole = [sum(tp(1, 12))];
        assert_eq!(without_partial(&whole, &[tp(1, 12)], ReduceKind::Sum), Some(vec![]));
        assert_eq!(without_partial(&whole, &[tp(4, 3), tp(1, 4)], ReduceKind::Sum), Some(vec![]));
        assert_eq!(without_partial(&whole, &[tp(1, 4)], ReduceKind::Sum), Some(vec![sum(tp(4, 3))]));
        assert_eq!(without_partial(&whole, &[tp(1, 12)], ReduceKind::Max), None);
        assert_eq!(without_partial(&[sum(tp(4, 3))], &[tp(1, 12)], ReduceKind::Sum), None);
    }
}
