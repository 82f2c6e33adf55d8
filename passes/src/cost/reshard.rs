//! What it takes to lay a value out differently, and its modelled time.

use super::{Cluster, Ring};
use pcc_ir::mesh::group_size;
use pcc_ir::{AxisRef, Mesh, ReduceKind, Sharding, Type};

/// One step of a reshard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    AllReduce {
        axes: Vec<AxisRef>,
        kind: ReduceKind,
    },
    /// Reduces, then splits `dim` further by `axes`.
    ReduceScatter {
        axes: Vec<AxisRef>,
        dim: usize,
        kind: ReduceKind,
    },
    /// Removes `axes`, the minor-most split of `dim`.
    AllGather {
        axes: Vec<AxisRef>,
        dim: usize,
    },
    /// Moves `axes` from `concat` (where they are the minor-most split) to `split`.
    AllToAll {
        axes: Vec<AxisRef>,
        split: usize,
        concat: usize,
    },
    /// Splits `dim` further by `axes`; no communication.
    Slice {
        axes: Vec<AxisRef>,
        dim: usize,
    },
}

impl Step {
    /// The mesh axes of a collective; `None` for a slice.
    pub fn collective(&self) -> Option<(Ring, &[AxisRef])> {
        match self {
            Step::AllReduce { axes, .. } => Some((Ring::AllReduce, axes)),
            Step::ReduceScatter { axes, .. } => Some((Ring::ReduceScatter, axes)),
            Step::AllGather { axes, .. } => Some((Ring::AllGather, axes)),
            Step::AllToAll { axes, .. } => Some((Ring::AllToAll, axes)),
            Step::Slice { .. } => None,
        }
    }

    /// The sharding after the step.
    fn apply(&self, s: &mut Sharding) {
        match self {
            Step::AllReduce { axes, .. } => s.partial.retain(|p| !axes.iter().any(|a| a.overlaps(p.0))),
            Step::ReduceScatter { axes, dim, .. } => {
                s.partial.retain(|p| !axes.iter().any(|a| a.overlaps(p.0)));
                s.dims[*dim].extend(axes);
            }
            Step::AllGather { axes, dim } => drop_tail(&mut s.dims[*dim], axes.len()),
            Step::AllToAll { axes, split, concat } => {
                drop_tail(&mut s.dims[*concat], axes.len());
                s.dims[*split].extend(axes);
            }
            Step::Slice { axes, dim } => s.dims[*dim].extend(axes),
        }
    }
}

/// The steps that take a value from one sharding to another: partials are reduced first (straight into the split the
/// target wants where it wants one), then axes move between dims, then are gathered, then split. `None` when the
/// target is partial where the source is not: nothing makes a whole value partial.
pub fn reshard_steps(mesh: &Mesh, from: &Sharding, to: &Sharding) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut at = from.clone();
    let mut step = |at: &mut Sharding, s: Step| {
        s.apply(at);
        steps.push(s);
    };
    if to.partial.iter().any(|p| !from.partial.contains(p)) {
        return None;
    }
    for s in reductions(mesh, from, to) {
        step(&mut at, s);
    }
    // An axis list that leaves the tail of one dim for the tail of another is one all-to-all.
    for concat in 0..at.dims.len() {
        let keep = prefix(&at.dims[concat], &to.dims[concat]);
        let leaves = at.dims[concat][keep..].to_vec();
        let arrives = |d: &usize| {
            let n = at.dims[*d].len();
            *d != concat
                && to.dims[*d].len() >= n + leaves.len()
                && prefix(&at.dims[*d], &to.dims[*d]) == n
                && to.dims[*d][n..n + leaves.len()] == leaves[..]
        };
        if !leaves.is_empty()
            && let Some(split) = (0..at.dims.len()).find(arrives)
        {
            step(&mut at, Step::AllToAll { axes: leaves, split, concat });
        }
    }
    for dim in 0..at.dims.len() {
        let axes = at.dims[dim][prefix(&at.dims[dim], &to.dims[dim])..].to_vec();
        if !axes.is_empty() {
            step(&mut at, Step::AllGather { axes, dim });
        }
    }
    for dim in 0..at.dims.len() {
        let axes = to.dims[dim][at.dims[dim].len()..].to_vec();
        if !axes.is_empty() {
            step(&mut at, Step::Slice { axes, dim });
        }
    }
    Some(steps)
}

