//! One function: definitions and uses, types, labels, placement.

use super::{Level, broken, placement};
use crate::diagnostic::Diagnostic;
use crate::graph::{Func, FuncId, Inst, Module, Value, ValueId};
use crate::ops::{Collective, Gather, Iota, MaskTail, Op, ShardBase, ShardSlice, Update};
use crate::sharding::{Pad, Sharding, local_extent};
use crate::types::Type;
use cranelift_entity::{EntityRef, EntitySet};
use std::collections::HashSet;

pub(super) fn check(module: &Module, func: &Func, level: Level) -> Result<(), Diagnostic> {
    let c = Check { module, func, level };
    let mut defined = EntitySet::new();
    let known = |v: ValueId, place: &dyn Fn() -> String| match func.values.get(v) {
        Some(_) => Ok(()),
        None => Err(broken(place(), format!("it has no value %{}", v.index()))),
    };
    for &v in &func.args {
        known(v, &|| place(func))?;
        c.define(&mut defined, v)?;
    }
    for inst in &func.insts {
        let at = || inst_place(func, inst);
        for &v in inst.args.iter().chain(&inst.results) {
            known(v, &at)?;
        }
        if let Some(v) = inst.args.iter().find(|&&v| !defined.contains(v)) {
            return Err(broken(at(), format!("%{} is used before it is defined", v.index())));
        }
        for &v in &inst.results {
            c.define(&mut defined, v)?;
        }
        c.inst(inst).map_err(|why| broken(at(), why))?;
    }
    for &v in &func.results {
        known(v, &|| place(func))?;
        if !defined.contains(v) {
            return Err(broken(place(func), format!("it returns %{}, which nothing defines", v.index())));
        }
    }
    Ok(())
}

struct Check<'a> {
    module: &'a Module,
    func: &'a Func,
    level: Level,
}

impl Check<'_> {
    /// A value is defined: for the first time, and it is what a value of this level must be.
    fn define(&self, defined: &mut EntitySet<ValueId>, v: ValueId) -> Result<(), Diagnostic> {
        let why = match defined.insert(v) {
            true => self.value(&self.func.values[v]),
            false => Err("it is defined twice".into()),
        };
        why.map_err(|why| broken(value_place(self.func, v), why))
    }

    fn value(&self, value: &Value) -> Result<(), String> {
        let (ty, mesh) = (&value.ty, &self.module.mesh);
        if ty.checked().is_none() {
            return Err(format!("{ty} is empty or too large"));
        }
        if !value.labels.is_empty() && value.labels.len() != ty.rank() {
            return Err(format!("it has {} labels, but {ty} has {} dims", value.labels.len(), ty.rank()));
        }
        match (self.level, &value.sharding, &value.claim) {
            (Level::Graph, None, None) => Ok(()),
            (Level::Sharded, Some(s), None) => placement::check(mesh, ty, s),
            (Level::Local, None, Some(c)) => placement::claim(mesh, ty, c),
            (_, sharding, claim) => {
                let has = |x: bool| if x { "a" } else { "no" };
                let (s, c) = (has(sharding.is_some()), has(claim.is_some()));
                Err(format!("it has {s} sharding and {c} claim, in a {} module", self.level.name()))
            }
        }
    }

    fn inst(&self, inst: &Inst) -> Result<(), String> {
        if !belongs(&inst.op, self.level) {
            return Err(format!("{} does not belong into a {} module", inst.op.name(), self.level.name()));
        }
        if let Op::Call(callee) = inst.op {
            return self.call(inst, callee);
        }
        let args: Vec<&Type> = inst.args.iter().map(|&v| self.func.ty(v)).collect();
        let results: Vec<&Type> = inst.results.iter().map(|&v| self.func.ty(v)).collect();
        if let Op::Recv { ty, .. } = &inst.op
            && ty.checked().is_none()
        {
            return Err(format!("{ty} is empty or too large"));
        }
        inst.op.check(&args, &results)?;
        self.local_axes(&inst.op, &args, &results)?;
        match (&inst.op, inst.results.first()) {
            (Op::Reshard(to), Some(&v)) if self.func.values[v].sharding.as_ref() != Some(to) => {
                Err("its result has another sharding than it names".into())
            }
            _ => Ok(()),
        }
    }

    /// F8. The types fit the op.
    fn local_axes(&self, op: &Op, args: &[&Type], results: &[&Type]) -> Result<(), String> {
        let mesh = &self.module.mesh;
        let based = match op {
            Op::Collective(c) => return placement::axes(mesh, Collective::axes(c).iter().copied()),
            Op::ShardSlice(ShardSlice { axes, .. }) | Op::MaskTail(MaskTail { axes, .. }) => {
                return placement::axes(mesh, axes.iter().copied());
            }
            Op::Iota(Iota { base: Some(b), dim, .. }) => Some((b, results.first(), *dim)),
            Op::Gather(Gather { base: Some(b), batch }) | Op::Update(Update { base: Some(b), batch }) => {
                Some((b, args.first(), *batch))
            }
            _ => None,
        };
        let Some((ShardBase { global, axes }, ty, dim)) = based else { return Ok(()) };
        placement::axes(mesh, axes.iter().copied())?;
        match ty.and_then(|t| t.shape.get(dim)) {
            Some(&n) if n == local_extent(*global, axes) => Ok(()),
            _ => Err(format!("{}: dim {dim} is no piece of a dim of extent {global}", op.name())),
        }
    }

    fn call(&self, inst: &Inst, callee: FuncId) -> Result<(), String> {
        let f = self.module.funcs.get(callee).ok_or_else(|| format!("{callee} does not exist"))?;
        let (name, takes, gives) = (&f.name, f.args.len(), f.results.len());
        if takes != inst.args.len() || gives != inst.results.len() {
            let (args, results) = (inst.args.len(), inst.results.len());
            return Err(format!(
                "`{name}` takes {takes} values and gives {gives}, called with {args} for {results}"
            ));
        }
        let pair = |outer: ValueId, inner: ValueId| {
            let inner = f.values.get(inner).ok_or_else(|| format!("`{name}` has no value {inner}"))?;
            Ok::<_, String>((&self.func.values[outer], inner))
        };
        for (i, (&outer, &inner)) in inst.args.iter().zip(&f.args).enumerate() {
            let (outer, inner) = pair(outer, inner)?;
            same(&self.module.mesh, outer, inner)
                .and_then(|()| promised(inner, outer))
                .map_err(|why| format!("argument {i} of `{name}`{why}"))?;
        }
        for (i, (&outer, &inner)) in inst.results.iter().zip(&f.results).enumerate() {
            let (outer, inner) = pair(outer, inner)?;
            same(&self.module.mesh, outer, inner)
                .and_then(|()| promised(outer, inner))
                .map_err(|why| format!("result {i} of `{name}`{why}"))?;
        }
        Ok(())
    }
}

