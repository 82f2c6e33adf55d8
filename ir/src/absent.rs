//! Whether a module shows that nothing of a run depends on positions that the run does not have.
//!
//! A run of five tokens on a program of 2,048 positions stands for the whole one with zeros behind them: in every input with a
//! sequence dim, its mask among them. Leaving out the rest of the work is right where no key behind the end is seen, no row behind it is
//! looked up, and what states hold there is never read. A model's task does not promise that, its graph shows it:
//!
//! - each attention is causal over positions that count from 0, with queries that stand within the run; or its keys have a negative position
//!   wherever the inputs are zeros;
//! - a look-up along the sequence is at an index that the input `lengths` bounds;
//! - a state is written by updates and read as keys or values of such attention only: before they were written by this run up to the
//!   position that the input `positions` says, which is where a row's next token stands;
//! - nothing else mixes positions.
//!
//! Functions are looked at once, with what is known alike at all their calls; so repetitions of a folded run need no look of their own.

use crate::eval::{At, Tensor};
use crate::graph::{Entry, Func, FuncId, Inst, Label, Module, Role, ValueId};
use crate::ops::{Attention, BinaryKind, Gather, Literal, Op, Update};
use crate::rule::{FactorKind, Rule};
use crate::types::{DType, Type};
use std::collections::{HashMap, HashSet};

/// Names of the inputs that say where a row's tokens end and where its next one stands.
const LENGTHS: &str = "lengths";
const POSITIONS: &str = "positions";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Other,
    /// Each element is its index along the dim.
    Iota(usize),
    /// At most the number of a row's tokens plus this.
    Length(f64),
    /// At most the position of a row's next token plus this.
    Position(f64),
    /// A state; `filled` when this run has written its positions.
    State {
        filled: bool,
    },
}

/// What stands at the positions that the run does not have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Unknown,
    /// This number.
    Absent(f64),
    /// This number there as everywhere.
    Everywhere(f64),
}

impl Value {
    fn number(self) -> Option<f64> {
        match self {
            Value::Unknown => None,
            Value::Absent(x) | Value::Everywhere(x) => Some(x),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    /// Dims that run along the positions of the run.
    along: Vec<bool>,
    kind: Kind,
    value: Value,
}

impl Known {
    fn nothing(rank: usize) -> Self {
        Self { along: vec![false; rank], kind: Kind::Other, value: Value::Unknown }
    }

    fn is_along(&self, dim: usize) -> bool {
        self.along.get(dim).copied().unwrap_or(false)
    }

    /// Whether one of these dims does.
    fn runs_along(&self, of: impl Fn(usize) -> bool) -> bool {
        self.along.iter().enumerate().any(|(d, along)| *along && of(d))
    }

    fn is_state(&self) -> bool {
        matches!(self.kind, Kind::State { .. })
    }

    /// What holds of either. `None`: they are too different to say.
    fn join(&self, other: &Self) -> Option<Self> {
        if self.along != other.along || self.is_state() != other.is_state() {
            return None;
        }
        let kind = match (self.kind, other.kind) {
            (Kind::State { filled: a }, Kind::State { filled: b }) => Kind::State { filled: a && b },
            (a, b) if a == b => a,
            _ => Kind::Other,
        };
        let value = if self.value == other.value { self.value } else { Value::Unknown };
        Some(Self { along: self.along.clone(), kind, value })
    }
}

/// Whether the module shows it, as above. For modules over global tensors: a graph, or the same with shardings.
pub fn is_unseen(module: &Module) -> bool {
    let mut look = Look { module, tied: Tied::of(module), args: HashMap::new(), results: HashMap::new() };
    look.entries().is_some()
}

struct Look<'a> {
    module: &'a Module,
    tied: Tied,
    /// What all calls of a function that were seen so far have in common.
    args: HashMap<FuncId, Vec<Known>>,
    results: HashMap<FuncId, Vec<Known>>,
}

impl Look<'_> {
    fn entries(&mut self) -> Option<()> {
        // What is known of arguments becomes less and less; a change may reach as far as calls are deep.
        loop {
            let before = self.args.clone();
            self.results.clear();
            for entry in &self.module.entries {
                let args = self.of_entry(entry)?;
                let results = self.func(entry.func, args)?;
                // States stay states, and the host reads none.
                let is_alias = |r: usize| entry.aliases.iter().any(|a| a.1 == r);
                if results.iter().enumerate().any(|(r, known)| known.is_state() != is_alias(r)) {
                    return None;
                }
            }
            if self.args == before {
                return Some(());
            }
        }
    }

