//! Which part of every local value is ever there.
//!
//! What: for each dim of each value, the part that its maker writes and its readers read: the device's piece without its padding,
//! or of that only the rows and positions that a run has. Why: five tokens on a program compiled for 2,048 positions then cost five
//! tokens' work, and a device without heads does no attention.
//!
//! A dim starts with the least that can be there, by its claim and its label, and is raised where a reader needs more: a reduction over
//! it, a run-time index into it, a view that mixes it with others. Whatever a reader and the maker of its operand do not cut
//! alike is not cut. So nothing depends on labels being right, but for the positions of keys and caches: keys at positions that the
//! run does not have are never seen, which the graph must show ([`pcc_ir::absent`]).

//!
//! ```text
//! (%0: f32[1,8,4] labels (_, seq, _), ..)
//! %2: f32[1,8,40] = dot_general(%0, %1)    ->    gemm m {"full":8,"clip":{"part":"seq","global":8}} n 40 k 4
//! ```
//!
//! `tests/filetests/lower` shows it, and a case in which nothing may be clipped.

use crate::solve::Classes;
use pcc_ir::graph::{Label, Role};
use pcc_ir::ops::{Collective, DotGeneral, Gather, Update};
use pcc_ir::program::BatchPlan;
use pcc_ir::sharding::local_extent;
use pcc_ir::{AxisRef, Clip, FactorKind, Func, FuncId, Inst, Module, Op, Part, Rule, Term, Type, ValueId};
use std::collections::{BTreeSet, HashMap};

/// `(argument, result)` pairs that a function updates in place at every call.
pub(super) type InPlace = HashMap<FuncId, Vec<(usize, usize)>>;

/// How much of a dim is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// The rows and positions that the run has.
    There,
    /// The device's piece.
    Held,
    /// All, padding included.
    All,
}

#[derive(Clone, Debug)]
struct Dim {
    global: u64,
    axes: Vec<AxisRef>,
    pads: bool,
    part: Option<Part>,
    need: Need,
}

impl Dim {
    fn at(&self, need: Need) -> Option<Clip> {
        let part = match need {
            Need::All => None,
            Need::There if self.part.is_some() => self.part,
            _ => self.pads.then_some(Part::Piece),
        };
        part.map(|part| Clip { part, global: self.global, axes: self.axes.clone(), inner: 1 })
    }

    fn clip(&self) -> Option<Clip> {
        self.at(self.need)
    }
}

/// The dims of one function's values.
#[derive(Clone, Debug, Default)]
pub(super) struct FuncClips {
    values: Vec<Vec<Dim>>,
    /// See [`Clips::of`].
    masked: bool,
}

impl FuncClips {
    /// Of each dim of a value, the part that is written; all of it without one.
    pub fn of(&self, v: ValueId, rank: usize) -> Vec<Option<Clip>> {
        (0..rank).map(|d| self.dim(v, d).and_then(Dim::clip)).collect()
    }

    fn dim(&self, v: ValueId, d: usize) -> Option<&Dim> {
        self.values.get(v.as_u32() as usize)?.get(d)
    }

    fn at(&self, v: ValueId, d: usize, need: Need) -> Option<Clip> {
        self.dim(v, d).and_then(|x| x.at(need))
    }

    /// The part of the keys that an attention looks at. Rows of a batch that are not there hide nothing.
    pub fn keys(&self, inst: &Inst) -> Option<Clip> {
        let clips = [1, 2, 4].map(|i: usize| self.at(inst.args[i], 1, Need::There));
        let [k, v, pos] = clips;
        let alike = |k: &Clip| v.as_ref() == Some(k) && pos.as_ref() == Some(k);
        k.filter(|k| self.masked && k.part == Part::Seq && alike(k))
    }

    /// The part of a gathered table that a run has: an index beyond it finds zeros.
    pub fn table(&self, g: &Gather, inst: &Inst) -> Option<Clip> {
        let table = *inst.args.first()?;
        self.at(table, g.batch, Need::There).filter(|c| self.masked && c.part == Part::Seq)
    }

