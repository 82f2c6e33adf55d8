//! What the solver knows of a module before it chooses: which dims belong together, which values are the same thing at
//! both sides of a call, and what the user's labels say.
//!
//! **Dim classes.** Dims of values that one factor joins, other than by reducing, are one class, across calls too: the hidden
//! dim of all residuals of a model and of their norms, its batch dim, the kv heads of a layer's projections, rope and
//! attention. Labels
//! (batch, sequence) come on the entries' inputs and hold for whole classes.
//!
//! **Slots.** The arguments and results of functions that calls connect carry one sharding: a slot. A slot holds a
//! parameter or a state (its sharding is a variable), a value passed from call to call or given by the user (its
//! sharding follows from the labels), or a result that only leaves the entry (free).

use super::unite::Classes;
use pcc_ir::graph::{Label, Role};
use pcc_ir::rule::FactorKind;
use pcc_ir::{Diagnostic, FactorId, Func, FuncId, InstId, Module, Op, Rule, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// What a slot holds, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotKind {
    /// Leaves the entry and nothing else.
    Free,
    /// Given by the user.
    Input,
    Param,
    /// Made by one call and used by another.
    Chain,
    State,
}

/// One argument or result of a leaf function, or of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Port {
    Arg(FuncId, usize),
    Result(FuncId, usize),
    Value(FuncId, ValueId),
    Param(usize),
    State(usize),
}

/// The analysed module.
pub struct Structure {
    /// Functions without calls that some entry reaches, with the weight of their cost: calls times entry weights.
    pub leaves: BTreeMap<FuncId, f64>,
    /// The rule of each instruction of each leaf.
    pub rules: BTreeMap<FuncId, Vec<Rule>>,
    dims: Classes,
    dim_base: BTreeMap<FuncId, Vec<usize>>,
    factor_base: BTreeMap<FuncId, Vec<usize>>,
    labels: BTreeMap<usize, Label>,
    stream: BTreeSet<usize>,
    /// The classes of the dims of each chain value.
    chains: BTreeSet<Vec<usize>>,
    /// For classes with a dim of a parameter or state: where, to order factors the same in all functions.
    stored: BTreeMap<usize, (usize, usize)>,
    slots: Classes,
    ports: BTreeMap<Port, usize>,
    kinds: BTreeMap<usize, SlotKind>,
    slot_types: BTreeMap<usize, (FuncId, ValueId)>,
}

impl Structure {
    pub fn of(module: &Module) -> Result<Self, Diagnostic> {
        let leaves = leaves(module)?;
        let mut s = Self {
            rules: leaves.keys().map(|&f| (f, rules(&module.funcs[f]))).collect(),
            leaves,
            dims: Classes::default(),
            dim_base: BTreeMap::new(),
            factor_base: BTreeMap::new(),
            labels: BTreeMap::new(),
            stream: BTreeSet::new(),
            chains: BTreeSet::new(),
            stored: BTreeMap::new(),
            slots: Classes::default(),
            ports: BTreeMap::new(),
            kinds: BTreeMap::new(),
            slot_types: BTreeMap::new(),
        };
        s.join_dims(module);
        s.spread_labels(module);
        s.join_slots(module);
        s.find_streams(module);
        Ok(s)
    }

    /// Class of a dim of a value.
    pub fn dim(&mut self, func: FuncId, v: ValueId, dim: usize) -> usize {
        let node = self.dim_base[&func][value_index(v)] + dim;
        self.dims.find(node)
    }

    /// Class of a factor of an instruction.
    pub fn factor(&mut self, func: FuncId, inst: InstId, f: FactorId) -> usize {
        let node = self.factor_base[&func][inst] + f;
        self.dims.find(node)
    }

    pub fn label(&self, class: usize) -> Option<Label> {
        self.labels.get(&class).copied()
    }

    /// Whether the class belongs to what is carried from call to call, and is neither batch nor sequence.
    pub fn is_stream(&self, class: usize) -> bool {
        self.stream.contains(&class)
    }

