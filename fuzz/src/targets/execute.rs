//! Runs small programs with interpreted kernels: no panic, and the same bits for any number of workers.

use super::{accept, demand};
use pcc_ir::program::{EntryProgram, InstrKind, IoSpec, LocalParam, Program, Slot, Step};
use pcc_ir::source::{BlockRows, ParamSource, ReadParams, TensorView, Values};
use pcc_ir::{DType, Diagnostic};
use pcc_runtime::{HostData, HostTensor, Interpreter, NoWeights, Options, Session};
use std::collections::BTreeMap;
use std::ops::Range;

/// Programs that need more memory, bytes, or more operations an entry are not run.
const BYTES: u64 = 8 << 20;
const WORK: f64 = 1e6;

/// Runs every entry of a small program, with one worker and with three.
pub fn run_everywhere(program: &Program) {
    if !is_small(program) {
        return;
    }
    let Some(program) = accept("unfold", program.clone().expanded()) else { return };
    let first = run_entries(&program, 1);
    assert_eq!(first, run_entries(&program, 3), "other bits with more workers");
}

/// Small numbers for whatever parameters a checkpoint would have.
struct Formulas;

impl ReadParams for Formulas {
    fn read_param_slice(
        &self,
        source: &ParamSource,
        slice: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), Diagnostic> {
        if !source.fill(slice, out)? {
            out.iter_mut().enumerate().for_each(|(i, x)| *x = (i * 7 % 11) as f32 / 8.0 - 0.5);
        }
        Ok(())
    }

    fn read_param_blocks(
        &self,
        source: &ParamSource,
        _: &[usize],
        slice: &[Range<usize>],
        rows: Range<usize>,
        out: BlockRows<'_>,
    ) -> Result<(), Diagnostic> {
        source.check_slice(slice)?;
        let Values::Tensor(TensorView { blocks: Some(format), .. }) = &source.values else {
            return Err(Diagnostic::internal("blocks of a source that has none"));
        };
        assert_eq!(out.codes.len(), out.scales.len() * format.group as usize);
        assert!(out.scales.len() == out.offsets.len() && out.scales.len().is_multiple_of(rows.len().max(1)));
        let code = |i: usize| (i * 5 % 16) as i8;
        out.codes.iter_mut().enumerate().for_each(|(i, c)| *c = format.low.saturating_add(code(i)));
        out.scales.fill(0.0625);
        out.offsets.fill(if format.offsets { 0.25 } else { 0.0 });
        Ok(())
    }
}

/// Bits of the outputs of every entry, one run after another.
fn run_entries(program: &Program, workers: usize) -> Vec<(String, Vec<u64>)> {
    let kernels = Box::new(Interpreter::new(program.kernels.values()));
    let options = Options { workers, ..Options::default() };
    let session = Session::new(program.clone(), kernels, &Formulas, &options, &|_, _| {});
    let Some(mut session) = accept("session", session) else { return Vec::new() };
    let mut out = Vec::new();
    for entry in &program.entries {
        for rows in [program.batch.batch, 1] {
            let inputs = entry.inputs.iter().map(|i| (i.name.clone(), input(program, i, rows))).collect();
            let Some(made) = accept("run", session.run(&entry.name, &inputs, rows)) else { continue };
            out.extend(made.into_iter().map(|(name, t)| (name, bits(&t))));
        }
    }
    out
}

/// Small numbers in the shape that the entry wants of so many rows.
fn input(program: &Program, spec: &IoSpec, rows: usize) -> HostTensor {
    let mut shape = spec.ty.shape.clone();
    if let Some(dim) = spec.batch_dim {
        shape[dim] = rows;
    }
    let count: usize = shape.iter().product();
    let small = |i: usize| (i * 7 % 5) % program.model.vocab.max(5);
    let data = match spec.ty.dtype {
        DType::Bool => HostData::Bool((0..count).map(|i| i % 3 > 0).collect()),
        DType::I64 => HostData::I64((0..count).map(|i| small(i) as i64).collect()),
        DType::I32 => HostData::I32((0..count).map(|i| small(i) as i32).collect()),
        DType::F64 => HostData::F64((0..count).map(|i| small(i) as f64 * 0.5 - 0.75).collect()),
        _ => HostData::F32((0..count).map(|i| small(i) as f32 * 0.5 - 0.75).collect()),
    };
    HostTensor { shape, data }
}

fn bits(t: &HostTensor) -> Vec<u64> {
    match &t.data {
        HostData::F32(v) => v.iter().map(|x| x.to_bits().into()).collect(),
        HostData::F64(v) => v.iter().map(|x| x.to_bits()).collect(),
        HostData::I32(v) => v.iter().map(|&x| x as u64).collect(),
        HostData::I64(v) => v.iter().map(|&x| x as u64).collect(),
        HostData::Bool(v) => v.iter().map(|&x| x.into()).collect(),
    }
}