    /// The parts of the contracted dims of a product, when it can leave out the rest: the loop over them is one, and only its major
    /// dim can be short.
    pub fn contracted(&self, dot: &DotGeneral, inst: &Inst, func: &Func) -> Vec<Option<Clip>> {
        let clip = |v: ValueId, d: usize| self.at(v, d, Need::Held);
        let pairs = || dot.lhs_contract.iter().zip(&dot.rhs_contract);
        let clips: Vec<_> = pairs().map(|(&l, _)| clip(inst.args[0], l)).collect();
        let alike = pairs().zip(&clips).all(|((_, &r), c)| clip(inst.args[1], r) == *c);
        let lhs = func.ty(inst.args[0]);
        let steps: Vec<_> =
            pairs().zip(&clips).filter(|((l, _), c)| lhs.shape[**l] != 1 || c.is_some()).collect();
        // In the order of the op as in those of the operands, which a packed weight goes by.
        let major = |(l, r): (&usize, &usize)| steps.iter().all(|((m, s), _)| *m >= l && *s >= r);
        let mut short = steps.iter().enumerate().filter(|(_, (_, c))| c.is_some());
        let may = short.all(|(i, (pair, _))| i == 0 && major(*pair));
        if alike && may { clips } else { vec![None; clips.len()] }
    }

    /// The part of each dim that a collective moves, of the larger of its two sides.
    pub fn moved(&self, c: &Collective, inst: &Inst, rank: usize) -> Vec<Option<Clip>> {
        let (from, to) = (inst.args[0], inst.results[0]);
        let of = |d: usize| {
            let need = self.dim(to, d)?.need;
            let (whole, piece) = if gathers(c, d) { (to, from) } else { (from, to) };
            let (whole, piece) = (self.at(whole, d, need)?, self.at(piece, d, need)?);
            let minor = if gathers(c, d) || scatters(c, d) { c.axes() } else { &[] };
            let expected = Clip { axes: [&whole.axes, minor].concat(), ..whole.clone() };
            (piece == expected).then_some(whole)
        };
        (0..rank).map(of).collect()
    }
}

/// Whether the collective's result has more of a dim than its operand.
fn gathers(c: &Collective, d: usize) -> bool {
    match c {
        Collective::AllGather { dim, .. } => *dim == d,
        Collective::AllToAll { concat, .. } => *concat == d,
        Collective::AllReduce { .. } | Collective::ReduceScatter { .. } => false,
    }
}

/// Whether the collective's operand has more of a dim than its result.
fn scatters(c: &Collective, d: usize) -> bool {
    match c {
        Collective::ReduceScatter { dim, .. } => *dim == d,
        Collective::AllToAll { split, .. } => *split == d,
        Collective::AllReduce { .. } | Collective::AllGather { .. } => false,
    }
}

/// The parts of all values of the functions that entries reach.
pub(super) struct Clips {
    funcs: HashMap<FuncId, FuncClips>,
}

impl Clips {
    /// `masked` says that positions a run does not have are never seen by those it has, in attention and in what later runs find in
    /// states. `in_place` says which results of a function always update an argument in place.
    pub fn of(sharded: &Module, local: &Module, batch: &BatchPlan, masked: bool, in_place: &InPlace) -> Self {
        let mut reached: BTreeSet<FuncId> = local.entries.iter().map(|e| e.func).collect();
        for entry in &local.entries {
            let calls = local.funcs[entry.func].insts.iter().filter_map(|i| callee(&i.op));
            reached.extend(calls);
        }
        let funcs =
            reached.iter().map(|&id| (id, dims(&sharded.funcs[id], &local.funcs[id], masked))).collect();
        let mut clips = Self { funcs };
        clips.label(local, batch);
        let rules: HashMap<FuncId, Vec<Rule>> = reached
            .iter()
            .map(|&id| (id, local.funcs[id].insts.iter().map(|i| rule(&local.funcs[id], i)).collect()))
            .collect();
        clips.need_of_entries(sharded, local, masked, in_place);
        let mut changed = true;
        while changed {
            changed = false;
            for &id in reached.iter().rev() {
                changed |= clips.need_of_func(local, id, &rules[&id]);
            }
        }
        clips
    }

