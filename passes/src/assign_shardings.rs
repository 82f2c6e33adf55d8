//! Graph level to sharded level: writes an [`Assignment`] into the module.
//!
//! Every value gets its sharding, and where a user of a value needs another one than it is made with, a `reshard` stands
//! between, shared by all users that need the same:
//!
//! ```text
//! %4 = dot %3, %w2            : [{dp}, {}, {}] partial{tp sum}
//! %5 = reshard %4             : [{dp}, {}, {}]
//! %6 = add %0, %5             : [{dp}, {}, {}]
//! ```
//!
//! Values keep their ids; reshards append new ones. Erasing the reshards gives the graph level back.

use crate::cost::{Cluster, reshard_time};
use crate::solve::{Assignment, FuncShardings};
use pcc_ir::{Diagnostic, Func, Inst, Mesh, Module, Op, Sharding, Value, ValueId};
use std::collections::BTreeMap;

/// Distinct needs of one value up to which every order of making them is tried.
const ORDERED: usize = 5;

/// Writes shardings and reshards into a copy of `module`. Functions that no entry reaches are left as they are.
///
/// Errors: the assignment is of another module (counts or ranks differ), or needs a reshard that cannot be made.
pub fn assign_shardings(
    module: &Module,
    assignment: &Assignment,
    mesh: &Mesh,
    cluster: &Cluster,
) -> Result<Module, Diagnostic> {
    let mut out = module.clone();
    out.mesh = *mesh;
    if assignment.params.len() != module.params.len() || assignment.states.len() != module.states.len() {
        return Err(Diagnostic::internal("the shardings are of another module"));
    }
    for (param, s) in out.params.values_mut().zip(&assignment.params) {
        param.sharding = Some(s.clone());
    }
    for (state, s) in out.states.values_mut().zip(&assignment.states) {
        state.sharding = Some(s.clone());
    }
    for (&id, shardings) in &assignment.funcs {
        let f = module
            .funcs
            .get(id)
            .ok_or_else(|| Diagnostic::internal("the shardings are of another module"))?;
        out.funcs[id] = Emitter::new(f, shardings, mesh, cluster)?.emit(f, shardings)?;
    }
    Ok(out)
}

struct Emitter<'a> {
    func: Func,
    mesh: &'a Mesh,
    cluster: &'a Cluster,
    /// How each value is made.
    made: BTreeMap<ValueId, Sharding>,
    /// For each sharding wanted of a value: the sharding it is resharded from.
    parents: BTreeMap<(ValueId, Sharding), Sharding>,
    /// Values that exist already.
    have: BTreeMap<(ValueId, Sharding), ValueId>,
    /// Where values come from, for messages.
    locs: BTreeMap<ValueId, String>,
}

impl<'a> Emitter<'a> {
    fn new(f: &Func, s: &FuncShardings, mesh: &'a Mesh, cluster: &'a Cluster) -> Result<Self, Diagnostic> {
        let wrong = || Diagnostic::internal("the shardings do not fit the function").at(f.name.clone());
        let shaped = s.args.len() == f.args.len()
            && s.insts.len() == f.insts.len()
            && s.results.len() == f.results.len()
            && f.insts.iter().zip(&s.insts).all(|(inst, how)| {
                how.needs.len() == inst.args.len() && how.gives.len() == inst.results.len()
            });
        if !shaped {
            return Err(wrong());
        }
        let mut made: BTreeMap<ValueId, Sharding> =
            f.args.iter().copied().zip(s.args.iter().cloned()).collect();
        let mut wants: BTreeMap<ValueId, Vec<Sharding>> = BTreeMap::new();
        let mut locs = BTreeMap::new();
        for (inst, how) in f.insts.iter().zip(&s.insts) {
            made.extend(inst.results.iter().copied().zip(how.gives.iter().cloned()));
            locs.extend(inst.results.iter().map(|&v| (v, inst.loc.clone())));
            for (&v, need) in inst.args.iter().zip(&how.needs) {
                wants.entry(v).or_default().push(need.clone());
            }
        }
        for (&v, need) in f.results.iter().zip(&s.results) {
            wants.entry(v).or_default().push(need.clone());
        }
        let mut func = f.clone();
        func.insts.clear();
        let mut e = Self { func, mesh, cluster, made, parents: BTreeMap::new(), have: BTreeMap::new(), locs };
        for (v, wants) in wants {
            e.route(v, wants).ok_or_else(wrong)?;
        }
        for (v, s) in &e.made {
            if s.dims.len() != f.ty(*v).rank() {
                return Err(wrong());
            }
            e.func.values[*v].sharding = Some(s.clone());
        }
        Ok(e)
    }

