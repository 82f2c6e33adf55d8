//! One function to its local form.

use super::layout::{Cuts, overlap, same_layout};
use super::reshard::plan;
use super::{Boundaries, Boundary};
use crate::cost::Cluster;
use pcc_ir::AxisRef;
use pcc_ir::ops::{MaskTail, Op};
use pcc_ir::rule::Split;
use pcc_ir::{
    Claim, Diagnostic, Func, Inst, Module, Pad, ReduceKind, Rule, Sharding, Term, Type, Value, ValueId,
};
use std::collections::HashMap;

/// Pads of a value laid out so: a dim that no device pads counts as zero.
pub(crate) fn settled(pads: &[Pad], sharding: &Sharding, shape: &[usize]) -> Vec<Pad> {
    let pad = |(d, &n): (usize, &usize)| match sharding.pads(d, n) {
        true => pads.get(d).copied().unwrap_or(Pad::Unspecified),
        false => Pad::Zero,
    };
    shape.iter().enumerate().map(pad).collect()
}

/// The local function, and what its calls say of the padding of their arguments.
pub(crate) struct LocalFunc {
    pub(crate) func: Func,
    pub(crate) results: Vec<Vec<Pad>>,
    pub(crate) calls: Vec<(pcc_ir::FuncId, Vec<Vec<Pad>>)>,
}

/// Builds the local form of `src`, whose arguments have the padding `boundary` says.
pub(crate) fn local_func(
    module: &Module,
    src: &Func,
    boundary: &Boundary,
    boundaries: &Boundaries,
) -> Result<LocalFunc, Diagnostic> {
    let mut b = Builder {
        module,
        src,
        boundaries,
        out: Func::new(&src.name),
        local: HashMap::new(),
        made: HashMap::new(),
        calls: Vec::new(),
    };
    for (i, &v) in src.args.iter().enumerate() {
        let pads = settled(&boundary.args[i], b.sharding(v)?, &src.ty(v).shape);
        let local = b.define(v, pads)?;
        b.out.args.push(local);
    }
    for inst in &src.insts {
        b.inst(inst)?;
    }
    for &v in &src.results {
        let local = b.lookup(v)?;
        b.out.results.push(local);
    }
    let results = b.out.results.iter().map(|&v| b.claim(v).pad.clone()).collect();
    Ok(LocalFunc { func: b.out, results, calls: b.calls })
}

struct Builder<'a> {
    module: &'a Module,
    src: &'a Func,
    boundaries: &'a Boundaries,
    out: Func,
    /// Local value of each value of `src`.
    local: HashMap<ValueId, ValueId>,
    /// What collectives, slices and masks have already made of a local value: consumers share them.
    made: HashMap<ValueId, Vec<(Op, ValueId)>>,
    calls: Vec<(pcc_ir::FuncId, Vec<Vec<Pad>>)>,
}

