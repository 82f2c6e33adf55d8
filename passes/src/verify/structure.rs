//! What every module must be before anything else is asked of it: references in range, one definition before every use, types that
//! fit the ops, axes that exist. The other parts of the checker index freely after this.

use super::fault;
use pcc_ir::graph::Role;
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::{Collective, Gather, Iota, MaskTail, ShardBase, ShardSlice, Update};
use pcc_ir::repeat;
use pcc_ir::{Axis, Diagnostic, Func, FuncId, Inst, Mesh, Module, Op, Sharding, Type, ValueId};
use std::collections::HashSet;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Graph,
    Sharded,
    Local,
}

/// The most devices a mesh may have.
const MOST_DEVICES: u64 = pcc_ir::mesh::MAX_DEVICES;

pub(super) fn check(module: &Module, level: Level) -> Result<(), Diagnostic> {
    let sizes = Axis::ALL.map(|a| u64::from(module.mesh.size(a)));
    if sizes.iter().try_fold(1u64, |n, &s| n.checked_mul(s)).is_none_or(|n| n == 0 || n > MOST_DEVICES) {
        return Err(Diagnostic::check(format!("a mesh of {sizes:?} devices along its axes")));
    }
    for func in module.funcs.values() {
        check_func(module, func, level)?;
    }
    check_recursion(module)?;
    for entry in &module.entries {
        let fault = |what: &str| Diagnostic::check(format!("entry `{}` {what}", entry.name));
        let Some(func) = module.funcs.get(entry.func) else { return Err(fault("has no function")) };
        if entry.args.len() != func.args.len() || entry.results.len() != func.results.len() {
            return Err(fault("does not list what its function takes and gives"));
        }
        let known = entry.args.iter().all(|role| match role {
            Role::Input(_) => true,
            Role::Param(p) => module.params.get(*p).is_some(),
            Role::State(s) => module.states.get(*s).is_some(),
        });
        if !known {
            return Err(fault("names a parameter or state that does not exist"));
        }
        let state = |&(a, r): &(usize, usize)| {
            matches!(entry.args.get(a), Some(Role::State(_))) && r < entry.results.len()
        };
        if !entry.aliases.iter().all(state) {
            return Err(fault("aliases something that is no state and new state"));
        }
        // What one repetition is proved to be, all are: they call the same functions, and only stacks differ between them.
        let stacked = module.params.values().any(|p| p.stack.is_some())
            || module.states.values().any(|s| s.stack.is_some());
        if stacked || !entry.repeats.is_empty() {
            repeat::check(module, entry)
                .map_err(|why| fault("has repeats that are not well formed").why(why))?;
        }
    }
    let shardings = module.params.values().map(|p| (&p.name, &p.ty, &p.sharding));
    let states = module.states.values().map(|s| (&s.name, &s.ty, &s.sharding));
    for (name, ty, sharding) in shardings.chain(states) {
        if let Some(why) = sharding.as_ref().and_then(|s| bad_sharding(&module.mesh, ty.rank(), s)) {
            return Err(Diagnostic::check(format!("the sharding of `{name}` has no meaning")).why(why));
        }
    }
    Ok(())
}

fn check_func(module: &Module, func: &Func, level: Level) -> Result<(), Diagnostic> {
    let mut defined: HashSet<ValueId> = HashSet::new();
    let mut define = |v: ValueId| match func.values.get(v) {
        None => Err(fault::of_func(func, &format!("has no value {v}"))),
        Some(value) if value.ty.checked().is_none() => Err(fault::of_value(func, v, "is empty or too large")),
        Some(_) if !defined.insert(v) => Err(fault::of_value(func, v, "is defined twice")),
        Some(_) => Ok(()),
    };
    for &v in &func.args {
        define(v)?;
    }
    let order = func.insts.iter().enumerate();
    let mut made_by = vec![usize::MAX; func.values.len()];
    for (at, inst) in order {
        for &v in &inst.results {
            define(v)?;
            made_by[v.as_u32() as usize] = at;
        }
    }
    let before = |v: ValueId, at: usize| {
        let known = defined.contains(&v);
        known && (made_by[v.as_u32() as usize] == usize::MAX || made_by[v.as_u32() as usize] < at)
    };
    for (at, inst) in func.insts.iter().enumerate() {
        if let Some(&v) = inst.args.iter().find(|&&v| !before(v, at)) {
            return Err(fault::of_inst(func, inst, &format!("uses {v} before it is defined")));
        }
        check_inst(module, func, inst, level)
            .map_err(|why| fault::of_inst(func, inst, "is ill-formed").why(why))?;
    }
    if let Some(&v) = func.results.iter().find(|&&v| !before(v, usize::MAX)) {
        return Err(fault::of_func(func, &format!("returns {v}, which it does not define")));
    }
    check_placement(module, func, level)
}