/// F9 for a function that is well formed otherwise.
pub(super) fn links(module: &Module, func: &Func, called: bool) -> Result<(), Diagnostic> {
    let mut ends = HashSet::new();
    for inst in &func.insts {
        let end = match inst.op {
            Op::Send { stage, tag } => (true, stage, tag),
            Op::Recv { stage, tag, .. } => (false, stage, tag),
            _ => continue,
        };
        let why = if called {
            "some function calls this one: sends and receives are for whole stages".to_owned()
        } else if end.1 >= module.mesh.pp {
            format!("there is no stage {}: the mesh has {}", end.1, module.mesh.pp)
        } else if !ends.insert(end) {
            format!("another one has stage {} and tag {}", end.1, end.2)
        } else {
            continue;
        };
        return Err(broken(inst_place(func, inst), why));
    }
    Ok(())
}

fn place(func: &Func) -> String {
    format!("function `{}`", func.name)
}

fn value_place(func: &Func, v: ValueId) -> String {
    match func.values.get(v) {
        Some(Value { name, .. }) if !name.is_empty() => {
            format!("{}, value %{} `{name}`", place(func), v.index())
        }
        _ => format!("{}, value %{}", place(func), v.index()),
    }
}

fn inst_place(func: &Func, inst: &Inst) -> String {
    let results: Vec<String> = inst.results.iter().map(|v| format!("%{}", v.index())).collect();
    let loc = if inst.loc.is_empty() { String::new() } else { format!(" of {}", inst.loc) };
    match results.is_empty() {
        true => format!("{}, op {}{loc}", place(func), inst.op.name()),
        false => format!("{}, {} = {}{loc}", place(func), results.join(", "), inst.op.name()),
    }
}

/// L3.
fn belongs(op: &Op, level: Level) -> bool {
    match op {
        Op::Reshard(_) => level == Level::Sharded,
        Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_) | Op::Send { .. } | Op::Recv { .. } => {
            level == Level::Local
        }
        Op::Iota(Iota { base: Some(_), .. })
        | Op::Gather(Gather { base: Some(_), .. })
        | Op::Update(Update { base: Some(_), .. }) => level == Level::Local,
        _ => true,
    }
}

/// How a value of any placed level is placed.
pub(super) fn sharding(v: &Value) -> Option<&Sharding> {
    v.claim.as_ref().map(|c| &c.sharding).or(v.sharding.as_ref())
}

/// Type and placement of two values that stand for each other.
fn same(mesh: &crate::Mesh, outer: &Value, inner: &Value) -> Result<(), String> {
    if outer.ty != inner.ty {
        return Err(format!(" is {}, got {}", inner.ty, outer.ty));
    }
    if sharding(outer) != sharding(inner) {
        let text = |v| sharding(v).map_or_else(|| "not placed".to_owned(), |s| s.text(mesh));
        return Err(format!(" is placed {}, got {}", text(inner), text(outer)));
    }
    Ok(())
}

/// Where `relies` says the padding is zero, `gives` says so too.
pub(super) fn promised(relies: &Value, gives: &Value) -> Result<(), String> {
    let (Some(relies), Some(gives)) = (&relies.claim, &gives.claim) else { return Ok(()) };
    let dims = relies.pad.iter().zip(&gives.pad);
    match dims.clone().position(|(r, g)| (*r, *g) == (Pad::Zero, Pad::Unspecified)) {
        Some(d) => Err(format!(" has zeros in the padding of dim {d} on one side only")),
        None => Ok(()),
    }
}
