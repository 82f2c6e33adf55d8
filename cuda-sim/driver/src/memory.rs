//! Memory of devices and page-locked memory of the host: who has it.

use crate::code::Code;
use crate::host;
use crate::state::{Allocation, Sim, Space, Turn};
use crate::work::Work;

/// What allocations are rounded up to when they are counted, as by drivers in fact.
const GRAIN: u64 = 512;

impl Sim {
    /// Bytes of a device that are in use.
    pub fn used(&self, device: u32) -> u64 {
        let mine = self.allocations.values().filter(|a| a.device == device);
        mine.map(|a| a.bytes.next_multiple_of(GRAIN)).sum()
    }

    /// Memory of a context's device.
    fn take_memory(&mut self, context: u64, bytes: u64) -> Result<u64, Code> {
        let device = self.sound_context(context)?.device;
        let (used, all) = (self.used(device), self.config.memory);
        let whole = bytes.checked_next_multiple_of(GRAIN).filter(|&w| w <= all.saturating_sub(used));
        if whole.is_none() {
            let why = format!("device {device} has {all} bytes, {used} in use; {bytes} more were asked for");
            return Err(self.refuse(Code::OUT_OF_MEMORY, why));
        }
        let addr =
            self.memory.alloc(device, bytes).map_err(|f| self.refuse(Code::OUT_OF_MEMORY, f.to_string()))?;
        self.allocations.insert(addr, Allocation { context, device, bytes });
        Ok(addr)
    }

    /// Gives memory back.
    pub fn free_now(&mut self, addr: u64) -> Result<(), String> {
        self.memory.free(addr).map_err(|fault| fault.to_string())?;
        if let Some(Allocation { bytes, .. }) = self.allocations.remove(&addr) {
            self.histories.entry(Space::Devices).or_default().forget(addr..addr + bytes);
        }
        Ok(())
    }

    /// Gives all memory of a context back.
    pub fn free_all(&mut self, context: u64) {
        let mine: Vec<u64> =
            self.allocations.iter().filter(|(_, a)| a.context == context).map(|(&addr, _)| addr).collect();
        for addr in mine {
            // The table and the memory have the same allocations.
            let _ = self.free_now(addr);
        }
    }

    /// The pinned memory that a host address lies in: its first address and bytes.
    pub fn pinned_at(&self, addr: u64) -> Option<(u64, u64)> {
        let (&start, &(bytes, _)) = self.pinned.range(..=addr).next_back()?;
        (addr - start < bytes).then_some((start, bytes))
    }

    /// Refuses a range of device memory that is in no allocation.
    pub fn check_range(&mut self, what: &str, addr: u64, len: u64) -> Result<(), Code> {
        let found = self.memory.range_of(addr);
        if len == 0 || found.is_some_and(|(start, bytes)| len <= start + bytes - addr) {
            return Ok(());
        }
        let why = match found {
            Some((start, bytes)) => format!("is offset {} of the {bytes} bytes at {start:#x}", addr - start),
            None => "is in no allocation".to_owned(),
        };
        Err(self.refuse(Code::INVALID_VALUE, format!("{what} of {len} bytes at {addr:#x}, which {why}")))
    }
}

impl Turn {
    /// Memory at once. Where there is too little, frees that wait in streams are run first.
    pub fn alloc(&mut self, context: u64, bytes: u64) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(self.refuse(Code::INVALID_VALUE, "allocation of no bytes"));
        }
        let device = self.sound_context(context)?.device;
        if self.config.memory - self.used(device).min(self.config.memory) < bytes {
            let frees = self.pending.iter().filter(|(_, n)| matches!(n.work, Work::Free { .. }));
            let frees: Vec<_> = frees.map(|(_, node)| node.ticket.clone()).collect();
            for ticket in frees {
                self.wait_for(&ticket, "waits for memory to be freed");
            }
        }
        self.take_memory(context, bytes)
    }

    /// `cuMemFree`: waits for all work of the context.
    pub fn free(&mut self, context: u64, addr: u64) -> Result<(), Code> {
        let tails: Vec<_> =
            self.streams.iter().filter(|(_, s)| s.context == context).map(|(_, s)| s.tail.clone()).collect();
        for tail in tails {
            self.wait_for(&tail, "waits for all work of a context, to free memory");
        }
        self.free_now(addr).map_err(|why| self.refuse(Code::INVALID_VALUE, why))
    }

    /// Page-locked memory of the host.
    pub fn alloc_pinned(&mut self, bytes: u64) -> Result<u64, Code> {
        let addr = host::alloc(bytes);
        if addr == 0 {
            return Err(self.refuse(Code::OUT_OF_MEMORY, format!("{bytes} bytes of host memory")));
        }
        self.pinned.insert(addr, (bytes.max(1), true));
        Ok(addr)
    }

    /// Gives page-locked memory back (`allocated`), or makes it usual memory again. That work still uses it is an error.
    pub fn free_pinned(&mut self, addr: u64, allocated: bool) -> Result<(), Code> {
        let Some(&(bytes, here)) = self.pinned.get(&addr).filter(|(_, here)| *here == allocated) else {
            return Err(self.refuse(Code::INVALID_VALUE, format!("{addr:#x} is no such page-locked memory")));
        };
        let uses =
            |work: &Work| work.host_range().is_some_and(|(at, len)| at < addr + bytes && addr < at + len);
        let user = self.pending.iter().find(|(_, node)| uses(&node.work));
        let user = user.map(|(_, node)| (node.context, node.what.to_string()));
        if let Some((context, what)) = user {
            let why = format!("page-locked memory at {addr:#x} is freed while this still uses it: {what}");
            self.fault(context, Code::ILLEGAL_ADDRESS, &why);
            return Err(Code::ILLEGAL_ADDRESS);
        }
        self.pinned.remove(&addr);
        self.histories.entry(Space::Host).or_default().forget(addr..addr + bytes);
        if here {
            host::free(addr, bytes);
        }
        Ok(())
    }
}
