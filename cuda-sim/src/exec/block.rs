//! A block: its warps in turns, and its barriers.

use super::global::{Globals, Spot, Use, User};
use super::race::{Known, Thread};
use super::registers::lanes;
use super::shared::Shared;
use super::warp::{Status, Stop, Warp};
use super::wgmma::Groups;
use super::{Launch, Random};
use crate::Fault;
use crate::ptx::code::{Code, Special};
use std::ops::Range;

/// Instructions of a warp's turn, at most.
const TURN: u64 = 200;

/// What the warps of a block have in common.
pub(super) struct Shares<'a> {
    pub(super) code: &'a Code,
    pub(super) params: Vec<u8>,
    pub(super) shared: Shared,
    pub(super) globals: Globals<'a>,
    /// The block's number.
    pub(super) linear: u32,
    pub(super) budget: u64,
    pub(super) groups: Groups,
    barriers: [Arrivals; 16],
}

/// Who has come to a barrier.
#[derive(Default)]
struct Arrivals {
    /// Warps, whether they wait, and what they know of others' accesses.
    warps: Vec<(usize, bool, Known)>,
    /// Threads that pass it together, where not all do.
    threads: Option<u32>,
}

impl Shares<'_> {
    /// Notes an access to global memory. The error says with which other it collides.
    #[inline]
    pub(super) fn note(&mut self, spot: Spot, bytes: usize, thread: Thread, how: Use) -> Result<(), String> {
        let user = User { block: self.linear, thread };
        self.globals.note(&self.shared.races, spot, bytes, user, how)
    }

    /// A whole warp arrives.
    pub(super) fn arrive(
        &mut self,
        warp: usize,
        id: u32,
        threads: Option<u32>,
        waits: bool,
    ) -> Result<(), String> {
        let known = self.shared.races.arrive(warp, waits);
        let barrier = &mut self.barriers[id as usize & 15];
        if barrier.warps.is_empty() {
            barrier.threads = threads;
        } else if barrier.threads != threads {
            return Err(format!(
                "barrier {id} is for {threads:?} threads here, {:?} elsewhere",
                barrier.threads
            ));
        }
        if barrier.warps.iter().any(|w| w.0 == warp) {
            return Err(format!("its warp arrives at barrier {id} twice"));
        }
        barrier.warps.push((warp, waits, known));
        Ok(())
    }
}

pub(super) struct Block<'a> {
    launch: &'a Launch<'a>,
    shares: Shares<'a>,
    warps: Vec<Warp>,
}

impl<'a> Block<'a> {
    pub(super) fn new(launch: &'a Launch<'a>, params: Vec<u8>, globals: Globals<'a>, budget: u64) -> Self {
        let code = &*launch.kernel.code;
        let threads: u32 = launch.block.iter().product();
        let count = threads.div_ceil(32) as usize;
        let warps = (0..count).map(|n| {
            let left = threads - 32 * n as u32;
            Warp::new(n, code, if left >= 32 { u32::MAX } else { (1 << left) - 1 })
        });
        let warps = warps.collect();
        let shared = Shared::new(code, launch.shared, count);
        let shares = Shares {
            code,
            params,
            shared,
            globals,
            linear: 0,
            budget,
            groups: Groups::new(count),
            barriers: Default::default(),
        };
        Self { launch, shares, warps }
    }

    /// Runs the block of a number. Answers how many thread instructions that took.
    pub(super) fn run(&mut self, linear: u32, random: &mut Random) -> Result<u64, Fault> {
        self.start(linear);
        let mut ready: Vec<usize> = (0..self.warps.len()).collect();
        while !ready.is_empty() {
            let chosen = random.below(ready.len() as u64) as usize;
            let warp = &mut self.warps[ready[chosen]];
            let turns = 1 + random.below(TURN);
            let result = warp.run(&mut self.shares, turns);
            result.map_err(|stop| self.fault(ready[chosen], &stop))?;
            if self.warps[ready[chosen]].status != Status::Ready {
                ready.swap_remove(chosen);
            }
            self.open_barriers(&mut ready);
        }
        if let Some(stuck) = self.warps.iter().find(|w| w.status != Status::Done) {
            return Err(self.deadlock(stuck));
        }
        self.shares.groups.check_end().map_err(|(warp, what)| {
            let at = self.place(warp, 0, self.warps[warp].at());
            Fault { what, at }
        })?;
        Ok(self.warps.iter().map(|w| w.instructions).sum())
    }

