//! The sharded module without its reshards is the graph.
//!
//! Function instances may be cloned, so functions are paired as calls reach them, from the entries on: each instance has one origin.

use super::fault;
use pcc_ir::{Diagnostic, Func, FuncId, Inst, Module, Op, ValueId};
use std::collections::HashMap;

pub(super) fn check(graph: &Module, sharded: &Module) -> Result<(), Diagnostic> {
    check_tables(graph, sharded)?;
    let mut origin: HashMap<FuncId, FuncId> = HashMap::new();
    let mut open = Vec::new();
    for (a, b) in graph.entries.iter().zip(&sharded.entries) {
        let same = (&a.name, &a.args, &a.results, &a.aliases) == (&b.name, &b.args, &b.results, &b.aliases);
        if !same || a.weight != b.weight || a.repeats != b.repeats {
            return Err(Diagnostic::check(format!(
                "sharding changed what entry `{}` takes or gives",
                a.name
            )));
        }
        open.push((b.func, a.func));
    }
    while let Some((instance, of)) = open.pop() {
        if let Some(known) = origin.insert(instance, of) {
            if known != of {
                let (a, b) = (&graph.funcs[known].name, &graph.funcs[of].name);
                let what = format!("stands for both `{a}` and `{b}` of the graph");
                return Err(fault::of_func(&sharded.funcs[instance], &what));
            }
            continue;
        }
        open.extend(check_func(&graph.funcs[of], &sharded.funcs[instance])?);
    }
    Ok(())
}

fn check_tables(graph: &Module, sharded: &Module) -> Result<(), Diagnostic> {
    let fault = |what: String| Diagnostic::check(format!("sharding changed {what}"));
    if graph.mesh != sharded.mesh {
        return Err(fault("the mesh".to_owned()));
    }
    for (a, b) in graph.params.values().zip(sharded.params.values()) {
        if (&a.name, &a.ty, &a.source, a.stack) != (&b.name, &b.ty, &b.source, b.stack) {
            return Err(fault(format!("parameter `{}`", a.name)));
        }
    }
    for (a, b) in graph.states.values().zip(sharded.states.values()) {
        if (&a.name, &a.ty, a.stack) != (&b.name, &b.ty, b.stack) {
            return Err(fault(format!("state `{}`", a.name)));
        }
    }
    let counts = |m: &Module| [m.params.len(), m.states.len(), m.entries.len()];
    match counts(graph) == counts(sharded) {
        true => Ok(()),
        false => Err(fault("how many parameters, states or entries there are".to_owned())),
    }
}

/// Compares an instance with its origin, op by op. Gives the pairs of functions they call.
fn check_func(graph: &Func, sharded: &Func) -> Result<Vec<(FuncId, FuncId)>, Diagnostic> {
    let mut pair = Pair { graph, sharded, same: HashMap::new() };
    if graph.args.len() != sharded.args.len() || graph.results.len() != sharded.results.len() {
        return Err(fault::of_func(sharded, "takes or gives another number of values than in the graph"));
    }
    for (&g, &s) in graph.args.iter().zip(&sharded.args) {
        pair.unite(g, s)?;
    }
    let mut calls = Vec::new();
    let mut remaining = sharded.insts.iter();
    for inst in &graph.insts {
        let other = loop {
            match remaining.next() {
                Some(reshard) if matches!(reshard.op, Op::Reshard(_)) => pair.reshard(reshard)?,
                Some(other) => break other,
                None => return Err(fault::of_inst(graph, inst, "was dropped by sharding")),
            }
        };
        calls.extend(pair.inst(inst, other)?);
    }
    for extra in remaining {
        match extra.op {
            Op::Reshard(_) => pair.reshard(extra)?,
            _ => return Err(fault::of_inst(sharded, extra, "was added by sharding")),
        }
    }
    for (&g, &s) in graph.results.iter().zip(&sharded.results) {
        if pair.same.get(&s) != Some(&g) {
            let what = format!("is returned where the graph returns {}", fault::value(graph, g));
            return Err(fault::of_value(sharded, s, &what));
        }
    }
    Ok(calls)
}

struct Pair<'a> {
    graph: &'a Func,
    sharded: &'a Func,
    /// Value of the graph that each sharded value is.
    same: HashMap<ValueId, ValueId>,
}

impl Pair<'_> {
    fn unite(&mut self, g: ValueId, s: ValueId) -> Result<(), Diagnostic> {
        if self.graph.ty(g) != self.sharded.ty(s) {
            let what = format!("is {} but {} in the graph", self.sharded.ty(s), self.graph.ty(g));
            return Err(fault::of_value(self.sharded, s, &what));
        }
        self.same.insert(s, g);
        Ok(())
    }

    fn reshard(&mut self, inst: &Inst) -> Result<(), Diagnostic> {
        let (&[arg], &[result], Op::Reshard(to)) = (&inst.args[..], &inst.results[..], &inst.op) else {
            return Err(fault::of_inst(self.sharded, inst, "is made by a reshard of other than one value"));
        };
        if self.sharded.values[result].sharding.as_ref() != Some(to) {
            return Err(fault::of_value(self.sharded, result, "is not sharded as its reshard says"));
        }
        match self.same.get(&arg).copied() {
            Some(g) => self.unite(g, result),
            None => Err(fault::of_value(self.sharded, arg, "is unknown to the graph")),
        }
    }

    fn inst(&mut self, graph: &Inst, sharded: &Inst) -> Result<Option<(FuncId, FuncId)>, Diagnostic> {
        let calls = match (&graph.op, &sharded.op) {
            (Op::Call(g), Op::Call(s)) => Some((*s, *g)),
            (g, s) if g == s => None,
            (g, s) => {
                let wanted =
                    graph.results.first().map_or("nothing".to_owned(), |&v| fault::value(self.graph, v));
                let why = match g.name() == s.name() {
                    true => format!("`{}` has other attributes than for {wanted} of the graph", g.name()),
                    false => format!(
                        "it is made by `{}` where `{}` makes {wanted} of the graph",
                        s.name(),
                        g.name()
                    ),
                };
                return Err(fault::of_inst(self.sharded, sharded, "was changed by sharding").why(why));
            }
        };
        if graph.args.len() != sharded.args.len() || graph.results.len() != sharded.results.len() {
            return Err(fault::of_inst(
                self.sharded,
                sharded,
                "has other operands or results than in the graph",
            ));
        }
        for (i, (&g, &s)) in graph.args.iter().zip(&sharded.args).enumerate() {
            if self.same.get(&s) != Some(&g) {
                let (wanted, used) = (fault::value(self.graph, g), fault::value(self.sharded, s));
                let why = format!("operand {i} is {used} instead of {wanted}");
                return Err(fault::of_inst(
                    self.sharded,
                    sharded,
                    "is made of other values than in the graph",
                )
                .why(why));
            }
        }
        for (&g, &s) in graph.results.iter().zip(&sharded.results) {
            self.unite(g, s)?;
        }
        Ok(calls)
    }
}
