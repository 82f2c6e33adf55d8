//! Where every buffer of every device lies in the process's one mapping.
//!
//! Devices of a stage have the same layout relative to their base; only the slices of parameters differ, and equal slices are
//! stored once. The program was validated: nothing here can overflow except the total, which is checked.

use crate::extents;
use crate::memory::ALIGN;
use pcc_ir::program::{FuncProgram, Instr, InstrKind, Program, Slot, StageProgram, Step};
use pcc_ir::{Diagnostic, Sharding, Type};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A buffer in the mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Buffers of one kind, one per micro-batch, relative to the device's base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerBatch {
    offset: u64,
    stride: u64,
}

/// Message buffers of one (sender stage, tag), in the receiving device: two, so that a sender runs one micro-batch ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mail {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) tag: u32,
    /// Relative to the receiving device's base.
    offset: u64,
    bytes: u64,
}

/// Messages a link holds per tag.
pub(crate) const MAIL_SLOTS: u64 = 2;

#[derive(Debug, Default)]
pub(crate) struct EntryIo {
    /// Where in the arena what a team shares begins.
    private: u64,
    pub(crate) inputs: Vec<Option<PerBatch>>,
    pub(crate) outputs: Vec<Option<PerBatch>>,
}

/// What devices of a stage have in common.
#[derive(Debug, Default)]
pub(crate) struct StageLayout {
    frame: u64,
    values: u64,
    /// Bytes of a team's frame, and of all that a team shares.
    team: (u64, u64),
    /// Where frame and values end, and where inputs, outputs and messages begin.
    scratch: (u64, u64),
    pub(crate) states: Vec<Option<PerBatch>>,
    pub(crate) entries: Vec<EntryIo>,
    bytes: u64,
    /// Parameters the stage uses.
    params: BTreeSet<u32>,
}

/// One slice of a parameter, held by at least one device.
#[derive(Debug)]
pub(crate) struct ParamSlice {
    pub(crate) param: usize,
    /// Start and length per logical dim.
    pub(crate) spans: Vec<(usize, usize)>,
    pub(crate) at: Extent,
}

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) stages: Vec<StageLayout>,
    /// Per device.
    bases: Vec<usize>,
    /// Per device: where what its team shares lies.
    teams: Vec<usize>,
    /// Per device and parameter of the program: offset in the mapping.
    params: Vec<Vec<usize>>,
    constants: Vec<usize>,
    pub(crate) slices: Vec<ParamSlice>,
    /// Per entry.
    pub(crate) mails: Vec<Vec<Mail>>,
    pub(crate) total: usize,
    stage_devices: usize,
}

/// The layout of devices with a memory each.
#[cfg(feature = "cuda")]
pub(crate) struct Apart {
    pub(crate) layout: Layout,
    /// The slices of each device.
    pub(crate) slices: Vec<Vec<ParamSlice>>,
    /// Bytes of each.
    pub(crate) bytes: Vec<u64>,
}

fn align(n: u64) -> u64 {
    // Saturates: a total that large is refused before anything uses it.
    n.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

/// Bytes of a device's piece, on every device the same.
pub(crate) fn local_bytes(sharding: &Sharding, ty: &Type) -> u64 {
    sharding.local_type(ty).bytes() as u64
}

/// Slots of a step.
pub(crate) fn slots_of(step: &Step) -> &[Slot] {
    match step {
        Step::Call { slots, .. } => slots,
        Step::Send { slot, .. } | Step::Recv { slot, .. } => std::slice::from_ref(slot),
    }
}

/// Hands out aligned ranges one after another.
#[derive(Default)]
struct Cursor(u64);

impl Cursor {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.0;
        self.0 = self.0.saturating_add(align(bytes));
        at
    }
}

impl Layout {
    /// Lays the program out.
    ///
    /// # Errors
    /// The total passes what the machine has available.
    pub(crate) fn new(program: &Program) -> Result<Self, Diagnostic> {
        let stage_devices = program.mesh.stage_devices();
        check_available(table_bytes(program))?;
        let mut stages: Vec<_> = (0..program.mesh.pp as usize).map(|s| stage_layout(program, s)).collect();
        let mails = mail_layout(program, &mut stages);
        let mut cursor = Cursor::default();
        let mut bases = Vec::with_capacity(program.mesh.devices());
        let mut teams = Vec::with_capacity(program.mesh.devices());
        for stage in &stages {
            for _ in 0..stage_devices {
                bases.push(cursor.take(stage.bytes) as usize);
            }
            let first = teams.len();
            for position in 0..stage_devices {
                let leader = program.mesh.group(position, &program.team).first().copied().unwrap_or(position);
                let at = match leader == position {
                    true => cursor.take(stage.team.1) as usize,
                    false => teams[first + leader],
                };
                teams.push(at);
            }
        }
        let constants = program.constants.iter().map(|c| cursor.take(c.ty.bytes() as u64) as usize).collect();
        let (slices, params) = param_layout(program, &stages, &mut cursor);
        check_available(cursor.0)?;
        let total = cursor.0 as usize;
        Ok(Self { stages, bases, teams, params, constants, slices, mails, total, stage_devices })
    }