    pub fn func(&self, id: FuncId) -> FuncClips {
        self.funcs.get(&id).cloned().unwrap_or_default()
    }

    fn dim(&mut self, f: FuncId, v: ValueId, d: usize) -> Option<&mut Dim> {
        self.funcs.get_mut(&f)?.values.get_mut(v.as_u32() as usize)?.get_mut(d)
    }

    fn clip(&self, f: FuncId, v: ValueId, d: usize) -> Option<Clip> {
        self.funcs.get(&f)?.dim(v, d)?.clip()
    }

    /// Says which dims are rows and positions: what inputs say, through ops and calls, in both directions.
    fn label(&mut self, local: &Module, batch: &BatchPlan) {
        let mut classes = Classes::default();
        let mut nodes: HashMap<(FuncId, ValueId), usize> = HashMap::new();
        let mut ids: Vec<FuncId> = self.funcs.keys().copied().collect();
        ids.sort_unstable();
        for &id in &ids {
            for (v, value) in &local.funcs[id].values {
                nodes.insert((id, v), classes.extend(value.ty.rank()));
            }
        }
        for &id in &ids {
            let f = &local.funcs[id];
            for inst in &f.insts {
                for ((g, a, d), (h, b, e)) in same_dims(local, id, inst) {
                    classes.unite(nodes[&(g, a)] + d, nodes[&(h, b)] + e);
                }
            }
        }
        let mut found: HashMap<usize, Part> = HashMap::new();
        for entry in &local.entries {
            let f = &local.funcs[entry.func];
            let inputs = f.args.iter().zip(&entry.args).filter(|(_, r)| matches!(r, Role::Input(_)));
            for (&v, _) in inputs {
                for (d, label) in f.values[v].labels.iter().enumerate().take(f.ty(v).rank()) {
                    let part = match label {
                        Some(Label::Batch) => Part::Rows,
                        Some(Label::Seq) => Part::Seq,
                        None => continue,
                    };
                    let first = found.entry(classes.find(nodes[&(entry.func, v)] + d)).or_insert(part);
                    *first = (*first).min(part);
                }
            }
        }
        let capacity = batch.replicas.saturating_mul(batch.rows()) as u64;
        for &id in &ids {
            for v in local.funcs[id].values.keys() {
                for d in 0..local.funcs[id].ty(v).rank() {
                    let part = found.get(&classes.find(nodes[&(id, v)] + d)).copied();
                    let Some(dim) = self.dim(id, v, d) else { continue };
                    // One row or position is always there.
                    dim.part =
                        part.filter(|p| dim.global > 1 && (*p != Part::Rows || dim.global == capacity));
                }
            }
        }
    }

    /// Raises a dim until its maker writes what a reader reads. Says whether anything changed.
    fn need(&mut self, f: FuncId, v: ValueId, d: usize, read: Option<&Clip>) -> bool {
        let Some(dim) = self.dim(f, v, d) else { return false };
        let before = dim.need;
        while let Some(clip) = dim.clip()
            && read != Some(&clip)
        {
            dim.need = if dim.need == Need::There { Need::Held } else { Need::All };
        }
        dim.need != before
    }

