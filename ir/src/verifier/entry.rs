//! Entries: roles of arguments, names of results, aliases of states.

use super::func::{promised, sharding};
use super::{Level, broken, first_repeated, placement};
use crate::diagnostic::Diagnostic;
use crate::graph::{Entry, Func, Module, Role, Value};
use crate::repeat;
use crate::sharding::Sharding;
use crate::types::Type;
use cranelift_entity::EntityRef;

pub(super) fn check(module: &Module, entry: &Entry, level: Level) -> Result<(), Diagnostic> {
    let wrong = |why: String| broken(format!("entry `{}`", entry.name), why);
    let func = module
        .funcs
        .get(entry.func)
        .ok_or_else(|| wrong(format!("its function {} does not exist", entry.func)))?;
    let counts = [entry.args.len(), func.args.len(), entry.results.len(), func.results.len()];
    if counts[0] != counts[1] || counts[2] != counts[3] {
        return Err(wrong(format!(
            "it gives {} arguments to a function of {}, and names {} of {} results",
            counts[0], counts[1], counts[2], counts[3]
        )));
    }
    if !(entry.weight.is_finite() && entry.weight >= 0.0) {
        return Err(wrong(format!("its weight {} is no finite number of at least 0", entry.weight)));
    }
    names(entry).map_err(wrong)?;
    for (i, (role, &v)) in entry.args.iter().zip(&func.args).enumerate() {
        let value = &func.values[v];
        argument(module, role, value, level).map_err(|why| wrong(format!("argument {i}: {why}")))?;
    }
    for (name, &v) in entry.results.iter().zip(&func.results) {
        unreduced(&func.values[v]).map_err(|why| wrong(format!("result `{name}`: {why}")))?;
    }
    aliases(module, entry, func).map_err(wrong)?;
    repeats(module, entry).map_err(wrong)
}

/// R1 to R4.
fn repeats(module: &Module, entry: &Entry) -> Result<(), String> {
    let stacked = entry.args.iter().any(|role| match role {
        Role::Input(_) => false,
        Role::Param(id) => module.params.get(*id).is_some_and(|p| p.stack.is_some()),
        Role::State(id) => module.states.get(*id).is_some_and(|s| s.stack.is_some()),
    });
    match stacked || !entry.repeats.is_empty() {
        true => repeat::check(module, entry),
        false => Ok(()),
    }
}

fn unreduced(value: &Value) -> Result<(), String> {
    sharding(value).map_or(Ok(()), placement::whole)
}

/// E3.
fn names(entry: &Entry) -> Result<(), String> {
    let inputs = entry.args.iter().filter_map(|r| match r {
        Role::Input(name) => Some(name.as_str()),
        _ => None,
    });
    if let Some(name) = first_repeated(inputs) {
        return Err(format!("two inputs are called `{name}`"));
    }
    if let Some(name) = first_repeated(entry.results.iter().map(String::as_str)) {
        return Err(format!("two results are called `{name}`"));
    }
    let states = entry.args.iter().filter_map(|r| match r {
        Role::State(s) => Some(*s),
        _ => None,
    });
    match first_repeated(states) {
        Some(s) => Err(format!("state %{} is given twice", s.index())),
        None => Ok(()),
    }
}

/// E2, E4 and E8 for one argument.
fn argument(module: &Module, role: &Role, value: &Value, level: Level) -> Result<(), String> {
    unreduced(value)?;
    let (name, ty, stored) = match role {
        Role::Input(_) => return Ok(()),
        Role::Param(id) => {
            let p = module.params.get(*id).ok_or_else(|| format!("{id} does not exist"))?;
            (&p.name, &p.ty, &p.sharding)
        }
        Role::State(id) => {
            let s = module.states.get(*id).ok_or_else(|| format!("{id} does not exist"))?;
            (&s.name, &s.ty, &s.sharding)
        }
    };
    let want = match (level, stored) {
        (Level::Local, Some(s)) => s.local_type(ty),
        _ => ty.clone(),
    };
    same_type(name, &want, &value.ty)?;
    if level != Level::Graph && sharding(value) != stored.as_ref() {
        let text = |s: Option<&Sharding>| s.map_or_else(|| "nowhere".to_owned(), |s| s.text(&module.mesh));
        let (stored, used) = (text(stored.as_ref()), text(sharding(value)));
        return Err(format!("`{name}` is stored {stored}, but used {used}"));
    }
    Ok(())
}

fn same_type(name: &str, want: &Type, got: &Type) -> Result<(), String> {
    if want == got { Ok(()) } else { Err(format!("`{name}` is {want}, but the function takes {got}")) }
}

/// E5 and E6.
fn aliases(module: &Module, entry: &Entry, func: &Func) -> Result<(), String> {
    let args = entry.aliases.iter().map(|a| a.0);
    if first_repeated(args).is_some() || first_repeated(entry.aliases.iter().map(|a| a.1)).is_some() {
        return Err("an argument or a result is aliased twice".into());
    }
    for &(arg, result) in &entry.aliases {
        let (Some(Role::State(state)), Some(name)) = (entry.args.get(arg), entry.results.get(result)) else {
            return Err(format!("the alias ({arg}, {result}) is not of a state and a result"));
        };
        let state = &module.states[*state];
        if *name != state.name {
            return Err(format!("result `{name}` is the new value of state `{}`", state.name));
        }
        let (old, new) = (&func.values[func.args[arg]], &func.values[func.results[result]]);
        if new.ty != old.ty || sharding(new) != sharding(old) {
            return Err(format!("state `{name}` changes its type or placement"));
        }
        promised(old, new).map_err(|why| format!("state `{name}`{why}"))?;
    }
    Ok(())
}