/// The reduce-scatters and all-reduces that resolve the partials `to` does not keep, one per reduction kind and target.
fn reductions(mesh: &Mesh, from: &Sharding, to: &Sharding) -> Vec<Step> {
    let mut steps = Vec::new();
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
        let mut open: Vec<AxisRef> =
            from.partial.iter().filter(|p| p.1 == kind && !to.partial.contains(p)).map(|p| p.0).collect();
        for dim in 0..to.dims.len() {
            let n = from.dims[dim].len();
            if prefix(&from.dims[dim], &to.dims[dim]) < n || to.dims[dim].len() == n {
                continue;
            }
            let axes = to.dims[dim][n..].to_vec();
            // All of the wanted axes must be open, possibly as parts, and no open axis may be covered in part.
            let touched: Vec<_> =
                open.iter().copied().filter(|o| axes.iter().any(|a| a.overlaps(*o))).collect();
            if group_size(&touched) == group_size(&axes) && same_devices(mesh, &touched, &axes) {
                open.retain(|o| !touched.contains(o));
                steps.push(Step::ReduceScatter { axes, dim, kind });
            }
        }
        if !open.is_empty() {
            // The smaller buffers of the reduce-scatters come first only if the all-reduce follows them.
            steps.push(Step::AllReduce { axes: open, kind });
        }
    }
    steps
}

/// Whether groups over both axis lists hold the same devices.
fn same_devices(mesh: &Mesh, a: &[AxisRef], b: &[AxisRef]) -> bool {
    let mut ga = mesh.group(0, a);
    let mut gb = mesh.group(0, b);
    ga.sort_unstable();
    gb.sort_unstable();
    ga == gb
}

fn drop_tail(dim: &mut Vec<AxisRef>, count: usize) {
    dim.truncate(dim.len().saturating_sub(count));
}

