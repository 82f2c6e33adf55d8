//! Loads, stores and atomics of a warp.

use super::Trap;
use super::block::Shares;
use super::global::Use;
use super::race::{Access, Thread};
use super::registers::lanes;
use super::warp::Warp;
use crate::ptx::code::{
    Address, DATA_START, LOCAL_WINDOW, Op, SHARED_WINDOW, Slot, Space, WINDOW, low, whole,
};

/// Extends a loaded value of `bytes` to a register of `width` bytes.
fn extended(value: u64, poison: u8, bytes: u8, signed: bool, width: u8) -> (u64, u8) {
    if !signed || width <= bytes {
        return (value, poison);
    }
    let shift = 64 - 8 * u32::from(bytes);
    let value = ((value << shift) as i64 >> shift) as u64;
    (low(value, width), if poison == 0 { 0 } else { whole(width) })
}

/// The space of a generic address, and the address there.
fn resolve(space: Space, at: u64) -> (Space, u64) {
    match space {
        Space::Generic if at & !(WINDOW - 1) == SHARED_WINDOW => (Space::Shared, at - SHARED_WINDOW),
        Space::Generic if at & !(WINDOW - 1) == LOCAL_WINDOW => (Space::Local, at - LOCAL_WINDOW),
        Space::Generic => (Space::Global, at),
        // 32 bits count.
        Space::Shared | Space::Local => (space, low(at, 4)),
        _ => (space, at),
    }
}