    /// What the host reads of outputs, and what later runs read of states.
    fn need_of_entries(&mut self, sharded: &Module, local: &Module, masked: bool, in_place: &InPlace) {
        for entry in &local.entries {
            let (func, global) = (&local.funcs[entry.func], &sharded.funcs[entry.func]);
            for (r, &v) in func.results.iter().enumerate() {
                let is_state = entry.aliases.iter().any(|a| a.1 == r);
                let stays = func.insts.iter().any(|i| {
                    let at = i.results.iter().position(|&x| x == v);
                    matches!((at, callee(&i.op)), (Some(at), Some(f)) if in_place.get(&f).is_some_and(|p| p.iter().any(|p| p.1 == at)))
                });
                let labels = &global.values[global.results[r]].labels;
                for d in 0..func.ty(v).rank() {
                    let part = match labels.get(d).copied().flatten() {
                        Some(Label::Batch) => Some(Part::Rows),
                        Some(Label::Seq) => Some(Part::Seq),
                        None => None,
                    };
                    let Some(dim) = self.dim(entry.func, v, d) else { continue };
                    dim.need = match is_state {
                        true if stays && masked => Need::There,
                        true => Need::All,
                        false if dim.part == part => Need::There,
                        false => Need::Held,
                    };
                }
            }
        }
    }

    fn need_of_func(&mut self, local: &Module, id: FuncId, rules: &[Rule]) -> bool {
        let func = &local.funcs[id];
        let mut changed = false;
        for (inst, rule) in func.insts.iter().zip(rules).rev() {
            changed |= match &inst.op {
                Op::Call(callee) => self.need_of_call(id, inst, (*callee, &local.funcs[*callee])),
                Op::Collective(c) => self.need_of_collective(id, inst, c, func),
                Op::ShardSlice(s) => self.need_alike(id, inst, func, Some(s.dim)),
                Op::MaskTail(_) => self.need_alike(id, inst, func, None),
                op => {
                    let special = match op {
                        Op::DotGeneral(dot) => self.need_of_dot(id, inst, dot, func),
                        Op::Attention(_) => self.need_of_keys(id, inst),
                        Op::Gather(g) => self.need_of_table(id, inst, g),
                        _ => false,
                    };
                    self.need_by_rule(id, inst, rule, func) || special
                }
            };
        }
        changed
    }

    fn need_of_call(&mut self, id: FuncId, inst: &Inst, (callee, inner): (FuncId, &Func)) -> bool {
        let mut changed = false;
        for (&v, &a) in inst.args.iter().zip(&inner.args) {
            for d in 0..inner.ty(a).rank() {
                let read = self.clip(callee, a, d);
                changed |= self.need(id, v, d, read.as_ref());
            }
        }
        for (&v, &r) in inst.results.iter().zip(&inner.results) {
            for d in 0..inner.ty(r).rank() {
                let read = self.clip(id, v, d);
                changed |= self.need(callee, r, d, read.as_ref());
            }
        }
        changed
    }

    fn need_of_collective(&mut self, id: FuncId, inst: &Inst, c: &Collective, func: &Func) -> bool {
        let (Some(&from), Some(&to)) = (inst.args.first(), inst.results.first()) else { return false };
        let Some(clips) = self.funcs.get(&id) else { return false };
        let rank = func.ty(to).rank();
        let moved = clips.moved(c, inst, rank);
        let mut changed = false;
        for (d, moved) in moved.into_iter().enumerate() {
            let need = self.dim(id, to, d).map(|x| x.need);
            // Where the result has the whole, each member's piece is read as far as it is moved.
            let read = match (&moved, need) {
                (Some(_), Some(need)) if gathers(c, d) => self.funcs[&id].at(from, d, need),
                _ => moved,
            };
            changed |= self.need(id, from, d, read.as_ref());
        }
        changed
    }

    /// Dims of the operand are those of the result; `but` is read at run-time indices.
    fn need_alike(&mut self, id: FuncId, inst: &Inst, func: &Func, but: Option<usize>) -> bool {
        let (Some(&from), Some(&to)) = (inst.args.first(), inst.results.first()) else { return false };
        let mut changed = false;
        for d in 0..func.ty(to).rank() {
            let read = self.clip(id, to, d).filter(|_| but != Some(d));
            changed |= self.need(id, from, d, read.as_ref());
        }
        changed
    }