    /// What the blocks that ran so far read and wrote of global memory.
    pub(super) fn touched(&self) -> [Vec<Range<u64>>; 2] {
        self.shares.globals.touched()
    }

    fn start(&mut self, linear: u32) {
        let (grid, block) = (self.launch.grid, self.launch.block);
        let index = [linear % grid[0], linear / grid[0] % grid[1], linear / grid[0] / grid[1]];
        let dynamic = self.launch.shared;
        let warps = self.warps.len() as u32;
        self.shares.linear = linear;
        self.shares.shared.reset();
        self.shares.barriers = Default::default();
        self.shares.groups = Groups::new(self.warps.len());
        for warp in &mut self.warps {
            let number = warp.index as u32;
            warp.start(self.shares.code, |special, lane| {
                let bit = 1u32 << lane;
                match special {
                    Special::Tid(axis) => thread(block, number * 32 + lane as u32)[axis],
                    Special::Ntid(axis) => block[axis],
                    Special::Ctaid(axis) => index[axis],
                    Special::Nctaid(axis) => grid[axis],
                    Special::Lane => lane as u32,
                    Special::Warp => number,
                    Special::Warps => warps,
                    Special::MaskEq => bit,
                    Special::MaskLt => bit - 1,
                    Special::MaskLe => bit | (bit - 1),
                    Special::MaskGt => !(bit | (bit - 1)),
                    Special::MaskGe => !(bit - 1),
                    Special::DynamicShared => dynamic,
                }
            });
        }
    }

    /// Lets those go on whose barrier is complete.
    fn open_barriers(&mut self, ready: &mut Vec<usize>) {
        for barrier in &mut self.shares.barriers {
            let complete = match barrier.threads {
                None => barrier.warps.len() == self.warps.len(),
                Some(threads) => barrier.warps.len() as u32 * 32 == threads,
            };
            if !complete {
                continue;
            }
            let arrivals = std::mem::take(barrier).warps;
            if arrivals.len() == self.warps.len() && arrivals.iter().all(|a| a.1) {
                self.shares.shared.races.pass();
            }
            let mut known = Known::default();
            arrivals.iter().for_each(|(_, _, theirs)| known.join(theirs));
            for (warp, waits, _) in arrivals {
                if waits {
                    self.shares.shared.races.leave(warp, &known);
                    self.warps[warp].status = Status::Ready;
                    ready.push(warp);
                }
            }
        }
    }

    /// Where a thread is, for messages.
    fn place(&self, warp: usize, lane: usize, pc: u32) -> String {
        let linear = self.shares.linear;
        let grid = self.launch.grid;
        let (x, y, z) = (linear % grid[0], linear / grid[0] % grid[1], linear / grid[0] / grid[1]);
        let [tx, ty, tz] = thread(self.launch.block, (warp * 32 + lane) as u32);
        let code = self.shares.code;
        let line = code.instructions.get(pc as usize).map_or(0, |i| i.line);
        let text = code.text.lines().nth((line as usize).saturating_sub(1)).unwrap_or("");
        let text = text.split("//").next().unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" ");
        let name = &self.launch.kernel.name;
        format!("line {line} of {name} (`{text}`), block ({x}, {y}, {z}), thread ({tx}, {ty}, {tz})")
    }

    fn fault(&self, warp: usize, stop: &Stop) -> Fault {
        Fault { what: stop.trap.what.clone(), at: self.place(warp, stop.trap.lane, stop.pc) }
    }

    fn deadlock(&self, stuck: &Warp) -> Fault {
        let Status::Waiting(id, threads) = stuck.status else { return Fault::new("a warp does not go on") };
        let list = |pick: &dyn Fn(&&Warp) -> bool| {
            self.warps.iter().filter(pick).map(|w| w.index.to_string()).collect::<Vec<_>>().join(", ")
        };
        let missing = list(&|w| !self.shares.barriers[id as usize & 15].warps.iter().any(|a| a.0 == w.index));
        let ended = list(&|w| w.status == Status::Done);
        let all = threads.map_or("all".to_owned(), |n| n.to_string());
        let what = format!(
            "deadlock: barrier {id} for {all} threads waits for warps {missing}, of which have ended: {ended}"
        );
        let lane = lanes(stuck.alive()).next().unwrap_or(0);
        Fault { what, at: self.place(stuck.index, lane, stuck.at()) }
    }
}

/// The index of a thread in its block.
fn thread(block: [u32; 3], linear: u32) -> [u32; 3] {
    [linear % block[0], linear / block[0] % block[1], linear / block[0] / block[1]]
}
