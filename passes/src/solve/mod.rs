//! Chooses the sharding of every value: the least modelled time, with weights split wherever they can be.
//!
//! One solver for every model. It knows ops only by their sharding rules and costs: no rule names attention or MLP weights.
//! Functions that share parameters or states are solved together (a parameter has one sharding for all entries), all
//! calls of a function share its variables, and so the work grows with distinct layers and not with depth.
//!
//! 1. [`structure`] finds dim classes, labels and slots.
//! 2. [`strategy`] lists the ways each instruction can run.
//! 3. [`problem`] builds a cost network per component, [`eliminate`] solves it exactly (or reports the gap).

mod eliminate;
mod limits;
mod network;
mod problem;
mod strategy;
mod structure;
pub(crate) mod unite;
mod value_bounds;

#[cfg(test)]
mod enumeration;
#[cfg(test)]
pub(crate) mod models;
#[cfg(test)]
mod tests;

use crate::cost::Cluster;
pub use limits::fits;
use network::{Choice, Cost};
use pcc_ir::{Diagnostic, FuncId, Mesh, Module, Op, Sharding};
use problem::{Builder, Problem, ReshardCosts};
use std::collections::{BTreeMap, BTreeSet};
use strategy::{Interner, ShardId};
use structure::{SlotKind, Structure};
pub(crate) use unite::Classes;

/// Joined tables of more entries than this are not built: the search is then bounded and reports its gap.
const TABLE_LIMIT: usize = 1 << 22;

/// What the user asks for.
#[derive(Clone, Debug)]
pub struct Options {
    pub mesh: Mesh,
    /// Sequence parallelism: what is carried from layer to layer is split over tp along the sequence.
    pub sp: bool,
    pub cluster: Cluster,
    /// Shardings the user fixes.
    pub pins: Vec<Pin>,
}

impl Options {
    pub fn new(mesh: Mesh) -> Self {
        Self { mesh, sp: false, cluster: Cluster::a100(), pins: Vec::new() }
    }
}

/// A user's constraint: the parameter of this name is stored so.
#[derive(Clone, Debug, PartialEq)]
pub struct Pin {
    pub param: String,
    pub sharding: Sharding,
}

/// How one instruction runs: what it needs of its operands and how its results come out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstShardings {
    pub needs: Vec<Sharding>,
    pub gives: Vec<Sharding>,
}

/// The shardings of one function: what callers hand in, how each instruction runs, what callers get back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FuncShardings {
    pub args: Vec<Sharding>,
    pub insts: Vec<InstShardings>,
    pub results: Vec<Sharding>,
}

/// The shardings of a module: every function that an entry reaches, the parameters and the states (by id order).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Assignment {
    pub funcs: BTreeMap<FuncId, FuncShardings>,
    pub params: Vec<Sharding>,
    pub states: Vec<Sharding>,
}

/// An assignment and how good it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    pub assignment: Assignment,
    /// Modelled seconds of one call of every entry, weighted.
    pub seconds: f64,
    /// `(cost - bound) / bound` over all components; 0 when every component was solved exactly.
    pub gap: f64,
    /// Components solved, and variables in all of them.
    pub components: usize,
    pub variables: usize,
}

/// Chooses shardings for an outlined module.
///
/// Errors: a tp that no weight of some function can use, dp without a batch, a batch that dp does not divide, `--sp`
/// without a sequence, a pin that names no parameter or does not fit it.
pub fn solve(module: &Module, options: &Options) -> Result<Solution, Diagnostic> {
    let mut structure = Structure::of(module)?;
    limits::check(module, &mut structure, options)?;
    let pins = pins(module, &mut structure, options)?;
    let weights: usize = module.params.len().max(1);
    let mut interner = Interner::default();
    let mut reshards = ReshardCosts::default();
    let mut builder = Builder {
        module,
        structure: &mut structure,
        interner: &mut interner,
        reshards: &mut reshards,
        mesh: &options.mesh,
        cluster: &options.cluster,
        sp: options.sp,
        pins: &pins,
        // A thousand seconds each, less where that many weights would pass the range of costs.
        unsplit: (1e15 as Cost).min(network::INFINITE / 4 / weights as Cost),
    };
    let mut solved = Solved { slots: BTreeMap::new(), funcs: BTreeMap::new() };
    let (mut cost, mut bound, mut variables, mut unsplit) = (0.0, 0.0, 0, 0.0);
    let components = components(module, builder.structure);
    for funcs in &components {
        let problem = builder.build(funcs);
        let choice = eliminate::minimise(&problem.net, TABLE_LIMIT);
        if choice.cost >= network::INFINITE {
            return Err(infeasible(module, funcs));
        }
        variables += problem.net.domains.len();
        cost += choice.cost as f64;
        bound += choice.bound as f64;
        unsplit += (choice.cost / builder.unsplit) as f64 * builder.unsplit as f64;
        read(&mut builder, &problem, &choice, &mut solved);
    }
    let assignment = whole_module(module, &mut builder, &solved);
    let seconds = (cost - unsplit) / 1e12;
    let gap = if cost > bound { (cost - bound) / (bound - unsplit).max(1.0) } else { 0.0 };
    Ok(Solution { assignment, seconds, gap, components: components.len(), variables })
}