    /// Decides from what each wanted sharding of `v` is made, so that the sum is least: each from the cheapest of those
    /// made before it, in the best order.
    fn route(&mut self, v: ValueId, wants: Vec<Sharding>) -> Option<()> {
        let made = self.made.get(&v)?.clone();
        let mut distinct: Vec<Sharding> = Vec::new();
        for s in wants {
            if s != made && !distinct.contains(&s) {
                distinct.push(s);
            }
        }
        let ty = self.func.ty(v).clone();
        let n = distinct.len();
        let all: Vec<&Sharding> = std::iter::once(&made).chain(&distinct).collect();
        if all.iter().any(|s| s.dims.len() != ty.rank()) {
            return None;
        }
        let time = |from: usize, to: usize| {
            reshard_time(self.cluster, self.mesh, &ty, all[from], all[to]).unwrap_or(f64::INFINITY)
        };
        let times: Vec<Vec<f64>> = (0..=n).map(|i| (0..=n).map(|j| time(i, j)).collect()).collect();
        let orders = if n <= ORDERED { permutations(n) } else { vec![(1..=n).collect()] };
        let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
        for order in orders {
            let mut before = vec![0];
            let mut tree = Vec::new();
            let mut total = 0.0;
            for to in order {
                let from = *before.iter().min_by(|a, b| times[**a][to].total_cmp(&times[**b][to]))?;
                total += times[from][to];
                tree.push((from, to));
                before.push(to);
            }
            if best.as_ref().is_none_or(|b| total < b.0) {
                best = Some((total, tree));
            }
        }
        let (total, tree) = best?;
        if !total.is_finite() {
            return None;
        }
        for (from, to) in tree {
            self.parents.insert((v, all[to].clone()), all[from].clone());
        }
        Some(())
    }

    fn emit(mut self, f: &Func, s: &FuncShardings) -> Result<Func, Diagnostic> {
        for (inst, how) in f.insts.iter().zip(&s.insts) {
            let args = inst.args.iter().zip(&how.needs).map(|(&v, need)| self.laid_out(v, need, &inst.loc));
            let args = args.collect::<Result<Vec<_>, _>>()?;
            self.func.insts.push(Inst { args, ..inst.clone() });
        }
        let results = f.results.iter().zip(&s.results).map(|(&v, need)| self.laid_out(v, need, ""));
        self.func.results = results.collect::<Result<Vec<_>, _>>()?;
        Ok(self.func)
    }

    /// The value that is `v` in the wanted sharding, made now if it does not exist. The reshard is located at the producer,
    /// or at the user when the value is an argument.
    fn laid_out(&mut self, v: ValueId, need: &Sharding, user: &str) -> Result<ValueId, Diagnostic> {
        let key = (v, need.clone());
        if self.made.get(&v) == Some(need) {
            return Ok(v);
        }
        if let Some(&have) = self.have.get(&key) {
            return Ok(have);
        }
        let parent = self.parents.get(&key).cloned();
        let parent = parent.ok_or_else(|| Diagnostic::internal("a reshard was not planned").at(user))?;
        let from = self.laid_out(v, &parent, user)?;
        let old = &self.func.values[v];
        let value = Value {
            name: old.name.clone(),
            labels: old.labels.clone(),
            sharding: Some(need.clone()),
            ..Value::new(old.ty.clone())
        };
        let id = self.func.values.push(value);
        let loc = self.locs.get(&v).cloned().unwrap_or_else(|| user.to_owned());
        self.func.insts.push(Inst {
            op: Op::Reshard(need.clone()),
            args: vec![from],
            results: vec![id],
            loc,
        });
        self.have.insert(key, id);
        Ok(id)
    }
}

/// All orders of `1..=n`, lexicographic.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        all = all
            .into_iter()
            .flat_map(|p: Vec<usize>| {
                (1..=n).filter(|i| !p.contains(i)).map(|i| [&p[..], &[i]].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    all
}
