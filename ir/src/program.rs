//! The lowered program: what passes write, the artifact stores, and every runtime executes.
//!
//! Per function instance there is one instruction list over planned buffers ([`FuncProgram`]), stored once. Per entry and
//! stage there is the list of calls that make it up ([`StageProgram`]), each with a binding of the function's arguments
//! and results. Parameters and states of equal layers are stacks ([`crate::repeat`]) and runs of equal steps are stored once,
//! so that nothing of the file grows with depth. Nothing grows with devices: all devices of a stage run the same steps and differ in the values of [`Scalar`]s, in the groups of collectives and in the slices of parameters they hold.

mod expand;
mod steps;
mod team;

mod attention;
mod collective;
mod epilogue;
mod selection;

pub use attention::{AttentionCall, Strided};
pub use collective::{CollectiveCall, CollectiveKind};
pub(crate) use epilogue::reads_of_result;
pub use selection::{SampleCall, TopKCall, View};

use crate::extent::{Clip, Extent, Sizes};
use crate::gpu::Arch;
use crate::kernel::{Kernel, KernelId};
use crate::mesh::{AxisRef, Mesh};
use crate::sharding::{Sharding, span};
use crate::source::ParamSource;
pub use crate::storage::{PackedMatrix, Storage};
use crate::types::{DType, Type};
use cranelift_entity::PrimaryMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of `program.json`; an artifact of another version is refused. Goes up with whatever a reader of the version before would
/// take for something else: fields that it does not know it leaves out. Since 2 loops are clipped, parameters lie in panels and blocks,
/// products have epilogues, teams of devices share work and memory, and parameters and states of equal layers are stacks.
pub const VERSION: u32 = 2;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub version: u32,
    pub model: ModelInfo,
    pub mesh: Mesh,
    /// Compute type of floats.
    pub dtype: DType,
    pub batch: BatchPlan,
    /// Whether instructions leave out positions that a run does not have on the strength of [`crate::absent::is_unseen`].
    #[serde(default)]
    pub unseen: bool,
    pub kernels: PrimaryMap<KernelId, Kernel>,
    pub funcs: Vec<FuncProgram>,
    pub params: Vec<LocalParam>,
    pub states: Vec<LocalState>,
    /// Tables that kernels read (rotary frequencies), the same on every device.
    pub constants: Vec<ConstantData>,
    /// Axes over which the devices of a stage are a *team*, if any: in a process they share what is equal on all of them, and work that
    /// makes it is done once ([`Instr::once`]). The first device of a team holds what it shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub team: Vec<AxisRef>,
    /// In the file, runs of equal steps are stored once.
    #[serde(with = "steps")]
    pub entries: Vec<EntryProgram>,
    pub target: Target,
    /// The checkpoint the model was compiled with, if any.
    pub weights: Option<WeightsRef>,
    /// SHA-256 of the file with the levels the program was lowered from; empty when the artifact keeps none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub levels_digest: String,
}

impl Program {
    /// Whether an entry draws tokens itself ([`crate::ops::Sample`]): takes `settings` and `key`, and gives `token` instead of `logits`.
    pub fn draws(&self, entry: &str) -> bool {
        self.entries.iter().any(|e| e.name == entry && e.draws())
    }
}

/// What is known of the model beyond its program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    pub name: String,
    /// `llama`, `gpt2`, `bert`, ... or `graph`.
    pub family: String,
    /// Which model class the parameters are of (`LlamaForCausalLM`).
    pub class: String,
    /// Every parameter once, tied ones once.
    pub parameters: u64,
    pub task: Task,
    pub vocab: usize,
    /// Sequence capacity compiled for.
    pub seq: usize,
    /// Number of top-level layers in the chain.
    pub layers: usize,
    /// File or folder with the tokenizer, if known.
    pub tokenizer: Option<String>,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// `tokens` to `logits`; can generate.
    CausalLm,
    /// `tokens, attention_mask, token_types` to `last_hidden_state`.
    Encoder,
    /// Named inputs to named outputs.
    #[default]
    Graph,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightsRef {
    pub path: String,
    /// SHA-256 over the checkpoint's tensor names, types and shapes.
    pub digest: String,
}

/// Which kind of devices a program is lowered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// Virtual devices of one process, which share memory: weights lie in panels, and equal work of a team is done once.
    #[default]
    Cpu,
    /// GPUs, each with a memory of its own: weights lie as they are, and every device does all of its work.
    Gpu,
}