/// What the components' solutions say so far.
struct Solved {
    slots: BTreeMap<usize, ShardId>,
    funcs: BTreeMap<FuncId, FuncShardings>,
}

/// Leaf functions that share a parameter or a state belong together.
fn components(module: &Module, s: &mut Structure) -> Vec<Vec<FuncId>> {
    let leaves: Vec<FuncId> = s.leaves.keys().copied().collect();
    let mut classes = Classes::default();
    classes.extend(leaves.len());
    let mut owner: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, &func) in leaves.iter().enumerate() {
        let f = &module.funcs[func];
        let args = (0..f.args.len()).map(|a| s.arg_slot(func, a)).collect::<Vec<_>>();
        let results = (0..f.results.len()).map(|r| s.result_slot(func, r)).collect::<Vec<_>>();
        for slot in args.into_iter().chain(results) {
            if matches!(s.kind(slot), SlotKind::Param | SlotKind::State) {
                classes.unite(i, *owner.entry(slot).or_insert(i));
            }
        }
    }
    let mut groups: BTreeMap<usize, Vec<FuncId>> = BTreeMap::new();
    for (i, &func) in leaves.iter().enumerate() {
        groups.entry(classes.find(i)).or_default().push(func);
    }
    groups.into_values().collect()
}

/// Reads the functions' shardings off a component's solution.
fn read(b: &mut Builder, problem: &Problem, choice: &Choice, solved: &mut Solved) {
    for (&slot, sv) in &problem.slots {
        solved.slots.insert(slot, sv.choices[choice.values[sv.var]]);
    }
    for fv in &problem.funcs {
        let f = &b.module.funcs[fv.func];
        let mut made: BTreeMap<pcc_ir::ValueId, ShardId> = BTreeMap::new();
        let mut out = FuncShardings::default();
        for (i, &v) in f.args.iter().enumerate() {
            let slot = b.structure.arg_slot(fv.func, i);
            let id = stored_or_boundary(b, solved, slot, (fv.func, v));
            made.insert(v, id);
            out.args.push(b.interner.get(id).clone());
        }
        for (at, inst) in f.insts.iter().enumerate() {
            let st = &fv.strategies[at][choice.values[fv.vars[at]]];
            made.extend(inst.results.iter().copied().zip(st.gives.iter().copied()));
            let all = |ids: &[ShardId]| ids.iter().map(|&id| b.interner.get(id).clone()).collect();
            out.insts.push(InstShardings { needs: all(&st.needs), gives: all(&st.gives) });
        }
        for (j, &v) in f.results.iter().enumerate() {
            let slot = b.structure.result_slot(fv.func, j);
            let id = if b.structure.kind(slot) == SlotKind::Free {
                // A reshard that exists anyway may already have reduced the value.
                let shared =
                    fv.shared.get(&v).and_then(|(var, ids)| ids.get(choice.values[*var].wrapping_sub(1)));
                let p = made[&v];
                let whole = |id: ShardId| b.interner.get(id).partial.is_empty();
                match shared {
                    Some(&t) if !whole(p) && whole(t) => t,
                    _ => b.reduced(f.ty(v), p),
                }
            } else {
                stored_or_boundary(b, solved, slot, (fv.func, v))
            };
            out.results.push(b.interner.get(id).clone());
        }
        solved.funcs.insert(fv.func, out);
    }
}

fn stored_or_boundary(
    b: &mut Builder,
    solved: &Solved,
    slot: usize,
    v: (FuncId, pcc_ir::ValueId),
) -> ShardId {
    match solved.slots.get(&slot) {
        Some(&id) => id,
        None => b.boundary(slot, b.module.funcs[v.0].ty(v.1), v),
    }
}

