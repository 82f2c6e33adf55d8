//! Collectives of the program, over clipped pieces of tensors, as collectives over adjacent elements and the copies around them.
//!
//! Every member gives and gets equal counts, so pieces are packed at their full size: what lies beyond the end of a short piece is never
//! looked at. Where a piece is adjacent as it lies, nothing is packed.

use super::block::{Place, copy};
use super::work::{Among, AmongKind, Move};
use pcc_ir::program::{CollectiveCall, CollectiveKind};
use pcc_ir::sharding::member_span;

/// A collective on one device at one run.
pub(super) struct Exchange<'a> {
    pub(super) call: &'a CollectiveCall,
    pub(super) src: u64,
    pub(super) dst: u64,
    /// How far to go along each dim, on the larger side (see [`CollectiveCall::there`]).
    pub(super) there: Vec<usize>,
    pub(super) members: usize,
    /// Which of the members this device is.
    pub(super) own: usize,
    /// Two buffers of [`scratch_bytes`] each.
    pub(super) scratch: [u64; 2],
}

fn extents(shape: &[u64]) -> Vec<usize> {
    shape.iter().map(|&n| n as usize).collect()
}

fn product(lens: &[usize]) -> u64 {
    lens.iter().map(|&n| n as u64).product()
}

/// `shape` with another extent in one dim.
fn with(shape: &[usize], dim: usize, extent: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(slot) = shape.get_mut(dim) {
        *slot = extent;
    }
    shape
}

/// Whether the first `lens` of a tensor of this shape are adjacent.
fn is_prefix(lens: &[usize], shape: &[usize]) -> bool {
    let first = lens.iter().position(|&n| n > 1).unwrap_or(lens.len());
    lens.iter().zip(shape).skip(first + 1).all(|(a, b)| a == b)
}

/// Bytes of each scratch buffer that a collective needs at most.
pub(super) fn scratch_bytes(call: &CollectiveCall, members: usize) -> u64 {
    let product = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(1u64, u64::saturating_mul);
    let larger = product(&mut call.src_shape.iter().zip(&call.dst_shape).map(|(&a, &b)| a.max(b)));
    let pieces: u64 = match call.kind {
        // The last piece is packed at full size.
        CollectiveKind::AllGather => call.src_shape.iter().product::<u64>().saturating_mul(members as u64),
        CollectiveKind::ReduceScatter => {
            call.dst_shape.iter().product::<u64>().saturating_mul(members as u64)
        }
        CollectiveKind::AllToAll => {
            let piece = call.dst_shape.get(call.split_dim as usize).copied().unwrap_or(1);
            let own = call.src_shape.get(call.concat_dim as usize).copied().unwrap_or(1);
            let others = call.src_shape.iter().enumerate();
            let others = others.filter(|(d, _)| ![call.split_dim, call.concat_dim].contains(&(*d as u32)));
            let rest = product(&mut others.map(|(_, &n)| n));
            piece.saturating_mul(own).saturating_mul(rest).saturating_mul(members as u64)
        }
        CollectiveKind::AllReduce | CollectiveKind::Broadcast | CollectiveKind::Permute => larger,
    };
    pieces.max(larger).saturating_mul(call.dtype.bytes() as u64)
}

