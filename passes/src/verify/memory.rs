//! What the buffers of one call hold while its instructions run: which parts were written, and which values they depend on.

use super::cuts::{Cut, Cuts, Path, joined};
use super::footprint::Footprint;
use std::cell::Cell;
use std::collections::BTreeMap;

/// A set of small numbers: the roots (arguments, constants, products, collectives) that something depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Roots {
    /// Words before the first that is kept: what a value depends on mostly stands close together.
    skipped: usize,
    words: Vec<u64>,
}

impl Roots {
    pub(super) fn one(root: usize) -> Self {
        Self { skipped: root / 64, words: vec![1 << (root % 64)] }
    }

    fn word(&self, at: usize) -> u64 {
        at.checked_sub(self.skipped).and_then(|i| self.words.get(i)).copied().unwrap_or(0)
    }

    pub(super) fn join(&mut self, other: &Roots) {
        if other.words.is_empty() {
            return;
        }
        if self.words.is_empty() {
            self.skipped = other.skipped;
        }
        if let Some(more) = self.skipped.checked_sub(other.skipped) {
            self.words.splice(..0, std::iter::repeat_n(0, more));
            self.skipped = other.skipped;
        }
        let at = other.skipped - self.skipped;
        if self.words.len() < at + other.words.len() {
            self.words.resize(at + other.words.len(), 0);
        }
        self.words[at..].iter_mut().zip(&other.words).for_each(|(a, b)| *a |= b);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.without(&Roots::default()).into_iter()
    }

    /// Members of `self` that `other` lacks.
    pub(super) fn without(&self, other: &Roots) -> Vec<usize> {
        let words = self.words.iter().zip(self.skipped..).map(|(&w, at)| (at, w & !other.word(at)));
        words.flat_map(|(at, w)| (0..64).filter(move |b| w >> b & 1 == 1).map(move |b| at * 64 + b)).collect()
    }

    /// Whether all members are in `other`.
    pub(super) fn within(&self, other: &Roots) -> bool {
        self.words.iter().zip(self.skipped..).all(|(&w, at)| w & !other.word(at) == 0)
    }

    /// Members of both.
    pub(super) fn common(&self, other: &Roots) -> Roots {
        let words = self.words.iter().zip(self.skipped..).map(|(&w, at)| w & other.word(at)).collect();
        Roots { skipped: self.skipped, words }
    }
}

/// A write that left holes, and when.
#[derive(Clone, Debug)]
struct Piece {
    time: u64,
    /// The instruction.
    by: usize,
    box_: Footprint,
    roots: Roots,
    cuts: Cuts,
}

/// A run of bytes with one history.
#[derive(Clone, Debug)]
struct Run {
    end: u64,
    /// `None`: never written as a whole.
    held: Option<Roots>,
    /// Number of the write that made it, unless it was there from the start.
    write: Option<usize>,
    /// Writes with holes since then.
    pieces: Vec<Piece>,
    /// What the write as a whole left out.
    cuts: Cuts,
}

/// A write of a whole box.
#[derive(Clone, Debug)]
struct Write {
    /// The instruction.
    by: usize,
    /// Runs that are left of it.
    runs: usize,
    /// Whether anything has read some of it.
    read: Cell<bool>,
    /// The instruction that overwrote a part of it, unless it holds only constants (a border around what is written inside).
    torn: Option<usize>,
    /// Whether it is such a border: where only what is inside is used, nobody reads it.
    border: bool,
}

/// One buffer.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    bytes: u64,
    runs: BTreeMap<u64, Run>,
    time: u64,
    /// Writes of whole boxes, by number.
    writes: Vec<Write>,
    /// A write that was overwritten unread.
    lost: Option<usize>,
}

impl Buffer {
    /// A buffer of which nothing is written.
    pub(super) fn empty(bytes: u64) -> Self {
        let whole = Run { end: bytes, held: None, write: None, pieces: Vec::new(), cuts: Vec::new() };
        Self { bytes, runs: BTreeMap::from([(0, whole)]), time: 0, writes: Vec::new(), lost: None }
    }