/// The sharding or claim of every value.
fn check_placement(module: &Module, func: &Func, level: Level) -> Result<(), Diagnostic> {
    for (v, value) in &func.values {
        let sharding = match level {
            Level::Graph => continue,
            Level::Sharded => value.sharding.as_ref(),
            Level::Local => value.claim.as_ref().map(|c| &c.sharding),
        };
        let Some(sharding) = sharding else { continue };
        if let Some(why) = bad_sharding(&module.mesh, value.ty.rank(), sharding) {
            return Err(fault::of_value(func, v, "has a sharding without meaning").why(why));
        }
    }
    Ok(())
}

fn check_inst(module: &Module, func: &Func, inst: &Inst, level: Level) -> Result<(), String> {
    let allowed = match &inst.op {
        Op::Reshard(_) => level == Level::Sharded,
        Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_) => level == Level::Local,
        Op::Send { .. } | Op::Recv { .. } => false,
        op => level == Level::Local || base(op).is_none(),
    };
    if !allowed {
        return Err(format!("`{}` does not belong to this level", inst.op.name()));
    }
    let types = |vs: &[ValueId]| vs.iter().map(|&v| func.ty(v)).collect::<Vec<&Type>>();
    let (args, results) = (types(&inst.args), types(&inst.results));
    for axes in axes_of(&inst.op) {
        check_axes(&module.mesh, axes)?;
    }
    let Op::Call(callee) = inst.op else { return inst.op.check(&args, &results) };
    let callee =
        module.funcs.get(callee).ok_or_else(|| format!("it calls {callee}, which does not exist"))?;
    let outer =
        |inner: &[ValueId]| inner.iter().map(|&v| callee.values.get(v).map(|x| &x.ty)).collect::<Vec<_>>();
    let same =
        |outer: Vec<Option<&Type>>, here: &[&Type]| outer.into_iter().eq(here.iter().copied().map(Some));
    match same(outer(&callee.args), &args) && same(outer(&callee.results), &results) {
        true => Ok(()),
        false => Err(format!("`{}` takes or gives values of other types", callee.name)),
    }
}

/// The base that makes an op depend on the device.
fn base(op: &Op) -> Option<&ShardBase> {
    match op {
        Op::Iota(Iota { base, .. }) | Op::Gather(Gather { base, .. }) | Op::Update(Update { base, .. }) => {
            base.as_ref()
        }
        _ => None,
    }
}

/// Every list of axes among an op's attributes.
fn axes_of(op: &Op) -> Vec<&[AxisRef]> {
    match op {
        Op::Collective(c) => vec![Collective::axes(c)],
        Op::ShardSlice(ShardSlice { axes, .. }) | Op::MaskTail(MaskTail { axes, .. }) => vec![axes],
        op => base(op).map(|b| &b.axes[..]).into_iter().collect(),
    }
}

/// Whether the axes exist in the mesh, are of a stage, and name no device's coordinate twice.
pub(super) fn check_axes(mesh: &Mesh, axes: &[AxisRef]) -> Result<(), String> {
    for (i, &a) in axes.iter().enumerate() {
        let divides = a.pre > 0 && a.size > 0 && mesh.part(a.axis, a.pre, a.size).is_some();
        if !divides || a.axis == Axis::Pp {
            return Err(format!("the mesh has no axis {}:({}){} within a stage", a.axis, a.pre, a.size));
        }
        if let Some(b) = axes[..i].iter().find(|b| b.overlaps(a)) {
            return Err(format!("{} and {} share devices", mesh.axis_text(*b), mesh.axis_text(a)));
        }
    }
    Ok(())
}

/// What is wrong with a sharding of a value of this rank, if anything.
pub(super) fn bad_sharding(mesh: &Mesh, rank: usize, s: &Sharding) -> Option<String> {
    if s.dims.len() != rank {
        return Some(format!("it has {} dims, the value {rank}", s.dims.len()));
    }
    if s.partial.iter().any(|p| p.1 != s.partial[0].1) {
        return Some("it is partial in two kinds of reduction".to_owned());
    }
    check_axes(mesh, &s.axes().collect::<Vec<_>>()).err()
}

/// Functions are taken away once all they call is gone; what remains calls itself.
fn check_recursion(module: &Module) -> Result<(), Diagnostic> {
    let callees = |f: &Func| -> Vec<FuncId> {
        f.insts.iter().filter_map(|i| if let Op::Call(callee) = i.op { Some(callee) } else { None }).collect()
    };
    let mut callers: Vec<Vec<FuncId>> = vec![Vec::new(); module.funcs.len()];
    let mut waiting = vec![0; module.funcs.len()];
    let mut open = Vec::new();
    for (id, func) in &module.funcs {
        let called = callees(func);
        waiting[id.as_u32() as usize] = called.len();
        called.iter().for_each(|c| callers[c.as_u32() as usize].push(id));
        if called.is_empty() {
            open.push(id);
        }
    }
    while let Some(id) = open.pop() {
        for &caller in &callers[id.as_u32() as usize] {
            let left = &mut waiting[caller.as_u32() as usize];
            *left -= 1;
            if *left == 0 {
                open.push(caller);
            }
        }
    }
    match module.funcs.iter().find(|(id, _)| waiting[id.as_u32() as usize] > 0) {
        Some((_, func)) => Err(fault::of_func(func, "calls itself")),
        None => Ok(()),
    }
}
