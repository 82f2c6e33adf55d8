//! The checker is right: whatever it accepts runs as claimed. Local functions are changed at random, up to three changes at once
//! (an op and the claims around it), and every changed module that the checker accepts is run against the reference.

use super::rng::Rng;
use crate::oracle::check_claims;
use pcc_ir::eval::Tensor;
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::{BinaryKind, Collective, Op, UnaryKind};
use pcc_ir::{Func, FuncId, Module, Pad, ReduceKind, Term, ValueId};
use pcc_passes::verify;

const MUTANTS: usize = 60;

/// What came of the mutants of one module.
#[derive(Default)]
pub struct Outcome {
    pub rejected: usize,
    pub accepted: usize,
}

/// Changes the functions of `local` and checks that the checker is right about each change.
pub fn check(
    sharded: &Module,
    local: &Module,
    funcs: &[(FuncId, Vec<Tensor>)],
    rng: &mut Rng,
) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let axes = axes_in(local);
    for _ in 0..MUTANTS {
        let mut mutant = local.clone();
        let mut what = Vec::new();
        for _ in 0..rng.within(1, 3) {
            let (id, _) = &funcs[rng.below(funcs.len())];
            what.extend(change(&mut mutant.funcs[*id], &sharded.funcs[*id], &axes, rng));
        }
        if mutant == *local {
            continue;
        }
        if verify::check_functions(sharded, &mutant).is_err() {
            outcome.rejected += 1;
            continue;
        }
        outcome.accepted += 1;
        for (id, args) in funcs {
            check_claims(sharded, &mutant, *id, args)
                .map_err(|e| format!("the checker accepts {what:?}, but: {e}"))?;
        }
    }
    Ok(outcome)
}

/// Every list of axes that some claim or op has.
fn axes_in(local: &Module) -> Vec<Vec<AxisRef>> {
    let mut lists = vec![vec![]];
    for value in local.funcs.values().flat_map(|f| f.values.values()) {
        let Some(claim) = &value.claim else { continue };
        lists.extend(claim.sharding.dims.iter().cloned());
        lists.push(claim.sharding.partial.iter().map(|p| p.0).collect());
    }
    lists.sort_unstable();
    lists.dedup();
    lists
}

/// One random change; says what it was.
fn change(f: &mut Func, global: &Func, axes: &[Vec<AxisRef>], rng: &mut Rng) -> Option<String> {
    if rng.chance(40) { change_claim(f, global, axes, rng) } else { change_inst(f, axes, rng) }
}

fn change_claim(f: &mut Func, global: &Func, axes: &[Vec<AxisRef>], rng: &mut Rng) -> Option<String> {
    let values: Vec<ValueId> = f.insts.iter().flat_map(|i| i.results.clone()).collect();
    let v = *values.get(rng.below(values.len()))?;
    let rank = f.ty(v).rank();
    let d = rng.below(rank);
    let claim = f.values[v].claim.as_mut()?;
    match rng.below(6) {
        0 => *claim.pad.get_mut(d)? = Pad::Zero,
        1 => *claim.sharding.dims.get_mut(d)? = rng.pick(axes),
        2 => drop(claim.sharding.partial.pop()?),
        3 => {
            let kind = [ReduceKind::Sum, ReduceKind::Max][rng.below(2)];
            claim.sharding.partial = rng.pick(axes).into_iter().map(|a| (a, kind)).collect();
        }
        4 => {
            let all: Vec<ValueId> = global.values.keys().collect();
            claim.term = Term::Value(rng.pick(&all));
        }
        _ => {
            let all: Vec<ValueId> = global.values.keys().collect();
            claim.term = Term::Sum(vec![claim.term.clone(), Term::Value(rng.pick(&all))]);
        }
    }
    // The type follows the claim, so that the change is not seen by its shape alone.
    if let Some(of) = f.values[v].claim.as_ref().and_then(|c| match c.term {
        Term::Value(of) => global.values.get(of),
        Term::Sum(_) => None,
    }) && let Some(claim) = &f.values[v].claim
        && claim.sharding.dims.len() == of.ty.rank()
    {
        let ty = claim.sharding.local_type(&of.ty);
        f.values[v].ty = ty;
    }
    Some(format!("claim of {v}: {:?}", f.values[v].claim))
}

