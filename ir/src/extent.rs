//! How far the loops of an instruction run.
//!
//! Local shapes are the same on every device and at every run: a piece of a dim that is split unevenly has padding at its tail, a
//! micro-batch may have fewer rows than a full one, a run fewer positions than compiled for. An [`Extent`] knows the whole and
//! which part of it is there: an instruction whose loops are clipped to that part neither reads nor writes the rest.
//!
//! Buffers are as large as the whole, and strides are theirs, whatever is clipped: an address depends on no run.

use crate::mesh::{AxisRef, Mesh};
use crate::program::BatchPlan;
use crate::sharding::{Span, local_extent, span};
use serde::{Deserialize, Serialize};

/// The extent of a loop. In JSON a number unless it is clipped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Extent {
    /// Iterations over the whole: what bounds and checks of memory go by.
    pub full: u64,
    /// Which of them are run; all without one.
    pub clip: Option<Box<Clip>>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Full(u64),
    Clipped { full: u64, clip: Box<Clip> },
}

impl From<Written> for Extent {
    fn from(w: Written) -> Self {
        match w {
            Written::Full(full) => Extent { full, clip: None },
            Written::Clipped { full, clip } => Extent { full, clip: Some(clip) },
        }
    }
}

impl From<Extent> for Written {
    fn from(e: Extent) -> Self {
        match e.clip {
            None => Written::Full(e.full),
            Some(clip) => Written::Clipped { full: e.full, clip },
        }
    }
}

/// The part of a dim that a loop runs over: always its first indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Clip {
    pub part: Part,
    /// Extent of the dim over all devices.
    pub global: u64,
    /// The axes that split it.
    pub axes: Vec<AxisRef>,
    /// Iterations for each index of the dim: the product of the dims that are merged into the loop inside of it.
    pub inner: u64,
}

/// What decides which indices of a device's piece of a dim are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The piece itself: `span.len`, known when the program is loaded.
    Piece,
    /// Rows of the batch that the run has, of those the piece holds: the dim is `replicas * rows` long (see [`BatchPlan`]).
    Rows,
    /// Positions of the sequence that the run has, of those the piece holds.
    Seq,
}

/// What a run has: which rows of a micro-batch, and how many positions.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: BatchPlan,
    /// Rows of the run, over all replicas and micro-batches.
    pub rows: usize,
    pub micro_batch: usize,
    /// Positions of the sequence; all that were compiled for without one.
    pub seq: Option<usize>,
}

impl Sizes {
    /// What a full run has in every micro-batch.
    pub fn full(batch: BatchPlan) -> Self {
        let rows = batch.replicas.saturating_mul(batch.micro_batches).saturating_mul(batch.rows());
        Self { batch, rows, micro_batch: 0, seq: None }
    }

    /// Of the indices `piece` of a dim, how many from the first one on reach to the last that is there.
    pub fn of(&self, part: Part, piece: Span) -> usize {
        match part {
            Part::Piece => piece.len,
            Part::Seq => self.seq.map_or(piece.len, |n| n.saturating_sub(piece.start).min(piece.len)),
            Part::Rows => self.rows_of(piece),
        }
    }

    /// The last replica of the piece that has a row decides: its rows are the last ones, whatever those before it lack.
    fn rows_of(&self, piece: Span) -> usize {
        let (start, end) = (piece.start, piece.start + piece.len);
        let Some(last) = self.batch.last_replica(self.rows, self.micro_batch).filter(|_| piece.len > 0)
        else {
            return 0;
        };
        let capacity = self.batch.rows();
        let replica = last.min((end - 1) / capacity);
        let there = replica * capacity + self.batch.cell(self.rows, replica, self.micro_batch).len();
        there.min(end).saturating_sub(start)
    }
}

impl From<u64> for Extent {
    fn from(full: u64) -> Self {
        Self::full(full)
    }
}

impl Extent {
    /// A loop over all of `full`.
    pub fn full(full: u64) -> Self {
        Self { full, clip: None }
    }

    /// A loop over a part of `full`.
    pub fn part(full: u64, clip: Option<Clip>) -> Self {
        Self { full, clip: clip.map(Box::new) }
    }

    /// The loop with another of `inner` iterations merged into it.
    pub fn times(&self, inner: u64) -> Self {
        let clip = self.clip.as_deref().map(|c| Clip { inner: c.inner.saturating_mul(inner), ..c.clone() });
        Self { full: self.full.saturating_mul(inner), clip: clip.map(Box::new) }
    }