impl Builder<'_> {
    /// What messages call a value.
    fn name(&self, v: ValueId) -> String {
        match &self.src.values[v].name {
            name if name.is_empty() => format!("{v} of {}", self.src.name),
            name => format!("{name} ({v}) of {}", self.src.name),
        }
    }

    fn fault(&self, v: ValueId, inst: Option<&Inst>, why: impl Into<String>) -> Diagnostic {
        let d = Diagnostic::internal(format!("value {} cannot be made as sharded", self.name(v))).why(why);
        match inst {
            Some(inst) if !inst.loc.is_empty() => d.at(inst.loc.clone()),
            _ => d,
        }
    }

    fn sharding(&self, v: ValueId) -> Result<&Sharding, Diagnostic> {
        let value = self.src.values.get(v).ok_or_else(|| self.unknown(v))?;
        match &value.sharding {
            Some(s) if s.dims.len() == value.ty.rank() => Ok(s),
            Some(_) => Err(self.fault(v, None, "its sharding has another rank than its type")),
            None => Err(self.fault(v, None, "it has no sharding")),
        }
    }

    fn unknown(&self, v: ValueId) -> Diagnostic {
        Diagnostic::internal(format!("function {} uses {v}, which it does not define before", self.src.name))
    }

    fn lookup(&self, v: ValueId) -> Result<ValueId, Diagnostic> {
        self.local.get(&v).copied().ok_or_else(|| self.unknown(v))
    }

    /// The claim of a local value; every value of `out` is made with one.
    fn claim(&self, local: ValueId) -> &Claim {
        // invariant: `value` gives every value of `out` a claim
        self.out.values[local].claim.as_ref().expect("every local value is made with a claim")
    }

    /// A new local value that stands for `v` as sharded.
    fn define(&mut self, v: ValueId, pad: Vec<Pad>) -> Result<ValueId, Diagnostic> {
        let sharding = self.sharding(v)?.clone();
        let local = self.value(v, sharding, pad);
        self.local.insert(v, local);
        Ok(local)
    }

    fn value(&mut self, v: ValueId, sharding: Sharding, pad: Vec<Pad>) -> ValueId {
        let global = &self.src.values[v];
        let ty = sharding.local_type(&global.ty);
        let claim = Claim { term: Term::Value(v), sharding, pad };
        let (name, labels) = (global.name.clone(), global.labels.clone());
        self.out.values.push(Value { ty, name, labels, sharding: None, claim: Some(claim) })
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), Diagnostic> {
        match &inst.op {
            Op::Reshard(to) => self.reshard(inst, to),
            Op::Call(callee) => self.call(inst, *callee),
            Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_) | Op::Send { .. } | Op::Recv { .. } => {
                let why = format!("function {} already holds the local op {}", self.src.name, inst.op.name());
                Err(Diagnostic::internal("only a sharded function can be partitioned").why(why))
            }
            _ => self.compute(inst),
        }
    }

    fn call(&mut self, inst: &Inst, callee: pcc_ir::FuncId) -> Result<(), Diagnostic> {
        let f = self.module.funcs.get(callee).ok_or_else(|| {
            Diagnostic::internal(format!("function {} calls {callee}, which does not exist", self.src.name))
        })?;
        if f.args.len() != inst.args.len() || f.results.len() != inst.results.len() {
            let what = format!("function {} calls {} with another number of values", self.src.name, f.name);
            return Err(Diagnostic::internal(what));
        }
        let outer = inst.args.iter().chain(&inst.results);
        for (&v, &inner) in outer.zip(f.args.iter().chain(&f.results)) {
            if self.src.values.get(v).map(|x| &x.sharding) != Some(&f.values[inner].sharding) {
                return Err(self.fault(v, Some(inst), format!("{} wants it in another sharding", f.name)));
            }
        }
        let args = inst.args.iter().map(|&v| self.lookup(v)).collect::<Result<Vec<_>, _>>()?;
        let pads = args.iter().map(|&v| self.claim(v).pad.clone()).collect();
        self.calls.push((callee, pads));
        let pads = self.boundaries[callee].results.clone();
        let mut results = Vec::new();
        for (&v, pad) in inst.results.iter().zip(pads) {
            results.push(self.define(v, pad)?);
        }
        self.out.insts.push(Inst { op: inst.op.clone(), args, results, loc: inst.loc.clone() });
        Ok(())
    }

    fn reshard(&mut self, inst: &Inst, to: &Sharding) -> Result<(), Diagnostic> {
        let (&[v], &[r]) = (&inst.args[..], &inst.results[..]) else {
            return Err(Diagnostic::internal("a reshard has one operand and one result").at(inst.loc.clone()));
        };
        if self.sharding(r)? != to {
            return Err(self.fault(r, Some(inst), "its sharding is not the one its reshard makes"));
        }
        let ty = self.src.ty(r).clone();
        let mut at = self.lookup(v)?;
        let steps = plan(&Cluster::a100(), &self.module.mesh, &ty, &self.claim(at).sharding, to)
            .map_err(|why| self.fault(r, Some(inst), why))?;
        for step in steps {
            at = self.made(at, step.op, r, step.sharding, &inst.loc)?;
        }
        self.local.insert(r, at);
        Ok(())
    }

    /// Applies a one-operand op that keeps the global value, or reuses the result of an equal one.
    fn made(
        &mut self,
        on: ValueId,
        op: Op,
        v: ValueId,
        s: Sharding,
        loc: &str,
    ) -> Result<ValueId, Diagnostic> {
        if let Some((_, done)) = self.made.get(&on).and_then(|m| m.iter().find(|(o, _)| *o == op)) {
            return Ok(*done);
        }
        let operand = self.out.ty(on).clone();
        let result = s.local_type(&self.src.values[v].ty);
        op.check(&[&operand], &[&result]).map_err(|why| self.fault(v, None, why))?;
        let pads = op.result_pads(&op.rule(&[&operand], &[&result]), &[self.claim(on).pad.clone()]);
        let pad = settled(pads.first().map_or(&[], |p| p), &s, &self.src.ty(v).shape);
        let result = self.value(v, s, pad);
        self.out.insts.push(Inst {
            op: op.clone(),
            args: vec![on],
            results: vec![result],
            loc: loc.to_owned(),
        });
        self.made.entry(on).or_default().push((op, result));
        Ok(result)
    }

    /// An op on local pieces, as its rule says.
    fn compute(&mut self, inst: &Inst) -> Result<(), Diagnostic> {
        let first = *inst.results.first().ok_or_else(|| Diagnostic::internal("an op without a result"))?;
        let types: Vec<_> = inst.args.iter().map(|&v| self.src.ty(v)).collect();
        let result_types: Vec<_> = inst.results.iter().map(|&v| self.src.ty(v)).collect();
        let rule = inst.op.rule(&types, &result_types);
        let split = self.split(inst, &rule)?;
        let placed = inst.args.iter().map(|&v| self.sharding(v)).collect::<Result<Vec<_>, _>>()?;
        let partial =
            self.passing_partials(inst, &placed).map_err(|why| self.fault(first, Some(inst), why))?;
        for (i, &r) in inst.results.iter().enumerate() {
            let mut made = rule.result_sharding(i, &split);
            made.partial.extend(&partial);
            let wanted = self.sharding(r)?;
            if overlap(&made).is_some() || !same_layout(&self.src.ty(r).shape, &made, wanted) {
                let mesh = &self.module.mesh;
                let why = format!("{} makes {}, not {}", inst.op.name(), made.text(mesh), wanted.text(mesh));
                return Err(self.fault(r, Some(inst), why));
            }
        }
        let mut args = Vec::new();
        for (i, &v) in inst.args.iter().enumerate() {
            args.push(self.masked(inst, &rule, i, v)?);
        }
        let pads: Vec<_> = args.iter().map(|&v| self.claim(v).pad.clone()).collect();
        let result_pads = inst.op.result_pads(&rule, &pads);
        if result_pads.len() != inst.results.len() {
            return Err(self.fault(first, Some(inst), "its op does not say what its padding holds"));
        }
        let mut results = Vec::new();
        for (&r, pads) in inst.results.iter().zip(&result_pads) {
            let pads = settled(pads, self.sharding(r)?, &self.src.ty(r).shape);
            results.push(self.define(r, pads)?);
        }
        let local: Vec<&Type> = args.iter().map(|&v| self.out.ty(v)).collect();
        let local_results: Vec<&Type> = results.iter().map(|&v| self.out.ty(v)).collect();
        let op = inst.op.localize(&rule, &split, &local, &local_results);
        self.out.insts.push(Inst { op, args, results, loc: inst.loc.clone() });
        Ok(())
    }

    /// How the shardings around an op split its factors.
    fn split(&self, inst: &Inst, rule: &Rule) -> Result<Split, Diagnostic> {
        let of = |vs: &[ValueId]| vs.iter().map(|&v| self.sharding(v)).collect::<Result<Vec<_>, _>>();
        let (args, results) = (of(&inst.args)?, of(&inst.results)?);
        rule.split_from(&args, &results).ok_or_else(|| {
            let texts: Vec<_> = args.iter().map(|s| s.text(&self.module.mesh)).collect();
            let name = inst.op.name();
            let why = format!("{name} has no split for operands laid out as {}", texts.join(" and "));
            self.fault(inst.results[0], Some(inst), why)
        })
    }

    /// The partials of the results that come from partial operands.
    fn passing_partials(
        &self,
        inst: &Inst,
        args: &[&Sharding],
    ) -> Result<Vec<(AxisRef, ReduceKind)>, String> {
        let cuts = Cuts::of(args.iter().copied());
        let partials: Vec<_> = args.iter().map(|s| cuts.refine_partial(&s.partial)).collect();
        let mut axes: Vec<_> = partials.iter().flatten().map(|p| p.0).collect();
        axes.sort_unstable();
        axes.dedup();
        let mut passing = Vec::new();
        for a in axes {
            let kinds: Vec<_> = partials.iter().map(|p| p.iter().find(|p| p.0 == a).map(|p| p.1)).collect();
            let text = || self.module.mesh.axis_text(a);
            for (i, s) in args.iter().enumerate().filter(|(i, _)| kinds[*i].is_none()) {
                if s.axes().any(|b| b.overlaps(a)) {
                    return Err(format!(
                        "operand {i} is split over {}, over which another is a partial",
                        text()
                    ));
                }
            }
            match inst.op.partial_rule(&kinds) {
                Some(kind) => passing.extend(kind.map(|k| (a, k))),
                None => {
                    return Err(format!("{} is not linear in its partial over {}", inst.op.name(), text()));
                }
            }
        }
        Ok(passing)
    }

    /// Operand `i` with the identity of the reduction in the padding of every dim that the op reduces.
    fn masked(&mut self, inst: &Inst, rule: &Rule, i: usize, v: ValueId) -> Result<ValueId, Diagnostic> {
        let mut at = self.lookup(v)?;
        let sharding = self.sharding(v)?.clone();
        let shape = self.src.ty(v).shape.clone();
        for (d, &global) in shape.iter().enumerate() {
            let Some(kind) = rule.reduce_need(i, d) else { continue };
            let zero = kind == ReduceKind::Sum;
            if !sharding.pads(d, global) || zero && self.claim(at).pad[d] == Pad::Zero {
                continue;
            }
            let op = MaskTail { axes: sharding.dims[d].clone(), dim: d, global, value: kind.identity() };
            at = self.made(at, Op::MaskTail(op), v, sharding.clone(), &inst.loc)?;
        }
        Ok(at)
    }
}