    fn of_entry(&self, entry: &Entry) -> Option<Vec<Known>> {
        let func = self.module.funcs.get(entry.func)?;
        let one = |(role, &v): (&Role, &ValueId)| {
            let value = func.values.get(v)?;
            let mut known = Known::nothing(value.ty.rank());
            match role {
                Role::Input(name) => {
                    for (along, label) in known.along.iter_mut().zip(&value.labels) {
                        *along = *label == Some(Label::Seq);
                    }
                    let plain = !known.along.contains(&true);
                    known.kind = match &**name {
                        LENGTHS if plain => Kind::Length(0.0),
                        POSITIONS if plain => Kind::Position(0.0),
                        _ => Kind::Other,
                    };
                    known.value = if plain { Value::Unknown } else { Value::Absent(0.0) };
                }
                Role::Param(_) => {}
                Role::State(_) => known.kind = Kind::State { filled: false },
            }
            Some(known)
        };
        entry.args.iter().zip(&func.args).map(one).collect()
    }

    fn func(&mut self, id: FuncId, args: Vec<Known>) -> Option<Vec<Known>> {
        let args = match self.args.get(&id) {
            None => args,
            Some(seen) => {
                let joined: Option<Vec<_>> = seen.iter().zip(&args).map(|(a, b)| a.join(b)).collect();
                joined?
            }
        };
        if self.args.get(&id) == Some(&args)
            && let Some(results) = self.results.get(&id)
        {
            return Some(results.clone());
        }
        self.args.insert(id, args.clone());
        let func = self.module.funcs.get(id)?;
        let mut known: Vec<Option<Known>> = vec![None; func.values.len()];
        for (&v, arg) in func.args.iter().zip(args) {
            *known.get_mut(v.as_u32() as usize)? = Some(arg);
        }
        let of = |known: &[Option<Known>], v: &ValueId| known.get(v.as_u32() as usize)?.clone();
        for inst in &func.insts {
            let args: Vec<Known> = inst.args.iter().map(|v| of(&known, v)).collect::<Option<_>>()?;
            let made = match &inst.op {
                Op::Call(callee) => self.func(*callee, args)?,
                _ => vec![self.inst(id, func, inst, &args)?],
            };
            for (v, made) in inst.results.iter().zip(made) {
                *known.get_mut(v.as_u32() as usize)? = Some(made);
            }
        }
        let results: Vec<Known> = func.results.iter().map(|v| of(&known, v)).collect::<Option<_>>()?;
        self.results.insert(id, results.clone());
        Some(results)
    }

    /// What is known of the result of an op; `None` when it may let positions see what is behind the end.
    fn inst(&self, id: FuncId, func: &Func, inst: &Inst, args: &[Known]) -> Option<Known> {
        let (result, first) = (inst.results.first()?, args.first());
        let mut made = Known::nothing(func.ty(*result).rank());
        match (&inst.op, first) {
            (Op::Reshard(_), Some(first)) => return Some(first.clone()),
            (Op::Attention(op), Some(q)) => {
                let own = |i: usize| args[i].is_along(1) || self.tied.contains(id, inst.args[i], 1);
                let stray = args.iter().enumerate().any(|(i, a)| a.runs_along(|d| d != 1 || i > 4));
                let apart = !args.iter().any(Known::is_state) && ![1, 2, 4].into_iter().any(own);
                made.along.clone_from(&q.along);
                return (!stray && (apart || is_hidden(op, args))).then_some(made);
            }
            (Op::Update(op), Some(cache)) if cache.is_state() => return updated(op, args),
            // Rounded, a state is one still.
            (Op::Convert(_), Some(x)) if x.is_state() => return Some(x.clone()),
            _ if args.iter().any(Known::is_state) => return None,
            _ => {}
        }
        let table = match &inst.op {
            Op::Gather(Gather { batch, .. }) => {
                let own = first?.is_along(*batch) || self.tied.contains(id, *inst.args.first()?, *batch);
                if own && !matches!(args.get(1)?.kind, Kind::Length(n) if n <= -1.0) {
                    return None;
                }
                Some(*batch)
            }
            Op::Update(Update { batch, .. }) if args.get(1)?.is_along(*batch) => return None,
            _ => None,
        };
        let rule = rule(func, inst);
        made.along = passed(&rule, inst, args, table)?;
        made.kind = kind(func, &rule, inst, args);
        made.value = value(func, inst, args, &made.along);
        Some(made)
    }
}