    /// A key that orders classes alike in all functions that share tensors: classes of stored tensors' dims first.
    pub fn order(&self, class: usize) -> (usize, usize, usize) {
        self.stored.get(&class).map_or((1, class, 0), |&(tensor, dim)| (0, tensor, dim))
    }

    pub fn arg_slot(&mut self, func: FuncId, i: usize) -> usize {
        self.port(Port::Arg(func, i))
    }

    pub fn result_slot(&mut self, func: FuncId, i: usize) -> usize {
        self.port(Port::Result(func, i))
    }

    /// The slot of a value of an entry that consists of calls.
    pub fn value_slot(&mut self, func: FuncId, v: ValueId) -> usize {
        self.port(Port::Value(func, v))
    }

    pub fn param_slot(&mut self, param: usize) -> usize {
        self.port(Port::Param(param))
    }

    pub fn state_slot(&mut self, state: usize) -> usize {
        self.port(Port::State(state))
    }

    pub fn kind(&self, slot: usize) -> SlotKind {
        self.kinds.get(&slot).copied().unwrap_or(SlotKind::Free)
    }

    /// A value that the slot holds, for its type and labels.
    pub fn example(&self, slot: usize) -> Option<(FuncId, ValueId)> {
        self.slot_types.get(&slot).copied()
    }

    fn port(&mut self, p: Port) -> usize {
        let slots = &mut self.slots;
        let node = *self.ports.entry(p).or_insert_with(|| slots.extend(1));
        self.slots.find(node)
    }

    /// Unites dims through the factors of ops and through calls.
    fn join_dims(&mut self, module: &Module) {
        for (&func, rules) in &self.rules {
            let f = &module.funcs[func];
            let values = dim_nodes(&mut self.dims, f);
            let factors: Vec<usize> = rules.iter().map(|r| self.dims.extend(r.factors.len())).collect();
            for ((inst, rule), &base) in f.insts.iter().zip(rules).zip(&factors) {
                for (&v, dims) in sides(inst, rule) {
                    for (d, fs) in dims.iter().enumerate() {
                        if let [only] = fs[..]
                            && !matches!(rule.factors[only].kind, FactorKind::Reduce(_))
                        {
                            self.dims.unite(values[value_index(v)] + d, base + only);
                        }
                    }
                }
            }
            self.dim_base.insert(func, values);
            self.factor_base.insert(func, factors);
        }
        let mut tensors: BTreeMap<(bool, usize), (FuncId, ValueId)> = BTreeMap::new();
        for entry in &module.entries {
            let f = &module.funcs[entry.func];
            if !self.dim_base.contains_key(&entry.func) {
                let values = dim_nodes(&mut self.dims, f);
                self.dim_base.insert(entry.func, values);
            }
            for inst in &f.insts {
                let Op::Call(callee) = inst.op else { continue };
                let inner = &module.funcs[callee];
                for (&a, &b) in
                    inst.args.iter().zip(&inner.args).chain(inst.results.iter().zip(&inner.results))
                {
                    self.unite_value((entry.func, a), (callee, b), f.ty(a).rank());
                }
            }
            for (&v, role) in f.args.iter().zip(&entry.args) {
                let key = match role {
                    Role::Input(_) => continue,
                    Role::Param(p) => (false, p.as_u32() as usize),
                    Role::State(s) => (true, s.as_u32() as usize),
                };
                let first = *tensors.entry(key).or_insert((entry.func, v));
                self.unite_value(first, (entry.func, v), f.ty(v).rank());
            }
        }
        for (i, &(func, v)) in tensors.values().enumerate() {
            for d in 0..module.funcs[func].ty(v).rank() {
                let class = self.dim(func, v, d);
                self.stored.entry(class).or_insert((i, d));
            }
        }
    }

    fn unite_value(&mut self, a: (FuncId, ValueId), b: (FuncId, ValueId), rank: usize) {
        let (na, nb) = (self.dim_base[&a.0][value_index(a.1)], self.dim_base[&b.0][value_index(b.1)]);
        for d in 0..rank {
            self.dims.unite(na + d, nb + d);
        }
    }

