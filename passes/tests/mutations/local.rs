//! Mutations of the local level: collectives, slices, masks, bases, claims, operands.

use super::{Kind, Mutant};
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::{BinaryKind, Collective, CompareKind, Op, ShardBase, UnaryKind};
use pcc_ir::{Axis, Func, FuncId, Inst, Pad, ReduceKind, Term, ValueId};
use pcc_passes::driver::Compiled;

pub const KINDS: &[Kind] = &[
    ("drop an all-reduce", |c| each(c, drop_all_reduce)),
    ("double an all-reduce", |c| each(c, double_all_reduce)),
    ("all-reduce to reduce-scatter", |c| each(c, all_reduce_to_scatter)),
    ("swap gather and scatter", |c| each(c, swap_gather_and_scatter)),
    ("wrong axis", |c| each(c, wrong_axis)),
    ("wrong sub-axis", |c| each(c, wrong_sub_axis)),
    ("wrong reduction", |c| each(c, wrong_reduction)),
    ("wrong dim", |c| each(c, wrong_dim)),
    ("wrong global extent", |c| each(c, wrong_global)),
    ("drop a mask", |c| each(c, drop_mask)),
    ("wrong mask extent", |c| each(c, wrong_mask_extent)),
    ("wrong mask value", |c| each(c, wrong_mask_value)),
    ("claim zero padding falsely", false_padding),
    ("drop a shard base", |c| each(c, drop_base)),
    ("wrong shard base", |c| each(c, wrong_base)),
    ("read a partial before it is reduced", |c| each(c, read_partial)),
    ("square a partial", |c| each(c, square_partial)),
    ("swap operands", |c| each(c, swap_operands)),
    ("another operand of the type", |c| each(c, other_operand)),
    ("claim another value", other_claim),
    ("claim a partial as reduced", claim_reduced),
    ("claim a twice counted sum", claim_doubled),
    ("change an op's attribute", |c| each(c, |f, at| change_op(f, at).then(|| about(f, at)))),
    ("call another function", other_callee),
    ("return another value", other_result),
    ("stored otherwise", other_storage),
];

/// Names of the values around an instruction: what it makes and reads, and what is made of that.
pub fn about(f: &Func, at: usize) -> Vec<String> {
    let inst = &f.insts[at];
    let users = f.insts.iter().filter(|i| i.args.iter().any(|a| inst.results.contains(a)));
    let values = inst.results.iter().chain(&inst.args).chain(users.flat_map(|i| &i.results));
    values.map(|v| v.to_string()).collect()
}

/// Applies a mutation at every instruction of every function that entries reach.
fn each(c: &Compiled, mutate: impl Fn(&mut Func, usize) -> Option<Vec<String>>) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (id, f) in &c.local.funcs {
        if !reached(c, id) {
            continue;
        }
        for at in 0..f.insts.len() {
            let mut changed = f.clone();
            let before = about(f, at);
            if let Some(mut names) = mutate(&mut changed, at)
                && changed != *f
            {
                names.extend(before);
                let mut compiled = c.clone();
                compiled.local.funcs[id] = changed;
                mutants.push(Mutant { compiled, names });
            }
        }
    }
    mutants
}

pub fn reached(c: &Compiled, id: FuncId) -> bool {
    let calls = |f: FuncId| c.local.funcs[f].insts.iter().any(|i| i.op == Op::Call(id));
    c.local.entries.iter().any(|e| e.func == id || calls(e.func))
}

/// Takes an instruction out; what it made is `by` from then on.
fn bypass(f: &mut Func, at: usize, by: ValueId) {
    let inst = f.insts.remove(at);
    let swap = |v: &mut ValueId| {
        if inst.results.contains(v) {
            *v = by;
        }
    };
    f.insts.iter_mut().flat_map(|i| &mut i.args).for_each(swap);
    f.results.iter_mut().for_each(swap);
}

fn drop_all_reduce(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::Collective(Collective::AllReduce { .. }) = f.insts[at].op else { return None };
    let names = about(f, at);
    let by = f.insts[at].args[0];
    bypass(f, at, by);
    Some(names)
}

fn double_all_reduce(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::Collective(Collective::AllReduce { .. }) = f.insts[at].op else { return None };
    let (mut names, once) = (about(f, at), f.insts[at].results[0]);
    let again = f.values.push(f.values[once].clone());
    for inst in &mut f.insts[at + 1..] {
        inst.args.iter_mut().filter(|a| **a == once).for_each(|a| *a = again);
    }
    f.results.iter_mut().filter(|r| **r == once).for_each(|r| *r = again);
    let second = Inst { args: vec![once], results: vec![again], ..f.insts[at].clone() };
    f.insts.insert(at + 1, second);
    names.push(again.to_string());
    Some(names)
}

