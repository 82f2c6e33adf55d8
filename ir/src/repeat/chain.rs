//! An entry unfolded to numbers.

use super::{MOST, Numbering, Repeat};
use crate::graph::{Entry, Func, FuncId, Inst, Module, Role, ValueId};
use crate::ops::Op;
use cranelift_entity::EntityRef;
use std::ops::Range;

/// An entry as the chain of all its calls, each repetition of a repeat by itself. Values, parameters and states are numbers: a value of
/// the entry's function has its own number, in a body it is the value of the first repetition, and those of later repetitions are
/// numbered on from there. Linear in the calls, and some words each.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// Value of the entry's function that each value of the chain is one of.
    pub origins: Vec<ValueId>,
    /// Which repetition each value is of; 0 outside of bodies.
    pub elements: Vec<u32>,
    pub calls: Vec<ChainCall>,
    /// What each argument is, in order.
    pub args: Vec<(u32, Bound)>,
    pub results: Vec<ChainResult>,
    operands: Vec<u32>,
}

#[derive(Clone, Debug)]
pub struct ChainCall {
    /// Index of the instruction in the entry's function.
    pub inst: u32,
    /// Which repetition of the body this is; 0 outside.
    pub repetition: u32,
    pub func: FuncId,
    args: Range<u32>,
    results: Range<u32>,
}

/// What an argument of an entry is: a number in the order of inputs, or by the [`Numbering`] of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Input(u32),
    Param(u32),
    State(u32),
}

/// A result of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainResult {
    pub value: u32,
    /// Index among the results of the entry's function.
    pub index: u32,
    /// Number of the state it is the new value of.
    pub state: Option<u32>,
    /// Element of the stack of states; 0 elsewhere.
    pub element: u32,
}

/// Where a value with one instance a repetition belongs.
#[derive(Clone, Copy)]
struct Copies {
    repeat: usize,
    index: u32,
}

struct Builder<'a> {
    func: &'a Func,
    repeats: &'a [Repeat],
    /// For stacks, and results of bodies.
    copies: Vec<Option<Copies>>,
    /// Values with copies of each repeat, in order.
    copied: Vec<Vec<ValueId>>,
    /// Number of the first copy of each repeat.
    base: Vec<u32>,
    /// For a result of the calls before a body: that result of the body.
    carried: Vec<Option<(usize, ValueId)>>,
}

impl Chain {
    /// Unfolds an entry whose function is well formed as far as single functions go.
    ///
    /// # Errors
    /// Why the entry is not a chain of calls with well-formed repeats.
    pub fn of(module: &Module, entry: &Entry) -> Result<Self, String> {
        let params = Numbering::new(module.params.values().map(|p| p.stack))?;
        let states = Numbering::new(module.states.values().map(|s| s.stack))?;
        Self::with(module, entry, &params, &states)
    }

    /// As [`Chain::of`], with the numberings of the module's tables.
    ///
    /// # Errors
    /// As [`Chain::of`].
    pub fn with(
        module: &Module,
        entry: &Entry,
        params: &Numbering,
        states: &Numbering,
    ) -> Result<Self, String> {
        let func = module.funcs.get(entry.func).ok_or("its function does not exist")?;
        let (builder, state_of) = Builder::of(module, entry, func)?;
        let mut chain = builder.chain()?;
        let mut input = 0;
        let bound = |role: &Role, k: u32, input: &mut u32| match role {
            Role::Input(_) => {
                *input += 1;
                Bound::Input(*input - 1)
            }
            Role::Param(p) => Bound::Param(params.number(p.as_u32(), k)),
            Role::State(s) => Bound::State(states.number(s.as_u32(), k)),
        };
        for (i, k) in builder.by_element(&func.args) {
            let role = entry.args.get(i).ok_or("it gives its function too few arguments")?;
            chain.args.push((builder.instance(func.args[i], k), bound(role, k, &mut input)));
        }
        // A result that is no new state is one value, whatever it is a copy of.
        let elements: Vec<ValueId> = func.results.clone();
        let copied = |i: usize| state_of[i].is_some_and(|(arg, _)| builder.copies[arg].is_some());
        for (i, k) in builder.by_element_where(&elements, copied) {
            let v = func.results[i];
            let (value, element) = match copied(i) {
                true => (builder.instance(v, k), k),
                false => (builder.outside(v)?, 0),
            };
            let state = state_of[i].map(|(_, s)| states.number(s, k));
            chain.results.push(ChainResult { value, index: i as u32, state, element });
        }
        Ok(chain)
    }