/// What the kernel object needs of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// `cpu` or `sm_90`, ...
    pub name: String,
    /// CPU features the kernels use (`avx512f`, ...), as Rust's `is_x86_feature_detected` names them.
    pub features: Vec<String>,
    /// SHA-256 of the kernel object.
    pub object_digest: String,
}

impl Target {
    /// Which kind of device it names.
    pub fn device(&self) -> DeviceKind {
        if self.arch().is_some() { DeviceKind::Gpu } else { DeviceKind::Cpu }
    }

    /// The architecture, of a GPU.
    pub fn arch(&self) -> Option<Arch> {
        Arch::parse(&self.name)
    }
}

/// How the rows of a batch go to replicas (dp) and micro-batches: as evenly as possible. Rows are numbered by replica, then
/// micro-batch. The module's batch dim (see [`IoSpec`]) is `replicas * rows` per micro-batch; cells with fewer rows are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Rows a user gives at most.
    pub batch: usize,
    pub replicas: usize,
    pub micro_batches: usize,
}

impl BatchPlan {
    /// Rows of a full cell: the capacity of one micro-batch on one replica.
    pub fn rows(&self) -> usize {
        self.batch.div_ceil(self.replicas * self.micro_batches).max(1)
    }

    /// For a batch of `n` rows: which rows (a range) go to (replica, micro-batch).
    pub fn cell(&self, n: usize, replica: usize, micro_batch: usize) -> std::ops::Range<usize> {
        let cells = self.replicas * self.micro_batches;
        let i = replica * self.micro_batches + micro_batch;
        let start = |i: usize| i * (n / cells) + i.min(n % cells);
        start(i)..start(i + 1)
    }

    /// The last replica that has one of a batch of `n` rows in a micro-batch.
    pub fn last_replica(&self, n: usize, micro_batch: usize) -> Option<usize> {
        // Cells that come later never have more rows.
        match n / (self.replicas * self.micro_batches) {
            0 => Some(n.checked_sub(micro_batch + 1)? / self.micro_batches),
            _ => Some(self.replicas - 1),
        }
    }
}

/// A parameter and its placement; each device holds its slice, in the form `storage` says, padding zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalParam {
    pub name: String,
    pub source: ParamSource,
    /// Logical global type.
    pub ty: Type,
    pub sharding: Sharding,
    /// How many parameters of equal layers this stands for ([`crate::repeat`]). Slots count each by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
    #[serde(default, skip_serializing_if = "is_dense")]
    pub storage: Storage,
}

fn is_dense(storage: &Storage) -> bool {
    *storage == Storage::Dense
}

/// A state and its placement: one buffer per device and micro-batch, zero at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalState {
    pub name: String,
    pub ty: Type,
    pub sharding: Sharding,
    /// How many states of equal layers this stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}

/// A constant tensor, row-major; integers are exact in f64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstantData {
    pub ty: Type,
    #[serde(with = "crate::types::floats")]
    pub data: Vec<f64>,
}

/// An input or output of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoSpec {
    pub name: String,
    /// Global type for one micro-batch.
    pub ty: Type,
    pub sharding: Sharding,
    /// The dim that holds rows of the batch, if any: its extent is `replicas * rows`.
    pub batch_dim: Option<usize>,
    /// The dim that holds sequence positions, if any.
    pub seq_dim: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryProgram {
    pub name: String,
    pub inputs: Vec<IoSpec>,
    /// Outputs of non-state results. The host assembles them from the devices' pieces: no collective is needed.
    pub outputs: Vec<IoSpec>,
    /// One per pipeline stage.
    pub stages: Vec<StageProgram>,
}

impl EntryProgram {
    /// As [`Program::draws`].
    pub fn draws(&self) -> bool {
        let has = |io: &[IoSpec], name: &str| io.iter().any(|io| io.name == name);
        has(&self.inputs, "settings") && has(&self.inputs, "key") && has(&self.outputs, "token")
    }
}

/// What each device of one stage does for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageProgram {
    /// Bytes of the stage's value arena (values between calls), reused by every micro-batch.
    pub arena_bytes: u64,
    /// How many of them, at the end, a team shares.
    pub shared_bytes: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Call {
        /// Index into [`Program::funcs`].
        func: u32,
        /// One slot per argument, then one per result, then one per constant of the function.
        slots: Vec<Slot>,
        /// Index of the layer in the model's chain, when the call is one.
        layer: Option<u32>,
    },
    /// Posts a copy of the slot's bytes to the device with the same other coordinates in stage `to`, and returns.
    Send { to: u32, tag: u32, slot: Slot, bytes: u64 },
    /// Waits for the bytes sent with this tag.
    Recv { from: u32, tag: u32, slot: Slot, bytes: u64 },
}

