//! All that is fixed once a program is loaded: memory, kernels, and what devices work out beforehand.

use crate::distribute::HostSide;
use crate::extents::FuncExtents;
use crate::kernels::{KernelSet, Operand};
use crate::layout::{Layout, Mail};
use crate::memory::{Mapping, Window};
use pcc_ir::program::{
    Base, EntryProgram, FuncProgram, InstrKind, Launch, Loc, LocalParam, Program, Scalar, Slot, Step,
};
use pcc_ir::storage::BlockMatrix;
use pcc_ir::{AxisRef, Extent, Sizes};
use std::collections::HashMap;

/// A loaded program.
pub(crate) struct Machine {
    pub(crate) program: Program,
    pub(crate) layout: Layout,
    pub(crate) memory: Mapping,
    pub(crate) kernels: Box<dyn KernelSet>,
    pub(crate) scalars: Vec<FuncScalars>,
    pub(crate) extents: Vec<FuncExtents>,
    pub(crate) groups: Groups,
    /// Per function and instruction: whether it is a product that the kernel behind it runs with
    /// ([`FuncProgram::has_epilogue`]).
    pub(crate) epilogues: Vec<Vec<bool>>,
    /// Of each parameter what a device holds.
    params: Vec<Held>,
    /// Per entry, stage and step: index into the entry's mails; `u32::MAX` for a call.
    pub(crate) step_mails: Vec<Vec<Vec<u32>>>,
}

/// A parameter in a device's memory.
struct Held {
    bytes: u64,
    /// The matrix, if it is quantised.
    blocks: Option<BlockMatrix>,
}

impl Held {
    fn new(param: &LocalParam) -> Self {
        let local = param.sharding.local_shape(&param.ty.shape);
        Self { bytes: param.local_bytes(), blocks: param.storage.blocks(&local) }
    }
}

impl Machine {
    /// Prepares a validated program; parameters are loaded into `memory` already.
    pub(crate) fn new(
        program: Program,
        layout: Layout,
        memory: Mapping,
        kernels: Box<dyn KernelSet>,
    ) -> Self {
        let scalars = program.funcs.iter().map(|f| FuncScalars::new(&program, f)).collect();
        let extents = program.funcs.iter().map(|f| FuncExtents::new(&program, f)).collect();
        let groups = Groups::new(&program);
        let step_mails = step_mails(&program, &layout);
        let params = program.params.iter().map(Held::new).collect();
        let epilogues =
            |f: &FuncProgram| (0..f.instrs.len()).map(|at| f.has_epilogue(at, &program.kernels)).collect();
        let epilogues = program.funcs.iter().map(epilogues).collect();
        Self { epilogues, params, program, layout, memory, kernels, scalars, extents, groups, step_mails }
    }
}

fn step_mails(program: &Program, layout: &Layout) -> Vec<Vec<Vec<u32>>> {
    let of_entry = |(entry, mails): (&EntryProgram, &Vec<Mail>)| {
        let known: HashMap<(usize, usize, u32), u32> =
            mails.iter().enumerate().map(|(i, m)| ((m.from, m.to, m.tag), i as u32)).collect();
        let of_step = |stage: usize, step: &Step| {
            let key = match *step {
                Step::Call { .. } => return u32::MAX,
                Step::Send { to, tag, .. } => (stage, to as usize, tag),
                Step::Recv { from, tag, .. } => (from as usize, stage, tag),
            };
            known.get(&key).copied().unwrap_or(u32::MAX)
        };
        let stages = entry.stages.iter().enumerate();
        stages.map(|(i, s)| s.steps.iter().map(|step| of_step(i, step)).collect()).collect()
    };
    program.entries.iter().zip(&layout.mails).map(of_entry).collect()
}

/// Values of the scalars of a function's launches, for each position in a stage.
pub(crate) struct FuncScalars {
    /// Per instruction: where its scalars start.
    starts: Vec<usize>,
    /// Scalars of all instructions together.
    count: usize,
    values: Vec<i64>,
}

