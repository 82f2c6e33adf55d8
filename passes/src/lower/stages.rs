//! Entries and stages: which calls run where, what every argument is bound to, and what crosses from stage to stage.
//!
//! Works on the unfolded [`Chain`], whose values are numbers: the only part of lowering that grows with depth.

use super::buffers::{Interval, align, plan};
use pcc_ir::program::{EntryProgram, FuncProgram, IoSpec, Slot, StageProgram, Step};
use pcc_ir::repeat::{Bound, Chain};
use pcc_ir::{Diagnostic, Func, FuncId};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What the stages of all entries need to know of the functions.
pub(super) struct Lowered {
    /// Index in `Program::funcs` of each function.
    pub index: HashMap<FuncId, u32>,
    pub programs: Vec<FuncProgram>,
    /// Indices in `Program::constants` that each function's calls bind.
    pub constants: Vec<Vec<u32>>,
    /// Index of a function that copies its argument, by bytes.
    pub copies: HashMap<u64, u32>,
}

pub(super) struct EntryLowering<'a> {
    pub name: &'a str,
    /// The local entry function: calls only.
    pub func: &'a Func,
    pub chain: &'a Chain,
    pub lowered: &'a Lowered,
    /// Calls of each stage.
    pub cut: &'a [Range<usize>],
    /// Index in the chain of layers of each call.
    pub layer_of: &'a [Option<u32>],
    pub inputs: Vec<IoSpec>,
    pub outputs: Vec<IoSpec>,
}

/// No call makes an argument; no place in the arena.
const NONE: u32 = u32::MAX;
/// A place in the arena that is still to be given.
const RECEIVED: u32 = NONE - 1;

/// What is known of the values of an entry, by number.
struct Values {
    /// Call that makes each; [`NONE`] for arguments.
    maker: Vec<u32>,
    /// The slot it lives in on its maker's stage; without one, it lives in the arenas of the stages that have it.
    home: Vec<Option<Slot>>,
    bytes: Vec<u64>,
    /// Whether a team shares it on its maker's stage.
    shared: Vec<bool>,
    /// Stage of each call.
    stage_of: Vec<u32>,
}

/// A value that crosses from its maker's stage to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Crossing {
    maker: u32,
    to: u32,
    value: u32,
}

