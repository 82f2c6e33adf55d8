//! Entries and stages: which calls run where, what every argument is bound to, and what crosses from stage to stage.

use super::buffers::{Interval, align, plan};
use pcc_ir::graph::Role;
use pcc_ir::program::{EntryProgram, FuncProgram, IoSpec, Slot, StageProgram, Step};
use pcc_ir::{Diagnostic, Entry, Func, FuncId, Inst, Op, ValueId};
use std::collections::{BTreeMap, HashMap};

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
    pub entry: &'a Entry,
    /// The local entry function: calls only.
    pub func: &'a Func,
    pub lowered: &'a Lowered,
    /// Stage of each call.
    pub stage_of: &'a [u32],
    /// Index in the chain of layers of each call.
    pub layer_of: &'a [Option<u32>],
    pub inputs: Vec<IoSpec>,
    pub outputs: Vec<IoSpec>,
    /// Call and stage that make each value; filled by [`EntryLowering::lower`].
    pub makers: HashMap<ValueId, (usize, u32)>,
}

/// Where a value of the entry function lives: a fixed slot, or the arenas of the stages that have it.
#[derive(Clone, Copy)]
enum Home {
    Fixed(Slot),
    Arena,
}

impl EntryLowering<'_> {
    pub fn lower(mut self, stages: u32) -> Result<EntryProgram, Diagnostic> {
        let made = |(c, (_, inst, _)): (usize, (usize, &Inst, FuncId))| {
            inst.results.iter().map(|&v| (v, (c, self.stage_of[c]))).collect::<Vec<_>>()
        };
        self.makers = self.calls().enumerate().flat_map(made).collect();
        let homes = self.homes()?;
        let mut programs = Vec::new();
        for stage in 0..stages {
            programs.push(self.lower_stage(stage, &homes)?);
        }
        Ok(EntryProgram {
            name: self.entry.name.clone(),
            inputs: self.inputs,
            outputs: self.outputs,
            stages: programs,
        })
    }

    fn calls(&self) -> impl Iterator<Item = (usize, &Inst, FuncId)> {
        self.func.insts.iter().enumerate().filter_map(|(i, inst)| match inst.op {
            Op::Call(f) => Some((i, inst, f)),
            _ => None,
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
    fn homes(&self) -> Result<HashMap<ValueId, Home>, Diagnostic> {
        let mut homes = HashMap::new();
        let mut input = 0;
        for (&v, role) in self.func.args.iter().zip(&self.entry.args) {
            let slot = match role {
                Role::Input(_) => {
                    input += 1;
                    Slot::Input(input - 1)
                }
                Role::Param(p) => Slot::Param(p.as_u32()),
                Role::State(s) => Slot::State(s.as_u32()),
            };
            homes.insert(v, Home::Fixed(slot));
        }
        let mut output = 0;
        for (i, &v) in self.func.results.iter().enumerate() {
            if self.entry.aliases.iter().any(|&(_, r)| r == i) {
                continue;
            }
            homes.entry(v).or_insert(Home::Fixed(Slot::Output(output)));
            output += 1;
        }
        for (_, inst, f) in self.calls() {
            let (_, program) = self.program(f)?;
            for (r, &v) in inst.results.iter().enumerate() {
                let pair = program.in_place.iter().find(|&&(_, slot)| slot == program.args + r as u32);
                if let Some(&(a, _)) = pair
                    && let Some(&home) = homes.get(&inst.args[a as usize])
                {
                    homes.insert(v, home);
                }
                homes.entry(v).or_insert(Home::Arena);
            }
        }
        Ok(homes)
    }

    /// Stage that makes a value; `None` for arguments, which every stage has.
    fn maker(&self, v: ValueId) -> Option<(usize, u32)> {
        self.makers.get(&v).copied()
    }

    fn bytes(&self, v: ValueId) -> u64 {
        self.func.ty(v).bytes() as u64
    }

    /// Values that stage `to` needs of other stages, in the order they are made, each with its maker's stage.
    fn imports(&self, to: u32) -> Vec<(ValueId, u32)> {
        let mut found: BTreeMap<(usize, ValueId), u32> = BTreeMap::new();
        for (c, (_, inst, _)) in self.calls().enumerate() {
            if self.stage_of[c] != to {
                continue;
            }
            for &a in &inst.args {
                if let Some((at, from)) = self.maker(a)
                    && from != to
                {
                    found.insert((at, a), from);
                }
            }
        }
        found.into_iter().map(|((_, v), from)| (v, from)).collect()
    }

    fn lower_stage(&self, stage: u32, homes: &HashMap<ValueId, Home>) -> Result<StageProgram, Diagnostic> {
        let mut steps: Vec<Draft> = Vec::new();
        let mut imports = self.imports(stage).into_iter().peekable();
        let exports: Vec<(u32, Vec<(ValueId, u32)>)> = (stage + 1
            ..=self.stage_of.iter().copied().max().unwrap_or(0))
            .map(|to| (to, self.imports(to)))
            .collect();
        for (c, (_, inst, f)) in self.calls().enumerate() {
            if self.stage_of[c] != stage {
                continue;
            }
            // Links deliver in order: whatever was made before what this call needs is received first.
            let needed =
                inst.args.iter().filter_map(|&a| self.maker(a)).filter(|m| m.1 != stage).map(|m| m.0).max();
            while let Some(&(v, from)) = imports.peek() {
                if needed.is_none_or(|n| self.maker(v).is_none_or(|m| m.0 > n)) {
                    break;
                }
                steps.push(Draft::Recv { from, value: v });
                imports.next();
            }
            steps.push(Draft::Call {
                call: c,
                func: f,
                args: inst.args.clone(),
                results: inst.results.clone(),
            });
            for (to, wanted) in &exports {
                for &(v, from) in wanted {
                    if from == stage && inst.results.contains(&v) {
                        steps.push(Draft::Send { to: *to, value: v });
                    }
                }
            }
        }
        self.copy_outputs(stage, homes, &mut steps);
        self.place(steps, homes)
    }

    /// Results of the entry whose home is not their own output or state (arguments, repeats) are copied there.
    fn copy_outputs(&self, stage: u32, homes: &HashMap<ValueId, Home>, steps: &mut Vec<Draft>) {
        let mut output = 0;
        for (i, &v) in self.func.results.iter().enumerate() {
            let slot = match self.entry.aliases.iter().find(|&&(_, r)| r == i) {
                Some(&(a, _)) => match homes.get(&self.func.args[a]) {
                    Some(&Home::Fixed(slot)) => slot,
                    _ => continue,
                },
                None => {
                    output += 1;
                    Slot::Output(output - 1)
                }
            };
            let at_home = matches!(homes.get(&v), Some(&Home::Fixed(s)) if s == slot);
            let here = self.maker(v).map_or(0, |m| m.1) == stage;
            if !at_home && here {
                steps.push(Draft::Copy { value: v, slot });
            }
        }
    }

    /// Plans the arena and turns drafts into steps.
    fn place(&self, drafts: Vec<Draft>, homes: &HashMap<ValueId, Home>) -> Result<StageProgram, Diagnostic> {
        let mut live: BTreeMap<ValueId, Interval> = BTreeMap::new();
        for (at, d) in drafts.iter().enumerate() {
            for v in d.values() {
                // A value made elsewhere lives in the arena here even if its maker keeps it in an output.
                if matches!(homes.get(&v), Some(Home::Arena) | None)
                    || matches!(d, Draft::Recv { .. })
                    || live.contains_key(&v)
                {
                    let bytes = self.bytes(v);
                    live.entry(v).or_insert(Interval { bytes, first: at, last: at }).last = at;
                }
            }
        }
        let intervals: Vec<Interval> = live.values().cloned().collect();
        let (offsets, arena) = plan(&intervals);
        let offset: HashMap<ValueId, u64> = live.keys().copied().zip(offsets).collect();
        let slot = |v: ValueId| match (offset.get(&v), homes.get(&v)) {
            (Some(&o), _) => Slot::Value(o),
            (None, Some(&Home::Fixed(s))) => s,
            (None, _) => Slot::Value(0),
        };
        let mut steps = Vec::new();
        for d in drafts {
            steps.push(match d {
                Draft::Send { to, value } => {
                    Step::Send { to, tag: value.as_u32(), slot: slot(value), bytes: self.bytes(value) }
                }
                Draft::Recv { from, value } => {
                    Step::Recv { from, tag: value.as_u32(), slot: slot(value), bytes: self.bytes(value) }
                }
                Draft::Copy { value, slot: to } => {
                    let func = self.lowered.copies.get(&self.bytes(value)).copied();
                    let func = func.ok_or_else(|| Diagnostic::internal("no copy function for a result"))?;
                    Step::Call { func, slots: vec![slot(value), to], layer: None }
                }
                Draft::Call { call, func, args, results } => {
                    let (index, _) = self.program(func)?;
                    let constants = self.lowered.constants[index as usize].iter().map(|&c| Slot::Const(c));
                    let slots = args.iter().chain(&results).map(|&v| slot(v)).chain(constants).collect();
                    Step::Call { func: index, slots, layer: self.layer_of[call] }
                }
            });
        }
        Ok(StageProgram { arena_bytes: align(arena), steps })
    }
}

/// A step whose values are not placed yet.
enum Draft {
    Call { call: usize, func: FuncId, args: Vec<ValueId>, results: Vec<ValueId> },
    Send { to: u32, value: ValueId },
    Recv { from: u32, value: ValueId },
    Copy { value: ValueId, slot: Slot },
}

impl Draft {
    fn values(&self) -> Vec<ValueId> {
        match self {
            Draft::Call { args, results, .. } => args.iter().chain(results).copied().collect(),
            Draft::Send { value, .. } | Draft::Recv { value, .. } | Draft::Copy { value, .. } => vec![*value],
        }
    }
}
