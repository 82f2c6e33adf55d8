//! Asynchronous copies from global to shared memory: each is done as late as the kernel's waits allow.

use super::Trap;
use super::block::Shares;
use super::global::{Spot, Use};
use super::registers::lanes;
use super::warp::Warp;
use crate::ptx::code::{LANES, Op};
use std::collections::VecDeque;

/// Copies of the lanes of a warp.
#[derive(Default)]
pub(super) struct Copies {
    /// Started, in no group yet.
    open: [Vec<Copy>; LANES],
    /// Groups that were closed and not waited for, the oldest first.
    groups: [VecDeque<Vec<Copy>>; LANES],
}

struct Copy {
    to: usize,
    /// None where nothing is read.
    from: Option<Spot>,
    bytes: usize,
    /// Bytes that are read; the rest is zero.
    have: usize,
}

impl Copies {
    pub(super) fn reset(&mut self) {
        for lane in 0..LANES {
            self.open[lane].clear();
            self.groups[lane].clear();
        }
    }
}

impl Warp {
    pub(super) fn copy_async(&mut self, shares: &mut Shares, op: &Op, active: u32) -> Result<(), Trap> {
        let Op::CopyAsync { to, from, bytes, have } = op else { return Ok(()) };
        let size = usize::from(*bytes);
        for lane in lanes(active) {
            let trap = |what: String| Trap { lane, what };
            let to = self.address(*to, lane, size)? & u64::from(u32::MAX);
            let amount = match have {
                Some(slot) => match self.registers.get(*slot, lane) {
                    (_, poison) if poison != 0 => {
                        return Err(trap("an uninitialised size of cp.async".into()));
                    }
                    (n, _) if n > size as u64 => {
                        return Err(trap(format!("cp.async of {n} bytes to {size}")));
                    }
                    (n, _) => n as usize,
                },
                None => size,
            };
            let source = self.address(*from, lane, size)?;
            let from = if amount == 0 {
                None
            } else {
                let spot = shares.globals.find(source, amount).map_err(trap)?;
                shares.note(spot, amount, self.thread(lane), Use::Read).map_err(trap)?;
                Some(spot)
            };
            let thread = self.thread(lane);
            let to = shares.shared.check(to, size).map_err(trap)?;
            shares.shared.races.start_copy(thread, to, size).map_err(trap)?;
            self.copies.open[lane].push(Copy { to, from, bytes: size, have: amount });
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, active: u32) {
        for lane in lanes(active) {
            let group = std::mem::take(&mut self.copies.open[lane]);
            self.copies.groups[lane].push_back(group);
        }
    }

    /// Ends the oldest groups until so many are left.
    pub(super) fn wait(&mut self, shares: &mut Shares, left: u32, active: u32) {
        for lane in lanes(active) {
            while self.copies.groups[lane].len() > left as usize {
                let group = self.copies.groups[lane].pop_front().unwrap_or_default();
                for copy in group {
                    self.finish(shares, &copy, lane);
                }
            }
        }
    }

    fn finish(&mut self, shares: &mut Shares, copy: &Copy, lane: usize) {
        for at in (0..copy.bytes).step_by(4) {
            let mut word = (0, 0);
            for n in 0..4 {
                if let Some(spot) = copy.from.filter(|_| at + n < copy.have) {
                    let (byte, bad) = shares.globals.peek(spot, at + n, 1);
                    word.0 |= byte << (8 * n);
                    word.1 |= bad << n;
                }
            }
            shares.shared.poke(copy.to + at, 4, word.0, word.1);
        }
        shares.shared.races.end_copy(self.thread(lane), copy.to, copy.bytes);
    }
}