    /// Labels classes from the labelled values, and lets labels pass between a compound dim and its major factor.
    fn spread_labels(&mut self, module: &Module) {
        for func in self.dim_base.keys().copied().collect::<Vec<_>>() {
            for (v, value) in &module.funcs[func].values {
                for (d, label) in value.labels.iter().enumerate().take(value.ty.rank()) {
                    let Some(label) = *label else { continue };
                    let class = self.dim(func, v, d);
                    self.set_label(class, label);
                }
            }
        }
        let mut compound: Vec<(usize, usize)> = Vec::new();
        for (&func, rules) in &self.rules {
            for (i, (inst, rule)) in module.funcs[func].insts.iter().zip(rules).enumerate() {
                for (&v, dims) in sides(inst, rule) {
                    for (d, fs) in dims.iter().enumerate().filter(|(_, fs)| fs.len() > 1) {
                        compound.push((
                            self.dim_base[&func][value_index(v)] + d,
                            self.factor_base[&func][i] + fs[0],
                        ));
                    }
                }
            }
        }
        // Each round labels at least one class or is the last.
        loop {
            let mut changed = false;
            for &(a, b) in &compound {
                let (a, b) = (self.dims.find(a), self.dims.find(b));
                match (self.label(a), self.label(b)) {
                    (Some(l), None) => changed |= self.set_label(b, l),
                    (None, Some(l)) => changed |= self.set_label(a, l),
                    _ => {}
                }
            }
            if !changed {
                break;
            }
        }
    }

    /// Batch wins where a class has both labels.
    fn set_label(&mut self, class: usize, label: Label) -> bool {
        match self.labels.get(&class) {
            None | Some(Label::Seq) if self.labels.get(&class) != Some(&label) => {
                self.labels.insert(class, label);
                true
            }
            _ => false,
        }
    }

    /// Unites ports through calls, and says what each slot holds.
    fn join_slots(&mut self, module: &Module) {
        let mut held: Vec<(usize, SlotKind)> = Vec::new();
        for entry in &module.entries {
            let f = &module.funcs[entry.func];
            let leaf = self.leaves.contains_key(&entry.func);
            let made: BTreeSet<ValueId> = f.insts.iter().flat_map(|i| i.results.iter().copied()).collect();
            for inst in f.insts.iter().filter(|_| !leaf) {
                let Op::Call(callee) = inst.op else { continue };
                for (i, &a) in inst.args.iter().enumerate() {
                    let slot = self.link(Port::Value(entry.func, a), Port::Arg(callee, i), (entry.func, a));
                    if made.contains(&a) {
                        held.push((slot, SlotKind::Chain));
                    }
                }
                for (i, &r) in inst.results.iter().enumerate() {
                    self.link(Port::Value(entry.func, r), Port::Result(callee, i), (entry.func, r));
                }
            }
            let arg_port =
                |i: usize| if leaf { Port::Arg(entry.func, i) } else { Port::Value(entry.func, f.args[i]) };
            let result_port = |i: usize| {
                if leaf { Port::Result(entry.func, i) } else { Port::Value(entry.func, f.results[i]) }
            };
            for (i, role) in entry.args.iter().enumerate().take(f.args.len()) {
                let (port, kind) = match role {
                    Role::Input(_) => (arg_port(i), SlotKind::Input),
                    Role::Param(p) => (Port::Param(p.as_u32() as usize), SlotKind::Param),
                    Role::State(s) => (Port::State(s.as_u32() as usize), SlotKind::State),
                };
                let slot = self.link(arg_port(i), port, (entry.func, f.args[i]));
                held.push((slot, kind));
            }
            for (i, &r) in f.results.iter().enumerate() {
                self.link(result_port(i), result_port(i), (entry.func, r));
            }
            for &(a, r) in &entry.aliases {
                if a < f.args.len() && r < f.results.len() {
                    self.link(arg_port(a), result_port(r), (entry.func, f.args[a]));
                }
            }
        }
        for (node, kind) in held {
            let slot = self.slots.find(node);
            let k = self.kinds.entry(slot).or_insert(kind);
            *k = (*k).max(kind);
        }
        let examples = std::mem::take(&mut self.slot_types);
        for (node, example) in examples {
            let slot = self.slots.find(node);
            self.slot_types.entry(slot).or_insert(example);
        }
    }

