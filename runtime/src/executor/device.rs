//! A virtual device: a program counter over its stage's steps and their instructions.

use super::collective::{Exchange, parts, traffic};
use super::link::Passed;
use super::schedule::Job;
use super::{Run, Shared, Worker, lock};
use crate::kernels::{FEW_ACCESSES, KernelCall};
use crate::machine::Binding;
use crate::product::{self, Product};
use crate::trace::NO_INSTR;
use pcc_ir::program::{CollectiveCall, Gemm, InstrKind, Launch, Step};
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
                device.counter = Counter { turn: turn + 1, ..Counter::default() };
                continue;
            };
            let waits = match current {
                Step::Call { func, slots, .. } => {
                    let binding = Binding {
                        machine: &self.machine,
                        entry: run.entry,
                        device: number,
                        micro_batch,
                        func: &self.machine.program.funcs[*func as usize],
                        slots,
                    };
                    self.call(run, *func as usize, binding, &mut device, worker)
                }
                Step::Send { .. } | Step::Recv { .. } => {
                    let started = worker.clock.start();
                    let waits = self.pass_message(run, number, micro_batch, step, current);
                    worker.record(started, run, number, device.counter, NO_INSTR);
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

    /// Runs the rest of a call.
    fn call(
        &self,
        run: &Run,
        func: usize,
        binding: Binding<'_>,
        device: &mut Device,
        worker: &mut Worker,
    ) -> Waits {
        let instrs = binding.func.instrs.as_slice();
        while let Some(instr) = instrs.get(device.counter.instr) {
            if self.stopped() {
                return Waits::RunOver;
            }
            let started = worker.clock.start();
            let counter = device.counter;
            let job =
                |parts| Job::new(binding.device, binding.micro_batch, counter.step, counter.instr, parts);
            let released = match &instr.kind {
                InstrKind::Kernel(launch) => {
                    self.launch(func, counter.instr, launch, &binding, worker.number, job);
                    true
                }
                InstrKind::Gemm(gemm) => {
                    let parts = product::parts(gemm);
                    self.in_parts(parts > 1, worker.number, job(parts), |p| run_product(gemm, &binding, p));
                    true
                }
                InstrKind::Collective(call) => {
                    self.meet(func, counter.instr, call, &binding, worker.number, job)
                }
            };
            worker.record(started, run, binding.device, counter, counter.instr as u32);
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
        func: usize,
        instr: usize,
        launch: &Launch,
        binding: &Binding<'_>,
        worker: usize,
        job: impl Fn(usize) -> Job,
    ) {
        let (rows, lane) = row_space(launch);
        let touched = rows.saturating_mul(lane).saturating_mul(launch.ptrs.len() as i64);
        if rows > 1 && touched > SHARED_ELEMENTS && self.scheduler.has_idle() {
            let parts = (self.workers * PARTS_A_WORKER).min(rows as usize);
            self.scheduler.share(worker, job(parts), |part| {
                self.run_rows(func, instr, launch, binding, rows_of_part(rows, parts, part));
            });
        } else if rows > 0 {
            self.run_rows(func, instr, launch, binding, 0..rows);
        }
    }

    fn run_rows(&self, func: usize, instr: usize, launch: &Launch, binding: &Binding<'_>, rows: Range<i64>) {
        let position = binding.device % self.machine.layout.stage_devices();
        // Most kernels have few accesses: no allocation for those.
        let (mut few, many);
        let operands = match launch.ptrs.as_slice() {
            [] => return,
            [first, rest @ ..] if rest.len() < FEW_ACCESSES => {
                few = [binding.operand(first); FEW_ACCESSES];
                for (operand, loc) in few[1..].iter_mut().zip(rest) {
                    *operand = binding.operand(loc);
                }
                &few[..=rest.len()]
            }
            all => {
                many = all.iter().map(|loc| binding.operand(loc)).collect::<Vec<_>>();
                many.as_slice()
            }
        };
        self.machine.kernels.call(
            &KernelCall {
                kernel: launch.kernel,
                operands,
                extents: &launch.extents,
                strides: &launch.strides,
                scalars: self.machine.scalars[func].of(position, instr, launch.scalars.len()),
            },
            rows,
        );
    }

    /// Arrives at a collective. The last member does it and releases the others; returns whether this one is the last.
    fn meet(
        &self,
        func: usize,
        instr: usize,
        call: &CollectiveCall,
        binding: &Binding<'_>,
        worker: usize,
        job: impl Fn(usize) -> Job,
    ) -> bool {
        let exchange = self.exchange(func, instr, call, *binding);
        let size = exchange.members.len();
        let arrived = &self.arrivals[self.meeting(func, instr, binding.device)].0;
        if arrived.fetch_add(1, AcqRel) + 1 < size as u32 {
            return false;
        }
        arrived.store(0, Relaxed);
        let parts = parts(call, size);
        let worth = parts > 1 && traffic(call, size) > SHARED_BYTES;
        self.in_parts(worth, worker, job(parts), |part| exchange.run_part(part));
        let members = exchange.members.iter().map(|&m| exchange.stage_start + m as usize);
        self.scheduler.release(size - 1, members.filter(|&m| m != binding.device));
        true
    }

    fn exchange<'a>(
        &'a self,
        func: usize,
        instr: usize,
        call: &'a CollectiveCall,
        binding: Binding<'a>,
    ) -> Exchange<'a> {
        let stage_devices = self.machine.layout.stage_devices();
        let position = binding.device % stage_devices;
        let (_, members) = self.machine.groups.find(func, instr, position);
        Exchange { call, binding, stage_start: binding.device - position, members }
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
        let Some(Step::Call { func, slots, .. }) = steps.get(job.step) else { return };
        let function = &self.machine.program.funcs[*func as usize];
        let binding = Binding {
            machine: &self.machine,
            entry: run.entry,
            device: job.device,
            micro_batch: job.micro_batch,
            func: function,
            slots,
        };
        match function.instrs.get(job.instr).map(|i| &i.kind) {
            Some(InstrKind::Kernel(launch)) => {
                let rows = rows_of_part(row_space(launch).0, job.parts, part);
                self.run_rows(*func as usize, job.instr, launch, &binding, rows);
            }
            Some(InstrKind::Gemm(gemm)) => run_product(gemm, &binding, part),
            Some(InstrKind::Collective(call)) => {
                self.exchange(*func as usize, job.instr, call, binding).run_part(part);
            }
            None => {}
        }
    }
}

/// Rows and lane extent of a launch. Validation bounds the product.
fn row_space(launch: &Launch) -> (i64, i64) {
    match launch.extents.split_last() {
        Some((&lane, outer)) => (outer.iter().product(), lane),
        None => (0, 0),
    }
}

fn rows_of_part(rows: i64, parts: usize, part: usize) -> Range<i64> {
    let at = |i: usize| (i128::from(rows) * i as i128 / parts as i128) as i64;
    at(part)..at(part + 1)
}

fn run_product(gemm: &Gemm, binding: &Binding<'_>, part: usize) {
    let [a, b, c] = [&gemm.a, &gemm.b, &gemm.c].map(|m| binding.operand(&m.loc));
    Product { gemm, a, b, c }.run_part(part);
}
