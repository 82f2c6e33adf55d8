//! Mutations of a program's steps: which call runs where, bound to what, and what crosses from stage to stage.

use super::{Kind, Mutant};
use pcc_ir::program::{EntryProgram, Program, Slot, Step};
use pcc_ir::sharding::Sharding;
use pcc_passes::driver::Compiled;

pub const KINDS: &[Kind] = &[
    ("parameter of another layer", other_param),
    ("state of another layer", other_state),
    ("swapped arguments of a call", swap_slots),
    ("another input", other_input),
    ("dropped call", |c| steps(c, |e, s, i| is_call(e, s, i).then(|| drop(e.stages[s].steps.remove(i))))),
    ("call made twice", |c| {
        steps(c, |e, s, i| {
            is_call(e, s, i).then(|| {
                let step = e.stages[s].steps[i].clone();
                e.stages[s].steps.insert(i + 1, step);
            })
        })
    }),
    ("calls out of order", swap_calls),
    ("stages swapped", swap_stages),
    ("call on another stage", move_call),
    ("call of another function", other_func),
    ("send to another stage", |c| steps(c, send_elsewhere)),
    ("wrong tag", |c| steps(c, wrong_tag)),
    ("wrong message size", |c| steps(c, wrong_bytes)),
    ("missing recv", |c| steps(c, |e, s, i| is_recv(e, s, i).then(|| drop(e.stages[s].steps.remove(i))))),
    ("missing send", |c| steps(c, |e, s, i| is_send(e, s, i).then(|| drop(e.stages[s].steps.remove(i))))),
    ("a state sent from a stage that does not hold it", send_others_state),
    ("send before its value is made", |c| steps(c, send_first)),
    ("recv after its value is read", |c| steps(c, recv_last)),
    ("recv from the wrong stage", |c| steps(c, recv_elsewhere)),
    ("stages that wait for each other", |c| steps(c, wait_for_each_other)),
    ("values that overlap in the arena", overlap),
    ("value outside the arena", |c| slots(c, |s| change_value(s, |o| o + (1 << 40)))),
    ("value at an odd address", |c| slots(c, |s| change_value(s, |o| o + 4))),
    ("output into another buffer", |c| {
        slots(c, |s| match s {
            Slot::Output(o) => {
                *o += 1;
                true
            }
            _ => false,
        })
    }),
    ("another layer number", |c| steps(c, other_layer)),
    ("another constant", |c| {
        slots(c, |s| match s {
            Slot::Const(k) => {
                *k += 1;
                true
            }
            _ => false,
        })
    }),
    ("another sharding of a stored parameter", other_storage),
    ("another placement of an input or output", other_io),
    ("rows that no replica has", other_batch),
];

fn change_value(slot: &mut Slot, change: impl Fn(u64) -> u64) -> bool {
    match slot {
        Slot::Value(o) => {
            *o = change(*o);
            true
        }
        _ => false,
    }
}

fn is_call(e: &EntryProgram, s: usize, i: usize) -> bool {
    matches!(e.stages[s].steps[i], Step::Call { .. })
}

fn is_send(e: &EntryProgram, s: usize, i: usize) -> bool {
    matches!(e.stages[s].steps[i], Step::Send { .. })
}

fn is_recv(e: &EntryProgram, s: usize, i: usize) -> bool {
    matches!(e.stages[s].steps[i], Step::Recv { .. })
}

/// Names of all values, parameters and states that the calls of an entry touch: a fault shows at whatever uses the value first.
fn entry_names(c: &Compiled, entry: usize) -> Vec<String> {
    let f = &c.local.funcs[c.local.entries[entry].func];
    let values = f.values.keys().map(|v| v.to_string());
    values.chain(c.program.states.iter().map(|s| s.name.clone())).collect()
}

fn with(c: &Compiled, entry: usize, change: impl FnOnce(&mut Program)) -> Option<Mutant> {
    let mut compiled = c.clone();
    change(&mut compiled.program);
    (compiled.program != c.program).then(|| Mutant { compiled, names: entry_names(c, entry) })
}

/// A mutant for every step to which the change applies.
fn steps(c: &Compiled, change: impl Fn(&mut EntryProgram, usize, usize) -> Option<()>) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (e, entry) in c.program.entries.iter().enumerate() {
        for (s, stage) in entry.stages.iter().enumerate() {
            for i in 0..stage.steps.len() {
                let mut changed = entry.clone();
                if change(&mut changed, s, i).is_some() {
                    mutants.extend(with(c, e, |p| p.entries[e] = changed));
                }
            }
        }
    }
    mutants
}

