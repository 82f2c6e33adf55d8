//! Sharded module to local module: local shapes, explicit collectives, a claim on every value.
//!
//! Functions, their arguments and their results stay as they are and in order; what changes is what a value is: the piece
//! one device holds. For example, with `tp` 2 and W split by rows
//!
//! ```text
//! y: f32[4,8] [{}, {}] partial{tp sum} = dot_general(x: f32[4,6] [{}, {tp}], w: f32[6,8] [{tp}, {}])
//! z: f32[4,8] [{}, {}]                 = reshard(y)
//! ```
//!
//! becomes
//!
//! ```text
//! y: f32[4,8] = dot_general(x: f32[4,3], w: f32[3,8])     // y, partial over tp
//! z: f32[4,8] = all_reduce(y) axes {tp} sum               // y, replicated
//! ```
//!
//! **Padding.** Pieces of dims that do not divide have padded tails. What the padding holds is tracked from the arguments on:
//! inputs and parameters come with zeros, each op says what it makes of them. Before a dim is
//! reduced or contracted its padding must be the identity of the reduction, else a `mask_tail` is inserted. What the
//! padding of a function's arguments and results holds is the same at all its calls: it is the greatest fixpoint
//! over the call graph, so a claim of zero holds at every call, and for a state from one run of an entry to the next.

mod layout;
mod local;
mod reshard;
mod time;

#[cfg(test)]
mod tests;

pub use reshard::{Step, plan};

pub(crate) use layout::{Cuts, merge_group, same_layout, same_split};
pub(crate) use local::settled;
pub(crate) use time::op_time;

use cranelift_entity::SecondaryMap;
use pcc_ir::graph::{Entry, Role};
use pcc_ir::{Diagnostic, Func, FuncId, Module, Op, Pad, StateId};

/// What the padding of a function's arguments and results holds, one entry a dim.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Boundary {
    pub(crate) args: Vec<Vec<Pad>>,
    pub(crate) results: Vec<Vec<Pad>>,
}

pub(crate) type Boundaries = SecondaryMap<FuncId, Boundary>;

/// Brings a sharded module (every value with a sharding, reshards where they differ) to its local form. Parameters, states
/// and entries stay: their types are global ones, their shardings say which piece a device holds.
///
/// # Errors
/// A diagnostic of fault `Internal` that names the value, when an op cannot run as sharded: passes before this one choose only
/// shardings that an op's rule allows.
pub fn partition(module: &Module) -> Result<Module, Diagnostic> {
    let order = callees_first(module)?;
    let mut boundaries = optimistic(module);
    let mut local: SecondaryMap<FuncId, Option<Func>> = SecondaryMap::new();
    let mut stale: Vec<FuncId> = order.clone();
    while !stale.is_empty() {
        let mut next = Vec::new();
        for &id in &order {
            if !stale.contains(&id) && !next.contains(&id) {
                continue;
            }
            next.retain(|&f| f != id);
            let Some(func) = module.funcs.get(id) else { continue };
            let made = local::local_func(module, func, &boundaries[id], &boundaries)?;
            if weaken(&mut boundaries[id].results, &made.results) {
                next.extend(callers(module, id));
            }
            for (callee, pads) in made.calls {
                if weaken(&mut boundaries[callee].args, &pads) {
                    next.push(callee);
                }
            }
            local[id] = Some(made.func);
        }
        next.extend(weaken_states(module, &mut boundaries));
        stale = next;
    }
    let mut out = module.clone();
    for (id, func) in out.funcs.iter_mut() {
        if let Some(made) = local[id].take() {
            *func = made;
        }
    }
    Ok(out)
}

/// Zero everywhere: what the fixpoint starts from.
fn optimistic(module: &Module) -> Boundaries {
    let mut boundaries = Boundaries::new();
    for (id, f) in &module.funcs {
        let pads = |vs: &[_]| vs.iter().map(|&v| vec![Pad::Zero; f.ty(v).rank()]).collect();
        boundaries[id] = Boundary { args: pads(&f.args), results: pads(&f.results) };
    }
    boundaries
}

/// Takes back every zero that `now` does not have; whether there was any.
fn weaken(known: &mut [Vec<Pad>], now: &[Vec<Pad>]) -> bool {
    let mut changed = false;
    for (k, &n) in known.iter_mut().flatten().zip(now.iter().flatten()) {
        if *k == Pad::Zero && n == Pad::Unspecified {
            *k = Pad::Unspecified;
            changed = true;
        }
    }
    changed
}

/// A state is handed from any entry that writes it to any entry that reads it. Returns the functions whose arguments changed.
fn weaken_states(module: &Module, boundaries: &mut Boundaries) -> Vec<FuncId> {
    let state = |e: &Entry, arg: usize| match e.args.get(arg) {
        Some(Role::State(s)) => Some(*s),
        _ => None,
    };
    let mut written: Vec<(StateId, Vec<Pad>)> = Vec::new();
    for e in &module.entries {
        for &(arg, result) in &e.aliases {
            if let (Some(s), Some(pad)) = (state(e, arg), boundaries[e.func].results.get(result)) {
                written.push((s, pad.clone()));
            }
        }
    }
    let mut changed = Vec::new();
    for e in &module.entries {
        for (arg, known) in boundaries[e.func].args.iter_mut().enumerate() {
            for (_, pad) in written.iter().filter(|w| Some(w.0) == state(e, arg)) {
                if weaken(std::slice::from_mut(known), std::slice::from_ref(pad)) {
                    changed.push(e.func);
                }
            }
        }
    }
    changed
}

fn callees(f: &Func) -> impl Iterator<Item = FuncId> + '_ {
    f.insts.iter().filter_map(|i| match i.op {
        Op::Call(callee) => Some(callee),
        _ => None,
    })
}

fn callers(module: &Module, id: FuncId) -> Vec<FuncId> {
    module.funcs.iter().filter(|(_, f)| callees(f).any(|c| c == id)).map(|(id, _)| id).collect()
}

/// Every function after the functions it calls.
fn callees_first(module: &Module) -> Result<Vec<FuncId>, Diagnostic> {
    let mut calls = petgraph::graphmap::DiGraphMap::<FuncId, ()>::new();
    for (id, f) in &module.funcs {
        calls.add_node(id);
        for callee in callees(f) {
            calls.add_edge(callee, id, ());
        }
    }
    petgraph::algo::toposort(&calls, None).map_err(|cycle| {
        let name = module.funcs.get(cycle.node_id()).map_or("?", |f| &f.name);
        Diagnostic::internal(format!("function {name} calls itself"))
    })
}