/// Whether no query of the run sees a key at a position that it does not have.
fn is_hidden(op: &Attention, args: &[Known]) -> bool {
    let [q, k, v, q_pos, k_pos, ..] = args else { return false };
    let within = |positions: &Known| positions.kind == Kind::Iota(1) && q.is_along(1);
    match (k.kind, v.kind) {
        (Kind::State { filled: a }, Kind::State { filled: b }) => {
            let next = matches!(q_pos.kind, Kind::Position(n) if n <= 0.0);
            op.causal && k_pos.kind == Kind::Iota(1) && (next || a && b && within(q_pos))
        }
        (Kind::State { .. }, _) | (_, Kind::State { .. }) => false,
        _ => {
            let masked = matches!(k_pos.value, Value::Absent(x) if x < 0.0) && k_pos.is_along(1);
            let last = matches!(q_pos.kind, Kind::Length(n) if n <= -1.0);
            masked || op.causal && k_pos.kind == Kind::Iota(1) && (last || within(q_pos))
        }
    }
}

/// A state into which something is written.
fn updated(op: &Update, args: &[Known]) -> Option<Known> {
    let [state, new, start] = args else { return None };
    let Kind::State { filled } = state.kind else { return None };
    let stray = new.is_state() || new.runs_along(|d| d != op.batch) || start.runs_along(|_| true);
    let fills = new.is_along(op.batch);
    // From the first position on: no later one is without what this run or one before it wrote.
    let begins = !fills || start.value == Value::Everywhere(0.0);
    (!stray && begins).then(|| Known { kind: Kind::State { filled: filled || fills }, ..state.clone() })
}

fn rule(func: &Func, inst: &Inst) -> Rule {
    let types = |vs: &[ValueId]| vs.iter().map(|&v| func.ty(v)).collect::<Vec<&Type>>();
    inst.op.rule(&types(&inst.args), &types(&inst.results))
}

/// Dims of the result that run along the positions: those to which such dims of operands pass. `table`: a dim of the first
/// operand that is looked up.
fn passed(rule: &Rule, inst: &Inst, args: &[Known], table: Option<usize>) -> Option<Vec<bool>> {
    let result = rule.results.first()?;
    let mut along = vec![false; result.len()];
    for (i, (known, dims)) in args.iter().zip(&rule.operands).enumerate().filter(|(i, _)| inst.op.reads(*i)) {
        for (d, factors) in dims.iter().enumerate() {
            if !known.is_along(d) || i == 0 && table == Some(d) {
                continue;
            }
            let [factor] = factors[..] else { return None };
            let to = result.iter().position(|r| r == factors);
            *along.get_mut(to.filter(|_| rule.factors[factor].kind == FactorKind::Pass)?)? = true;
        }
    }
    Some(along)
}

/// What kind of number the result is.
fn kind(func: &Func, rule: &Rule, inst: &Inst, args: &[Known]) -> Kind {
    let is_int = |v: &ValueId| matches!(func.ty(*v).dtype, DType::I32 | DType::I64);
    if !inst.results.iter().all(is_int) {
        return Kind::Other;
    }
    let more = |kind: Kind, n: f64| match kind {
        Kind::Length(m) => Kind::Length(m + n),
        Kind::Position(m) => Kind::Position(m + n),
        _ => Kind::Other,
    };
    match (&inst.op, args) {
        (Op::Iota(iota), []) => Kind::Iota(iota.dim),
        (Op::Binary(BinaryKind::Add), [a, Known { value: Value::Everywhere(n), .. }]) => more(a.kind, *n),
        (Op::Binary(BinaryKind::Add), [Known { value: Value::Everywhere(n), .. }, b]) => more(b.kind, *n),
        (Op::Binary(BinaryKind::Sub), [a, Known { value: Value::Everywhere(n), .. }]) => more(a.kind, -n),
        (Op::Broadcast(_) | Op::Reshape(_) | Op::Transpose(_), [a]) if inst.args.iter().all(is_int) => {
            match a.kind {
                Kind::Iota(d) => {
                    let to = |dims: &Vec<Vec<usize>>| {
                        dims.iter().position(|r| r.len() == 1 && *r == rule.operands[0][d])
                    };
                    rule.results.first().and_then(to).map_or(Kind::Other, Kind::Iota)
                }
                kind => kind,
            }
        }
        _ => Kind::Other,
    }
}

