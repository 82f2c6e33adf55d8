//! Operations of communicators meet and move data.

use super::{Arrived, CommWork, Group, Kind, Op, Refusal};
use crate::abi;
use crate::code::Code;
use crate::state::{Space, Turn};
use pcc_cuda_sim::Fault;
use pcc_cuda_sim::memory::Memory;
use std::collections::BTreeMap;

/// An operation of each rank that takes part.
type Parts = BTreeMap<u32, Arrived>;

impl Turn {
    /// Starts a rank's work: its operations arrive, and those that are complete move their data.
    pub(crate) fn comm_start(&mut self, node: u64, work: &CommWork) {
        let Some(of) = self.comms.groups.get_mut(&work.group) else { return self.pending.finish(node) };
        let Some(member) = of.members.get_mut(&work.rank) else { return self.pending.finish(node) };
        if member.gone.is_some() {
            return self.pending.finish(node);
        }
        if let Some((_, why)) = of.error.clone() {
            let context = member.context;
            self.fault(context, Code::LAUNCH_FAILED, &why);
            return self.pending.finish(node);
        }
        of.open.insert(node, (work.rank, work.ops.len()));
        let mut disagreement = None;
        for &op in &work.ops {
            let arrived = Arrived { node, op };
            let ends = (op.kind == Kind::Send).then_some((work.rank, op.peer));
            let ends = ends.or((op.kind == Kind::Recv).then_some((op.peer, work.rank)));
            match ends {
                Some(ends) => {
                    let queues = if op.kind == Kind::Send { &mut of.sends } else { &mut of.recvs };
                    queues.entry(ends).or_default().push_back(arrived);
                }
                None => {
                    let number = member.started;
                    member.started += 1;
                    let slot = of.collectives.entry(number).or_default();
                    disagreement = disagreement.or_else(|| disagrees(slot, work.rank, &op, number));
                    slot.insert(work.rank, arrived);
                }
            }
        }
        match disagreement {
            Some(why) => self.comm_fail(work.group, abi::INVALID_USAGE, &why),
            None => self.comm_progress(work.group),
        }
        self.comm_end_if_left(work.group);
    }

    /// Lets every operation that is complete move its data.
    fn comm_progress(&mut self, group: u64) {
        while let Some(parts) = self.comms.groups.get_mut(&group).and_then(Group::next_complete) {
            if let Err((code, why)) = self.comm_exchange(group, &parts) {
                return self.comm_fail(group, code, &why);
            }
            let Some(of) = self.comms.groups.get_mut(&group) else { return };
            let mut ended = Vec::new();
            for node in parts.by_rank().map(|(_, arrived)| arrived.node) {
                let Some((_, left)) = of.open.get_mut(&node) else { continue };
                *left -= 1;
                if *left == 0 {
                    of.open.remove(&node);
                    ended.push(node);
                }
            }
            for node in ended {
                self.pending.finish(node);
            }
            self.progress = std::time::Instant::now();
            self.notify();
        }
    }

    /// Checks a complete operation and moves its data.
    fn comm_exchange(&mut self, group: u64, parts: &Met) -> Result<(), (Refusal, String)> {
        let size = self.comms.groups.get(&group).map_or(0, |g| g.size);
        if let Met::Pair { from, to, send, recv } = parts {
            let (a, b) = (&send.op, &recv.op);
            if (a.count, a.element) != (b.count, b.element) {
                let why = format!("rank {from} sends {a}, but rank {to} has {b}");
                return Err((abi::INVALID_USAGE, why));
            }
        }
        for (rank, arrived) in parts.by_rank() {
            for (range, writes) in
                [(arrived.op.reads(rank, size), false), (arrived.op.writes(rank, size), true)]
            {
                self.note(arrived.node, Space::Devices, range, writes)
                    .map_err(|why| (abi::INVALID_USAGE, why))?;
            }
        }
        move_data(&self.memory, parts, size).map_err(|fault| (abi::INVALID_ARGUMENT, fault.to_string()))?;
        let clocks: Vec<_> = parts.by_rank().map(|(rank, a)| (rank, self.clock_of(a.node))).collect();
        for (rank, arrived) in parts.by_rank() {
            for (other, clock) in clocks.iter().filter(|(other, _)| parts.flows(*other, rank)) {
                debug_assert!(*other < size);
                self.pending.learn(arrived.node, clock);
            }
        }
        Ok(())
    }

