//! Fewer layers: which calls of the chain a twin keeps, and the module and shardings without the others.
//!
//! A call can be left out when each of its results that something else uses has an argument to stand for it (the residual that went
//! in, of the same type and sharding), or is the new value of a state that goes with it. All entries lose the same calls, so that
//! prefill and decode still share their states.

use crate::solve::{Assignment, FuncShardings};
use cranelift_entity::EntityRef;
use pcc_ir::graph::Role;
use pcc_ir::{Entry, Func, FuncId, Inst, Module, Op, ParamId, StateId, ValueId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A model with fewer layers.
pub(super) struct Fewer {
    pub module: Module,
    pub assignment: Assignment,
    /// Calls of each pipeline stage.
    pub stages: Vec<usize>,
}

/// Keeps, of each function, one call a stage (two where there are at most two stages).
pub(super) fn fewer(module: &Module, assignment: &Assignment, stages: &[usize]) -> Fewer {
    let all = || Fewer { module: module.clone(), assignment: assignment.clone(), stages: stages.to_vec() };
    let Some(keep) = choose(module, assignment, stages) else { return all() };
    let mut out = all();
    for i in 0..module.entries.len() {
        drop_calls(&mut out, i, &keep);
    }
    drop_stored(&mut out);
    let mut at = 0;
    for stage in &mut out.stages {
        let calls = at..at + *stage;
        at = calls.end;
        *stage = keep.get(calls).map_or(0, |k| k.iter().filter(|&&k| k).count());
    }
    out
}

/// Whether each call of the chain stays; `None` when the entries are not chains of one length that the stages cut.
fn choose(module: &Module, assignment: &Assignment, stages: &[usize]) -> Option<Vec<bool>> {
    let mut chains: Vec<Vec<FuncId>> = Vec::new();
    for entry in &module.entries {
        let f = &module.funcs[entry.func];
        chains.push(f.insts.iter().map(callee).collect::<Option<_>>()?);
    }
    let calls = chains.first()?.len();
    if chains.iter().any(|c| c.len() != calls) || stages.iter().sum::<usize>() != calls {
        return None;
    }
    let each = if stages.len() <= 2 { 2 } else { 1 };
    let mut keep = Vec::with_capacity(calls);
    for &length in stages {
        let mut seen: HashMap<Vec<FuncId>, usize> = HashMap::new();
        for _ in 0..length {
            let key: Vec<FuncId> = chains.iter().map(|c| c[keep.len()]).collect();
            let count = seen.entry(key).or_default();
            *count += 1;
            let at = keep.len();
            let needed = || module.entries.iter().any(|e| !can_go(module, assignment, e, at));
            keep.push(*count <= each || needed());
        }
    }
    Some(keep)
}

fn callee(inst: &Inst) -> Option<FuncId> {
    if let Op::Call(f) = inst.op { Some(f) } else { None }
}

fn can_go(module: &Module, assignment: &Assignment, entry: &Entry, call: usize) -> bool {
    let f = &module.funcs[entry.func];
    (0..f.insts[call].results.len())
        .all(|r| new_state(f, entry, f.insts[call].results[r]) || stand_in(assignment, f, call, r).is_some())
}

/// Whether the value is only the new value of a state.
fn new_state(f: &Func, entry: &Entry, v: ValueId) -> bool {
    let used = f.insts.iter().any(|i| i.args.contains(&v));
    let mut places = f.results.iter().enumerate().filter(|&(_, &r)| r == v).map(|(i, _)| i);
    !used && places.all(|r| entry.aliases.iter().any(|a| a.1 == r))
}

/// The one argument of a call that an earlier call made, and that is like the result.
fn stand_in(assignment: &Assignment, f: &Func, call: usize, result: usize) -> Option<ValueId> {
    let inst = &f.insts[call];
    let how = assignment.funcs.get(&callee(inst)?)?;
    let ty = f.ty(inst.results[result]);
    let made = |v: &ValueId| !f.args.contains(v);
    let like =
        |&(i, v): &(usize, &ValueId)| made(v) && f.ty(*v) == ty && how.args.get(i) == how.results.get(result);
    let mut found = inst.args.iter().enumerate().filter(like).map(|(_, &v)| v);
    let first = found.next()?;
    found.all(|v| v == first).then_some(first)
}

/// Rebuilds one entry's function with the kept calls only.
fn drop_calls(out: &mut Fewer, index: usize, keep: &[bool]) {
    let entry = out.module.entries[index].clone();
    let f = out.module.funcs[entry.func].clone();
    // What stands for each value: itself, or what went into the dropped call that made it.
    let mut stands: BTreeMap<ValueId, Option<ValueId>> = f.args.iter().map(|&v| (v, Some(v))).collect();
    let mut used: BTreeSet<ValueId> = BTreeSet::new();
    for (c, inst) in f.insts.iter().enumerate() {
        for (r, &v) in inst.results.iter().enumerate() {
            let through =
                || stand_in(&out.assignment, &f, c, r).and_then(|p| stands.get(&p).copied().flatten());
            let stand = if keep[c] { Some(v) } else { through() };
            stands.insert(v, stand);
        }
        if keep[c] {
            used.extend(inst.args.iter().filter_map(|v| stands.get(v).copied().flatten()));
        }
    }
    let results: Vec<usize> = (0..f.results.len()).filter(|&r| stands[&f.results[r]].is_some()).collect();
    used.extend(results.iter().filter_map(|&r| stands[&f.results[r]]));
    let is_input = |i: usize| matches!(entry.args.get(i), Some(Role::Input(_)));
    let args: Vec<usize> = (0..f.args.len()).filter(|&i| is_input(i) || used.contains(&f.args[i])).collect();

    let mut g = Func::new(f.name.clone());
    let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for &i in &args {
        let v = g.values.push(f.values[f.args[i]].clone());
        g.args.push(v);
        map.insert(f.args[i], v);
    }
    let find = |map: &BTreeMap<ValueId, ValueId>, v: &ValueId| stands[v].and_then(|v| map.get(&v).copied());
    for inst in f.insts.iter().zip(keep).filter(|k| *k.1).map(|k| k.0) {
        let args = inst.args.iter().filter_map(|v| find(&map, v)).collect();
        let mut results = Vec::new();
        for &v in &inst.results {
            let new = g.values.push(f.values[v].clone());
            map.insert(v, new);
            results.push(new);
        }
        g.insts.push(Inst { args, results, ..inst.clone() });
    }
    g.results = results.iter().filter_map(|&r| find(&map, &f.results[r])).collect();
    out.module.funcs[entry.func] = g;

    let place = |kept: &[usize], i: usize| kept.iter().position(|&k| k == i);
    let alias = |&(a, r): &(usize, usize)| Some((place(&args, a)?, place(&results, r)?));
    out.module.entries[index] = Entry {
        args: args.iter().filter_map(|&i| entry.args.get(i).cloned()).collect(),
        results: results.iter().filter_map(|&r| entry.results.get(r).cloned()).collect(),
        aliases: entry.aliases.iter().filter_map(alias).collect(),
        ..entry.clone()
    };
    if let Some(s) = out.assignment.funcs.get_mut(&entry.func) {
        *s = FuncShardings {
            args: args.iter().filter_map(|&i| s.args.get(i).cloned()).collect(),
            insts: s.insts.iter().zip(keep).filter(|k| *k.1).map(|k| k.0.clone()).collect(),
            results: results.iter().filter_map(|&r| s.results.get(r).cloned()).collect(),
        };
    }
}

/// Removes the parameters and states that no entry takes any more.
fn drop_stored(out: &mut Fewer) {
    let roles: Vec<Role> = out.module.entries.iter().flat_map(|e| e.args.iter().cloned()).collect();
    let old = std::mem::take(&mut out.module.params);
    let mut params: BTreeMap<ParamId, ParamId> = BTreeMap::new();
    let mut shardings = Vec::new();
    for (id, p) in old {
        if roles.contains(&Role::Param(id)) {
            params.insert(id, out.module.params.push(p));
            shardings.extend(out.assignment.params.get(id.index()).cloned());
        }
    }
    out.assignment.params = shardings;
    let old = std::mem::take(&mut out.module.states);
    let mut states: BTreeMap<StateId, StateId> = BTreeMap::new();
    let mut shardings = Vec::new();
    for (id, s) in old {
        if roles.contains(&Role::State(id)) {
            states.insert(id, out.module.states.push(s));
            shardings.extend(out.assignment.states.get(id.index()).cloned());
        }
    }
    out.assignment.states = shardings;
    for role in out.module.entries.iter_mut().flat_map(|e| &mut e.args) {
        match role {
            Role::Input(_) => {}
            Role::Param(p) => *p = params.get(p).copied().unwrap_or(*p),
            Role::State(s) => *s = states.get(s).copied().unwrap_or(*s),
        }
    }
}
