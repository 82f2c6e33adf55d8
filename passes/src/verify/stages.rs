//! The steps of every stage against the entry's chain of calls: each call once, in order, on one stage, with the right bindings; every
//! value where it is read; messages in order.

mod bind;
mod proofs;
mod written;

use super::cuts::Cut;
use super::{fault, links};
use pcc_ir::program::{EntryProgram, Program, Slot, StageProgram, Step};
use pcc_ir::repeat::{Bound, Chain, ChainCall, Numbering, names};
use pcc_ir::{Diagnostic, Entry, Func, Module};
use proofs::Proofs;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

/// Offsets in an arena are multiples of this.
const ALIGN: u64 = 64;

pub(super) fn check(sharded: &Module, local: &Module, program: &Program) -> Result<(), Diagnostic> {
    let tables = Tables::of(program)?;
    let chain = |entry: &Entry| {
        Chain::with(local, entry, &tables.params, &tables.states).map_err(|why| {
            let what = "is the function of an entry that is no chain of calls";
            fault::of_func(&local.funcs[entry.func], what).why(why)
        })
    };
    let chains = local.entries.iter().map(chain).collect::<Result<Vec<_>, _>>()?;
    let mut proofs = Proofs::new(sharded, local, program);
    let mut state_stage = vec![NONE; tables.states.len() as usize];
    for ((entry, made), chain) in local.entries.iter().zip(&program.entries).zip(&chains) {
        let func = &local.funcs[entry.func];
        let walk = Walk::new(local, program, entry, made, chain, &tables);
        walk.run(&mut proofs, &mut state_stage)?;
        links::check(made, |tag| name_of(func, chain, tag))?;
    }
    Ok(())
}

/// Numbers of the program's parameters and states, which are those of the module.
struct Tables {
    params: Numbering,
    states: Numbering,
}

impl Tables {
    fn of(program: &Program) -> Result<Self, Diagnostic> {
        let fault = |why| Diagnostic::check("the program's stacks are not well formed").why(why);
        let params = Numbering::new(program.params.iter().map(|p| p.stack)).map_err(fault)?;
        let states = Numbering::new(program.states.iter().map(|s| s.stack)).map_err(fault)?;
        Ok(Self { params, states })
    }

    fn state<'p>(&self, program: &'p Program, number: u32) -> Option<(&'p pcc_ir::program::LocalState, u32)> {
        let (row, k) = self.states.origin(number)?;
        Some((program.states.get(row as usize)?, k))
    }
}

/// A value of the chain, by number.
type Number = u32;

/// No value, or no stage.
const NONE: u32 = u32::MAX;

/// What one stage holds while it runs a micro-batch.
#[derive(Default)]
struct Held {
    /// Value in each output.
    outputs: HashMap<u32, Number>,
    /// Start in the arena to end and value.
    arena: BTreeMap<u64, (u64, Number)>,
}

/// A number for each value or state, of the stage that wrote it.
struct PerStage(Vec<(u32, Number)>);

impl PerStage {
    fn new(n: usize) -> Self {
        Self(vec![(NONE, NONE); n])
    }

    fn get(&self, i: u32, stage: u32) -> Option<Number> {
        self.last(i).filter(|_| self.0[i as usize].0 == stage)
    }

    /// What was written last, whichever stage did.
    fn last(&self, i: u32) -> Option<Number> {
        self.0.get(i as usize).map(|of| of.1).filter(|&n| n != NONE)
    }

    fn set(&mut self, i: u32, stage: u32, number: Number) {
        if let Some(place) = self.0.get_mut(i as usize) {
            *place = (stage, number);
        }
    }
}

struct Message {
    tag: u32,
    bytes: u64,
    value: Number,
}

