//! From a component of functions to a cost network.
//!
//! Variables: the strategy of each instruction; for each value with several consumers, the one reshard they may share; for
//! each parameter and state, how it is stored. Tables: what strategies compute, what reshards cost, and that parameters are
//! used as stored (a local slice at most) and are split where they can be.

use super::network::{Cost, INFINITE, Network, Var, add};
use super::strategy::{Context, Interner, Partial, ShardId, Strategy, picoseconds, strategies};
use super::structure::{SlotKind, Structure};
use crate::cost::{Step, reshard_steps, reshard_time_as};
use pcc_ir::{Axis, AxisRef, Func, FuncId, InstId, Module, ReduceKind, Sharding, Type, ValueId};
use std::collections::{BTreeMap, HashMap};

/// Where a value's sharding comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Fixed(ShardId),
    /// The stored sharding of a parameter or state.
    Slot(usize),
    Inst(InstId, usize),
}

/// Who uses a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Inst(InstId),
    Result(usize),
}

/// The part of the network that belongs to one function.
pub struct FuncVars {
    pub func: FuncId,
    weight: f64,
    pub strategies: Vec<Vec<Strategy>>,
    pub vars: Vec<Var>,
    /// The shared reshard of a value: its variable, and what each index after 0 (none) stands for.
    pub shared: BTreeMap<ValueId, (Var, Vec<ShardId>)>,
    sources: BTreeMap<ValueId, Source>,
    users: BTreeMap<ValueId, Vec<User>>,
}

/// A stored tensor: its variable and what the variable's values stand for.
pub struct SlotVar {
    pub var: Var,
    pub choices: Vec<ShardId>,
}

/// A component's network and how to read its solution.
pub struct Problem {
    pub net: Network,
    pub funcs: Vec<FuncVars>,
    pub slots: BTreeMap<usize, SlotVar>,
}

/// Memo of reshard times in cost units (unweighted picoseconds).
#[derive(Default)]
pub struct ReshardCosts {
    types: HashMap<Type, u32>,
    memo: HashMap<(u32, ShardId, ShardId), Cost>,
}

impl ReshardCosts {
    fn get(&mut self, cx: &Context, interner: &Interner, ty: &Type, from: ShardId, to: ShardId) -> Cost {
        if from == to {
            return 0;
        }
        let next = self.types.len() as u32;
        let id = match self.types.get(ty) {
            Some(&id) => id,
            None => *self.types.entry(ty.clone()).or_insert(next),
        };
        *self
            .memo
            .entry((id, from, to))
            .or_insert_with(|| reshard_cost(cx, ty, interner.get(from), interner.get(to)))
    }
}

/// Cost of a reshard. A collective over a part of tp counts as one over the whole of tp: `--tp N` asks for weights split N
/// ways, and smaller groups must not be bought with weights split less.
pub(super) fn reshard_cost(cx: &Context, ty: &Type, from: &Sharding, to: &Sharding) -> Cost {
    let whole = |axes: &[AxisRef]| {
        let mut group: Vec<AxisRef> = axes.iter().copied().filter(|a| a.axis != Axis::Tp).collect();
        if group.len() < axes.len() {
            group.push(cx.mesh.whole(Axis::Tp));
        }
        group
    };
    reshard_time_as(cx.cluster, cx.mesh, ty, from, to, whole).map_or(INFINITE, picoseconds)
}

/// Everything that building needs.
pub struct Builder<'a> {
    pub module: &'a Module,
    pub structure: &'a mut Structure,
    pub interner: &'a mut Interner,
    pub reshards: &'a mut ReshardCosts,
    pub mesh: &'a pcc_ir::Mesh,
    pub cluster: &'a crate::cost::Cluster,
    pub sp: bool,
    /// Shardings the user asks for, by slot.
    pub pins: &'a BTreeMap<usize, Sharding>,
    /// What an unsplit weight costs: more than any plan's time.
    pub unsplit: Cost,
}

