//! Buffers of one function: which value lives where, and the frame plan.
//!
//! Arguments, results and constants are *slots*, bound by each call. Everything else is a *frame* buffer; frame buffers whose
//! live ranges do not meet share memory. The plan is first fit by decreasing size over the instruction order; of very many, by time.

use pcc_ir::program::{Base, InstrKind, Loc};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A buffer of the function being lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BufId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Slot(u32),
    Frame,
}

#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub bytes: u64,
    pub place: Place,
}

/// All frame offsets, slots and stage values start at multiples of this many bytes.
pub(crate) const ALIGN: u64 = 64;

pub(crate) fn align(n: u64) -> u64 {
    n.div_ceil(ALIGN) * ALIGN
}

/// A thing with a size and an inclusive live range, to be given an offset.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

/// Most intervals longer than [`Placed::SHORT`] that are compared with one another.
const MOST_LONG: usize = 512;

/// Offsets for intervals such that no two that are live at once overlap, and the total size.
pub(crate) fn plan(intervals: &[Interval]) -> (Vec<u64>, u64) {
    match intervals.iter().filter(|it| it.last - it.first > Placed::SHORT).count() {
        0..=MOST_LONG => plan_by_size(intervals),
        _ => plan_in_time(intervals),
    }
}

/// First fit by decreasing size.
fn plan_by_size(intervals: &[Interval]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (Reverse(intervals[i].bytes), intervals[i].first, i));
    let mut offsets = vec![0; intervals.len()];
    let mut placed = Placed::default();
    let mut total = 0;
    let mut busy: Vec<(u64, u64)> = Vec::new();
    for i in order {
        let it = &intervals[i];
        busy.clear();
        let meets = |j: usize| intervals[j].first <= it.last && it.first <= intervals[j].last;
        let met = placed.near(it).filter(|&j| meets(j));
        busy.extend(met.map(|j| (offsets[j], offsets[j] + align(intervals[j].bytes))));
        busy.sort_unstable();
        let mut at = 0;
        for &(from, to) in &busy {
            if at + align(it.bytes) <= from {
                break;
            }
            at = at.max(to);
        }
        offsets[i] = at;
        total = total.max(at + align(it.bytes));
        placed.add(i, it);
    }
    (offsets, total)
}

/// Each in the smallest hole that fits when it begins, as an allocator would. Takes somewhat more memory when sizes differ, and
/// `n log n` steps, however many are live at once.
fn plan_in_time(intervals: &[Interval]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..intervals.len()).filter(|&i| intervals[i].bytes > 0).collect();
    order.sort_by_key(|&i| (intervals[i].first, Reverse(intervals[i].bytes), i));
    let mut offsets = vec![0; intervals.len()];
    let mut holes = Holes::default();
    let mut live: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    for i in order {
        while let Some(&Reverse((last, over))) = live.peek()
            && last < intervals[i].first
        {
            live.pop();
            holes.free(offsets[over], offsets[over] + align(intervals[over].bytes));
        }
        offsets[i] = holes.take(align(intervals[i].bytes));
        live.push(Reverse((intervals[i].last, i)));
    }
    (offsets, holes.total)
}

/// The parts of an area that are free.
#[derive(Default)]
struct Holes {
    /// End of each by its start.
    ends: BTreeMap<u64, u64>,
    /// Size and start of each.
    sizes: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Holes {
    fn add(&mut self, start: u64, end: u64) {
        if start < end {
            self.ends.insert(start, end);
            self.sizes.insert((end - start, start));
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.ends.remove(&start);
        self.sizes.remove(&(end - start, start));
    }

    /// Joins a part with the holes on both sides.
    fn free(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &e)) = self.ends.range(..start).next_back()
            && e == start
        {
            self.remove(before, e);
            start = before;
        }
        if let Some(&after) = self.ends.get(&end) {
            self.remove(end, after);
            end = after;
        }
        self.add(start, end);
    }

    /// The start of the smallest hole of this size or more; the area grows where there is none.
    fn take(&mut self, size: u64) -> u64 {
        if let Some(&(free, start)) = self.sizes.range((size, 0)..).next() {
            self.remove(start, start + free);
            self.add(start + size, start + free);
            return start;
        }
        let last = self.ends.last_key_value().map(|(&s, &e)| (s, e)).filter(|l| l.1 == self.total);
        let start = last.map_or(self.total, |(start, end)| {
            self.remove(start, end);
            start
        });
        self.total = start + size;
        start
    }
}

/// Intervals by when they begin, so that those live around a time are found without a look at all the others.
#[derive(Default)]
struct Placed {
    short: BTreeSet<(usize, usize)>,
    /// Those that live longer than [`Placed::SHORT`]: few, or in one another's way.
    long: Vec<usize>,
}

impl Placed {
    const SHORT: usize = 32;

    fn add(&mut self, i: usize, it: &Interval) {
        if it.last - it.first <= Self::SHORT {
            self.short.insert((it.first, i));
        } else {
            self.long.push(i);
        }
    }

    /// At least all that are live at some time of the interval.
    fn near(&self, it: &Interval) -> impl Iterator<Item = usize> {
        let begins = (it.first.saturating_sub(Self::SHORT), 0)..=(it.last, usize::MAX);
        self.short.range(begins).map(|p| p.1).chain(self.long.iter().copied())
    }
}

/// Marks a location as "buffer b plus offset" until the frame is planned.
const PENDING: u32 = 1 << 31;

pub(super) fn pending(buf: BufId, offset: u64) -> Loc {
    Loc { base: Base::Slot(PENDING | buf.0), offset }
}

