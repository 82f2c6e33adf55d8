//! How ranks exchange data: through NCCL, a GPU each, or, where several ranks share a GPU (which NCCL refuses), by copies on devices of one
//! process.

use super::control::{Board, Control, Stopped, lock};
use super::driver::{Event, Stream};
use super::nccl::{Communicator, Nccl, UniqueId};
use super::work::{Among, AmongKind, Move};
use pcc_ir::Diagnostic;
use pcc_ir::gpu::LibraryKernel;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

/// A group of ranks, or a link of two, by numbers that all ranks agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Circle {
    /// Of a stage, by its number among the stage's groups.
    Group { stage: usize, number: usize },
    /// From a device to one of a later stage.
    Link { from: usize, to: usize },
}

/// Something in a device's memory, and the event after which it is there.
#[derive(Clone)]
pub(super) struct Offer {
    pub(super) address: u64,
    pub(super) event: Arc<Event>,
}

/// Messages between two ranks of a process, by tag.
#[derive(Default)]
pub(super) struct LocalLink {
    messages: Mutex<HashMap<u32, VecDeque<Offer>>>,
    /// Events after which a message was taken.
    taken: Mutex<HashMap<u32, VecDeque<Arc<Event>>>>,
}

impl LocalLink {
    pub(super) fn send(&self, tag: u32, offer: Offer) {
        lock(&self.messages).entry(tag).or_default().push_back(offer);
    }

    pub(super) fn receive(
        &self,
        tag: u32,
        control: &Control,
        late: &dyn Fn() -> Diagnostic,
    ) -> Result<Offer, Stopped> {
        control.wait_for(late, || Ok(lock(&self.messages).get_mut(&tag).and_then(VecDeque::pop_front).into()))
    }

    pub(super) fn acknowledge(&self, tag: u32, event: Arc<Event>) {
        lock(&self.taken).entry(tag).or_default().push_back(event);
    }

    pub(super) fn wait_taken(
        &self,
        tag: u32,
        control: &Control,
        late: &dyn Fn() -> Diagnostic,
    ) -> Result<Arc<Event>, Stopped> {
        control.wait_for(late, || Ok(lock(&self.taken).get_mut(&tag).and_then(VecDeque::pop_front).into()))
    }

    fn clear(&self) {
        lock(&self.messages).clear();
        lock(&self.taken).clear();
    }
}

/// What the ranks of a process meet through.
pub(super) enum Meeting {
    Nccl { nccl: Arc<Nccl>, ids: HashMap<Circle, UniqueId> },
    Local { boards: HashMap<Circle, Board<Offer>>, links: HashMap<Circle, LocalLink> },
}

/// What rank 0 has, given to all processes.
pub(super) type Share<'a> = &'a dyn Fn(&[u8]) -> Result<Vec<u8>, Diagnostic>;

impl Meeting {
    /// Through NCCL: a communicator for each circle.
    ///
    /// The names of communicators are made by every process, and those of rank 0 hold, which `share` gives all.
    ///
    /// # Errors
    /// NCCL makes none, or the other processes are lost.
    pub(super) fn nccl(
        nccl: Nccl,
        circles: &HashMap<Circle, usize>,
        share: Share<'_>,
    ) -> Result<Self, Diagnostic> {
        let broken = |why: String| Diagnostic::run("NCCL cannot be used").why(why);
        let nccl = Arc::new(nccl);
        let mut order: Vec<Circle> = circles.keys().copied().collect();
        order.sort_unstable();
        order.retain(|circle| circles.get(circle).is_some_and(|&members| members > 1));
        let own = order.iter().map(|_| nccl.unique_id().map(|id| id.bytes())).collect::<Result<Vec<_>, _>>();
        let all = share(&own.map_err(broken)?.concat())?;
        if all.len() != order.len() * UniqueId::BYTES {
            return Err(broken("rank 0 has named other communicators".to_owned()));
        }
        let named = order.into_iter().zip(all.chunks_exact(UniqueId::BYTES));
        let ids = named.filter_map(|(circle, bytes)| Some((circle, UniqueId::of(bytes)?)));
        Ok(Meeting::Nccl { ids: ids.collect(), nccl })
    }