    pub fn args_of(&self, call: &ChainCall) -> &[u32] {
        self.operands.get(call.args.start as usize..call.args.end as usize).unwrap_or_default()
    }

    pub fn results_of(&self, call: &ChainCall) -> &[u32] {
        self.operands.get(call.results.start as usize..call.results.end as usize).unwrap_or_default()
    }
}

/// Whether an entry is a chain of calls with well-formed repeats, in time that does not depend on their counts.
///
/// # Errors
/// As [`Chain::of`].
pub fn check(module: &Module, entry: &Entry) -> Result<(), String> {
    let func = module.funcs.get(entry.func).ok_or("its function does not exist")?;
    let (builder, state_of) = Builder::of(module, entry, func)?;
    for (at, inst) in func.insts.iter().enumerate() {
        let body = builder.body(at);
        for &v in &inst.args {
            body.map_or_else(|| builder.outside(v), |r| builder.inside(r, v, 0))?;
        }
    }
    let stacked = |state: &Option<(usize, u32)>| state.is_some_and(|(arg, _)| builder.copies[arg].is_some());
    let mut plain = func.results.iter().zip(&state_of).filter(|(_, state)| !stacked(state));
    plain.try_for_each(|(&v, _)| builder.outside(v).map(drop))
}

/// For each result: the argument whose new value it is, and its state.
type StateOf = Vec<Option<(usize, u32)>>;

impl<'a> Builder<'a> {
    fn of(module: &Module, entry: &'a Entry, func: &'a Func) -> Result<(Self, StateOf), String> {
        let mut builder = Self::new(func, &entry.repeats)?;
        builder.stacks(module, entry)?;
        let mut state_of: StateOf = vec![None; func.results.len()];
        for &(a, r) in &entry.aliases {
            let (Some(Role::State(s)), Some(&arg)) = (entry.args.get(a), func.args.get(a)) else {
                return Err("an alias is of no state".into());
            };
            let place = state_of.get_mut(r).ok_or("an alias is of no result")?;
            *place = Some((arg.index(), s.as_u32()));
        }
        builder.results(&state_of)?;
        Ok((builder, state_of))
    }

    fn new(func: &'a Func, repeats: &'a [Repeat]) -> Result<Self, String> {
        if func.insts.iter().any(|i| !matches!(i.op, Op::Call(_))) {
            return Err("it does more than call functions".into());
        }
        let mut out = Self {
            func,
            repeats,
            copies: vec![None; func.values.len()],
            copied: vec![Vec::new(); repeats.len()],
            base: Vec::new(),
            carried: vec![None; func.values.len()],
        };
        let mut free = 0;
        let mut calls = func.insts.len();
        for (r, repeat) in repeats.iter().enumerate() {
            let start = repeat.first.checked_sub(repeat.calls).filter(|&s| s >= free);
            let end = repeat.first.checked_add(repeat.calls).filter(|&e| e <= func.insts.len());
            let (Some(start), Some(end), 1.., 1..) = (start, end, repeat.calls, repeat.count) else {
                return Err(format!("repeat {r} is empty, out of order, or reaches outside of the calls"));
            };
            free = end;
            let more = (repeat.count as usize - 1).checked_mul(repeat.calls);
            calls = more
                .and_then(|m| calls.checked_add(m))
                .filter(|&n| n <= MOST as usize)
                .ok_or_else(|| format!("repeat {r} makes more than {MOST} calls"))?;
            let pairs = func.insts[start..repeat.first].iter().zip(&func.insts[repeat.first..end]);
            for (before, body) in pairs {
                out.pair(r, before, body)?;
            }
        }
        Ok(out)
    }