impl Builder<'_> {
    /// The network of the functions of one component.
    pub fn build(&mut self, funcs: &[FuncId]) -> Problem {
        let mut net = Network::default();
        let mut all: Vec<FuncVars> = funcs.iter().map(|&f| self.instructions(f, &mut net)).collect();
        let slots = self.stored(&all, &mut net);
        for fv in &mut all {
            self.connect(fv, &slots, &mut net);
        }
        Problem { net, funcs: all, slots }
    }

    fn context(&self, weight: f64) -> Context<'_> {
        Context { mesh: self.mesh, cluster: self.cluster, sp: self.sp, weight }
    }

    /// Strategies of a function's instructions, with one variable each.
    fn instructions(&mut self, func: FuncId, net: &mut Network) -> FuncVars {
        let f = &self.module.funcs[func];
        let mut fv = FuncVars {
            func,
            weight: self.structure.leaves.get(&func).copied().unwrap_or(1.0),
            strategies: Vec::new(),
            vars: Vec::new(),
            shared: BTreeMap::new(),
            sources: BTreeMap::new(),
            users: BTreeMap::new(),
        };
        let mut stored_values: BTreeMap<ValueId, bool> = BTreeMap::new();
        for (i, &v) in f.args.iter().enumerate() {
            let slot = self.structure.arg_slot(func, i);
            let source = match self.structure.kind(slot) {
                SlotKind::Param | SlotKind::State => Source::Slot(slot),
                _ => Source::Fixed(self.boundary(slot, f.ty(v), (func, v))),
            };
            stored_values.insert(v, self.structure.kind(slot) == SlotKind::Param);
            fv.sources.insert(v, source);
        }
        let mut partials: BTreeMap<ValueId, Vec<Partial>> = BTreeMap::new();
        for (at, inst) in f.insts.iter().enumerate() {
            let args: Vec<&Type> = inst.args.iter().map(|&v| f.ty(v)).collect();
            let results: Vec<&Type> = inst.results.iter().map(|&v| f.ty(v)).collect();
            let stored: Vec<bool> =
                inst.args.iter().map(|v| stored_values.get(v).copied().unwrap_or(false)).collect();
            let open: Vec<Vec<Partial>> =
                inst.args.iter().map(|v| partials.get(v).cloned().unwrap_or_default()).collect();
            let cx = Context { mesh: self.mesh, cluster: self.cluster, sp: self.sp, weight: fv.weight };
            let list = strategies(
                &cx,
                self.structure,
                self.interner,
                (func, at, inst),
                (&args, &results),
                &stored,
                &open,
            );
            for (r, &v) in inst.results.iter().enumerate() {
                let mut seen: Vec<Partial> = Vec::new();
                for st in &list {
                    let partial = &self.interner.get(st.gives[r]).partial;
                    if !partial.is_empty() && !seen.contains(partial) {
                        seen.push(partial.clone());
                    }
                }
                partials.insert(v, seen);
                fv.sources.insert(v, Source::Inst(at, r));
            }
            for &v in &inst.args {
                let users = fv.users.entry(v).or_default();
                if users.last() != Some(&User::Inst(at)) {
                    users.push(User::Inst(at));
                }
            }
            fv.vars.push(net.var(list.len()));
            fv.strategies.push(list);
        }
        for (j, &v) in f.results.iter().enumerate() {
            fv.users.entry(v).or_default().push(User::Result(j));
        }
        fv
    }

    /// The sharding of what is passed from call to call or comes from the user: batch over dp, and for what is carried
    /// along, the sequence over tp under sequence parallelism.
    pub fn boundary(&mut self, slot: usize, ty: &Type, (func, v): (FuncId, ValueId)) -> ShardId {
        let mut s = Sharding::replicated(ty.rank());
        let chain = self.structure.kind(slot) == SlotKind::Chain;
        let (mut dp, mut tp) = (self.mesh.dp > 1, self.sp && chain && self.mesh.tp > 1);
        for d in 0..ty.rank() {
            let class = self.structure.dim(func, v, d);
            match self.structure.label(class) {
                Some(pcc_ir::graph::Label::Batch) if dp => {
                    s.dims[d].push(self.mesh.whole(Axis::Dp));
                    dp = false;
                }
                Some(pcc_ir::graph::Label::Seq) if tp && ty.shape[d] > 1 => {
                    s.dims[d].push(self.mesh.whole(Axis::Tp));
                    tp = false;
                }
                _ => {}
            }
        }
        self.interner.id(&s)
    }

    /// One variable per parameter and state: it may be stored in any way some use wants, or whole.
    fn stored(&mut self, funcs: &[FuncVars], net: &mut Network) -> BTreeMap<usize, SlotVar> {
        let mut choices: BTreeMap<usize, (Vec<ShardId>, usize, bool)> = BTreeMap::new();
        for fv in funcs {
            let f = &self.module.funcs[fv.func];
            for (v, source) in &fv.sources {
                let Source::Slot(slot) = *source else { continue };
                let entry = choices.entry(slot).or_insert((Vec::new(), f.ty(*v).rank(), false));
                for user in fv.users.get(v).into_iter().flatten() {
                    let User::Inst(at) = *user else { continue };
                    let inst = &f.insts[at];
                    for (i, _) in inst.args.iter().enumerate().filter(|(_, a)| *a == v) {
                        entry.2 |= contracted(&self.structure.rules[&fv.func][at], i);
                        entry.0.extend(fv.strategies[at].iter().map(|st| st.needs[i]));
                    }
                }
            }
            for (j, &v) in f.results.iter().enumerate() {
                let slot = self.structure.result_slot(fv.func, j);
                if let (Some(entry), Some(Source::Inst(at, r))) = (choices.get_mut(&slot), fv.sources.get(&v))
                {
                    entry.0.extend(fv.strategies[*at].iter().map(|st| st.gives[*r]));
                }
            }
        }
        let mut out = BTreeMap::new();
        for (slot, (mut list, rank, weight)) in choices {
            list.push(self.interner.id(&Sharding::replicated(rank)));
            let mut seen = std::collections::BTreeSet::new();
            list.retain(|&id| seen.insert(id) && self.interner.get(id).partial.is_empty());
            if let Some(pin) = self.pins.get(&slot) {
                list = vec![self.interner.id(pin)];
            }
            let var = net.var(list.len());
            let penalised = weight && self.mesh.tp > 1 && self.structure.kind(slot) == SlotKind::Param;
            if penalised {
                let split = |id: ShardId| self.interner.get(id).axes().any(|a| a.axis == Axis::Tp);
                net.add(&[var], |x| if split(list[x[0]]) { 0 } else { self.unsplit });
            }
            out.insert(slot, SlotVar { var, choices: list });
        }
        out
    }

    /// The tables of one function.
    fn connect(&mut self, fv: &mut FuncVars, slots: &BTreeMap<usize, SlotVar>, net: &mut Network) {
        let f = &self.module.funcs[fv.func];
        for (at, list) in fv.strategies.iter().enumerate() {
            net.add(&[fv.vars[at]], |x| list[x[0]].cost);
        }
        for (v, source) in fv.sources.clone() {
            let Some(users) = fv.users.get(&v) else { continue };
            let (made, made_var): (Vec<ShardId>, Option<Var>) = match source {
                Source::Fixed(id) => (vec![id], None),
                Source::Slot(slot) => (slots[&slot].choices.clone(), Some(slots[&slot].var)),
                Source::Inst(at, r) => {
                    (fv.strategies[at].iter().map(|st| st.gives[r]).collect(), Some(fv.vars[at]))
                }
            };
            let sliced = matches!(source, Source::Slot(s) if self.structure.kind(s) == SlotKind::Param);
            let uses: Vec<Use> = users.iter().map(|&u| self.uses(fv, f, slots, v, u, &made)).collect();
            let shared = if sliced { Vec::new() } else { shareable(&uses, &made) };
            let ty = f.ty(v);
            let weight = fv.weight;
            let mut table = Pairs { made: &made, shared: &shared, sliced, weight, ty, memo: HashMap::new() };
            let shared_var = (!shared.is_empty()).then(|| net.var(shared.len() + 1));
            if let Some(var) = shared_var {
                let scope: Vec<Var> = made_var.into_iter().chain([var]).collect();
                net.add(&scope, |x| {
                    let (p, t) = split_index(x, made_var.is_some());
                    if t == 0 { 0 } else { table.cost(self, made[p], shared[t - 1]) }
                });
                fv.shared.insert(v, (var, shared.clone()));
            }
            for u in &uses {
                let scope: Vec<Var> = made_var.into_iter().chain(shared_var).chain(u.var).collect();
                if scope.is_empty() {
                    continue;
                }
                net.add(&scope, |x| {
                    let mut x = x.iter().copied();
                    let p = if made_var.is_some() { x.next().unwrap_or(0) } else { 0 };
                    let t = if shared_var.is_some() { x.next().unwrap_or(0) } else { 0 };
                    let c = x.next().unwrap_or(0);
                    u.needs.iter().fold(0, |sum, n| add(sum, table.use_cost(self, p, t, n.of(c, p))))
                });
            }
        }
    }

    /// What a user wants of a value, per choice of the user's variable.
    fn uses(
        &mut self,
        fv: &FuncVars,
        f: &Func,
        slots: &BTreeMap<usize, SlotVar>,
        v: ValueId,
        user: User,
        made: &[ShardId],
    ) -> Use {
        match user {
            User::Inst(at) => {
                let positions = f.insts[at].args.iter().enumerate().filter(|(_, a)| **a == v);
                let needs = positions
                    .map(|(i, _)| Need::Chosen(fv.strategies[at].iter().map(|st| st.needs[i]).collect()))
                    .collect();
                Use { var: Some(fv.vars[at]), needs }
            }
            User::Result(j) => {
                let slot = self.structure.result_slot(fv.func, j);
                match (self.structure.kind(slot), slots.get(&slot)) {
                    (_, Some(sv)) => Use { var: Some(sv.var), needs: vec![Need::Chosen(sv.choices.clone())] },
                    (SlotKind::Free, _) => {
                        let reduced = made.iter().map(|&p| self.reduced(f.ty(v), p)).collect();
                        Use { var: None, needs: vec![Need::Reduced(reduced)] }
                    }
                    _ => {
                        let id = self.boundary(slot, f.ty(v), (fv.func, v));
                        Use { var: None, needs: vec![Need::Chosen(vec![id])] }
                    }
                }
            }
        }
    }

    /// How a result that leaves the entry is laid out when it is made as `p`: as it is when whole or split; a partial is
    /// reduced in the cheapest way, all-reduced or reduce-scattered.
    pub fn reduced(&mut self, ty: &Type, p: ShardId) -> ShardId {
        let from = self.interner.get(p).clone();
        if from.partial.is_empty() {
            return p;
        }
        let whole = Sharding { partial: Vec::new(), ..from.clone() };
        let axes: Vec<_> = from.partial.iter().map(|a| a.0).collect();
        let n = pcc_ir::mesh::group_size(&axes);
        let mut options = vec![whole.clone()];
        for d in (0..ty.rank()).filter(|&d| ty.shape[d] >= n) {
            let mut s = whole.clone();
            s.dims[d].extend(&axes);
            options.push(s);
        }
        let cx = self.context(1.0);
        let best = options.iter().min_by_key(|s| reshard_cost(&cx, ty, &from, s)).unwrap_or(&whole).clone();
        self.interner.id(&best)
    }
}

