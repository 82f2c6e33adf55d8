//! How many blocks fit a multiprocessor: of threads and shared memory alone, since the simulator has registers without end.

use super::device::shared_optin;
use super::{Handle, Out, call};
use crate::code::Code;
use crate::state::Turn;
use std::ffi::{c_int, c_uint};

/// Threads and blocks of a multiprocessor.
const THREADS: u64 = 2048;
const BLOCKS: u64 = 32;
/// Multiprocessors of a device.
const PROCESSORS: c_int = 4;

/// `CUoccupancyB2DSize`.
type SharedOf = Option<extern "C" fn(c_int) -> usize>;

impl Turn {
    fn blocks(&self, function: u64, threads: c_int, shared: usize) -> Result<c_int, Code> {
        let of = self.functions.get(function)?;
        let threads = u64::try_from(threads).ok().filter(|&t| t > 0).ok_or(Code::INVALID_VALUE)?;
        if threads > of.kernel.max_threads.unwrap_or(1024).into() {
            return Ok(0);
        }
        // Each block has 1 KiB that the driver keeps.
        let all = u64::from(shared_optin(self.config.capability)) + 1024;
        let each = u64::from(of.kernel.shared) + shared as u64 + 1024;
        Ok((THREADS / threads.next_multiple_of(32)).min(all / each).min(BLOCKS) as c_int)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    shared: usize,
) -> Code {
    call(|turn| blocks.set(turn.blocks(function, threads, shared)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    shared: usize,
    _flags: c_uint,
) -> Code {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: Handle,
    shared_of: SharedOf,
    shared: usize,
    limit: c_int,
) -> Code {
    // The caller's function runs without the lock, for every size that is asked about.
    let limit = if limit > 0 { limit.min(1024) } else { 1024 };
    let sizes: Vec<(c_int, usize)> =
        (1..=limit / 32).map(|w| w * 32).map(|t| (t, shared_of.map_or(shared, |of| of(t)))).collect();
    call(|turn| {
        let mut best = (0, 0, 0);
        for &(threads, shared) in &sizes {
            let blocks = turn.blocks(function, threads, shared)?;
            best = best.max((blocks * threads, threads, blocks));
        }
        grid.set(best.2 * PROCESSORS)?;
        block.set(best.1)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: Handle,
    shared_of: SharedOf,
    shared: usize,
    limit: c_int,
    _flags: c_uint,
) -> Code {
    cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, shared, limit)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: Handle,
    blocks: c_int,
    threads: c_int,
) -> Code {
    call(|turn| {
        if turn.blocks(function, threads, 0)? < blocks || blocks <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        let all = u64::from(shared_optin(turn.config.capability)) + 1024;
        let fixed = u64::from(turn.functions.get(function)?.kernel.shared) + 1024;
        bytes.set((all / blocks as u64).saturating_sub(fixed) as usize)
    })
}
