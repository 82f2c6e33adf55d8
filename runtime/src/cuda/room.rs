//! Memory of a rank beside the planned buffers: scratch of collectives, messages on their way.

use super::plan::Plan;
use crate::memory::ALIGN;
use pcc_ir::program::Step;
use std::collections::HashMap;

/// Messages of one kind that may be on their way: the sender runs ahead by as many micro-batches.
pub(super) const MESSAGES: u64 = 2;

/// A message of an entry, from one stage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) entry: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) tag: u32,
}

/// Offsets in a rank's second buffer.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) scratch: [u64; 2],
    /// Contributions to a local collective.
    pub(super) gather: u64,
    /// Buffers of messages that the stage sends or receives: where, and how far apart.
    messages: HashMap<Message, (u64, u64)>,
    pub(super) bytes: u64,
}

impl Room {
    /// For the ranks of a stage.
    pub(super) fn new(plan: &Plan, stage: usize, local: bool) -> Self {
        let mut room = Room::default();
        let mut take = |bytes: u64| {
            let at = room.bytes;
            room.bytes = room.bytes.saturating_add(bytes.next_multiple_of(ALIGN));
            at
        };
        let scratch = [take(plan.scratch), take(plan.scratch)];
        let gather = take(if local { plan.gather } else { 0 });
        let mut messages = HashMap::new();
        for (entry, program) in plan.program.entries.iter().enumerate() {
            let steps = program.stages.get(stage).map_or(&[][..], |s| &s.steps);
            for step in steps {
                let (message, bytes) = match *step {
                    Step::Call { .. } => continue,
                    Step::Send { to, tag, bytes, .. } => {
                        (Message { entry, from: stage, to: to as usize, tag }, bytes)
                    }
                    Step::Recv { from, tag, bytes, .. } => {
                        (Message { entry, from: from as usize, to: stage, tag }, bytes)
                    }
                };
                let stride = bytes.next_multiple_of(ALIGN);
                messages.insert(message, (take(stride.saturating_mul(MESSAGES)), stride));
            }
        }
        Room { scratch, gather, messages, ..room }
    }

    /// Offset of the buffer of the `count`th message.
    pub(super) fn message(&self, message: &Message, count: u64) -> u64 {
        self.messages.get(message).map_or(0, |&(at, stride)| at + count % MESSAGES * stride)
    }
}
