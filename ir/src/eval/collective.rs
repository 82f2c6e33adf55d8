//! Collectives over the pieces of all devices of a stage.

use super::layout::shard;
use super::tensor::{Tensor, undefined};
use crate::mesh::{AxisRef, Mesh};
use crate::ops::Collective;
use crate::sharding::{Sharding, span};
use crate::types::{ReduceKind, Type};

/// Runs a collective: `pieces[d]` is device d's operand; gives device d's result, of type `result`. The types must be
/// those that the op's shape rule accepts, which the caller has checked.
pub(super) fn eval_collective(
    op: &Collective,
    pieces: &[&Tensor],
    result: &Type,
    mesh: &Mesh,
) -> Vec<Tensor> {
    let devices = 0..pieces.len();
    match op {
        Collective::AllReduce { axes, kind } => {
            devices.map(|d| reduce(pieces, mesh, d, axes, *kind)).collect()
        }
        Collective::AllGather { axes, dim, global } => {
            devices.map(|d| gather(pieces, mesh, d, axes, *dim, *global, result)).collect()
        }
        Collective::ReduceScatter { axes, dim, kind, .. } => {
            devices.map(|d| piece_of(&reduce(pieces, mesh, d, axes, *kind), mesh, d, axes, *dim)).collect()
        }
        Collective::AllToAll { axes, split, concat, concat_global, .. } => {
            // Everything is gathered, then each device keeps its piece: the same result as the exchange.
            let mut whole = pieces.first().map(|p| p.ty.clone()).unwrap_or_else(|| result.clone());
            whole.shape[*concat] = *concat_global;
            devices
                .map(|d| gather(pieces, mesh, d, axes, *concat, *concat_global, &whole))
                .enumerate()
                .map(|(d, t)| piece_of(&t, mesh, d, axes, *split))
                .collect()
        }
    }
}

fn reduce(pieces: &[&Tensor], mesh: &Mesh, device: usize, axes: &[AxisRef], kind: ReduceKind) -> Tensor {
    let group = mesh.group(device, axes);
    let mut sum = Tensor::splat(pieces[device].ty.clone(), kind.identity());
    for d in group {
        sum.data.iter_mut().zip(&pieces[d].data).for_each(|(a, &b)| *a = kind.apply(*a, b));
    }
    sum
}

fn gather(
    pieces: &[&Tensor],
    mesh: &Mesh,
    device: usize,
    axes: &[AxisRef],
    dim: usize,
    global: usize,
    result: &Type,
) -> Tensor {
    let mut out = Tensor::splat(result.clone(), undefined(result.dtype));
    let zero = vec![0; result.rank()];
    for d in mesh.group(device, axes) {
        let span = span(mesh, d, global, axes);
        if span.len == 0 {
            continue;
        }
        let (mut to, mut extent) = (zero.clone(), result.shape.clone());
        (to[dim], extent[dim]) = (span.start, span.len);
        out.paste(&to, pieces[d], &zero, &extent);
    }
    out
}

/// The device's piece of `dim`; padding is undefined.
pub(crate) fn piece_of(whole: &Tensor, mesh: &Mesh, device: usize, axes: &[AxisRef], dim: usize) -> Tensor {
    let mut sharding = Sharding::replicated(whole.ty.rank());
    sharding.dims[dim] = axes.to_vec();
    shard(whole, &sharding, mesh, device, undefined(whole.ty.dtype))
}
