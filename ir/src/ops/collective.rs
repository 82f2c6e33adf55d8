//! Ops of the local level: collectives, the device's piece of a value, and masking of padding.

use super::{Define, Op, all_partial, need_dim, operands};
use crate::eval::{At, Tensor, piece_of, round_to};
use crate::mesh::{AxisRef, group_size};
use crate::rule::{Rule, Split};
use crate::sharding::{self, local_extent};
use crate::types::{ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// Collectives over `axes` (the group of [`crate::Mesh::group`]); local level only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every device gets the reduction of all.
    AllReduce { axes: Vec<AxisRef>, kind: ReduceKind },
    /// Pieces of `dim` are concatenated in group order; `global` is the extent of the result dim without padding (the
    /// result's local extent may be shorter than the sum of the pieces: padding is dropped).
    AllGather { axes: Vec<AxisRef>, dim: usize, global: usize },
    /// Reduced, then each device keeps its piece (split rule) of `dim`, whose extent before is `global`.
    ReduceScatter { axes: Vec<AxisRef>, dim: usize, kind: ReduceKind, global: usize },
    /// `split` (extent before: `split_global`) becomes split by `axes`, `concat` (extent after: `concat_global`) whole.
    AllToAll { axes: Vec<AxisRef>, split: usize, split_global: usize, concat: usize, concat_global: usize },
}

/// The device's piece of `dim` (extent before: `global`) under the split rule, no communication. Local level only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardSlice {
    pub axes: Vec<AxisRef>,
    pub dim: usize,
    pub global: usize,
}

/// Sets the padding of `dim`, of global extent `global` split by `axes`, to `value`. Local level only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskTail {
    pub axes: Vec<AxisRef>,
    pub dim: usize,
    pub global: usize,
    #[serde(with = "crate::types::float")]
    pub value: f64,
}

impl Collective {
    pub fn name(&self) -> &'static str {
        match self {
            Collective::AllReduce { .. } => "all_reduce",
            Collective::AllGather { .. } => "all_gather",
            Collective::ReduceScatter { .. } => "reduce_scatter",
            Collective::AllToAll { .. } => "all_to_all",
        }
    }

    /// The axes whose devices take part.
    pub fn axes(&self) -> &[AxisRef] {
        match self {
            Collective::AllReduce { axes, .. }
            | Collective::AllGather { axes, .. }
            | Collective::ReduceScatter { axes, .. }
            | Collective::AllToAll { axes, .. } => axes,
        }
    }
}

/// `x` with `dim` whole before and the piece of it after.
fn split_dim(x: &mut Type, dim: usize, axes: &[AxisRef], global: usize) -> Result<(), String> {
    need_dim(dim, x)?;
    if x.shape[dim] != global {
        return Err(format!("dim {dim} of {x} has not the extent {global}"));
    }
    x.shape[dim] = local_extent(global, axes);
    Ok(())
}

/// `x` with `dim` a piece before and whole after.
fn join_dim(x: &mut Type, dim: usize, axes: &[AxisRef], global: usize) -> Result<(), String> {
    need_dim(dim, x)?;
    if x.shape[dim] != local_extent(global, axes) {
        return Err(format!("dim {dim} of {x} is no piece of a dim of extent {global}"));
    }
    x.shape[dim] = global;
    Ok(())
}

/// Padding after a dim of extent `global` is cut into pieces by `axes`. A tail that is left undefined runs through the padding of
/// the other dims.
fn with_tail(pads: Vec<sharding::Pad>, axes: &[AxisRef], global: usize) -> Vec<sharding::Pad> {
    match local_extent(global, axes) * group_size(axes) == global {
        true => pads,
        false => vec![sharding::Pad::Unspecified; pads.len()],
    }
}

fn check_axes(axes: &[AxisRef]) -> Result<(), String> {
    match axes.iter().any(|a| a.size == 0 || a.pre == 0) {
        true => Err("an axis has size 0".into()),
        false => Ok(()),
    }
}

impl Define for Collective {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        let mut x = x.clone();
        check_axes(self.axes())?;
        match self {
            Collective::AllReduce { .. } => {}
            Collective::AllGather { axes, dim, global } => join_dim(&mut x, *dim, axes, *global)?,
            Collective::ReduceScatter { axes, dim, global, .. } => split_dim(&mut x, *dim, axes, *global)?,
            Collective::AllToAll { split, concat, .. } if split == concat => {
                return Err(format!("dim {split} cannot be both split and joined"));
            }
            Collective::AllToAll { axes, split, split_global, concat, concat_global } => {
                split_dim(&mut x, *split, axes, *split_global)?;
                join_dim(&mut x, *concat, axes, *concat_global)?;
            }
        }
        Ok(vec![x])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, args: &[&Type], _: &[&Type]) -> f64 {
        match self {
            Collective::AllReduce { .. } | Collective::ReduceScatter { .. } => args[0].elements() as f64,
            Collective::AllGather { .. } | Collective::AllToAll { .. } => 0.0,
        }
    }

    /// About an axis that the collective does not run over.
    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        match self {
            Collective::AllReduce { kind, .. } | Collective::ReduceScatter { kind, .. } => {
                all_partial(args).filter(|k| k == kind)
            }
            Collective::AllGather { .. } | Collective::AllToAll { .. } => all_partial(args),
        }
    }

    /// Padding stays what it was, but the tail of a new piece is not written.
    fn result_pads(&self, _: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        let pads = pads[0].clone();
        match self {
            Collective::AllReduce { .. } | Collective::AllGather { .. } => vec![pads],
            Collective::ReduceScatter { axes, global, .. } => vec![with_tail(pads, axes, *global)],
            Collective::AllToAll { axes, split_global, .. } => vec![with_tail(pads, axes, *split_global)],
        }
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::Collective(self.clone())
    }

    fn eval(&self, _: &[&Tensor], _: &[&Type], _: At) -> Result<Vec<Tensor>, String> {
        Err("needs the other devices".into())
    }
}

