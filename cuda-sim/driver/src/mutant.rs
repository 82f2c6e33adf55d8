//! One call of the host program changed on purpose, so that tests can show that the simulator notices: a wait that was forgotten, a collective on
//! another stream, a count that differs from the other ranks'.
//!
//! `PCC_SIM_MUTANT=KIND:DEVICE:N` changes the Nth (from 0) call of its kind on a device.

use crate::abi;
use crate::state::{NON_BLOCKING, Turn};

/// What is done to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cuStreamWaitEvent` does nothing.
    SkipWait,
    /// `cuEventRecord` does nothing.
    SkipRecord,
    /// A copy between places of a device does nothing.
    SkipCopy,
    /// A memory set does nothing.
    SkipZero,
    /// A kernel is not launched.
    SkipLaunch,
    /// A matrix product of a library is left out.
    SkipProduct,
    /// An operation of a communicator is left out.
    SkipCollective,
    /// A rank never comes to a communicator that it joins.
    SkipJoin,
    /// It has an element less.
    Count,
    /// It is of another type of the same size.
    DType,
    /// It is another operation, of the same form.
    Operation,
    /// It is in a stream of its own.
    OtherStream,
}

const KINDS: [(&str, Kind); 12] = [
    ("skip-wait", Kind::SkipWait),
    ("skip-record", Kind::SkipRecord),
    ("skip-copy", Kind::SkipCopy),
    ("skip-zero", Kind::SkipZero),
    ("skip-launch", Kind::SkipLaunch),
    ("skip-product", Kind::SkipProduct),
    ("skip-collective", Kind::SkipCollective),
    ("skip-join", Kind::SkipJoin),
    ("count", Kind::Count),
    ("dtype", Kind::DType),
    ("operation", Kind::Operation),
    ("other-stream", Kind::OtherStream),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    kind: Kind,
    device: u32,
    /// Calls of the kind that come before it.
    left: u64,
    done: bool,
}

impl Mutant {
    /// What the variable says; `None` for what it cannot mean.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':');
        let name = parts.next()?;
        let kind = KINDS.iter().find(|(known, _)| *known == name)?.1;
        let (device, left) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Self { kind, device, left, done: false })
    }

    /// Counts a call; whether it is the one.
    fn meets(&mut self, kind: Kind, device: u32) -> bool {
        if self.done || self.kind != kind || self.device != device {
            return false;
        }
        self.done = self.left == 0;
        self.left = self.left.saturating_sub(1);
        self.done
    }
}

impl Turn {
    /// Whether a call in a stream is the one to be changed so.
    pub fn is_mutant(&mut self, kind: Kind, stream: u64) -> bool {
        if self.config.mutant.is_none() {
            return false;
        }
        let context = self.streams.get(stream).map(|s| s.context);
        let device = context.and_then(|c| self.contexts.get(c).map(|c| c.device));
        let Ok(device) = device else { return false };
        self.config.mutant.as_mut().is_some_and(|m| m.meets(kind, device))
    }

    /// Whether joining a communicator on a device is the call to be left out.
    pub fn is_mutant_join(&mut self, device: u32) -> bool {
        self.config.mutant.as_mut().is_some_and(|m| m.meets(Kind::SkipJoin, device))
    }

    /// An operation as it is to be put into its stream; `None` if it is left out.
    pub fn mutated(&mut self, op: abi::Op) -> Option<abi::Op> {
        if self.config.mutant.is_none() {
            return Some(op);
        }
        if self.is_mutant(Kind::SkipCollective, op.stream) {
            return None;
        }
        let mut changed = op;
        if self.is_mutant(Kind::Count, op.stream) {
            changed.count = changed.count.saturating_sub(1);
        }
        if self.is_mutant(Kind::DType, op.stream) {
            // f32 and i32, bf16 and f16, bytes of either sign.
            changed.dtype = match op.dtype {
                7 => 2,
                2 => 7,
                9 => 6,
                6 => 9,
                other => other ^ 1,
            };
        }
        if self.is_mutant(Kind::Operation, op.stream) {
            changed.kind = match op.kind {
                abi::KIND_ALL_REDUCE => abi::KIND_BROADCAST,
                abi::KIND_ALL_GATHER => abi::KIND_REDUCE_SCATTER,
                abi::KIND_SEND => abi::KIND_RECV,
                abi::KIND_RECV => abi::KIND_SEND,
                _ => abi::KIND_ALL_GATHER,
            };
        }
        if self.is_mutant(Kind::OtherStream, op.stream)
            && let Ok(context) = self.streams.get(op.stream).map(|s| s.context)
        {
            changed.stream = self.new_stream(context, NON_BLOCKING, 0);
        }
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nth_call_of_its_kind_and_device_is_met() {
        let mut mutant = Mutant::parse("skip-wait:2:1").unwrap();
        let mut met = |kind, device| mutant.meets(kind, device);
        assert!(!met(Kind::SkipWait, 2) && !met(Kind::SkipRecord, 2) && !met(Kind::SkipWait, 0));
        assert!(met(Kind::SkipWait, 2) && !met(Kind::SkipWait, 2));
        assert!(
            ["", "skip-wait", "skip-wait:0", "skip-wait:0:0:0", "other:0:0", "count:x:0"]
                .iter()
                .all(|text| Mutant::parse(text).is_none())
        );
    }
}
