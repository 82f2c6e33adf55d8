//! Which GPU runs which rank, whether there is room, and the weights on their way there.

use super::driver::{Context, Failure};
use super::plan::Plan;
use super::rank::PIECE;
use super::room::Room;
use super::world::World;
use super::{GpuOptions, Gpus};
use crate::layout::ParamSlice;
use crate::memory::Mapping;
use crate::params::{self, Progress};
use pcc_ir::Diagnostic;
use pcc_ir::gpu::{Arch, LibraryKernel, library};
use pcc_ir::source::ReadParams;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The GPU of every rank of this process: neighbours share one. Where a launcher started several processes, each has the rank of its number, on the GPU of its
/// number on its machine.
///
/// # Errors
/// There are not enough, or another number of processes than ranks.
pub(super) fn place(
    plan: &Plan,
    options: &GpuOptions,
    world: Option<&World>,
    present: usize,
) -> Result<BTreeMap<usize, usize>, Diagnostic> {
    let ranks = plan.program.mesh.devices();
    if let Some(world) = world {
        if world.size != ranks {
            return Err(Diagnostic::run(format!("{} processes were started for {ranks} ranks", world.size))
                .why("every process runs one rank")
                .help(format!("start {ranks} processes, or one that runs all ranks")));
        }
        if world.local >= present {
            return Err(Diagnostic::run(format!(
                "process {} of its machine finds {present} GPU(s)",
                world.local
            ))
            .why("every process needs one of its own")
            .help("start fewer processes on this machine"));
        }
        return Ok(BTreeMap::from([(world.rank, world.local)]));
    }
    let each = options.ranks_per_device.max(1);
    let needed = ranks.div_ceil(each);
    if needed > present {
        return Err(Diagnostic::run(format!("the program has {ranks} ranks, the machine {present} GPU(s)"))
            .why(format!("with {each} rank(s) on a GPU it needs {needed}"))
            .help(format!(
                "run it with --ranks-per-device {}, or compile it for a smaller mesh",
                ranks.div_ceil(present.max(1))
            )));
    }
    Ok((0..ranks).map(|rank| (rank, rank / each)).collect())
}

/// What NCCL's communicators, cuBLASLt and loaded code take of a GPU for a rank, about: they cannot be asked beforehand.
const LIBRARIES: u64 = 512 << 20;

/// Checks that every GPU runs code for the architecture, and has room for its ranks, before anything is allocated.
///
/// # Errors
/// The GPU, what it has, what is needed and for what.
pub(super) fn check_devices(
    plan: &Plan,
    arch: Arch,
    ordinals: &BTreeMap<usize, usize>,
    bytes: &[u64],
    options: &GpuOptions,
) -> Result<(), Diagnostic> {
    let mut on: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    ordinals.iter().for_each(|(&rank, &ordinal)| on.entry(ordinal).or_default().push(rank));
    for (ordinal, ranks) in on {
        let broken = |e: Failure| {
            Diagnostic::run(format!("GPU {ordinal} cannot be used"))
                .why(super::load::explained(&e.to_string()))
        };
        let context = Context::new(ordinal).map_err(broken)?;
        let capability = context.capability().map_err(broken)?;
        if !arch.runs_on(capability) {
            let (major, minor) = capability;
            return Err(Diagnostic::input(format!("the artifact is for {}", arch.name()))
                .why(format!("GPU {ordinal} ({}) has compute capability {major}.{minor}", context.name()))
                .help(match Arch::ALL.into_iter().rev().find(|a| a.runs_on(capability)) {
                    Some(other) => format!("compile the model with --target {}", other.name()),
                    None => "pcc generates no code for this GPU".to_owned(),
                }));
        }
        let (shared, needed) = (context.shared().map_err(broken)?, largest_shared(plan));
        if needed > shared {
            return Err(Diagnostic::run(format!(
                "GPU {ordinal} ({}) is too small for the artifact",
                context.name()
            ))
            .why(format!("a block of its kernels needs {needed} bytes of shared memory, it has {shared}"))
            .help("run it on a data-center GPU: A100, H100, B200"));
        }
        let (free, total) = context.memory().map_err(broken)?;
        check_room(plan, (ordinal, &context.name()), &ranks, bytes, options, (free, total))?;
    }
    Ok(())
}

/// Bytes of shared memory that a block of some kernel asks for.
fn largest_shared(plan: &Plan) -> u32 {
    library(&plan.program).iter().map(LibraryKernel::shared).max().unwrap_or(0)
}