/// Whether the rule reduces over some dim of operand `i`: what makes a parameter a weight.
fn contracted(rule: &pcc_ir::Rule, i: usize) -> bool {
    let sum = pcc_ir::FactorKind::Reduce(ReduceKind::Sum);
    rule.operands[i].iter().flatten().any(|&f| rule.factors[f].kind == sum)
}

/// The needs of one user of a value.
struct Use {
    var: Option<Var>,
    needs: Vec<Need>,
}

enum Need {
    /// By the user's choice.
    Chosen(Vec<ShardId>),
    /// By how the value is made.
    Reduced(Vec<ShardId>),
}

impl Need {
    fn of(&self, choice: usize, made: usize) -> ShardId {
        match self {
            Need::Chosen(ids) => ids[choice],
            Need::Reduced(ids) => ids[made],
        }
    }

    fn all(&self) -> &[ShardId] {
        match self {
            Need::Chosen(ids) | Need::Reduced(ids) => ids,
        }
    }
}

/// What several users of one value may share: any sharding some user wants, unless it is the only way the value is made.
fn shareable(uses: &[Use], made: &[ShardId]) -> Vec<ShardId> {
    if uses.len() < 2 {
        return Vec::new();
    }
    let mut out: Vec<ShardId> = Vec::new();
    for &id in uses.iter().flat_map(|u| &u.needs).flat_map(|n| n.all()) {
        if !out.contains(&id) && made.iter().any(|&p| p != id) {
            out.push(id);
        }
    }
    out
}

