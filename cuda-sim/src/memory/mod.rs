//! Global memory of all simulated devices, in one address space.

mod reduce;
mod storage;

pub use reduce::{Element, Reduction};
pub(crate) use storage::Storage;

use crate::Fault;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Where the first allocation lies: far from null and from what fits 32 bits, as on a GPU.
const START: u64 = 0x7000_0000_0000;
/// Where no allocation can lie any more.
const END: u64 = 0x7fff_0000_0000;
/// What allocations are aligned to.
const ALIGN: u64 = 256;
/// Bytes that lie free behind each allocation at least.
const GUARD: u64 = 4096;
/// Freed ranges that are remembered, to tell a use after free from a wild address.
const REMEMBERED: usize = 1 << 16;

/// Allocations of all devices. Addresses are never used twice, so that a stale one is always found.
#[derive(Default)]
pub struct Memory {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    /// By first address.
    live: BTreeMap<u64, Arc<Allocation>>,
    /// First address of freed ranges: bytes and device.
    freed: BTreeMap<u64, (u64, u32)>,
    /// Bytes of the address space handed out so far.
    used: u64,
}

/// One allocation.
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) device: u32,
    pub(crate) storage: Storage,
}

impl Allocation {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A range that lies in one allocation.
struct Place {
    allocation: Arc<Allocation>,
    offset: usize,
    len: usize,
}

impl Memory {
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory on a device, at a multiple of 256. Nothing in it is written yet.
    ///
    /// # Errors
    /// No bytes are asked for, or the address space or the host's memory is used up.
    pub fn alloc(&self, device: u32, bytes: u64) -> Result<u64, Fault> {
        if bytes == 0 {
            return Err(Fault::new("allocation of no bytes"));
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let start = START + table.used;
        let whole = bytes.checked_add(GUARD + ALIGN - 1).map(|b| b / ALIGN * ALIGN);
        let room = END - start;
        let whole = whole.filter(|&w| w < room && usize::try_from(w).is_ok()).ok_or_else(|| {
            Fault::new(format!("allocation of {bytes} bytes: the address space is used up"))
        })?;
        table.used += whole;
        let allocation = Allocation { start, bytes, device, storage: Storage::new(bytes) };
        table.live.insert(start, Arc::new(allocation));
        Ok(start)
    }

    /// Gives memory back. Its addresses stay invalid for good.
    ///
    /// # Errors
    /// `addr` is not what [`Memory::alloc`] answered, or was freed already.
    pub fn free(&self, addr: u64) -> Result<(), Fault> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = table.live.remove(&addr) else {
            let why = if table.freed.contains_key(&addr) { "was freed already" } else { "is no allocation" };
            return Err(Fault::new(format!("free of {addr:#x}, which {why}")));
        };
        table.freed.insert(addr, (old.bytes, old.device));
        if table.freed.len() > REMEMBERED {
            table.freed.pop_first();
        }
        Ok(())
    }

    /// The device of an address; none where nothing is allocated.
    pub fn device_of(&self, addr: u64) -> Option<u32> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = table.live.range(..=addr).next_back()?;
        (addr < found.end()).then_some(found.device)
    }

    /// First address and bytes of the allocation that an address lies in.
    pub fn range_of(&self, addr: u64) -> Option<(u64, u64)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = table.live.range(..=addr).next_back()?;
        (addr < found.end()).then_some((found.start, found.bytes))
    }

    /// Bytes that are allocated on a device.
    pub fn used(&self, device: u32) -> u64 {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.live.values().filter(|a| a.device == device).map(|a| a.bytes).sum()
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// The range does not lie in one allocation.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let place = self.place("write", addr, bytes.len() as u64)?;
        place.allocation.storage.write(place.offset, bytes);
        Ok(())
    }

    /// Copies to the host.
    ///
    /// # Errors
    /// The range does not lie in one allocation, or has bytes that were never written.
    pub fn read(&self, addr: u64, len: u64) -> Result<Vec<u8>, Fault> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let place = self.place("read", addr, len)?;
        let mut out = vec![0; place.len];
        place.allocation.storage.read(place.offset, &mut out).map_err(|offset| {
            let Allocation { start, bytes, device, .. } = *place.allocation;
            Fault::new(format!(
                "read of byte {:#x}, which was never written: offset {offset} of the {bytes} bytes at {start:#x} of device {device}",
                start + offset as u64
            ))
        })?;
        Ok(out)
    }

    /// Copies within and between devices. Bytes that were never written stay so.
    ///
    /// # Errors
    /// A range does not lie in one allocation, or they overlap.
    pub fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        let to = self.place("copy to", dst, len)?;
        let from = self.place("copy from", src, len)?;
        if dst.abs_diff(src) < len && dst != src {
            return Err(Fault::new(format!("copy of {len} bytes from {src:#x} to {dst:#x}, which overlap")));
        }
        to.allocation.storage.copy_from(to.offset, &from.allocation.storage, from.offset, to.len);
        Ok(())
    }

    /// Sets all bytes of a range.
    ///
    /// # Errors
    /// The range does not lie in one allocation.
    pub fn set(&self, addr: u64, byte: u8, len: u64) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        let place = self.place("set", addr, len)?;
        place.allocation.storage.fill(place.offset, place.len, byte, false);
        Ok(())
    }

    /// Makes bytes count as never written: what an operation that did not finish leaves.
    ///
    /// # Errors
    /// The range does not lie in one allocation.
    pub fn poison(&self, addr: u64, len: u64) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        let place = self.place("write", addr, len)?;
        place.allocation.storage.fill(place.offset, place.len, 0xa5, true);
        Ok(())
    }

    /// Every allocation there is, in order of addresses.
    pub(crate) fn snapshot(&self) -> Vec<Arc<Allocation>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.live.values().cloned().collect()
    }

    fn place(&self, what: &str, addr: u64, len: u64) -> Result<Place, Fault> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let found = table.live.range(..=addr).next_back().map(|(_, a)| a);
        let inside = found.filter(|a| addr < a.end() && len <= a.end() - addr);
        match inside {
            Some(a) => {
                Ok(Place { allocation: a.clone(), offset: (addr - a.start) as usize, len: len as usize })
            }
            None => Err(table.wild(what, addr, len)),
        }
    }

    /// Why no allocation has a range.
    pub(crate) fn wild(&self, what: &str, addr: u64, len: u64) -> Fault {
        self.table.read().unwrap_or_else(PoisonError::into_inner).wild(what, addr, len)
    }
}

impl Table {
    fn wild(&self, what: &str, addr: u64, len: u64) -> Fault {
        let near = self.live.range(..=addr).next_back().map(|(_, a)| (a.start, a.bytes, a.device, ""));
        let freed = self.freed.range(..=addr).next_back();
        let freed = freed.map(|(&start, &(bytes, device))| (start, bytes, device, ", which was freed"));
        let freed = freed.filter(|&(start, bytes, ..)| addr - start < bytes);
        let range = format!("{what} of {len} bytes at {addr:#x}");
        match freed.or(near) {
            Some((start, bytes, device, note)) if addr - start < bytes + GUARD => {
                let offset = addr - start;
                Fault::new(format!(
                    "{range}: offset {offset} of the {bytes} bytes at {start:#x} of device {device}{note}"
                ))
            }
            _ => Fault::new(format!("{range}, where nothing is allocated")),
        }
    }
}

#[cfg(test)]
mod tests;