    fn need_of_dot(&mut self, id: FuncId, inst: &Inst, dot: &DotGeneral, func: &Func) -> bool {
        let Some(clips) = self.funcs.get(&id) else { return false };
        let parts = clips.contracted(dot, inst, func);
        let mut changed = false;
        for ((&l, &r), part) in dot.lhs_contract.iter().zip(&dot.rhs_contract).zip(&parts) {
            changed |= self.need(id, inst.args[0], l, part.as_ref());
            changed |= self.need(id, inst.args[1], r, part.as_ref());
        }
        changed
    }

    fn need_of_table(&mut self, id: FuncId, inst: &Inst, g: &Gather) -> bool {
        let Some(clips) = self.funcs.get(&id) else { return false };
        let part = clips.table(g, inst);
        self.need(id, inst.args[0], g.batch, part.as_ref())
    }

    fn need_of_keys(&mut self, id: FuncId, inst: &Inst) -> bool {
        let Some(clips) = self.funcs.get(&id) else { return false };
        let keys = clips.keys(inst);
        let mut changed = false;
        for i in [1, 2, 4] {
            changed |= self.need(id, inst.args[i], 1, keys.as_ref());
        }
        changed
    }

    /// Dims of operands that pass to the result are read as far as the result is made; others whole.
    fn need_by_rule(&mut self, id: FuncId, inst: &Inst, rule: &Rule, func: &Func) -> bool {
        let Some(&result) = inst.results.first() else { return false };
        let mut changed = self.need_alike_results(id, inst, rule);
        // Rows are looked up in one loop: what an outer dim repeats is read whole.
        let looked_up = |i: usize, d: usize| {
            let shape = |v: ValueId| &func.ty(v).shape;
            matches!(&inst.op, Op::Gather(g) if g.batch == 0 && i == 1)
                && shape(inst.args[1])[..d].iter().any(|&n| n > 1)
        };
        let whole = |fs: &[usize]| fs.iter().any(|&f| rule.factors[f].kind == FactorKind::Replicate);
        for (&v, dims) in inst.results.iter().zip(&rule.results) {
            for (d, _) in dims.iter().enumerate().filter(|(_, fs)| whole(fs)) {
                changed |= self.need(id, v, d, None);
            }
        }
        for (i, (&v, dims)) in
            inst.args.iter().zip(&rule.operands).enumerate().filter(|(i, _)| inst.op.reads(*i))
        {
            for (d, fs) in dims.iter().enumerate() {
                let is_seq =
                    |f: &FuncClips| f.masked && f.dim(v, d).is_some_and(|x| x.part == Some(Part::Seq));
                if is_special(&inst.op, i, d, self.funcs.get(&id).is_some_and(is_seq)) {
                    continue;
                }
                let to = rule.results[0].iter().position(|r| fs.len() == 1 && r == fs);
                let read = to.and_then(|r| self.clip(id, result, r)).filter(|_| !looked_up(i, d));
                changed |= self.need(id, v, d, read.as_ref());
            }
        }
        changed
    }

    /// One loop makes all results: of a dim that they share each is made as far as any is needed.
    fn need_alike_results(&mut self, id: FuncId, inst: &Inst, rule: &Rule) -> bool {
        let Some(dims) = rule.results.first().filter(|_| inst.results.len() > 1) else { return false };
        let mut changed = false;
        for fs in dims {
            let place = |(&v, dims): (&ValueId, &Vec<Vec<usize>>)| {
                Some((v, dims.iter().position(|other| other == fs)?))
            };
            let alike: Vec<_> = inst.results.iter().zip(&rule.results).filter_map(place).collect();
            let need = |&&(v, d): &&(ValueId, usize)| Some(self.funcs.get(&id)?.dim(v, d)?.need);
            let Some(&(most, at)) = alike.iter().max_by_key(need) else { continue };
            let read = self.clip(id, most, at);
            for (v, d) in alike {
                changed |= self.need(id, v, d, read.as_ref());
            }
        }
        changed
    }
}

