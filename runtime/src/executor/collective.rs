//! Collectives among the devices of a group, done by the last one to arrive, in parts that other workers may take.
//! Contributions are combined in group order, and parts depend on shapes alone: results repeat bit for bit.

use crate::block::{Place, runs};
use crate::kernels::Operand;
use crate::machine::Binding;
use crate::memory::{Region, reduce_block};
use pcc_ir::program::{CollectiveCall, CollectiveKind, Loc};
use pcc_ir::sharding::member_span;
use pcc_ir::{AxisRef, Extent};

/// Elements of an all-reduce in one part.
const PART: usize = 1 << 14;

/// A collective with the devices of its group.
pub(super) struct Exchange<'a> {
    pub(super) call: &'a CollectiveCall,
    /// The call on one member; the others differ in the device only.
    pub(super) binding: Binding<'a>,
    /// First device of the stage; members count from it.
    pub(super) stage_start: usize,
    pub(super) members: &'a [u32],
    /// How far to go along each dim, on the larger side; see [`CollectiveCall::there`].
    pub(super) there: Vec<usize>,
}

fn elements(shape: &[u64]) -> usize {
    shape.iter().product::<u64>() as usize
}

fn extents(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|&n| n as usize).collect()
}

/// Where the piece of `0..whole` that member `i` has starts, and how long it is.
fn held(whole: usize, axes: &[AxisRef], i: usize) -> (usize, usize) {
    let span = member_span(whole, axes, i);
    (span.start, span.len)
}

/// How far a collective goes along each dim on the device whose extents `extent` gives.
pub(super) fn there(call: &CollectiveCall, extent: impl FnMut(&Extent) -> u64) -> Vec<usize> {
    if call.there.is_empty() {
        let whole = call.src_shape.iter().zip(&call.dst_shape);
        return whole.map(|(&a, &b)| a.max(b) as usize).collect();
    }
    call.there.iter().map(extent).map(|n| n as usize).collect()
}

impl<'a> Exchange<'a> {
    /// Whether the result is kept once for all members.
    fn kept_once(&self) -> bool {
        self.binding.func.is_shared(&self.call.dst)
    }

    /// Number of parts.
    pub(super) fn parts(&self) -> usize {
        match self.call.kind {
            _ if self.there.contains(&0) => 0,
            CollectiveKind::AllReduce => self.there.iter().product::<usize>().div_ceil(PART).max(1),
            _ => self.members.len(),
        }
    }

    /// Bytes read and written by the whole group, about: what sharing the work among workers is worth.
    pub(super) fn traffic(&self) -> usize {
        2 * self.members.len() * self.there.iter().product::<usize>() * self.call.dtype.bytes()
    }

    pub(super) fn run_part(&self, part: usize) {
        match self.call.kind {
            CollectiveKind::AllReduce => self.all_reduce(part),
            CollectiveKind::AllGather => self.all_gather(part),
            CollectiveKind::ReduceScatter => self.reduce_scatter(part),
            CollectiveKind::AllToAll => self.all_to_all(part),
            CollectiveKind::Broadcast => self.broadcast(part),
            // invariant: validation refuses it, and no program has one
            CollectiveKind::Permute => unreachable!("a permute"),
        }
    }

