//! Mutations of repeats and stacks, at every level and in the stored form of steps.

use super::{Kind, Mutant};
use pcc_ir::program::Program;
use pcc_ir::repeat::names;
use pcc_ir::{Module, Op};
use pcc_passes::driver::Compiled;
use serde_json::Value;

pub const KINDS: &[Kind] = &[
    ("a repeat of another count", |c| levels(c, |m| recount(m, 1))),
    ("a repeat of another count at all levels", |c| all_levels(c, |m| recount(m, 1))),
    ("a repeat of one less at all levels", |c| all_levels(c, |m| recount(m, -1))),
    ("a repeat whose stacks have another count", |c| {
        levels(c, |m| {
            let repeat = m.entries[0].repeats.first_mut()?;
            repeat.count += 1;
            Some(())
        })
    }),
    ("a repeat left out", |c| levels(c, |m| m.entries[0].repeats.pop().map(drop))),
    ("a repeat moved", |c| {
        levels(c, |m| {
            m.entries[0].repeats.first_mut()?.first += 1;
            Some(())
        })
    }),
    ("a carried value taken from before the repeat", |c| levels(c, carry_the_first)),
    ("a carried value taken from before the repeat at all levels", |c| all_levels(c, carry_the_first)),
    ("a stack used outside of its repeat", |c| levels(c, stack_outside)),
    ("a stack used outside of its repeat at all levels", |c| all_levels(c, stack_outside)),
    ("a stack that counts from another layer", |c| {
        stored(c, |p, i| {
            let param = &mut p.params[i];
            param.stack?;
            param.source = param.source.element(1);
            Some(param.name.clone())
        })
    }),
    ("a stack of parameters with another count", |c| {
        stored(c, |p, i| {
            *p.params[i].stack.as_mut()? += 1;
            Some(p.params[i].name.clone())
        })
    }),
    ("a parameter of all layers instead of a stack", |c| {
        stored(c, |p, i| {
            p.params[i].stack.take()?;
            Some(p.params[i].name.clone())
        })
    }),
    ("a stack of states with another count", |c| {
        let count = |p: &mut Program| {
            let state = p.states.iter_mut().find(|s| s.stack.is_some())?;
            state.stack = state.stack.map(|n| n - 1);
            Some(state.name.clone())
        };
        let mut compiled = c.clone();
        count(&mut compiled.program).map(|name| Mutant { compiled, names: vec![name] }).into_iter().collect()
    }),
    ("stored steps repeated once more", |c| in_steps(c, |r| change(&mut r["count"], 1))),
    ("stored steps repeated once less", |c| in_steps(c, |r| change(&mut r["count"], -1))),
    ("stored steps with another stride of parameters", |c| in_steps(c, |r| stride(r, "params", 1))),
    ("stored steps with another first parameter", |c| in_steps(c, |r| stride(r, "params", 0))),
    ("stored steps with another stride of states", |c| in_steps(c, |r| stride(r, "states", 1))),
    ("stored steps with another first state", |c| in_steps(c, |r| stride(r, "states", 0))),
    ("stored steps whose carried value is elsewhere", |c| in_steps(c, carry_elsewhere)),
];

/// What a message may name: anything of the entries and tables.
fn anything(c: &Compiled) -> Vec<String> {
    let entries = c.graph.entries.iter().map(|e| e.name.clone());
    let params = c.graph.params.values().flat_map(|p| [p.name.clone(), names::element(&p.name, 0)]);
    let states = c.graph.states.values().flat_map(|s| [s.name.clone(), names::element(&s.name, 0)]);
    entries.chain(params).chain(states).filter(|n| !n.is_empty()).collect()
}

/// A mutant for the sharded and for the local module.
fn levels(c: &Compiled, change: impl Fn(&mut Module) -> Option<()>) -> Vec<Mutant> {
    let mut mutants = vec![];
    for sharded in [true, false] {
        let mut compiled = c.clone();
        let level = if sharded { &mut compiled.sharded } else { &mut compiled.local };
        if change(level).is_some() {
            mutants.push(Mutant { compiled, names: anything(c) });
        }
    }
    mutants
}

