//! Runs kernels.
//!
//! Blocks run one after another in an order drawn from the seed, the warps of a block in turns of random length. Lanes of a warp run in step; where
//! they part, those at the lowest instruction go first, so that they meet again where their paths join.

mod access;
mod block;
mod bytes;
mod copies;
mod exchange;
mod global;
mod local;
mod matrix;
mod race;
mod registers;
mod shared;
mod traces;
mod warp;
mod wgmma;

use crate::Fault;
use crate::memory::Memory;
use crate::ptx::Kernel;
use std::ops::Range;

/// Instructions that one warp may run in a block, so that endless loops end: seconds' worth, and some ten times what a sum over 16 thousand takes.
pub const BUDGET: u64 = 1 << 24;

/// A kernel and how it is launched.
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    /// The device it runs on: it may use the memory of no other.
    pub device: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The bytes of each parameter.
    pub params: &'a [Vec<u8>],
    /// Decides the order of blocks and of the warps of a block.
    pub seed: u64,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions, counted once a thread.
    pub instructions: u64,
    /// Addresses of global memory that it read and that it wrote: sorted, apart from each other; atomics do both. In steps of the smallest
    /// write that the kernel has.
    pub reads: Vec<Range<u64>>,
    pub writes: Vec<Range<u64>>,
}

/// What is wrong, and the lane whose thread does it.
#[derive(Debug)]
struct Trap {
    lane: usize,
    what: String,
}

/// Runs a kernel to its end.
///
/// # Errors
/// The launch does not fit the kernel, or the kernel does something that is wrong: then the PTX line, block and thread are named.
pub fn run(memory: &Memory, launch: &Launch) -> Result<Stats, Fault> {
    run_within(memory, launch, BUDGET)
}

/// [`run`] with a bound on the instructions of one warp.
///
/// # Errors
/// As of `run`, and a warp runs more instructions.
pub fn run_within(memory: &Memory, launch: &Launch, budget: u64) -> Result<Stats, Fault> {
    let blocks = check(launch)?;
    let params = parameters(launch)?;
    let mut random = Random::new(launch.seed);
    let globals = global::Globals::new(memory, launch.device, &launch.kernel.code);
    let mut block = block::Block::new(launch, params, globals, budget);
    let mut stats = Stats::default();
    let (start, step) = order(blocks, &mut random);
    for n in 0..blocks {
        let linear = (start + n * step) % blocks;
        stats.instructions += block.run(linear as u32, &mut random)?;
    }
    [stats.reads, stats.writes] = block.touched();
    Ok(stats)
}

/// Limits of every GPU of capability 8 and 9. (CUDA C++ programming guide, compute capabilities.) Answers how many blocks there are.
fn check(launch: &Launch) -> Result<u64, Fault> {
    let name = &launch.kernel.name;
    let fault = |what: String| Err(Fault::new(format!("launch of {name}: {what}")));
    let (grid, block) = (launch.grid, launch.block);
    if grid.contains(&0) || grid[0] >= 1 << 31 || grid[1] > 65535 || grid[2] > 65535 {
        return fault(format!("grid of {grid:?}"));
    }
    let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
    if threads == 0 || threads > 1024 || block[2] > 64 {
        return fault(format!("block of {block:?}"));
    }
    if launch.kernel.max_threads.is_some_and(|most| threads > most.into()) {
        return fault(format!("{threads} threads a block, more than its .maxntid"));
    }
    if let Some(wanted) = launch.kernel.threads.filter(|&n| threads != n.into()) {
        return fault(format!("{threads} threads a block, where .reqntid is {wanted}"));
    }
    let shared = u64::from(launch.kernel.shared) + u64::from(launch.shared);
    if shared > 227 << 10 {
        return fault(format!("{shared} bytes of shared memory, more than the 227 KiB of a block"));
    }
    let blocks = grid.iter().map(|&n| u64::from(n)).product::<u64>();
    if blocks >= 1 << 31 { fault(format!("{blocks} blocks are too many to simulate")) } else { Ok(blocks) }
}

/// The bytes of all parameters, each at its place.
fn parameters(launch: &Launch) -> Result<Vec<u8>, Fault> {
    let places = &launch.kernel.code.params;
    let name = &launch.kernel.name;
    if places.len() != launch.params.len() {
        let what =
            format!("launch of {name}: {} parameters instead of {}", launch.params.len(), places.len());
        return Err(Fault::new(what));
    }
    let mut all = vec![0; places.last().map_or(0, |p| p.start + p.bytes) as usize];
    for (n, (place, bytes)) in places.iter().zip(launch.params).enumerate() {
        if place.bytes != bytes.len() as u64 {
            let what = format!(
                "launch of {name}: parameter {n} has {} bytes instead of {}",
                bytes.len(),
                place.bytes
            );
            return Err(Fault::new(what));
        }
        all[place.start as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    Ok(all)
}

/// First block and step of a walk over all blocks.
fn order(blocks: u64, random: &mut Random) -> (u64, u64) {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = random.below(blocks);
    let mut step = random.below(blocks).max(1);
    while gcd(step, blocks) != 1 {
        step += 1;
    }
    (start, step)
}

/// Random numbers: xorshift64*. (Vigna, An experimental exploration of Marsaglia's xorshift generators, 2016.)
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n.max(1)
    }
}
