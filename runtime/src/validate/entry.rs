//! Entries: inputs and outputs, the steps of every stage, and that every message sent is received.

use super::{LARGEST, check_placed, damaged, require};
use crate::layout::local_bytes;
use crate::memory::ALIGN;
use pcc_ir::DType;
use pcc_ir::Diagnostic;
use pcc_ir::program::{
    EntryProgram, FuncProgram, IoSpec, LocalParam, PackedMatrix, Program, Slot, StageProgram, Step,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Of each function: the arguments it takes in panels.
type Packed = [BTreeMap<u32, (PackedMatrix, DType)>];

pub(super) fn check_all(program: &Program) -> Result<(), Diagnostic> {
    let mut names = HashSet::new();
    // The functions were checked before.
    let packed: Vec<_> = program.funcs.iter().map(|f| f.packed().unwrap_or_default()).collect();
    for entry in &program.entries {
        let place = format!("entry `{}`", entry.name);
        require(names.insert(&entry.name), &place, || "there are two".to_owned())?;
        check(program, &packed, entry, &place)?;
    }
    Ok(())
}

fn check(program: &Program, packed: &Packed, entry: &EntryProgram, place: &str) -> Result<(), Diagnostic> {
    for (kind, specs) in [("input", &entry.inputs), ("output", &entry.outputs)] {
        let mut names = HashSet::new();
        for spec in specs {
            let place = format!("{place}, {kind} `{}`", spec.name);
            require(names.insert(&spec.name), &place, || "there are two".to_owned())?;
            check_spec(program, spec, &place)?;
        }
    }
    require(entry.stages.len() == program.mesh.pp as usize, place, || {
        format!("{} stages on a mesh of {}", entry.stages.len(), program.mesh.pp)
    })?;
    let mut made = HashSet::new();
    for (number, stage) in entry.stages.iter().enumerate() {
        let place = format!("{place}, stage {number}");
        require(stage.arena_bytes < LARGEST, &place, || "its arena is too large".to_owned())?;
        require(super::team::private(stage).is_some(), &place, || {
            format!("of {} bytes of its arena a team shares {}", stage.arena_bytes, stage.shared_bytes)
        })?;
        for (i, step) in stage.steps.iter().enumerate() {
            let slots = Slots { program, packed, entry, stage };
            check_step(&slots, number, step, &mut made)
                .map_err(|why| damaged(&format!("{place}, steps[{i}]"), why))?;
        }
    }
    for i in 0..entry.outputs.len() {
        let name = &entry.outputs[i].name;
        require(made.contains(&i), place, || format!("no step writes output `{name}`"))?;
    }
    check_messages(entry, place)
}

fn check_spec(program: &Program, spec: &IoSpec, place: &str) -> Result<(), Diagnostic> {
    check_placed(&program.mesh, &spec.ty, &spec.sharding, place)?;
    let batch = &program.batch;
    let capacity = batch.replicas.checked_mul(batch.rows());
    for dim in [spec.batch_dim, spec.seq_dim].into_iter().flatten() {
        require(dim < spec.ty.rank(), place, || format!("it has no dim {dim}"))?;
    }
    require(spec.batch_dim.is_none() || spec.batch_dim != spec.seq_dim, place, || {
        "one dim holds both rows and positions".to_owned()
    })?;
    let fits = spec.batch_dim.is_none_or(|dim| Some(spec.ty.shape[dim]) == capacity);
    require(fits, place, || format!("its batch dim does not hold the {capacity:?} rows of a micro-batch"))
}

/// What slots of a stage may name.
struct Slots<'a> {
    program: &'a Program,
    packed: &'a Packed,
    entry: &'a EntryProgram,
    stage: &'a StageProgram,
}

impl Slots<'_> {
    /// Checks that a slot's buffer has `bytes` bytes.
    fn check(&self, slot: Slot, bytes: u64) -> Result<(), String> {
        let param = |i: u32| self.program.params.get(i as usize).map(LocalParam::local_bytes);
        let state = |i: u32| self.program.states.get(i as usize).map(|s| local_bytes(&s.sharding, &s.ty));
        let io = |specs: &[IoSpec], i: u32| specs.get(i as usize).map(|s| local_bytes(&s.sharding, &s.ty));
        let held = match slot {
            Slot::Param(i) => param(i),
            Slot::State(i) => state(i),
            Slot::Input(i) => io(&self.entry.inputs, i),
            Slot::Output(i) => io(&self.entry.outputs, i),
            Slot::Const(i) => self.program.constants.get(i as usize).map(|c| c.ty.bytes() as u64),
            Slot::Value(offset) if offset % ALIGN != 0 => return Err(format!("{slot:?} is not aligned")),
            Slot::Value(offset) => match super::team::private(self.stage) {
                Some(private) if offset < private => Some(private - offset),
                _ => self.stage.arena_bytes.checked_sub(offset),
            },
        };
        match held {
            None => Err(format!("{slot:?} is not there")),
            Some(held) if bytes > held => Err(format!("{slot:?} holds {held} bytes, {bytes} are used")),
            Some(_) => Ok(()),
        }
    }
}