/// A buffer of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// Index into [`Program::params`], each element of a stack by itself ([`crate::repeat::Numbering`]).
    Param(u32),
    /// Index into [`Program::states`], likewise; the copy of the micro-batch at hand.
    State(u32),
    /// Index into [`EntryProgram::inputs`].
    Input(u32),
    /// Index into [`EntryProgram::outputs`].
    Output(u32),
    /// Index into [`Program::constants`]; only read.
    Const(u32),
    /// Byte offset in the stage's value arena (64-byte aligned).
    Value(u64),
}

/// The instruction list of one function instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FuncProgram {
    pub name: String,
    /// Bytes of each argument, then of each result, then of each constant: local, padding included.
    pub slot_bytes: Vec<u64>,
    /// How many of the slots are arguments.
    pub args: u32,
    /// How many of the slots, after the arguments, are results.
    pub results: u32,
    /// `(argument, result)` slots that every call binds to the same buffer: the function updates it in place.
    pub in_place: Vec<(u32, u32)>,
    /// Bytes of the frame: scratch used by one call at a time (64-byte aligned).
    pub frame_bytes: u64,
    /// How many of them, at the end, a team shares.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shared_bytes: u64,
    /// Slots of results that a team shares: instructions that run once write them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<u32>,
    pub instrs: Vec<Instr>,
    /// What instructions are for, referred to by [`Instr::note`].
    pub notes: Vec<Note>,
}

/// Explains an instruction to a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Note {
    /// The tensor or op in the model's terms (`self_attn.o_proj`).
    pub what: String,
    /// For a collective, in plain words: the two shardings that differ, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instr {
    pub kind: InstrKind,
    /// Index into [`FuncProgram::notes`].
    pub note: u32,
    /// It makes the same of the same on all devices of a team: the first one's addresses are used, and the last one to arrive runs it
    /// for all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstrKind {
    Kernel(Launch),
    Gemm(Gemm),
    Attention(Box<AttentionCall>),
    TopK(Box<TopKCall>),
    Sample(Box<SampleCall>),
    Rows(Rows),
    Collective(CollectiveCall),
}

impl InstrKind {
    /// Every extent, in a fixed order: dims of the iteration space; m, n, k and outer loops of a product; those of an attention; rows; dims
    /// of a collective, if it is clipped.
    pub fn extents(&self) -> Vec<&Extent> {
        match self {
            InstrKind::Kernel(l) => l.extents.iter().collect(),
            InstrKind::Gemm(g) => {
                [&g.m, &g.n, &g.k].into_iter().chain(g.batch.iter().map(|d| &d.extent)).collect()
            }
            InstrKind::Attention(a) => a.extents().to_vec(),
            InstrKind::TopK(t) => t.rows.iter().collect(),
            InstrKind::Sample(s) => vec![&s.rows],
            InstrKind::Rows(r) => vec![&r.count],
            InstrKind::Collective(c) => c.there.iter().collect(),
        }
    }

    /// Every address that the instruction reads or writes.
    pub fn locs(&self) -> Vec<Loc> {
        match self {
            InstrKind::Kernel(l) => l.ptrs.clone(),
            InstrKind::Gemm(g) => vec![g.a.loc, g.b.loc, g.c.loc],
            InstrKind::Attention(a) => a.locs(),
            InstrKind::TopK(t) => t.views().map(|v| v.strided.loc).to_vec(),
            InstrKind::Sample(s) => s.views().map(|v| v.strided.loc).to_vec(),
            InstrKind::Rows(r) => vec![r.table, r.indices, r.out],
            InstrKind::Collective(c) => vec![c.src, c.dst],
        }
    }

    /// The address, if any, at which it expects a parameter in panels.
    pub fn packed_loc(&self) -> Option<Loc> {
        match self {
            InstrKind::Gemm(g) => g.packed.map(|_| g.b.loc),
            InstrKind::Rows(r) => Some(r.table),
            InstrKind::Kernel(_)
            | InstrKind::Attention(_)
            | InstrKind::TopK(_)
            | InstrKind::Sample(_)
            | InstrKind::Collective(_) => None,
        }
    }
}

/// A byte address: an offset in the frame or in a slot of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Loc {
    pub base: Base,
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    Frame,
    /// Index into [`FuncProgram::slot_bytes`].
    Slot(u32),
}

/// An integer that each device works out, once when the program is loaded or for each run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    Const(i64),
    /// Valid extent of the device's piece of a dim of extent `global` split by `axes`: `span.len`.
    Valid {
        global: u64,
        axes: Vec<AxisRef>,
    },
    /// Offset of that piece: `span.start`.
    Base {
        global: u64,
        axes: Vec<AxisRef>,
    },
    /// How much of a dim a run has.
    There(Box<Clip>),
}