    #[cfg(feature = "cuda")]
    /// As [`Layout::new`], for devices with a memory each: offsets are within it, and every device holds its own slices and all
    /// constants. Messages have no buffers here.
    ///
    /// # Errors
    /// The tables that grow with devices pass what this machine has available.
    pub(crate) fn apart(program: &Program) -> Result<Apart, Diagnostic> {
        let stage_devices = program.mesh.stage_devices();
        check_available(table_bytes(program))?;
        let stages: Vec<_> = (0..program.mesh.pp as usize).map(|s| stage_layout(program, s)).collect();
        let mut first = Cursor::default();
        let constants = program.constants.iter().map(|c| first.take(c.ty.bytes() as u64) as usize).collect();
        let (mut params, mut slices, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for stage in &stages {
            for position in 0..stage_devices {
                let mut cursor = Cursor(first.0.saturating_add(stage.bytes));
                let mut held = vec![usize::MAX; program.params.len()];
                let mut own = Vec::new();
                for &index in &stage.params {
                    let param = &program.params[index as usize];
                    let len = param.local_bytes();
                    let at = Extent { offset: cursor.take(len) as usize, len: len as usize };
                    held[index as usize] = at.offset;
                    let spans = spans(program, &param.sharding, &param.ty, position);
                    own.push(ParamSlice { param: index as usize, spans, at });
                }
                params.push(held);
                slices.push(own);
                bytes.push(cursor.0);
            }
        }
        let devices = stages.len() * stage_devices;
        let layout = Self {
            stages,
            bases: vec![first.0 as usize; devices],
            teams: vec![0; devices],
            params,
            constants,
            slices: Vec::new(),
            mails: Vec::new(),
            total: bytes.iter().fold(0u64, |n, &b| n.saturating_add(b)) as usize,
            stage_devices,
        };
        Ok(Apart { layout, slices, bytes })
    }

    #[cfg(feature = "cuda")]
    /// Where inputs and outputs of a device lie, all entries and micro-batches together.
    pub(crate) fn io_of(&self, device: usize) -> Extent {
        let stage = &self.stages[device / self.stage_devices];
        let offset = self.bases[device] + stage.scratch.1 as usize;
        Extent { offset, len: (stage.bytes - stage.scratch.1) as usize }
    }

    /// Offset of a slot's buffer, for a device at a micro-batch.
    pub(crate) fn slot(&self, entry: usize, device: usize, micro_batch: usize, slot: Slot) -> usize {
        let stage = &self.stages[device / self.stage_devices];
        let per_batch = |p: &Option<PerBatch>| {
            // A slot that no step of the stage names has no buffer, and is never asked for.
            p.map_or(u64::MAX, |p| p.offset + p.stride * micro_batch as u64)
        };
        let relative = match slot {
            Slot::Param(i) => return self.params[device][i as usize],
            Slot::Const(i) => return self.constants[i as usize],
            Slot::State(i) => per_batch(&stage.states[i as usize]),
            Slot::Input(i) => per_batch(&stage.entries[entry].inputs[i as usize]),
            Slot::Output(i) => per_batch(&stage.entries[entry].outputs[i as usize]),
            Slot::Value(offset) => match offset.checked_sub(stage.entries[entry].private) {
                Some(shared) => return self.teams[device] + (stage.team.0 + shared) as usize,
                None => stage.values + offset,
            },
        };
        self.bases[device] + relative as usize
    }

    /// Offset of the frame that the device's team shares.
    pub(crate) fn team_frame(&self, device: usize) -> usize {
        self.teams[device]
    }

    /// Offset of the device's frame.
    pub(crate) fn frame(&self, device: usize) -> usize {
        self.bases[device] + self.stages[device / self.stage_devices].frame as usize
    }

    /// Buffer of the `count`th message of a mail to `device`.
    pub(crate) fn mail(&self, mail: &Mail, device: usize, count: u64) -> Extent {
        let offset = mail.offset + (count % MAIL_SLOTS) * align(mail.bytes);
        Extent { offset: self.bases[device] + offset as usize, len: mail.bytes as usize }
    }

    /// The states of a device, all micro-batches together.
    pub(crate) fn states_of(&self, device: usize, micro_batches: usize) -> impl Iterator<Item = Extent> + '_ {
        let states = self.stages[device / self.stage_devices].states.iter().flatten();
        states.map(move |s| Extent {
            offset: self.bases[device] + s.offset as usize,
            len: s.stride as usize * micro_batches,
        })
    }

