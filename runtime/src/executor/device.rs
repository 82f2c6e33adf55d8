//! A virtual device: a program counter over its stage's steps and their instructions.

use super::collective::{Exchange, there};
use super::link::Passed;
use super::schedule::Job;
use super::{Run, Shared, Worker, lock};
use crate::attention::Attention;
use crate::kernels::{FEW_ACCESSES, KernelCall};
use crate::machine::Binding;
use crate::product::rows::{self, LookUp};
use crate::product::{self, Product, Shape};
use crate::selection::{SampleRows, TopRows};
use crate::trace::NO_INSTR;
use pcc_ir::Sizes;
use pcc_ir::kernel_check::MAX_RANK;
use pcc_ir::program::{CollectiveCall, Gemm, InstrKind, Launch, Rows, Scalar, Slot, Step};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Elements touched by a launch above which its rows are offered to idle workers: ten microseconds of work, about.
const SHARED_ELEMENTS: i64 = 1 << 16;
/// Bytes moved by a collective above which its parts are offered to idle workers.
const SHARED_BYTES: usize = 1 << 18;
/// Parts a launch is cut into, for each worker.
const PARTS_A_WORKER: usize = 2;

/// Where a device is in its stage's program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    /// Index into [`Run::micro_batches`].
    pub(super) turn: usize,
    pub(super) step: usize,
    pub(super) instr: usize,
}

/// What a device waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waits {
    #[default]
    Nothing,
    Group,
    Message,
    Link,
    /// Nothing: its program is done.
    Finished,
    /// Nothing: the run is over.
    RunOver,
}

#[derive(Default)]
pub(super) struct Device {
    pub(super) counter: Counter,
    pub(super) waits: Waits,
    /// It was the last of its team to arrive, and runs ahead of the others, which wait.
    pub(super) holds: bool,
}

impl Shared {
    /// Runs a device until it blocks, finishes, or the run is over.
    pub(super) fn advance(&self, run: &Run, number: usize, worker: &mut Worker) {
        let mut device = lock(&self.devices[number]);
        let stage = number / self.machine.layout.stage_devices();
        let steps = self.machine.program.entries[run.entry].stages[stage].steps.as_slice();
        device.waits = Waits::Nothing;
        loop {
            let Counter { turn, step, .. } = device.counter;
            let Some(&micro_batch) = run.micro_batches.get(turn) else {
                device.waits = Waits::Finished;
                if self.scheduler.finish() {
                    drop(device);
                    self.report_deadlock(run);
                }
                return;
            };
            let Some(current) = steps.get(step) else {
                self.let_go(number, &mut device);
                device.counter = Counter { turn: turn + 1, ..Counter::default() };
                continue;
            };
            let waits = match current {
                Step::Call { func, slots, .. } => {
                    let binding = self.binding(run, number, micro_batch, *func, slots);
                    self.call(run, binding, &mut device, worker)
                }
                Step::Send { .. } | Step::Recv { .. } => {
                    self.let_go(number, &mut device);
                    let started = worker.clock.start();
                    let waits = self.pass_message(run, number, micro_batch, step, current);
                    worker.record(started, run, number, device.counter, NO_INSTR, false);
                    waits
                }
            };
            match waits {
                Waits::Nothing => {
                    device.counter.step += 1;
                    device.counter.instr = 0;
                }
                Waits::RunOver => return,
                waits => {
                    device.waits = waits;
                    if self.scheduler.block() {
                        drop(device);
                        self.report_deadlock(run);
                    }
                    return;
                }
            }
        }
    }