/// Splits a `(made, shared)` index where the first may be absent.
fn split_index(x: &[usize], made: bool) -> (usize, usize) {
    if made { (x[0], x[1]) } else { (0, x[0]) }
}

/// Weighted reshard costs of one value.
struct Pairs<'a> {
    made: &'a [ShardId],
    shared: &'a [ShardId],
    /// A parameter: only local slices are allowed.
    sliced: bool,
    weight: f64,
    ty: &'a Type,
    memo: HashMap<(ShardId, ShardId), Cost>,
}

impl Pairs<'_> {
    fn cost(&mut self, b: &mut Builder, from: ShardId, to: ShardId) -> Cost {
        if from == to {
            return 0;
        }
        if let Some(&c) = self.memo.get(&(from, to)) {
            return c;
        }
        let moves = self.sliced && {
            let steps = reshard_steps(b.mesh, b.interner.get(from), b.interner.get(to));
            steps.is_none_or(|s| s.iter().any(|s| !matches!(s, Step::Slice { .. })))
        };
        let cx = Context { mesh: b.mesh, cluster: b.cluster, sp: b.sp, weight: self.weight };
        let plain = if moves { INFINITE } else { b.reshards.get(&cx, b.interner, self.ty, from, to) };
        let c = if plain >= INFINITE { INFINITE } else { (plain as f64 * self.weight).round() as Cost };
        self.memo.insert((from, to), c);
        c
    }

    /// Cost of a use that wants `need` of a value made in way `p` with shared reshard `t` (0: none).
    fn use_cost(&mut self, b: &mut Builder, p: usize, t: usize, need: ShardId) -> Cost {
        let direct = self.cost(b, self.made[p], need);
        if t == 0 || direct == 0 {
            return direct;
        }
        direct.min(self.cost(b, self.shared[t - 1], need))
    }
}
