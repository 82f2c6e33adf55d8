//! Work that is the same on all devices of a team, and what it makes: done once, kept once.
//!
//! What: a value that no axis of the team splits or leaves partial is equal on all its devices. An instruction that makes such values
//! out of equal ones needs to run on one device only, if the others read what it makes there. Why: norms, residual sums and
//! embeddings of a model split in eight would otherwise be computed, and kept, eight times in one process.
//!
//! A buffer is shared only if everything that writes it is such an instruction, or a collective that gives all members the same.

use super::buffers::{Buffer, Place, pending_buffer};
use super::clips::InPlace;
use super::kernel_build::KernelTable;
use pcc_ir::program::InstrKind;
use pcc_ir::{Axis, AxisRef, Entry, Func, FuncId, Mesh, Module, Op, Sharding, ValueId};
use std::collections::{HashMap, HashSet};

/// The axes over which devices are a team: those of tensor parallelism, whose devices run one layer together.
pub(super) fn team(mesh: &Mesh) -> Vec<AxisRef> {
    if mesh.tp > 1 { vec![mesh.whole(Axis::Tp)] } else { Vec::new() }
}

/// Whether a value with this sharding is equal on all devices of a team.
fn is_equal(team: &[AxisRef], s: &Sharding) -> bool {
    !s.axes().any(|a| team.iter().any(|t| t.overlaps(a)))
}

/// Of every function, the results that a team can share: equal, and at no call a result of the entry, which has a place of its own.
///
/// What is updated in place lies in a state, which each device has for itself.
pub(super) fn results(local: &Module, pairs: &InPlace, team: &[AxisRef]) -> HashMap<FuncId, HashSet<usize>> {
    let mut found: HashMap<FuncId, HashSet<usize>> = HashMap::new();
    if team.is_empty() {
        return found;
    }
    let kept = |entry: &Entry| local.funcs[entry.func].results.iter().copied().collect::<HashSet<_>>();
    let kept: Vec<HashSet<ValueId>> = local.entries.iter().map(kept).collect();
    for (entry, kept) in local.entries.iter().zip(&kept) {
        for inst in &local.funcs[entry.func].insts {
            let Op::Call(id) = inst.op else { continue };
            let func = &local.funcs[id];
            let equal =
                |v: ValueId| func.values[v].claim.as_ref().is_some_and(|c| is_equal(team, &c.sharding));
            let in_place = |r: usize| pairs.get(&id).is_some_and(|p| p.iter().any(|p| p.1 == r));
            let can = |&r: &usize| equal(func.results[r]) && !in_place(r);
            let all = || (0..func.results.len()).filter(can).collect();
            let may = found.entry(id).or_insert_with(all);
            may.retain(|&r| !kept.contains(&inst.results[r]));
        }
    }
    found
}

/// What a function shares.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Of each buffer, whether a team shares it.
    pub buffers: Vec<bool>,
    /// Of each instruction, whether it runs once.
    pub once: Vec<bool>,
}

/// Decides for a lowered function whose buffers are not placed yet. `in_place` are its pairs of an argument and a result in one buffer,
/// `results` those results that can be shared.
pub(super) fn decide(
    (func, in_place): (&Func, &[(usize, usize)]),
    (team, results): (&[AxisRef], &HashSet<usize>),
    buffers: &[Buffer],
    kinds: &[InstrKind],
    kernels: &KernelTable,
) -> Sharing {
    if team.is_empty() {
        return Sharing { buffers: vec![false; buffers.len()], once: vec![false; kinds.len()] };
    }
    let args = func.args.len();
    let equal = |v: ValueId| func.values[v].claim.as_ref().is_some_and(|c| is_equal(team, &c.sharding));
    let equal_arg = |i: usize| match func.args.get(i) {
        // What is updated in place holds the one value or the other.
        Some(&v) => equal(v) && in_place.iter().all(|p| p.0 != i || equal(func.results[p.1])),
        // Constants are, results are not known to be.
        None => i >= args + func.results.len(),
    };
    let slot = |b: &Buffer| if let Place::Slot(s) = b.place { Some(s as usize) } else { None };
    let mut shared: Vec<bool> = buffers
        .iter()
        .map(|b| slot(b).is_none_or(|s| s.checked_sub(args).is_some_and(|r| results.contains(&r))))
        .collect();
    let given: Vec<bool> = buffers.iter().map(|b| slot(b).is_some_and(equal_arg)).collect();
    let touched: Vec<Vec<(usize, bool)>> = kinds
        .iter()
        .map(|k| k.touched(&kernels.kernels).iter().map(|(loc, w)| (pending_buffer(loc), *w)).collect())
        .collect();
    let alike: Vec<bool> = kinds.iter().map(|k| k.is_alike(team)).collect();
    let once = |at: usize, shared: &[bool]| {
        alike[at]
            && touched[at].iter().any(|t| t.1)
            && touched[at].iter().all(|&(b, write)| shared[b] || !write && given[b])
    };
    loop {
        let before = shared.clone();
        for (at, kind) in kinds.iter().enumerate() {
            let equal = matches!(kind, InstrKind::Collective(c) if c.is_equal_over(team));
            if !equal && !once(at, &shared) {
                touched[at].iter().filter(|t| t.1).for_each(|t| shared[t.0] = false);
            }
        }
        if shared == before {
            break;
        }
    }
    let once = (0..kinds.len()).map(|at| once(at, &shared)).collect();
    Sharing { buffers: shared, once }
}