/// A mutant for every slot of every call to which the change applies.
fn slots(c: &Compiled, change: impl Fn(&mut Slot) -> bool) -> Vec<Mutant> {
    let mut mutants = vec![];
    let most = c.program.funcs.iter().map(|f| f.slot_bytes.len()).max().unwrap_or(0);
    for k in 0..most {
        mutants.extend(steps(c, |e, s, i| match &mut e.stages[s].steps[i] {
            Step::Call { slots, .. } => slots.get_mut(k).and_then(|slot| change(slot).then_some(())),
            _ => None,
        }));
    }
    mutants
}

fn other_param(c: &Compiled) -> Vec<Mutant> {
    let params = &c.program.clone().expanded().expect("well-formed stacks").params;
    slots(c, |slot| {
        let Slot::Param(p) = slot else { return false };
        let (old, bytes) = (*p as usize, params[*p as usize].local_bytes());
        match (0..params.len()).find(|&q| q != old && params[q].local_bytes() == bytes) {
            Some(q) => {
                *p = q as u32;
                true
            }
            None => false,
        }
    })
}

fn other_state(c: &Compiled) -> Vec<Mutant> {
    let n = c.program.clone().expanded().expect("well-formed stacks").states.len() as u32;
    slots(c, |slot| match slot {
        Slot::State(s) if n > 2 => {
            *s = (*s + 2) % n;
            true
        }
        _ => false,
    })
}

fn other_input(c: &Compiled) -> Vec<Mutant> {
    slots(c, |slot| match slot {
        Slot::Input(i) => {
            *i += 1;
            true
        }
        _ => false,
    })
}

