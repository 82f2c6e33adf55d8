//! From the chosen terms back to a function.

use super::Seen;
use super::extract::Choice;
use super::language::{Dist, Graph, op_of, operands};
use crate::partition::settled;
use egg::Id;
use pcc_ir::ops::{MaskTail, Op};
use pcc_ir::{Claim, Func, Inst, Pad, Term, Type, Value, ValueId};
use std::collections::HashMap;

/// Builds the function again with the chosen terms for all that egg saw. Nothing when a term has no claim, or would need a value before
/// it is made: then the function stays as it is.
pub fn rebuild(old: &Func, seen: &Seen, choice: &Choice) -> Option<Func> {
    let (out, copied, made) = (Func::new(&old.name), HashMap::new(), HashMap::new());
    let made_at = old.insts.iter().flat_map(|i| i.results.iter().map(|&v| (v, i.loc.as_str())));
    let locs = made_at.collect();
    let mut b =
        Builder { old, graph: &seen.graph, class_of: &seen.class_of, choice, out, copied, made, locs };
    for &v in &old.args {
        let copy = b.copy(v);
        b.out.args.push(copy);
    }
    for inst in old.insts.iter().filter(|i| !seen.has(i)) {
        let args = inst.args.iter().map(|&v| b.operand(v)).collect::<Option<Vec<_>>>()?;
        let results = inst.results.iter().map(|&v| b.copy(v)).collect();
        b.out.insts.push(Inst { op: inst.op.clone(), args, results, loc: inst.loc.clone() });
    }
    for &v in &old.results {
        let result = b.operand(v)?;
        b.out.results.push(result);
    }
    Some(b.out)
}

struct Builder<'a> {
    old: &'a Func,
    graph: &'a Graph,
    class_of: &'a HashMap<ValueId, Id>,
    choice: &'a Choice,
    out: Func,
    /// New value of every old opaque value.
    copied: HashMap<ValueId, ValueId>,
    /// New value of every class built.
    made: HashMap<Id, ValueId>,
    /// Where each old value comes from.
    locs: HashMap<ValueId, &'a str>,
}

impl Builder<'_> {
    fn copy(&mut self, v: ValueId) -> ValueId {
        let copy = self.out.values.push(self.old.values[v].clone());
        self.copied.insert(v, copy);
        copy
    }

    /// The new value for an old one, with zeros in its padding wherever the old one has them.
    fn operand(&mut self, v: ValueId) -> Option<ValueId> {
        let loc = self.loc_of(v);
        let mut at = self.build(*self.class_of.get(&v)?, None, &loc)?;
        let wanted = self.old.values[v].claim.as_ref()?;
        for (dim, _) in wanted.pad.iter().enumerate().filter(|p| *p.1 == Pad::Zero) {
            let value = &self.out.values[at];
            let claim = value.claim.as_ref()?;
            if claim.pad[dim] == Pad::Zero {
                continue;
            }
            let global = *self.graph[*self.class_of.get(&v)?].data.as_ref()?.shape.get(dim)?;
            let op =
                Op::MaskTail(MaskTail { axes: claim.sharding.dims[dim].clone(), dim, global, value: 0.0 });
            let mut masked = value.clone();
            masked.claim.as_mut()?.pad[dim] = Pad::Zero;
            at = self.push(op, vec![at], masked, &loc);
        }
        (self.out.ty(at) == self.old.ty(v)).then_some(at)
    }

    fn loc_of(&self, v: ValueId) -> String {
        self.locs.get(&v).copied().unwrap_or_default().to_owned()
    }

    fn push(&mut self, op: Op, args: Vec<ValueId>, value: Value, loc: &str) -> ValueId {
        let result = self.out.values.push(value);
        self.out.insts.push(Inst { op, args, results: vec![result], loc: loc.to_owned() });
        result
    }

    /// Builds the chosen term of a class. `term` is what the class stands for when it does not know that itself: a collective
    /// changes the placement of a value, not the value.
    fn build(&mut self, id: Id, term: Option<&Term>, loc: &str) -> Option<ValueId> {
        let id = self.graph.find(id);
        if let Some(&done) = self.made.get(&id) {
            return Some(done);
        }
        let node = self.choice.get(&id)?;
        let facts = self.graph[id].data.as_ref()?;
        if let Dist::Opaque(i) = node {
            let leaf = self.graph.analysis.leaves.get(i.0 as usize)?;
            return self.copied.get(&leaf.original?).copied();
        }
        let loc = facts.original.map_or(loc.to_owned(), |v| self.loc_of(v));
        let term = facts.term.as_ref().or(term);
        let op = op_of(self.graph, node)?;
        let keeps = matches!(op, Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_));
        let mut args = Vec::new();
        for &c in operands(node) {
            args.push(self.build(c, term.filter(|_| keeps), &loc)?);
        }
        let pads = self.pads(&op, &args)?;
        let pad = settled(&pads, &facts.sharding, &facts.shape);
        let claim = Claim { term: term?.clone(), sharding: facts.sharding.clone(), pad };
        let mut value = match facts.original {
            Some(v) => Value { claim: None, ..self.old.values[v].clone() },
            None => Value::new(facts.local()),
        };
        value.claim = Some(claim);
        let result = self.push(op, args, value, &loc);
        self.made.insert(id, result);
        Some(result)
    }

    /// What the padding of the result of an op of the language holds.
    fn pads(&self, op: &Op, args: &[ValueId]) -> Option<Vec<Pad>> {
        let of = |v: &ValueId| self.out.values[*v].claim.as_ref().map(|c| c.pad.clone());
        let pads = args.iter().map(of).collect::<Option<Vec<_>>>()?;
        let types: Vec<&Type> = args.iter().map(|&v| self.out.ty(v)).collect();
        let result = op.infer(&types).ok()?;
        let rule = op.rule(&types, &result.iter().collect::<Vec<_>>());
        op.result_pads(&rule, &pads).into_iter().next()
    }
}