fn all_reduce_to_scatter(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::Collective(Collective::AllReduce { axes, kind }) = f.insts[at].op.clone() else { return None };
    let v = f.insts[at].results[0];
    let global = *f.ty(v).shape.first()?;
    f.insts[at].op = Op::Collective(Collective::ReduceScatter { axes, dim: 0, kind, global });
    Some(vec![])
}

fn swap_gather_and_scatter(f: &mut Func, at: usize) -> Option<Vec<String>> {
    f.insts[at].op = match f.insts[at].op.clone() {
        Op::Collective(Collective::AllGather { axes, dim, global }) => {
            Op::Collective(Collective::ReduceScatter { axes, dim, kind: ReduceKind::Sum, global })
        }
        Op::Collective(Collective::ReduceScatter { axes, dim, global, .. }) => {
            Op::Collective(Collective::AllGather { axes, dim, global })
        }
        _ => return None,
    };
    Some(vec![])
}

/// The axes of an op of the local level.
fn axes_of(op: &mut Op) -> Option<&mut Vec<AxisRef>> {
    match op {
        Op::Collective(
            Collective::AllReduce { axes, .. }
            | Collective::AllGather { axes, .. }
            | Collective::ReduceScatter { axes, .. }
            | Collective::AllToAll { axes, .. },
        ) => Some(axes),
        Op::ShardSlice(s) => Some(&mut s.axes),
        Op::MaskTail(m) => Some(&mut m.axes),
        _ => None,
    }
}

/// An axis of the same size, so that shapes still fit.
fn wrong_axis(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let axis = axes_of(&mut f.insts[at].op)?.first_mut()?;
    *axis = match axis.axis {
        Axis::Dp => AxisRef { axis: Axis::Tp, pre: 1, size: 2 },
        _ => AxisRef { axis: Axis::Dp, pre: 1, size: 2 },
    };
    Some(vec![])
}

fn wrong_sub_axis(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let axis = axes_of(&mut f.insts[at].op)?.first_mut()?;
    match axis.size {
        1..=3 => return None,
        _ if axis.pre > 1 => axis.pre = 1,
        n => axis.size = n / 2,
    }
    Some(vec![])
}

fn wrong_reduction(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::Collective(Collective::AllReduce { kind, .. } | Collective::ReduceScatter { kind, .. }) =
        &mut f.insts[at].op
    else {
        return None;
    };
    *kind = if *kind == ReduceKind::Sum { ReduceKind::Max } else { ReduceKind::Sum };
    Some(vec![])
}

fn dim_of(op: &mut Op) -> Option<(&mut usize, &mut usize)> {
    match op {
        Op::Collective(
            Collective::AllGather { dim, global, .. } | Collective::ReduceScatter { dim, global, .. },
        ) => Some((dim, global)),
        Op::Collective(Collective::AllToAll { split, split_global, .. }) => Some((split, split_global)),
        Op::ShardSlice(s) => Some((&mut s.dim, &mut s.global)),
        _ => None,
    }
}

fn wrong_dim(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let rank = f.ty(f.insts[at].args.first().copied()?).rank();
    let (dim, _) = dim_of(&mut f.insts[at].op)?;
    *dim = (*dim + 1) % rank;
    Some(vec![])
}

fn wrong_global(f: &mut Func, at: usize) -> Option<Vec<String>> {
    *dim_of(&mut f.insts[at].op)?.1 -= 1;
    Some(vec![])
}

fn drop_mask(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::MaskTail(_) = f.insts[at].op else { return None };
    let names = about(f, at);
    let by = f.insts[at].args[0];
    bypass(f, at, by);
    Some(names)
}

fn wrong_mask_extent(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::MaskTail(m) = &mut f.insts[at].op else { return None };
    m.global -= 1;
    Some(vec![])
}

fn wrong_mask_value(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::MaskTail(m) = &mut f.insts[at].op else { return None };
    m.value = 1.0;
    Some(vec![])
}