    fn binding<'a>(
        &'a self,
        run: &Run,
        device: usize,
        micro_batch: usize,
        func: u32,
        slots: &'a [Slot],
    ) -> Binding<'a> {
        let program = &self.machine.program;
        Binding {
            machine: &self.machine,
            entry: run.entry,
            device,
            micro_batch,
            sizes: Sizes { batch: program.batch, rows: run.rows, micro_batch, seq: run.seq },
            index: func as usize,
            func: &program.funcs[func as usize],
            slots,
        }
    }

    /// Runs the rest of a call.
    fn call(&self, run: &Run, own: Binding<'_>, device: &mut Device, worker: &mut Worker) -> Waits {
        let instrs = own.func.instrs.as_slice();
        while let Some(instr) = instrs.get(device.counter.instr) {
            if self.stopped() {
                return Waits::RunOver;
            }
            if !instr.once {
                self.let_go(own.device, device);
            } else if !device.holds {
                if !self.arrive(device.counter.instr, &own) {
                    device.counter.instr += 1;
                    return Waits::Group;
                }
                device.holds = true;
            }
            let binding = if instr.once { own.on_leader() } else { own };
            let started = worker.clock.start();
            let counter = device.counter;
            let job =
                |parts| Job::new(binding.device, binding.micro_batch, counter.step, counter.instr, parts);
            let released = match &instr.kind {
                InstrKind::Kernel(launch) => {
                    self.launch(counter.instr, launch, &binding, worker.number, job);
                    true
                }
                InstrKind::Gemm(gemm) => {
                    let shape = shape_of(gemm, counter.instr, &binding);
                    let parts = product::parts(&shape);
                    let run = |part| self.run_product(&shape, counter.instr, &binding, part);
                    self.in_parts(parts > 1, worker.number, job(parts), run);
                    // The kernel that ran with it.
                    device.counter.instr += usize::from(self.machine.epilogues[binding.index][counter.instr]);
                    true
                }
                InstrKind::Attention(call) => {
                    let attention = Attention::bind(call, &binding, counter.instr);
                    let parts = attention.parts();
                    self.in_parts(parts > 1, worker.number, job(parts), |p| attention.run_part(p));
                    attention.finish();
                    true
                }
                InstrKind::TopK(call) => {
                    let top = TopRows::bind(call, &binding, counter.instr);
                    let parts = top.parts();
                    self.in_parts(parts > 1, worker.number, job(parts), |p| top.run_part(p));
                    true
                }
                InstrKind::Sample(call) => {
                    let sample = SampleRows::bind(call, &binding, counter.instr);
                    let parts = sample.parts();
                    self.in_parts(parts > 1, worker.number, job(parts), |p| sample.run_part(p));
                    true
                }
                InstrKind::Rows(rows) => {
                    let parts = rows::parts(binding.extents(counter.instr)(&rows.count));
                    let run = |part| run_rows(rows, counter.instr, &binding, part);
                    self.in_parts(parts > 1, worker.number, job(parts), run);
                    true
                }
                InstrKind::Collective(call) => {
                    let last = self.meet(counter.instr, call, &binding, worker.number, job);
                    device.holds = last && call.axes == self.machine.program.team;
                    last
                }
            };
            worker.record(started, run, binding.device, counter, counter.instr as u32, !released);
            // A device that waits for its group goes on behind the collective.
            device.counter.instr += 1;
            if !released {
                return Waits::Group;
            }
        }
        Waits::Nothing
    }

    /// Runs the parts of an instruction, with idle workers' help when that is worth it.
    fn in_parts(&self, worth: bool, worker: usize, job: Job, run: impl Fn(usize)) {
        if worth && self.scheduler.has_idle() {
            self.scheduler.share(worker, job, run);
        } else {
            (0..job.parts).for_each(run);
        }
    }

    fn launch(
        &self,
        instr: usize,
        launch: &Launch,
        binding: &Binding<'_>,
        worker: usize,
        job: impl Fn(usize) -> Job,
    ) {
        let space = Space::new(launch, binding, instr);
        let rows = space.rows;
        let touched = rows.saturating_mul(space.lane()).saturating_mul(launch.ptrs.len() as i64);
        if rows > 1 && touched > SHARED_ELEMENTS && self.scheduler.has_idle() {
            let parts = (self.workers * PARTS_A_WORKER).min(rows as usize);
            self.scheduler.share(worker, job(parts), |part| {
                self.run_rows(instr, launch, binding, &space, rows_of_part(rows, parts, part));
            });
        } else if rows > 0 {
            self.run_rows(instr, launch, binding, &space, 0..rows);
        }
    }

    /// Runs a part of a product, and the same tile of the kernel behind it if the two run together.
    fn run_product(&self, gemm: &Shape, instr: usize, binding: &Binding<'_>, part: usize) {
        let [a, c] = [&gemm.a, &gemm.c].map(|m| binding.operand(&m.loc));
        let b =
            if gemm.packed.is_some() { binding.panels(&gemm.b.loc) } else { binding.operand(&gemm.b.loc) };
        Product { gemm, a, b, c }.run_part(part);
        if self.machine.epilogues[binding.index][instr]
            && let Some(InstrKind::Kernel(launch)) = binding.func.instrs.get(instr + 1).map(|i| &i.kind)
        {
            let (rows, cols) = product::tile(gemm, part);
            let space = Space::new(launch, binding, instr + 1).columns(cols.start as i64..cols.end as i64);
            let rows = if space.rank == 1 { 0..1 } else { rows.start as i64..rows.end as i64 };
            self.run_rows(instr + 1, launch, binding, &space, rows);
        }
    }

    fn run_rows(
        &self,
        instr: usize,
        launch: &Launch,
        binding: &Binding<'_>,
        space: &Space,
        rows: Range<i64>,
    ) {
        // Most kernels have few accesses: no allocation for those.
        let (mut few, mut many);
        let operands = match launch.ptrs.as_slice() {
            [] => return,
            [first, rest @ ..] if rest.len() < FEW_ACCESSES => {
                few = [binding.operand(first); FEW_ACCESSES];
                for (operand, loc) in few[1..].iter_mut().zip(rest) {
                    *operand = binding.operand(loc);
                }
                &mut few[..=rest.len()]
            }
            all => {
                many = all.iter().map(|loc| binding.operand(loc)).collect::<Vec<_>>();
                many.as_mut_slice()
            }
        };
        if space.first > 0 {
            let accesses = &self.machine.program.kernels[launch.kernel].accesses;
            let strides = launch.strides.chunks_exact(space.rank).map(|s| s[space.rank - 1]);
            for ((operand, access), stride) in operands.iter_mut().zip(accesses).zip(strides) {
                let bytes = space.first * stride * access.dtype.bytes() as i64;
                operand.offset = operand.offset.wrapping_add_signed(bytes as isize);
            }
        }
        let fixed = self.machine.scalars[binding.index].of(binding.position(), instr, launch.scalars.len());
        let at_run = binding.scalars_at_run(launch, fixed);
        self.machine.kernels.call(
            &KernelCall {
                kernel: launch.kernel,
                operands,
                extents: space.extents(),
                strides: &launch.strides,
                scalars: at_run.as_deref().unwrap_or(fixed),
            },
            rows,
        );
    }

    /// Arrives at a collective. The last member does it and releases the others; returns whether this one is the last.
    fn meet(
        &self,
        instr: usize,
        call: &CollectiveCall,
        binding: &Binding<'_>,
        worker: usize,
        job: impl Fn(usize) -> Job,
    ) -> bool {
        if !self.arrive(instr, binding) {
            return false;
        }
        let exchange = self.exchange(instr, call, *binding);
        let parts = exchange.parts();
        let worth = parts > 1 && exchange.traffic() > SHARED_BYTES;
        self.in_parts(worth, worker, job(parts), |part| exchange.run_part(part));
        // A team stays until its last device has done what is to be done once behind the collective.
        if call.axes != self.machine.program.team {
            let members = exchange.members.iter().map(|&m| exchange.stage_start + m as usize);
            self.scheduler.release(exchange.members.len() - 1, members.filter(|&m| m != binding.device));
        }
        true
    }

    /// Counts a device in at a meeting of its group; says whether it is the last.
    fn arrive(&self, instr: usize, binding: &Binding<'_>) -> bool {
        let (_, members) = self.machine.groups.find(binding.index, instr, binding.position());
        let arrived = &self.arrivals[self.meeting(binding.index, instr, binding.device)].0;
        let last = arrived.fetch_add(1, AcqRel) + 1 == members.len() as u32;
        if last {
            arrived.store(0, Relaxed);
        }
        last
    }

    /// The others of the team go on where the device that held them is.
    fn let_go(&self, number: usize, device: &mut Device) {
        if !std::mem::take(&mut device.holds) {
            return;
        }
        let position = number % self.machine.layout.stage_devices();
        let team = self.machine.groups.team(position);
        let others = || team.iter().map(|&m| number - position + m as usize).filter(|&m| m != number);
        others().for_each(|m| lock(&self.devices[m]).counter = device.counter);
        self.scheduler.release(team.len() - 1, others());
    }

    fn exchange<'a>(&'a self, instr: usize, call: &'a CollectiveCall, binding: Binding<'a>) -> Exchange<'a> {
        let position = binding.position();
        let (_, members) = self.machine.groups.find(binding.index, instr, position);
        let stage_start = binding.device - position;
        // Along the dims of a collective all members have the same, whoever came last.
        let first = binding.on(stage_start + members[0] as usize);
        let there = there(call, first.extents(instr));
        Exchange { call, binding, stage_start, members, there }
    }

    /// Which counter of arrivals a device's group uses.
    fn meeting(&self, func: usize, instr: usize, device: usize) -> usize {
        let stage_devices = self.machine.layout.stage_devices();
        let (group, _) = self.machine.groups.find(func, instr, device % stage_devices);
        device / stage_devices * self.machine.groups.count + group
    }

    fn pass_message(
        &self,
        run: &Run,
        number: usize,
        micro_batch: usize,
        step: usize,
        current: &Step,
    ) -> Waits {
        let stage_devices = self.machine.layout.stage_devices();
        let (stage, position) = (number / stage_devices, number % stage_devices);
        let index = self.machine.step_mails[run.entry][stage][step] as usize;
        let mail = &self.machine.layout.mails[run.entry][index];
        let window = |slot, bytes| {
            let at = self.machine.layout.slot(run.entry, number, micro_batch, slot);
            self.machine.memory.window(at, bytes as usize)
        };
        let (passed, other, waits) = match *current {
            Step::Send { slot, bytes, .. } => {
                let from = window(slot, bytes);
                (self.links.send(&self.machine, mail, index, position, &from), mail.to, Waits::Link)
            }
            Step::Recv { slot, bytes, .. } => {
                let to = window(slot, bytes);
                (self.links.recv(&self.machine, mail, index, position, &to), mail.from, Waits::Message)
            }
            Step::Call { .. } => return Waits::Nothing,
        };
        match passed {
            Passed::Wait => waits,
            Passed::Done { release } => {
                if release {
                    self.scheduler.release(1, std::iter::once(other * stage_devices + position));
                }
                Waits::Nothing
            }
        }
    }

    /// Runs one part of an instruction that another worker offers.
    pub(super) fn run_offered(&self, run: &Run, job: &Job, part: usize) {
        let stage = job.device / self.machine.layout.stage_devices();
        let steps = &self.machine.program.entries[run.entry].stages[stage].steps;
        let Some(Step::Call { func, slots, .. }) = steps.get(job.step) else {
            // invariant: only instructions of calls are offered
            unreachable!("step {} is no call", job.step)
        };
        let binding = self.binding(run, job.device, job.micro_batch, *func, slots);
        match binding.func.instrs.get(job.instr).map(|i| &i.kind) {
            Some(InstrKind::Kernel(launch)) => {
                let space = Space::new(launch, &binding, job.instr);
                let rows = rows_of_part(space.rows, job.parts, part);
                self.run_rows(job.instr, launch, &binding, &space, rows);
            }
            Some(InstrKind::Gemm(gemm)) => {
                self.run_product(&shape_of(gemm, job.instr, &binding), job.instr, &binding, part);
            }
            Some(InstrKind::Attention(call)) => Attention::bind(call, &binding, job.instr).run_part(part),
            Some(InstrKind::TopK(call)) => TopRows::bind(call, &binding, job.instr).run_part(part),
            Some(InstrKind::Sample(call)) => SampleRows::bind(call, &binding, job.instr).run_part(part),
            Some(InstrKind::Rows(rows)) => run_rows(rows, job.instr, &binding, part),
            Some(InstrKind::Collective(call)) => {
                self.exchange(job.instr, call, binding).run_part(part);
            }
            // invariant: as above
            None => unreachable!("no instruction {}", job.instr),
        }
    }
}