/// Dims whose need is not read off the rule.
fn is_special(op: &Op, operand: usize, dim: usize, masked: bool) -> bool {
    match op {
        Op::DotGeneral(dot) => match operand {
            0 => dot.lhs_contract.contains(&dim),
            _ => dot.rhs_contract.contains(&dim),
        },
        Op::Attention(_) => matches!(operand, 1 | 2 | 4) && dim == 1,
        Op::Gather(g) => operand == 0 && dim == g.batch,
        // Rows at positions that the run does not have need not be written: nothing sees them before a later run writes them.
        Op::Update(Update { batch, .. }) => masked && operand == 1 && dim == *batch,
        _ => false,
    }
}

fn callee(op: &Op) -> Option<FuncId> {
    match op {
        Op::Call(f) => Some(*f),
        _ => None,
    }
}

fn rule(func: &Func, inst: &Inst) -> Rule {
    let types = |vs: &[ValueId]| vs.iter().map(|&v| func.ty(v).clone()).collect::<Vec<Type>>();
    let (args, results) = (types(&inst.args), types(&inst.results));
    inst.op.rule(&args.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>())
}

/// What claims say of the dims of a function's values.
fn dims(global: &Func, local: &Func, masked: bool) -> FuncClips {
    let of = |value: &pcc_ir::Value| {
        let claim = value.claim.as_ref()?;
        let mut term = &claim.term;
        while let Term::Sum(terms) = term {
            term = terms.first()?;
        }
        let Term::Value(v) = term else { return None };
        let shape = &global.values.get(*v)?.ty.shape;
        let dim = |(&n, axes): (&usize, &Vec<AxisRef>)| {
            let local = local_extent(n, axes) as u128;
            let devices: u128 = axes.iter().map(|a| u128::from(a.size)).product();
            let pads = local * devices != n as u128;
            Dim { global: n as u64, axes: axes.clone(), pads, part: None, need: Need::There }
        };
        (shape.len() == claim.sharding.dims.len())
            .then(|| shape.iter().zip(&claim.sharding.dims).map(dim).collect())
    };
    FuncClips { values: local.values.values().map(|v| of(v).unwrap_or_default()).collect(), masked }
}

type Place = (FuncId, ValueId, usize);

/// Pairs of dims that are the same dim, of the operands and results of an instruction.
fn same_dims(module: &Module, id: FuncId, inst: &Inst) -> Vec<(Place, Place)> {
    let func = &module.funcs[id];
    let alike = |a: (FuncId, ValueId), b: (FuncId, ValueId), rank: usize| {
        (0..rank).map(move |d| ((a.0, a.1, d), (b.0, b.1, d)))
    };
    match &inst.op {
        Op::Call(callee) => {
            let inner = &module.funcs[*callee];
            let args = inst.args.iter().zip(&inner.args).chain(inst.results.iter().zip(&inner.results));
            args.flat_map(|(&a, &b)| alike((id, a), (*callee, b), func.ty(a).rank())).collect()
        }
        Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_) => {
            alike((id, inst.args[0]), (id, inst.results[0]), func.ty(inst.args[0]).rank()).collect()
        }
        _ => {
            let rule = rule(func, inst);
            let sides = inst.args.iter().zip(&rule.operands).chain(inst.results.iter().zip(&rule.results));
            let mut first: HashMap<usize, Place> = HashMap::new();
            let mut pairs = Vec::new();
            for (&v, dims) in sides {
                for (d, fs) in dims.iter().enumerate() {
                    let [f] = fs[..] else { continue };
                    if !matches!(rule.factors[f].kind, FactorKind::Reduce(_)) {
                        pairs.push((*first.entry(f).or_insert((id, v, d)), (id, v, d)));
                    }
                }
            }
            pairs
        }
    }
}