impl Warp {
    pub(super) fn param(
        &mut self,
        params: &[u8],
        d: &[(Option<Slot>, u8)],
        offset: u64,
        bytes: u8,
        signed: bool,
        active: u32,
    ) {
        for (n, &(slot, width)) in d.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let at = offset as usize + n * usize::from(bytes);
            let mut value = [0; 8];
            value[..usize::from(bytes)].copy_from_slice(&params[at..at + usize::from(bytes)]);
            let (value, _) = extended(u64::from_le_bytes(value), 0, bytes, signed, width);
            for lane in lanes(active) {
                self.registers.set(slot, lane, value, 0);
            }
        }
    }

    /// An address that is known and aligned.
    pub(super) fn address(&self, at: Address, lane: usize, align: usize) -> Result<u64, Trap> {
        let (base, poison) = self.registers.get(at.base, lane);
        let trap = |what: String| Err(Trap { lane, what });
        if poison != 0 {
            return trap("an address that depends on an uninitialised value".into());
        }
        let at = base.wrapping_add(at.offset);
        if at % align as u64 != 0 {
            return trap(format!("misaligned: {align} bytes at {at:#x}"));
        }
        Ok(at)
    }

    pub(super) fn load(&mut self, shares: &mut Shares, op: &Op, active: u32) -> Result<(), Trap> {
        let Op::Load { space, d, at, bytes, signed, constant } = op else { return Ok(()) };
        let size = usize::from(*bytes);
        let mut parts = [(0, 0); 8];
        for lane in lanes(active) {
            let from = self.address(*at, lane, size * d.len())?;
            let fetched = self.fetch(shares, *space, from, size, &mut parts[..d.len()], *constant, lane);
            fetched.map_err(|what| Trap { lane, what })?;
            for (&(slot, width), &(value, poison)) in d.iter().zip(&parts) {
                if let Some(slot) = slot {
                    let (value, poison) = extended(value, poison, *bytes, *signed, width);
                    self.registers.set(slot, lane, value, poison);
                }
            }
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        shares: &mut Shares,
        space: Space,
        at: u64,
        size: usize,
        parts: &mut [(u64, u8)],
        constant: bool,
        lane: usize,
    ) -> Result<(), String> {
        let total = size * parts.len();
        let (space, at) = resolve(space, at);
        match space {
            Space::Shared => {
                let at = shares.shared.access(self.thread(lane), at, total, Access::Read)?;
                for (n, part) in parts.iter_mut().enumerate() {
                    *part = shares.shared.peek(at + n * size, size);
                }
            }
            Space::Local => {
                let at = self.local.check(at, total)?;
                for (n, part) in parts.iter_mut().enumerate() {
                    *part = self.local.peek(lane, at + n * size, size);
                }
            }
            _ if at >= DATA_START && shares.globals.data(at, total).is_some() => {
                let bytes = shares.globals.data(at, total).unwrap_or_else(|| Err(String::new()))?;
                for (part, bytes) in parts.iter_mut().zip(bytes.chunks(size)) {
                    let mut value = [0; 8];
                    value[..size].copy_from_slice(bytes);
                    *part = (u64::from_le_bytes(value), 0);
                }
            }
            Space::Data => return Err(format!("out of bounds: {total} bytes at {at:#x} of constant memory")),
            _ => {
                let spot = shares.globals.find(at, total)?;
                let how = if constant { Use::ReadConstant } else { Use::Read };
                shares.note(spot, total, self.thread(lane), how)?;
                for (n, part) in parts.iter_mut().enumerate() {
                    *part = shares.globals.peek(spot, n * size, size);
                }
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, shares: &mut Shares, op: &Op, active: u32) -> Result<(), Trap> {
        let Op::Store { space, s, at, bytes } = op else { return Ok(()) };
        let size = usize::from(*bytes);
        for lane in lanes(active) {
            let to = self.address(*at, lane, size * s.len())?;
            let mut parts = [(0, 0); 8];
            for (part, &slot) in parts.iter_mut().zip(s) {
                let (value, poison) = self.registers.get(slot, lane);
                *part = (low(value, *bytes), poison & whole(*bytes));
            }
            self.keep(shares, *space, to, size, &parts[..s.len()], lane)
                .map_err(|what| Trap { lane, what })?;
        }
        Ok(())
    }

    fn keep(
        &mut self,
        shares: &mut Shares,
        space: Space,
        at: u64,
        size: usize,
        parts: &[(u64, u8)],
        lane: usize,
    ) -> Result<(), String> {
        let total = size * parts.len();
        let (space, at) = resolve(space, at);
        match space {
            Space::Shared => {
                let at = shares.shared.access(self.thread(lane), at, total, Access::Write)?;
                for (n, &(value, poison)) in parts.iter().enumerate() {
                    shares.shared.poke(at + n * size, size, value, poison);
                }
            }
            Space::Local => {
                let at = self.local.check(at, total)?;
                for (n, &(value, poison)) in parts.iter().enumerate() {
                    self.local.poke(lane, at + n * size, size, value, poison);
                }
            }
            _ => {
                let spot = shares.globals.find(at, total)?;
                shares.note(spot, total, self.thread(lane), Use::Write)?;
                for (n, &(value, poison)) in parts.iter().enumerate() {
                    shares.globals.poke(spot, n * size, size, value, poison);
                }
            }
        }
        Ok(())
    }

    pub(super) fn atomic(&mut self, shares: &mut Shares, op: &Op, active: u32) -> Result<(), Trap> {
        let Op::Atomic { space, d, at, a, b, bytes, f } = op else { return Ok(()) };
        let size = usize::from(*bytes);
        for lane in lanes(active) {
            let to = self.address(*at, lane, size)?;
            let ((a, p), (b, q)) = (self.registers.get(*a, lane), self.registers.get(*b, lane));
            let change = |old: u64| low(f(old, a, b), *bytes);
            let (space, to) = resolve(*space, to);
            let thread = self.thread(lane);
            let mut update = || match space {
                Space::Shared => {
                    let at = shares.shared.access(thread, to, size, Access::Atomic)?;
                    let (old, bad) = shares.shared.peek(at, size);
                    let poison = if bad | p | q == 0 { 0 } else { 0xff };
                    shares.shared.poke(at, size, change(old), poison);
                    Ok((old, bad))
                }
                Space::Local => Err("an atomic on local memory".to_owned()),
                _ => {
                    let spot = shares.globals.find(to, size)?;
                    shares.note(spot, size, thread, Use::Atomic)?;
                    Ok(shares.globals.update(spot, size, p | q, change))
                }
            };
            let (old, bad) = update().map_err(|what| Trap { lane, what })?;
            if let Some(d) = *d {
                self.registers.set(d, lane, old, bad);
            }
        }
        Ok(())
    }

    pub(super) fn thread(&self, lane: usize) -> Thread {
        Thread { warp: self.index, lane }
    }
}
