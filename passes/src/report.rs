//! What `inspect` shows: computed from the program, so that it says what will run, not what was planned.

use crate::cost::Cluster;
use crate::rewrite::FuncRewrite;
use pcc_ir::mesh::Mesh;
use pcc_ir::program::{EntryProgram, FuncProgram, InstrKind, LocalState, Program, Slot, Step};
use pcc_ir::repeat::Numbering;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub model: ModelReport,
    pub mode: String,
    pub dtype: String,
    /// What code was generated for: `cpu`, `sm_90`, ..; empty before any was.
    #[serde(default)]
    pub target: String,
    pub mesh: MeshReport,
    pub devices: usize,
    pub entries: Vec<String>,
    pub stages: Vec<StageReport>,
    pub schedule: ScheduleReport,
    pub estimate: EstimateReport,
    #[serde(default)]
    pub search: SearchReport,
    pub verify: VerifyReport,
    pub compile: CompileReport,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    pub name: String,
    pub family: String,
    pub class: String,
    pub parameters: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeshReport {
    pub pp: u32,
    pub dp: u32,
    pub cp: u32,
    pub ep: u32,
    pub tp: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    pub stage: usize,
    pub rank: usize,
    pub layers: Vec<u32>,
    pub parameters: u64,
    pub parameter_bytes_per_device: u64,
    pub peak_memory_bytes_per_device: u64,
    /// One micro-batch of the first entry, matrix products only.
    pub flops_per_device: u64,
    pub sends: Vec<SendReport>,
    pub collectives: Vec<CollectiveReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendReport {
    pub entry: String,
    pub to: u32,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveReport {
    pub entry: String,
    pub phase: String,
    pub kind: String,
    pub axes: Vec<String>,
    /// Per device and per micro-batch.
    pub count: u64,
    /// Of one collective, unpadded: the whole logical buffer over its group.
    pub bytes: u64,
    pub dtype: String,
    pub what: String,
    /// Plain words: what the devices hold, what the next op needs.
    pub why: String,
    /// Layers it occurs in; empty for the embedding and the head.
    pub layers: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleReport {
    pub name: String,
    pub micro_batches: usize,
    pub virtual_stages: u32,
    pub bubble_fraction: f64,
    pub peak_in_flight: Vec<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EstimateReport {
    pub cluster: String,
    /// One batch of the first entry.
    pub step_time_s: f64,
    pub tokens_per_s_per_device: f64,
    pub mfu: f64,
    pub peak_memory_bytes: u64,
}

/// How good the plan is known to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchReport {
    /// Sets of functions whose shardings were solved together, and variables in all of them; 0 for a plan that was given.
    pub components: usize,
    pub variables: usize,
    /// The shardings' modelled time is at most this share above the least; 0 when they were solved exactly.
    pub gap: f64,
    /// What equality saturation made of each function with collectives, and why it stopped.
    pub rewrites: Vec<FuncRewrite>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    pub ok: bool,
    /// Local values whose claims were proved.
    pub values: usize,
    pub functions: usize,
    pub seconds: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompileReport {
    pub seconds: f64,
    pub peak_rss_bytes: u64,
    pub passes: Vec<PassReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassReport {
    pub name: String,
    pub seconds: f64,
}

/// Builds the report of a program. `stage_seconds` is the modelled time of one micro-batch of the first entry on each stage.
pub fn report(program: &Program, stage_seconds: &[f64], cluster: &Cluster) -> Report {
    let mesh = program.mesh;
    let stages: Vec<StageReport> = (0..mesh.pp as usize).map(|s| stage_report(program, s)).collect();
    let m = program.batch.micro_batches;
    let p = mesh.pp as usize;
    let slowest = stage_seconds.iter().copied().fold(0.0, f64::max);
    let step = stage_seconds.iter().sum::<f64>() + (m - 1) as f64 * slowest;
    let tokens = (program.batch.batch * program.model.seq.max(1)) as f64;
    let flops: f64 = stages.iter().map(|s| s.flops_per_device as f64).sum::<f64>() * m as f64 / p as f64;
    let estimate = EstimateReport {
        cluster: cluster.name.to_owned(),
        step_time_s: step,
        tokens_per_s_per_device: if step > 0.0 { tokens / step / mesh.devices() as f64 } else { 0.0 },
        mfu: if step > 0.0 { flops / step / cluster.flops(program.dtype) } else { 0.0 },
        peak_memory_bytes: stages.iter().map(|s| s.peak_memory_bytes_per_device).max().unwrap_or(0),
    };
    Report {
        model: ModelReport {
            name: program.model.name.clone(),
            family: program.model.family.clone(),
            class: program.model.class.clone(),
            parameters: program.model.parameters,
        },
        mode: "infer".to_owned(),
        target: String::new(),
        dtype: program.dtype.name().to_owned(),
        mesh: MeshReport { pp: mesh.pp, dp: mesh.dp, cp: mesh.cp, ep: mesh.ep, tp: mesh.tp },
        devices: mesh.devices(),
        entries: program.entries.iter().map(|e| e.name.clone()).collect(),
        stages,
        schedule: ScheduleReport {
            name: "gpipe".to_owned(),
            micro_batches: m,
            virtual_stages: 1,
            bubble_fraction: (p - 1) as f64 / (m + p - 1) as f64,
            peak_in_flight: vec![1; p],
        },
        estimate,
        ..Report::default()
    }
}

fn stage_report(program: &Program, stage: usize) -> StageReport {
    let mut out = StageReport { stage, rank: stage, ..StageReport::default() };
    let mut params = Held::of(program.params.iter().map(|p| (p.stack, p.local_bytes())));
    let state = |s: &LocalState| (s.stack, s.sharding.local_type(&s.ty).bytes() as u64);
    let mut states = Held::of(program.states.iter().map(state));
    let mut layers = BTreeSet::new();
    let mut scratch = 0;
    let mut rows = Rows::new();
    for (e, entry) in program.entries.iter().enumerate() {
        let Some(steps) = entry.stages.get(stage) else { continue };
        let mut frame = 0;
        let mut calls: BTreeMap<u32, Called> = BTreeMap::new();
        for step in &steps.steps {
            match step {
                Step::Call { func, slots, layer } => {
                    let f = &program.funcs[*func as usize];
                    let called = calls.entry(*func).or_default();
                    called.count += 1;
                    called.layers.extend(layer);
                    frame = frame.max(f.frame_bytes);
                    for s in slots {
                        match s {
                            Slot::Param(i) => params.hold(*i),
                            Slot::State(i) => states.hold(*i),
                            _ => {}
                        }
                    }
                }
                Step::Send { to, bytes, .. } => {
                    out.sends.push(SendReport { entry: entry.name.clone(), to: *to, bytes: *bytes })
                }
                Step::Recv { .. } => {}
            }
        }
        // In the order in which the stage first calls them.
        let mut seen = BTreeSet::new();
        for step in &steps.steps {
            let Step::Call { func, .. } = step else { continue };
            let Some(called) = calls.get(func).filter(|_| seen.insert(*func)) else { continue };
            let f = &program.funcs[*func as usize];
            if e == 0 {
                out.flops_per_device += gemm_flops(f) * called.count;
            }
            count_collectives(&program.mesh, entry, f, called, (&mut rows, &mut out.collectives));
            layers.extend(&called.layers);
        }
        scratch =
            scratch.max(frame + steps.arena_bytes + io_bytes(entry) * program.batch.micro_batches as u64);
    }
    out.layers = layers.into_iter().collect();
    out.parameters = params.total(|row| program.params[row].ty.elements() as u64);
    out.parameter_bytes_per_device = params.bytes();
    out.peak_memory_bytes_per_device =
        out.parameter_bytes_per_device + states.bytes() * program.batch.micro_batches as u64 + scratch;
    out
}

/// Calls of one function in one stage.
#[derive(Default)]
struct Called {
    count: u64,
    /// In order.
    layers: Vec<u32>,
}

/// Parameters or states that a stage holds, each once.
struct Held {
    numbers: Numbering,
    seen: Vec<bool>,
    /// Of each row of the table: bytes of one, and how many of them are held.
    rows: Vec<(u64, u64)>,
}

impl Held {
    fn of(table: impl Iterator<Item = (Option<u32>, u64)> + Clone) -> Self {
        let numbers = Numbering::new(table.clone().map(|t| t.0)).unwrap_or_default();
        let seen = vec![false; numbers.len() as usize];
        Self { numbers, seen, rows: table.map(|t| (t.1, 0)).collect() }
    }

    fn hold(&mut self, number: u32) {
        let new = self.seen.get_mut(number as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        if let Some((row, _)) = self.numbers.origin(number).filter(|_| new) {
            self.rows[row as usize].1 += 1;
        }
    }

    fn total(&self, of: impl Fn(usize) -> u64) -> u64 {
        self.rows.iter().enumerate().filter(|(_, r)| r.1 > 0).map(|(row, r)| of(row) * r.1).sum()
    }

    fn bytes(&self) -> u64 {
        self.rows.iter().map(|(bytes, held)| bytes * held).sum()
    }
}

/// Bytes of the inputs and outputs a device holds for one micro-batch.
fn io_bytes(entry: &EntryProgram) -> u64 {
    entry.inputs.iter().chain(&entry.outputs).map(|io| io.sharding.local_type(&io.ty).bytes() as u64).sum()
}

/// Floating-point operations of the matrix products of one call: 2 m n k each.
fn gemm_flops(f: &FuncProgram) -> u64 {
    let flops = |kind: &InstrKind| match kind {
        InstrKind::Gemm(g) => {
            2 * g.m.full * g.n.full * g.k.full * g.batch.iter().map(|b| b.extent.full).product::<u64>()
        }
        InstrKind::Attention(a) => a.flops(),
        _ => 0,
    };
    f.instrs.iter().map(|i| flops(&i.kind)).sum()
}

/// What rows of one stage differ in, and where each is.
type Rows = HashMap<(String, &'static str, Vec<String>, u64, &'static str, String), usize>;

/// Adds the collectives of a function's calls to the rows that are equal in all but layer.
fn count_collectives(
    mesh: &Mesh,
    entry: &EntryProgram,
    f: &FuncProgram,
    called: &Called,
    (known, rows): (&mut Rows, &mut Vec<CollectiveReport>),
) {
    for instr in &f.instrs {
        let InstrKind::Collective(c) = &instr.kind else { continue };
        let note = f.notes.get(instr.note as usize).cloned().unwrap_or_default();
        let axes: Vec<String> = c.axes.iter().map(|&a| mesh.axis_text(a)).collect();
        let (kind, dtype) = (c.kind.name(), c.dtype.name());
        let key = (entry.name.clone(), kind, axes.clone(), c.logical_bytes, dtype, note.what.clone());
        let at = *known.entry(key).or_insert_with(|| {
            rows.push(CollectiveReport {
                entry: entry.name.clone(),
                phase: "forward".to_owned(),
                kind: kind.to_owned(),
                axes,
                count: 0,
                bytes: c.logical_bytes,
                dtype: dtype.to_owned(),
                what: note.what,
                why: note.why,
                layers: Vec::new(),
            });
            rows.len() - 1
        });
        rows[at].count += called.count;
        let known = rows[at].layers.len();
        rows[at].layers.extend(&called.layers);
        if known > 0 {
            // Two functions' layers, or a function's twice.
            rows[at].layers.sort_unstable();
            rows[at].layers.dedup();
        }
    }
}
