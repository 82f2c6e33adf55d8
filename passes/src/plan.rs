//! The plan file: how a model was partitioned, readable, comparable, and replayed with `--plan`.
//!
//! A plan names functions, instructions, parameters and states by their names and places in the model, never by internal
//! ids, and is checked against the model when it is replayed: a plan of another model, another mesh or another version is one
//! diagnostic, and a plan edited into something an op cannot do is refused at the instruction.

mod text;
mod unfold;

use crate::solve::{Assignment, FuncShardings, InstShardings, fits};
use pcc_ir::program::BatchPlan;
use pcc_ir::{Diagnostic, Func, FuncId, Mesh, Module, Op, Sharding, Type};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) use unfold::unfolded;

/// Version of the plan file; a plan of another version is refused.
pub const VERSION: u32 = 1;

/// How a model is partitioned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub version: u32,
    /// Name of the model, and how many parameters it has.
    pub model: String,
    pub parameters: u64,
    pub mesh: Mesh,
    /// Sequence parallelism.
    pub sp: bool,
    pub batch: BatchPlan,
    /// Calls of the chain in each pipeline stage, in order; empty when they are not cut yet.
    #[serde(default)]
    pub stages: Vec<usize>,
    pub funcs: Vec<FuncPlan>,
    pub params: Vec<StoredPlan>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<StoredPlan>,
}

/// The shardings of one function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FuncPlan {
    pub name: String,
    #[serde(with = "text::many")]
    pub args: Vec<Sharding>,
    pub insts: Vec<InstPlan>,
    #[serde(with = "text::many")]
    pub results: Vec<Sharding>,
}

/// How one instruction runs: what it needs of its operands, and how its results come out. Where a value comes out in another way
/// than it is needed, a reshard follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstPlan {
    pub op: String,
    /// Where in the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
    #[serde(with = "text::many")]
    pub needs: Vec<Sharding>,
    #[serde(with = "text::many")]
    pub gives: Vec<Sharding>,
}

/// How a parameter or a state is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredPlan {
    pub name: String,
    #[serde(with = "text::one")]
    pub sharding: Sharding,
}

impl Plan {
    /// The plan that an assignment is, without a stage cut.
    pub fn new(module: &Module, assignment: &Assignment, mesh: Mesh, sp: bool, batch: BatchPlan) -> Self {
        let named = |name: &str, s: &Sharding| StoredPlan { name: name.to_owned(), sharding: s.clone() };
        Self {
            version: VERSION,
            model: module.name.clone(),
            parameters: module.parameters(),
            mesh,
            sp,
            batch,
            stages: Vec::new(),
            funcs: assignment.funcs.iter().map(|(&id, s)| FuncPlan::new(&module.funcs[id], s)).collect(),
            params: module.params.values().zip(&assignment.params).map(|(p, s)| named(&p.name, s)).collect(),
            states: module.states.values().zip(&assignment.states).map(|(t, s)| named(&t.name, s)).collect(),
        }
    }

    /// Reads a plan file.
    ///
    /// Errors: no JSON, another version, not a plan, or one for no devices.
    pub fn from_json(text: &str) -> Result<Self, Diagnostic> {
        /// Read first, so that another version is told apart from a broken file.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let wrong = |e: serde_json::Error| Diagnostic::input("the plan cannot be read").why(e.to_string());
        let head: Head = serde_json::from_str(text).map_err(wrong)?;
        if head.version != VERSION {
            return Err(Diagnostic::input(format!("the plan is of version {}", head.version))
                .why(format!("this pcc reads version {VERSION}"))
                .help("compile the model again without --plan"));
        }
        let plan: Self = serde_json::from_str(text).map_err(wrong)?;
        plan.mesh.check().map_err(|why| {
            Diagnostic::input("the plan has no mesh of devices")
                .at("`mesh` of the plan")
                .why(why)
                .help("compile the model again without --plan")
        })?;
        Ok(plan)
    }

    /// The plan as JSON.
    ///
    /// Errors: it does not serialise, a fault of pcc.
    pub fn to_json(&self) -> Result<String, Diagnostic> {
        serde_json::to_string_pretty(self).map_err(|e| Diagnostic::internal(format!("the plan as JSON: {e}")))
    }

