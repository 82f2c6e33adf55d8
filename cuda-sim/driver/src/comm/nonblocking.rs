//! Nonblocking communicators: a call answers `ncclInProgress`, and is done only after its caller has asked for it a number of times that the seed
//! chooses. What was to be queued is queued only then, so that whatever a program puts into the stream too early shows.

use super::{Refusal, Seat};
use crate::abi;
use crate::code::Code;
use crate::state::{Random, Turn};

/// A call in progress.
pub(super) struct Call {
    /// How often it is still said to be in progress.
    left: u64,
    does: Does,
}

enum Does {
    Join,
    Operations(Vec<abi::Op>),
    Finalize,
}

impl Call {
    pub(super) fn join(random: &mut Random) -> Self {
        Self::new(random, Does::Join)
    }

    fn new(random: &mut Random, does: Does) -> Self {
        Self { left: random.next() % 5, does }
    }
}

impl Turn {
    /// Refuses a call while another is in progress.
    pub(super) fn comm_idle(&mut self, Seat { group, rank }: Seat) -> Result<(), Refusal> {
        let of = self.comms.groups.get(&group);
        if of.and_then(|of| of.members.get(&rank)).is_none_or(|member| member.call.is_none()) {
            return Ok(());
        }
        let why = "its last call is still in progress; ncclCommGetAsyncError tells when it is done";
        self.refuse(Code::INVALID_VALUE, format!("rank {rank} of a nonblocking communicator is used: {why}"));
        Err(abi::INVALID_USAGE)
    }

    /// Keeps the operations of a group call for later, if its communicators are nonblocking; whether it did. All of them are idle.
    pub(super) fn comm_defer(&mut self, ops: &[abi::Op]) -> Result<bool, Refusal> {
        let mut seats = Vec::new();
        for op in ops {
            let seat = self.seat(op.comm)?;
            let member = self.comms.groups.get(&seat.group).and_then(|of| of.members.get(&seat.rank));
            seats.push((seat, member.is_some_and(|m| m.nonblocking)));
        }
        let nonblocking = seats.iter().any(|&(_, n)| n);
        if seats.iter().any(|&(_, n)| n != nonblocking) {
            self.refuse(Code::INVALID_VALUE, "blocking and nonblocking communicators in one group call");
            return Err(abi::INVALID_USAGE);
        }
        // Now and then it is done at once.
        if !nonblocking || self.random.one_in(4) {
            return Ok(false);
        }
        for (&op, (seat, _)) in ops.iter().zip(seats) {
            let new = Call::new(&mut self.random, Does::Operations(Vec::new()));
            let of = self.comms.groups.get_mut(&seat.group);
            let Some(member) = of.and_then(|of| of.members.get_mut(&seat.rank)) else { continue };
            if let Does::Operations(kept) = &mut member.call.get_or_insert(new).does {
                kept.push(op);
            }
        }
        Ok(true)
    }

    /// Begins to finalize a nonblocking communicator; false for one that blocks.
    pub(super) fn comm_finalize(&mut self, Seat { group, rank }: Seat) -> bool {
        let call = Call::new(&mut self.random, Does::Finalize);
        let of = self.comms.groups.get_mut(&group);
        let Some(member) = of.and_then(|of| of.members.get_mut(&rank)) else { return false };
        if member.nonblocking {
            member.call = Some(call);
        }
        member.nonblocking
    }

    /// Goes on with a rank's call. The communicator is complete and sound.
    pub(super) fn comm_call(&mut self, group: u64, rank: u32) -> Result<Refusal, Refusal> {
        let of = self.comms.groups.get_mut(&group).ok_or(abi::INVALID_ARGUMENT)?;
        let member = of.members.get_mut(&rank).ok_or(abi::INVALID_ARGUMENT)?;
        let last = member.last.clone();
        match &mut member.call {
            None => return Ok(abi::OK),
            Some(call) if call.left > 0 => {
                call.left -= 1;
                return Ok(abi::IN_PROGRESS);
            }
            Some(_) => {}
        }
        let Some(call) = member.call.take() else { return Ok(abi::OK) };
        match call.does {
            Does::Join => {}
            Does::Operations(ops) => {
                if let Err(code) = self.comm_post(&ops) {
                    return Ok(code);
                }
            }
            Does::Finalize if self.query(&last) => {
                self.leave_group(group, rank, "has finalized its communicator")
            }
            Does::Finalize => {
                let of = self.comms.groups.get_mut(&group);
                if let Some(member) = of.and_then(|of| of.members.get_mut(&rank)) {
                    member.call = Some(call);
                }
                return Ok(abi::IN_PROGRESS);
            }
        }
        Ok(abi::OK)
    }
}