impl Define for ShardSlice {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        let mut x = x.clone();
        check_axes(&self.axes)?;
        split_dim(&mut x, self.dim, &self.axes, self.global)?;
        Ok(vec![x])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn bytes(&self, _: &[&Type], results: &[&Type]) -> f64 {
        2.0 * results[0].bytes() as f64
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        all_partial(args)
    }

    fn result_pads(&self, _: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        vec![with_tail(pads[0].clone(), &self.axes, self.global)]
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::ShardSlice(self.clone())
    }

    fn eval(&self, args: &[&Tensor], _: &[&Type], at: At) -> Result<Vec<Tensor>, String> {
        Ok(vec![piece_of(args[0], &at.mesh, at.device, &self.axes, self.dim)])
    }
}

impl Define for MaskTail {
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let [x] = operands(args)?;
        check_axes(&self.axes)?;
        join_dim(&mut x.clone(), self.dim, &self.axes, self.global)?;
        Ok(vec![x.clone()])
    }

    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        Rule::replicated(args, results)
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }

    fn partial(&self, args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        // The mask is set on each device: a sum of masks is one only when it is zero.
        all_partial(args).filter(|&kind| kind != ReduceKind::Sum || self.value == 0.0)
    }

    fn result_pads(&self, _: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        if self.value == 0.0 {
            let mut pads = pads[0].clone();
            pads[self.dim] = sharding::Pad::Zero;
            vec![pads]
        } else {
            // The masked rows run through the padding of the other dims.
            vec![vec![sharding::Pad::Unspecified; pads[0].len()]]
        }
    }

    fn localize(&self, _: &Rule, _: &Split, _: &[&Type], _: &[&Type]) -> Op {
        Op::MaskTail(self.clone())
    }

    fn eval(&self, args: &[&Tensor], results: &[&Type], at: At) -> Result<Vec<Tensor>, String> {
        let mut out = Tensor::splat(results[0].clone(), round_to(results[0].dtype, self.value));
        let zero = vec![0; results[0].rank()];
        let mut extent = results[0].shape.clone();
        extent[self.dim] = sharding::span(&at.mesh, at.device, self.global, &self.axes).len;
        if extent[self.dim] > 0 {
            out.paste(&zero, args[0], &zero, &extent);
        }
        Ok(vec![out])
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{floats, refused};
    use super::*;
    use crate::mesh::{Axis, Mesh};

    /// 5 by 4 is 2, 2, 1 and nothing.
    const TP: AxisRef = AxisRef { axis: Axis::Tp, pre: 1, size: 4 };

    fn mask(value: f64) -> Op {
        Op::MaskTail(MaskTail { axes: vec![TP], dim: 0, global: 5, value })
    }

    fn on_device(op: &Op, x: &Tensor, device: usize) -> Vec<f64> {
        let at = At { mesh: Mesh { tp: 4, ..Mesh::default() }, device };
        let ty = op.infer(&[&x.ty]).unwrap();
        op.eval(&[x], &[&ty[0]], at).unwrap().remove(0).data
    }

    #[test]
    fn masks_and_pieces_by_hand() {
        let x = floats(&[2], &[7.0, 8.0]);
        let masked: Vec<_> = (0..4).map(|d| on_device(&mask(0.0), &x, d)).collect();
        assert_eq!(masked, [[7.0, 8.0], [7.0, 8.0], [7.0, 0.0], [0.0, 0.0]]);
        let slice = Op::ShardSlice(ShardSlice { axes: vec![TP], dim: 0, global: 5 });
        let x = floats(&[5], &[0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(on_device(&slice, &x, 1), [2.0, 3.0]);
        let last = on_device(&slice, &x, 2);
        assert!(last[0] == 4.0 && last[1].is_nan(), "{last:?}");
    }

    #[test]
    fn a_mask_that_is_not_zero_does_not_add_up() {
        let (sum, max) = (Some(ReduceKind::Sum), Some(ReduceKind::Max));
        assert_eq!(mask(0.0).partial_rule(&[sum]), Some(sum));
        assert_eq!(mask(1.0).partial_rule(&[sum]), None);
        assert_eq!(mask(f64::NEG_INFINITY).partial_rule(&[max]), Some(max));
        let reduce = Op::Collective(Collective::AllReduce { axes: vec![TP], kind: ReduceKind::Max });
        assert_eq!((reduce.partial_rule(&[sum]), reduce.partial_rule(&[max])), (None, Some(max)));
    }

    #[test]
    fn misfits_are_refused() {
        refused(mask(0.0), &[Type::f32([3])], "no piece of a dim of extent 5");
        refused(mask(0.0), &[Type::f32([])], "no dim 0");
        let slice = Op::ShardSlice(ShardSlice { axes: vec![TP], dim: 0, global: 5 });
        refused(slice, &[Type::f32([4])], "has not the extent 5");
        // An axis that the mesh does not have is an error, not a panic.
        let x = floats(&[2], &[7.0, 8.0]);
        let error = mask(0.0).eval(&[&x], &[&x.ty], At::default()).unwrap_err();
        assert!(error.contains("no axis tp:(1)4"), "{error}");
    }
}