    /// In this process; circles with their number of members.
    pub(super) fn local(circles: &HashMap<Circle, usize>) -> Self {
        let (mut boards, mut links) = (HashMap::new(), HashMap::new());
        for (&circle, &members) in circles {
            match circle {
                Circle::Group { .. } => drop(boards.insert(circle, Board::new(members))),
                Circle::Link { .. } => drop(links.insert(circle, LocalLink::default())),
            }
        }
        Meeting::Local { boards, links }
    }

    pub(super) fn is_local(&self) -> bool {
        matches!(self, Meeting::Local { .. })
    }

    /// Ends what is queued between ranks, from whatever thread: a rank may be stuck in a call that waits for another.
    pub(super) fn abort(&self) {
        if let Meeting::Nccl { nccl, .. } = self {
            nccl.abort_all();
        }
    }

    /// Forgets messages of a run that failed.
    pub(super) fn clear(&self) {
        if let Meeting::Local { links, .. } = self {
            links.values().for_each(LocalLink::clear);
        }
    }
}

/// One rank's seat in a circle.
pub(super) struct Seat {
    pub(super) circle: Circle,
    pub(super) members: usize,
    pub(super) own: usize,
    /// In NCCL's case.
    pub(super) communicator: Option<Communicator>,
}

impl Seat {
    /// Takes the seat. With NCCL others may still be to come: see [`Communicator::is_ready`].
    pub(super) fn take(
        meeting: &Meeting,
        circle: Circle,
        members: usize,
        own: usize,
    ) -> Result<Self, String> {
        let communicator = match meeting {
            Meeting::Local { .. } => None,
            Meeting::Nccl { nccl, ids } => match ids.get(&circle) {
                _ if members == 1 => None,
                Some(&id) => Some(nccl.join(id, members, own)?),
                None => return Err(format!("no communicator was prepared for {circle:?}")),
            },
        };
        Ok(Self { circle, members, own, communicator })
    }
}

/// Copies what the members contribute into the rank's own memory, on its stream: to `gather`, one contribution behind the other. What is left to be done
/// after that; all members have read then.
pub(super) fn gather(
    a: &Among,
    seat: &Seat,
    board: &Board<Offer>,
    gather: u64,
    stream: &Stream,
    control: &Control,
    late: &dyn Fn() -> Diagnostic,
    fail: &dyn Fn(super::driver::Failure) -> Stopped,
) -> Result<Vec<Move>, Stopped> {
    let bytes = a.count * a.dtype.bytes() as u64;
    let record = || {
        let event = Arc::new(Event::new()?);
        stream.record(&event)?;
        Ok(event)
    };
    let ready = record().map_err(fail)?;
    let offers = board.exchange(seat.own, Offer { address: a.from, event: ready }, control, late)?;
    let mut after = Vec::new();
    let reduces = matches!(a.kind, AmongKind::AllReduce | AmongKind::ReduceScatter);
    let target = |j: usize| gather + j as u64 * bytes;
    for (j, offer) in offers.iter().enumerate() {
        stream.wait(&offer.event).map_err(fail)?;
        let skipped = match a.kind {
            AmongKind::AllToAll | AmongKind::ReduceScatter => seat.own as u64 * bytes,
            AmongKind::AllReduce | AmongKind::AllGather | AmongKind::Broadcast => 0,
        };
        if a.kind == AmongKind::Broadcast && j > 0 {
            continue;
        }
        // Through own memory also where nothing is reduced: the target may be what another member still reads.
        stream.copy(target(j), offer.address + skipped, bytes).map_err(fail)?;
    }
    let read = record().map_err(fail)?;
    let done = board.exchange(seat.own, Offer { address: 0, event: read }, control, late)?;
    done.iter().try_for_each(|d| stream.wait(&d.event)).map_err(fail)?;
    if reduces {
        let mut params = vec![a.to, a.count];
        params.extend((0..seat.members).map(target));
        let kernel = LibraryKernel::Reduce { dtype: a.dtype, reduce: a.reduce, members: seat.members as u32 };
        after.push(Move::Launch { kernel, shape: LibraryKernel::flat_shape(a.count), params });
    } else {
        let count = if a.kind == AmongKind::Broadcast { 1 } else { seat.members as u64 };
        after.push(Move::Copy { to: a.to, from: gather, bytes: bytes * count });
    }
    Ok(after)
}