impl EntryLowering<'_> {
    pub fn lower(self, stages: u32) -> Result<EntryProgram, Diagnostic> {
        let values = self.values()?;
        let crossings = self.crossings(&values);
        let mut programs = Vec::new();
        let mut places = vec![NONE; values.bytes.len()];
        for stage in 0..stages {
            let drafts = self.lower_stage(stage, &values, &crossings);
            programs.push(self.place(drafts, &values, &mut places)?);
        }
        Ok(EntryProgram {
            name: self.name.to_owned(),
            inputs: self.inputs,
            outputs: self.outputs,
            stages: programs,
        })
    }

    fn program(&self, f: FuncId) -> Result<(u32, &FuncProgram), Diagnostic> {
        let index = *self
            .lowered
            .index
            .get(&f)
            .ok_or_else(|| Diagnostic::internal(format!("{f} was not lowered")))?;
        Ok((index, &self.lowered.programs[index as usize]))
    }

    /// Arguments have slots of their own; a result of the entry lives in its output; in-place results live in their state.
    fn values(&self) -> Result<Values, Diagnostic> {
        let chain = self.chain;
        let sizes: Vec<u64> = self.func.values.values().map(|v| v.ty.bytes() as u64).collect();
        let bytes = chain.origins.iter().map(|v| sizes[v.as_u32() as usize]).collect();
        let mut home: Vec<Option<Slot>> = vec![None; chain.origins.len()];
        for &(v, bound) in &chain.args {
            home[v as usize] = Some(slot(bound));
        }
        for (r, output) in chain.results.iter().filter(|r| r.state.is_none()).zip(0..) {
            home[r.value as usize].get_or_insert(Slot::Output(output));
        }
        let mut maker = vec![NONE; chain.origins.len()];
        let mut shared = vec![false; chain.origins.len()];
        let mut stage_of = vec![0; chain.calls.len()];
        for (stage, range) in self.cut.iter().enumerate() {
            stage_of.get_mut(range.clone()).into_iter().flatten().for_each(|s| *s = stage as u32);
        }
        for (call, c) in chain.calls.iter().zip(0..) {
            let (args, results) = (chain.args_of(call), chain.results_of(call));
            let (_, program) = self.program(call.func)?;
            for &v in results {
                maker[v as usize] = c;
            }
            for slot in &program.shared {
                if let Some(&v) = slot.checked_sub(program.args).and_then(|r| results.get(r as usize)) {
                    shared[v as usize] = true;
                }
            }
            for &(a, r) in &program.in_place {
                let pair = (args.get(a as usize), results.get((r as usize).wrapping_sub(args.len())));
                if let (Some(&a), Some(&r)) = pair {
                    home[r as usize] = home[a as usize];
                }
            }
        }
        Ok(Values { maker, home, bytes, shared, stage_of })
    }

    /// Values that a stage needs of another, in the order they are made, each once.
    fn crossings(&self, values: &Values) -> Vec<Crossing> {
        let mut found = Vec::new();
        for (call, &to) in self.chain.calls.iter().zip(&values.stage_of) {
            for &value in self.chain.args_of(call) {
                let maker = values.maker[value as usize];
                if maker != NONE && values.stage_of[maker as usize] != to {
                    found.push(Crossing { maker, to, value });
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn lower_stage(&self, stage: u32, values: &Values, crossings: &[Crossing]) -> Vec<Draft> {
        let mut steps: Vec<Draft> = Vec::new();
        let from = |c: &Crossing| values.stage_of[c.maker as usize];
        let mut imports = crossings.iter().filter(|c| c.to == stage).peekable();
        let mut exports = crossings.iter().filter(|c| from(c) == stage).peekable();
        for at in self.cut.get(stage as usize).cloned().unwrap_or_default() {
            let Some(call) = self.chain.calls.get(at) else { break };
            // Links deliver in order: whatever was made before what this call needs is received first.
            let makers = self.chain.args_of(call).iter().map(|&v| values.maker[v as usize]);
            let needed = makers.filter(|&m| m != NONE && values.stage_of[m as usize] != stage).max();
            while let Some(c) = imports.next_if(|c| needed.is_some_and(|n| c.maker <= n)) {
                steps.push(Draft::Recv { from: from(c), value: c.value });
            }
            steps.push(Draft::Call { call: at });
            while let Some(c) = exports.next_if(|c| c.maker as usize == at) {
                steps.push(Draft::Send { to: c.to, value: c.value });
            }
        }
        self.copy_outputs(stage, values, &mut steps);
        steps
    }

    /// Results of the entry whose home is not their own output or state (arguments, repeats) are copied there.
    fn copy_outputs(&self, stage: u32, values: &Values, steps: &mut Vec<Draft>) {
        let mut output = 0;
        for r in &self.chain.results {
            let slot = match r.state {
                Some(s) => Slot::State(s),
                None => {
                    output += 1;
                    Slot::Output(output - 1)
                }
            };
            let maker = values.maker[r.value as usize];
            let here = values.stage_of.get(maker as usize).copied().unwrap_or(0) == stage;
            if values.home[r.value as usize] != Some(slot) && here {
                steps.push(Draft::Copy { value: r.value, slot });
            }
        }
    }

    fn operands(&self, draft: &Draft) -> impl Iterator<Item = u32> {
        let one = match draft {
            Draft::Call { .. } => None,
            Draft::Send { value, .. } | Draft::Recv { value, .. } | Draft::Copy { value, .. } => Some(*value),
        };
        let call = match draft {
            Draft::Call { call } => self.chain.calls.get(*call),
            _ => None,
        };
        let of_call = call.map(|c| (self.chain.args_of(c), self.chain.results_of(c))).unwrap_or_default();
        of_call.0.iter().chain(of_call.1).copied().chain(one)
    }

    /// Plans the arena and turns drafts into steps. `places` has [`NONE`] for each value, before and after.
    fn place(
        &self,
        drafts: Vec<Draft>,
        values: &Values,
        places: &mut [u32],
    ) -> Result<StageProgram, Diagnostic> {
        // A value made elsewhere lives in the arena here even if its maker keeps it in an output.
        let received = |d: &Draft| if let Draft::Recv { value, .. } = d { Some(*value) } else { None };
        drafts.iter().filter_map(received).for_each(|v| places[v as usize] = RECEIVED);
        let mut live: Vec<(u32, Interval)> = Vec::new();
        for (at, d) in drafts.iter().enumerate() {
            for v in self.operands(d) {
                match places[v as usize] {
                    NONE if values.home[v as usize].is_some() => {}
                    NONE | RECEIVED => {
                        places[v as usize] = live.len() as u32;
                        live.push((v, Interval { bytes: values.bytes[v as usize], first: at, last: at }));
                    }
                    i => live[i as usize].1.last = at,
                }
            }
        }
        live.sort_unstable_by_key(|l| l.0);
        // What a team shares lies behind the rest. A value that comes as a message is each device's own.
        let messages: HashSet<u32> = drafts.iter().filter_map(received).collect();
        let is_shared = |v: u32| values.shared[v as usize] && !messages.contains(&v);
        let mut offsets = vec![0; live.len()];
        let mut lay = |wanted: bool, from: u64| {
            let of: Vec<usize> = (0..live.len()).filter(|&i| is_shared(live[i].0) == wanted).collect();
            let (placed, total) = plan(&of.iter().map(|&i| live[i].1.clone()).collect::<Vec<_>>());
            of.into_iter().zip(placed).for_each(|(i, offset)| offsets[i] = from + offset);
            align(total)
        };
        let private = lay(false, 0);
        let common = lay(true, private);
        live.iter().zip(0..).for_each(|(&(v, _), i)| places[v as usize] = i);
        let slot = |v: u32| match (offsets.get(places[v as usize] as usize), values.home[v as usize]) {
            (Some(&offset), _) => Slot::Value(offset),
            (None, home) => home.unwrap_or(Slot::Value(0)),
        };
        let mut steps = Vec::with_capacity(drafts.len());
        for d in drafts {
            steps.push(match d {
                Draft::Send { to, value } => {
                    Step::Send { to, tag: value, slot: slot(value), bytes: values.bytes[value as usize] }
                }
                Draft::Recv { from, value } => {
                    Step::Recv { from, tag: value, slot: slot(value), bytes: values.bytes[value as usize] }
                }
                Draft::Copy { value, slot: to } => {
                    let func = self.lowered.copies.get(&values.bytes[value as usize]).copied();
                    let func = func.ok_or_else(|| Diagnostic::internal("no copy function for a result"))?;
                    Step::Call { func, slots: vec![slot(value), to], layer: None }
                }
                Draft::Call { call } => {
                    let made = &self.chain.calls[call];
                    let (index, program) = self.program(made.func)?;
                    let operands = self.chain.args_of(made).iter().chain(self.chain.results_of(made));
                    let mut slots = Vec::with_capacity(program.slot_bytes.len());
                    slots.extend(operands.map(|&v| slot(v)));
                    slots.extend(self.lowered.constants[index as usize].iter().map(|&c| Slot::Const(c)));
                    Step::Call { func: index, slots, layer: self.layer_of[call] }
                }
            });
        }
        live.into_iter().for_each(|(v, _)| places[v as usize] = NONE);
        Ok(StageProgram { arena_bytes: private + common, shared_bytes: common, steps })
    }
}

fn slot(bound: Bound) -> Slot {
    match bound {
        Bound::Input(i) => Slot::Input(i),
        Bound::Param(i) => Slot::Param(i),
        Bound::State(i) => Slot::State(i),
    }
}

/// A step whose values are not placed yet.
enum Draft {
    Call { call: usize },
    Send { to: u32, value: u32 },
    Recv { from: u32, value: u32 },
    Copy { value: u32, slot: Slot },
}
