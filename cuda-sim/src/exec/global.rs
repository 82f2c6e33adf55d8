//! Global memory as a kernel sees it: bounds, and races between blocks and between the threads of a block.

use super::race::Races;
use super::traces::{PAGE, Trace};
pub(super) use super::traces::{Use, User};
use crate::memory::{Allocation, Memory};
use crate::ptx::code::{Code, DATA_START, Data};
use std::ops::Range;
use std::sync::Arc;

/// Allocations at the start of the launch, and who used them since.
pub(super) struct Globals<'a> {
    memory: &'a Memory,
    device: u32,
    allocations: Vec<Arc<Allocation>>,
    /// The allocation used last.
    last: usize,
    data: Arc<Vec<Data>>,
    grain: usize,
    /// By allocation.
    traces: Vec<Trace>,
}

/// Bytes in an allocation.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    allocation: usize,
    offset: usize,
}

impl<'a> Globals<'a> {
    pub(super) fn new(memory: &'a Memory, device: u32, code: &Code) -> Self {
        let allocations = memory.snapshot();
        let traces = allocations.iter().map(|_| Trace::default()).collect();
        let grain = code.global_grain.into();
        Self { memory, device, allocations, last: 0, data: code.data.clone(), grain, traces }
    }

    /// Where bytes lie, if in one allocation of the device.
    #[inline]
    pub(super) fn find(&mut self, at: u64, bytes: usize) -> Result<Spot, String> {
        let inside = |a: &Allocation| {
            at >= a.start && at - a.start < a.bytes && bytes as u64 <= a.bytes - (at - a.start)
        };
        let hit = self.allocations.get(self.last).is_some_and(|a| inside(a));
        if !hit {
            let next = self.allocations.partition_point(|a| a.start <= at);
            let found = next.checked_sub(1).filter(|&n| inside(&self.allocations[n]));
            self.last = found
                .ok_or_else(|| format!("out of bounds: {}", self.memory.wild("access", at, bytes as u64)))?;
        }
        let allocation = &self.allocations[self.last];
        if allocation.device != self.device {
            return Err(format!(
                "access of {at:#x}, which is memory of device {}, by a kernel on device {}",
                allocation.device, self.device
            ));
        }
        Ok(Spot { allocation: self.last, offset: (at - allocation.start) as usize })
    }

    #[inline]
    pub(super) fn peek(&self, spot: Spot, skip: usize, bytes: usize) -> (u64, u8) {
        self.allocations[spot.allocation].storage.load(spot.offset + skip, bytes)
    }

    #[inline]
    pub(super) fn poke(&self, spot: Spot, skip: usize, bytes: usize, value: u64, poison: u8) {
        self.allocations[spot.allocation].storage.store(spot.offset + skip, bytes, value, poison);
    }

    pub(super) fn update(&self, spot: Spot, bytes: usize, poison: u8, f: impl Fn(u64) -> u64) -> (u64, u8) {
        self.allocations[spot.allocation].storage.update(spot.offset, bytes, poison, f)
    }

    /// Notes an access. The error says with which other it collides.
    #[inline]
    pub(super) fn note(
        &mut self,
        races: &Races,
        spot: Spot,
        bytes: usize,
        user: User,
        how: Use,
    ) -> Result<(), String> {
        let first = spot.offset / self.grain;
        let last = (spot.offset + bytes - 1) / self.grain;
        self.traces[spot.allocation].note(races, first..=last, user, how).map_err(|(n, what)| {
            let at = self.allocations[spot.allocation].start + (n * self.grain) as u64;
            format!("{what}: {at:#x} of global memory")
        })
    }

    /// Addresses that were read, and those that were written, in whole cells: sorted, apart from each other. Atomics do both.
    pub(super) fn touched(&self) -> [Vec<Range<u64>>; 2] {
        let mut all = [Vec::new(), Vec::new()];
        for (allocation, trace) in self.allocations.iter().zip(&self.traces) {
            for n in trace.pages().flat_map(|n| n * PAGE..(n + 1) * PAGE) {
                let start = (n * self.grain) as u64;
                let end = (start + self.grain as u64).min(allocation.bytes);
                let range = allocation.start + start..allocation.start + end;
                for (list, used) in all.iter_mut().zip(trace.touched(n)) {
                    if used {
                        extend(list, range.clone());
                    }
                }
            }
        }
        all
    }

    /// Bytes of an initialised variable of the module, if the address lies in one.
    pub(super) fn data(&self, at: u64, bytes: usize) -> Option<Result<&[u8], String>> {
        if at < DATA_START {
            return None;
        }
        let found = self.data.iter().rfind(|d| d.start <= at)?;
        let offset = (at - found.start) as usize;
        if offset > found.bytes.len() + 4096 {
            return None;
        }
        let outside = || {
            let (name, size) = (&found.name, found.bytes.len());
            format!("out of bounds: {bytes} bytes at offset {offset} of the {size} bytes of {name}")
        };
        Some(found.bytes.get(offset..offset + bytes).ok_or_else(outside))
    }
}

/// Adds a range behind all others.
fn extend(list: &mut Vec<Range<u64>>, range: Range<u64>) {
    match list.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => list.push(range),
    }
}