    /// Ends a communicator with an error: all work that waits in it fails, and so does all that comes.
    pub(crate) fn comm_fail(&mut self, group: u64, code: Refusal, why: &str) {
        self.comms.order.forget(group);
        let Some(of) = self.comms.groups.get_mut(&group) else { return };
        if of.error.is_none() {
            of.error = Some((code, why.to_owned()));
        }
        of.collectives.clear();
        of.sends.clear();
        of.recvs.clear();
        of.complete.finish(Default::default());
        let open = std::mem::take(&mut of.open);
        let context = |rank: &u32| of.members.get(rank).filter(|m| m.gone.is_none()).map(|m| m.context);
        let ended: Vec<_> = open.iter().map(|(&node, (rank, _))| (node, context(rank))).collect();
        for (node, context) in ended {
            if let Some(context) = context {
                self.fault(context, Code::LAUNCH_FAILED, why);
            }
            self.pending.finish(node);
        }
        self.progress = std::time::Instant::now();
        self.notify();
    }

    /// A rank will start nothing any more: its own work ends, and so does a communicator in which others wait for it.
    pub(super) fn leave_group(&mut self, group: u64, rank: u32, how: &'static str) {
        let Some(of) = self.comms.groups.get_mut(&group) else { return };
        let Some(member) = of.members.get_mut(&rank) else { return };
        member.gone.get_or_insert(how);
        let mine: Vec<u64> = of.open.iter().filter(|(_, (r, _))| *r == rank).map(|(&node, _)| node).collect();
        for node in &mine {
            of.open.remove(node);
        }
        let others = |arrived: &Arrived| !mine.contains(&arrived.node);
        for slot in of.collectives.values_mut() {
            slot.remove(&rank);
        }
        of.collectives.retain(|_, slot| !slot.is_empty());
        for queue in of.sends.values_mut().chain(of.recvs.values_mut()) {
            queue.retain(others);
        }
        for node in mine {
            self.pending.finish(node);
        }
        self.comm_end_if_left(group);
    }

    /// A context that has failed takes the communicators of its ranks with it.
    pub(crate) fn comm_fail_all(&mut self, context: u64, why: &str) {
        let groups = self.comms.groups.iter().filter(|(_, of)| of.error.is_none());
        let failed = groups.filter_map(|(&group, of)| {
            let mine = of.members.iter().find(|(_, m)| m.context == context && m.gone.is_none());
            Some((group, *mine?.0))
        });
        for (group, rank) in failed.collect::<Vec<_>>() {
            self.comm_fail(
                group,
                abi::REMOTE_ERROR,
                &format!("rank {rank} of the communicator failed: {why}"),
            );
        }
    }

    fn comm_end_if_left(&mut self, group: u64) {
        let left = self.comms.groups.get(&group).and_then(Group::waits_for_left);
        if let Some(why) = left {
            self.comm_fail(group, abi::REMOTE_ERROR, &why);
        }
    }
}

/// A complete operation.
enum Met {
    Collective(Parts),
    Pair { from: u32, to: u32, send: Arrived, recv: Arrived },
}

impl Met {
    fn by_rank(&self) -> impl Iterator<Item = (u32, &Arrived)> {
        let (all, pair) = match self {
            Met::Collective(parts) => (Some(parts.iter().map(|(&rank, a)| (rank, a))), None),
            Met::Pair { from, to, send, recv } => (None, Some([(*from, send), (*to, recv)])),
        };
        all.into_iter().flatten().chain(pair.into_iter().flatten())
    }

    /// Whether what a rank has before it is before what another does after it.
    fn flows(&self, from: u32, to: u32) -> bool {
        match self {
            Met::Pair { from: sender, to: receiver, .. } => (from, to) == (*sender, *receiver),
            Met::Collective(parts) => parts.get(&from).is_some_and(|arrived| match arrived.op.kind {
                Kind::Broadcast => from == arrived.op.peer,
                Kind::Reduce => to == arrived.op.peer,
                _ => true,
            }),
        }
    }
}

