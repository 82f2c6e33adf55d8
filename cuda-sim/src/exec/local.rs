//! Local memory of the threads of a warp.

use super::bytes::Bytes;
use crate::ptx::code::{Code, LANES, LOCAL_START, Region};

pub(super) struct Local {
    regions: Vec<Region>,
    /// Bytes of one lane.
    size: usize,
    bytes: Bytes,
}

impl Local {
    pub(super) fn new(code: &Code) -> Self {
        let size = code.local.iter().map(|r| r.start + r.bytes).max().unwrap_or(0) as usize;
        Self { regions: code.local.clone(), size, bytes: Bytes::new(size * LANES) }
    }

    /// Nothing is written yet.
    pub(super) fn reset(&mut self) {
        self.bytes.reset();
    }

    /// Whether all bytes lie in one variable.
    pub(super) fn check(&self, at: u64, bytes: usize) -> Result<usize, String> {
        let inside = |r: &Region| at >= r.start && at + bytes as u64 <= r.start + r.bytes;
        if self.regions.iter().any(inside) {
            return Ok(at as usize);
        }
        let offset = at.wrapping_sub(LOCAL_START) as i64;
        Err(format!("out of bounds: {bytes} bytes at offset {offset} of local memory"))
    }

    pub(super) fn peek(&self, lane: usize, at: usize, bytes: usize) -> (u64, u8) {
        self.bytes.peek(lane * self.size + at, bytes)
    }

    pub(super) fn poke(&mut self, lane: usize, at: usize, bytes: usize, value: u64, poison: u8) {
        self.bytes.poke(lane * self.size + at, bytes, value, poison);
    }
}