    /// Everything of a device that no run may rely on.
    pub(crate) fn scratch_of(&self, device: usize) -> [Extent; 3] {
        let (base, stage) = (self.bases[device], &self.stages[device / self.stage_devices]);
        let range = |from: u64, to: u64| Extent { offset: base + from as usize, len: (to - from) as usize };
        let team = Extent { offset: self.teams[device], len: stage.team.1 as usize };
        [range(0, stage.scratch.0), range(stage.scratch.1, stage.bytes), team]
    }

    /// Offset of a constant's buffer.
    pub(crate) fn constant(&self, index: usize) -> usize {
        self.constants[index]
    }

    /// Number of devices of a stage.
    pub(crate) fn stage_devices(&self) -> usize {
        self.stage_devices
    }
}

#[cfg(feature = "cuda")]
impl StageLayout {
    /// Parameters the stage uses.
    pub(crate) fn params(&self) -> &BTreeSet<u32> {
        &self.params
    }
}

fn stage_layout(program: &Program, stage: usize) -> StageLayout {
    let micro_batches = program.batch.micro_batches as u64;
    let programs: Vec<&StageProgram> = program.entries.iter().filter_map(|e| e.stages.get(stage)).collect();
    let used: HashSet<Slot> =
        programs.iter().flat_map(|p| p.steps.iter().flat_map(slots_of).copied()).collect();
    let mut cursor = Cursor::default();
    let called: HashSet<u32> = programs
        .iter()
        .flat_map(|p| &p.steps)
        .filter_map(|s| if let Step::Call { func, .. } = s { Some(*func) } else { None })
        .collect();
    let funcs = || called.iter().map(|&f| &program.funcs[f as usize]);
    let most = |sizes: &mut dyn Iterator<Item = u64>| sizes.max().unwrap_or(0);
    let frame = cursor.take(most(&mut funcs().map(|f| f.frame_bytes.saturating_sub(f.shared_bytes))));
    let private = |p: &StageProgram| p.arena_bytes.saturating_sub(p.shared_bytes);
    let values = cursor.take(most(&mut programs.iter().map(|p| private(p))));
    let team_frame = align(most(&mut funcs().map(|f| f.shared_bytes)));
    let team = (team_frame, team_frame.saturating_add(most(&mut programs.iter().map(|p| p.shared_bytes))));
    let scratch = cursor.0;
    let per_batch = |cursor: &mut Cursor, bytes: u64| {
        let stride = align(bytes);
        let offset = cursor.take(stride.saturating_mul(micro_batches));
        PerBatch { offset, stride }
    };
    let states = program.states.iter().enumerate().map(|(i, s)| {
        let named = used.contains(&Slot::State(i as u32));
        named.then(|| per_batch(&mut cursor, local_bytes(&s.sharding, &s.ty)))
    });
    let states = states.collect();
    // One entry runs at a time: inputs and outputs of all share one range.
    let (start, mut end) = (cursor.0, cursor.0);
    let mut entries = Vec::new();
    for entry in &program.entries {
        let mut io = Cursor(start);
        let steps = entry.stages.get(stage).map_or(&[][..], |p| &p.steps);
        let named: HashSet<Slot> = steps.iter().flat_map(slots_of).copied().collect();
        let mut place = |specs: &[pcc_ir::program::IoSpec], slot: fn(u32) -> Slot| {
            let one = |(i, s): (usize, &pcc_ir::program::IoSpec)| {
                let bytes = local_bytes(&s.sharding, &s.ty);
                named.contains(&slot(i as u32)).then(|| per_batch(&mut io, bytes))
            };
            specs.iter().enumerate().map(one).collect()
        };
        let inputs = place(&entry.inputs, Slot::Input);
        let outputs = place(&entry.outputs, Slot::Output);
        let private = entry.stages.get(stage).map_or(0, private);
        entries.push(EntryIo { private, inputs, outputs });
        end = end.max(io.0);
    }
    let params = used.iter().filter_map(|s| if let Slot::Param(p) = s { Some(*p) } else { None }).collect();
    StageLayout { frame, values, team, scratch: (scratch, start), states, entries, bytes: end, params }
}