    /// The assignment the plan describes, for this module.
    ///
    /// Errors: the plan is of another model or mesh, or asks for what an op cannot do.
    pub fn assignment(&self, module: &Module, mesh: &Mesh, sp: bool) -> Result<Assignment, Diagnostic> {
        self.same_model(module)?;
        // A plan may name the layers of a folded model one by one.
        let named: BTreeSet<&str> = self.params.iter().map(|p| p.name.as_str()).collect();
        if module.params.values().any(|p| p.stack.is_some() && !named.contains(p.name.as_str())) {
            let assignment = self.assignment(&*module.expanded()?, mesh, sp)?;
            return unfold::folded(module, &assignment);
        }
        if (self.mesh, self.sp) != (*mesh, sp) {
            let text = |m: &Mesh, sp: bool| {
                let axes = pcc_ir::Axis::ALL.iter().filter(|a| m.size(**a) != 1);
                let mut words: Vec<String> = axes.map(|&a| format!("--{a} {}", m.size(a))).collect();
                words.extend(sp.then(|| "--sp".to_owned()));
                if words.is_empty() { "one device".to_owned() } else { words.join(" ") }
            };
            return Err(Diagnostic::input(format!("the plan is for {}", text(&self.mesh, self.sp)))
                .why(format!("the command asks for {}", text(mesh, sp)))
                .help("give the plan's own axes"));
        }
        // Functions of one name are told apart by their order.
        let mut by_name: BTreeMap<&str, VecDeque<FuncId>> = BTreeMap::new();
        for (id, f) in &module.funcs {
            by_name.entry(&f.name).or_default().push_back(id);
        }
        let mut funcs = BTreeMap::new();
        for plan in &self.funcs {
            let id = by_name.get_mut(plan.name.as_str()).and_then(VecDeque::pop_front);
            let id = id.ok_or_else(|| other_model(format!("the model has no function `{}`", plan.name)))?;
            funcs.insert(id, plan.shardings(module, id, mesh)?);
        }
        calls_agree(module, &funcs)?;
        let assignment = Assignment {
            params: stored(&self.params, module.params.values().map(|p| (p.name.as_str(), &p.ty)), mesh)?,
            states: stored(&self.states, module.states.values().map(|s| (s.name.as_str(), &s.ty)), mesh)?,
            funcs,
        };
        entries_agree(module, &assignment)?;
        Ok(assignment)
    }

    fn same_model(&self, module: &Module) -> Result<(), Diagnostic> {
        if self.model != module.name || self.parameters != module.parameters() {
            return Err(other_model(format!(
                "it is for `{}` of {} parameters, the model is `{}` of {}",
                self.model,
                self.parameters,
                module.name,
                module.parameters()
            )));
        }
        Ok(())
    }
}

impl FuncPlan {
    fn new(f: &Func, s: &FuncShardings) -> Self {
        let inst = |(inst, how): (&pcc_ir::Inst, &InstShardings)| InstPlan {
            op: inst.op.name().to_owned(),
            at: inst.loc.clone(),
            needs: how.needs.clone(),
            gives: how.gives.clone(),
        };
        Self {
            name: f.name.clone(),
            args: s.args.clone(),
            insts: f.insts.iter().zip(&s.insts).map(inst).collect(),
            results: s.results.clone(),
        }
    }

    fn shardings(&self, module: &Module, id: FuncId, mesh: &Mesh) -> Result<FuncShardings, Diagnostic> {
        let f = &module.funcs[id];
        let here = |i: usize, inst: &pcc_ir::Inst| format!("`{}` instruction {i} ({})", f.name, inst.loc);
        let same = self.args.len() == f.args.len()
            && self.results.len() == f.results.len()
            && self.insts.len() == f.insts.len()
            && f.insts.iter().zip(&self.insts).all(|(a, b)| {
                a.op.name() == b.op && a.args.len() == b.needs.len() && a.results.len() == b.gives.len()
            });
        if !same {
            return Err(other_model(format!("function `{}` has other instructions", f.name)));
        }
        let outer = self.args.iter().zip(&f.args).chain(self.results.iter().zip(&f.results));
        for (s, &v) in outer {
            fits(mesh, f.ty(v), s).map_err(|why| edited(&f.name, why))?;
        }
        for (i, (inst, plan)) in f.insts.iter().zip(&self.insts).enumerate() {
            let sides = plan.needs.iter().zip(&inst.args).chain(plan.gives.iter().zip(&inst.results));
            for (s, &v) in sides {
                fits(mesh, f.ty(v), s).map_err(|why| edited(&here(i, inst), why))?;
            }
            if !matches!(inst.op, Op::Call(_)) {
                follows(f, inst, plan).map_err(|why| edited(&here(i, inst), why))?;
            }
        }
        let insts =
            self.insts.iter().map(|p| InstShardings { needs: p.needs.clone(), gives: p.gives.clone() });
        Ok(FuncShardings { args: self.args.clone(), insts: insts.collect(), results: self.results.clone() })
    }
}