    fn operand(&self, member: usize, loc: &Loc) -> Operand<'a> {
        self.binding.on(self.stage_start + self.members[member] as usize).operand(loc)
    }

    /// The elements from `skip` on of every member's buffer.
    fn regions(&self, loc: &Loc, skip: usize) -> Vec<Region<'a>> {
        let region = |member| {
            let o = self.operand(member, loc);
            Region { window: o.window, offset: o.offset + skip * self.call.dtype.bytes() }
        };
        (0..self.members.len()).map(region).collect()
    }

    fn all_reduce(&self, part: usize) {
        let c = self.call;
        let shape = extents(&c.dst_shape);
        // What is there lies in runs that end where a clipped dim does; parts count its elements alone.
        let (first, last) = (part * PART, (part + 1) * PART);
        let mut before = 0;
        let place = Place { shape: &shape, start: &vec![0; shape.len()] };
        runs(&self.there, place, place, |at, _, count| {
            let (from, to) = (first.max(before), last.min(before + count));
            if from < to {
                let skip = at + from - before;
                let (src, mut dst) = (self.regions(&c.src, skip), self.regions(&c.dst, skip));
                dst.truncate(if self.kept_once() { 1 } else { dst.len() });
                reduce_block(c.reduce, c.dtype, to - from, &src, &dst);
            }
            before += count;
        });
    }

    /// Member `i` of the group receives everyone's piece; or, where the result is kept once, that receives piece `i`.
    fn all_gather(&self, i: usize) {
        let c = self.call;
        let (src, dst, dim) = (extents(&c.src_shape), extents(&c.dst_shape), c.concat_dim as usize);
        let (pieces, i) = if self.kept_once() { (i..i + 1, 0) } else { (0..self.members.len(), i) };
        for j in pieces {
            let (start, len) = held(dst[dim], &c.axes, j);
            let len = len.min(self.there[dim].saturating_sub(start));
            self.copy(j, i, (&src, dim, 0), (&dst, dim, start), &with(&self.there, dim, len));
        }
    }

    /// Member `i` of the group receives its piece of the reduction.
    fn reduce_scatter(&self, i: usize) {
        let c = self.call;
        let (src, dst, dim) = (extents(&c.src_shape), extents(&c.dst_shape), c.split_dim as usize);
        let (start, len) = self.kept(src[dim], dst[dim], dim, i);
        let target = self.operand(i, &c.dst);
        let (from_start, to_start) = (with(&vec![0; src.len()], dim, start), vec![0; dst.len()]);
        let from = Place { shape: &src, start: &from_start };
        let to = Place { shape: &dst, start: &to_start };
        let size = c.dtype.bytes();
        runs(&with(&self.there, dim, len), from, to, |f, t, count| {
            let to = Region { window: target.window, offset: target.offset + t * size };
            reduce_block(c.reduce, c.dtype, count, &self.regions(&c.src, f), &[to]);
        });
    }

    /// Member `i` of the group receives piece `i` of everyone.
    fn all_to_all(&self, i: usize) {
        let c = self.call;
        let (src, dst) = (extents(&c.src_shape), extents(&c.dst_shape));
        let (split, concat) = (c.split_dim as usize, c.concat_dim as usize);
        let (start, len) = self.kept(src[split], dst[split], split, i);
        for j in 0..self.members.len() {
            let (at, count) = held(dst[concat], &c.axes, j);
            let count = count.min(self.there[concat].saturating_sub(at));
            let lens = with(&with(&self.there, split, len), concat, count);
            self.copy(j, i, (&src, split, start), (&dst, concat, at), &lens);
        }
    }

    /// Where the piece of dim `dim` that member `i` keeps starts in the whole, and how much of it is there. The tail of a short piece is
    /// zero, unless nothing beyond what is there is written.
    fn kept(&self, whole: usize, piece: usize, dim: usize, i: usize) -> (usize, usize) {
        let (start, len) = held(whole, &self.call.axes, i);
        let clipped = self.call.there.get(dim).is_some_and(|e| e.clip.is_some());
        if len < piece && !clipped {
            self.zero(i);
        }
        (start, len.min(self.there[dim].saturating_sub(start)))
    }

    /// Member `i` receives the first member's buffer.
    fn broadcast(&self, i: usize) {
        if i == 0 && self.call.src == self.call.dst {
            return;
        }
        let shape = extents(&self.call.dst_shape);
        let flat = [shape.iter().product()];
        self.copy(0, i, (&flat, 0, 0), (&flat, 0, 0), &flat);
    }

    /// Copies a block from member `j`'s source to member `i`'s target; each place is a shape and where the block starts in one dim.
    fn copy(
        &self,
        j: usize,
        i: usize,
        from: (&[usize], usize, usize),
        to: (&[usize], usize, usize),
        lens: &[usize],
    ) {
        let (source, target) = (self.operand(j, &self.call.src), self.operand(i, &self.call.dst));
        let size = self.call.dtype.bytes();
        let start = |(shape, dim, at): (&[usize], usize, usize)| with(&vec![0; shape.len()], dim, at);
        let (from_start, to_start) = (start(from), start(to));
        let from = Place { shape: from.0, start: &from_start };
        let to = Place { shape: to.0, start: &to_start };
        runs(lens, from, to, |f, t, count| {
            let bytes = source.window.part(source.offset + f * size, count * size);
            target.window.part(target.offset + t * size, count * size).copy_from(&bytes);
        });
    }

    fn zero(&self, i: usize) {
        let target = self.operand(i, &self.call.dst);
        target.window.part(target.offset, elements(&self.call.dst_shape) * self.call.dtype.bytes()).zero();
    }
}

/// `shape` with another extent in one dim.
fn with(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(slot) = shape.get_mut(dim) {
        *slot = extent;
    }
    shape
}