/// Adds what calls imply: the entries' values, and the parameters and states.
fn whole_module(module: &Module, b: &mut Builder, solved: &Solved) -> Assignment {
    let mut funcs = solved.funcs.clone();
    let entries: BTreeSet<FuncId> = module.entries.iter().map(|e| e.func).collect();
    for func in entries.into_iter().filter(|f| !solved.funcs.contains_key(f)) {
        let f = &module.funcs[func];
        let mut made: BTreeMap<pcc_ir::ValueId, Sharding> = BTreeMap::new();
        let mut out = FuncShardings::default();
        for &v in &f.args {
            let slot = b.structure.value_slot(func, v);
            let id = stored_or_boundary(b, solved, slot, (func, v));
            made.insert(v, b.interner.get(id).clone());
            out.args.push(b.interner.get(id).clone());
        }
        for inst in &f.insts {
            let pcc_ir::Op::Call(callee) = inst.op else { continue };
            let Some(inner) = solved.funcs.get(&callee) else { continue };
            made.extend(inst.results.iter().copied().zip(inner.results.iter().cloned()));
            out.insts.push(InstShardings { needs: inner.args.clone(), gives: inner.results.clone() });
        }
        let whole = |v: pcc_ir::ValueId| Sharding::replicated(f.ty(v).rank());
        out.results = f.results.iter().map(|&v| made.get(&v).cloned().unwrap_or_else(|| whole(v))).collect();
        funcs.insert(func, out);
    }
    let params: Vec<usize> = (0..module.params.len()).map(|i| b.structure.param_slot(i)).collect();
    let states: Vec<usize> = (0..module.states.len()).map(|i| b.structure.state_slot(i)).collect();
    let mut stored = |slot: usize, rank: usize| match (solved.slots.get(&slot), b.structure.example(slot)) {
        (Some(&id), _) => b.interner.get(id).clone(),
        (None, Some(v)) => {
            let id = b.boundary(slot, module.funcs[v.0].ty(v.1), v);
            b.interner.get(id).clone()
        }
        (None, None) => Sharding::replicated(rank),
    };
    Assignment {
        params: params.iter().zip(module.params.values()).map(|(&s, p)| stored(s, p.ty.rank())).collect(),
        states: states.iter().zip(module.states.values()).map(|(&s, t)| stored(s, t.ty.rank())).collect(),
        funcs,
    }
}

/// The slots of pinned parameters.
fn pins(
    module: &Module,
    s: &mut Structure,
    options: &Options,
) -> Result<BTreeMap<usize, Sharding>, Diagnostic> {
    let mut out = BTreeMap::new();
    for pin in &options.pins {
        let Some((id, param)) = module.params.iter().find(|(_, p)| p.name == pin.param) else {
            return Err(Diagnostic::input("a constraint names a parameter the model does not have")
                .at(pin.param.clone()));
        };
        limits::fits(&options.mesh, &param.ty, &pin.sharding).map_err(|why| {
            Diagnostic::input("a constraint does not fit its parameter").at(pin.param.clone()).why(why)
        })?;
        out.insert(s.param_slot(id.as_u32() as usize), pin.sharding.clone());
    }
    Ok(out)
}

fn infeasible(module: &Module, funcs: &[FuncId]) -> Diagnostic {
    let names: Vec<&str> = funcs.iter().map(|&f| module.funcs[f].name.as_str()).collect();
    Diagnostic::input("no sharding satisfies the constraints")
        .at(names.join(", "))
        .why(
            "a constrained parameter is stored in a way that some use of it cannot take without gathering it",
        )
        .help("remove the constraint, or pin the parameter replicated")
}

/// Writes on the results of entries which of their dims are batch and sequence, following the labels of the inputs through
/// the sharding rules. Entries must be chains of calls.
pub fn label_results(module: &mut Module) -> Result<(), Diagnostic> {
    let mut structure = Structure::of(module)?;
    let entries: Vec<FuncId> = module.entries.iter().map(|e| e.func).collect();
    for entry in entries {
        for v in module.funcs[entry].results.clone() {
            let main = &module.funcs[entry];
            let made = main.insts.iter().find_map(|i| match i.op {
                Op::Call(f) => i.results.iter().position(|&r| r == v).map(|at| (f, at)),
                _ => None,
            });
            let Some((callee, at)) = made else { continue };
            let inner = module.funcs[callee].results[at];
            let labels: Vec<_> = (0..main.ty(v).rank())
                .map(|d| {
                    let class = structure.dim(callee, inner, d);
                    structure.label(class)
                })
                .collect();
            if labels.iter().any(Option::is_some) {
                module.funcs[entry].values[v].labels = labels;
            }
        }
    }
    Ok(())
}
