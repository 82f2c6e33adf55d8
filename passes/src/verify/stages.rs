//! The steps of every stage against the entry's chain of calls: each call once, in order, on one stage, with the right bindings; every
//! value where it is read; messages in order.

mod bind;
mod proofs;

use super::{fault, links};
use pcc_ir::graph::Role;
use pcc_ir::program::{EntryProgram, Program, Slot, StageProgram, Step};
use pcc_ir::{Diagnostic, Entry, Func, FuncId, Inst, Module, Op, ValueId};
use proofs::Proofs;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Offsets in an arena are multiples of this.
const ALIGN: u64 = 64;

pub(super) fn check(local: &Module, program: &Program) -> Result<(), Diagnostic> {
    let mut proofs = Proofs::new(local, program);
    let mut state_stage: HashMap<u32, usize> = HashMap::new();
    for (entry, made) in local.entries.iter().zip(&program.entries) {
        let walk = Walk::new(local, program, entry, made);
        walk.run(&mut proofs, &mut state_stage)?;
        let func = &local.funcs[entry.func];
        links::check(made, |tag| tag_name(func, tag))?;
    }
    Ok(())
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
                    let value = self.content(&place, &held, *slot, &tag_name(self.func, *tag))?;
                    self.check_peer(&place, *to, &self.name(value))?;
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

    fn check_peer(&self, place: &Place<'_>, peer: u32, name: &str) -> Result<(), Diagnostic> {
        match (peer as usize) < self.made.stages.len() && peer as usize != place.stage {
            true => Ok(()),
            false => Err(place.wrong(format!("exchanges {name} with stage {peer}, which is no other stage"))),
        }
    }

    /// What messages call a value.
    fn name(&self, value: ValueId) -> String {
        fault::value(self.func, value)
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
        self.check_peer(place, from, &tag_name(self.func, tag))?;
        let queue = self.links.entry((from as usize, place.stage)).or_default();
        let Some(message) = queue.pop_front() else {
            let name = tag_name(self.func, tag);
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
    fn content(
        &self,
        place: &Place<'_>,
        held: &Held,
        slot: Slot,
        wanted: &str,
    ) -> Result<ValueId, Diagnostic> {
        let found = match slot {
            Slot::Value(offset) => held.arena.get(&offset).map(|&(_, v)| v),
            Slot::State(s) => held.fixed.get(&slot).or(self.states.get(&s)).copied(),
            Slot::Output(_) => held.fixed.get(&slot).copied(),
            Slot::Param(_) | Slot::Input(_) => self.roles.iter().find(|r| *r.1 == slot).map(|r| *r.0),
            Slot::Const(_) => None,
        };
        found.ok_or_else(|| {
            let slot = describe(self.program, slot);
            place.wrong(format!("reads {slot} for {wanted}, but no value is there"))
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

/// What messages call the value that a tag stands for.
fn tag_name(func: &Func, tag: u32) -> String {
    let value = (tag != u32::MAX).then(|| ValueId::from_u32(tag)).filter(|&v| func.values.get(v).is_some());
    value.map_or_else(|| format!("message {tag}"), |v| fault::value(func, v))
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