/// What the result is where the positions along its dims are not there.
fn value(func: &Func, inst: &Inst, args: &[Known], along: &[bool]) -> Value {
    // At an index that is not there, so is an operand that runs along the same dims.
    let number =
        |a: &Known| a.value.number().filter(|_| matches!(a.value, Value::Everywhere(_)) || a.along == along);
    match (&inst.op, args) {
        (Op::Constant(c), []) => match c.value {
            Literal::Splat(x) => Value::Everywhere(x),
            Literal::Dense(_) => Value::Unknown,
        },
        (Op::Broadcast(_) | Op::Reshape(_) | Op::Transpose(_), [a]) => a.value,
        (Op::Select, [seen, a, b]) => {
            let chosen = number(seen).map(|seen| if seen != 0.0 { a } else { b });
            let everywhere = [seen, a, b].iter().all(|x| matches!(x.value, Value::Everywhere(_)));
            match chosen.and_then(number) {
                Some(x) if everywhere => Value::Everywhere(x),
                Some(x) => Value::Absent(x),
                None => Value::Unknown,
            }
        }
        (Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Convert(_), _) => {
            let scalar = |(a, v): (&Known, &ValueId)| {
                Tensor::new(Type::new(func.ty(*v).dtype, []), vec![number(a)?]).ok()
            };
            let operands: Option<Vec<Tensor>> = args.iter().zip(&inst.args).map(scalar).collect();
            let Some(operands) = operands else { return Value::Unknown };
            let types = inst.results.iter().map(|&v| Type::new(func.ty(v).dtype, [])).collect::<Vec<_>>();
            let made = inst.op.eval(
                &operands.iter().collect::<Vec<_>>(),
                &types.iter().collect::<Vec<_>>(),
                At::default(),
            );
            let everywhere = args.iter().all(|a| matches!(a.value, Value::Everywhere(_)));
            match made.ok().and_then(|made| made.first()?.data.first().copied()) {
                Some(x) if everywhere => Value::Everywhere(x),
                Some(x) => Value::Absent(x),
                None => Value::Unknown,
            }
        }
        _ => Value::Unknown,
    }
}

/// Dims that are one with a dim of some input that runs along the positions, in whichever direction.
#[derive(Default)]
struct Tied {
    first: HashMap<(FuncId, ValueId), usize>,
    parent: Vec<usize>,
    along: HashSet<usize>,
}

impl Tied {
    fn of(module: &Module) -> Self {
        let mut tied = Self::default();
        for (id, func) in &module.funcs {
            for (v, value) in &func.values {
                tied.first.insert((id, v), tied.parent.len());
                tied.parent.extend(tied.parent.len()..tied.parent.len() + value.ty.rank());
            }
        }
        for (id, func) in &module.funcs {
            for inst in &func.insts {
                tied.by_inst(module, (id, func), inst);
            }
        }
        for entry in &module.entries {
            let Some(func) = module.funcs.get(entry.func) else { continue };
            for (role, &v) in entry.args.iter().zip(&func.args) {
                let labels =
                    func.values[v].labels.iter().enumerate().filter(|_| matches!(role, Role::Input(_)));
                for (d, _) in labels.filter(|(_, l)| **l == Some(Label::Seq)) {
                    let root = tied.first.get(&(entry.func, v)).map(|first| tied.find(first + d));
                    tied.along.extend(root);
                }
            }
        }
        tied
    }

    fn find(&self, mut x: usize) -> usize {
        while let Some(&up) = self.parent.get(x).filter(|&&up| up != x) {
            x = up;
        }
        x
    }

    fn contains(&self, id: FuncId, v: ValueId, d: usize) -> bool {
        self.first.get(&(id, v)).is_some_and(|first| self.along.contains(&self.find(first + d)))
    }

    fn unite(&mut self, (f, v, d): (FuncId, ValueId, usize), (g, w, e): (FuncId, ValueId, usize)) {
        let (Some(a), Some(b)) = (self.first.get(&(f, v)), self.first.get(&(g, w))) else { return };
        let (a, b) = (self.find(a + d), self.find(b + e));
        // The earlier one stays: as values are numbered in their order, paths stay short.
        if let Some(up) = self.parent.get_mut(a.max(b)) {
            *up = a.min(b);
        }
    }

    fn by_inst(&mut self, module: &Module, (id, func): (FuncId, &Func), inst: &Inst) {
        let rank = |v: ValueId| func.ty(v).rank();
        match &inst.op {
            Op::Call(callee) => {
                let Some(inner) = module.funcs.get(*callee) else { return };
                let pairs = inst.args.iter().zip(&inner.args).chain(inst.results.iter().zip(&inner.results));
                for (&a, &b) in pairs {
                    (0..rank(a)).for_each(|d| self.unite((id, a, d), (*callee, b, d)));
                }
            }
            Op::Reshard(_) => {
                for (&a, &b) in inst.args.iter().zip(&inst.results) {
                    (0..rank(a)).for_each(|d| self.unite((id, a, d), (id, b, d)));
                }
            }
            _ => {
                let rule = rule(func, inst);
                let sides =
                    inst.args.iter().zip(&rule.operands).chain(inst.results.iter().zip(&rule.results));
                let mut first: HashMap<usize, (FuncId, ValueId, usize)> = HashMap::new();
                for (&v, dims) in sides {
                    for (d, factors) in dims.iter().enumerate() {
                        let [f] = factors[..] else { continue };
                        if !matches!(rule.factors[f].kind, FactorKind::Reduce(_)) {
                            self.unite(*first.entry(f).or_insert((id, v, d)), (id, v, d));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
