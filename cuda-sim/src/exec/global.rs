//! Global memory as a kernel sees it: bounds, races between blocks, and within a block reads and writes of what another thread wrote.

use super::race::{Races, Thread};
use crate::memory::{Allocation, Memory};
use crate::ptx::code::{Code, DATA_START, Data};
use std::ops::Range;
use std::sync::Arc;

/// Cells of a page of traces.
const PAGE: usize = 1024;
/// Flag of a cell that was written by atomics, or read by `ld.global.nc`.
const FLAG: u32 = 1 << 31;
/// Several blocks.
const MANY: u32 = FLAG - 1;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    /// By `ld.global.nc`: no thread may write there during the launch.
    ReadConstant,
    Write,
    Atomic,
}

/// Who accesses: the block's number, and a thread of it.
#[derive(Clone, Copy)]
pub(super) struct User {
    pub(super) block: u32,
    pub(super) thread: Thread,
}

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

/// Who used an allocation, by page. A cell is as large as the kernel's smallest write, so that a write covers whole cells.
#[derive(Default)]
struct Trace {
    writers: Vec<Option<Box<[Writer; PAGE]>>>,
    /// 0 for nobody, else the block's number plus one.
    readers: Vec<Option<Box<[u32; PAGE]>>>,
}

#[derive(Clone, Copy, Default)]
struct Writer {
    /// 0 for nobody, else the block's number plus one.
    block: u32,
    /// When, on the clock of the thread's warp.
    time: u32,
    thread: u16,
}

/// Bytes in an allocation.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    allocation: usize,
    offset: usize,
}

/// The page of a cell, made if there is none.
fn page<T: Copy + Default>(pages: &mut Vec<Option<Box<[T; PAGE]>>>, cell: usize) -> &mut T {
    if pages.len() <= cell / PAGE {
        pages.resize_with(cell / PAGE + 1, || None);
    }
    &mut pages[cell / PAGE].get_or_insert_with(|| Box::new([T::default(); PAGE]))[cell % PAGE]
}

fn cell<T: Copy + Default>(pages: &[Option<Box<[T; PAGE]>>], cell: usize) -> T {
    pages.get(cell / PAGE).and_then(Option::as_ref).map_or(T::default(), |page| page[cell % PAGE])
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
        let me = user.block + 1;
        let first = spot.offset / self.grain;
        let last = (spot.offset + bytes - 1) / self.grain;
        let trace = &mut self.traces[spot.allocation];
        for n in first..=last {
            let (writer, reader) = (cell(&trace.writers, n), cell(&trace.readers, n));
            let what = writer.collision(races, user, how).or_else(|| met_reader(reader, me, how));
            if let Some(what) = what {
                let at = self.allocations[spot.allocation].start + (n * self.grain) as u64;
                return Err(format!("{what}: {at:#x} of global memory"));
            }
            let join = |old: u32| if old & !FLAG == 0 || old & !FLAG == me { me } else { MANY };
            let flag = if matches!(how, Use::ReadConstant | Use::Atomic) { FLAG } else { 0 };
            if matches!(how, Use::Read | Use::ReadConstant) {
                *page(&mut trace.readers, n) = join(reader) | reader & FLAG | flag;
            } else {
                let block = if how == Use::Write { me } else { join(writer.block) | FLAG };
                let (time, thread) = (races.now(user.thread), user.thread.number());
                *page(&mut trace.writers, n) = Writer { block, time, thread };
            }
        }
        Ok(())
    }

    /// Addresses that were read, and those that were written, in whole cells: sorted, apart from each other. Atomics do both.
    pub(super) fn touched(&self) -> [Vec<Range<u64>>; 2] {
        let mut all = [Vec::new(), Vec::new()];
        for (allocation, trace) in self.allocations.iter().zip(&self.traces) {
            let pages = trace.writers.len().max(trace.readers.len());
            let used = |n: usize| {
                trace.writers.get(n).is_some_and(Option::is_some)
                    || trace.readers.get(n).is_some_and(Option::is_some)
            };
            for n in (0..pages).filter(|&n| used(n)).flat_map(|n| n * PAGE..(n + 1) * PAGE) {
                let (writer, reader) = (cell(&trace.writers, n).block, cell(&trace.readers, n));
                let start = (n * self.grain) as u64;
                let end = (start + self.grain as u64).min(allocation.bytes);
                let range = allocation.start + start..allocation.start + end;
                for (list, used) in all.iter_mut().zip([reader != 0 || writer & FLAG != 0, writer != 0]) {
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

fn name(block: u32) -> String {
    if block == MANY { "several blocks".to_owned() } else { format!("block {}", block - 1) }
}

impl Writer {
    fn collision(self, races: &Races, user: User, how: Use) -> Option<String> {
        let (block, atomic) = (self.block & !FLAG, self.block & FLAG != 0);
        if block == 0 || atomic && how == Use::Atomic {
            return None;
        }
        if how == Use::ReadConstant {
            return Some(format!("ld.global.nc of what {} wrote in this launch", name(block)));
        }
        let verb = if how == Use::Read { "reads" } else { "writes" };
        if block != user.block + 1 {
            return Some(format!("race between blocks: it {verb} what {} wrote in this launch", name(block)));
        }
        let other = Thread::of(self.thread);
        let ordered = races.ordered(user.thread, other, self.time);
        let message = || {
            format!(
                "race: it {verb} what warp {} lane {} wrote, with no barrier between",
                other.warp, other.lane
            )
        };
        (!ordered).then(message)
    }
}

/// What a write does to those who read.
fn met_reader(reader: u32, me: u32, how: Use) -> Option<String> {
    let (block, constant) = (reader & !FLAG, reader & FLAG != 0);
    if block == 0 || !matches!(how, Use::Write | Use::Atomic) {
        return None;
    }
    if constant {
        return Some(format!("it writes what {} read by ld.global.nc in this launch", name(block)));
    }
    (block != me).then(|| format!("race between blocks: it writes what {} read in this launch", name(block)))
}
