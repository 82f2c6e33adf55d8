//! The tables of a program: mesh, batch plan, parameters, states, and what entries take and give.

use super::layout::canonical;
use super::structure::bad_sharding;
use pcc_ir::graph::{Label, Role};
use pcc_ir::program::{EntryProgram, IoSpec, Program, VERSION};
use pcc_ir::{Axis, Diagnostic, Entry, Module, Sharding, Type, ValueId};

pub(super) fn check(sharded: &Module, local: &Module, program: &Program) -> Result<(), Diagnostic> {
    if program.version != VERSION || program.mesh != local.mesh {
        return Err(Diagnostic::check(
            "the program is of another version or mesh than the module it was made from",
        ));
    }
    let params = sharded.params.values().map(|p| (&p.name, &p.source, &p.ty, &p.sharding, p.stack));
    let mut have = program.params.iter();
    for (name, source, ty, sharding, stack) in params {
        let same = |p: &pcc_ir::program::LocalParam| {
            (&p.name, &p.source, &p.ty, Some(&p.sharding), p.stack)
                == (name, source, ty, sharding.as_ref(), stack)
        };
        if !have.next().is_some_and(same) {
            return Err(Diagnostic::check(format!(
                "parameter `{name}` is not in the program as it was sharded"
            )));
        }
    }
    if let Some(extra) = have.next() {
        return Err(Diagnostic::check(format!(
            "the program has a parameter `{}` that the model has not",
            extra.name
        )));
    }
    let mut have = program.states.iter();
    for state in sharded.states.values() {
        let same = |s: &pcc_ir::program::LocalState| {
            (&s.name, &s.ty, Some(&s.sharding), s.stack)
                == (&state.name, &state.ty, state.sharding.as_ref(), state.stack)
        };
        if !have.next().is_some_and(same) {
            return Err(Diagnostic::check(format!(
                "state `{}` is not in the program as it was sharded",
                state.name
            )));
        }
    }
    if let Some(extra) = have.next() {
        return Err(Diagnostic::check(format!(
            "the program has a state `{}` that the model has not",
            extra.name
        )));
    }
    for (id, kernel) in &program.kernels {
        kernel.check().map_err(|why| {
            Diagnostic::check(format!("kernel `{}` ({id}) is ill-formed", kernel.name)).why(why)
        })?;
    }
    check_constants(program)?;
    check_batch(program)?;
    if program.entries.len() != local.entries.len() {
        return Err(Diagnostic::check("the program has another number of entries than the model"));
    }
    local
        .entries
        .iter()
        .zip(&program.entries)
        .try_for_each(|(e, p)| check_entry(sharded, local, program, e, p))
}

fn check_constants(program: &Program) -> Result<(), Diagnostic> {
    match program.constants.iter().position(|c| c.data.len() != c.ty.elements()) {
        None => Ok(()),
        Some(i) => {
            Err(Diagnostic::check(format!("constant {i} of the program lists too few or too many elements")))
        }
    }
}

/// Replicas are those of the mesh, and no replica or micro-batch is without a row.
fn check_batch(program: &Program) -> Result<(), Diagnostic> {
    let plan = program.batch;
    let replicas = program.mesh.size(Axis::Dp) as usize * program.mesh.size(Axis::Ep) as usize;
    let cells = plan.replicas.checked_mul(plan.micro_batches).unwrap_or(0);
    if plan.replicas != replicas || plan.micro_batches == 0 || cells == 0 || plan.batch < cells {
        let why = format!(
            "{} rows in {} micro-batches on {} replicas, of which the mesh has {replicas}",
            plan.batch, plan.micro_batches, plan.replicas
        );
        return Err(Diagnostic::check("the batch is not spread over all replicas and micro-batches").why(why));
    }
    Ok(())
}

fn check_entry(
    sharded: &Module,
    local: &Module,
    program: &Program,
    entry: &Entry,
    made: &EntryProgram,
) -> Result<(), Diagnostic> {
    if made.name != entry.name || made.stages.len() != program.mesh.pp as usize {
        return Err(Diagnostic::check(format!(
            "entry `{}` is not in the program, or not on every stage",
            entry.name
        )));
    }
    let func = &local.funcs[entry.func];
    let inputs = func.args.iter().enumerate().zip(&entry.args).filter_map(|((i, &v), role)| match role {
        Role::Input(name) => Some((i, v, name)),
        _ => None,
    });
    let outputs = func.results.iter().enumerate().zip(&entry.results).map(|((i, &v), name)| (i, v, name));
    let outputs = outputs.filter(|(i, ..)| !entry.aliases.iter().any(|(_, r)| r == i));
    let global = &sharded.funcs[entry.func];
    let check = |listed: &[IoSpec], wanted: Vec<(usize, ValueId, &String)>, of: &[ValueId]| {
        let mut listed = listed.iter();
        for (i, v, name) in wanted {
            let value = &global.values[of[i]];
            let claim = func.values[v].claim.as_ref().map(|c| &c.sharding);
            let label = |l| value.labels.iter().position(|&x| x == Some(l));
            let same = listed.next().is_some_and(|spec| {
                spec.name == *name
                    && spec.ty == value.ty
                    && bad_sharding(&program.mesh, value.ty.rank(), &spec.sharding).is_none()
                    && claim.is_some_and(|c| same_sharding(&value.ty, c, &spec.sharding))
                    && spec.batch_dim == label(Label::Batch)
                    && spec.seq_dim == label(Label::Seq)
            });
            if !same {
                let what =
                    format!("`{name}` of entry `{}` is not in the program as the module has it", entry.name);
                return Err(Diagnostic::check(what));
            }
            check_rows(program, name, &value.ty, label(Label::Batch))?;
        }
        match listed.next() {
            None => Ok(()),
            Some(extra) => Err(Diagnostic::check(format!(
                "entry `{}` of the program also has `{}`",
                entry.name, extra.name
            ))),
        }
    };
    check(&made.inputs, inputs.collect(), &global.args)?;
    check(&made.outputs, outputs.collect(), &global.results)
}

/// A batch dim holds the rows of every replica.
fn check_rows(program: &Program, name: &str, ty: &Type, batch_dim: Option<usize>) -> Result<(), Diagnostic> {
    let Some(extent) = batch_dim.and_then(|d| ty.shape.get(d)) else { return Ok(()) };
    let rows = program.batch.rows().checked_mul(program.batch.replicas);
    match rows == Some(*extent) {
        true => Ok(()),
        false => {
            let why = format!("{} replicas of {} rows each", program.batch.replicas, program.batch.rows());
            Err(Diagnostic::check(format!("`{name}` holds {extent} rows of a batch")).why(why))
        }
    }
}

fn same_sharding(ty: &Type, a: &Sharding, b: &Sharding) -> bool {
    let fits = a.dims.len() == ty.rank() && b.dims.len() == ty.rank();
    fits && canonical(&ty.shape, a) == canonical(&ty.shape, b)
}
