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

#[cfg(test)]
mod tests {
    use super::super::{eval_spmd, unshard};
    use super::*;
    use crate::graph::{Func, Module};
    use crate::mesh::Axis;
    use crate::ops::{MaskTail, Op, ShardSlice};

    /// tp 8 seen as 4 x 2, and dp 2.
    fn mesh() -> (Mesh, AxisRef, AxisRef, AxisRef) {
        let mesh = Mesh { tp: 8, dp: 2, ..Mesh::default() };
        let part = |pre, size| mesh.part(Axis::Tp, pre, size).unwrap();
        (mesh, part(1, 4), part(4, 2), mesh.whole(Axis::Dp))
    }

    fn global() -> Tensor {
        Tensor::from_fn(Type::f32([10, 7]), |i| ((i * 37) % 71) as f64 - 30.0)
    }

    fn sharding(dims: [&[AxisRef]; 2], partial: &[(AxisRef, ReduceKind)]) -> Sharding {
        Sharding { dims: dims.map(<[_]>::to_vec).to_vec(), partial: partial.to_vec() }
    }

    /// Runs one op on every device, from pieces of the global tensor (NaN in the padding) to pieces that must make up
    /// the same tensor under `to`. Gives the pieces.
    fn check(op: Op, from: &Sharding, to: &Sharding) -> Vec<Tensor> {
        let (mesh, global) = (mesh().0, global());
        let mut f = Func::new("local");
        let x = f.arg(from.local_type(&global.ty), "x");
        f.results = f.apply(op.clone(), &[x], "").unwrap();
        assert_eq!(f.ty(f.results[0]), &to.local_type(&global.ty), "{op:?}");
        let mut module = Module { mesh, ..Module::default() };
        let id = module.funcs.push(f);
        let args: Vec<_> =
            (0..mesh.devices()).map(|d| vec![shard(&global, from, &mesh, d, f64::NAN)]).collect();
        let results: Vec<_> = eval_spmd(&module, id, &args).unwrap().into_iter().flatten().collect();
        let back = unshard(&results, to, &mesh, &global.ty).unwrap();
        assert_eq!(back.max_abs_diff(&global), 0.0, "{op:?}");
        results
    }

    #[test]
    fn every_collective_moves_between_the_shardings_it_says() {
        let (_, a, b, dp) = mesh();
        let run = |c, from: &Sharding, to: &Sharding| drop(check(Op::Collective(c), from, to));
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
            let (axes, partial) = (vec![a, dp], [(dp, kind), (a, kind)]);
            let from = sharding([&[], &[b]], &partial);
            run(Collective::AllReduce { axes: axes.clone(), kind }, &from, &sharding([&[], &[b]], &[]));
            let to = sharding([&[a, dp], &[b]], &[]);
            run(Collective::ReduceScatter { axes, dim: 0, kind, global: 10 }, &from, &to);
            let some = Collective::AllReduce { axes: vec![a], kind };
            run(some, &from, &sharding([&[], &[b]], &[(dp, kind)]));
        }
        // 10 by 4, then by 2, has padding inside; order of the axes and what stays split vary.
        for axes in [vec![a, b], vec![b, a], vec![a], vec![b]] {
            let from = sharding([&axes, &[]], &[]);
            let gather = Collective::AllGather { axes: axes.clone(), dim: 0, global: 10 };
            run(gather, &from, &sharding([&[], &[]], &[]));
            let exchange = Collective::AllToAll {
                axes: axes.clone(),
                split: 1,
                split_global: 7,
                concat: 0,
                concat_global: 10,
            };
            run(exchange, &from, &sharding([&[], &axes], &[]));
            let slice = Op::ShardSlice(ShardSlice { axes: axes.clone(), dim: 0, global: 10 });
            check(slice, &sharding([&[], &[dp]], &[]), &sharding([&axes, &[dp]], &[]));
        }
        // Only the minor axis is gathered: the extent made is that of the major piece.
        let gather = Collective::AllGather { axes: vec![b], dim: 0, global: 3 };
        run(gather, &sharding([&[a, b], &[]], &[]), &sharding([&[a], &[]], &[]));
    }

    #[test]
    fn masks_set_the_padding_and_nothing_else() {
        let (mesh, a, b, _) = mesh();
        let split = sharding([&[a, b], &[]], &[]);
        let mask = MaskTail { axes: vec![a, b], dim: 0, global: 10, value: f64::NEG_INFINITY };
        for (d, piece) in check(Op::MaskTail(mask), &split, &split).iter().enumerate() {
            let len = split.span(&mesh, d, 0, 10).len;
            assert!(piece.data[len * 7..].iter().all(|&x| x == f64::NEG_INFINITY), "device {d}");
        }
    }

    #[test]
    fn collectives_that_do_not_fit_are_refused() {
        let (_, a, _, _) = mesh();
        let ty = Type::f32([3, 7]);
        for op in [
            Collective::AllGather { axes: vec![a], dim: 0, global: 13 },
            Collective::AllGather { axes: vec![a], dim: 2, global: 10 },
            Collective::ReduceScatter { axes: vec![a], dim: 0, kind: ReduceKind::Sum, global: 4 },
            Collective::AllToAll { axes: vec![a], split: 0, split_global: 3, concat: 0, concat_global: 10 },
            Collective::AllReduce { axes: vec![AxisRef { size: 0, ..a }], kind: ReduceKind::Sum },
        ] {
            assert!(Op::Collective(op.clone()).infer(&[&ty]).is_err(), "{op:?}");
        }
    }
}
