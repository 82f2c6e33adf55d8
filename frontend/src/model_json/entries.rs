//! Entries of a document: what the arguments and results of their functions are.

use super::document::{Document, EntryJson, ResultJson, RoleJson, TaskName};
use super::nearest;
use super::read::{check_name, first_repeated};
use pcc_ir::graph::{Entry, Role};
use pcc_ir::{Diagnostic, Func, Module, ParamId, StateId, Type};
use std::collections::{HashMap, HashSet};

/// Adds the document's entries to the module, whose functions, parameters and states are there.
pub(super) fn read(document: &Document, module: &mut Module) -> Result<(), Diagnostic> {
    if document.entries.is_empty() {
        return Err(Diagnostic::input("the model has no entry")
            .at("entries")
            .why("an entry says which function a user calls, and with what"));
    }
    let held = Held {
        params: module.params.iter().map(|(id, p)| (p.name.clone(), (id, p.ty.clone()))).collect(),
        states: module.states.iter().map(|(id, s)| (s.name.clone(), (id, s.ty.clone()))).collect(),
    };
    for (i, e) in document.entries.iter().enumerate() {
        let entry = read_entry(e, &format!("entries[{i}]"), module, &held)?;
        module.entries.push(entry);
    }
    check_task(document, module)
}

/// Parameters and states by name.
struct Held {
    params: HashMap<String, (ParamId, Type)>,
    states: HashMap<String, (StateId, Type)>,
}

fn read_entry(e: &EntryJson, path: &str, module: &Module, held: &Held) -> Result<Entry, Diagnostic> {
    let func = module.func_named(&e.function).ok_or_else(|| {
        let near = nearest(&e.function, module.funcs.values().map(|f| &*f.name));
        Diagnostic::input(format!("there is no function `{}`{near}", e.function))
            .at(format!("{path}.function"))
    })?;
    let f = &module.funcs[func];
    let count = |what: &str, has: usize, given: usize| {
        Diagnostic::input(format!("the {what} do not fit the function `{}`", f.name))
            .at(format!("{path}.{what}"))
            .why(format!("it has {has}, {given} are given"))
    };
    if e.args.len() != f.args.len() {
        return Err(count("args", f.args.len(), e.args.len()));
    }
    if e.results.len() != f.results.len() {
        return Err(count("results", f.results.len(), e.results.len()));
    }
    if !(e.weight.is_finite() && e.weight >= 0.0) {
        return Err(Diagnostic::input("a weight must be a number of at least 0").at(format!("{path}.weight")));
    }
    let args = roles(e, f, path, held)?;
    let (results, aliases) = results(e, f, path, held)?;
    Ok(Entry { name: e.name.clone(), func, args, results, aliases, weight: e.weight, repeats: Vec::new() })
}

fn roles(e: &EntryJson, f: &Func, path: &str, held: &Held) -> Result<Vec<Role>, Diagnostic> {
    let mut roles = Vec::with_capacity(e.args.len());
    for (i, (role, &v)) in e.args.iter().zip(&f.args).enumerate() {
        let at = format!("{path}.args[{i}]");
        let (role, name, ty) = match role {
            RoleJson::Input(name) => {
                check_name(name, &at)?;
                (Role::Input(name.clone()), name, None)
            }
            RoleJson::Param(name) => {
                let (id, ty) = find(name, "parameter", &held.params, &at)?;
                (Role::Param(*id), name, Some(ty))
            }
            RoleJson::State(name) => {
                let (id, ty) = find(name, "state", &held.states, &at)?;
                (Role::State(*id), name, Some(ty))
            }
        };
        if let Some(ty) = ty
            && ty != f.ty(v)
        {
            return Err(mismatch(name, ty, f.ty(v)).at(at));
        }
        roles.push(role);
    }
    let name = |r: &'_ RoleJson| match r {
        RoleJson::Input(n) => format!("input `{n}`"),
        RoleJson::Param(n) => format!("parameter `{n}`"),
        RoleJson::State(n) => format!("state `{n}`"),
    };
    let mut seen = HashSet::new();
    match e.args.iter().map(name).enumerate().find(|(_, n)| !seen.insert(n.clone())) {
        Some((i, name)) => Err(Diagnostic::input(format!("the {name} is two arguments of one entry"))
            .at(format!("{path}.args[{i}]"))),
        None => Ok(roles),
    }
}

