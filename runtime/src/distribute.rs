//! Between the host's tensors and the devices' pieces: rows to replicas and micro-batches, dims to shards, and back.

use crate::block::{Place, runs};
use crate::layout::spans;
use crate::machine::Machine;
use crate::tensor::HostTensor;
use pcc_ir::Diagnostic;
use pcc_ir::program::{IoSpec, Program, Slot};
use std::collections::{BTreeMap, HashSet};

/// What a run is asked for: rows, and positions along the sequence.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    seq: Option<usize>,
}

/// Writes the inputs of every device that uses them. Returns the sequence extent given, if an input has one.
pub(crate) fn write_inputs(
    machine: &Machine,
    entry: usize,
    inputs: &BTreeMap<String, HostTensor>,
    rows: usize,
) -> Result<Option<usize>, Diagnostic> {
    let program = &machine.program;
    let specs = &program.entries[entry].inputs;
    if let Some(name) = inputs.keys().find(|name| !specs.iter().any(|s| s.name == **name)) {
        return Err(Diagnostic::input(format!("the entry has no input `{name}`")).help(names(specs)));
    }
    let mut sizes = Sizes { rows, seq: None };
    for spec in specs {
        let Some(tensor) = inputs.get(&spec.name) else {
            return Err(Diagnostic::input(format!("input `{}` is missing", spec.name)).help(names(specs)));
        };
        check_shape(spec, tensor, &mut sizes)?;
    }
    for (index, spec) in specs.iter().enumerate() {
        let tensor = &inputs[&spec.name];
        let bytes = tensor.to_bytes(spec.ty.dtype, &spec.name)?;
        check_tokens(program, spec, tensor)?;
        let slot = Slot::Input(index as u32);
        for device in 0..program.mesh.devices() {
            let stage = device / machine.layout.stage_devices();
            if machine.layout.stages[stage].entries[entry].inputs[index].is_some() {
                for micro_batch in 0..program.batch.micro_batches {
                    write_piece(machine, entry, device, micro_batch, slot, spec, tensor, &bytes, sizes);
                }
            }
        }
    }
    Ok(sizes.seq)
}

fn names(specs: &[IoSpec]) -> String {
    let list: Vec<String> = specs.iter().map(|s| format!("`{}` {}", s.name, s.ty)).collect();
    format!("it takes {}", list.join(", "))
}

/// Checks a tensor against its spec; the sequence extent of the first input that has one holds for all.
fn check_shape(spec: &IoSpec, tensor: &HostTensor, sizes: &mut Sizes) -> Result<(), Diagnostic> {
    let wrong = |why: String| {
        Err(Diagnostic::input(format!("input `{}` has shape {:?}", spec.name, tensor.shape)).why(why))
    };
    if tensor.shape.len() != spec.ty.shape.len() {
        return wrong(format!("the program takes {}", spec.ty));
    }
    let elements = tensor.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if elements != Some(tensor.data.len()) {
        return wrong(format!("it holds {} elements", tensor.data.len()));
    }
    for (dim, (&given, &compiled)) in tensor.shape.iter().zip(&spec.ty.shape).enumerate() {
        if Some(dim) == spec.batch_dim {
            if given != sizes.rows {
                return wrong(format!("dim {dim} must hold the {} rows of the run", sizes.rows));
            }
        } else if Some(dim) == spec.seq_dim {
            if given > compiled {
                return Err(Diagnostic::input(format!("input `{}` is {given} positions long", spec.name))
                    .why(format!("the program was compiled for {compiled}"))
                    .help("shorten it, or compile with a larger --seq"));
            }
            if given == 0 || given != *sizes.seq.get_or_insert(given) {
                return wrong(format!("dim {dim} must be {} as in the other inputs", sizes.seq.unwrap_or(1)));
            }
        } else if given != compiled {
            return wrong(format!("dim {dim} must be {compiled}"));
        }
    }
    Ok(())
}

/// Tokens must be in the vocabulary; the program would read zeros for others.
fn check_tokens(program: &Program, spec: &IoSpec, tensor: &HostTensor) -> Result<(), Diagnostic> {
    let vocab = program.model.vocab;
    if spec.name != "tokens" || vocab == 0 {
        return Ok(());
    }
    let outside = |t: i64| usize::try_from(t).map_or(true, |t| t >= vocab);
    let found = match &tensor.data {
        crate::tensor::HostData::I32(v) => v.iter().map(|&t| t.into()).find(|&t| outside(t)),
        crate::tensor::HostData::I64(v) => v.iter().copied().find(|&t| outside(t)),
        _ => None,
    };
    match found {
        None => Ok(()),
        Some(t) => Err(Diagnostic::input(format!("token {t} is not in the vocabulary"))
            .at("input `tokens`")
            .why(format!("tokens are 0 to {}", vocab - 1))),
    }
}

/// The row the user knows that the device holds at an index of the batch dim of one micro-batch.
fn user_row(program: &Program, rows: usize, micro_batch: usize, index: usize) -> Option<usize> {
    let capacity = program.batch.rows();
    let cell = program.batch.cell(rows, index / capacity, micro_batch);
    cell.clone().nth(index % capacity)
}