struct Walk<'a> {
    local: &'a Module,
    program: &'a Program,
    entry: &'a Entry,
    made: &'a EntryProgram,
    func: &'a Func,
    /// The entry's calls, every repetition by itself.
    chain: &'a Chain,
    tables: &'a Tables,
    /// Bytes of each value.
    bytes: Vec<u64>,
    /// Slot of each value that is an argument.
    roles: Vec<Option<Slot>>,
    /// Argument value of each input, parameter and state.
    inputs: Vec<Number>,
    params: Vec<Number>,
    states: Vec<Number>,
    next_call: usize,
    next_layer: u32,
    links: HashMap<(usize, usize), VecDeque<Message>>,
    /// What outputs hold, and on which stage.
    outputs: HashMap<u32, Vec<(usize, Number)>>,
    /// What each state holds.
    held: PerStage,
    /// What overwrote each value that lost its place.
    lost: PerStage,
    /// What values leave out, if anything.
    cuts: Vec<Option<Rc<Vec<Cut>>>>,
}

impl<'a> Walk<'a> {
    fn new(
        local: &'a Module,
        program: &'a Program,
        entry: &'a Entry,
        made: &'a EntryProgram,
        chain: &'a Chain,
        tables: &'a Tables,
    ) -> Self {
        let func = &local.funcs[entry.func];
        let sizes: Vec<u64> = func.values.values().map(|v| v.ty.bytes() as u64).collect();
        let mut roles = vec![None; chain.origins.len()];
        let mut inputs = vec![NONE; func.args.len()];
        let mut params = vec![NONE; tables.params.len() as usize];
        let mut states = vec![NONE; tables.states.len() as usize];
        for &(v, bound) in &chain.args {
            let (of, i, slot) = match bound {
                Bound::Input(i) => (&mut inputs, i, Slot::Input(i)),
                Bound::Param(i) => (&mut params, i, Slot::Param(i)),
                Bound::State(i) => (&mut states, i, Slot::State(i)),
            };
            roles[v as usize] = Some(slot);
            if let Some(place) = of.get_mut(i as usize).filter(|v| **v == NONE) {
                *place = v;
            }
        }
        Self {
            local,
            program,
            entry,
            made,
            func,
            chain,
            tables,
            bytes: chain.origins.iter().map(|v| sizes[v.as_u32() as usize]).collect(),
            roles,
            inputs,
            params,
            held: PerStage::new(states.len()),
            states,
            next_call: 0,
            next_layer: 0,
            links: HashMap::new(),
            outputs: HashMap::new(),
            lost: PerStage::new(chain.origins.len()),
            cuts: vec![None; chain.origins.len()],
        }
    }

    fn run(mut self, proofs: &mut Proofs<'a>, state_stage: &mut [u32]) -> Result<(), Diagnostic> {
        let made: &'a EntryProgram = self.made;
        for (stage, steps) in made.stages.iter().enumerate() {
            self.stage(stage, steps, proofs, state_stage)?;
        }
        if let Some(call) = self.chain.calls.get(self.next_call) {
            let name = &self.local.funcs[call.func].name;
            let what = format!("{} is made by no stage: the call of `{name}` is missing", self.made_by(call));
            return Err(Diagnostic::check(what).at(self.place_of(call)));
        }
        if let Some(((from, to), message)) = self.links.iter().find_map(|(k, q)| Some((k, q.front()?))) {
            let what = format!("is sent by stage {from} to stage {to}, which never receives it");
            return Err(self.of_value(message.value, &what));
        }
        self.check_results()
    }