/// Whether the results' shardings follow from the operands' by the op's rule, partials included.
fn follows(f: &Func, inst: &pcc_ir::Inst, plan: &InstPlan) -> Result<(), String> {
    let args: Vec<&Type> = inst.args.iter().map(|&v| f.ty(v)).collect();
    let results: Vec<&Type> = inst.results.iter().map(|&v| f.ty(v)).collect();
    let rule = inst.op.rule(&args, &results);
    let (needs, gives): (Vec<&Sharding>, Vec<&Sharding>) =
        (plan.needs.iter().collect(), plan.gives.iter().collect());
    let split = rule
        .split_from(&needs, &gives)
        .ok_or_else(|| format!("`{}` cannot run with its dims split so", inst.op.name()))?;
    // Partial operands pass their partials on where the op is linear in them.
    let mut open: Vec<_> = needs.iter().flat_map(|n| n.partial.iter().copied()).collect();
    open.sort_unstable();
    open.dedup();
    let mut passed = Vec::new();
    for (axis, kind) in open {
        let kinds: Vec<_> = needs.iter().map(|n| n.partial.contains(&(axis, kind)).then_some(kind)).collect();
        match inst.op.partial_rule(&kinds) {
            Some(Some(result)) => passed.push((axis, result)),
            _ => return Err(format!("`{}` cannot take a partial operand here", inst.op.name())),
        }
    }
    for (i, give) in gives.iter().enumerate() {
        let mut expected = rule.result_sharding(i, &split).partial;
        expected.extend(passed.iter().copied());
        expected.sort_unstable();
        if give.partial != expected {
            return Err(format!("result {i} of `{}` is not partial over those axes", inst.op.name()));
        }
    }
    Ok(())
}

/// Calls hand over exactly what their callees take and give.
fn calls_agree(module: &Module, funcs: &BTreeMap<FuncId, FuncShardings>) -> Result<(), Diagnostic> {
    for (&id, s) in funcs {
        for (inst, how) in module.funcs[id].insts.iter().zip(&s.insts) {
            let Op::Call(callee) = inst.op else { continue };
            let name = &module.funcs[callee].name;
            let Some(inner) = funcs.get(&callee) else {
                return Err(other_model(format!("it says nothing of function `{name}`")));
            };
            if how.needs != inner.args || how.gives != inner.results {
                return Err(edited(
                    name,
                    "a call of it is sharded in another way than the function".to_owned(),
                ));
            }
        }
    }
    Ok(())
}

/// Entries take parameters and states as they are stored, alias states of equal sharding, and give nothing partial.
fn entries_agree(module: &Module, assignment: &Assignment) -> Result<(), Diagnostic> {
    for entry in &module.entries {
        let Some(s) = assignment.funcs.get(&entry.func) else {
            return Err(other_model(format!("it says nothing of entry `{}`", entry.name)));
        };
        for (have, role) in s.args.iter().zip(&entry.args) {
            let stored = match role {
                pcc_ir::graph::Role::Input(_) => continue,
                pcc_ir::graph::Role::Param(p) => assignment.params.get(p.as_u32() as usize),
                pcc_ir::graph::Role::State(t) => assignment.states.get(t.as_u32() as usize),
            };
            if stored != Some(have) {
                return Err(edited(
                    &entry.name,
                    "an argument is sharded in another way than it is stored".into(),
                ));
            }
        }
        if entry.aliases.iter().any(|&(a, r)| s.args.get(a) != s.results.get(r)) {
            return Err(edited(&entry.name, "a state comes back in another sharding than it went in".into()));
        }
        if s.results.iter().any(|r| !r.partial.is_empty()) {
            return Err(edited(&entry.name, "a result is left partial".into()));
        }
    }
    Ok(())
}

fn stored<'a>(
    plan: &[StoredPlan],
    have: impl Iterator<Item = (&'a str, &'a Type)>,
    mesh: &Mesh,
) -> Result<Vec<Sharding>, Diagnostic> {
    let by_name: BTreeMap<&str, &Sharding> = plan.iter().map(|p| (p.name.as_str(), &p.sharding)).collect();
    have.map(|(name, ty)| {
        let s = *by_name.get(name).ok_or_else(|| other_model(format!("it says nothing of `{name}`")))?;
        fits(mesh, ty, s).map_err(|why| edited(name, why))?;
        Ok(s.clone())
    })
    .collect()
}

