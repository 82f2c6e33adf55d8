//! How ops of the local level change the claim of their operand: its sharding moves, its term stays.

use super::layout::{canonical, is_free_of, splits_alike, without_minor, without_partial};
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::Collective;
use pcc_ir::{Mesh, Op, Sharding};

/// The sharding after a collective, slice or mask of a value of global shape `shape`; `None` for other ops.
///
/// # Errors
/// What the operand would have to be.
pub(super) fn sharding_after(
    mesh: &Mesh,
    op: &Op,
    shape: &[usize],
    s: &Sharding,
) -> Option<Result<Sharding, String>> {
    let change = Change { mesh, shape, s };
    match op {
        Op::Collective(c) => Some(change.collective(c)),
        Op::ShardSlice(slice) => Some(change.slice(&slice.axes, slice.dim)),
        Op::MaskTail(mask) => Some(change.mask(&mask.axes, mask.dim, mask.global)),
        _ => None,
    }
}

struct Change<'a> {
    mesh: &'a Mesh,
    shape: &'a [usize],
    s: &'a Sharding,
}

impl Change<'_> {
    fn axes(&self, axes: &[AxisRef]) -> String {
        axes.iter().map(|&a| self.mesh.axis_text(a)).collect::<Vec<_>>().join(",")
    }

    fn operand(&self) -> String {
        self.s.text(self.mesh)
    }

    fn extent(&self, dim: usize) -> Result<usize, String> {
        self.shape.get(dim).copied().ok_or_else(|| format!("its operand has no dim {dim}"))
    }

    fn collective(&self, c: &Collective) -> Result<Sharding, String> {
        let mut s = self.s.clone();
        match c {
            Collective::AllReduce { axes, kind } => s.partial = self.reduced(axes, *kind)?,
            Collective::ReduceScatter { axes, dim, kind, .. } => {
                s.partial = self.reduced(axes, *kind)?;
                s.dims[*dim].extend(axes);
            }
            Collective::AllGather { axes, dim, global } => {
                s.dims[*dim] = self.gathered(axes, *dim, *global)?
            }
            Collective::AllToAll { axes, split, concat, concat_global, .. } => {
                s.dims[*concat] = self.gathered(axes, *concat, *concat_global)?;
                s.dims[*split].extend(axes);
            }
        }
        Ok(canonical(self.shape, &s))
    }

    fn reduced(
        &self,
        axes: &[AxisRef],
        kind: pcc_ir::ReduceKind,
    ) -> Result<Vec<(AxisRef, pcc_ir::ReduceKind)>, String> {
        without_partial(&self.s.partial, axes, kind).ok_or_else(|| {
            format!(
                "it reduces {} over {{{}}}, over which its operand {} is no unreduced {}",
                kind.name(),
                self.axes(axes),
                self.operand(),
                kind.name()
            )
        })
    }

    fn gathered(&self, axes: &[AxisRef], dim: usize, global: usize) -> Result<Vec<AxisRef>, String> {
        let n = self.extent(dim)?;
        let (rest, before) = without_minor(n, &self.s.dims[dim], axes).ok_or_else(|| {
            let (axes, operand) = (self.axes(axes), self.operand());
            format!(
                "it gathers dim {dim} over {{{axes}}}, which are not the last axes that split it in {operand}"
            )
        })?;
        match before == global {
            true => Ok(rest),
            false => {
                Err(format!("it gathers dim {dim} to extent {global} where {before} elements were split"))
            }
        }
    }

    fn slice(&self, axes: &[AxisRef], dim: usize) -> Result<Sharding, String> {
        if !is_free_of(self.s, axes) {
            let (axes, operand) = (self.axes(axes), self.operand());
            return Err(format!(
                "it keeps pieces over {{{axes}}}, over which its operand {operand} is not whole"
            ));
        }
        let mut s = self.s.clone();
        s.dims[dim].extend(axes);
        Ok(canonical(self.shape, &s))
    }

    fn mask(&self, axes: &[AxisRef], dim: usize, global: usize) -> Result<Sharding, String> {
        let n = self.extent(dim)?;
        if global != n {
            return Err(format!("it masks dim {dim} past element {global} of {n}"));
        }
        if !splits_alike(n, &self.s.dims[dim], axes) {
            let (axes, operand) = (self.axes(axes), self.operand());
            return Err(format!("it masks dim {dim} as split by {{{axes}}}, but its operand is {operand}"));
        }
        Ok(self.s.clone())
    }
}