/// One mutant for every value that instructions make of the functions that entries reach.
fn each_value(c: &Compiled, mutate: impl Fn(&Compiled, FuncId, ValueId) -> Option<Func>) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (id, f) in &c.local.funcs {
        for (at, inst) in f.insts.iter().enumerate().filter(|_| reached(c, id)) {
            for &v in &inst.results {
                if let Some(func) = mutate(c, id, v) {
                    let mut compiled = c.clone();
                    compiled.local.funcs[id] = func;
                    mutants.push(Mutant { compiled, names: about(f, at) });
                }
            }
        }
    }
    mutants
}

fn false_padding(c: &Compiled) -> Vec<Mutant> {
    each_value(c, |c, id, v| {
        let mut f = c.local.funcs[id].clone();
        let claim = f.values[v].claim.as_mut()?;
        let Term::Value(of) = claim.term else { return None };
        let shape = &c.sharded.funcs[id].ty(of).shape;
        let open = |d: &usize| claim.sharding.pads(*d, shape[*d]) && claim.pad[*d] == Pad::Unspecified;
        let d = (0..shape.len()).find(open)?;
        claim.pad[d] = Pad::Zero;
        Some(f)
    })
}

fn base_of(op: &mut Op) -> Option<&mut Option<ShardBase>> {
    match op {
        Op::Gather(g) => Some(&mut g.base),
        Op::Iota(i) => Some(&mut i.base),
        Op::Update(u) => Some(&mut u.base),
        _ => None,
    }
}

fn drop_base(f: &mut Func, at: usize) -> Option<Vec<String>> {
    base_of(&mut f.insts[at].op)?.take()?;
    Some(vec![])
}

fn wrong_base(f: &mut Func, at: usize) -> Option<Vec<String>> {
    base_of(&mut f.insts[at].op)?.as_mut()?.global += 1;
    Some(vec![])
}

/// What reads an all-reduce reads its operand instead: a bias is added to a partial, a norm is taken of one.
fn read_partial(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let place = |a: &ValueId| {
        let maker = f.insts[..at].iter().find(|i| i.results.contains(a))?;
        matches!(maker.op, Op::Collective(Collective::AllReduce { .. })).then(|| maker.args[0])
    };
    let (i, partial) = f.insts[at].args.iter().enumerate().find_map(|(i, a)| Some((i, place(a)?)))?;
    f.insts[at].args[i] = partial;
    Some(vec![partial.to_string()])
}

fn square_partial(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let Op::Collective(Collective::AllReduce { .. } | Collective::ReduceScatter { .. }) = f.insts[at].op
    else {
        return None;
    };
    let x = f.insts[at].args[0];
    let squared = f.values.push(f.values[x].clone());
    f.insts[at].args[0] = squared;
    let op = Op::Binary(BinaryKind::Mul);
    f.insts.insert(at, Inst { op, args: vec![x, x], results: vec![squared], loc: String::new() });
    Some(vec![squared.to_string(), x.to_string()])
}

fn commutes(op: &Op) -> bool {
    use BinaryKind::*;
    matches!(op, Op::Binary(Add | Mul | Max | Min | And | Or))
}

