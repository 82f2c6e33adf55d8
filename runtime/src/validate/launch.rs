//! What a launch writes: each element once, and over nothing that other rows read. Its rows run in any order and on several workers.

use super::instr::overlap;
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::program::{FuncProgram, Launch};
use pcc_ir::strides::are_injective;
use std::ops::Range;

/// Checks the accesses of a launch, whose bytes are `spans`.
pub(super) fn check_writes(
    func: &FuncProgram,
    kernel: &Kernel,
    launch: &Launch,
    spans: &[Range<u64>],
) -> Result<(), String> {
    let rank = launch.extents.len();
    let accesses = || kernel.accesses.iter().zip(launch.strides.chunks_exact(rank)).enumerate();
    for (w, (written, strides)) in accesses().filter(|(_, (a, _))| a.write) {
        let at = is_indexed(kernel, w);
        // A store of a row's value is one for all lanes.
        let dims = rank - usize::from(written.lane == Lane::Broadcast);
        let steps = || launch.extents.iter().zip(strides).take(dims).map(|(e, &stride)| (e.full, stride));
        if !at && !are_injective(steps()) {
            return Err(format!("strides of access {w} may take two stores to one element"));
        }
        for (r, (other, others)) in accesses().filter(|&(r, _)| r != w) {
            let (from, to) = ((&launch.ptrs[w], &spans[w]), (&launch.ptrs[r], &spans[r]));
            if !overlap(func, from, to) {
                continue;
            }
            let size = written.dtype.bytes();
            let alike = strides == others && size == other.dtype.bytes() && !at && !is_indexed(kernel, r);
            let distance = from.0.offset.abs_diff(to.0.offset);
            // The same element, which its own row alone reads and writes, or one in a gap that the strides leave.
            let apart = || {
                let steps_to = i64::try_from(distance / size as u64).unwrap_or(i64::MAX);
                distance.is_multiple_of(size as u64) && are_injective(steps().chain([(2, steps_to)]))
            };
            let reads = distance == 0 && !other.write;
            if !(alike && (reads || apart())) {
                return Err(format!("access {w} writes what access {r} still needs"));
            }
        }
    }
    Ok(())
}

/// Whether an access is at an element that the kernel works out.
fn is_indexed(kernel: &Kernel, access: usize) -> bool {
    kernel.nodes.iter().any(|n| matches!(n, Node::LoadAt { access: a, .. } if *a as usize == access))
        || kernel.stores.iter().any(|s| s.access as usize == access && s.at.is_some())
}
