//! Assignments of folded modules and of the same modules layer by layer.

use crate::solve::{Assignment, FuncShardings};
use pcc_ir::repeat::{Chain, Numbering};
use pcc_ir::{Diagnostic, Entry, Module, Sharding};

/// The module layer by layer, and the assignment for it: what holds for a stack or a body holds for each element and repetition.
pub(crate) fn unfolded(module: &Module, assignment: &Assignment) -> Result<(Module, Assignment), Diagnostic> {
    let tables = Tables::of(module)?;
    let stored = |numbers: &Numbering, of: &[Sharding]| {
        let rows = (0..numbers.len()).filter_map(|n| numbers.origin(n));
        rows.filter_map(|(row, _)| of.get(row as usize).cloned()).collect()
    };
    let mut out = Assignment {
        funcs: assignment.funcs.clone(),
        params: stored(&tables.params, &assignment.params),
        states: stored(&tables.states, &assignment.states),
    };
    for entry in &module.entries {
        let Some(s) = assignment.funcs.get(&entry.func) else { continue };
        let Some(places) = tables.places(module, entry)? else { continue };
        let shardings = FuncShardings {
            args: places.args.iter().filter_map(|&(i, _)| s.args.get(i).cloned()).collect(),
            insts: places.insts.iter().filter_map(|&(i, _)| s.insts.get(i).cloned()).collect(),
            results: places.results.iter().filter_map(|&(i, _)| s.results.get(i).cloned()).collect(),
        };
        out.funcs.insert(entry.func, shardings);
    }
    Ok((module.expanded()?.into_owned(), out))
}

/// The assignment for a folded module, given one for the same module layer by layer.
///
/// # Errors
/// Layers that are folded together are sharded differently.
pub(super) fn folded(module: &Module, flat: &Assignment) -> Result<Assignment, Diagnostic> {
    let tables = Tables::of(module)?;
    let mut out = Assignment {
        funcs: flat.funcs.clone(),
        params: same(tables.params.len(), |n| tables.params.origin(n), &flat.params)?,
        states: same(tables.states.len(), |n| tables.states.origin(n), &flat.states)?,
    };
    for entry in &module.entries {
        let Some(s) = flat.funcs.get(&entry.func) else { continue };
        let Some(places) = tables.places(module, entry)? else { continue };
        let first = |at: &[(usize, u32)]| -> Vec<usize> {
            let mut firsts: Vec<(usize, usize)> =
                at.iter().enumerate().filter(|(_, p)| p.1 == 0).map(|(n, p)| (p.0, n)).collect();
            firsts.sort_unstable();
            firsts.into_iter().map(|f| f.1).collect()
        };
        let shardings = FuncShardings {
            args: first(&places.args).into_iter().filter_map(|n| s.args.get(n).cloned()).collect(),
            insts: first(&places.insts).into_iter().filter_map(|n| s.insts.get(n).cloned()).collect(),
            results: first(&places.results).into_iter().filter_map(|n| s.results.get(n).cloned()).collect(),
        };
        out.funcs.insert(entry.func, shardings);
    }
    Ok(out)
}

/// One sharding a row, which all its elements have.
fn same(
    len: u32,
    origin: impl Fn(u32) -> Option<(u32, u32)>,
    flat: &[Sharding],
) -> Result<Vec<Sharding>, Diagnostic> {
    let mut out: Vec<Option<&Sharding>> = Vec::new();
    for ((row, _), sharding) in (0..len).filter_map(&origin).zip(flat) {
        let row = row as usize;
        out.resize(out.len().max(row + 1), None);
        if *out[row].get_or_insert(sharding) != sharding {
            return Err(Diagnostic::input("the plan shards equal layers differently")
                .why("layers that run one function share its shardings")
                .help("give the weights of all layers the same shardings"));
        }
    }
    Ok(out.into_iter().flatten().cloned().collect())
}

struct Tables {
    params: Numbering,
    states: Numbering,
}

/// For each argument, call and result of an unfolded entry: its place in the folded function, and which repetition it is.
struct Places {
    args: Vec<(usize, u32)>,
    insts: Vec<(usize, u32)>,
    results: Vec<(usize, u32)>,
}

impl Tables {
    fn of(module: &Module) -> Result<Self, Diagnostic> {
        let params = Numbering::new(module.params.values().map(|p| p.stack)).map_err(Diagnostic::internal)?;
        let states = Numbering::new(module.states.values().map(|s| s.stack)).map_err(Diagnostic::internal)?;
        Ok(Self { params, states })
    }

    /// `None` for an entry without repeats, which stays as it is.
    fn places(&self, module: &Module, entry: &Entry) -> Result<Option<Places>, Diagnostic> {
        if entry.repeats.is_empty() {
            return Ok(None);
        }
        let fault =
            |why| Diagnostic::internal("an entry is no chain of calls").at(entry.name.clone()).why(why);
        let chain = Chain::with(module, entry, &self.params, &self.states).map_err(fault)?;
        let func = &module.funcs[entry.func];
        let position: std::collections::HashMap<_, _> = func.args.iter().zip(0..).collect();
        let arg = |&(v, _): &(u32, _)| {
            let v = v as usize;
            Some((*position.get(&chain.origins[v])?, chain.elements[v]))
        };
        Ok(Some(Places {
            args: chain.args.iter().filter_map(arg).collect(),
            insts: chain.calls.iter().map(|c| (c.inst as usize, c.repetition)).collect(),
            results: chain.results.iter().map(|r| (r.index as usize, r.element)).collect(),
        }))
    }
}
