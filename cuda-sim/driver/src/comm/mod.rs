//! Communicators: who is in them, and what their ranks have posted.
//!
//! A rank's operations start in the order in which they were posted. An operation moves data once all that take part in it have started
//! theirs; the work of a stream that it is part of ends when all its operations are done (`run.rs`).

mod deadlock;
mod nonblocking;
mod op;
mod order;
mod run;
mod submit;

pub use op::{CommWork, Kind, Op};

use crate::abi;
use crate::code::Code;
use crate::handle::Table;
use crate::state::Turn;
use crate::threads;
use crate::work::{Ticket, Work};
use std::collections::{BTreeMap, VecDeque};

/// An `ncclResult_t` that is no success.
pub type Refusal = i32;

/// All communicators.
pub struct Comms {
    /// What callers hold: a communicator and a rank in it.
    pub(super) seats: Table<Seat>,
    groups: BTreeMap<u64, Group>,
    by_id: BTreeMap<[u8; abi::ID_BYTES], u64>,
    made: u64,
    order: order::Order,
}

#[derive(Clone, Copy, Debug)]
pub struct Seat {
    group: u64,
    rank: u32,
}

/// One communicator.
struct Group {
    size: u32,
    members: BTreeMap<u32, Member>,
    /// Whether one of them is not seen by the others, and never will be.
    absent: bool,
    /// Done once all ranks are in (or never will be: then there is an error).
    complete: Ticket,
    /// By their number, what each rank has started.
    collectives: BTreeMap<u64, BTreeMap<u32, Arrived>>,
    /// What is sent and received, by (from, to), in order.
    sends: BTreeMap<(u32, u32), VecDeque<Arrived>>,
    recvs: BTreeMap<(u32, u32), VecDeque<Arrived>>,
    /// Started nodes: rank, and operations that are not done.
    open: BTreeMap<u64, (u32, usize)>,
    error: Option<(Refusal, String)>,
}

/// A rank of a communicator.
struct Member {
    context: u64,
    device: u32,
    /// The thread that used it last.
    thread: u64,
    /// Its last posted work.
    last: Ticket,
    /// Collectives started.
    started: u64,
    /// How it left.
    gone: Option<&'static str>,
    /// Whether its calls return at once.
    nonblocking: bool,
    /// Its call that is in progress.
    call: Option<nonblocking::Call>,
}

/// An operation that started.
#[derive(Clone, Debug)]
struct Arrived {
    node: u64,
    op: Op,
}

impl Comms {
    pub fn new() -> Self {
        let order = order::Order::default();
        Self { seats: Table::new(9), groups: BTreeMap::new(), by_id: BTreeMap::new(), made: 0, order }
    }

    /// An id that no other communicator has.
    pub fn new_id(&mut self) -> [u8; abi::ID_BYTES] {
        self.made += 1;
        let mut id = [0; abi::ID_BYTES];
        let text = format!("pcc cuda-sim process {} communicator {}", std::process::id(), self.made);
        id[..text.len()].copy_from_slice(text.as_bytes());
        id
    }
}

impl Turn {
    /// Takes a rank's seat with the current context; the communicator can be used once all ranks are in.
    pub fn comm_join(
        &mut self,
        id: [u8; abi::ID_BYTES],
        size: i32,
        rank: i32,
        nonblocking: bool,
    ) -> Result<u64, Refusal> {
        let thread = self.threads.here();
        let Some(context) = threads::current() else {
            self.refuse(Code::INVALID_CONTEXT, "a communicator is made without a current context");
            return Err(abi::UNHANDLED_CUDA_ERROR);
        };
        let device = self.sound_context(context).map_err(|_| abi::UNHANDLED_CUDA_ERROR)?.device;
        let (Ok(size), Ok(rank)) = (u32::try_from(size), u32::try_from(rank)) else {
            self.refuse(Code::INVALID_VALUE, format!("rank {rank} of {size} ranks"));
            return Err(abi::INVALID_ARGUMENT);
        };
        if rank >= size {
            self.refuse(Code::INVALID_VALUE, format!("rank {rank} of {size} ranks"));
            return Err(abi::INVALID_ARGUMENT);
        }
        let call = nonblocking.then(|| nonblocking::Call::join(&mut self.random));
        let absent = self.is_mutant_join(device);
        let comms = &mut self.comms;
        let group = *comms.by_id.entry(id).or_insert_with(|| {
            comms.made += 1;
            comms.groups.insert(comms.made, Group::new(size));
            comms.made
        });
        let of = comms.groups.get_mut(&group).ok_or(abi::INTERNAL_ERROR)?;
        if let Some(why) = of.refuses(size, rank, device) {
            of.error = of.error.take().or(Some((abi::INVALID_USAGE, why.clone())));
            of.complete.finish(Default::default());
            self.refuse(Code::INVALID_VALUE, why);
            self.notify();
            return Err(abi::INVALID_USAGE);
        }
        let last = Ticket::done_already();
        let member = Member { context, device, thread, last, started: 0, gone: None, nonblocking, call };
        of.members.insert(rank, member);
        of.absent |= absent;
        let complete = of.all_in();
        if complete {
            of.complete.finish(Default::default());
            comms.by_id.remove(&id);
        }
        let seat = comms.seats.insert(Seat { group, rank });
        self.progress = std::time::Instant::now();
        self.notify();
        Ok(seat)
    }