fn find<'h, T>(name: &str, what: &str, held: &'h HashMap<String, T>, at: &str) -> Result<&'h T, Diagnostic> {
    held.get(name).ok_or_else(|| {
        let near = nearest(name, held.keys().map(|n| &**n));
        Diagnostic::input(format!("there is no {what} `{name}`{near}")).at(at)
    })
}

fn mismatch(name: &str, has: &Type, needed: &Type) -> Diagnostic {
    Diagnostic::input(format!("`{name}` does not fit"))
        .why(format!("it is {has} where the function has {needed}"))
}

/// Names of results, and `(argument, result)` of states.
type Results = (Vec<String>, Vec<(usize, usize)>);

/// Names of the results, and which of them are new states.
fn results(e: &EntryJson, f: &Func, path: &str, held: &Held) -> Result<Results, Diagnostic> {
    let states: HashMap<&str, usize> = e
        .args
        .iter()
        .enumerate()
        .filter_map(|(i, r)| match r {
            RoleJson::State(name) => Some((&**name, i)),
            _ => None,
        })
        .collect();
    let (mut names, mut aliases) = (Vec::new(), Vec::new());
    for (i, (result, &v)) in e.results.iter().zip(&f.results).enumerate() {
        let at = format!("{path}.results[{i}]");
        match result {
            ResultJson::Output(name) => {
                check_name(name, &at)?;
                names.push(name.clone());
            }
            ResultJson::State { state } => {
                let (_, ty) = find(state, "state", &held.states, &at)?;
                let arg = states.get(&**state).ok_or_else(|| {
                    Diagnostic::input(format!("the state `{state}` is no argument of this entry")).at(&*at)
                })?;
                if ty != f.ty(v) {
                    return Err(mismatch(state, ty, f.ty(v)).at(at));
                }
                aliases.push((*arg, i));
                names.push(state.clone());
            }
        }
    }
    if let Some((i, name)) = first_repeated(names.iter().map(|n| &**n)) {
        return Err(Diagnostic::input(format!("the result `{name}` is there twice"))
            .at(format!("{path}.results[{i}]")));
    }
    Ok((names, aliases))
}

/// What the program that generates text relies on.
fn check_task(document: &Document, module: &Module) -> Result<(), Diagnostic> {
    let task = document.info.as_ref().map_or(TaskName::Graph, |i| i.task);
    let needed: &[(&str, &[&str], &str)] = match task {
        TaskName::Graph => &[],
        TaskName::Encoder => &[("forward", &["tokens", "attention_mask"], "last_hidden_state")],
        TaskName::CausalLm => &[
            ("forward", &["tokens"], "logits"),
            ("prefill", &["tokens", "lengths"], "logits"),
            ("decode", &["tokens", "positions"], "logits"),
        ],
    };
    for (name, inputs, output) in needed {
        let entry = module.entries.iter().find(|e| e.name == *name);
        let has = |e: &Entry| {
            let input = |i: &&str| e.args.iter().any(|r| matches!(r, Role::Input(n) if n == i));
            inputs.iter().all(input) && e.results.iter().any(|r| r == output)
        };
        if !entry.is_some_and(has) {
            return Err(Diagnostic::input(format!(
                "the task needs an entry `{name}` from {inputs:?} to `{output}`"
            ))
            .at("info.task")
            .help("leave the task out for a model of another kind"));
        }
    }
    Ok(())
}