    /// A buffer that holds something from the start, but for what was left out.
    pub(super) fn full(bytes: u64, roots: Roots, cuts: &[Cut]) -> Self {
        let cuts = cuts.iter().map(|c| (0, c.clone())).collect();
        let whole = Run { end: bytes, held: Some(roots), write: None, pieces: Vec::new(), cuts };
        Self { bytes, runs: BTreeMap::from([(0, whole)]), time: 0, writes: Vec::new(), lost: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts the run that spans `at`.
    fn cut(&mut self, at: u64) {
        if let Some((&start, run)) = self.runs.range_mut(..at).next_back()
            && start < at
            && at < run.end
        {
            let tail = run.clone();
            run.end = at;
            if let Some(write) = run.write.and_then(|w| self.writes.get_mut(w)) {
                write.runs += 1;
            }
            self.runs.insert(at, tail);
        }
    }

    fn inside(&self, f: &Footprint) -> Result<(), String> {
        match f.end <= self.bytes {
            true => Ok(()),
            false => Err(format!("bytes {}..{} are outside its {} bytes", f.start, f.end, self.bytes)),
        }
    }

    /// Everything that the bytes of a box, touched along `path`, depend on.
    ///
    /// # Errors
    /// Bytes out of range, never written, left out by a write, or left over from a value that was overwritten in part.
    pub(super) fn read(&self, f: &Footprint, path: &Path) -> Result<Roots, String> {
        let roots = self.held(f)?;
        for run in self.runs_in(f) {
            let mut cuts = run.cuts.iter().chain(run.pieces.iter().flat_map(|p| &p.cuts));
            if let Some((_, cut)) = cuts.find(|(origin, cut)| !path.keeps(*origin, cut)) {
                return Err(format!(
                    "of a dim of {}, only the part that is there is written ({:?}), but more is read",
                    cut.count, cut.clip.part
                ));
            }
        }
        Ok(roots)
    }

    /// What is left out of the whole buffer.
    ///
    /// # Errors
    /// Its parts are not clipped alike.
    pub(super) fn cuts(&self) -> Result<Vec<Cut>, String> {
        let whole = Footprint { start: 0, end: self.bytes, bytes: self.bytes };
        let cuts: Vec<Cuts> = self
            .runs_in(&whole)
            .map(|run| run.cuts.iter().chain(run.pieces.iter().flat_map(|p| &p.cuts)).cloned().collect())
            .collect();
        joined(&cuts, 0)
    }

    fn runs_in(&self, f: &Footprint) -> impl Iterator<Item = &Run> {
        let (start, end) = (f.start, f.end);
        let before = self.runs.range(..=start).next_back().map_or(start, |(&s, _)| s);
        self.runs.range(before..end.max(before)).map(|(_, run)| run).filter(move |run| run.end > start)
    }

    /// Everything that the bytes of a box depend on, whether it was left out or not.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    pub(super) fn held(&self, f: &Footprint) -> Result<Roots, String> {
        self.inside(f)?;
        let mut roots = Roots::default();
        let before = self.runs.range(..=f.start).next_back().map(|(&s, _)| s).unwrap_or(f.start);
        for (&start, run) in self.runs.range(before..f.end) {
            if run.end <= f.start {
                continue;
            }
            let Some(held) = &run.held else {
                let (from, to) = (start.max(f.start), run.end.min(f.end));
                return Err(format!("bytes {from}..{to} are read before they are written"));
            };
            if let Some(write) = run.write.and_then(|w| self.writes.get(w)) {
                write.read.set(true);
                if let Some(by) = write.torn {
                    return Err(format!(
                        "instruction {by} has overwritten a part of what instruction {} wrote",
                        write.by
                    ));
                }
            }
            if let Some(piece) = run.pieces.last().filter(|_| !held.is_empty()) {
                return Err(format!("instruction {} has overwritten a part of what was there", piece.by));
            }
            roots.join(held);
            run.pieces.iter().for_each(|p| roots.join(&p.roots));
        }
        Ok(roots)
    }

    /// The write that the last one overwrote before anything had read it.
    pub(super) fn lost(&self) -> Option<usize> {
        self.lost
    }

    /// Instruction `by` writes a box.
    pub(super) fn write(
        &mut self,
        f: &Footprint,
        path: &Path,
        roots: &Roots,
        by: usize,
    ) -> Result<(), String> {
        self.inside(f)?;
        let cuts = path.cuts()?;
        if f.is_dense() {
            self.replace(f, roots.clone(), cuts, by);
            return Ok(());
        }
        self.write_piece(f, roots, cuts, by)
    }

    /// Writes some of the bytes of a box, known only at run time: the rest stay, and are not what they should be where `cuts` left them
    /// out.
    pub(super) fn write_some(&mut self, f: &Footprint, roots: &Roots, cuts: Vec<Cut>) -> Result<(), String> {
        self.inside(f)?;
        let cuts: Cuts = cuts.into_iter().map(|c| (f.start, c)).collect();
        self.cut(f.start);
        self.cut(f.end);
        for (_, run) in self.runs.range_mut(f.start..f.end) {
            if let Some(held) = &mut run.held {
                held.join(roots);
                run.cuts.extend(cuts.iter().filter(|c| !run.cuts.contains(c)).cloned().collect::<Vec<_>>());
            }
        }
        Ok(())
    }

    fn replace(&mut self, f: &Footprint, roots: Roots, cuts: Vec<Cut>, by: usize) {
        self.cut(f.start);
        self.cut(f.end);
        let gone: Vec<u64> = self.runs.range(f.start..f.end).map(|(&s, _)| s).collect();
        let gone: Vec<Run> = gone.iter().filter_map(|s| self.runs.remove(s)).collect();
        self.lost = None;
        for write in gone.iter().filter_map(|run| run.write) {
            self.writes[write].runs -= 1;
        }
        for run in gone {
            let Some(write) = run.write.and_then(|w| self.writes.get_mut(w)) else { continue };
            let constant = run.held.is_some_and(|h| h.is_empty());
            match write.runs > 0 {
                true if !constant => write.torn = Some(by),
                true => write.border = true,
                false if !write.read.get() && write.torn.is_none() && !write.border => {
                    self.lost = Some(write.by);
                }
                _ => {}
            }
        }
        let write = Some(self.writes.len());
        self.writes.push(Write { by, runs: 1, read: Cell::new(false), torn: None, border: false });
        let cuts = cuts.into_iter().map(|c| (f.start, c)).collect();
        self.runs.insert(f.start, Run { end: f.end, held: Some(roots), write, pieces: Vec::new(), cuts });
    }

    /// A write with holes. When the latest such writes have filled their common hull, what was there before is gone.
    fn write_piece(&mut self, f: &Footprint, roots: &Roots, cuts: Vec<Cut>, by: usize) -> Result<(), String> {
        self.time += 1;
        let cuts = cuts.into_iter().map(|c| (f.start, c)).collect();
        let new = Piece { time: self.time, by, box_: *f, roots: roots.clone(), cuts };
        self.cut(f.start);
        self.cut(f.end);
        let mut recent: Vec<Piece> = Vec::new();
        for (_, run) in self.runs.range_mut(f.start..f.end) {
            run.pieces.push(new.clone());
            let unseen = |p: &&Piece| recent.iter().all(|r| r.time != p.time);
            let more: Vec<Piece> = run.pieces.iter().filter(unseen).cloned().collect();
            recent.extend(more);
        }
        recent.sort_by_key(|p| std::cmp::Reverse(p.time));
        let (mut hull, mut bytes, mut all) = (*f, 0, Roots::default());
        for (i, piece) in recent.iter().enumerate() {
            hull = Footprint {
                start: hull.start.min(piece.box_.start),
                end: hull.end.max(piece.box_.end),
                bytes: 0,
            };
            bytes += piece.box_.bytes;
            all.join(&piece.roots);
            if bytes == hull.end - hull.start {
                let cuts = joined(recent[..=i].iter().map(|p| &p.cuts), hull.start)?;
                self.replace(&hull, all, cuts, by);
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of the buffer is there.
    fn all() -> Path {
        Path::default()
    }

    fn at(start: u64, end: u64) -> Footprint {
        Footprint { start, end, bytes: end - start }
    }

    #[test]
    fn halves_of_rows_make_a_whole_and_forget_what_was_there() {
        let mut b = Buffer::empty(96);
        let half = |offset| Footprint::of(offset, 4, &[(3, 8), (4, 1)]).unwrap();
        b.write(&half(0), &all(), &Roots::one(1), 1).unwrap();
        assert!(b.read(&at(0, 96), &all()).unwrap_err().contains("before they are written"));
        b.write(&half(16), &all(), &Roots::one(2), 2).unwrap();
        assert_eq!(b.read(&at(0, 96), &all()).unwrap().iter().collect::<Vec<_>>(), [1, 2]);
        b.write(&half(0), &all(), &Roots::one(3), 3).unwrap();
        assert!(b.read(&at(0, 96), &all()).unwrap_err().contains("instruction 3 has overwritten a part"));
        b.write(&half(16), &all(), &Roots::one(70), 4).unwrap();
        assert_eq!(b.read(&at(0, 96), &all()).unwrap().iter().collect::<Vec<_>>(), [3, 70]);
    }

    #[test]
    fn a_value_overwritten_unread_or_in_part_is_noticed() {
        let mut b = Buffer::empty(64);
        b.write(&at(0, 32), &all(), &Roots::one(1), 1).unwrap();
        b.write(&at(32, 64), &all(), &Roots::one(1), 2).unwrap();
        b.read(&at(32, 64), &all()).unwrap();
        b.write(&at(16, 64), &all(), &Roots::one(1), 3).unwrap();
        assert_eq!(b.lost(), None);
        assert!(b.read(&at(0, 16), &all()).unwrap_err().contains("instruction 3 has overwritten a part"));
        b.write(&at(16, 64), &all(), &Roots::one(1), 4).unwrap();
        assert_eq!(b.lost(), Some(3));
        // A border of constants may be written inside.
        b.write(&at(0, 64), &all(), &Roots::default(), 5).unwrap();
        b.write(&at(16, 32), &all(), &Roots::one(2), 6).unwrap();
        assert_eq!(b.read(&at(0, 64), &all()).unwrap().iter().collect::<Vec<_>>(), [2]);
    }

    /// What is padded and cut to size again uses nothing of the border.
    #[test]
    fn a_border_may_go_unread_but_not_what_is_inside() {
        for inside_read in [true, false] {
            let mut b = Buffer::empty(64);
            b.write(&at(0, 64), &all(), &Roots::default(), 1).unwrap();
            b.write(&at(16, 32), &all(), &Roots::one(2), 2).unwrap();
            if inside_read {
                b.read(&at(16, 32), &all()).unwrap();
            }
            b.write(&at(0, 64), &all(), &Roots::one(3), 3).unwrap();
            assert_eq!(b.lost(), (!inside_read).then_some(2));
        }
        let mut b = Buffer::empty(64);
        b.write(&at(0, 64), &all(), &Roots::default(), 1).unwrap();
        b.write(&at(0, 64), &all(), &Roots::default(), 2).unwrap();
        assert_eq!(b.lost(), Some(1), "nothing inside: the constants were for nothing");
    }

    #[test]
    fn dense_writes_replace_and_others_add() {
        let mut b = Buffer::full(64, Roots::one(0), &[]);
        b.write(&at(16, 32), &all(), &Roots::one(1), 1).unwrap();
        assert_eq!(b.read(&at(0, 64), &all()).unwrap().iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(b.read(&at(16, 20), &all()).unwrap().iter().collect::<Vec<_>>(), [1]);
        b.write_some(&at(20, 40), &Roots::one(2), Vec::new()).unwrap();
        assert_eq!(b.read(&at(16, 20), &all()).unwrap().iter().collect::<Vec<_>>(), [1]);
        assert_eq!(b.read(&at(30, 34), &all()).unwrap().iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(b.read(&at(60, 68), &all()).unwrap_err().contains("outside"));
    }
}