impl Exchange<'_> {
    pub(super) fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.there.contains(&0) {
            return moves;
        }
        match self.call.kind {
            CollectiveKind::AllReduce => self.all_reduce(&mut moves),
            CollectiveKind::AllGather => self.all_gather(&mut moves),
            CollectiveKind::ReduceScatter => self.reduce_scatter(&mut moves),
            CollectiveKind::AllToAll => self.all_to_all(&mut moves),
            CollectiveKind::Broadcast => {
                let count = self.call.dst_shape.iter().product();
                moves.push(self.among(AmongKind::Broadcast, self.src, self.dst, count));
            }
            // invariant: validation refuses it, and no program has one
            CollectiveKind::Permute => unreachable!("a permute"),
        }
        moves
    }

    fn size(&self) -> usize {
        self.call.dtype.bytes()
    }

    fn among(&self, kind: AmongKind, from: u64, to: u64, count: u64) -> Move {
        let (dtype, reduce) = (self.call.dtype, self.call.reduce);
        Move::Among(Among { kind, dtype, reduce, from, to, count })
    }

    /// Copies a block from a place in a tensor, starting at `at.1` of dim `at.0`, to the start of scratch.
    fn pack(
        &self,
        lens: &[usize],
        shape: &[usize],
        at: (usize, usize),
        to: (u64, &[usize]),
        moves: &mut Vec<Move>,
    ) {
        let zeros = vec![0; shape.len()];
        let start = with(&zeros, at.0, at.1);
        let from = Place { address: self.src, shape, start: &start };
        copy(lens, from, Place { address: to.0, shape: to.1, start: &zeros }, self.size(), moves);
    }

    /// Copies a block from the start of scratch to a place in the target.
    fn unpack(
        &self,
        lens: &[usize],
        from: (u64, &[usize]),
        shape: &[usize],
        at: (usize, usize),
        moves: &mut Vec<Move>,
    ) {
        let zeros = vec![0; shape.len()];
        let start = with(&zeros, at.0, at.1);
        let from = Place { address: from.0, shape: from.1, start: &zeros };
        copy(lens, from, Place { address: self.dst, shape, start: &start }, self.size(), moves);
    }

    fn all_reduce(&self, moves: &mut Vec<Move>) {
        let shape = extents(&self.call.dst_shape);
        let count = product(&self.there);
        if is_prefix(&self.there, &shape) {
            moves.push(self.among(AmongKind::AllReduce, self.src, self.dst, count));
            return;
        }
        let packed = self.scratch[0];
        self.pack(&self.there, &shape, (0, 0), (packed, &self.there), moves);
        moves.push(self.among(AmongKind::AllReduce, packed, packed, count));
        self.unpack(&self.there, (packed, &self.there), &shape, (0, 0), moves);
    }

    fn all_gather(&self, moves: &mut Vec<Move>) {
        let c = self.call;
        let (src, dst, dim) = (extents(&c.src_shape), extents(&c.dst_shape), c.concat_dim as usize);
        // What every member gives: its piece at full size, of what is there along the other dims.
        let piece = with(&self.there, dim, src[dim].min(self.there[dim]));
        let count = product(&piece);
        let spans: Vec<_> = (0..self.members).map(|j| member_span(dst[dim], &c.axes, j)).collect();
        let from = if is_prefix(&piece, &src) {
            self.src
        } else {
            self.pack(&piece, &src, (0, 0), (self.scratch[0], &piece), moves);
            self.scratch[0]
        };
        // Pieces one behind the other along the outermost dim are the result as they come.
        let in_place = piece[dim] == src[dim]
            && is_prefix(&with(&self.there, dim, src[dim] * self.members), &dst)
            && self.there[..dim].iter().all(|&n| n == 1)
            && spans.iter().enumerate().all(|(j, s)| s.len == src[dim] && s.start == j * src[dim]);
        if in_place {
            moves.push(self.among(AmongKind::AllGather, from, self.dst, count));
            return;
        }
        moves.push(self.among(AmongKind::AllGather, from, self.scratch[1], count));
        for (j, span) in spans.iter().enumerate() {
            let len = span.len.min(self.there[dim].saturating_sub(span.start));
            let at = self.scratch[1] + j as u64 * count * self.size() as u64;
            self.unpack(&with(&self.there, dim, len), (at, &piece), &dst, (dim, span.start), moves);
        }
    }

    fn reduce_scatter(&self, moves: &mut Vec<Move>) {
        let c = self.call;
        let (src, dst, dim) = (extents(&c.src_shape), extents(&c.dst_shape), c.split_dim as usize);
        let piece = with(&self.there, dim, dst[dim]);
        let count = product(&piece);
        let spans: Vec<_> = (0..self.members).map(|j| member_span(src[dim], &c.axes, j)).collect();
        let adjacent = is_prefix(&with(&self.there, dim, src[dim]), &src)
            && self.there[..dim].iter().all(|&n| n == 1)
            && self.there[dim] == src[dim]
            && spans.iter().enumerate().all(|(j, s)| s.len == dst[dim] && s.start == j * dst[dim]);
        let from = if adjacent {
            self.src
        } else {
            for (j, span) in spans.iter().enumerate() {
                let len = span.len.min(self.there[dim].saturating_sub(span.start));
                let at = self.scratch[0] + j as u64 * count * self.size() as u64;
                self.pack(&with(&self.there, dim, len), &src, (dim, span.start), (at, &piece), moves);
            }
            self.scratch[0]
        };
        let len = self.kept(spans[self.own].start, spans[self.own].len, dst[dim], dim, moves);
        if is_prefix(&piece, &dst) && len == dst[dim] {
            moves.push(self.among(AmongKind::ReduceScatter, from, self.dst, count));
            return;
        }
        moves.push(self.among(AmongKind::ReduceScatter, from, self.scratch[1], count));
        self.unpack(&with(&self.there, dim, len), (self.scratch[1], &piece), &dst, (dim, 0), moves);
    }

    fn all_to_all(&self, moves: &mut Vec<Move>) {
        let c = self.call;
        let (src, dst) = (extents(&c.src_shape), extents(&c.dst_shape));
        let (split, concat) = (c.split_dim as usize, c.concat_dim as usize);
        let piece = with(&with(&self.there, split, dst[split]), concat, src[concat]);
        let count = product(&piece);
        let bytes = count * self.size() as u64;
        let held = |whole: usize, j: usize| member_span(whole, &c.axes, j);
        let own = held(dst[concat], self.own);
        let own_len = own.len.min(self.there[concat].saturating_sub(own.start));
        for j in 0..self.members {
            let span = held(src[split], j);
            let len = span.len.min(self.there[split].saturating_sub(span.start));
            let lens = with(&with(&self.there, split, len), concat, own_len);
            let to = (self.scratch[0] + j as u64 * bytes, &piece[..]);
            self.pack(&lens, &src, (split, span.start), to, moves);
        }
        moves.push(self.among(AmongKind::AllToAll, self.scratch[0], self.scratch[1], count));
        let kept = held(src[split], self.own);
        let len = self.kept(kept.start, kept.len, dst[split], split, moves);
        for j in 0..self.members {
            let span = held(dst[concat], j);
            let count = span.len.min(self.there[concat].saturating_sub(span.start));
            let lens = with(&with(&self.there, split, len), concat, count);
            let from = (self.scratch[1] + j as u64 * bytes, &piece[..]);
            self.unpack(&lens, from, &dst, (concat, span.start), moves);
        }
    }

    /// How much is there of the piece that this device keeps, of a dim in which pieces have `piece` indices. The tail of a short piece is
    /// zero, unless nothing beyond what is there is written.
    fn kept(&self, start: usize, len: usize, piece: usize, dim: usize, moves: &mut Vec<Move>) -> usize {
        let clipped = self.call.there.get(dim).is_some_and(|e| e.clip.is_some());
        if len < piece && !clipped {
            let bytes = self.call.dst_shape.iter().product::<u64>() * self.size() as u64;
            moves.push(Move::Zero { at: self.dst, bytes });
        }
        len.min(self.there[dim].saturating_sub(start))
    }
}