/// The named arrays as inputs of an entry, whatever they are.
pub fn run_given(session: &mut Session, inputs: &BTreeMap<String, HostTensor>) {
    let entries: Vec<EntryProgram> = session.program().entries.clone();
    for entry in &entries {
        for rows in [1, session.program().batch.batch, inputs.len()] {
            accept("run", session.run(&entry.name, inputs, rows));
        }
    }
}

/// Opens a session on a program that pcc made.
pub fn open(program: Program) -> Session {
    let kernels = Box::new(Interpreter::new(program.kernels.values()));
    let options = Options { workers: 1, ..Options::default() };
    let program = demand("unfold", program.expanded());
    demand("session", Session::new(program, kernels, &NoWeights, &options, &|_, _| {}))
}

/// Whether memory and work, by what the program says of itself, fit a few milliseconds.
pub fn is_small(program: &Program) -> bool {
    let devices = program.mesh.devices() as u64;
    let cells = program.batch.micro_batches as u64;
    let stacked = |bytes: usize, stack: Option<u32>| (bytes as u64).saturating_mul(stack.unwrap_or(1).into());
    let io = |specs: &[IoSpec]| specs.iter().map(|s| s.ty.bytes() as u64).fold(0, u64::saturating_add);
    let held = |p: &LocalParam| p.storage.bytes(&p.ty).saturating_mul(p.stack.unwrap_or(1).into());
    let params = program.params.iter().map(held).fold(0, u64::saturating_add);
    let states = program.states.iter().map(|s| stacked(s.ty.bytes(), s.stack)).fold(0, u64::saturating_add);
    let constants = program.constants.iter().map(|c| c.ty.bytes() as u64).fold(0, u64::saturating_add);
    let frames = program.funcs.iter().map(|f| f.frame_bytes).fold(0, u64::saturating_add);
    let mut values = frames.saturating_add(states.saturating_mul(cells));
    for entry in &program.entries {
        values = values
            .saturating_add((io(&entry.inputs).saturating_add(io(&entry.outputs))).saturating_mul(cells));
        for stage in &entry.stages {
            values = values.saturating_add(stage.arena_bytes);
            for step in &stage.steps {
                if let Step::Send { bytes, slot, .. } = step {
                    let per_batch = if matches!(slot, Slot::Value(_)) { 2 } else { 1 };
                    values = values.saturating_add(bytes.saturating_mul(per_batch));
                }
            }
        }
    }
    let bytes = params.saturating_add(constants).saturating_add(values).saturating_mul(devices);
    bytes <= BYTES && cells <= 16 && devices <= 64 && program.entries.iter().all(|e| work(program, e) <= WORK)
}

/// Operations of an entry, all devices and micro-batches, padding included.
fn work(program: &Program, entry: &EntryProgram) -> f64 {
    let instr = |kind: &InstrKind| -> f64 {
        match kind {
            InstrKind::Kernel(l) => {
                let nodes = program.kernels.get(l.kernel).map_or(1, |k| k.nodes.len() + k.stores.len());
                l.extents.iter().map(|e| e.full.max(1) as f64).product::<f64>() * nodes as f64
            }
            InstrKind::Gemm(g) => {
                let batch: f64 = g.batch.iter().map(|d| d.extent.full as f64).product();
                [&g.m, &g.n, &g.k].into_iter().map(|e| e.full as f64).product::<f64>() * batch
            }
            InstrKind::Attention(a) => a.flops() as f64,
            // Rows are sorted.
            InstrKind::TopK(t) => t.rows.iter().map(|e| e.full as f64).product::<f64>() * t.n as f64 * 8.0,
            InstrKind::Sample(s) => s.rows.full as f64 * s.tokens as f64 * 8.0,
            InstrKind::Rows(r) => r.count.full as f64 * r.packed.k as f64,
            InstrKind::Collective(c) => {
                c.src_shape.iter().chain(&c.dst_shape).map(|&n| n as f64).product::<f64>()
            }
        }
    };
    let func = |f: u32| {
        let func = program.funcs.get(f as usize);
        func.map_or(0.0, |f| f.instrs.iter().map(|i| instr(&i.kind)).sum::<f64>())
    };
    let steps = entry.stages.iter().flat_map(|s| &s.steps);
    let calls = steps.map(|s| if let Step::Call { func: f, .. } = s { func(*f) } else { 1.0 });
    calls.sum::<f64>() * program.batch.micro_batches as f64 * program.mesh.stage_devices() as f64
}