    /// The repeat whose body an instruction is in.
    fn body(&self, at: usize) -> Option<usize> {
        let r = self.repeats.partition_point(|r| r.first + r.calls <= at);
        self.repeats.get(r).filter(|repeat| repeat.first <= at).map(|_| r)
    }

    /// A call of a body, and the one in its place in the repetition before.
    fn pair(&mut self, r: usize, before: &Inst, body: &Inst) -> Result<(), String> {
        if before.op != body.op || before.results.len() != body.results.len() {
            return Err(format!("the body of repeat {r} calls other functions than the calls before it"));
        }
        for (&old, &new) in before.results.iter().zip(&body.results) {
            self.copy(r, new)?;
            let place = self.carried.get_mut(old.index()).ok_or("it has no such value")?;
            *place = Some((r, new));
        }
        Ok(())
    }

    fn copy(&mut self, r: usize, v: ValueId) -> Result<(), String> {
        let place = self.copies.get_mut(v.index()).ok_or("it has no such value")?;
        let index = self.copied[r].len() as u32;
        *place = Some(Copies { repeat: r, index });
        self.copied[r].push(v);
        Ok(())
    }

    /// Finds the repeat of every stack: it is used in one body, of its count, and nowhere else.
    fn stacks(&mut self, module: &Module, entry: &Entry) -> Result<(), String> {
        let mut stacked: Vec<Option<u32>> = vec![None; self.func.values.len()];
        for (&v, role) in self.func.args.iter().zip(&entry.args) {
            let stack = match role {
                Role::Input(_) => None,
                Role::Param(p) => module.params.get(*p).and_then(|p| p.stack),
                Role::State(s) => module.states.get(*s).and_then(|s| s.stack),
            };
            *stacked.get_mut(v.index()).ok_or("it has no such value")? = stack;
        }
        for (at, inst) in self.func.insts.iter().enumerate() {
            let r = self.body(at);
            for &v in &inst.args {
                let Some(count) = stacked.get(v.index()).copied().flatten() else { continue };
                let name = self.name(v);
                let Some(r) = r.filter(|&r| self.repeats[r].count == count) else {
                    return Err(format!(
                        "the stack {name} of {count} is used outside of a repeat of {count}"
                    ));
                };
                match self.copies[v.index()] {
                    None => self.copy(r, v)?,
                    Some(c) if c.repeat == r => {}
                    Some(_) => return Err(format!("the stack {name} is used by two repeats")),
                }
            }
        }
        let unused = |v: &&ValueId| stacked[v.index()].is_some() && self.copies[v.index()].is_none();
        if let Some(&v) = self.func.args.iter().find(unused) {
            return Err(format!("the stack {} is used by no repeat", self.name(v)));
        }
        let mut next = self.func.values.len();
        for (repeat, copied) in self.repeats.iter().zip(&self.copied) {
            self.base.push(next as u32);
            let more = copied.len().checked_mul(repeat.count as usize - 1);
            next = more
                .and_then(|m| next.checked_add(m))
                .filter(|&n| n < 1 << 28)
                .ok_or("its repeats make too many values")?;
        }
        Ok(())
    }

    /// What messages call a value.
    fn name(&self, v: ValueId) -> String {
        match self.func.values.get(v).map(|value| value.name.as_str()) {
            None | Some("") => v.to_string(),
            Some(name) => format!("`{name}` ({v})"),
        }
    }

