//! Mutations of the sharded level, and of the tables that all levels share.

use super::local::{about, change_op};
use super::{Kind, Mutant};
use pcc_ir::graph::Role;
use pcc_ir::ops::Op;
use pcc_ir::{Func, FuncId, ParamSource, ValueId};
use pcc_passes::driver::Compiled;

pub const KINDS: &[Kind] = &[
    ("sharding drops an op", |c| each(c, drop_op)),
    ("sharding changes an attribute", |c| each(c, change_op)),
    ("sharding changes an operand", |c| each(c, other_operand)),
    ("a reshard left out", |c| each(c, drop_reshard)),
    ("a reshard to another sharding", |c| each(c, other_reshard)),
    ("entry bound to another parameter", other_param),
    ("another source of a parameter", other_source),
    ("state aliased to another result", other_alias),
];

fn reached(c: &Compiled, id: FuncId) -> bool {
    let calls = |f: FuncId| c.sharded.funcs[f].insts.iter().any(|i| i.op == Op::Call(id));
    c.sharded.entries.iter().any(|e| e.func == id || calls(e.func))
}

fn each(c: &Compiled, mutate: impl Fn(&mut Func, usize) -> bool) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (id, f) in c.sharded.funcs.iter().filter(|(id, _)| reached(c, *id)) {
        for at in 0..f.insts.len() {
            let mut changed = f.clone();
            if mutate(&mut changed, at) && changed != *f {
                let mut compiled = c.clone();
                compiled.sharded.funcs[id] = changed;
                let mut names = about(f, at);
                // Values of the graph are numbered otherwise: its names count too.
                names.extend(
                    f.insts[at].results.iter().map(|&r| f.values[r].name.clone()).filter(|n| !n.is_empty()),
                );
                names.push(f.insts[at].loc.clone());
                mutants.push(Mutant { compiled, names });
            }
        }
    }
    mutants
}

fn bypass(f: &mut Func, at: usize) -> bool {
    let Some(&result) = f.insts[at].results.first() else { return false };
    let Some(&by) = f.insts[at].args.iter().find(|&&a| f.ty(a) == f.ty(result)) else { return false };
    f.insts.remove(at);
    let swap = |v: &mut ValueId| {
        if *v == result {
            *v = by;
        }
    };
    f.insts.iter_mut().flat_map(|i| &mut i.args).for_each(swap);
    f.results.iter_mut().for_each(swap);
    true
}

fn drop_op(f: &mut Func, at: usize) -> bool {
    !matches!(f.insts[at].op, Op::Reshard(_)) && f.insts[at].results.len() == 1 && bypass(f, at)
}

fn drop_reshard(f: &mut Func, at: usize) -> bool {
    matches!(f.insts[at].op, Op::Reshard(_)) && bypass(f, at)
}

/// A reshard that leaves what it is given as it is, claimed to be no more than that.
fn other_reshard(f: &mut Func, at: usize) -> bool {
    let (arg, result) = match (&f.insts[at].op, &f.insts[at].args[..], &f.insts[at].results[..]) {
        (Op::Reshard(_), &[a], &[r]) => (a, r),
        _ => return false,
    };
    let Some(s) = f.values[arg].sharding.clone() else { return false };
    f.insts[at].op = Op::Reshard(s.clone());
    f.values[result].sharding = Some(s);
    // Only where something is left to tell: the function's own result, or a call, fixes what it wants.
    f.results.contains(&result)
        || f.insts.iter().any(|i| matches!(i.op, Op::Call(_)) && i.args.contains(&result))
}

fn other_operand(f: &mut Func, at: usize) -> bool {
    let Some(&old) = f.insts[at].args.first() else { return false };
    let made = f.insts[..at].iter().filter(|i| !matches!(i.op, Op::Reshard(_))).flat_map(|i| &i.results);
    let origin = |mut v: ValueId| {
        while let Some(i) = f.insts.iter().find(|i| i.results.contains(&v) && matches!(i.op, Op::Reshard(_)))
        {
            v = i.args[0];
        }
        v
    };
    let mut others = f.args.iter().chain(made).copied();
    let Some(other) = others.find(|&v| origin(v) != origin(old) && f.ty(v) == f.ty(old)) else {
        return false;
    };
    f.insts[at].args[0] = other;
    true
}

fn other_param(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for e in 0..c.graph.entries.len() {
        for (i, role) in c.graph.entries[e].args.iter().enumerate() {
            let Role::Param(p) = *role else { continue };
            let Some((q, _)) = c.graph.params.iter().find(|(q, x)| *q != p && x.ty == c.graph.params[p].ty)
            else {
                continue;
            };
            let mut compiled = c.clone();
            compiled.sharded.entries[e].args[i] = Role::Param(q);
            compiled.local.entries[e].args[i] = Role::Param(q);
            let names = vec![c.graph.entries[e].name.clone()];
            mutants.push(Mutant { compiled, names });
        }
    }
    mutants
}

fn other_source(c: &Compiled) -> Vec<Mutant> {
    let mutants = c.graph.params.iter().map(|(p, param)| {
        let mut compiled = c.clone();
        let source = ParamSource::zeros(param.ty.shape.clone());
        compiled.sharded.params[p].source = source.clone();
        compiled.local.params[p].source = source;
        Mutant { compiled, names: vec![param.name.clone()] }
    });
    mutants.collect()
}

fn other_alias(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (e, entry) in c.graph.entries.iter().enumerate() {
        if entry.aliases.len() < 2 {
            continue;
        }
        for module in 0..2 {
            let mut compiled = c.clone();
            let m = if module == 0 { &mut compiled.sharded } else { &mut compiled.local };
            let first = m.entries[e].aliases[0].1;
            m.entries[e].aliases[0].1 = m.entries[e].aliases[1].1;
            m.entries[e].aliases[1].1 = first;
            mutants.push(Mutant { compiled, names: vec![entry.name.clone(), "entries".into()] });
        }
    }
    mutants
}
