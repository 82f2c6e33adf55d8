//! What a failed run tells: which device, stage, step and op, or what every device waits for.

use super::device::{Counter, Waits};
use super::schedule::Job;
use super::{Run, Shared, lock};
use pcc_ir::Diagnostic;
use pcc_ir::program::{Instr, InstrKind, Step};
use std::any::Any;
use std::collections::BTreeMap;

/// Kinds of waiting that a deadlock report lists one by one.
const LISTED: usize = 8;

impl Shared {
    /// A worker panicked while it ran a device.
    pub(super) fn report_panic(&self, run: &Run, device: usize, panic: &(dyn Any + Send)) {
        let counter = lock(&self.devices[device]).counter;
        self.fail(panicked(panic).at(self.place(run, device, counter)));
    }

    /// A worker panicked in a part of an instruction.
    pub(super) fn report_panic_at(&self, run: &Run, job: &Job, panic: &(dyn Any + Send)) {
        let counter = Counter { turn: 0, step: job.step, instr: job.instr };
        self.fail(panicked(panic).at(self.place(run, job.device, counter)));
    }

    /// Nothing can run, and some devices are not done: says what each waits for, equal ones together.
    pub(super) fn report_deadlock(&self, run: &Run) {
        let mut waiting: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, device) in self.devices.iter().enumerate() {
            let device = lock(device);
            let what = match device.waits {
                Waits::Finished => continue,
                Waits::Nothing | Waits::RunOver => "is not waiting".to_owned(),
                Waits::Group => {
                    let at = Counter { instr: device.counter.instr.saturating_sub(1), ..device.counter };
                    format!("waits for its group in {}", self.step_text(run, number, at))
                }
                Waits::Message | Waits::Link => {
                    format!("waits in {}", self.step_text(run, number, device.counter))
                }
            };
            waiting.entry(what).or_default().push(number);
        }
        let kinds = waiting.len();
        let mut lines: Vec<String> = waiting
            .into_iter()
            .take(LISTED)
            .map(|(what, devices)| format!("{} {what}", names(&devices)))
            .collect();
        if kinds > LISTED {
            lines.push(format!("and {} more", kinds - LISTED));
        }
        self.fail(Diagnostic::run("the devices wait for each other").why(lines.join("; ")));
    }

    /// `device 3, stage 1, step 4 (call of layer, instr 2: o_proj)`.
    fn place(&self, run: &Run, device: usize, counter: Counter) -> String {
        let stage = device / self.machine.layout.stage_devices();
        format!("device {device}, stage {stage}, {}", self.step_text(run, device, counter))
    }

    fn step_text(&self, run: &Run, device: usize, counter: Counter) -> String {
        let program = &self.machine.program;
        let stage = device / self.machine.layout.stage_devices();
        let steps = program.entries.get(run.entry).and_then(|e| e.stages.get(stage)).map(|s| &s.steps);
        let number = counter.step;
        match steps.and_then(|s| s.get(number)) {
            None => format!("step {number}"),
            Some(Step::Send { to, tag, .. }) => {
                format!("step {number} (send of message {tag} to stage {to}: the link is full)")
            }
            Some(Step::Recv { from, tag, .. }) => {
                format!("step {number} (receive of message {tag} from stage {from})")
            }
            Some(Step::Call { func, layer, .. }) => {
                let layer = layer.map(|l| format!(" of layer {l}")).unwrap_or_default();
                let Some(func) = program.funcs.get(*func as usize) else { return format!("step {number}") };
                let what = match func.instrs.get(counter.instr) {
                    None => "its end".to_owned(),
                    Some(instr) => {
                        let note = func.notes.get(instr.note as usize).map_or("", |n| n.what.as_str());
                        format!("{} {} `{note}`", kind(instr), counter.instr)
                    }
                };
                format!("step {number} ({}{layer}, {what})", func.name)
            }
        }
    }
}

fn kind(instr: &Instr) -> &'static str {
    match &instr.kind {
        InstrKind::Kernel(_) => "kernel",
        InstrKind::Gemm(_) => "product",
        InstrKind::Attention(_) => "attention",
        InstrKind::TopK(_) => "top-k",
        InstrKind::Sample(_) => "sampling",
        InstrKind::Rows(_) => "look-up",
        InstrKind::Collective(call) => call.kind.name(),
    }
}

/// Validation refuses whatever an instruction cannot do, of edited artifacts too: a panic is always pcc's own fault.
fn panicked(panic: &(dyn Any + Send)) -> Diagnostic {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Diagnostic::internal("a worker panicked").why(text.unwrap_or_else(|| "no message".to_owned()))
}

/// `device 3` or `devices 0, 1, 2, ... (32)`.
fn names(devices: &[usize]) -> String {
    let listed: Vec<String> = devices.iter().take(LISTED).map(usize::to_string).collect();
    match devices.len() {
        1 => format!("device {}", listed[0]),
        n if n <= LISTED => format!("devices {}", listed.join(", ")),
        n => format!("devices {}, ... ({n})", listed.join(", ")),
    }
}
