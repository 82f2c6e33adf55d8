//! Vector clocks: which work is ordered before which.
//!
//! A *lane* is a chain of work that is ordered by itself: a stream, or a stream as it was captured in a graph. Work has a tick in its lane and
//! a clock, which says for each lane up to which tick its work is ordered before. (Mattern 1989; FastTrack, Flanagan and Freund 2009.)

/// A lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u32);

/// Work: tick `tick` (from 1) of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub lane: Lane,
    pub tick: u64,
}

/// For each lane, the last tick that is ordered before; 0 and absent mean none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(Vec<u64>);

impl Clock {
    /// What is ordered before either.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// The next work of a lane, ordered behind all that this clock has; it becomes part of the clock.
    pub fn advance(&mut self, lane: Lane) -> Moment {
        let index = lane.0 as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] += 1;
        Moment { lane, tick: self.0[index] }
    }

    /// Whether work is ordered before (or is of) this clock.
    pub fn has(&self, moment: Moment) -> bool {
        self.0.get(moment.lane.0 as usize).is_some_and(|&tick| tick >= moment.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_ordered_by_lanes_and_joins_alone() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        let first = a.advance(Lane(0));
        let other = b.advance(Lane(3));
        assert!(a.has(first) && !b.has(first) && !a.has(other));
        b.join(&a);
        let later = a.advance(Lane(0));
        assert!(b.has(first) && !b.has(later));
        assert_eq!(later, Moment { lane: Lane(0), tick: 2 });
    }
}
