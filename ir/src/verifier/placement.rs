//! Shardings, lists of axes, and claims by themselves.

use crate::mesh::{Axis, AxisRef, Mesh};
use crate::sharding::{Claim, Sharding, Term};
use crate::types::{DType, Type};

/// Terms nest no deeper.
const MAX_DEPTH: usize = 64;

/// S1 to S4.
pub(super) fn check(mesh: &Mesh, ty: &Type, s: &Sharding) -> Result<(), String> {
    if s.dims.len() != ty.rank() {
        return Err(format!("its sharding has {} dims, but {ty} has {}", s.dims.len(), ty.rank()));
    }
    axes(mesh, s.axes())?;
    let Some(&(_, kind)) = s.partial.first() else { return Ok(()) };
    if s.partial.iter().any(|p| p.1 != kind) {
        return Err("it is a partial of several reductions, whose order would matter".into());
    }
    match ty.dtype {
        DType::Bool => Err("a boolean value cannot be partial".into()),
        _ => Ok(()),
    }
}

/// Axes that exist, are not of pp, and may all split one value.
pub(super) fn axes(mesh: &Mesh, axes: impl Iterator<Item = AxisRef>) -> Result<(), String> {
    let mut before: Vec<AxisRef> = Vec::new();
    for a in axes {
        if mesh.part(a.axis, a.pre, a.size).is_none() {
            return Err(format!("the mesh has no axis {a}: {} has {} devices", a.axis, mesh.size(a.axis)));
        }
        if a.axis == Axis::Pp {
            return Err("nothing is split or reduced over pp, whose devices run different functions".into());
        }
        if let Some(b) = before.iter().find(|b| a.overlaps(**b)) {
            return Err(format!("the axes {} and {} share devices", mesh.axis_text(*b), mesh.axis_text(a)));
        }
        // Axes that do not overlap are few, so that this stays linear.
        if a.size > 1 {
            before.push(a);
        }
    }
    Ok(())
}

/// E8.
pub(super) fn whole(s: &Sharding) -> Result<(), String> {
    match s.partial.first() {
        Some((a, kind)) => Err(format!("it is still a partial {} over {a}", kind.name())),
        None => Ok(()),
    }
}

/// S7, and the rules of the claim's sharding.
pub(super) fn claim(mesh: &Mesh, ty: &Type, claim: &Claim) -> Result<(), String> {
    check(mesh, ty, &claim.sharding)?;
    if claim.pad.len() != ty.rank() {
        return Err(format!(
            "its claim tells the padding of {} dims, but {ty} has {}",
            claim.pad.len(),
            ty.rank()
        ));
    }
    term(&claim.term, 0)
}

fn term(t: &Term, depth: usize) -> Result<(), String> {
    match t {
        Term::Value(_) => Ok(()),
        Term::Sum(_) if depth == MAX_DEPTH => Err(format!("its claim nests more than {MAX_DEPTH} deep")),
        Term::Sum(terms) if terms.is_empty() => Err("its claim is a sum of nothing".into()),
        Term::Sum(terms) => terms.iter().try_for_each(|t| term(t, depth + 1)),
    }
}
