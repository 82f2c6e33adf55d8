//! Operations of communicators, checked.

use crate::abi;
use pcc_cuda_sim::memory::{Element, Reduction};
use std::fmt;
use std::ops::Range;

/// A rank's operations of one group call (or one operation): a piece of a stream's work.
#[derive(Clone, Debug)]
pub struct CommWork {
    pub group: u64,
    pub rank: u32,
    pub ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Send,
    Recv,
}

/// An operation as one rank has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub kind: Kind,
    pub send: u64,
    pub recv: u64,
    pub count: u64,
    pub element: Element,
    pub reduction: Reduction,
    /// The root, or the rank at the other end; 0 where there is none.
    pub peer: u32,
}

impl Kind {
    pub fn is_collective(self) -> bool {
        !matches!(self, Kind::Send | Kind::Recv)
    }

    fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce)
    }

    fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Op { kind, count, element, peer, .. } = self;
        write!(f, "{kind:?} of {count} {element:?}")?;
        match kind {
            Kind::Send => write!(f, " to rank {peer}"),
            Kind::Recv => write!(f, " from rank {peer}"),
            _ if kind.has_root() => write!(f, " with root {peer}"),
            _ => Ok(()),
        }
    }
}

impl Op {
    /// Reads the numbers of the interface.
    pub fn parse(raw: &abi::Op, size: u32) -> Result<Self, String> {
        let kind = match raw.kind {
            abi::KIND_ALL_REDUCE => Kind::AllReduce,
            abi::KIND_ALL_GATHER => Kind::AllGather,
            abi::KIND_REDUCE_SCATTER => Kind::ReduceScatter,
            abi::KIND_BROADCAST => Kind::Broadcast,
            abi::KIND_REDUCE => Kind::Reduce,
            abi::KIND_SEND => Kind::Send,
            abi::KIND_RECV => Kind::Recv,
            other => return Err(format!("operation {other}")),
        };
        use Element::*;
        let elements = [I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16];
        let element = elements.get(raw.dtype as usize).copied();
        let element = element.ok_or_else(|| format!("data type {} is not known here", raw.dtype))?;
        let reductions =
            [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min, Reduction::Average];
        let reduction = if kind.reduces() { reductions.get(raw.reduction as usize).copied() } else { None };
        if kind.reduces() && reduction.is_none() {
            return Err(format!("reduction {} is not known here", raw.reduction));
        }
        let has_peer = kind.has_root() || !kind.is_collective();
        let peer = if has_peer { u32::try_from(raw.peer).ok().filter(|&p| p < size) } else { Some(0) };
        let peer = peer.ok_or_else(|| format!("rank {} of a communicator of {size}", raw.peer))?;
        let fits = raw.count.checked_mul(element.bytes()).and_then(|b| b.checked_mul(size.into())).is_some();
        if !fits {
            return Err(format!("{} elements", raw.count));
        }
        let reduction = reduction.unwrap_or(Reduction::Sum);
        Ok(Self { kind, send: raw.send, recv: raw.recv, count: raw.count, element, reduction, peer })
    }

    pub fn bytes(&self) -> u64 {
        self.count * self.element.bytes()
    }

    /// What a rank reads; nothing if it takes no part in that.
    pub fn reads(&self, rank: u32, size: u32) -> Range<u64> {
        let bytes = match self.kind {
            Kind::Recv => 0,
            Kind::Broadcast if rank != self.peer => 0,
            Kind::ReduceScatter => self.bytes() * u64::from(size),
            _ => self.bytes(),
        };
        self.send..self.send + bytes
    }

    /// What a rank writes.
    pub fn writes(&self, rank: u32, size: u32) -> Range<u64> {
        let bytes = match self.kind {
            Kind::Send => 0,
            Kind::Reduce if rank != self.peer => 0,
            Kind::AllGather => self.bytes() * u64::from(size),
            _ => self.bytes(),
        };
        self.recv..self.recv + bytes
    }

    /// Whether the buffers overlap in another way than the one that NCCL calls in-place.
    pub fn overlaps_wrongly(&self, rank: u32, size: u32) -> bool {
        let (reads, writes) = (self.reads(rank, size), self.writes(rank, size));
        let apart =
            reads.is_empty() || writes.is_empty() || reads.end <= writes.start || writes.end <= reads.start;
        let own = u64::from(rank) * self.bytes();
        let in_place = match self.kind {
            Kind::AllGather => self.send == self.recv + own,
            Kind::ReduceScatter => self.recv == self.send + own,
            _ => self.send == self.recv,
        };
        !apart && !in_place
    }

    /// How another rank's operation, which should be the same, differs.
    pub fn differs(&self, other: &Op) -> Option<(&'static str, String, String)> {
        let (a, b) = (self, other);
        let say =
            |what, x: &dyn fmt::Debug, y: &dyn fmt::Debug| Some((what, format!("{x:?}"), format!("{y:?}")));
        if a.kind != b.kind {
            return say("operation", &a.kind, &b.kind);
        }
        if a.count != b.count {
            return say("count", &a.count, &b.count);
        }
        if a.element != b.element {
            return say("data type", &a.element, &b.element);
        }
        if a.reduction != b.reduction {
            return say("reduction", &a.reduction, &b.reduction);
        }
        if a.peer != b.peer {
            return say("root", &a.peer, &b.peer);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(kind: u32, send: u64, recv: u64) -> Op {
        let raw = abi::Op { comm: 0, kind, dtype: 7, send, recv, count: 4, reduction: 0, peer: 0, stream: 0 };
        Op::parse(&raw, 4).unwrap()
    }

    #[test]
    fn in_place_is_what_nccl_calls_so() {
        // 16 bytes a rank, four ranks.
        assert!(!op(abi::KIND_ALL_REDUCE, 256, 256).overlaps_wrongly(1, 4));
        assert!(op(abi::KIND_ALL_REDUCE, 256, 260).overlaps_wrongly(1, 4));
        assert!(!op(abi::KIND_ALL_GATHER, 256 + 16, 256).overlaps_wrongly(1, 4));
        assert!(op(abi::KIND_ALL_GATHER, 256, 256).overlaps_wrongly(1, 4));
        assert!(!op(abi::KIND_REDUCE_SCATTER, 256, 256 + 32).overlaps_wrongly(2, 4));
        assert!(op(abi::KIND_REDUCE_SCATTER, 256, 256 + 32).overlaps_wrongly(1, 4));
        assert!(!op(abi::KIND_BROADCAST, 256, 260).overlaps_wrongly(3, 4));
    }

    #[test]
    fn differences_are_named() {
        let (a, mut b) = (op(abi::KIND_ALL_REDUCE, 0, 0), op(abi::KIND_ALL_REDUCE, 512, 512));
        assert_eq!(a.differs(&b), None);
        b.count = 5;
        assert_eq!(a.differs(&b), Some(("count", "4".to_owned(), "5".to_owned())));
    }
}