    /// Iterations on the device at a position of its stage, for one micro-batch of a run.
    pub fn on(&self, mesh: &Mesh, position: usize, sizes: &Sizes) -> u64 {
        let there = |c: &Clip| c.valid(span(mesh, position, c.global as usize, &c.axes), sizes);
        self.clip.as_ref().map_or(self.full, |c| there(c).min(self.full))
    }
}

impl Clip {
    /// Iterations for a device that holds `piece` of the dim.
    pub fn valid(&self, piece: Span, sizes: &Sizes) -> u64 {
        (sizes.of(self.part, piece) as u64).saturating_mul(self.inner)
    }

    /// Iterations over a whole piece, padding included.
    pub fn whole(&self) -> u64 {
        (local_extent(self.global as usize, &self.axes) as u64).saturating_mul(self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Axis;

    fn clipped(part: Part, full: u64, global: u64, axes: Vec<AxisRef>, inner: u64) -> Extent {
        Extent { full, clip: Some(Box::new(Clip { part, global, axes, inner })) }
    }

    #[test]
    fn pieces_rows_and_positions() {
        let mesh = Mesh { dp: 2, tp: 8, ..Mesh::default() };
        let (dp, tp) = (mesh.whole(Axis::Dp), mesh.whole(Axis::Tp));
        // 7 rows in 2 x 2 cells: 2, 2, 2, 1.
        let batch = BatchPlan { batch: 8, replicas: 2, micro_batches: 2 };
        let sizes = |micro_batch| Sizes { batch, rows: 7, micro_batch, seq: Some(5) };
        let heads = clipped(Part::Piece, 128, 12, vec![tp], 64);
        let all: Vec<_> = (0..8).map(|d| heads.on(&mesh, d, &sizes(0))).collect();
        assert_eq!(all, [128, 128, 128, 128, 128, 128, 0, 0]);
        let seq = clipped(Part::Seq, 2, 16, vec![tp], 1);
        let all: Vec<_> = (0..8).map(|d| seq.on(&mesh, d, &sizes(0))).collect();
        assert_eq!(all, [2, 2, 1, 0, 0, 0, 0, 0]);
        let rows = clipped(Part::Rows, 6, 4, vec![dp], 3);
        let all: Vec<_> = [0, 8].map(|d| [0, 1].map(|m| rows.on(&mesh, d, &sizes(m)))).into();
        assert_eq!(all, [[6, 6], [6, 3]]);
        // A device that holds the rows of both replicas runs to the last one that is there.
        let both = clipped(Part::Rows, 4, 4, Vec::new(), 1);
        assert_eq!([0, 1].map(|m| both.on(&mesh, 0, &sizes(m))), [4, 3]);
        let few = Sizes { rows: 1, ..sizes(0) };
        assert_eq!(both.on(&mesh, 0, &few), 1);
        assert_eq!(both.on(&mesh, 0, &Sizes { micro_batch: 1, ..few }), 0);
        assert_eq!(both.on(&mesh, 0, &Sizes::full(batch)), 4);
        assert_eq!(Extent::full(9).on(&mesh, 3, &few), 9);
    }

    /// Row by row: a piece reaches to its last row that some cell has.
    #[test]
    fn rows_by_counting() {
        for (replicas, micro_batches, batch) in [(1, 1, 3), (3, 2, 12), (2, 3, 7), (5, 1, 4), (4, 2, 8)] {
            let batch = BatchPlan { batch, replicas, micro_batches };
            let capacity = batch.rows();
            for (rows, micro_batch) in (0..=batch.batch).flat_map(|n| (0..micro_batches).map(move |m| (n, m)))
            {
                let sizes = Sizes { batch, rows, micro_batch, seq: None };
                let there =
                    |row: &usize| row % capacity < batch.cell(rows, row / capacity, micro_batch).len();
                for (start, end) in (0..=replicas * capacity).flat_map(|e| (0..=e).map(move |s| (s, e))) {
                    let wanted = (start..end).rfind(there).map_or(0, |row| row + 1 - start);
                    let piece = Span { start, len: end - start };
                    assert_eq!(sizes.of(Part::Rows, piece), wanted, "{sizes:?} {piece:?}");
                }
            }
        }
    }

    #[test]
    fn a_full_extent_is_a_number_in_json() {
        let text = |e: &Extent| serde_json::to_string(e).unwrap();
        assert_eq!(text(&Extent::full(7)), "7");
        let e = clipped(Part::Seq, 10, 10, Vec::new(), 1);
        let back: Extent = serde_json::from_str(&text(&e)).unwrap();
        assert_eq!(back, e);
        assert_eq!(serde_json::from_str::<Extent>("7").unwrap(), Extent::full(7));
    }
}