impl FuncScalars {
    pub(crate) fn new(program: &Program, func: &FuncProgram) -> Self {
        let mut starts = Vec::with_capacity(func.instrs.len());
        let mut scalars = Vec::new();
        for instr in &func.instrs {
            starts.push(scalars.len());
            if let InstrKind::Kernel(launch) = &instr.kind {
                scalars.extend(&launch.scalars);
            }
        }
        let positions = 0..program.mesh.stage_devices();
        let values = positions.flat_map(|p| scalars.iter().map(move |s| s.on(&program.mesh, p))).collect();
        Self { starts, count: scalars.len(), values }
    }

    /// The scalars of an instruction that has `count` of them.
    pub(crate) fn of(&self, position: usize, instr: usize, count: usize) -> &[i64] {
        let start = position * self.count + self.starts[instr];
        &self.values[start..start + count]
    }
}

/// The groups of collectives: for each distinct list of axes, the devices of a stage cut into groups.
pub(crate) struct Groups {
    sets: Vec<GroupSet>,
    /// Per function and instruction: index into `sets`; unused for other instructions.
    of: Vec<Vec<u32>>,
    /// Index into `sets`.
    team: u32,
    /// Groups of all sets together.
    pub(crate) count: usize,
}

struct GroupSet {
    size: usize,
    /// Positions in a stage, group after group, each in group order.
    members: Vec<u32>,
    /// Group of each position.
    group: Vec<u32>,
    /// Number of groups in the sets before.
    before: usize,
}

impl Groups {
    pub(crate) fn new<'p>(program: &'p Program) -> Self {
        let (mut sets, mut of, mut count) = (Vec::new(), Vec::new(), 0);
        let mut known: HashMap<&[AxisRef], u32> = HashMap::new();
        let mut number = |axes: &'p [AxisRef]| {
            *known.entry(axes).or_insert_with(|| {
                let set = group_set(program, axes, count);
                count += set.members.len() / set.size;
                sets.push(set);
                sets.len() as u32 - 1
            })
        };
        let team = number(&program.team);
        for func in &program.funcs {
            let mut indices = vec![u32::MAX; func.instrs.len()];
            for (index, instr) in indices.iter_mut().zip(&func.instrs) {
                let axes = match &instr.kind {
                    InstrKind::Collective(call) => &call.axes,
                    _ if instr.once => &program.team,
                    _ => continue,
                };
                *index = number(axes);
            }
            of.push(indices);
        }
        Self { sets, of, team, count }
    }

    /// The positions of a team, the first of which holds what it shares.
    pub(crate) fn team(&self, position: usize) -> &[u32] {
        let set = &self.sets[self.team as usize];
        let group = set.group[position] as usize;
        &set.members[group * set.size..(group + 1) * set.size]
    }

    /// The group of a position in its stage for a collective: its number among all groups, and its members in order.
    pub(crate) fn find(&self, func: usize, instr: usize, position: usize) -> (usize, &[u32]) {
        let set = &self.sets[self.of[func][instr] as usize];
        let group = set.group[position] as usize;
        (set.before + group, &set.members[group * set.size..(group + 1) * set.size])
    }
}

fn group_set(program: &Program, axes: &[AxisRef], before: usize) -> GroupSet {
    let mut set = GroupSet {
        size: 1,
        members: Vec::new(),
        group: vec![u32::MAX; program.mesh.stage_devices()],
        before,
    };
    for position in 0..program.mesh.stage_devices() {
        if set.group[position] == u32::MAX {
            let members = program.mesh.group(position, axes);
            set.size = members.len();
            let number = (set.members.len() / set.size) as u32;
            members.iter().for_each(|&m| set.group[m] = number);
            set.members.extend(members.iter().map(|&m| m as u32));
        }
    }
    set
}