/// The iteration space of a launch on a device at a run. Validation bounds rank and product.
struct Space {
    extents: [i64; MAX_RANK as usize],
    rank: usize,
    /// Where it starts along the last dim.
    first: i64,
    /// Rows to run: none when a dim is empty.
    rows: i64,
}

impl Space {
    fn new(launch: &Launch, binding: &Binding<'_>, instr: usize) -> Self {
        let mut extents = [1; MAX_RANK as usize];
        let rank = launch.extents.len().min(extents.len());
        let mut extent = binding.extents(instr);
        extents.iter_mut().zip(&launch.extents).for_each(|(to, e)| *to = extent(e) as i64);
        let empty = rank == 0 || extents.contains(&0);
        let rows = if empty { 0 } else { extents[..rank - 1].iter().product() };
        Self { extents, rank, first: 0, rows }
    }

    /// Part of the last dim; the kernel knows no index along it.
    fn columns(mut self, columns: Range<i64>) -> Self {
        if let Some(lane) = self.rank.checked_sub(1).and_then(|last| self.extents.get_mut(last)) {
            (self.first, *lane) = (columns.start, columns.end - columns.start);
        }
        self
    }

    fn extents(&self) -> &[i64] {
        &self.extents[..self.rank]
    }

    fn lane(&self) -> i64 {
        self.extents().last().copied().unwrap_or(0)
    }
}

fn rows_of_part(rows: i64, parts: usize, part: usize) -> Range<i64> {
    let at = |i: usize| (i128::from(rows) * i as i128 / parts as i128) as i64;
    at(part)..at(part + 1)
}

fn shape_of(gemm: &Gemm, instr: usize, binding: &Binding<'_>) -> Shape {
    let mut shape = Shape::new(gemm, binding.extents(instr));
    shape.blocks = gemm.packed.and_then(|_| binding.blocks(&gemm.b.loc));
    shape
}

fn run_rows(rows: &Rows, instr: usize, binding: &Binding<'_>, part: usize) {
    let position = binding.device % binding.machine.layout.stage_devices();
    let on = |s: &Scalar| s.on(&binding.machine.program.mesh, position);
    let [indices, out] = [&rows.indices, &rows.out].map(|loc| binding.operand(loc));
    let (table, blocks) = (binding.panels(&rows.table), binding.blocks(&rows.table));
    let count = binding.extents(instr)(&rows.count);
    LookUp { rows, count, table, blocks, indices, out, base: on(&rows.base), valid: on(&rows.valid) }
        .run_part(part);
}