/// A mutant whose levels agree with one another, and not with the program.
fn all_levels(c: &Compiled, change: impl Fn(&mut Module) -> Option<()>) -> Vec<Mutant> {
    let mut compiled = c.clone();
    let all = [&mut compiled.graph, &mut compiled.sharded, &mut compiled.local].map(change);
    let changed = all.iter().all(Option::is_some);
    changed.then(|| Mutant { compiled, names: anything(c) }).into_iter().collect()
}

/// Repeats and their stacks, all of them.
fn recount(m: &mut Module, by: i64) -> Option<()> {
    let new = |n: u32| (i64::from(n) + by) as u32;
    m.entries[0].repeats.first()?;
    m.entries.iter_mut().flat_map(|e| &mut e.repeats).for_each(|r| r.count = new(r.count));
    m.params.values_mut().filter_map(|p| p.stack.as_mut()).for_each(|n| *n = new(*n));
    m.states.values_mut().filter_map(|s| s.stack.as_mut()).for_each(|n| *n = new(*n));
    Some(())
}

/// The body takes what went into the first repetition: all later layers read the embedding.
fn carry_the_first(m: &mut Module) -> Option<()> {
    let entry = &m.entries[0];
    let repeat = *entry.repeats.first()?;
    let func = &mut m.funcs[entry.func];
    let before = func.insts[repeat.first - 1].args[0];
    func.insts[repeat.first].args[0] = before;
    Some(())
}

/// The first layer runs with the stack of the others' weights.
fn stack_outside(m: &mut Module) -> Option<()> {
    let entry = &m.entries[0];
    let repeat = *entry.repeats.first()?;
    let func = &mut m.funcs[entry.func];
    let stack = func.insts[repeat.first].args.last().copied()?;
    *func.insts[repeat.first - 1].args.last_mut()? = stack;
    matches!(func.insts[repeat.first].op, Op::Call(_)).then_some(())
}

/// A mutant for every parameter of the program.
fn stored(c: &Compiled, change: impl Fn(&mut Program, usize) -> Option<String>) -> Vec<Mutant> {
    let mutant = |i: usize| {
        let mut compiled = c.clone();
        let name = change(&mut compiled.program, i)?;
        (compiled.program != c.program).then(|| Mutant { compiled, names: vec![name] })
    };
    (0..c.program.params.len()).filter_map(mutant).collect()
}

/// A mutant for every repeat in the stored steps.
fn in_steps(c: &Compiled, mutate: impl Fn(&mut Value) -> Option<()>) -> Vec<Mutant> {
    let stored = serde_json::to_value(&c.program).expect("a program as JSON");
    let count = repeats(&mut stored.clone()).len();
    let mutant = |i: usize| {
        let mut changed = stored.clone();
        mutate(repeats(&mut changed).into_iter().nth(i)?)?;
        let program = serde_json::from_value(changed).expect("a program");
        Some(Mutant { compiled: Compiled { program, ..c.clone() }, names: anything(c) })
    };
    (0..count).filter_map(mutant).collect()
}

fn repeats(program: &mut Value) -> Vec<&mut Value> {
    let entries = program["entries"].as_array_mut().into_iter().flatten();
    let stages = entries.flat_map(|e| e["stages"].as_array_mut().into_iter().flatten());
    let steps = stages.flat_map(|s| s["steps"].as_array_mut().into_iter().flatten());
    steps.filter_map(|s| s.get_mut("repeat")).collect()
}

fn change(number: &mut Value, by: i64) -> Option<()> {
    *number = Value::from(number.as_i64()? + by);
    Some(())
}

/// Changes a stride (1) or first number (0) of the last slot of a kind.
fn stride(repeat: &mut Value, kind: &str, which: usize) -> Option<()> {
    let slots = repeat["calls"].as_array_mut()?.last_mut()?["slots"].as_array_mut()?;
    change(&mut slots.iter_mut().rev().find_map(|s| s.get_mut(kind))?[which], -1)
}

/// What the second call takes from the first is read from where the first one was.
fn carry_elsewhere(repeat: &mut Value) -> Option<()> {
    let calls = repeat["calls"].as_array_mut()?;
    let first = calls.first()?["slots"].as_array()?.iter().find(|s| s.get("value").is_some())?.clone();
    let slots = calls.get_mut(1)?["slots"].as_array_mut()?;
    let carried = slots.iter_mut().find(|s| s.get("value").is_some())?;
    (*carried != first).then(|| *carried = first)
}
