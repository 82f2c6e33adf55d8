//! Times of instructions, collected when asked for: what ran when on which device, how much work it was, and the totals by op.

mod profile;
mod work;

pub use profile::{Profile, ProfileRow, Summary};
pub use work::Work;

use pcc_ir::program::{Base, BatchPlan, FuncProgram, Instr, InstrKind, Loc, Program, Slot, Step, Storage};
use pcc_ir::{Diagnostic, Extent, Sizes};
use std::sync::{Arc, Mutex};
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
    /// The device arrived at a collective that another one did later: nothing was done yet.
    pub waits: bool,
    /// Nanoseconds since the session was made.
    pub start: u64,
    pub end: u64,
}

/// The events of one run.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    pub program: &'a Program,
    /// In the order of their starts.
    pub events: &'a [Event],
    /// Rows of the run, and positions if an input has some: how much of each instruction was there to do.
    pub rows: usize,
    pub seq: Option<usize>,
}

/// Takes the events of runs as they end.
pub trait Trace {
    /// Takes those of one run.
    ///
    /// # Errors
    /// They cannot be kept; the run then ends with this error.
    fn add(&mut self, traced: &Traced<'_>) -> Result<(), Diagnostic>;
}

/// Where a session's events go.
pub type TraceSink = Arc<Mutex<dyn Trace + Send>>;

/// What an event is about, found in the program.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// An instruction of a call; the layer, when the call is one.
    Instr {
        func: &'a FuncProgram,
        index: u32,
        instr: &'a Instr,
        /// The kernel that ran with it.
        epilogue: Option<&'a Instr>,
        layer: Option<u32>,
    },
    /// A message to or from another stage, of so many bytes.
    Send {
        to: u32,
        bytes: u64,
    },
    Recv {
        from: u32,
        bytes: u64,
    },
}

impl Event {
    /// The stage of the event's device.
    pub fn stage(&self, program: &Program) -> usize {
        self.device as usize / program.mesh.stage_devices()
    }

    /// What the event is about; `None` for an event of another program.
    pub fn subject<'a>(&self, program: &'a Program) -> Option<Subject<'a>> {
        let entry = program.entries.get(self.entry as usize)?;
        match entry.stages.get(self.stage(program))?.steps.get(self.step as usize)? {
            Step::Send { to, bytes, .. } => Some(Subject::Send { to: *to, bytes: *bytes }),
            Step::Recv { from, bytes, .. } => Some(Subject::Recv { from: *from, bytes: *bytes }),
            Step::Call { func: index, layer, .. } => {
                let func = program.funcs.get(*index as usize)?;
                let at = self.instr as usize;
                let instr = func.instrs.get(at)?;
                let epilogue = func.has_epilogue(at, &program.kernels).then(|| func.instrs.get(at + 1));
                Some(Subject::Instr {
                    func,
                    index: *index,
                    instr,
                    epilogue: epilogue.flatten(),
                    layer: *layer,
                })
            }
        }
    }

    /// What the time was spent on, in the model's terms: `layer 3: all_reduce of self_attn.o_proj`, `send to stage 1`.
    pub fn what(&self, program: &Program) -> String {
        self.subject(program).map_or_else(|| format!("step {}", self.step), |s| s.what())
    }

    /// The work that was done, from what the run had of every dim.
    pub fn work(&self, traced: &Traced<'_>) -> Work {
        let program = traced.program;
        let sizes = Sizes {
            batch: BatchPlan { ..program.batch },
            rows: traced.rows,
            micro_batch: self.micro_batch as usize,
            seq: traced.seq,
        };
        match self.subject(program) {
            _ if self.waits => Work::default(),
            Some(Subject::Instr { instr, epilogue, .. }) => {
                let position = self.device as usize % program.mesh.stage_devices();
                let extent = |e: &Extent| e.on(&program.mesh, position, &sizes);
                let of =
                    |i: &Instr| work::of(program, &i.kind, extent, |loc| self.panel_element(program, loc));
                epilogue.map_or_else(Work::default, of) + of(instr)
            }
            Some(Subject::Send { bytes, .. } | Subject::Recv { bytes, .. }) => {
                Work { flops: 0.0, bytes: bytes as f64 }
            }
            None => Work::default(),
        }
    }
}

impl Event {
    /// Bytes of an element, on average, of the parameter in panels that the event's call binds to an argument.
    fn panel_element(&self, program: &Program, loc: &Loc) -> Option<f64> {
        let stage = program.entries.get(self.entry as usize)?.stages.get(self.stage(program))?;
        let (Step::Call { slots, .. }, Base::Slot(slot)) = (stage.steps.get(self.step as usize)?, loc.base)
        else {
            return None;
        };
        let Slot::Param(number) = *slots.get(slot as usize)? else { return None };
        let param = program.params.get(number as usize)?;
        let elements: usize = param.sharding.local_shape(&param.ty.shape).iter().product();
        // Panels of plain elements are padded, which nobody reads.
        let quantised = matches!(param.storage, Storage::Blocks { .. }) && elements > 0;
        quantised.then(|| param.local_bytes() as f64 / elements as f64)
    }
}

impl Subject<'_> {
    /// `kernel`, `product`, the name of a collective, `send` or `receive`.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::Send { .. } => "send",
            Subject::Recv { .. } => "receive",
            Subject::Instr { instr, .. } => match &instr.kind {
                InstrKind::Kernel(_) => "kernel",
                InstrKind::Gemm(_) => "product",
                InstrKind::Attention(_) => "attention",
                InstrKind::TopK(_) => "top-k",
                InstrKind::Sample(_) => "sampling",
                InstrKind::Rows(_) => "look-up",
                InstrKind::Collective(call) => call.kind.name(),
            },
        }
    }

    /// The tensor or op in the model's terms, without its layer.
    pub fn op(&self) -> String {
        match self {
            Subject::Send { to, .. } => format!("to stage {to}"),
            Subject::Recv { from, .. } => format!("from stage {from}"),
            Subject::Instr { func, instr, .. } => {
                func.notes.get(instr.note as usize).map_or_else(String::new, |n| n.what.clone())
            }
        }
    }

    /// The layer, in the model's numbering.
    pub fn layer(&self) -> Option<u32> {
        if let Subject::Instr { layer, .. } = self { *layer } else { None }
    }

    /// Layer or function, kind and op.
    pub fn what(&self) -> String {
        match self {
            Subject::Send { .. } | Subject::Recv { .. } => format!("{} {}", self.kind(), self.op()),
            Subject::Instr { func, layer, epilogue, .. } => {
                let place = layer.map_or_else(|| func.name.clone(), |l| format!("layer {l}"));
                let epilogue = if epilogue.is_some() { " and kernel" } else { "" };
                format!("{place}: {}{epilogue} of {}", self.kind(), self.op())
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
