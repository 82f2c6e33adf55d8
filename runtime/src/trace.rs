//! Times of instructions, collected when asked for.

use std::time::Instant;

/// In [`Event::instr`]: the step is a send or a receive.
pub const NO_INSTR: usize = usize::MAX;

/// One instruction, or message, of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub worker: u32,
    pub device: u32,
    pub micro_batch: u32,
    /// Index into the stage's steps.
    pub step: u32,
    /// Index into the called function's instructions, or `u32::MAX` for a send or receive.
    pub instr: u32,
    /// Nanoseconds since the session was made.
    pub start: u64,
    pub end: u64,
}

/// Reads the time when tracing is on.
#[derive(Clone, Copy)]
pub(crate) struct Clock(Option<Instant>);

impl Clock {
    pub(crate) fn new(origin: Instant, on: bool) -> Self {
        Self(on.then_some(origin))
    }

    /// Nanoseconds since the origin; `None` when tracing is off.
    pub(crate) fn start(&self) -> Option<u64> {
        self.0.map(|origin| origin.elapsed().as_nanos() as u64)
    }
}