fn other_model(why: String) -> Diagnostic {
    Diagnostic::input("the plan is of another model")
        .why(why)
        .help("compile without --plan to make a plan for this model")
}

fn edited(place: &str, why: String) -> Diagnostic {
    Diagnostic::input("the plan asks for what cannot be done").at(place).why(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign_shardings::assign_shardings;
    use crate::cost::Cluster;
    use crate::solve::models::{LLAMA_7B, SMOLLM, llama, mlp};
    use crate::solve::{Options, solve};

    const BATCH: BatchPlan = BatchPlan { batch: 2, replicas: 1, micro_batches: 1 };

    #[test]
    fn a_plan_for_no_devices_is_refused() {
        let module = mlp(8, 64, 256, 2, false);
        let o = Options::new(Mesh { tp: 2, ..Mesh::default() });
        let text = plan(&module, &o).0.to_json().unwrap();
        let none = text.replace("\"tp\": 2", "\"tp\": 0");
        assert_ne!(text, none);
        assert!(Plan::from_json(&text).is_ok());
        assert!(Plan::from_json(&none).unwrap_err().what.contains("mesh"));
    }

    fn plan(module: &Module, o: &Options) -> (Plan, Assignment) {
        let assignment = solve(module, o).unwrap().assignment;
        (Plan::new(module, &assignment, o.mesh, o.sp, BATCH), assignment)
    }

    #[test]
    fn a_replayed_plan_gives_the_same_module() {
        for (z, tp, sp) in [(SMOLLM, 9, false), (SMOLLM, 8, true), (LLAMA_7B, 8, false)] {
            let module = llama(&z, true, true);
            let o = Options { sp, ..Options::new(Mesh { tp, dp: 2, ..Mesh::default() }) };
            let (made, assignment) = plan(&module, &o);
            let read = Plan::from_json(&made.to_json().unwrap()).unwrap();
            assert_eq!(read, made);
            let replayed = read.assignment(&module, &o.mesh, sp).unwrap();
            assert_eq!(replayed, assignment);
            let c = Cluster::a100();
            assert_eq!(
                assign_shardings(&module, &replayed, &o.mesh, &c).unwrap(),
                assign_shardings(&module, &assignment, &o.mesh, &c).unwrap()
            );
        }
    }

    #[test]
    fn a_plan_of_another_model_mesh_or_version_is_refused() {
        let module = mlp(8, 64, 256, 2, false);
        let o = Options::new(Mesh { tp: 4, ..Mesh::default() });
        let (made, _) = plan(&module, &o);
        let e = made.assignment(&mlp(8, 64, 256, 3, false), &o.mesh, false).unwrap_err();
        assert_eq!(e.what, "the plan is of another model");
        let e = made.assignment(&module, &Mesh { tp: 2, ..Mesh::default() }, false).unwrap_err();
        assert!(e.what.contains("--tp 4") && e.why.unwrap().contains("--tp 2"));
        let json = made.to_json().unwrap().replace("\"version\": 1", "\"version\": 9");
        assert!(Plan::from_json(&json).unwrap_err().what.contains("version 9"));
        assert!(Plan::from_json("{").is_err());
    }

    #[test]
    fn an_edited_plan_is_refused_at_the_instruction() {
        let module = mlp(8, 64, 256, 2, false);
        let o = Options::new(Mesh { tp: 4, ..Mesh::default() });
        let (made, _) = plan(&module, &o);
        // Claiming the row-parallel product is whole would drop its reduction.
        let mut lying = made.clone();
        let inst = lying.funcs[0].insts.iter_mut().find(|i| !i.gives[0].partial.is_empty()).unwrap();
        inst.gives[0].partial.clear();
        let e = lying.assignment(&module, &o.mesh, false).unwrap_err();
        assert!(e.why.unwrap().contains("partial"));
        let mut lying = made.clone();
        lying.params[0].sharding = Sharding::replicated(2);
        assert!(lying.assignment(&module, &o.mesh, false).is_err());
        let mut lying = made;
        lying.params[0].sharding = Sharding::replicated(3);
        assert!(lying.assignment(&module, &o.mesh, false).is_err());
    }
}