fn swap_slots(c: &Compiled) -> Vec<Mutant> {
    let sizes: Vec<Vec<u64>> = c.program.funcs.iter().map(|f| f.slot_bytes.clone()).collect();
    steps(c, |e, s, i| {
        let Step::Call { func, slots, .. } = &mut e.stages[s].steps[i] else { return None };
        let bytes = &sizes[*func as usize];
        let pairs = (0..slots.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let (a, b) = pairs.into_iter().find(|&(a, b)| slots[a] != slots[b] && bytes[a] == bytes[b])?;
        slots.swap(a, b);
        Some(())
    })
}

fn swap_calls(c: &Compiled) -> Vec<Mutant> {
    steps(c, |e, s, i| {
        let steps = &mut e.stages[s].steps;
        let both = matches!((steps.get(i)?, steps.get(i + 1)?), (Step::Call { .. }, Step::Call { .. }));
        both.then(|| steps.swap(i, i + 1))
    })
}

fn swap_stages(c: &Compiled) -> Vec<Mutant> {
    steps(c, |e, s, i| (i == 0 && s > 0).then(|| e.stages.swap(s - 1, s)))
}

fn move_call(c: &Compiled) -> Vec<Mutant> {
    steps(c, |e, s, i| {
        if !is_call(e, s, i) || e.stages.len() < 2 {
            return None;
        }
        let step = e.stages[s].steps.remove(i);
        let other = (s + 1) % e.stages.len();
        e.stages[other].steps.push(step);
        Some(())
    })
}

fn other_func(c: &Compiled) -> Vec<Mutant> {
    let n = c.program.funcs.len() as u32;
    steps(c, |e, s, i| match &mut e.stages[s].steps[i] {
        Step::Call { func, .. } if n > 1 => {
            *func = (*func + 1) % n;
            Some(())
        }
        _ => None,
    })
}

fn send_elsewhere(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    let n = e.stages.len() as u32;
    let Step::Send { to, .. } = &mut e.stages[s].steps[i] else { return None };
    *to = (*to + 1) % n;
    Some(())
}

fn recv_elsewhere(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    let n = e.stages.len() as u32;
    let Step::Recv { from, .. } = &mut e.stages[s].steps[i] else { return None };
    *from = (*from + 1) % n;
    Some(())
}

fn wrong_tag(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    match &mut e.stages[s].steps[i] {
        Step::Send { tag, .. } | Step::Recv { tag, .. } => *tag += 1,
        Step::Call { .. } => return None,
    }
    Some(())
}

fn wrong_bytes(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    match &mut e.stages[s].steps[i] {
        Step::Send { bytes, .. } | Step::Recv { bytes, .. } => *bytes += 4,
        Step::Call { .. } => return None,
    }
    Some(())
}

fn send_first(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    if !is_send(e, s, i) {
        return None;
    }
    let step = e.stages[s].steps.remove(i);
    e.stages[s].steps.insert(0, step);
    Some(())
}

/// A stage sends its own copy, which nothing updates, of a state that the receiver holds.
fn send_others_state(c: &Compiled) -> Vec<Mutant> {
    let states = c.program.clone().expanded().expect("well-formed stacks").states;
    let mut mutants = steps(c, |e, s, i| {
        let Step::Send { to, tag: after, .. } = e.stages[s].steps[i] else { return None };
        let receiver = &mut e.stages[to as usize];
        let slots = receiver.steps.iter().filter_map(|step| match step {
            Step::Call { slots, .. } => Some(slots),
            _ => None,
        });
        let slot = slots.flatten().copied().find(|slot| matches!(slot, Slot::State(_)))?;
        let Slot::State(n) = slot else { return None };
        let bytes = states[n as usize].sharding.local_type(&states[n as usize].ty).bytes() as u64;
        let at = receiver.steps.iter().position(|x| matches!(x, Step::Recv { tag, .. } if *tag == after))?;
        let (tag, free) = (u32::MAX - 1, Slot::Value(receiver.arena_bytes));
        receiver.arena_bytes += bytes.next_multiple_of(64);
        receiver.steps.insert(at + 1, Step::Recv { from: s as u32, tag, slot: free, bytes });
        e.stages[s].steps.insert(i + 1, Step::Send { to, tag, slot, bytes });
        Some(())
    });
    mutants.iter_mut().for_each(|m| m.names = states.iter().map(|s| s.name.clone()).collect());
    mutants
}

fn recv_last(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    if !is_recv(e, s, i) {
        return None;
    }
    let step = e.stages[s].steps.remove(i);
    e.stages[s].steps.push(step);
    Some(())
}

/// The sender first waits for an answer that the receiver sends only after it has received.
fn wait_for_each_other(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    let Step::Recv { from, tag, slot, bytes } = e.stages[s].steps[i] else { return None };
    let answer = Step::Send { to: from, tag, slot, bytes };
    e.stages[s].steps.insert(i + 1, answer);
    let wait = Step::Recv { from: s as u32, tag, slot: Slot::Value(0), bytes };
    e.stages[from as usize].steps.insert(0, wait);
    Some(())
}

/// A call's result put where one of its arguments lies, and read there by all later steps.
fn overlap(c: &Compiled) -> Vec<Mutant> {
    let args: Vec<usize> = c.program.funcs.iter().map(|f| f.args as usize).collect();
    steps(c, |e, s, i| {
        let steps = &mut e.stages[s].steps;
        let Step::Call { func, slots, .. } = &steps[i] else { return None };
        let n = args[*func as usize];
        let value = |slots: &[Slot]| slots.iter().copied().find(|s| matches!(s, Slot::Value(_)));
        let (old, new) = (value(&slots[n..])?, value(&slots[..n])?);
        for (at, step) in steps.iter_mut().enumerate().skip(i) {
            let slots = match step {
                Step::Call { slots, .. } if at == i => &mut slots[n..],
                Step::Call { slots, .. } => &mut slots[..],
                Step::Send { slot, .. } | Step::Recv { slot, .. } => std::slice::from_mut(slot),
            };
            slots.iter_mut().filter(|s| **s == old).for_each(|s| *s = new);
        }
        Some(())
    })
}

fn other_layer(e: &mut EntryProgram, s: usize, i: usize) -> Option<()> {
    let Step::Call { layer: Some(layer), .. } = &mut e.stages[s].steps[i] else { return None };
    *layer += 1;
    Some(())
}

fn flip(s: &mut Sharding, c: &Compiled) {
    let axis = c.local.mesh.whole(pcc_ir::Axis::Tp);
    match s.dims.iter_mut().find(|d| !d.is_empty()) {
        Some(dim) => dim.clear(),
        None => s.dims[0].push(axis),
    }
}

fn other_storage(c: &Compiled) -> Vec<Mutant> {
    let mutants = c.program.params.iter().enumerate().map(|(i, p)| {
        let mut compiled = c.clone();
        flip(&mut compiled.program.params[i].sharding, c);
        Mutant { compiled, names: vec![p.name.clone()] }
    });
    mutants.collect()
}

fn other_io(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (e, entry) in c.program.entries.iter().enumerate() {
        for i in 0..entry.inputs.len() + entry.outputs.len() {
            let mut compiled = c.clone();
            let made = &mut compiled.program.entries[e];
            let n = made.inputs.len();
            let spec = if i < n { &mut made.inputs[i] } else { &mut made.outputs[i - n] };
            flip(&mut spec.sharding, c);
            let names = vec![spec.name.clone()];
            mutants.push(Mutant { compiled, names });
        }
    }
    mutants
}

fn other_batch(c: &Compiled) -> Vec<Mutant> {
    let changes: [fn(&mut Program); 3] =
        [|p| p.batch.replicas += 1, |p| p.batch.micro_batches = 0, |p| p.batch.batch *= 2];
    let mutants = changes.into_iter().map(|change| {
        let mut compiled = c.clone();
        change(&mut compiled.program);
        let inputs = c.program.entries.iter().flat_map(|e| &e.inputs);
        Mutant { compiled, names: inputs.map(|i| i.name.clone()).chain(["batch".to_owned()]).collect() }
    });
    mutants.collect()
}