impl Slots<'_> {
    /// Checks that what a function takes in panels is a parameter held in panels of the same matrix, and nothing else is.
    fn check_forms(&self, func: usize, bound: &[Slot]) -> Result<(), String> {
        for (i, &slot) in bound.iter().enumerate() {
            let param = match slot {
                Slot::Param(p) => self.program.params.get(p as usize),
                _ => None,
            };
            let held = param.and_then(|p| {
                let local = p.sharding.local_type(&p.ty);
                p.storage.matrix(&local.shape).map(|m| (m, local.dtype))
            });
            if held.as_ref() != self.packed[func].get(&(i as u32)) {
                return Err(format!("{slot:?} is not held in the form in which slot {i} is read"));
            }
        }
        Ok(())
    }
}

/// Checks a step; notes outputs that it makes.
fn check_step(slots: &Slots<'_>, stage: usize, step: &Step, made: &mut HashSet<usize>) -> Result<(), String> {
    let mut writes = |slot: Slot| match slot {
        Slot::Param(_) | Slot::Input(_) | Slot::Const(_) => Err(format!("{slot:?} is written")),
        Slot::Output(i) => {
            made.insert(i as usize);
            Ok(())
        }
        Slot::State(_) | Slot::Value(_) => Ok(()),
    };
    match step {
        Step::Call { func: index, slots: bound, .. } => {
            let Some(func) = slots.program.funcs.get(*index as usize) else {
                return Err(format!("there is no function {index}"));
            };
            if bound.len() != func.slot_bytes.len() {
                return Err(format!(
                    "{} slots for the {} of {}",
                    bound.len(),
                    func.slot_bytes.len(),
                    func.name
                ));
            }
            // What is taken in panels is compared as a matrix: a quantised one has other bytes.
            for (i, (&slot, &bytes)) in bound.iter().zip(&func.slot_bytes).enumerate() {
                if !slots.packed[*index as usize].contains_key(&(i as u32)) {
                    slots.check(slot, bytes)?;
                }
            }
            slots.check_forms(*index as usize, bound)?;
            let first = func.args as usize;
            bound[first..first + func.results as usize].iter().try_for_each(|&slot| writes(slot))?;
            super::team::check_call(slots.stage, func, bound)?;
            for &(arg, result) in &func.in_place {
                if bound[arg as usize] != bound[result as usize] {
                    return Err(format!("slots {arg} and {result} of {} are one buffer", func.name));
                }
            }
            check_apart(func, bound)
        }
        Step::Send { to: other, slot, bytes, .. } | Step::Recv { from: other, slot, bytes, .. } => {
            if *other >= slots.program.mesh.pp || *other as usize == stage {
                return Err(format!("there is no other stage {other}"));
            }
            if matches!(step, Step::Recv { .. }) {
                writes(*slot)?;
                super::team::check_received(slots.stage, *slot)?;
            }
            slots.check(*slot, *bytes)
        }
    }
}

/// What a call writes is no other slot's memory, but for what it updates in place: an instruction knows two slots for two buffers.
fn check_apart(func: &FuncProgram, bound: &[Slot]) -> Result<(), String> {
    let meet = |a: (Slot, u64), b: (Slot, u64)| match (a.0, b.0) {
        (Slot::Value(x), Slot::Value(y)) => x < y.saturating_add(b.1) && y < x.saturating_add(a.1),
        (x, y) => x == y,
    };
    let all = || bound.iter().copied().zip(func.slot_bytes.iter().copied()).enumerate();
    let results = func.args as usize..(func.args as usize).saturating_add(func.results as usize);
    for (result, written) in all().filter(|(i, _)| results.contains(i)) {
        for (other, held) in all().filter(|&(i, _)| i != result) {
            let one = func.in_place.contains(&(other as u32, result as u32));
            if !one && meet(written, held) {
                return Err(format!(
                    "slots {other} and {result} of {} share memory, and one is written",
                    func.name
                ));
            }
        }
    }
    Ok(())
}

/// Every message has one sender and one receiver that agree on its size.
fn check_messages(entry: &EntryProgram, place: &str) -> Result<(), Diagnostic> {
    let (mut sent, mut received) = (HashMap::new(), HashMap::new());
    for (stage, program) in entry.stages.iter().enumerate() {
        let stage = stage as u32;
        for step in &program.steps {
            let (previous, from, to, tag) = match *step {
                Step::Call { .. } => continue,
                Step::Send { to, tag, bytes, .. } => (sent.insert((stage, to, tag), bytes), stage, to, tag),
                Step::Recv { from, tag, bytes, .. } => {
                    (received.insert((from, stage, tag), bytes), from, stage, tag)
                }
            };
            require(previous.is_none(), place, || {
                format!("message {tag} from stage {from} to {to} occurs twice")
            })?;
        }
    }
    for (key @ (from, to, tag), bytes) in sent.iter().chain(&received) {
        require(sent.get(key) == Some(bytes) && received.get(key) == Some(bytes), place, || {
            format!("message {tag} from stage {from} to {to} is not sent and received alike")
        })?;
    }
    Ok(())
}