fn change_inst(f: &mut Func, axes: &[Vec<AxisRef>], rng: &mut Rng) -> Option<String> {
    if f.insts.is_empty() {
        return None;
    }
    let at = rng.below(f.insts.len());
    match rng.below(4) {
        0 if f.insts[at].args.len() > 1 => {
            let n = f.insts[at].args.len();
            let (i, j) = (rng.below(n), rng.below(n));
            f.insts[at].args.swap(i, j);
        }
        1 if !f.insts[at].args.is_empty() => {
            let i = rng.below(f.insts[at].args.len());
            let old = f.insts[at].args[i];
            let made = f.insts[..at].iter().flat_map(|i| &i.results);
            let alike: Vec<ValueId> =
                f.args.iter().chain(made).copied().filter(|&v| f.ty(v) == f.ty(old)).collect();
            f.insts[at].args[i] = rng.pick(&alike);
        }
        2 => {
            let (&arg, &result) = (f.insts[at].args.first()?, f.insts[at].results.first()?);
            if f.ty(arg) != f.ty(result) {
                return None;
            }
            f.insts.remove(at);
            let swap = |v: &mut ValueId| {
                if *v == result {
                    *v = arg;
                }
            };
            f.insts.iter_mut().flat_map(|i| &mut i.args).for_each(swap);
            f.results.iter_mut().for_each(swap);
            return Some(format!("{result} left out"));
        }
        _ => change_op(&mut f.insts[at].op, axes, rng),
    }
    Some(format!("{:?}", f.insts[at]))
}

fn change_op(op: &mut Op, axes: &[Vec<AxisRef>], rng: &mut Rng) {
    let extent = |n: &mut usize, rng: &mut Rng| *n = n.saturating_add_signed(rng.below(3) as isize - 1);
    match op {
        Op::Collective(
            Collective::AllReduce { axes: a, kind } | Collective::ReduceScatter { axes: a, kind, .. },
        ) => match rng.below(2) {
            0 => *a = rng.pick(axes),
            _ => *kind = ReduceKind::Max,
        },
        Op::Collective(Collective::AllGather { axes: a, dim, global }) => match rng.below(3) {
            0 => *a = rng.pick(axes),
            1 => *dim = rng.below(3),
            _ => extent(global, rng),
        },
        Op::Collective(Collective::AllToAll { axes: a, split, concat, .. }) => match rng.below(2) {
            0 => *a = rng.pick(axes),
            _ => std::mem::swap(split, concat),
        },
        Op::ShardSlice(s) => match rng.below(3) {
            0 => s.axes = rng.pick(axes),
            1 => s.dim = rng.below(3),
            _ => extent(&mut s.global, rng),
        },
        Op::MaskTail(m) => match rng.below(4) {
            0 => m.axes = rng.pick(axes),
            1 => m.dim = rng.below(3),
            2 => m.value = [0.0, 1.0, f64::NEG_INFINITY][rng.below(3)],
            _ => extent(&mut m.global, rng),
        },
        Op::Binary(k) => {
            *k = [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max][rng.below(4)]
        }
        Op::Unary(k) => *k = [UnaryKind::Neg, UnaryKind::Exp, UnaryKind::Tanh][rng.below(3)],
        Op::Reduce(r) => r.kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][rng.below(3)],
        Op::Softmax(s) => s.dim = rng.below(3),
        Op::TopK(t) => extent(&mut t.k, rng),
        Op::Gather(g) => g.base = None,
        Op::Update(u) => u.base = None,
        Op::Iota(i) => i.base = None,
        _ => {}
    }
}
