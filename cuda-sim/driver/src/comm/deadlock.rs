//! Finds that ranks wait for each other for good.

use super::{Arrived, Group, Op};
use crate::abi;
use crate::state::Turn;

/// A started operation, or a communicator in the making, and the ranks that have not come.
struct Blocked {
    waiting: Vec<u32>,
    missing: Vec<u32>,
    what: String,
}

impl Turn {
    /// Ends all communicators in which ranks wait for others that cannot come: because every thread that could bring them waits too, or because
    /// nothing has happened for long. Whether there were any.
    ///
    /// To be called when no work may start and none is being run. A thread that never called, or has ended, says nothing: communicators
    /// may be handed to other threads.
    pub(crate) fn comm_end_deadlock(&mut self) -> bool {
        let long = self.progress.elapsed() >= self.config.timeout;
        let comms: Vec<(u64, Vec<Blocked>)> = self
            .comms
            .groups
            .iter()
            .map(|(&id, of)| (id, of.blocked()))
            .filter(|(_, b)| !b.is_empty())
            .collect();
        if comms.is_empty() {
            return false;
        }
        let hopeless = |id: &u64, blocked: &[Blocked]| {
            let Some(of) = self.comms.groups.get(id) else { return false };
            blocked
                .iter()
                .flat_map(|b| &b.missing)
                .all(|rank| of.members.get(rank).is_some_and(|member| self.threads.is_stuck(member.thread)))
        };
        if !long && !comms.iter().all(|(id, blocked)| hopeless(id, blocked)) {
            return false;
        }
        let mut lines = Vec::new();
        for (id, blocked) in &comms {
            let Some(of) = self.comms.groups.get(id) else { continue };
            lines.extend(blocked.iter().map(|b| self.describe(of, b)));
        }
        let kind = if long {
            format!("deadlock: nothing has happened for {:?}", self.config.timeout)
        } else {
            "deadlock: all threads that could go on wait".to_owned()
        };
        let why = format!("{kind}. {}", lines.join("; "));
        for (id, _) in comms {
            self.comm_fail(id, abi::REMOTE_ERROR, &why);
        }
        true
    }

    fn describe(&self, of: &Group, blocked: &Blocked) -> String {
        let rank = |rank: &u32| match of.members.get(rank) {
            Some(m) => format!("rank {rank} (device {}, {})", m.device, self.threads.describe(m.thread)),
            None => format!("rank {rank} (never initialised)"),
        };
        let list = |ranks: &[u32]| ranks.iter().map(rank).collect::<Vec<_>>().join(", ");
        format!("{}: there {}; missing {}", blocked.what, list(&blocked.waiting), list(&blocked.missing))
    }
}

impl Group {
    fn blocked(&self) -> Vec<Blocked> {
        if self.error.is_some() {
            return Vec::new();
        }
        let split =
            |there: &dyn Fn(u32) -> bool| (0..self.size).partition::<Vec<u32>, _>(|&rank| there(rank));
        let mut all = Vec::new();
        if !self.complete.is_done() {
            let (waiting, missing) = split(&|rank| self.members.contains_key(&rank));
            all.push(Blocked { waiting, missing, what: format!("a communicator of {} ranks", self.size) });
        }
        for (number, slot) in &self.collectives {
            let (waiting, missing) = split(&|rank| slot.contains_key(&rank));
            let op = slot.values().next().map(|a| a.op.to_string()).unwrap_or_default();
            all.push(Blocked { waiting, missing, what: format!("collective {number}, {op}") });
        }
        let pairs = |from: u32, to: u32, arrived: Option<&Arrived>| {
            let op: Op = arrived?.op;
            Some(Blocked { waiting: vec![from], missing: vec![to], what: op.to_string() })
        };
        all.extend(self.sends.iter().filter_map(|(&(from, to), queue)| pairs(from, to, queue.front())));
        all.extend(self.recvs.iter().filter_map(|(&(from, to), queue)| pairs(to, from, queue.front())));
        all
    }
}
