//! From a global tensor to the pieces that devices hold, and back.

use super::tensor::Tensor;
use crate::mesh::{AxisRef, Mesh};
use crate::sharding::Sharding;
use crate::types::Type;

/// The piece of `global` that `device` holds, with `pad` in the padding. Of a partial value, the devices at coordinate 0
/// of every partial axis hold the value and the others the identity of the reduction.
///
/// The sharding must have the tensor's rank.
pub fn shard(global: &Tensor, sharding: &Sharding, mesh: &Mesh, device: usize, pad: f64) -> Tensor {
    let shape = &global.ty.shape;
    let mut local = Tensor::splat(sharding.local_type(&global.ty), pad);
    let spans: Vec<_> = (0..shape.len()).map(|d| sharding.span(mesh, device, d, shape[d])).collect();
    let extent: Vec<_> = spans.iter().map(|s| s.len).collect();
    if extent.contains(&0) {
        return local;
    }
    let start: Vec<_> = spans.iter().map(|s| s.start).collect();
    let other = sharding.partial.iter().find(|(a, _)| mesh.coord(device, *a) != 0);
    match other {
        None => local.paste(&vec![0; shape.len()], global, &start, &extent),
        Some((_, kind)) => {
            let identity = Tensor::splat(global.ty.clone(), kind.identity());
            local.paste(&vec![0; shape.len()], &identity, &start, &extent);
        }
    }
    local
}

/// The global tensor whose pieces the devices of one stage hold, `pieces[d]` being device d's. Partials are reduced,
/// padding is not looked at.
///
/// # Errors
/// A piece of another type than the sharding says, or replicas that differ by more than rounding.
pub fn unshard(pieces: &[Tensor], sharding: &Sharding, mesh: &Mesh, global: &Type) -> Result<Tensor, String> {
    let local = sharding.local_type(global);
    if pieces.len() != mesh.stage_devices() {
        return Err(format!("{} pieces for {} devices", pieces.len(), mesh.stage_devices()));
    }
    if let Some(piece) = pieces.iter().find(|p| p.ty != local) {
        return Err(format!("a piece is {}, not {local}", piece.ty));
    }
    let mut out = Tensor::splat(global.clone(), f64::NAN);
    let mut written = vec![false; out.data.len()];
    for device in 0..pieces.len() {
        if sharding.partial.iter().any(|(a, _)| mesh.coord(device, *a) != 0) {
            continue;
        }
        let spans: Vec<_> =
            (0..global.rank()).map(|d| sharding.span(mesh, device, d, global.shape[d])).collect();
        let extent: Vec<_> = spans.iter().map(|s| s.len).collect();
        let start: Vec<_> = spans.iter().map(|s| s.start).collect();
        let reduced = reduce(pieces, sharding, mesh, device);
        let places = positions(&global.shape, &start, &extent);
        for (i, j) in places.into_iter().zip(positions(&local.shape, &vec![0; start.len()], &extent)) {
            let (old, new) = (out.data[i], reduced.data[j]);
            if written[i] && !agree(old, new) {
                return Err(format!("replicas differ at element {i}: {old} and, on device {device}, {new}"));
            }
            (out.data[i], written[i]) = (new, true);
        }
    }
    if written.contains(&false) {
        return Err("some elements are on no device".into());
    }
    Ok(out)
}

/// Row-major positions, in a tensor of `shape`, of the block that begins at `start`.
fn positions(shape: &[usize], start: &[usize], extent: &[usize]) -> Vec<usize> {
    let dims = shape.iter().zip(start).zip(extent);
    dims.fold(vec![0], |at, ((n, s), len)| {
        at.iter().flat_map(|i| (0..*len).map(move |k| i * n + s + k)).collect()
    })
}

/// The reduction, over the partial axes, of the pieces of the group of `device`.
fn reduce(pieces: &[Tensor], sharding: &Sharding, mesh: &Mesh, device: usize) -> Tensor {
    let mut axes: Vec<(AxisRef, _)> = sharding.partial.clone();
    let Some((axis, kind)) = axes.pop() else { return pieces[device].clone() };
    let rest = Sharding { dims: sharding.dims.clone(), partial: axes };
    let group = mesh.group(device, &[axis]);
    let mut parts = group.into_iter().map(|d| reduce(pieces, &rest, mesh, d));
    let first = parts.next().unwrap_or_else(|| pieces[device].clone());
    parts.fold(first, |mut sum, part| {
        sum.data.iter_mut().zip(&part.data).for_each(|(a, &b)| *a = kind.apply(*a, b));
        sum
    })
}

fn agree(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Axis;
    use crate::types::ReduceKind;

    #[test]
    fn pieces_come_back_whole() {
        let mesh = Mesh { tp: 8, dp: 2, ..Mesh::default() };
        let (a, b) = (mesh.part(Axis::Tp, 1, 4).unwrap(), mesh.part(Axis::Tp, 4, 2).unwrap());
        let global = Tensor::from_fn(Type::f32([10, 3]), |i| i as f64);
        for (dims, partial) in [
            (vec![vec![a, b], vec![]], vec![]),
            (vec![vec![a], vec![mesh.whole(Axis::Dp)]], vec![(b, ReduceKind::Sum)]),
            (vec![vec![], vec![b]], vec![(a, ReduceKind::Max), (mesh.whole(Axis::Dp), ReduceKind::Max)]),
        ] {
            let sharding = Sharding { dims, partial };
            let pieces: Vec<_> = (0..16).map(|d| shard(&global, &sharding, &mesh, d, f64::NAN)).collect();
            let back = unshard(&pieces, &sharding, &mesh, &global.ty).unwrap();
            assert_eq!(back.max_abs_diff(&global), 0.0, "{}", sharding.text(&mesh));
        }
    }

    #[test]
    fn replicas_that_differ_are_refused() {
        let mesh = Mesh { tp: 2, ..Mesh::default() };
        let ty = Type::f32([2]);
        let pieces = [Tensor::zeros(ty.clone()), Tensor::splat(ty.clone(), 1.0)];
        let error = unshard(&pieces, &Sharding::replicated(1), &mesh, &ty).unwrap_err();
        assert!(error.contains("device 1"), "{error}");
    }
}