fn check_room(
    plan: &Plan,
    (ordinal, name): (usize, &str),
    ranks: &[usize],
    bytes: &[u64],
    options: &GpuOptions,
    (free, total): (u64, u64),
) -> Result<(), Diagnostic> {
    let (local, simulated) = (options.ranks_per_device > 1, options.gpus != Gpus::Real);
    let extra = |rank: usize| Room::new(plan, rank / plan.layout.stage_devices(), local).bytes;
    let sum = |of: &dyn Fn(usize) -> u64| ranks.iter().fold(0u64, |n, &r| n.saturating_add(of(r)));
    let libraries = if simulated { 0 } else { LIBRARIES.saturating_mul(ranks.len() as u64) };
    let need = sum(&|r| bytes[r].saturating_add(extra(r))).saturating_add(libraries);
    if need <= free {
        return Ok(());
    }
    let gib = |n: u64| match n {
        0..0x4000_0000 => format!("{:.2} MiB", n as f64 / (1u64 << 20) as f64),
        _ => format!("{:.2} GiB", n as f64 / (1u64 << 30) as f64),
    };
    let micro_batches = plan.program.batch.micro_batches;
    let states = |r: usize| plan.layout.states_of(r, micro_batches).map(|e| e.len as u64).sum();
    let weights = sum(&|r| plan.weight_bytes(r));
    let states = sum(&states);
    let exchange = sum(&extra);
    let rest = [weights, states, exchange, libraries].iter().fold(need, |n, part| n.saturating_sub(*part));
    let who = match ranks {
        [one] => format!("rank {one} needs"),
        [first, .., last] => format!("ranks {first} to {last} need"),
        [] => "nothing needs".to_owned(),
    };
    Err(Diagnostic::run(format!("{who} {} on GPU {ordinal} ({name})", gib(need)))
        .why(format!(
            "{} of {} are free; weights take {}, caches {}, activations, inputs and outputs {}, exchange {}, NCCL and other libraries about {}",
            gib(free),
            gib(total),
            gib(weights),
            gib(states),
            gib(rest),
            gib(exchange),
            gib(libraries)
        ))
        .help("compile for more devices (--tp, --pp), or with a smaller --batch or --seq"))
}

/// What a rank is sent: its number in the process, an offset in its memory, and bytes for it.
type Upload<'a> = &'a dyn Fn(usize, u64, Arc<Vec<u8>>) -> Result<(), Diagnostic>;

/// Reads every distinct slice of a parameter once and sends it to all ranks that hold it, then the constants.
pub(super) fn load(
    plan: &Plan,
    slices: &[&[ParamSlice]],
    weights: &dyn ReadParams,
    progress: Progress<'_>,
    upload: Upload<'_>,
) -> Result<(), Diagnostic> {
    let program = &plan.program;
    for (index, constant) in program.constants.iter().enumerate() {
        let bytes = Arc::new(params::constant_bytes(constant)?);
        let at = plan.layout.constant(index) as u64;
        (0..slices.len()).try_for_each(|device| upload(device, at, bytes.clone()))?;
    }
    // By parameter and spans: the ranks that hold the slice.
    type Holders<'a> = BTreeMap<(usize, &'a [(usize, usize)]), Vec<(usize, &'a ParamSlice)>>;
    let mut holders: Holders<'_> = BTreeMap::new();
    for (device, own) in slices.iter().enumerate() {
        for slice in *own {
            holders.entry((slice.param, &slice.spans)).or_default().push((device, slice));
        }
    }
    let total: u64 = holders.values().filter_map(|h| h.first()).map(|h| h.1.at.len as u64).sum();
    let mut done = 0;
    for held in holders.values() {
        let Some((_, slice)) = held.first() else { continue };
        let memory = Mapping::new(slice.at.len)?;
        let window = memory.window(0, slice.at.len);
        params::load_slice(program, slice, &window, weights)?;
        for start in (0..slice.at.len).step_by(PIECE) {
            let mut bytes = vec![0; PIECE.min(slice.at.len - start)];
            window.read(start, &mut bytes);
            let bytes = Arc::new(bytes);
            held.iter()
                .try_for_each(|(device, s)| upload(*device, (s.at.offset + start) as u64, bytes.clone()))?;
        }
        done += slice.at.len as u64;
        progress(done, total);
    }
    Ok(())
}