    fn link(&mut self, a: Port, b: Port, example: (FuncId, ValueId)) -> usize {
        let (a, b) = (self.port(a), self.port(b));
        self.slots.unite(a, b);
        let slot = self.slots.find(a);
        self.slot_types.entry(slot).or_insert(example);
        slot
    }

    /// Whether a value has the dims of what is carried from call to call: a residual, wherever it is in the layer.
    pub fn is_carried(&mut self, func: FuncId, v: ValueId, rank: usize) -> bool {
        let classes: Vec<usize> = (0..rank).map(|d| self.dim(func, v, d)).collect();
        self.chains.contains(&classes)
    }

    /// The unlabelled dims of chain values are the stream.
    fn find_streams(&mut self, module: &Module) {
        for (slot, kind) in self.kinds.clone() {
            let Some((func, v)) = self.example(slot).filter(|_| kind == SlotKind::Chain) else { continue };
            let classes: Vec<usize> =
                (0..module.funcs[func].ty(v).rank()).map(|d| self.dim(func, v, d)).collect();
            let labels = &self.labels;
            self.stream.extend(classes.iter().filter(|c| !labels.contains_key(c)));
            self.chains.insert(classes);
        }
    }
}

/// Operands and results of an instruction with their dims' factors.
pub fn sides<'a>(
    inst: &'a pcc_ir::Inst,
    rule: &'a Rule,
) -> impl Iterator<Item = (&'a ValueId, &'a Vec<Vec<FactorId>>)> {
    inst.args.iter().zip(&rule.operands).chain(inst.results.iter().zip(&rule.results))
}

/// Index of a value in its function's table.
pub fn value_index(v: ValueId) -> usize {
    v.as_u32() as usize
}

fn dim_nodes(dims: &mut Classes, f: &Func) -> Vec<usize> {
    f.values.values().map(|v| dims.extend(v.ty.rank())).collect()
}

fn rules(f: &Func) -> Vec<Rule> {
    f.insts
        .iter()
        .map(|inst| {
            let args: Vec<&Type> = inst.args.iter().map(|&v| f.ty(v)).collect();
            let results: Vec<&Type> = inst.results.iter().map(|&v| f.ty(v)).collect();
            inst.op.rule(&args, &results)
        })
        .collect()
}

/// The functions without calls that entries are, or call; an entry that mixes calls and other instructions, or calls a
/// function with calls, has not been outlined.
fn leaves(module: &Module) -> Result<BTreeMap<FuncId, f64>, Diagnostic> {
    let calls = |f: &Func| f.insts.iter().any(|i| matches!(i.op, Op::Call(_)));
    let inner: BTreeSet<FuncId> = module.funcs.iter().filter(|(_, f)| calls(f)).map(|(id, _)| id).collect();
    let mut leaves: BTreeMap<FuncId, f64> = BTreeMap::new();
    for entry in &module.entries {
        let f = &module.funcs[entry.func];
        if !inner.contains(&entry.func) {
            *leaves.entry(entry.func).or_default() += entry.weight;
            continue;
        }
        for (at, inst) in f.insts.iter().enumerate() {
            let body = entry.repeats.iter().find(|r| (r.first..r.first + r.calls).contains(&at));
            let repetitions = body.map_or(1, |r| r.count);
            match inst.op {
                Op::Call(callee) if !inner.contains(&callee) => {
                    *leaves.entry(callee).or_default() += entry.weight * f64::from(repetitions);
                }
                _ => {
                    return Err(Diagnostic::internal("shardings are chosen on outlined modules only")
                        .at(f.name.clone())
                        .why(format!(
                            "instruction `{}` stands among the calls of an entry",
                            inst.op.name()
                        )));
                }
            }
        }
    }
    Ok(leaves)
}
