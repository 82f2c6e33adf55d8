//! Times of instructions, collected when asked for.

use pcc_ir::program::{InstrKind, Program, Step};
use std::time::Instant;

/// In [`Event::instr`]: the step is a send or a receive.
pub const NO_INSTR: u32 = u32::MAX;

/// One instruction, or message, of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub worker: u32,
    pub device: u32,
    /// Index into the program's entries.
    pub entry: u32,
    pub micro_batch: u32,
    /// Index into the stage's steps.
    pub step: u32,
    /// Index into the called function's instructions, or [`NO_INSTR`] for a send or receive.
    pub instr: u32,
    /// Nanoseconds since the session was made.
    pub start: u64,
    pub end: u64,
}

impl Event {
    /// What the time was spent on, in the model's terms: `layer 3: all_reduce of self_attn.o_proj`, `send to stage 1`.
    pub fn what(&self, program: &Program) -> String {
        let stage = self.device as usize / program.mesh.stage_devices();
        let stages = program.entries.get(self.entry as usize).map(|e| &e.stages);
        let step = stages.and_then(|s| s.get(stage)).and_then(|s| s.steps.get(self.step as usize));
        match step {
            None => format!("step {}", self.step),
            Some(Step::Send { to, .. }) => format!("send to stage {to}"),
            Some(Step::Recv { from, .. }) => format!("receive from stage {from}"),
            Some(Step::Call { func, layer, .. }) => {
                let func = &program.funcs[*func as usize];
                let place = layer.map_or_else(|| func.name.clone(), |l| format!("layer {l}"));
                let Some(instr) = func.instrs.get(self.instr as usize) else { return place };
                let what = func.notes.get(instr.note as usize).map_or("", |n| n.what.as_str());
                let kind = match &instr.kind {
                    InstrKind::Kernel(_) => "kernel",
                    InstrKind::Gemm(_) => "product",
                    InstrKind::Attention(_) => "attention",
                    InstrKind::Rows(_) => "look-up",
                    InstrKind::Collective(call) => call.kind.name(),
                };
                format!("{place}: {kind} of {what}")
            }
        }
    }
}

/// Reads the time when tracing is on.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Option<Instant>);

impl Clock {
    pub(crate) fn new(origin: Instant, on: bool) -> Self {
        Self(on.then_some(origin))
    }

    /// Nanoseconds since the origin; `None` when tracing is off.
    pub(crate) fn start(&self) -> Option<u64> {
        self.0.map(|origin| origin.elapsed().as_nanos() as u64)
    }
}
