//! Finds accesses to the same bytes that nothing orders, one of them a write.
//!
//! For every byte range of a memory: the last write, and the reads since. Work that is run later must be ordered behind them. Which order it
//! really ran in does not matter: of two pieces of work that nothing orders, the second to run does not have the first in its clock.

use crate::clock::{Clock, Moment};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One access of the past.
#[derive(Clone, Debug)]
struct Past {
    at: Moment,
    /// What the work was.
    what: Arc<str>,
}

/// Accesses to the bytes from a key of the map up to `end`.
#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    write: Option<Past>,
    /// At most one, the latest, per lane.
    reads: Vec<Past>,
}

/// Accesses to one memory.
#[derive(Debug, Default)]
pub struct History {
    segments: BTreeMap<u64, Segment>,
}

/// Who accesses now.
#[derive(Clone, Debug)]
pub struct Accessor<'a> {
    pub at: Moment,
    pub clock: &'a Clock,
    pub what: &'a Arc<str>,
}

/// Two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    pub bytes: Range<u64>,
    pub earlier: Arc<str>,
    pub earlier_writes: bool,
    pub later: Arc<str>,
    pub later_writes: bool,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |writes: bool| if writes { "writes" } else { "reads" };
        let Range { start, end } = self.bytes;
        write!(f, "race: {} {} bytes {start:#x}..{end:#x}, ", self.later, verb(self.later_writes))?;
        write!(f, "which {} {}; neither waits for the other ", self.earlier, verb(self.earlier_writes))?;
        write!(f, "(no event, stream order or synchronisation is between them)")
    }
}

impl History {
    /// Forgets a range: its memory was freed.
    pub fn forget(&mut self, range: Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        self.remove(range);
    }

    /// Notes a read or write, and tells the first earlier access that it races with.
    pub fn access(&mut self, range: Range<u64>, writes: bool, who: &Accessor<'_>) -> Option<Race> {
        if range.is_empty() {
            return None;
        }
        self.split(range.start);
        self.split(range.end);
        let found = self.unordered(range.clone(), writes, who);
        let now = Past { at: who.at, what: who.what.clone() };
        if writes {
            self.remove(range.clone());
            self.segments
                .insert(range.start, Segment { end: range.end, write: Some(now), reads: Vec::new() });
        } else {
            self.fill(range.clone());
            for segment in self.segments.range_mut(range).map(|(_, segment)| segment) {
                segment.reads.retain(|past| past.at.lane != who.at.lane);
                segment.reads.push(now.clone());
            }
        }
        found
    }

    /// The first earlier access within the range that the accessor is not ordered behind.
    fn unordered(&self, range: Range<u64>, writes: bool, who: &Accessor<'_>) -> Option<Race> {
        self.segments.range(range).find_map(|(&start, segment)| {
            let write = segment.write.iter().map(|past| (past, true));
            let reads = segment.reads.iter().filter(|_| writes).map(|past| (past, false));
            let (past, earlier_writes) = write.chain(reads).find(|(past, _)| !who.clock.has(past.at))?;
            Some(Race {
                bytes: start..segment.end,
                earlier: past.what.clone(),
                earlier_writes,
                later: who.what.clone(),
                later_writes: writes,
            })
        })
    }

    /// Removes segments that start within a range.
    fn remove(&mut self, range: Range<u64>) {
        let inside: Vec<u64> = self.segments.range(range).map(|(&start, _)| start).collect();
        for start in inside {
            self.segments.remove(&start);
        }
    }

    /// Lets a segment boundary lie at an address.
    fn split(&mut self, at: u64) {
        let Some((&start, segment)) = self.segments.range_mut(..at).next_back() else { return };
        if start < at && at < segment.end {
            let tail = segment.clone();
            segment.end = at;
            self.segments.insert(at, tail);
        }
    }

    /// Gives bytes of the range that have no history an empty one.
    fn fill(&mut self, range: Range<u64>) {
        let covered: Vec<Range<u64>> =
            self.segments.range(range.clone()).map(|(&start, s)| start..s.end).collect();
        let mut from = range.start;
        for part in covered.into_iter().chain(std::iter::once(range.end..range.end)) {
            if from < part.start {
                let empty = Segment { end: part.start, write: None, reads: Vec::new() };
                self.segments.insert(from, empty);
            }
            from = part.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Lane;

    fn who<'a>(at: Moment, clock: &'a Clock, what: &'a Arc<str>) -> Accessor<'a> {
        Accessor { at, clock, what }
    }

    #[test]
    fn unordered_writes_race_and_ordered_ones_do_not() {
        let (mut history, mut a, mut b) = (History::default(), Clock::default(), Clock::default());
        let (x, y): (Arc<str>, Arc<str>) = ("copy x".into(), "copy y".into());
        let first = a.advance(Lane(0));
        assert_eq!(history.access(0..100, true, &who(first, &a, &x)), None);
        let second = b.advance(Lane(1));
        // Bytes that only touch are no race.
        assert_eq!(history.access(100..120, true, &who(second, &b, &y)), None);
        let race = history.access(90..95, false, &who(second, &b, &y)).unwrap();
        assert_eq!((race.bytes, race.earlier_writes, race.later_writes), (90..95, true, false));
        b.join(&a);
        let third = b.advance(Lane(1));
        assert_eq!(history.access(0..120, true, &who(third, &b, &y)), None);
    }

    #[test]
    fn reads_race_with_writes_only() {
        let mut history = History::default();
        let mut clocks = [Clock::default(), Clock::default(), Clock::default()];
        let name: Arc<str> = "work".into();
        for lane in 0..2 {
            let at = clocks[lane as usize].advance(Lane(lane));
            assert_eq!(history.access(8..16, false, &who(at, &clocks[lane as usize], &name)), None);
        }
        // Ordered behind the first reader, not behind the second.
        let [first, _, third] = &mut clocks;
        third.join(first);
        let at = third.advance(Lane(2));
        let race = history.access(0..9, true, &who(at, third, &name)).unwrap();
        assert_eq!((race.bytes, race.earlier_writes), (8..9, false));
        history.forget(0..100);
        assert_eq!(history.access(0..9, true, &who(at, &Clock::default(), &name)), None);
    }
}
