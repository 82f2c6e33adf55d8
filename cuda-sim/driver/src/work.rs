//! Work that waits to be run, and how it is ordered.
//!
//! All work of all streams is one graph: a stream's order, waits for events and the edges of captured graphs alike are work that other work is
//! behind.

use crate::blas::Product;
use crate::clock::{Clock, Lane, Moment};
use crate::comm::CommWork;
use pcc_cuda_sim::ptx::Kernel;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Stands for work, also when it is long done.
#[derive(Clone, Debug)]
pub struct Ticket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: u64,
    done: OnceLock<Done>,
}

#[derive(Debug)]
struct Done {
    clock: Clock,
    at: Instant,
}

impl Ticket {
    /// Of work that was done before anything else.
    pub fn done_already() -> Self {
        let ticket = Self::new(0);
        ticket.finish(Clock::default());
        ticket
    }

    pub fn new(id: u64) -> Self {
        Self(Arc::new(Inner { id, done: OnceLock::new() }))
    }

    pub fn is_done(&self) -> bool {
        self.0.done.get().is_some()
    }

    /// What is ordered before all that waits for it, once it is done.
    pub fn clock(&self) -> Option<&Clock> {
        self.0.done.get().map(|done| &done.clock)
    }

    pub fn finished_at(&self) -> Option<Instant> {
        self.0.done.get().map(|done| done.at)
    }

    pub fn finish(&self, clock: Clock) {
        // Work is finished once; a second time would change nothing.
        let _ = self.0.done.set(Done { clock, at: Instant::now() });
    }
}

/// What a copy to a device reads.
#[derive(Clone, Debug)]
pub enum Source {
    /// Pageable memory: its bytes when the copy was asked for.
    Bytes(Arc<[u8]>),
    /// Page-locked memory of the host: read when the copy runs. The digest is of its bytes when the copy was asked for, if they should be
    /// the same then.
    Pinned { addr: u64, digest: Option<u64> },
}

#[derive(Clone, Debug)]
pub enum Work {
    /// Only orders.
    Nothing,
    HostToDevice {
        dst: u64,
        src: Source,
        len: u64,
    },
    DeviceToHost {
        dst: u64,
        src: u64,
        len: u64,
    },
    DeviceToDevice {
        dst: u64,
        src: u64,
        len: u64,
    },
    /// `count` values of `width` bytes, 1, 2 or 4.
    Set {
        dst: u64,
        value: u32,
        width: u64,
        count: u64,
    },
    Launch(Arc<Launch>),
    Product(Arc<Product>),
    /// A function of the caller and its argument.
    HostCall {
        function: extern "C" fn(*mut std::ffi::c_void),
        argument: u64,
    },
    /// The memory is there from here on.
    Alloc {
        addr: u64,
        len: u64,
    },
    Free {
        addr: u64,
        len: u64,
    },
    Communicate(CommWork),
}

/// A launch of a kernel.
#[derive(Debug)]
pub struct Launch {
    pub kernel: Kernel,
    pub device: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: Vec<Vec<u8>>,
}

impl Work {
    /// Memory of the host that it uses when it runs: address, bytes.
    pub fn host_range(&self) -> Option<(u64, u64)> {
        match *self {
            Work::HostToDevice { src: Source::Pinned { addr, .. }, len, .. } => Some((addr, len)),
            Work::DeviceToHost { dst, len, .. } => Some((dst, len)),
            _ => None,
        }
    }
}

/// A piece of work that is not done.
#[derive(Debug)]
pub struct Node {
    pub context: u64,
    pub lane: Lane,
    pub work: Work,
    pub behind: Vec<Ticket>,
    /// What the host had waited for when it asked for this.
    pub host: Clock,
    /// For messages.
    pub what: Arc<str>,
    pub ticket: Ticket,
    /// Work of `behind` that is not done.
    blockers: usize,
    /// From its start on.
    pub started: Option<(Moment, Clock)>,
}

/// All work that is not done.
#[derive(Debug, Default)]
pub struct Pending {
    last: u64,
    nodes: BTreeMap<u64, Node>,
    /// Who waits for whom, by the number of the one waited for.
    waiters: BTreeMap<u64, Vec<u64>>,
    /// Nodes that may start.
    ready: BTreeSet<u64>,
    /// Nodes whose kernel or function is just being run by some thread.
    running: BTreeSet<u64>,
}