/// The buffer of a location that is not placed yet.
pub(super) fn pending_buffer(loc: &Loc) -> usize {
    match loc.base {
        Base::Slot(b) => (b & !PENDING) as usize,
        Base::Frame => 0,
    }
}

/// Visits every location of an instruction.
pub(super) fn locs(kind: &mut InstrKind) -> Vec<&mut Loc> {
    match kind {
        InstrKind::Kernel(l) => l.ptrs.iter_mut().collect(),
        InstrKind::Gemm(g) => vec![&mut g.a.loc, &mut g.b.loc, &mut g.c.loc],
        InstrKind::Attention(a) => a.locs_mut(),
        InstrKind::TopK(t) => t.locs_mut().into(),
        InstrKind::Sample(s) => s.locs_mut().into(),
        InstrKind::Rows(r) => vec![&mut r.table, &mut r.indices, &mut r.out],
        InstrKind::Collective(c) => vec![&mut c.src, &mut c.dst],
    }
}

/// Places the frame buffers used by `instrs`, those that are `shared` behind the others, and resolves every pending location. Returns
/// the frame size and how much of it is shared.
pub(super) fn place(buffers: &[Buffer], shared: &[bool], instrs: &mut [InstrKind]) -> (u64, u64) {
    let mut live: Vec<Option<(usize, usize)>> = vec![None; buffers.len()];
    for (at, kind) in instrs.iter_mut().enumerate() {
        for loc in locs(kind) {
            if let Base::Slot(b) = loc.base {
                let range = live[(b & !PENDING) as usize].get_or_insert((at, at));
                range.1 = at;
            }
        }
    }
    for at in 1..instrs.len() {
        if let [InstrKind::Gemm(gemm), InstrKind::Kernel(launch)] = &instrs[at - 1..=at]
            && launch.ptrs.iter().any(|p| p.base == gemm.c.loc.base)
        {
            // The kernel may run tile by tile with the product, which reads its operands until the last one.
            for base in [gemm.a.loc.base, gemm.b.loc.base] {
                if let Base::Slot(b) = base
                    && let Some(range) = &mut live[(b & !PENDING) as usize]
                {
                    range.1 = range.1.max(at);
                }
            }
        }
    }
    let mut offset_of = vec![0; buffers.len()];
    let mut place = |wanted: bool, from: u64| {
        let framed: Vec<usize> = (0..buffers.len())
            .filter(|&b| buffers[b].place == Place::Frame && live[b].is_some() && shared[b] == wanted)
            .collect();
        let intervals: Vec<Interval> = framed
            .iter()
            .filter_map(|&b| live[b].map(|(first, last)| Interval { bytes: buffers[b].bytes, first, last }))
            .collect();
        let (offsets, total) = plan(&intervals);
        for (&b, &o) in framed.iter().zip(&offsets) {
            offset_of[b] = from + o;
        }
        total
    };
    let private = place(false, 0);
    let common = place(true, private);
    for kind in instrs.iter_mut() {
        for loc in locs(kind) {
            if let Base::Slot(b) = loc.base {
                let b = (b & !PENDING) as usize;
                *loc = match buffers[b].place {
                    Place::Slot(s) => Loc { base: Base::Slot(s), offset: loc.offset },
                    Place::Frame => Loc { base: Base::Frame, offset: offset_of[b] + loc.offset },
                };
            }
        }
    }
    (private + common, common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_intervals_never_overlap_and_dead_ones_share() {
        let it = |bytes, first, last| Interval { bytes, first, last };
        let items = [it(100, 0, 2), it(64, 1, 3), it(100, 3, 5), it(64, 4, 5), it(1, 0, 5)];
        let (offsets, total) = plan(&items);
        for i in 0..items.len() {
            for j in 0..i {
                let meet = items[i].first <= items[j].last && items[j].first <= items[i].last;
                let apart =
                    offsets[i] + items[i].bytes <= offsets[j] || offsets[j] + items[j].bytes <= offsets[i];
                assert!(!meet || apart, "{i} and {j}");
            }
        }
        // 100 -> 128 once, 64 once, 1 -> 64 once.
        assert_eq!(total, 256);
    }

    #[test]
    fn many_intervals_are_placed_in_time() {
        let mut seed = 3u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let items: Vec<Interval> = (0..60)
                .map(|_| {
                    let first = random(40) as usize;
                    Interval { bytes: random(4) * 100, first, last: first + random(30) as usize }
                })
                .collect();
            let live = |t: usize| items.iter().filter(move |it| it.first <= t && t <= it.last);
            let least = (0..70).map(|t| live(t).map(|it| align(it.bytes)).sum::<u64>()).max().unwrap();
            for (offsets, total) in [plan_by_size(&items), plan_in_time(&items)] {
                for (i, a) in items.iter().enumerate() {
                    assert!(offsets[i] + align(a.bytes) <= total && offsets[i].is_multiple_of(ALIGN));
                    for (j, b) in items.iter().enumerate().take(i).filter(|(_, b)| a.bytes > 0 && b.bytes > 0)
                    {
                        let meet = a.first <= b.last && b.first <= a.last;
                        let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                        assert!(!meet || apart, "{i} and {j}");
                    }
                }
                assert!(total >= least && total <= 2 * least, "{total} for {least}");
            }
        }
        // Of one size, nothing is lost: 1000 at once, and again.
        let one = |i: usize| Interval { bytes: 64, first: i, last: i + 999 };
        assert_eq!(plan(&(0..3000).map(one).collect::<Vec<_>>()).1, 64_000);
    }
}