    fn stage(
        &mut self,
        stage: usize,
        steps: &'a StageProgram,
        proofs: &mut Proofs<'a>,
        state_stage: &mut [u32],
    ) -> Result<(), Diagnostic> {
        let mut held = Held::default();
        for (at, step) in steps.steps.iter().enumerate() {
            let (arena, shared) = (steps.arena_bytes, steps.shared_bytes);
            let private = arena.saturating_sub(shared);
            let place = Place { stage, step: at, arena, private, entry: &self.entry.name };
            if shared > arena {
                let made = self.next_made();
                return Err(
                    place.wrong(format!("has {arena} bytes of values, of which {shared} are shared; {made}"))
                );
            }
            match step {
                Step::Call { func, slots, layer } => {
                    self.call(&place, &mut held, proofs, (*func, slots, *layer))?;
                    slots.iter().try_for_each(|&slot| self.check_stage(&place, slot, state_stage))?;
                }
                Step::Send { to, tag, slot, bytes } => {
                    self.check_stage(&place, *slot, state_stage)?;
                    let value = self.content(&place, &held, *slot, &|| self.name(*tag))?;
                    self.check_peer(&place, *to, &|| self.name(value))?;
                    self.check_bytes(&place, value, *bytes)?;
                    let message = Message { tag: *tag, bytes: *bytes, value };
                    self.links.entry((stage, *to as usize)).or_default().push_back(message);
                }
                Step::Recv { from, tag, slot, bytes } => {
                    self.recv(&place, &mut held, (*from, *tag, *slot, *bytes))?
                }
            }
        }
        for (output, value) in held.outputs {
            self.outputs.entry(output).or_default().push((stage, value));
        }
        Ok(())
    }

    /// A state lives on one stage: that of all steps of all entries that name it.
    fn check_stage(&self, place: &Place<'_>, slot: Slot, state_stage: &mut [u32]) -> Result<(), Diagnostic> {
        let Slot::State(s) = slot else { return Ok(()) };
        let Some(first) = state_stage.get_mut(s as usize) else { return Ok(()) };
        if *first == NONE {
            *first = place.stage as u32;
        }
        match *first == place.stage as u32 {
            true => Ok(()),
            false => Err(place.wrong(format!("uses {}, which stage {first} holds", self.describe(slot)))),
        }
    }

    /// What a state holds on a stage.
    fn in_state(&self, place: &Place<'_>, s: u32) -> Option<Number> {
        let first = || self.states.get(s as usize).copied().filter(|&v| v != NONE);
        self.held.get(s, place.stage as u32).or_else(first)
    }

    /// Puts a value into a state or output.
    fn hold(&mut self, place: &Place<'_>, held: &mut Held, slot: Slot, value: Number) {
        match slot {
            Slot::State(s) => self.held.set(s, place.stage as u32, value),
            Slot::Output(o) => {
                held.outputs.insert(o, value);
            }
            _ => {}
        }
    }

    fn check_peer(&self, place: &Place<'_>, peer: u32, name: &dyn Fn() -> String) -> Result<(), Diagnostic> {
        match (peer as usize) < self.made.stages.len() && peer as usize != place.stage {
            true => Ok(()),
            false => {
                let name = name();
                Err(place.wrong(format!("exchanges {name} with stage {peer}, which is no other stage")))
            }
        }
    }

    /// What messages call a value.
    fn name(&self, value: Number) -> String {
        name_of(self.func, self.chain, value)
    }

    /// What messages call what a call makes.
    fn made_by(&self, call: &ChainCall) -> String {
        self.chain.results_of(call).first().map_or("nothing".to_owned(), |&v| self.name(v))
    }

    /// Where a call stands in the user's model.
    fn place_of(&self, call: &ChainCall) -> String {
        match self.func.insts.get(call.inst as usize).map_or("", |i| &i.loc) {
            "" => format!("function `{}`", self.func.name),
            loc => format!("`{}` in function `{}`", names::element(loc, call.repetition), self.func.name),
        }
    }

    /// A fault of a value.
    fn of_value(&self, value: Number, what: &str) -> Diagnostic {
        let maker = self.chain.calls.iter().find(|c| self.chain.results_of(c).contains(&value));
        let place = maker.map_or_else(|| format!("function `{}`", self.func.name), |c| self.place_of(c));
        Diagnostic::check(format!("{} {what}", self.name(value))).at(place)
    }

