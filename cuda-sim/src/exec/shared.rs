//! Shared memory of a block.

use super::bytes::Bytes;
use super::race::{Access, Races, Thread};
use crate::ptx::code::{Code, Region};

/// What a block shares: bytes, which of them were written, and who used them when.
pub(super) struct Shared {
    regions: Vec<Region>,
    bytes: Bytes,
    pub(super) races: Races,
}

impl Shared {
    pub(super) fn new(code: &Code, dynamic: u32, warps: usize) -> Self {
        let mut regions = code.shared.clone();
        if code.uses_dynamic {
            let name = "dynamic shared memory".to_owned();
            regions.push(Region { name, start: code.dynamic, bytes: dynamic.into() });
        }
        let end = regions.iter().map(|r| r.start + r.bytes).max().unwrap_or(0) as usize;
        Self { regions, bytes: Bytes::new(end), races: Races::new(end, code.shared_grain.into(), warps) }
    }

    /// Nothing is written yet, and a new block uses it.
    pub(super) fn reset(&mut self) {
        self.bytes.reset();
        self.races.reset();
    }

    /// Whether all bytes lie in one variable.
    pub(super) fn check(&self, at: u64, bytes: usize) -> Result<usize, String> {
        let inside = |r: &&Region| at >= r.start && at + bytes as u64 <= r.start + r.bytes;
        if self.regions.iter().any(|r| inside(&r)) {
            return Ok(at as usize);
        }
        let near = self.regions.iter().rfind(|r| at >= r.start);
        Err(match near {
            Some(r) => format!(
                "out of bounds: {bytes} bytes at offset {} of the {} bytes of {} in shared memory",
                at - r.start,
                r.bytes,
                r.name
            ),
            None => format!("out of bounds: {bytes} bytes at {at:#x} of shared memory, where nothing lies"),
        })
    }

    /// Reads up to 8 bytes that were checked, and which of them are poison.
    #[inline]
    pub(super) fn peek(&self, at: usize, bytes: usize) -> (u64, u8) {
        self.bytes.peek(at, bytes)
    }

    /// Writes up to 8 bytes that were checked.
    #[inline]
    pub(super) fn poke(&mut self, at: usize, bytes: usize, value: u64, poison: u8) {
        self.bytes.poke(at, bytes, value, poison);
    }

    /// Checks an access of several values and notes it.
    pub(super) fn access(
        &mut self,
        by: Thread,
        at: u64,
        bytes: usize,
        access: Access,
    ) -> Result<usize, String> {
        let at = self.check(at, bytes)?;
        self.races.access(by, at, bytes, access)?;
        Ok(at)
    }
}
