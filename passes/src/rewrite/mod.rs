//! Fewer and cheaper collectives, by equality saturation, once per function instance.
//!
//! egg sees collectives, shard slices and linear ops (see `language`); everything else is an opaque leaf. For example, in a block
//! whose attention and MLP read one input,
//!
//! ```text
//! a = all_reduce(attn)  b = all_reduce(mlp)  y = x + a + b
//! ```
//!
//! becomes
//!
//! ```text
//! p = attn + mlp        c = all_reduce(p)    y = x + c
//! ```
//!
//! A function is replaced only when its modelled time decreases. A value that no value of the sharded function stands for (`p` above)
//! claims a sum of terms.

mod extract;
mod language;
mod rebuild;
mod rules;

#[cfg(test)]
mod tests;

use crate::cost::Cluster;
use crate::partition::op_time;
use egg::{Id, Language, Runner, SimpleScheduler};
use extract::{Choice, Extractor};
use language::{Dist, Facts, Graph, Opaque, Placement, add_op, is_seen, op_of, operands};
use pcc_ir::{Diagnostic, Func, Inst, Mesh, Module, Op, Term, ValueId};
use rebuild::rebuild;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Iterations of all rules, and nodes of the graph, after which saturation stops. Real layers saturate far below.
const ITERATIONS: usize = 12;
const NODES: usize = 4_000;

/// What became of one function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FuncRewrite {
    pub name: String,
    /// Modelled seconds of collectives, slices and linear ops, before and after.
    pub before: f64,
    pub after: f64,
    /// Why saturation stopped, in words.
    pub stop: String,
    /// Nodes of the saturated graph.
    pub nodes: usize,
    /// The extracted terms cost at most this much (seconds) more than the cheapest in the graph.
    pub gap: f64,
}

/// Rewrites the collectives of every function of a local module; `sharded` is the module it was partitioned from.
///
/// # Errors
/// A diagnostic of fault `Internal` when a value has no claim.
pub fn rewrite_collectives(local: &mut Module, sharded: &Module) -> Result<Vec<FuncRewrite>, Diagnostic> {
    let mut reports = Vec::new();
    let model = Model { cluster: Cluster::a100(), mesh: local.mesh };
    for (id, func) in local.funcs.iter_mut() {
        if !func.insts.iter().any(|i| matches!(i.op, Op::Collective(_))) {
            continue;
        }
        let global = sharded
            .funcs
            .get(id)
            .ok_or_else(|| Diagnostic::internal(format!("function {} is in no sharded module", func.name)))?;
        // Time stands still: results must not depend on the machine's speed, and egg's clock would be calibrated first.
        let (clock, _) = quanta::Clock::mock();
        let (report, new) = quanta::with_clock(&clock, || model.rewrite(func, global))?;
        reports.push(report);
        if let Some(new) = new {
            *func = new;
        }
    }
    Ok(reports)
}

/// What times are modelled on.
struct Model {
    cluster: Cluster,
    mesh: Mesh,
}

impl Model {
    fn rewrite(&self, func: &Func, global: &Func) -> Result<(FuncRewrite, Option<Func>), Diagnostic> {
        let Seen { graph, class_of, opaque } = see(func, global)?;
        let runner = Runner::<_, _, ()>::new(Placement::default())
            .with_egraph(graph)
            .with_scheduler(SimpleScheduler)
            .with_iter_limit(ITERATIONS)
            .with_node_limit(NODES)
            .run(&rules::rules());
        let stop = runner.stop_reason.as_ref().map_or("not run".to_owned(), |r| format!("{r:?}"));
        let mut graph = runner.egraph;
        hand_terms_down(&mut graph);
        let class_of = class_of.into_iter().map(|(v, id)| (v, graph.find(id))).collect();
        let seen = Seen { graph, class_of, opaque };
        let extractor = Extractor::new(&seen.graph, &self.cluster, &self.mesh);
        let found = extractor.extract(&seen.roots(func), &seen.current(func));
        let before = self.seconds(func);
        let nodes = seen.graph.total_number_of_nodes();
        let name = func.name.clone();
        let mut report = FuncRewrite { name, before, after: before, stop, nodes, gap: found.gap };
        // A billionth less is no gain but rounding.
        let new = rebuild(func, &seen, &found.choice).filter(|f| self.seconds(f) < before * (1.0 - 1e-9));
        if let Some(new) = &new {
            report.after = self.seconds(new);
        }
        Ok((report, new))
    }

    /// Modelled seconds of what egg sees of a function.
    fn seconds(&self, func: &Func) -> f64 {
        let of = |i: &Inst| {
            let reads: Vec<_> = i.args.iter().map(|&v| func.ty(v)).collect();
            op_time(&self.cluster, &self.mesh, &i.op, &reads, func.ty(i.results[0]))
        };
        func.insts.iter().filter(|i| is_seen(&i.op) && i.results.len() == 1).map(of).sum()
    }
}

/// A function as egg sees it.
struct Seen {
    graph: Graph,
    class_of: HashMap<ValueId, Id>,
    /// Values that are leaves: arguments and results of ops that the language has not.
    opaque: HashSet<ValueId>,
}

impl Seen {
    /// Whether egg sees the op of an instruction.
    fn has(&self, inst: &Inst) -> bool {
        inst.results.iter().all(|v| !self.opaque.contains(v))
    }