impl HostSide for Machine {
    fn program(&self) -> &Program {
        &self.program
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn window(
        &self,
        entry: usize,
        device: usize,
        micro_batch: usize,
        slot: Slot,
        bytes: usize,
    ) -> Window<'_> {
        self.memory.window(self.layout.slot(entry, device, micro_batch, slot), bytes)
    }
}

/// Where a call finds its buffers: everything that turns a [`Loc`] into memory.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) entry: usize,
    pub(crate) device: usize,
    pub(crate) micro_batch: usize,
    pub(crate) sizes: Sizes,
    /// Number of the function.
    pub(crate) index: usize,
    pub(crate) func: &'a FuncProgram,
    pub(crate) slots: &'a [Slot],
}

impl<'a> Binding<'a> {
    /// The same call on another device of the stage.
    pub(crate) fn on(&self, device: usize) -> Self {
        Self { device, ..*self }
    }

    /// The same call on the device that holds what the team shares.
    pub(crate) fn on_leader(&self) -> Self {
        let position = self.position();
        let leader = self.machine.groups.team(position).first().map_or(position, |&m| m as usize);
        self.on(self.device - position + leader)
    }

    /// Position of the device in its stage.
    pub(crate) fn position(&self) -> usize {
        self.device % self.machine.layout.stage_devices()
    }

    /// What the extents of an instruction are; see [`FuncExtents::of`].
    pub(crate) fn extents(&self, instr: usize) -> impl FnMut(&Extent) -> u64 + '_ {
        self.machine.extents[self.index].of(self.position(), instr, &self.sizes)
    }

    /// The parameter that an argument is bound to, if it is one.
    fn param(&self, loc: &Loc) -> Option<&'a Held> {
        let Base::Slot(slot) = loc.base else { return None };
        match *self.slots.get(slot as usize)? {
            Slot::Param(index) => self.machine.params.get(index as usize),
            _ => None,
        }
    }

    /// The quantised matrix at `loc`, if a parameter is held so.
    pub(crate) fn blocks(&self, loc: &Loc) -> Option<BlockMatrix> {
        self.param(loc)?.blocks
    }

    /// All of a parameter in panels, in whatever form they are.
    pub(crate) fn panels(&self, loc: &Loc) -> Operand<'a> {
        match self.param(loc) {
            Some(held) => self.bytes_at(loc, held.bytes),
            None => self.operand(loc),
        }
    }

    /// The scalars of a launch, if some of them differ from run to run; `fixed` are all others.
    pub(crate) fn scalars_at_run(&self, launch: &Launch, fixed: &[i64]) -> Option<Vec<i64>> {
        let value = |s: &Scalar| s.at(&self.machine.program.mesh, self.position(), &self.sizes);
        let differs = launch.scalars.iter().any(|s| matches!(s, Scalar::There(_)));
        let all = || launch.scalars.iter().zip(fixed).map(|(s, &f)| value(s).unwrap_or(f)).collect();
        differs.then(all)
    }

    pub(crate) fn operand(&self, loc: &Loc) -> Operand<'a> {
        let bytes = match loc.base {
            Base::Frame => {
                let m = self.machine;
                let private = self.func.frame_bytes - self.func.shared_bytes;
                let shared = loc.offset.checked_sub(private).filter(|_| self.func.shared_bytes > 0);
                if let Some(offset) = shared {
                    let at = m.layout.team_frame(self.device);
                    let window = m.memory.window(at, self.func.shared_bytes as usize);
                    return Operand { window, offset: offset as usize };
                }
                private
            }
            Base::Slot(i) => self.func.slot_bytes[i as usize],
        };
        self.bytes_at(loc, bytes)
    }

    fn bytes_at(&self, loc: &Loc, bytes: u64) -> Operand<'a> {
        let m = self.machine;
        let at = match loc.base {
            Base::Frame => m.layout.frame(self.device),
            Base::Slot(i) => m.layout.slot(self.entry, self.device, self.micro_batch, self.slots[i as usize]),
        };
        Operand { window: m.memory.window(at, bytes as usize), offset: loc.offset as usize }
    }
}