/// One block that a device and the host have in common: where it starts in both, and its extents.
struct Shared {
    lens: Vec<usize>,
    host: Vec<usize>,
    local: Vec<usize>,
}

/// The blocks of a device's piece that lie inside the host's tensor: one a row of the batch, or one in all.
fn shared_blocks(
    program: &Program,
    spec: &IoSpec,
    spans: &[(usize, usize)],
    host_shape: &[usize],
    micro_batch: usize,
    rows: usize,
) -> Vec<Shared> {
    let whole = Shared {
        lens: spans.iter().zip(host_shape).map(|(s, &n)| s.1.min(n.saturating_sub(s.0))).collect(),
        host: spans.iter().map(|s| s.0).collect(),
        local: vec![0; spans.len()],
    };
    let Some(dim) = spec.batch_dim else { return vec![whole] };
    let (start, len) = spans[dim];
    let row = |i: usize| {
        let user = user_row(program, rows, micro_batch, start + i)?;
        let mut block =
            Shared { lens: whole.lens.clone(), host: whole.host.clone(), local: whole.local.clone() };
        (block.lens[dim], block.host[dim], block.local[dim]) = (1, user, i);
        Some(block)
    };
    (0..len).filter_map(row).collect()
}

fn write_piece(
    machine: &Machine,
    entry: usize,
    device: usize,
    micro_batch: usize,
    slot: Slot,
    spec: &IoSpec,
    tensor: &HostTensor,
    bytes: &[u8],
    sizes: Sizes,
) {
    let program = &machine.program;
    let position = device % machine.layout.stage_devices();
    let spans = spans(program, &spec.sharding, &spec.ty, position);
    let local = spec.sharding.local_shape(&spec.ty.shape);
    let size = spec.ty.dtype.bytes();
    let at = machine.layout.slot(entry, device, micro_batch, slot);
    let window = machine.memory.window(at, local.iter().product::<usize>() * size);
    window.zero();
    for block in shared_blocks(program, spec, &spans, &tensor.shape, micro_batch, sizes.rows) {
        let from = Place { shape: &tensor.shape, start: &block.host };
        let to = Place { shape: &local, start: &block.local };
        runs(&block.lens, from, to, |f, t, count| {
            window.write(t * size, &bytes[f * size..(f + count) * size]);
        });
    }
}

/// Assembles the outputs from the devices' pieces; of replicas the first is taken.
pub(crate) fn read_outputs(
    machine: &Machine,
    entry: usize,
    rows: usize,
    seq: Option<usize>,
) -> Result<BTreeMap<String, HostTensor>, Diagnostic> {
    let specs = &machine.program.entries[entry].outputs;
    let sizes = Sizes { rows, seq };
    specs
        .iter()
        .enumerate()
        .map(|(i, spec)| Ok((spec.name.clone(), read_output(machine, entry, i, spec, sizes)?)))
        .collect()
}

fn read_output(
    machine: &Machine,
    entry: usize,
    index: usize,
    spec: &IoSpec,
    sizes: Sizes,
) -> Result<HostTensor, Diagnostic> {
    let program = &machine.program;
    let mut shape = spec.ty.shape.clone();
    if let Some(dim) = spec.batch_dim {
        shape[dim] = sizes.rows;
    }
    if let (Some(dim), Some(seq)) = (spec.seq_dim, sizes.seq) {
        shape[dim] = seq.min(shape[dim]);
    }
    let size = spec.ty.dtype.bytes();
    let elements = shape.iter().try_fold(size, |n, &d| n.checked_mul(d));
    let Some(elements) = elements else {
        return Err(Diagnostic::input(format!("output `{}` is too large", spec.name)));
    };
    let mut bytes = vec![0; elements];
    let local = spec.sharding.local_shape(&spec.ty.shape);
    let stages = &machine.layout.stages;
    let Some(stage) = stages.iter().position(|s| s.entries[entry].outputs[index].is_some()) else {
        return Err(Diagnostic::internal(format!("no stage makes output `{}`", spec.name)));
    };
    let mut seen = HashSet::new();
    for position in 0..machine.layout.stage_devices() {
        let spans = spans(program, &spec.sharding, &spec.ty, position);
        if !seen.insert(spans.clone()) {
            continue;
        }
        let device = stage * machine.layout.stage_devices() + position;
        for micro_batch in 0..program.batch.micro_batches {
            let at = machine.layout.slot(entry, device, micro_batch, Slot::Output(index as u32));
            let window = machine.memory.window(at, local.iter().product::<usize>() * size);
            for block in shared_blocks(program, spec, &spans, &shape, micro_batch, sizes.rows) {
                let from = Place { shape: &local, start: &block.local };
                let to = Place { shape: &shape, start: &block.host };
                runs(&block.lens, from, to, |f, t, count| {
                    window.read(f * size, &mut bytes[t * size..(t + count) * size]);
                });
            }
            if spec.batch_dim.is_none() {
                break;
            }
        }
    }
    Ok(HostTensor::from_bytes(shape, spec.ty.dtype, &bytes))
}