fn swap_operands(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let args = f.insts[at].args.clone();
    if commutes(&f.insts[at].op) {
        return None;
    }
    let pairs = (0..args.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    let (i, j) = pairs.into_iter().find(|&(i, j)| args[i] != args[j] && f.ty(args[i]) == f.ty(args[j]))?;
    f.insts[at].args.swap(i, j);
    Some(vec![])
}

/// The latest other value of the type instead of an operand.
fn other_operand(f: &mut Func, at: usize) -> Option<Vec<String>> {
    let &old = f.insts[at].args.last()?;
    let made = f.insts[..at].iter().flat_map(|i| &i.results);
    let others: Vec<ValueId> = f.args.iter().chain(made).copied().collect();
    let other = others.into_iter().rfind(|&v| v != old && f.ty(v) == f.ty(old))?;
    // A reduced value and its partial stand for one thing; that is another mutation.
    let claim = |v: ValueId| f.values[v].claim.as_ref().map(|c| &c.term);
    if claim(old) == claim(other) {
        return None;
    }
    *f.insts[at].args.last_mut()? = other;
    Some(vec![other.to_string()])
}

fn other_claim(c: &Compiled) -> Vec<Mutant> {
    each_value(c, |c, id, v| {
        let mut f = c.local.funcs[id].clone();
        let global = &c.sharded.funcs[id];
        let claim = f.values[v].claim.as_mut()?;
        let Term::Value(of) = claim.term else { return None };
        // A reshard and its operand are the same thing.
        let origin = |mut v: ValueId| {
            while let Some(i) =
                global.insts.iter().find(|i| i.results.contains(&v) && matches!(i.op, Op::Reshard(_)))
            {
                v = i.args[0];
            }
            v
        };
        let other =
            global.values.keys().find(|&o| origin(o) != origin(of) && global.ty(o) == global.ty(of))?;
        claim.term = Term::Value(other);
        Some(f)
    })
}

fn claim_reduced(c: &Compiled) -> Vec<Mutant> {
    each_value(c, |c, id, v| {
        let mut f = c.local.funcs[id].clone();
        let claim = f.values[v].claim.as_mut()?;
        claim.sharding.partial.pop()?;
        Some(f)
    })
}

fn claim_doubled(c: &Compiled) -> Vec<Mutant> {
    each_value(c, |c, id, v| {
        let mut f = c.local.funcs[id].clone();
        let claim = f.values[v].claim.as_mut()?;
        claim.term = Term::Sum(vec![claim.term.clone(), claim.term.clone()]);
        Some(f)
    })
}

/// Another op of the same types; whether there is one.
pub fn change_op(f: &mut Func, at: usize) -> bool {
    let square = f.insts[at].args.first().map(|&a| f.ty(a).shape.clone());
    match &mut f.insts[at].op {
        Op::Unary(k) => *k = if *k == UnaryKind::Neg { UnaryKind::Abs } else { UnaryKind::Neg },
        Op::Binary(k) => *k = if *k == BinaryKind::Mul { BinaryKind::Sub } else { BinaryKind::Mul },
        Op::Compare(k) => *k = if *k == CompareKind::Lt { CompareKind::Le } else { CompareKind::Lt },
        Op::RmsNorm(n) => n.eps *= 2.0,
        Op::LayerNorm(n) => n.eps *= 2.0,
        Op::Rope(r) => r.interleaved = !r.interleaved,
        Op::Attention(a) => a.causal = !a.causal,
        Op::Iota(i) => i.dim = 1 - i.dim.min(1),
        Op::Constant(c) => match &mut c.value {
            pcc_ir::ops::Literal::Splat(x) => *x += 1.0,
            pcc_ir::ops::Literal::Dense(x) => x[0] += 1.0,
        },
        Op::Broadcast(b) => {
            // The dims it goes to, where another of the same extent is free.
            let Some(&d) = b.dims.first() else { return false };
            let other = (0..b.shape.len()).find(|e| !b.dims.contains(e) && b.shape[*e] == b.shape[d]);
            match other {
                Some(e) if b.dims.len() == 1 => b.dims[0] = e,
                _ => return false,
            }
        }
        Op::Transpose(perm) => {
            let shape = square.unwrap_or_default();
            let n = perm.len();
            let Some(i) = (1..n).find(|&i| shape[perm[i]] == shape[perm[i - 1]]) else { return false };
            perm.swap(i, i - 1);
        }
        _ => return false,
    }
    true
}

fn other_callee(c: &Compiled) -> Vec<Mutant> {
    each(c, |f, at| {
        let Op::Call(id) = f.insts[at].op else { return None };
        let other = c.local.funcs.keys().find(|&o| o != id && o != c.local.entries[0].func)?;
        f.insts[at].op = Op::Call(other);
        Some(vec![])
    })
}

fn other_result(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (id, f) in c.local.funcs.iter().filter(|(id, _)| reached(c, *id)) {
        for (i, &r) in f.results.iter().enumerate() {
            let term = |v: ValueId| f.values[v].claim.as_ref().map(|c| &c.term);
            let Some(other) = f.values.keys().find(|&v| f.ty(v) == f.ty(r) && term(v) != term(r)) else {
                continue;
            };
            let mut compiled = c.clone();
            compiled.local.funcs[id].results[i] = other;
            let names = vec![r.to_string(), other.to_string()];
            mutants.push(Mutant { compiled, names });
        }
    }
    mutants
}

/// A parameter's or state's sharding changed after it was chosen.
fn other_storage(c: &Compiled) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (id, p) in &c.local.params {
        let mut compiled = c.clone();
        let Some(s) = &mut compiled.local.params[id].sharding else { continue };
        let axis = AxisRef { axis: Axis::Tp, pre: 1, size: c.local.mesh.tp };
        match s.dims.iter_mut().find(|d| !d.is_empty()) {
            Some(dim) => dim.clear(),
            None => s.dims[0].push(axis),
        }
        mutants.push(Mutant { compiled, names: vec![p.name.clone()] });
    }
    mutants
}
