//! Global memory as a kernel sees it: bounds, and races between blocks.

use crate::memory::{Allocation, Memory};
use crate::ptx::code::{Code, DATA_START, Data};
use std::sync::Arc;

/// Cells of a page of traces.
const PAGE: usize = 1024;
/// Flag of a cell that was written by atomics, or read by `ld.global.nc`.
const FLAG: u32 = 1 << 31;
/// Several blocks.
const MANY: u32 = FLAG - 1;

/// Who used some bytes in this launch: 0 nobody, else the block's number plus one.
#[derive(Clone, Copy, Default)]
struct Cell {
    writer: u32,
    reader: u32,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    /// By `ld.global.nc`: no thread may write there during the launch.
    ReadConstant,
    Write,
    Atomic,
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
    /// By allocation and page.
    traces: Vec<Vec<Option<Box<[Cell; PAGE]>>>>,
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
        let traces = allocations.iter().map(|_| Vec::new()).collect();
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

    /// Notes an access by a block. The error says with which other it collides.
    #[inline]
    pub(super) fn note(&mut self, spot: Spot, bytes: usize, block: u32, how: Use) -> Result<(), String> {
        let me = block + 1;
        let first = spot.offset / self.grain;
        let last = (spot.offset + bytes - 1) / self.grain;
        let pages = &mut self.traces[spot.allocation];
        if pages.len() <= last / PAGE {
            pages.resize_with(last / PAGE + 1, || None);
        }
        for n in first..=last {
            let page = pages[n / PAGE].get_or_insert_with(|| Box::new([Cell::default(); PAGE]));
            let cell = &mut page[n % PAGE];
            if let Some(what) = cell.collision(me, how) {
                let at = self.allocations[spot.allocation].start + (n * self.grain) as u64;
                return Err(format!("{what}: {at:#x} of global memory"));
            }
            cell.note(me, how);
        }
        Ok(())
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

impl Cell {
    fn collision(self, me: u32, how: Use) -> Option<String> {
        let (writer, atomic) = (self.writer & !FLAG, self.writer & FLAG != 0);
        let block = |n: u32| if n == MANY { "several blocks".to_owned() } else { format!("block {}", n - 1) };
        if how == Use::ReadConstant && writer != 0 {
            return Some(format!("ld.global.nc of what {} wrote in this launch", block(writer)));
        }
        if writer != 0 && writer != me && !(atomic && how == Use::Atomic) {
            let verb = if matches!(how, Use::Read | Use::ReadConstant) { "reads" } else { "writes" };
            return Some(format!(
                "race between blocks: it {verb} what {} wrote in this launch",
                block(writer)
            ));
        }
        let (reader, constant) = (self.reader & !FLAG, self.reader & FLAG != 0);
        let writes = matches!(how, Use::Write | Use::Atomic);
        if writes && constant {
            return Some(format!("it writes what {} read by ld.global.nc in this launch", block(reader)));
        }
        if writes && reader != 0 && reader != me {
            return Some(format!(
                "race between blocks: it writes what {} read in this launch",
                block(reader)
            ));
        }
        None
    }

    fn note(&mut self, me: u32, how: Use) {
        let join = |old: u32, new: u32| if old == 0 || old == new { new } else { MANY };
        match how {
            Use::Read => self.reader = join(self.reader & !FLAG, me) | self.reader & FLAG,
            Use::ReadConstant => self.reader = join(self.reader & !FLAG, me) | FLAG,
            Use::Write => self.writer = me,
            Use::Atomic => self.writer = join(self.writer & !FLAG, me) | FLAG,
        }
    }
}
