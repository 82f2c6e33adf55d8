//! What entries promise: parameters and states come as they are stored, results leave reduced, and new states are what the next run takes.

use super::super::fault;
use super::super::layout::canonical;
use pcc_ir::graph::Role;
use pcc_ir::{Diagnostic, Entry, Module, Pad, Sharding, Type, ValueId};

/// Parameters and states come as stored, results leave reduced, and new states are what the next run takes.
pub(super) fn check(sharded: &Module, local: &Module, entry: &Entry) -> Result<(), Diagnostic> {
    let func = &local.funcs[entry.func];
    let claim = |v: ValueId| {
        let claim = func.values[v].claim.as_ref();
        claim.ok_or_else(|| fault::of_value(func, v, "claims nothing"))
    };
    let stored_as = |v: ValueId, stored: &Option<Sharding>, ty: &Type, name: &str| {
        let s = &claim(v)?.sharding;
        let fits = |t: &Sharding| t.dims.len() == ty.rank() && s.dims.len() == ty.rank();
        match stored {
            Some(t)
                if fits(t) && canonical(&ty.shape, t) == canonical(&ty.shape, s) && t.partial.is_empty() =>
            {
                Ok(())
            }
            Some(t) => {
                let why = format!(
                    "`{name}` is stored {}, but used as {}",
                    t.text(&local.mesh),
                    s.text(&local.mesh)
                );
                Err(fault::of_value(func, v, "is not laid out as it is stored").why(why))
            }
            None => Err(fault::of_value(func, v, &format!("has no stored sharding (`{name}`)"))),
        }
    };
    for (i, (&v, role)) in func.args.iter().zip(&entry.args).enumerate() {
        match role {
            Role::Param(p) => {
                stored_as(v, &sharded.params[*p].sharding, &sharded.params[*p].ty, &sharded.params[*p].name)?
            }
            Role::State(s) => {
                stored_as(v, &sharded.states[*s].sharding, &sharded.states[*s].ty, &sharded.states[*s].name)?
            }
            Role::Input(_) if !claim(v)?.sharding.partial.is_empty() => {
                return Err(fault::of_value(func, v, "is an input but unreduced"));
            }
            Role::Input(_) => {}
        }
        let global = sharded.funcs[entry.func].ty(sharded.funcs[entry.func].args[i]);
        let stored = match role {
            Role::Param(p) => Some(&sharded.params[*p].ty),
            Role::State(s) => Some(&sharded.states[*s].ty),
            Role::Input(_) => None,
        };
        if stored.is_some_and(|ty| ty != global) {
            return Err(fault::of_value(func, v, "has another type than what is stored for it"));
        }
    }
    for &v in &func.results {
        if !claim(v)?.sharding.partial.is_empty() {
            return Err(fault::of_value(func, v, "leaves the program before it is reduced"));
        }
    }
    check_new_states(sharded, local, entry)
}

/// The new value of a state has zeros in its padding wherever some entry takes them for granted.
fn check_new_states(sharded: &Module, local: &Module, entry: &Entry) -> Result<(), Diagnostic> {
    let func = &local.funcs[entry.func];
    for &(arg, result) in &entry.aliases {
        let Role::State(state) = entry.args[arg] else { continue };
        let v = func.results[result];
        let Some(new) = &func.values[v].claim else { continue };
        let ty = &sharded.states[state].ty;
        let shape_fits = new.sharding.dims.len() == ty.rank() && new.pad.len() == ty.rank();
        let Some(stored) = sharded.states[state].sharding.as_ref().filter(|_| shape_fits) else {
            return Err(fault::of_value(func, v, "is no value of its state"));
        };
        if canonical(&ty.shape, stored) != canonical(&ty.shape, &new.sharding) {
            return Err(fault::of_value(
                func,
                v,
                "is laid out otherwise than the state it is the new value of",
            ));
        }
        for reader in &local.entries {
            let inner = &local.funcs[reader.func];
            let takes = inner.args.iter().zip(&reader.args).filter(|(_, role)| **role == Role::State(state));
            for (&a, _) in takes {
                let Some(taken) = &inner.values[a].claim else { continue };
                let lacks = |&d: &usize| {
                    taken.pad.get(d) == Some(&Pad::Zero)
                        && new.pad[d] != Pad::Zero
                        && stored.pads(d, ty.shape[d])
                };
                if let Some(d) = (0..ty.rank()).find(lacks) {
                    let why = format!("entry `{}` relies on zeros in the padding of dim {d}", reader.name);
                    return Err(
                        fault::of_value(func, v, "becomes a state whose padding may hold anything").why(why)
                    );
                }
            }
        }
    }
    Ok(())
}
