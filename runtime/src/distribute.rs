//! Between the host's tensors and the devices' pieces: rows to replicas and micro-batches, dims to shards.

use crate::block::{Place, runs};
use crate::layout::{Layout, spans};
use crate::memory::Window;
use crate::tensor::HostTensor;
use pcc_ir::Diagnostic;
use pcc_ir::program::{IoSpec, Program, Slot};
use std::collections::BTreeMap;

/// What a run is asked for: rows, and positions along the sequence.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) seq: Option<usize>,
}

/// Inputs and outputs of all devices, as the host sees them.
pub(crate) trait HostSide {
    fn program(&self) -> &Program;
    fn layout(&self) -> &Layout;
    /// An input or output of a device, which uses it.
    fn window(&self, entry: usize, device: usize, micro_batch: usize, slot: Slot, bytes: usize)
    -> Window<'_>;
}

/// Writes the inputs of every device that uses them. Returns the sequence extent given, if an input has one.
pub(crate) fn write_inputs(
    host: &dyn HostSide,
    entry: usize,
    inputs: &BTreeMap<String, HostTensor>,
    rows: usize,
) -> Result<Option<usize>, Diagnostic> {
    let program = host.program();
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
            let stage = device / host.layout().stage_devices();
            if host.layout().stages[stage].entries[entry].inputs[index].is_some() {
                for micro_batch in 0..program.batch.micro_batches {
                    write_piece(host, entry, device, micro_batch, slot, spec, tensor, &bytes, sizes);
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
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) lens: Vec<usize>,
    pub(crate) host: Vec<usize>,
    pub(crate) local: Vec<usize>,
}

/// The blocks of a device's piece that lie inside the host's tensor: one a row of the batch, or one in all.
pub(crate) fn shared_blocks(
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
    host: &dyn HostSide,
    entry: usize,
    device: usize,
    micro_batch: usize,
    slot: Slot,
    spec: &IoSpec,
    tensor: &HostTensor,
    bytes: &[u8],
    sizes: Sizes,
) {
    let program = host.program();
    let position = device % host.layout().stage_devices();
    let spans = spans(program, &spec.sharding, &spec.ty, position);
    let local = spec.sharding.local_shape(&spec.ty.shape);
    let size = spec.ty.dtype.bytes();
    let window = host.window(entry, device, micro_batch, slot, local.iter().product::<usize>() * size);
    window.zero();
    for block in shared_blocks(program, spec, &spans, &tensor.shape, micro_batch, sizes.rows) {
        let from = Place { shape: &tensor.shape, start: &block.host };
        let to = Place { shape: &local, start: &block.local };
        runs(&block.lens, from, to, |f, t, count| {
            window.write(t * size, &bytes[f * size..(f + count) * size]);
        });
    }
}