fn prefix(a: &[AxisRef], b: &[AxisRef]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Modelled seconds of a reshard of a value of global type `ty`; `None` when it is impossible. A collective's buffer is
/// what one device reduces (all-reduce, reduce-scatter), gathers to (all-gather) or holds before (all-to-all).
pub fn reshard_time(c: &Cluster, mesh: &Mesh, ty: &Type, from: &Sharding, to: &Sharding) -> Option<f64> {
    reshard_time_as(c, mesh, ty, from, to, <[AxisRef]>::to_vec)
}

/// [`reshard_time`] with every collective costed over `group(axes)` instead of its own axes.
pub fn reshard_time_as(
    c: &Cluster,
    mesh: &Mesh,
    ty: &Type,
    from: &Sharding,
    to: &Sharding,
    group: impl Fn(&[AxisRef]) -> Vec<AxisRef>,
) -> Option<f64> {
    let mut at = from.clone();
    let mut time = 0.0;
    for step in reshard_steps(mesh, from, to)? {
        let before = at.local_type(ty).bytes() as f64;
        step.apply(&mut at);
        let after = at.local_type(ty).bytes() as f64;
        time += match step.collective() {
            Some((ring, axes)) => {
                let bytes = if ring == Ring::AllGather { after } else { before };
                c.collective_time(mesh, ring, &group(axes), bytes)
            }
            None => c.kernel_launch + 2.0 * after / c.memory_bandwidth,
        };
    }
    Some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Axis;

    fn mesh() -> Mesh {
        Mesh { tp: 8, dp: 2, ..Mesh::default() }
    }

    fn split(dims: &[&[AxisRef]], partial: &[AxisRef]) -> Sharding {
        Sharding {
            dims: dims.iter().map(|d| d.to_vec()).collect(),
            partial: partial.iter().map(|&a| (a, ReduceKind::Sum)).collect(),
        }
    }

    #[test]
    fn partial_becomes_all_reduce_or_reduce_scatter() {
        let m = mesh();
        let tp = m.whole(Axis::Tp);
        let dp = m.whole(Axis::Dp);
        let p = split(&[&[dp], &[]], &[tp]);
        assert_eq!(
            reshard_steps(&m, &p, &split(&[&[dp], &[]], &[])),
            Some(vec![Step::AllReduce { axes: vec![tp], kind: ReduceKind::Sum }])
        );
        assert_eq!(
            reshard_steps(&m, &p, &split(&[&[dp], &[tp]], &[])),
            Some(vec![Step::ReduceScatter { axes: vec![tp], dim: 1, kind: ReduceKind::Sum }])
        );
        assert_eq!(reshard_steps(&m, &split(&[&[], &[]], &[]), &p), None);
    }

    #[test]
    fn parts_of_an_axis_reduce_into_the_whole() {
        let m = mesh();
        let (a, b) = (m.part(Axis::Tp, 1, 2).unwrap(), m.part(Axis::Tp, 2, 4).unwrap());
        let tp = m.whole(Axis::Tp);
        assert_eq!(
            reshard_steps(&m, &split(&[&[]], &[a, b]), &split(&[&[tp]], &[])),
            Some(vec![Step::ReduceScatter { axes: vec![tp], dim: 0, kind: ReduceKind::Sum }])
        );
        // Only a part of the partial is wanted as a split: the rest is all-reduced, of the smaller piece.
        assert_eq!(
            reshard_steps(&m, &split(&[&[]], &[a, b]), &split(&[&[a]], &[])),
            Some(vec![
                Step::ReduceScatter { axes: vec![a], dim: 0, kind: ReduceKind::Sum },
                Step::AllReduce { axes: vec![b], kind: ReduceKind::Sum },
            ])
        );
    }

    #[test]
    fn moves_are_all_to_alls_and_the_rest_is_gathered_and_sliced() {
        let m = mesh();
        let tp = m.whole(Axis::Tp);
        let dp = m.whole(Axis::Dp);
        assert_eq!(
            reshard_steps(&m, &split(&[&[tp], &[]], &[]), &split(&[&[], &[tp]], &[])),
            Some(vec![Step::AllToAll { axes: vec![tp], split: 1, concat: 0 }])
        );
        assert_eq!(
            reshard_steps(&m, &split(&[&[tp], &[]], &[]), &split(&[&[], &[dp]], &[])),
            Some(vec![Step::AllGather { axes: vec![tp], dim: 0 }, Step::Slice { axes: vec![dp], dim: 1 }])
        );
    }

    #[test]
    fn time_is_the_closed_form() {
        let m = mesh();
        let c = Cluster::a100();
        let tp = m.whole(Axis::Tp);
        let ty = Type::f32([4, 1024]);
        let n = 4.0 * 1024.0 * 4.0;
        let t = reshard_time(&c, &m, &ty, &split(&[&[], &[]], &[tp]), &split(&[&[], &[]], &[])).unwrap();
        let expect = c.collective_launch + 14.0 * c.intra.alpha + 14.0 / 8.0 * n * c.intra.beta;
        assert!((t - expect).abs() < 1e-15, "{t} {expect}");
        let t = reshard_time(&c, &m, &ty, &split(&[&[], &[tp]], &[]), &split(&[&[], &[]], &[])).unwrap();
        let expect = c.collective_launch + 7.0 * c.intra.alpha + 7.0 / 8.0 * n * c.intra.beta;
        assert!((t - expect).abs() < 1e-15, "{t} {expect}");
    }
}
