//! The steps of every stage against the entry's chain of calls: each call once, in order, on one stage, with the right bindings; every
//! value where it is read; messages in order.

use super::{fault, instrs, links};
use pcc_ir::graph::Role;
use pcc_ir::program::{ConstantData, EntryProgram, FuncProgram, IoSpec, Program, Slot, StageProgram, Step};
use pcc_ir::{Diagnostic, Entry, Func, FuncId, Inst, Module, Op, Type, ValueId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Offsets in an arena are multiples of this.
const ALIGN: u64 = 64;

pub(super) fn check(local: &Module, program: &Program) -> Result<(), Diagnostic> {
    let mut proofs =
        Proofs { local, program, calls: HashMap::new(), copies: HashMap::new(), tables: HashMap::new() };
    let mut state_stage: HashMap<u32, usize> = HashMap::new();
    for (entry, made) in local.entries.iter().zip(&program.entries) {
        let walk = Walk::new(local, program, entry, made);
        walk.run(&mut proofs, &mut state_stage)?;
        let func = &local.funcs[entry.func];
        let name = |tag: u32| match func.values.get(ValueId::from_u32(tag)) {
            Some(_) => fault::value(func, ValueId::from_u32(tag)),
            None => format!("message {tag}"),
        };
        links::check(made, name)?;
    }
    Ok(())
}

/// Which instruction lists have been checked against which functions.
struct Proofs<'a> {
    local: &'a Module,
    program: &'a Program,
    /// Listed constants that calls of the pair must bind.
    calls: HashMap<(FuncId, u32), Result<Vec<ConstantData>, Diagnostic>>,
    copies: HashMap<u32, bool>,
    /// Whether a constant of the program is the one that a pair's slot wants.
    tables: HashMap<(FuncId, u32, usize, u32), bool>,
}

impl<'a> Proofs<'a> {
    fn call(&mut self, id: FuncId, index: u32, code: &FuncProgram) -> &Result<Vec<ConstantData>, Diagnostic> {
        let (local, program) = (self.local, self.program);
        self.calls.entry((id, index)).or_insert_with(|| instrs::check(program, &local.funcs[id], code))
    }

    /// Whether a function of the program only copies its argument, of this type.
    fn is_copy(&mut self, index: u32, code: &FuncProgram, ty: &Type) -> bool {
        if code.args != 1 || code.results != 1 {
            return false;
        }
        let program = self.program;
        let known = *self.copies.entry(index).or_insert_with(|| {
            let mut identity = Func::new(code.name.clone());
            let v = identity.arg(ty.clone(), "copied");
            identity.results.push(v);
            instrs::check(program, &identity, code).is_ok()
        });
        known && code.slot_bytes.iter().all(|&b| b == ty.bytes() as u64)
    }

    fn constant(&mut self, pair: (FuncId, u32), k: usize, slot: u32) -> bool {
        let (calls, program) = (&self.calls, self.program);
        *self.tables.entry((pair.0, pair.1, k, slot)).or_insert_with(|| {
            let wanted = calls.get(&pair).and_then(|r| r.as_ref().ok()).and_then(|c| c.get(k));
            wanted.is_some() && wanted == program.constants.get(slot as usize)
        })
    }
}

/// What one stage holds while it runs a micro-batch.
#[derive(Default)]
struct Held {
    /// Value in each state and output.
    fixed: HashMap<Slot, ValueId>,
    /// Start in the arena to end and value.
    arena: BTreeMap<u64, (u64, ValueId)>,
    /// Values that lost their place, and to what.
    lost: HashMap<ValueId, ValueId>,
}

struct Message {
    tag: u32,
    bytes: u64,
    value: ValueId,
}

struct Walk<'a> {
    local: &'a Module,
    program: &'a Program,
    entry: &'a Entry,
    made: &'a EntryProgram,
    func: &'a Func,
    /// Calls of the chain.
    calls: Vec<(&'a Inst, FuncId)>,
    /// Role and, for inputs, number of each argument.
    roles: HashMap<ValueId, Slot>,
    /// Argument value of each state.
    states: HashMap<u32, ValueId>,
    next_call: usize,
    next_layer: u32,
    links: HashMap<(usize, usize), VecDeque<Message>>,
    /// What outputs hold, and on which stage.
    outputs: HashMap<u32, Vec<(usize, ValueId)>>,
    /// What states hold at the end.
    new_states: HashMap<u32, ValueId>,
}