impl Scalar {
    /// The value on a device; of what differs from run to run, the most.
    pub fn on(&self, mesh: &Mesh, device: usize) -> i64 {
        match self {
            Scalar::Const(c) => *c,
            Scalar::Valid { global, axes } => span(mesh, device, *global as usize, axes).len as i64,
            Scalar::Base { global, axes } => span(mesh, device, *global as usize, axes).start as i64,
            Scalar::There(clip) => clip.whole() as i64,
        }
    }

    /// The value on a device at a run, if it differs from run to run.
    pub fn at(&self, mesh: &Mesh, device: usize, sizes: &Sizes) -> Option<i64> {
        match self {
            Scalar::There(c) => Some(c.valid(span(mesh, device, c.global as usize, &c.axes), sizes) as i64),
            Scalar::Const(_) | Scalar::Valid { .. } | Scalar::Base { .. } => None,
        }
    }
}

/// One run of a kernel over its iteration space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub kernel: KernelId,
    /// One per access.
    pub ptrs: Vec<Loc>,
    /// One per iteration dim.
    pub extents: Vec<Extent>,
    /// `accesses * rank`, in elements.
    pub strides: Vec<i64>,
    pub scalars: Vec<Scalar>,
}

/// `c[m,n] = alpha * a[m,k] b[k,n]` for every index of the batch dims. f32 (row and column strides in elements).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gemm {
    pub m: Extent,
    pub n: Extent,
    pub k: Extent,
    pub alpha: f64,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    /// Outer loops: extent, and strides of a, b, c in elements.
    pub batch: Vec<BatchDim>,
    /// c is added to, not overwritten.
    pub accumulate: bool,
    /// When set, b is all of an argument, which is bound to a parameter in panels of this matrix [k, n]: its strides and those of the
    /// batch dims along it are 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedMatrix>,
}

/// Rows of a table that is a parameter in panels: `out[i, :] = table[:, indices[i] - base]`, zeros where that is not in
/// `0..valid`. The matrix [k, n] of the table has a row of the table in each column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// All of an argument.
    pub table: Loc,
    pub packed: PackedMatrix,
    /// Of the table and of the result.
    pub dtype: DType,
    /// `count` adjacent i32.
    pub indices: Loc,
    pub count: Extent,
    /// `[count, k]`, row-major.
    pub out: Loc,
    pub base: Scalar,
    pub valid: Scalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    pub loc: Loc,
    pub dtype: DType,
    pub row: i64,
    pub col: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchDim {
    pub extent: Extent,
    pub a: i64,
    pub b: i64,
    pub c: i64,
}

impl FuncProgram {
    /// The arguments that instructions use as parameters in panels, and their matrices and types.
    ///
    /// # Errors
    /// The instruction that cannot be, and why: it does not agree with another, uses panels as dense memory, or no whole argument.
    pub fn packed(&self) -> Result<BTreeMap<u32, (PackedMatrix, DType)>, (usize, String)> {
        let mut found = BTreeMap::new();
        for (at, instr) in self.instrs.iter().enumerate() {
            let (loc, form) = match &instr.kind {
                InstrKind::Gemm(Gemm { b, packed: Some(packed), .. }) => (b.loc, (*packed, b.dtype)),
                InstrKind::Rows(rows) => (rows.table, (rows.packed, rows.dtype)),
                _ => continue,
            };
            let slot = match loc {
                Loc { base: Base::Slot(slot), offset: 0 } if slot < self.args => slot,
                _ => return Err((at, "its panels are no whole argument".to_owned())),
            };
            if *found.entry(slot).or_insert(form) != form {
                return Err((at, format!("slot {slot} is used as panels of two matrices")));
            }
        }
        for (at, instr) in self.instrs.iter().enumerate().filter(|_| !found.is_empty()) {
            let mut dense = instr.kind.locs();
            if let Some(i) = instr.kind.packed_loc().and_then(|l| dense.iter().position(|d| *d == l)) {
                dense.remove(i);
            }
            for loc in dense {
                if let Base::Slot(slot) = loc.base
                    && found.contains_key(&slot)
                {
                    return Err((at, format!("slot {slot} is used as panels and as dense memory")));
                }
            }
        }
        Ok(found)
    }
}

impl LocalParam {
    /// Bytes a device holds, padding included.
    pub fn local_bytes(&self) -> u64 {
        self.storage.bytes(&self.sharding.local_type(&self.ty))
    }
}
