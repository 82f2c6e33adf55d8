//! Outputs for the host, from the devices' pieces.
//!
//! Logits of a long prompt are large, so what is written is cut into chunks of whole rows that go in parallel, straight into the
//! tensor that the caller gets, in memory of an earlier run where there is some.

use crate::block::{Place, runs};
use crate::distribute::{HostSide, Shared, Sizes, shared_blocks};
use crate::layout::spans;
use crate::memory::Window;
use crate::tensor::{HostData, HostTensor};
use pcc_ir::Diagnostic;
use pcc_ir::program::{IoSpec, Slot};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};

/// Bytes of a chunk, about.
const CHUNK: usize = 2 << 20;

/// A block that one device holds of an output.
struct Piece<'m> {
    window: Window<'m>,
    block: Shared,
}

/// Assembles the outputs of an entry; of replicas the first is taken. What `outputs` holds under an output's name is written
/// again where the type is the same and the memory is enough; anything else in it goes.
pub(crate) fn outputs(
    host: &dyn HostSide,
    entry: usize,
    sizes: Sizes,
    outputs: &mut BTreeMap<String, HostTensor>,
) -> Result<(), Diagnostic> {
    let specs = &host.program().entries[entry].outputs;
    outputs.retain(|name, _| specs.iter().any(|spec| spec.name == *name));
    for (index, spec) in specs.iter().enumerate() {
        let used = outputs.remove(&spec.name).map(|tensor| tensor.data);
        outputs.insert(spec.name.clone(), output(host, entry, index, spec, sizes, used)?);
    }
    Ok(())
}

fn output(
    host: &dyn HostSide,
    entry: usize,
    index: usize,
    spec: &IoSpec,
    sizes: Sizes,
    used: Option<HostData>,
) -> Result<HostTensor, Diagnostic> {
    let mut shape = spec.ty.shape.clone();
    if let Some(dim) = spec.batch_dim {
        shape[dim] = sizes.rows;
    }
    if let (Some(dim), Some(seq)) = (spec.seq_dim, sizes.seq) {
        shape[dim] = seq.min(shape[dim]);
    }
    let dtype = spec.ty.dtype;
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let Some(elements) = elements.filter(|n| n.checked_mul(dtype.bytes()).is_some()) else {
        return Err(Diagnostic::input(format!("output `{}` is too large", spec.name)));
    };
    let pieces = pieces(host, entry, index, spec, &shape, sizes.rows)?;
    let local = spec.sharding.local_shape(&spec.ty.shape);
    let copy = |bytes: &mut [u8]| copy(&pieces, &local, &shape, dtype.bytes(), bytes);
    let data = HostData::from_bits(dtype, elements, used, copy);
    Ok(HostTensor { shape, data })
}

/// Who holds what of an output.
fn pieces<'m>(
    host: &'m dyn HostSide,
    entry: usize,
    index: usize,
    spec: &IoSpec,
    shape: &[usize],
    rows: usize,
) -> Result<Vec<Piece<'m>>, Diagnostic> {
    let program = host.program();
    let bytes = spec.sharding.local_shape(&spec.ty.shape).iter().product::<usize>() * spec.ty.dtype.bytes();
    let stages = &host.layout().stages;
    let Some(stage) = stages.iter().position(|s| s.entries[entry].outputs[index].is_some()) else {
        return Err(Diagnostic::internal(format!("no stage makes output `{}`", spec.name)));
    };
    let (mut seen, mut pieces) = (HashSet::new(), Vec::new());
    for position in 0..host.layout().stage_devices() {
        let spans = spans(program, &spec.sharding, &spec.ty, position);
        if !seen.insert(spans.clone()) {
            continue;
        }
        let device = stage * host.layout().stage_devices() + position;
        for micro_batch in 0..program.batch.micro_batches {
            let window = host.window(entry, device, micro_batch, Slot::Output(index as u32), bytes);
            let blocks = shared_blocks(program, spec, &spans, shape, micro_batch, rows);
            pieces.extend(blocks.into_iter().map(|block| Piece { window, block }));
            if spec.batch_dim.is_none() {
                break;
            }
        }
    }
    Ok(pieces)
}

/// Copies all pieces, of shape `local`, to where they belong in a tensor of shape `shape`.
fn copy(pieces: &[Piece<'_>], local: &[usize], shape: &[usize], size: usize, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    // The first dim that has several indices: an index of it is a row.
    let dim = shape.iter().position(|&n| n > 1).unwrap_or(0);
    let row: usize = shape.iter().skip(dim + 1).product::<usize>() * size;
    let rows = (CHUNK / row).max(1);
    let chunk = |(number, bytes): (usize, &mut [u8])| {
        let first = number * rows;
        for piece in pieces {
            copy_rows(piece, local, shape, size, (dim, first..first + bytes.len() / row), bytes);
        }
    };
    if bytes.len() <= CHUNK {
        chunk((0, bytes));
    } else {
        bytes.par_chunks_mut(rows * row).enumerate().for_each(chunk);
    }
}

/// Copies what a piece has of the indices `within` of a dim to `bytes`, which hold those. All dims before it are 1 wide.
fn copy_rows(
    piece: &Piece<'_>,
    local: &[usize],
    shape: &[usize],
    size: usize,
    (dim, within): (usize, std::ops::Range<usize>),
    bytes: &mut [u8],
) {
    let Shared { mut lens, mut host, local: mut start } = piece.block.clone();
    let mut shape = shape.to_vec();
    if let Some(extent) = shape.get_mut(dim) {
        *extent = within.len();
        let from = host[dim].max(within.start);
        let to = (host[dim] + lens[dim]).min(within.end);
        start[dim] += from - host[dim];
        lens[dim] = to.saturating_sub(from);
        host[dim] = from - within.start;
    }
    let (from, to) = (Place { shape: local, start: &start }, Place { shape: &shape, start: &host });
    runs(&lens, from, to, |f, t, count| {
        piece.window.read(f * size, &mut bytes[t * size..(t + count) * size]);
    });
}