    /// What the next call of the chain makes, for messages.
    fn next_made(&self) -> String {
        match self.chain.calls.get(self.next_call) {
            Some(call) => {
                format!("`{}` is next, to make {}", self.local.funcs[call.func].name, self.made_by(call))
            }
            None => {
                let made = self.chain.calls.last().map_or("nothing".to_owned(), |c| self.made_by(c));
                format!("the last call of the entry has made {made}")
            }
        }
    }

    fn check_bytes(&self, place: &Place<'_>, value: Number, bytes: u64) -> Result<(), Diagnostic> {
        let wanted = self.bytes[value as usize];
        match bytes == wanted {
            true => Ok(()),
            false => {
                let name = self.name(value);
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
        self.check_peer(place, from, &|| self.name(tag))?;
        let queue = self.links.entry((from as usize, place.stage)).or_default();
        let Some(message) = queue.pop_front() else {
            let name = self.name(tag);
            return Err(place.wrong(format!("waits for {name}, which stage {from} does not send before")));
        };
        if message.tag != tag || message.bytes != bytes {
            let name = self.name(message.value);
            let why =
                format!("it expects tag {tag} of {bytes} bytes, not {} of {}", message.tag, message.bytes);
            return Err(place.wrong(format!("receives {name} where it expects another message")).why(why));
        }
        match slot {
            Slot::Value(offset) if place.is_among(offset, bytes, false) => {
                self.put(place, held, offset, message.value)
            }
            Slot::Value(_) => {
                let name = self.name(message.value);
                Err(place.wrong(format!("receives {name}, which each device does, into what a team shares")))
            }
            _ => Err(place.wrong(format!("receives {} into no value slot", self.name(message.value)))),
        }
    }

    /// The value that a slot holds.
    fn content(
        &self,
        place: &Place<'_>,
        held: &Held,
        slot: Slot,
        wanted: &dyn Fn() -> String,
    ) -> Result<Number, Diagnostic> {
        let found = match slot {
            Slot::Value(offset) => held.arena.get(&offset).map(|&(_, v)| v),
            Slot::State(s) => self.in_state(place, s),
            Slot::Output(o) => held.outputs.get(&o).copied(),
            Slot::Param(i) => self.params.get(i as usize).copied().filter(|&v| v != NONE),
            Slot::Input(i) => self.inputs.get(i as usize).copied().filter(|&v| v != NONE),
            Slot::Const(_) => None,
        };
        found.ok_or_else(|| {
            let slot = self.describe(slot);
            place.wrong(format!("reads {slot} for {}, but no value is there", wanted()))
        })
    }

    /// Whether a slot holds a value.
    fn holds(&self, place: &Place<'_>, held: &Held, slot: Slot, value: Number) -> bool {
        match slot {
            Slot::Value(offset) => {
                let end = offset.checked_add(self.bytes[value as usize]);
                held.arena.get(&offset).is_some_and(|&(e, v)| v == value && Some(e) == end)
            }
            Slot::State(s) => self.in_state(place, s) == Some(value),
            Slot::Output(o) => held.outputs.get(&o) == Some(&value),
            Slot::Param(_) | Slot::Input(_) => self.roles[value as usize] == Some(slot),
            Slot::Const(_) => false,
        }
    }

    /// Whether two values are the same: also the arguments of an entry that are one parameter or one input.
    fn are_one(&self, a: Number, b: Number) -> bool {
        let given =
            |v: Number| self.roles[v as usize].filter(|slot| matches!(slot, Slot::Param(_) | Slot::Input(_)));
        a == b || given(a).is_some_and(|slot| given(b) == Some(slot))
    }

    /// Puts a value into the arena; whatever it covers is gone.
    fn put(
        &mut self,
        place: &Place<'_>,
        held: &mut Held,
        offset: u64,
        value: Number,
    ) -> Result<(), Diagnostic> {
        let bytes = self.bytes[value as usize];
        let end = offset.checked_add(bytes).filter(|&e| e <= place.arena && offset.is_multiple_of(ALIGN));
        let Some(end) = end else {
            let (name, arena) = (self.name(value), place.arena);
            return Err(
                place.wrong(format!("puts {name}, of {bytes} bytes, at {offset} of an arena of {arena}"))
            );
        };
        // What is held does not overlap, so that ends are in the order of starts.
        while let Some((&start, &(e, old))) = held.arena.range(..end).next_back()
            && offset < e
        {
            held.arena.remove(&start);
            self.lost.set(old, place.stage as u32, value);
        }
        self.lost.set(value, place.stage as u32, NONE);
        held.arena.insert(offset, (end, value));
        Ok(())
    }

    /// Every output and new state is where it belongs at the end.
    fn check_results(&self) -> Result<(), Diagnostic> {
        let mut output = 0;
        for r in &self.chain.results {
            let name = || names::element(&self.entry.results[r.index as usize], r.element);
            if let Some(s) = r.state {
                self.check_state(r.value, &name)?;
                let held = self.held.last(s).or_else(|| self.states.get(s as usize).copied());
                if held != Some(r.value) {
                    let what = format!("is the new value of state `{}`, but does not end up there", name());
                    return Err(self.of_value(r.value, &what));
                }
                continue;
            }
            let held = self.outputs.get(&output).map(Vec::as_slice).unwrap_or_default();
            let right = held.iter().filter(|(_, h)| self.are_one(*h, r.value)).count();
            if right != 1 || held.len() != 1 {
                let what = match held.len() {
                    0 => format!("is output `{}`, which no stage writes", name()),
                    _ => format!("is output `{}`, which is written with other values or twice", name()),
                };
                return Err(self.of_value(r.value, &what));
            }
            self.check_output(r.value, output as usize)?;
            output += 1;
        }
        Ok(())
    }

    /// What messages call a slot.
    fn describe(&self, slot: Slot) -> String {
        let (program, tables) = (self.program, self.tables);
        let named = |kind: &str, i: u32, name: Option<(&String, u32)>| match name {
            Some((name, k)) => format!("{kind} `{}`", names::element(name, k)),
            None => format!("{kind} {i}, which does not exist"),
        };
        let param = |(row, k): (u32, u32)| Some((&program.params.get(row as usize)?.name, k));
        match slot {
            Slot::Param(i) => named("parameter", i, tables.params.origin(i).and_then(param)),
            Slot::State(i) => named("state", i, tables.state(program, i).map(|(s, k)| (&s.name, k))),
            Slot::Input(i) => format!("input {i}"),
            Slot::Output(i) => format!("output {i}"),
            Slot::Const(i) => format!("constant {i}"),
            Slot::Value(offset) => format!("the arena at {offset}"),
        }
    }
}

/// What messages call a value of a chain.
fn name_of(func: &Func, chain: &Chain, value: Number) -> String {
    let Some(&origin) = chain.origins.get(value as usize) else { return format!("message {value}") };
    match (func.values[origin].name.as_str(), chain.elements[value as usize]) {
        ("", 0) => fault::value(func, origin),
        ("", k) => format!("{} in repetition {}", fault::value(func, origin), k + 1),
        (name, k) => format!("value `{}` ({origin})", names::element(name, k)),
    }
}

/// A step, for messages.
struct Place<'a> {
    stage: usize,
    step: usize,
    arena: u64,
    /// Where in the arena what a team shares begins.
    private: u64,
    entry: &'a str,
}

impl Place<'_> {
    /// Whether a value lies among those that a team shares, or else among those that each device has.
    fn is_among(&self, offset: u64, bytes: u64, shared: bool) -> bool {
        match shared {
            true => offset >= self.private,
            false => offset.checked_add(bytes).is_some_and(|end| end <= self.private),
        }
    }

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