    /// New values of stacks are made by the bodies that use them; no stack is a result.
    fn results(&self, state_of: &[Option<(usize, u32)>]) -> Result<(), String> {
        for (&v, state) in self.func.results.iter().zip(state_of) {
            let made = self.copies.get(v.index()).copied().flatten();
            let of = state.and_then(|(arg, _)| self.copies[arg]);
            match (made, of) {
                (Some(made), Some(of)) if made.repeat == of.repeat => {}
                (_, None) => {}
                _ => {
                    let name = self.name(v);
                    return Err(format!(
                        "{name}, the new value of a stack of states, is made outside of its repeat"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The number of a value with copies in one repetition; of any other, its own.
    fn instance(&self, v: ValueId, k: u32) -> u32 {
        match self.copies.get(v.index()).copied().flatten() {
            Some(c) if k > 0 => self.base[c.repeat] + (k - 1) * self.copied[c.repeat].len() as u32 + c.index,
            _ => v.as_u32(),
        }
    }

    /// What a value is outside of the body that makes it.
    fn outside(&self, v: ValueId) -> Result<u32, String> {
        match self.copies.get(v.index()).copied().flatten() {
            Some(_) if self.func.args.contains(&v) => {
                Err(format!("the stack {} is used outside of its repeat", self.name(v)))
            }
            Some(c) => Ok(self.instance(v, self.repeats[c.repeat].count - 1)),
            None => Ok(v.as_u32()),
        }
    }

    /// What an operand is in repetition k of a body.
    fn inside(&self, r: usize, v: ValueId, k: u32) -> Result<u32, String> {
        match (self.copies.get(v.index()).copied().flatten(), self.carried.get(v.index()).copied().flatten())
        {
            (Some(c), _) if c.repeat == r => Ok(self.instance(v, k)),
            (_, Some((of, body))) if of == r && k > 0 => Ok(self.instance(body, k - 1)),
            _ => self.outside(v),
        }
    }

    fn chain(&self) -> Result<Chain, String> {
        let mut chain = Chain {
            origins: self.func.values.keys().collect(),
            elements: vec![0; self.func.values.len()],
            ..Chain::default()
        };
        for (copied, repeat) in self.copied.iter().zip(self.repeats) {
            for k in 1..repeat.count {
                chain.origins.extend(copied);
                chain.elements.extend(copied.iter().map(|_| k));
            }
        }
        let mut at = 0;
        while at < self.func.insts.len() {
            let Some((r, repeat)) = self.body(at).map(|r| (r, self.repeats[r])) else {
                self.push(&mut chain, at, None, 0)?;
                at += 1;
                continue;
            };
            for k in 0..repeat.count {
                for inst in at..at + repeat.calls {
                    self.push(&mut chain, inst, Some(r), k)?;
                }
            }
            at += repeat.calls;
        }
        Ok(chain)
    }

    fn push(&self, chain: &mut Chain, at: usize, r: Option<usize>, k: u32) -> Result<(), String> {
        let inst = &self.func.insts[at];
        let Op::Call(func) = inst.op else { return Err("it does more than call functions".into()) };
        let start = chain.operands.len() as u32;
        for &v in &inst.args {
            chain.operands.push(match r {
                Some(r) => self.inside(r, v, k)?,
                None => self.outside(v)?,
            });
        }
        let mid = chain.operands.len() as u32;
        chain.operands.extend(inst.results.iter().map(|&v| self.instance(v, k)));
        let end = chain.operands.len() as u32;
        chain.calls.push(ChainCall {
            inst: at as u32,
            repetition: k,
            func,
            args: start..mid,
            results: mid..end,
        });
        Ok(())
    }

    /// Indices into `values` with the repetitions of each: those of one repeat that follow one another element by element.
    fn by_element(&self, values: &[ValueId]) -> Vec<(usize, u32)> {
        self.by_element_where(values, |_| true)
    }

    fn by_element_where(&self, values: &[ValueId], copied: impl Fn(usize) -> bool) -> Vec<(usize, u32)> {
        let repeat = |i: usize| {
            let copies = values.get(i).and_then(|v| self.copies.get(v.index()).copied().flatten());
            copies.filter(|_| copied(i)).map(|c| c.repeat)
        };
        let (mut out, mut at) = (Vec::new(), 0);
        while at < values.len() {
            let Some(r) = repeat(at) else {
                out.push((at, 0));
                at += 1;
                continue;
            };
            let end = (at..values.len()).find(|&i| repeat(i) != Some(r)).unwrap_or(values.len());
            for k in 0..self.repeats[r].count {
                out.extend((at..end).map(|i| (i, k)));
            }
            at = end;
        }
        out
    }
}