impl Group {
    /// Takes out an operation that all ranks of it have started.
    fn next_complete(&mut self) -> Option<Met> {
        let full = |slot: &Parts| slot.len() as u32 == self.size;
        if let Some((&number, _)) = self.collectives.iter().find(|(_, slot)| full(slot)) {
            return self.collectives.remove(&number).map(Met::Collective);
        }
        for (&(from, to), sends) in &mut self.sends {
            let Some(recvs) = self.recvs.get_mut(&(from, to)) else { continue };
            if sends.is_empty() || recvs.is_empty() {
                continue;
            }
            let (send, recv) = (sends.pop_front()?, recvs.pop_front()?);
            return Some(Met::Pair { from, to, send, recv });
        }
        None
    }

    /// Why an operation that has started can never be complete: a rank it needs has left.
    fn waits_for_left(&self) -> Option<String> {
        let gone = |rank: &u32| self.members.get(rank).and_then(|m| m.gone);
        let say = |waiting: u32, op: &Op, left: u32| {
            gone(&left).map(|how| {
                format!("rank {left} of the communicator {how}; rank {waiting} waits for it in {op}")
            })
        };
        for slot in self.collectives.values() {
            let Some((&waiting, arrived)) = slot.iter().next() else { continue };
            let missing = (0..self.size).filter(|rank| !slot.contains_key(rank));
            if let Some(why) = missing.into_iter().find_map(|rank| say(waiting, &arrived.op, rank)) {
                return Some(why);
            }
        }
        let sends = self.sends.iter().filter_map(|(&(from, to), q)| Some((from, to, q.front()?)));
        let recvs = self.recvs.iter().filter_map(|(&(from, to), q)| Some((to, from, q.front()?)));
        sends.chain(recvs).find_map(|(waiting, other, arrived)| say(waiting, &arrived.op, other))
    }
}

/// How a rank's collective differs from that of the ranks that came before.
fn disagrees(slot: &Parts, rank: u32, op: &Op, number: u64) -> Option<String> {
    let (other, arrived) = slot.iter().next()?;
    let (what, theirs, own) = arrived.op.differs(op)?;
    Some(format!(
        "ranks disagree in collective {number} of the communicator: {what} {theirs} on rank {other} ({}), {own} on rank {rank} ({op})",
        arrived.op
    ))
}

/// What the operation is: sums go by rank, from 0 up.
fn move_data(memory: &Memory, met: &Met, size: u32) -> Result<(), Fault> {
    let parts = match met {
        Met::Pair { send, recv, .. } => return memory.copy(recv.op.recv, send.op.send, send.op.bytes()),
        Met::Collective(parts) => parts,
    };
    let Some(&Arrived { op: first, .. }) = parts.values().next() else { return Ok(()) };
    let bytes = first.bytes();
    let reduce = |to: u64, offset: u64| {
        let sources: Vec<u64> = parts.values().map(|a| a.op.send + offset).collect();
        memory.reduce(to, &sources, first.count, first.element, first.reduction)
    };
    match first.kind {
        Kind::AllReduce => {
            reduce(first.recv, 0)?;
            parts.values().skip(1).try_for_each(|a| memory.copy(a.op.recv, first.recv, bytes))
        }
        Kind::Reduce => match parts.get(&first.peer) {
            Some(root) => reduce(root.op.recv, 0),
            None => Ok(()),
        },
        Kind::ReduceScatter => {
            (0..u64::from(size)).zip(parts.values()).try_for_each(|(rank, a)| reduce(a.op.recv, rank * bytes))
        }
        Kind::AllGather => parts.values().try_for_each(|to| {
            let from = (0..u64::from(size)).zip(parts.values());
            from.clone().try_for_each(|(rank, a)| copy(memory, to.op.recv + rank * bytes, a.op.send, bytes))
        }),
        Kind::Broadcast => match parts.get(&first.peer) {
            Some(root) => parts.values().try_for_each(|to| copy(memory, to.op.recv, root.op.send, bytes)),
            None => Ok(()),
        },
        // These are pairs.
        Kind::Send | Kind::Recv => Ok(()),
    }
}

/// A copy, or none in place.
fn copy(memory: &Memory, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
    if to == from { Ok(()) } else { memory.copy(to, from, bytes) }
}