impl<'a> Walk<'a> {
    fn new(local: &'a Module, program: &'a Program, entry: &'a Entry, made: &'a EntryProgram) -> Self {
        let func = &local.funcs[entry.func];
        let mut inputs = 0;
        let mut states = HashMap::new();
        let mut roles = HashMap::new();
        for (&v, role) in func.args.iter().zip(&entry.args) {
            let slot = match role {
                Role::Input(_) => {
                    inputs += 1;
                    Slot::Input(inputs - 1)
                }
                Role::Param(p) => Slot::Param(p.as_u32()),
                Role::State(s) => {
                    states.insert(s.as_u32(), v);
                    Slot::State(s.as_u32())
                }
            };
            roles.insert(v, slot);
        }
        let call = |inst: &'a Inst| match inst.op {
            Op::Call(id) => Some((inst, id)),
            _ => None,
        };
        Self {
            local,
            program,
            entry,
            made,
            func,
            calls: func.insts.iter().filter_map(call).collect(),
            roles,
            states,
            next_call: 0,
            next_layer: 0,
            links: HashMap::new(),
            outputs: HashMap::new(),
            new_states: HashMap::new(),
        }
    }

    fn run(
        mut self,
        proofs: &mut Proofs<'a>,
        state_stage: &mut HashMap<u32, usize>,
    ) -> Result<(), Diagnostic> {
        if self.calls.len() != self.func.insts.len() {
            return Err(fault::of_func(self.func, "is an entry that does more than call functions"));
        }
        let made: &'a EntryProgram = self.made;
        for (stage, steps) in made.stages.iter().enumerate() {
            self.stage(stage, steps, proofs, state_stage)?;
        }
        if let Some((inst, id)) = self.calls.get(self.next_call) {
            let name = &self.local.funcs[*id].name;
            let what = format!("is made by no stage: the call of `{name}` is missing");
            return Err(fault::of_inst(self.func, inst, &what));
        }
        if let Some(((from, to), message)) = self.links.iter().find_map(|(k, q)| Some((k, q.front()?))) {
            let what = format!("is sent by stage {from} to stage {to}, which never receives it");
            return Err(fault::of_value(self.func, message.value, &what));
        }
        self.check_results()
    }

    fn stage(
        &mut self,
        stage: usize,
        steps: &'a StageProgram,
        proofs: &mut Proofs<'a>,
        state_stage: &mut HashMap<u32, usize>,
    ) -> Result<(), Diagnostic> {
        let mut held = Held::default();
        for (at, step) in steps.steps.iter().enumerate() {
            let place = Place { stage, step: at, arena: steps.arena_bytes, entry: &self.entry.name };
            match step {
                Step::Call { func, slots, layer } => {
                    self.call(&place, &mut held, proofs, (*func, slots, *layer))?;
                    for slot in slots {
                        let Slot::State(s) = *slot else { continue };
                        let first = *state_stage.entry(s).or_insert(stage);
                        if first != stage {
                            let name = self.local.states.values().nth(s as usize).map_or("?", |x| &x.name);
                            return Err(
                                place.wrong(format!("uses state `{name}`, which stage {first} holds"))
                            );
                        }
                    }
                }
                Step::Send { to, tag, slot, bytes } => {
                    let value = self.content(&place, &held, *slot, *tag)?;
                    self.check_peer(&place, *to, value)?;
                    self.check_bytes(&place, value, *bytes)?;
                    let message = Message { tag: *tag, bytes: *bytes, value };
                    self.links.entry((stage, *to as usize)).or_default().push_back(message);
                }
                Step::Recv { from, tag, slot, bytes } => {
                    self.recv(&place, &mut held, (*from, *tag, *slot, *bytes))?
                }
            }
        }
        for (slot, value) in held.fixed {
            match slot {
                Slot::Output(o) => self.outputs.entry(o).or_default().push((stage, value)),
                Slot::State(s) => {
                    self.new_states.insert(s, value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_peer(&self, place: &Place<'_>, peer: u32, value: ValueId) -> Result<(), Diagnostic> {
        match (peer as usize) < self.made.stages.len() && peer as usize != place.stage {
            true => Ok(()),
            false => {
                let name = self.name(value);
                Err(place.wrong(format!("exchanges {name} with stage {peer}, which is no other stage")))
            }
        }
    }

    /// What messages call a value; also what a tag stands for.
    fn name(&self, value: ValueId) -> String {
        match self.func.values.get(value) {
            Some(_) => fault::value(self.func, value),
            None => format!("message {}", value.as_u32()),
        }
    }

    /// What the next call of the chain makes, for messages.
    fn next_made(&self) -> String {
        match self.calls.get(self.next_call) {
            Some((inst, id)) => {
                let made = inst.results.first().map_or("nothing".to_owned(), |&v| self.name(v));
                format!("`{}` is next, to make {made}", self.local.funcs[*id].name)
            }
            None => {
                let last = self.func.insts.last().and_then(|i| i.results.first());
                let made = last.map_or("nothing".to_owned(), |&v| self.name(v));
                format!("the last call of the entry has made {made}")
            }
        }
    }

    fn check_bytes(&self, place: &Place<'_>, value: ValueId, bytes: u64) -> Result<(), Diagnostic> {
        let wanted = self.func.ty(value).bytes() as u64;
        match bytes == wanted {
            true => Ok(()),
            false => {
                let name = fault::value(self.func, value);
                Err(place.wrong(format!("moves {bytes} bytes of {name}, which has {wanted}")))
            }
        }
    }

    fn recv(
        &mut self,
        place: &Place<'_>,
        held: &mut Held,
        (from, tag, slot, bytes): (u32, u32, Slot, u64),
    ) -> Result<(), Diagnostic> {
        self.check_peer(place, from, ValueId::from_u32(tag))?;
        let queue = self.links.entry((from as usize, place.stage)).or_default();
        let Some(message) = queue.pop_front() else {
            let name = self.name(ValueId::from_u32(tag));
            return Err(place.wrong(format!("waits for {name}, which stage {from} does not send before")));
        };
        if message.tag != tag || message.bytes != bytes {
            let name = fault::value(self.func, message.value);
            let why =
                format!("it expects tag {tag} of {bytes} bytes, not {} of {}", message.tag, message.bytes);
            return Err(place.wrong(format!("receives {name} where it expects another message")).why(why));
        }
        match slot {
            Slot::Value(offset) => self.put(place, held, offset, message.value),
            _ => Err(place
                .wrong(format!("receives {} into no value slot", fault::value(self.func, message.value)))),
        }
    }

    /// The value that a slot holds.
    fn content(&self, place: &Place<'_>, held: &Held, slot: Slot, tag: u32) -> Result<ValueId, Diagnostic> {
        let found = match slot {
            Slot::Value(offset) => held.arena.get(&offset).map(|&(_, v)| v),
            Slot::State(s) => held.fixed.get(&slot).or(self.states.get(&s)).copied(),
            Slot::Output(_) => held.fixed.get(&slot).copied(),
            Slot::Param(_) | Slot::Input(_) => self.roles.iter().find(|r| *r.1 == slot).map(|r| *r.0),
            Slot::Const(_) => None,
        };
        found.ok_or_else(|| {
            let (slot, name) = (describe(self.program, slot), self.name(ValueId::from_u32(tag)));
            place.wrong(format!("reads {slot} for {name}, but no value is there"))
        })
    }

    /// Whether a slot holds a value.
    fn holds(&self, held: &Held, slot: Slot, value: ValueId) -> bool {
        match slot {
            Slot::Value(offset) => {
                let end = offset.checked_add(self.func.ty(value).bytes() as u64);
                held.arena.get(&offset).is_some_and(|&(e, v)| v == value && Some(e) == end)
            }
            Slot::State(s) => held.fixed.get(&slot).or(self.states.get(&s)) == Some(&value),
            Slot::Output(_) => held.fixed.get(&slot) == Some(&value),
            Slot::Param(_) | Slot::Input(_) => self.roles.get(&value) == Some(&slot),
            Slot::Const(_) => false,
        }
    }

    /// Puts a value into the arena; whatever it covers is gone.
    fn put(&self, place: &Place<'_>, held: &mut Held, offset: u64, value: ValueId) -> Result<(), Diagnostic> {
        let bytes = self.func.ty(value).bytes() as u64;
        let end = offset.checked_add(bytes).filter(|&e| e <= place.arena && offset.is_multiple_of(ALIGN));
        let Some(end) = end else {
            let name = fault::value(self.func, value);
            let arena = place.arena;
            return Err(
                place.wrong(format!("puts {name}, of {bytes} bytes, at {offset} of an arena of {arena}"))
            );
        };
        let covered: Vec<u64> =
            held.arena.iter().filter(|&(&s, &(e, _))| s < end && offset < e).map(|(&s, _)| s).collect();
        for start in covered {
            if let Some((_, old)) = held.arena.remove(&start) {
                held.lost.insert(old, value);
            }
        }
        held.lost.remove(&value);
        held.arena.insert(offset, (end, value));
        Ok(())
    }

    fn call(
        &mut self,
        place: &Place<'_>,
        held: &mut Held,
        proofs: &mut Proofs<'a>,
        (index, slots, layer): (u32, &[Slot], Option<u32>),
    ) -> Result<(), Diagnostic> {
        let program: &'a Program = self.program;
        let Some(code) = program.funcs.get(index as usize) else {
            let next = self.next_made();
            return Err(
                place.wrong(format!("calls function {index} of the program, which does not exist; {next}"))
            );
        };
        if slots.len() != code.slot_bytes.len() {
            let (have, want, next) = (slots.len(), code.slot_bytes.len(), self.next_made());
            return Err(
                place.wrong(format!("binds {have} slots of `{}`, which has {want}; {next}", code.name))
            );
        }
        let wanted = self.calls.get(self.next_call).copied();
        if layer.is_none()
            && let (Some(&from), Some(&to)) = (slots.first(), slots.get(1))
            && code.args == 1
            && code.results == 1
            && wanted.is_none_or(|(_, id)| proofs.call(id, index, code).is_err())
        {
            return self.copy(place, held, proofs, (index, code, from, to));
        }
        let Some((inst, id)) = wanted else {
            return Err(place.wrong(format!("calls `{}`, but {}", code.name, self.next_made())));
        };
        if let Err(why) = proofs.call(id, index, code) {
            let callee = &self.local.funcs[id].name;
            if code.name == *callee {
                return Err(why.clone());
            }
            let name = inst.results.first().map_or("nothing".to_owned(), |&v| fault::value(self.func, v));
            let what = format!("calls `{}` where `{callee}` is to make {name}", code.name);
            return Err(place.wrong(what).why(why.what.clone()));
        }
        self.check_layer(place, inst, layer)?;
        self.next_call += 1;
        let args = code.args as usize;
        for (i, (&v, &slot)) in inst.args.iter().zip(slots).enumerate() {
            if !self.holds(held, slot, v) {
                return Err(self.misbound(place, held, inst, (i, v, slot)));
            }
        }
        for (k, &slot) in slots.iter().skip(args + code.results as usize).enumerate() {
            let right = matches!(slot, Slot::Const(c) if proofs.constant((id, index), k, c));
            if !right {
                let made = inst.results.first().map_or("nothing".to_owned(), |&v| self.name(v));
                let what =
                    format!("binds another constant than `{}` lists as its {k}th to make {made}", code.name);
                return Err(place.wrong(what));
            }
        }
        self.results(place, held, code, (inst, slots))
    }

    /// Layers are numbered along the chain.
    fn check_layer(&mut self, place: &Place<'_>, inst: &Inst, layer: Option<u32>) -> Result<(), Diagnostic> {
        match layer {
            None => Ok(()),
            Some(n) if n == self.next_layer => {
                self.next_layer += 1;
                Ok(())
            }
            Some(n) => {
                let name = inst.results.first().map_or("a call".to_owned(), |&v| fault::value(self.func, v));
                Err(place.wrong(format!("makes {name} as layer {n} where layer {} is next", self.next_layer)))
            }
        }
    }

    /// Why an argument's slot is wrong.
    fn misbound(
        &self,
        place: &Place<'_>,
        held: &Held,
        inst: &Inst,
        (i, v, slot): (usize, ValueId, Slot),
    ) -> Diagnostic {
        let made = inst.results.first().map_or("nothing".to_owned(), |&r| fault::value(self.func, r));
        let name = fault::value(self.func, v);
        let bound = describe(self.program, slot);
        let here = match slot {
            Slot::Value(_) | Slot::State(_) | Slot::Output(_) => {
                match self.content(place, held, slot, v.as_u32()) {
                    Ok(other) if other != v => format!(", which holds {}", fault::value(self.func, other)),
                    Ok(_) => ", which holds only a part of it".to_owned(),
                    Err(_) => ", which holds no value there".to_owned(),
                }
            }
            _ => String::new(),
        };
        let mut d = place
            .wrong(format!(
                "binds argument {i} of the call that makes {made} to {bound}{here}; it should be {name}"
            ))
            .at(format!("`{}` in entry `{}`", inst.loc, self.entry.name));
        if let Some(&by) = held.lost.get(&v) {
            d = d.why(format!("{name} was overwritten by {}", fault::value(self.func, by)));
        }
        d
    }

    /// Binds results: in-place ones stay where they are, others go to places that the call does not read.
    fn results(
        &self,
        place: &Place<'_>,
        held: &mut Held,
        code: &FuncProgram,
        (inst, slots): (&Inst, &[Slot]),
    ) -> Result<(), Diagnostic> {
        let args = code.args as usize;
        for (r, (&v, &slot)) in inst.results.iter().zip(slots.iter().skip(args)).enumerate() {
            let name = || fault::value(self.func, v);
            let partner =
                code.in_place.iter().find(|p| p.1 as usize == args + r).and_then(|p| slots.get(p.0 as usize));
            if let Some(&partner) = partner {
                let state = matches!(slot, Slot::State(_));
                let shared = slots.iter().filter(|&&s| s == slot).count() > 2;
                if slot != partner || !state || shared {
                    let (a, b) = (describe(self.program, partner), describe(self.program, slot));
                    return Err(place.wrong(format!(
                        "updates {} in place, but takes it from {a} and puts it into {b}",
                        name()
                    )));
                }
                held.fixed.insert(slot, v);
                continue;
            }
            let others = slots.iter().zip(&code.slot_bytes).enumerate().filter(|(i, _)| *i != args + r);
            let bytes = self.func.ty(v).bytes() as u64;
            if let Some((i, _)) = others.into_iter().find(|(_, (s, b))| overlap((slot, bytes), (**s, **b))) {
                let what = if i < args { "an argument" } else { "another result" };
                return Err(place.wrong(format!("puts {} over {what} of the same call", name())));
            }
            match slot {
                Slot::Value(offset) => self.put(place, held, offset, v)?,
                Slot::Output(_) | Slot::State(_) => {
                    let room = self.room(slot);
                    if room != Some(bytes) {
                        let to = describe(self.program, slot);
                        return Err(place.wrong(format!("puts {}, of {bytes} bytes, into {to}", name())));
                    }
                    held.fixed.insert(slot, v);
                }
                _ => {
                    return Err(place.wrong(format!(
                        "writes {} into {}",
                        name(),
                        describe(self.program, slot)
                    )));
                }
            }
        }
        Ok(())
    }

    /// Bytes of a state or output.
    fn room(&self, slot: Slot) -> Option<u64> {
        let bytes = |ty: &Type, s: &pcc_ir::Sharding| s.local_type(ty).bytes() as u64;
        match slot {
            Slot::Output(o) => {
                self.made.outputs.get(o as usize).map(|IoSpec { ty, sharding, .. }| bytes(ty, sharding))
            }
            Slot::State(s) => self.program.states.get(s as usize).map(|s| bytes(&s.ty, &s.sharding)),
            _ => None,
        }
    }

    /// A copy of a value into an output or state.
    fn copy(
        &self,
        place: &Place<'_>,
        held: &mut Held,
        proofs: &mut Proofs<'a>,
        (index, code, from, to): (u32, &FuncProgram, Slot, Slot),
    ) -> Result<(), Diagnostic> {
        let next = self.calls.get(self.next_call).map_or(self.func.insts.last(), |c| Some(c.0));
        let made = next.and_then(|i| i.results.first()).map_or(u32::MAX, |v| v.as_u32());
        let value = self.content(place, held, from, made)?;
        let name = fault::value(self.func, value);
        if !proofs.is_copy(index, code, self.func.ty(value)) {
            let next = self.calls.get(self.next_call).map(|&(_, id)| id);
            if let Some(id) = next.filter(|&id| self.local.funcs[id].name == code.name)
                && let Err(why) = proofs.call(id, index, code)
            {
                return Err(why.clone());
            }
            let next = self.next_made();
            return Err(place.wrong(format!("calls `{}` on {name}, which is no copy; {next}", code.name)));
        }
        if self.room(to) != Some(self.func.ty(value).bytes() as u64) || from == to {
            return Err(place.wrong(format!("copies {name} into {}", describe(self.program, to))));
        }
        held.fixed.insert(to, value);
        Ok(())
    }

    /// Every output and new state is where it belongs at the end.
    fn check_results(&self) -> Result<(), Diagnostic> {
        let mut output = 0;
        for (r, &v) in self.func.results.iter().enumerate() {
            let name = &self.entry.results[r];
            if let Some(&(a, _)) = self.entry.aliases.iter().find(|&&(_, alias)| alias == r) {
                let Role::State(s) = self.entry.args[a] else { continue };
                let held = self.new_states.get(&s.as_u32()).or(self.states.get(&s.as_u32()));
                if held != Some(&v) {
                    let what = format!("is the new value of state `{name}`, but does not end up there");
                    return Err(fault::of_value(self.func, v, &what));
                }
                continue;
            }
            let held = self.outputs.get(&output).map(Vec::as_slice).unwrap_or_default();
            let right = held.iter().filter(|(_, h)| *h == v).count();
            if right != 1 || held.len() != 1 {
                let what = match held.len() {
                    0 => format!("is output `{name}`, which no stage writes"),
                    _ => format!("is output `{name}`, which is written with other values or twice"),
                };
                return Err(fault::of_value(self.func, v, &what));
            }
            output += 1;
        }
        Ok(())
    }
}

/// A step, for messages.
struct Place<'a> {
    stage: usize,
    step: usize,
    arena: u64,
    entry: &'a str,
}

impl Place<'_> {
    fn wrong(&self, what: String) -> Diagnostic {
        let Place { stage, step, entry, .. } = self;
        Diagnostic::check(format!("step {step} of stage {stage} of entry `{entry}` {what}"))
            .at(format!("stage {stage} of entry `{entry}`"))
    }
}

/// Whether two slots of these sizes share bytes.
fn overlap((a, n): (Slot, u64), (b, m): (Slot, u64)) -> bool {
    match (a, b) {
        (Slot::Value(x), Slot::Value(y)) => x < y.saturating_add(m) && y < x.saturating_add(n),
        (a, b) => a == b,
    }
}

/// What messages call a slot.
fn describe(program: &Program, slot: Slot) -> String {
    let named = |kind: &str, i: u32, name: Option<&String>| match name {
        Some(name) => format!("{kind} `{name}`"),
        None => format!("{kind} {i}, which does not exist"),
    };
    match slot {
        Slot::Param(i) => named("parameter", i, program.params.get(i as usize).map(|p| &p.name)),
        Slot::State(i) => named("state", i, program.states.get(i as usize).map(|s| &s.name)),
        Slot::Input(i) => format!("input {i}"),
        Slot::Output(i) => format!("output {i}"),
        Slot::Const(i) => format!("constant {i}"),
        Slot::Value(offset) => format!("the arena at {offset}"),
    }
}
