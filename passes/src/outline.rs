//! Turns flat entries into chains of calls, so that every later pass works once per distinct layer.
//!
//! What: an entry's instructions are cut into segments where few values are live, segments of equal structure become one
//! function, and the entry becomes the calls. Calls the user wrote stay as they are; calls inside called functions are
//! inlined. Why: compile time then grows with distinct layers and not with depth, and a pipeline has something to cut.
//!
//! ```text
//! %1 = dot %0, %w0            fn part0(%0, %1) { dot; relu }
//! %2 = relu %1
//! %3 = dot %2, %w1     ->     %1 = call part0(%0, %w0)
//! %4 = relu %3                %2 = call part0(%1, %w1)
//! ```
//!
//! Values that depend only on the entry's inputs and on constants (masks, angles) are recomputed in each segment that uses
//! them instead of being carried along the chain.

mod canonical;
mod inline;
mod segments;

use canonical::{Extracted, Kind, Scope};
use pcc_ir::graph::{Entry, Role};
use pcc_ir::{Diagnostic, Func, FuncId, Inst, Module, Op, ValueId};
use segments::{Segment, segments};
use std::collections::{BTreeMap, HashMap};

/// Outlines every entry that is not a chain of calls already. `min_calls`: how many calls a chain should have at least (the
/// pipeline stages); segments are cut finer to reach it where the graph allows. Only functions that are used remain.
///
/// Errors: a function calls itself, or inlining would pass a million instructions.
pub fn outline(module: &Module, min_calls: usize) -> Result<Module, Diagnostic> {
    let mut out = Module { funcs: Default::default(), entries: Vec::new(), ..module.clone() };
    let mut kept: BTreeMap<FuncId, FuncId> = BTreeMap::new();
    let mut made: HashMap<String, FuncId> = HashMap::new();
    for entry in &module.entries {
        let f = &module.funcs[entry.func];
        // Callees first, each without calls of its own.
        for callee in f.insts.iter().filter_map(called) {
            if let std::collections::btree_map::Entry::Vacant(place) = kept.entry(callee) {
                place.insert(out.funcs.push(inline::flat(module, callee)?));
            }
        }
        let chain = if f.insts.iter().all(|i| called(i).is_some()) && !f.insts.is_empty() {
            let mut chain = f.clone();
            for inst in &mut chain.insts {
                if let Op::Call(callee) = &mut inst.op {
                    *callee = kept[callee];
                }
            }
            chain
        } else {
            Outliner { entry, f, out: &mut out, kept: &kept, made: &mut made }.chain(min_calls)
        };
        let func = out.funcs.push(chain);
        out.entries.push(Entry { func, ..entry.clone() });
    }
    Ok(out)
}

fn called(inst: &Inst) -> Option<FuncId> {
    match inst.op {
        Op::Call(callee) => Some(callee),
        _ => None,
    }
}

struct Outliner<'a> {
    entry: &'a Entry,
    f: &'a Func,
    out: &'a mut Module,
    kept: &'a BTreeMap<FuncId, FuncId>,
    /// Functions made so far, by their canonical text.
    made: &'a mut HashMap<String, FuncId>,
}

impl Outliner<'_> {
    /// The entry as calls: the user's own, and one for each segment.
    fn chain(mut self, min_calls: usize) -> Func {
        let scope = Scope::new(self.f, &self.kinds());
        let mut chain = Func { name: self.f.name.clone(), ..Func::default() };
        let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for &v in &self.f.args {
            let mut value = self.f.values[v].clone();
            value.sharding = None;
            let id = chain.values.push(value);
            chain.args.push(id);
            map.insert(v, id);
        }
        for segment in segments(self.f, &scope, min_calls) {
            match segment {
                Segment::Call(at) => {
                    let inst = &self.f.insts[at];
                    let op = called(inst).and_then(|c| self.kept.get(&c)).map(|&c| Op::Call(c));
                    let op = op.unwrap_or_else(|| inst.op.clone());
                    self.push(&mut chain, &mut map, op, &inst.args, &inst.results, inst.loc.clone());
                }
                Segment::Part(range) => {
                    let extracted = scope.extract(self.f, range);
                    if extracted.results.is_empty() {
                        continue;
                    }
                    let loc = extracted.place.clone();
                    let (args, results) = (extracted.args.clone(), extracted.results.clone());
                    let callee = self.function(extracted);
                    self.push(&mut chain, &mut map, Op::Call(callee), &args, &results, loc);
                }
            }
        }
        chain.results = self.f.results.iter().filter_map(|v| map.get(v).copied()).collect();
        chain
    }

    fn kinds(&self) -> BTreeMap<ValueId, Kind> {
        let kind = |role: &Role| match role {
            Role::Input(_) => Kind::Input,
            Role::Param(_) => Kind::Param,
            Role::State(_) => Kind::State,
        };
        self.f.args.iter().copied().zip(self.entry.args.iter().map(kind)).collect()
    }

    /// The function of a segment: one for all segments of equal structure.
    fn function(&mut self, extracted: Extracted) -> FuncId {
        if let Some(&id) = self.made.get(&extracted.key) {
            return id;
        }
        let mut func = extracted.func;
        func.name = self.fresh_name();
        let id = self.out.funcs.push(func);
        self.made.insert(extracted.key, id);
        id
    }

    /// `part0`, `part1`, ... but never a name the user gave.
    fn fresh_name(&self) -> String {
        let mut n = self.made.len();
        loop {
            let name = format!("part{n}");
            if self.out.func_named(&name).is_none() && self.f.name != name {
                return name;
            }
            n += 1;
        }
    }

    fn push(
        &self,
        chain: &mut Func,
        map: &mut BTreeMap<ValueId, ValueId>,
        op: Op,
        args: &[ValueId],
        results: &[ValueId],
        loc: String,
    ) {
        let args = args.iter().filter_map(|v| map.get(v).copied()).collect();
        let mut new = Vec::with_capacity(results.len());
        for &v in results {
            let id = chain.values.push(self.f.values[v].clone());
            map.insert(v, id);
            new.push(id);
        }
        chain.insts.push(Inst { op, args, results: new, loc });
    }
}

#[cfg(test)]
mod tests;