/// Gives every (entry, sender, tag) its message buffers, behind the other buffers of the receiving stage's devices.
fn mail_layout(program: &Program, stages: &mut [StageLayout]) -> Vec<Vec<Mail>> {
    let start: Vec<u64> = stages.iter().map(|s| s.bytes).collect();
    let mut all = Vec::new();
    for entry in &program.entries {
        let mut cursors: Vec<Cursor> = start.iter().map(|&b| Cursor(b)).collect();
        let mut mails = Vec::new();
        for (from, stage) in entry.stages.iter().enumerate() {
            for step in &stage.steps {
                if let Step::Send { to, tag, bytes, .. } = *step {
                    let to = to as usize;
                    let offset = cursors[to].take(align(bytes).saturating_mul(MAIL_SLOTS));
                    mails.push(Mail { from, to, tag, offset, bytes });
                }
            }
        }
        for (stage, cursor) in stages.iter_mut().zip(cursors) {
            stage.bytes = stage.bytes.max(cursor.0);
        }
        all.push(mails);
    }
    all
}

/// Gives every distinct slice of a parameter one buffer.
fn param_layout(
    program: &Program,
    stages: &[StageLayout],
    cursor: &mut Cursor,
) -> (Vec<ParamSlice>, Vec<Vec<usize>>) {
    let mesh = &program.mesh;
    let stage_devices = mesh.stage_devices();
    let mut slices: Vec<ParamSlice> = Vec::new();
    let mut params = vec![vec![usize::MAX; program.params.len()]; mesh.devices()];
    let mut known: HashMap<(usize, Vec<(usize, usize)>), usize> = HashMap::new();
    for (stage, layout) in stages.iter().enumerate() {
        for &index in &layout.params {
            let (index, param) = (index as usize, &program.params[index as usize]);
            for position in 0..stage_devices {
                let spans = spans(program, &param.sharding, &param.ty, position);
                let slice = *known.entry((index, spans)).or_insert_with_key(|(_, spans)| {
                    let len = param.local_bytes() as usize;
                    let at = Extent { offset: cursor.take(len as u64) as usize, len };
                    slices.push(ParamSlice { param: index, spans: spans.clone(), at });
                    slices.len() - 1
                });
                params[stage * stage_devices + position][index] = slices[slice].at.offset;
            }
        }
    }
    (slices, params)
}

/// Start and length, per dim, of what the devices at a position of their stage hold of a value.
pub(crate) fn spans(
    program: &Program,
    sharding: &Sharding,
    ty: &Type,
    position: usize,
) -> Vec<(usize, usize)> {
    let span = |(dim, &n): (usize, &usize)| sharding.span(&program.mesh, position, dim, n);
    ty.shape.iter().enumerate().map(span).map(|s| (s.start, s.len)).collect()
}

/// Bytes, about, of the tables that grow with devices: small unless an artifact lies about its mesh.
fn table_bytes(program: &Program) -> u64 {
    let scalars = |f: &FuncProgram| -> u64 {
        let of = |i: &Instr| if let InstrKind::Kernel(l) = &i.kind { l.scalars.len() as u64 } else { 0 };
        f.instrs.iter().map(of).sum()
    };
    let scalars: u64 = program.funcs.iter().map(scalars).sum();
    let clips: u64 = program.funcs.iter().map(extents::count).sum();
    let a_device = 1024 + 8 * program.params.len() as u64 + 8 * scalars + 16 * clips;
    (program.mesh.devices() as u64).saturating_mul(a_device)
}

/// Refuses more than the machine has available, with both figures.
fn check_available(need: u64) -> Result<(), Diagnostic> {
    let gib = |n: u64| format!("{:.2} GiB", n as f64 / (1u64 << 30) as f64);
    let available = available_memory().unwrap_or(1 << 46);
    if need <= available {
        return Ok(());
    }
    Err(Diagnostic::run(format!("the program needs {} of memory on this machine", gib(need)))
        .why(format!("{} are available", gib(available)))
        .help("compile with a smaller batch, sequence or model, or run it on a larger machine"))
}

/// Bytes the system can give without swapping, if it says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