/// What is known of work when it is asked for.
#[derive(Debug)]
pub struct Request {
    pub context: u64,
    pub lane: Lane,
    pub work: Work,
    pub behind: Vec<Ticket>,
    pub host: Clock,
    pub what: Arc<str>,
}

impl Pending {
    pub fn add(&mut self, request: Request) -> Ticket {
        self.last += 1;
        let id = self.last;
        let ticket = Ticket::new(id);
        let mut blockers = 0;
        for before in request.behind.iter().filter(|t| !t.is_done()) {
            self.waiters.entry(before.0.id).or_default().push(id);
            blockers += 1;
        }
        if blockers == 0 {
            self.ready.insert(id);
        }
        let Request { context, lane, work, behind, host, what } = request;
        let node =
            Node { context, lane, work, behind, host, what, ticket: ticket.clone(), blockers, started: None };
        self.nodes.insert(id, node);
        ticket
    }

    pub fn get(&self, id: u64) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    pub fn ready(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.ready.iter().filter_map(|&id| Some((id, self.nodes.get(&id)?)))
    }

    /// Whether a thread is running something that it will finish by itself.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Takes a node out of those that may start, and gives it a time. `alone`: a thread runs it without the lock.
    pub fn start(&mut self, id: u64, alone: bool) -> Option<&Node> {
        self.ready.remove(&id);
        let node = self.nodes.get_mut(&id)?;
        let mut clock = node.host.clone();
        for before in node.behind.iter().filter_map(Ticket::clock) {
            clock.join(before);
        }
        let at = clock.advance(node.lane);
        node.started = Some((at, clock));
        if alone {
            self.running.insert(id);
        }
        Some(node)
    }

    /// What a started node learns of others' order by exchanging data with them.
    pub fn learn(&mut self, id: u64, other: &Clock) {
        if let Some((_, clock)) = self.nodes.get_mut(&id).and_then(|node| node.started.as_mut()) {
            clock.join(other);
        }
    }

    /// Ends a started node.
    pub fn finish(&mut self, id: u64) {
        self.running.remove(&id);
        let Some(node) = self.nodes.remove(&id) else { return };
        node.ticket.finish(node.started.map(|(_, clock)| clock).unwrap_or(node.host));
        for waiter in self.waiters.remove(&id).unwrap_or_default() {
            let Some(waiting) = self.nodes.get_mut(&waiter) else { continue };
            waiting.blockers -= 1;
            if waiting.blockers == 0 {
                self.ready.insert(waiter);
            }
        }
    }

    /// The work and all that must be done before it, as far as it is not done.
    pub fn needed_for(&self, ticket: &Ticket) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut next = vec![ticket.0.id];
        while let Some(id) = next.pop() {
            let Some(node) = self.nodes.get(&id) else { continue };
            if found.insert(id) {
                next.extend(node.behind.iter().filter(|t| !t.is_done()).map(|t| t.0.id));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lane: u32, behind: &[&Ticket]) -> Request {
        let behind = behind.iter().map(|&t| t.clone()).collect();
        let (host, what) = (Clock::default(), Arc::from("nothing"));
        Request { context: 1, lane: Lane(lane), work: Work::Nothing, behind, host, what }
    }

    #[test]
    fn work_is_ready_once_all_before_it_is_done() {
        let mut pending = Pending::default();
        let a = pending.add(request(0, &[]));
        let b = pending.add(request(1, &[]));
        let c = pending.add(request(0, &[&a, &b]));
        let ready = |p: &Pending| p.ready().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ready(&pending), [1, 2]);
        assert_eq!(pending.needed_for(&c), BTreeSet::from([1, 2, 3]));
        for id in [2, 1] {
            pending.start(id, false);
            pending.finish(id);
        }
        assert_eq!(ready(&pending), [3]);
        let clock = pending.start(3, false).and_then(|node| node.started.clone()).unwrap().1;
        assert!(
            [(0, 1), (1, 1), (0, 2)].map(|(l, tick)| clock.has(Moment { lane: Lane(l), tick })) == [true; 3]
        );
        pending.finish(3);
        assert!(c.is_done() && pending.iter().next().is_none());
    }
}