    /// The classes that opaque ops and the caller read.
    fn roots(&self, func: &Func) -> Vec<Id> {
        let opaque = func.insts.iter().filter(|i| !self.has(i));
        let read = opaque.flat_map(|i| &i.args).chain(&func.results);
        let mut roots: Vec<Id> = read.filter_map(|v| self.class_of.get(v).copied()).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// The function as it is, as a choice: of equal values the first, so it is acyclic.
    fn current(&self, func: &Func) -> Choice {
        let graph = &self.graph;
        let mut choice = Choice::new();
        for (i, facts) in graph.analysis.leaves.iter().enumerate() {
            if let Some(id) = facts.original.and_then(|v| self.class_of.get(&v)) {
                choice.entry(*id).or_insert(Dist::Opaque(Opaque(i as u32)));
            }
        }
        for inst in func.insts.iter().filter(|i| self.has(i)) {
            let args: Option<Vec<Id>> = inst.args.iter().map(|v| self.class_of.get(v).copied()).collect();
            let class = inst.results.first().and_then(|v| self.class_of.get(v));
            let (Some(args), Some(&id)) = (args, class) else { continue };
            let mut nodes = graph[id].nodes.iter().map(|n| n.clone().map_children(|c| graph.find(c)));
            let node = nodes.find(|n| operands(n) == args && op_of(graph, n).as_ref() == Some(&inst.op));
            if let (Some(node), false) = (node, choice.contains_key(&id)) {
                choice.insert(id, node);
            }
        }
        choice
    }
}

/// Brings a function into an e-graph.
fn see(func: &Func, global: &Func) -> Result<Seen, Diagnostic> {
    let mut seen =
        Seen { graph: Graph::new(Placement::default()), class_of: HashMap::new(), opaque: HashSet::new() };
    for &v in &func.args {
        seen.leaf(v, known(func, global, v)?);
    }
    for inst in &func.insts {
        let args: Option<Vec<Id>> = inst.args.iter().map(|v| seen.class_of.get(v).copied()).collect();
        let args = args.filter(|_| is_seen(&inst.op) && inst.results.len() == 1);
        for &v in &inst.results {
            let known = known(func, global, v)?;
            let placed =
                args.as_ref().and_then(|args| add_op(&mut seen.graph, &inst.op, args)).filter(|&id| {
                    let made = seen.graph[id].data.as_ref();
                    made.is_some_and(|f| f.same_layout(&known) && f.dtype == known.dtype)
                });
            match placed {
                Some(id) => {
                    if seen.graph[id].data.as_ref().is_some_and(|f| f.original.is_none()) {
                        seen.graph.set_analysis_data(id, Some(known));
                    }
                    seen.class_of.insert(v, id);
                }
                None => seen.leaf(v, known),
            }
        }
    }
    seen.graph.rebuild();
    Ok(seen)
}

impl Seen {
    fn leaf(&mut self, v: ValueId, facts: Facts) {
        self.graph.analysis.leaves.push(facts);
        let index = self.graph.analysis.leaves.len() - 1;
        let id = self.graph.add(Dist::Opaque(Opaque(index as u32)));
        self.class_of.insert(v, id);
        self.opaque.insert(v);
    }
}

/// What a value's claim says of it.
fn known(func: &Func, global: &Func, v: ValueId) -> Result<Facts, Diagnostic> {
    let missing = || {
        Diagnostic::internal(format!("value {v} of {} has no claim about the sharded function", func.name))
    };
    let value = func.values.get(v).ok_or_else(missing)?;
    let claim = value.claim.as_ref().ok_or_else(missing)?;
    let mut term = &claim.term;
    while let Term::Sum(terms) = term {
        term = terms.first().ok_or_else(missing)?;
    }
    let Term::Value(g) = term else { return Err(missing()) };
    let shape = global.values.get(*g).ok_or_else(missing)?.ty.shape.clone();
    let (dtype, sharding) = (value.ty.dtype, claim.sharding.clone());
    Ok(Facts { dtype, shape, sharding, term: Some(claim.term.clone()), original: Some(v) })
}

/// A collective keeps the value: a class under one stands for what that one stands for.
fn hand_terms_down(graph: &mut Graph) {
    loop {
        let mut found = Vec::new();
        for class in graph.classes() {
            let Some(term) = class.data.as_ref().and_then(|f| f.term.clone()) else { continue };
            for node in class.iter().filter(|n| keeps_value(n)) {
                let below = operands(node).iter().map(|&c| graph.find(c));
                found.extend(below.filter(|&c| improves(graph, c, &term)).map(|c| (c, term.clone())));
            }
        }
        if found.is_empty() {
            return;
        }
        for (id, term) in found {
            if let Some(mut facts) = graph[id].data.clone().filter(|_| improves(graph, id, &term)) {
                facts.term = Some(term);
                graph.set_analysis_data(id, Some(facts));
            }
        }
        graph.rebuild();
    }
}

fn keeps_value(node: &Dist) -> bool {
    use Dist::*;
    matches!(node, AllReduce(_) | AllGather(_) | ReduceScatter(_) | AllToAll(_) | Slice(_))
}

/// Whether a term says more than what is known of a class.
fn improves(graph: &Graph, id: Id, term: &Term) -> bool {
    let known = graph[id].data.as_ref().map(|f| &f.term);
    known.is_some_and(|known| match known {
        None => true,
        Some(Term::Sum(_)) => matches!(term, Term::Value(_)),
        Some(Term::Value(_)) => false,
    })
}