    /// Waits until all ranks are in.
    pub fn comm_wait(&mut self, seat: u64) -> Result<(), Refusal> {
        let Seat { group, rank } = self.seat(seat)?;
        let of = self.comms.groups.get(&group).ok_or(abi::INVALID_ARGUMENT)?;
        let (complete, size) = (of.complete.clone(), of.size);
        self.wait_for(&complete, &format!("waits for all {size} ranks of a communicator, as rank {rank}"));
        // Once all are in, what went wrong since is told by what follows.
        let all_in = self.comms.groups.get(&group).is_some_and(Group::all_in);
        if all_in { Ok(()) } else { self.comm_sound(group) }
    }

    /// The state of a communicator as a rank sees it: `ncclInProgress` until all ranks are in, and while a call is in progress.
    pub fn comm_error(&mut self, seat: u64) -> Result<Refusal, Refusal> {
        let Seat { group, rank } = self.seat(seat)?;
        let of = self.comms.groups.get(&group).ok_or(abi::INVALID_ARGUMENT)?;
        Ok(match &of.error {
            Some((code, why)) => {
                threads::said(why);
                *code
            }
            None if !of.complete.is_done() => abi::IN_PROGRESS,
            None => return self.comm_call(group, rank),
        })
    }

    pub fn comm_info(&mut self, seat: u64) -> Result<abi::Info, Refusal> {
        let Seat { group, rank } = self.seat(seat)?;
        let of = self.comms.groups.get(&group).ok_or(abi::INVALID_ARGUMENT)?;
        let member = of.members.get(&rank).ok_or(abi::INVALID_ARGUMENT)?;
        Ok(abi::Info { size: of.size as i32, rank: rank as i32, device: member.device as i32 })
    }

    /// A rank leaves: after its work is done, or at once.
    pub fn comm_leave(&mut self, seat: u64, how: u32) -> Result<(), Refusal> {
        let Seat { group, rank } = self.seat(seat)?;
        if how != abi::LEAVE_ABORT {
            self.comm_idle(Seat { group, rank })?;
        }
        if how == abi::LEAVE_FINALIZE && self.comm_finalize(Seat { group, rank }) {
            return Err(abi::IN_PROGRESS);
        }
        let last = self.comms.groups.get(&group).and_then(|of| of.members.get(&rank)).map(|m| m.last.clone());
        if let Some(last) = last.filter(|_| how != abi::LEAVE_ABORT) {
            self.wait_for(&last, &format!("waits for its communicator's work, to destroy it as rank {rank}"));
        }
        if how != abi::LEAVE_FINALIZE {
            // The seat may be gone: another thread was here while this one waited.
            let _ = self.comms.seats.remove(seat);
        }
        let words = ["has finalized its communicator", "has destroyed its communicator", "has aborted"];
        self.leave_group(group, rank, words[how.min(abi::LEAVE_ABORT) as usize]);
        let complete = self.comms.groups.get(&group).is_some_and(Group::all_in);
        if complete && self.comms.seats.iter().all(|(_, seat)| seat.group != group) {
            self.comms.groups.remove(&group);
            self.comms.order.forget(group);
        }
        self.notify();
        Ok(())
    }

    fn seat(&mut self, seat: u64) -> Result<Seat, Refusal> {
        let found = self.comms.seats.get(seat).copied();
        found.map_err(|code| {
            self.refuse(code, format!("{seat:#x} is no communicator, or one that was destroyed"));
            abi::INVALID_ARGUMENT
        })
    }

    /// Whether a communicator can still be used.
    fn comm_sound(&mut self, group: u64) -> Result<(), Refusal> {
        let Some(of) = self.comms.groups.get(&group) else { return Err(abi::INVALID_ARGUMENT) };
        let Some((code, why)) = of.error.clone() else { return Ok(()) };
        self.refuse(Code::LAUNCH_FAILED, why);
        Err(code)
    }

    /// What a rank's next operation is behind, besides its stream: the one before.
    pub fn behind_communication(&self, work: &Work) -> Option<Ticket> {
        let Work::Communicate(work) = work else { return None };
        Some(self.comms.groups.get(&work.group)?.members.get(&work.rank)?.last.clone())
    }

    /// Notes that a rank's work was put into a stream.
    pub fn posted(&mut self, work: &Work, ticket: &Ticket) {
        let Work::Communicate(work) = work else { return };
        let thread = self.threads.here();
        let Some(of) = self.comms.groups.get_mut(&work.group) else { return };
        let Some(member) = of.members.get_mut(&work.rank) else { return };
        member.last = ticket.clone();
        member.thread = thread;
        let (device, size, sound) = (member.device, of.size, of.error.is_none());
        if sound && let Err(why) = self.comms.order.post(device, size, work) {
            self.comm_fail(work.group, abi::INVALID_USAGE, &why);
        }
    }
}

impl Group {
    fn new(size: u32) -> Self {
        Self {
            size,
            members: BTreeMap::new(),
            absent: false,
            complete: Ticket::new(0),
            collectives: BTreeMap::new(),
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            open: BTreeMap::new(),
            error: None,
        }
    }

    /// Whether all ranks are in, and seen.
    fn all_in(&self) -> bool {
        self.members.len() as u32 == self.size && !self.absent
    }

    /// Why a rank cannot join.
    fn refuses(&self, size: u32, rank: u32, device: u32) -> Option<String> {
        if size != self.size {
            return Some(format!("rank {rank} joins a communicator of {} ranks as one of {size}", self.size));
        }
        if self.members.contains_key(&rank) {
            return Some(format!("rank {rank} joins a communicator that has it already"));
        }
        let twin = self.members.iter().find(|(_, member)| member.device == device);
        if let Some((other, _)) = twin {
            return Some(format!(
                "duplicate GPU: ranks {other} and {rank} of a communicator are both on device {device}"
            ));
        }
        self.error.as_ref().map(|(_, why)| why.clone())
    }
}
