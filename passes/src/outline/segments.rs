//! Where to cut an entry into segments.
//!
//! Atoms lie between the places where one value is live; atoms of a repeated pattern are grouped by its period, others until they
//! hold a pair of weights, so that a column-parallel product can meet its row-parallel one inside a function. Where a graph
//! has long skip connections, more live values are allowed.

use super::canonical::Scope;
use pcc_ir::{Func, Op};
use std::collections::HashMap;
use std::ops::Range;

/// A piece of the entry's instruction list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A call the user wrote.
    Call(usize),
    /// The instructions that become a function.
    Part(Range<usize>),
}

/// Longest pattern of atoms that is looked for.
const PERIOD: usize = 64;
/// Most values that may be live at a cut.
const LIVE: usize = 8;
/// An atom with more weight products than this is cut where more values are live.
const LARGE: usize = 12;

/// How finely to cut: weight products a segment should have, and values that may be live at a cut.
#[derive(Clone, Copy)]
struct Fineness {
    weights: usize,
    live: usize,
}

/// Cuts the entry into segments, at least `min_calls` of them where the graph allows: the coarsest cut that does.
pub fn segments(f: &Func, scope: &Scope, min_calls: usize) -> Vec<Segment> {
    let cutter = Cutter::new(f, scope);
    let levels = [(2, 1), (1, 1), (0, 1), (0, 2), (0, 4), (0, LIVE)];
    let mut best: Vec<Segment> = Vec::new();
    for (weights, live) in levels {
        let cut = cutter.cut(Fineness { weights, live });
        if best.is_empty() || cut.len() > best.len() {
            best = cut;
        }
        if best.len() >= min_calls {
            break;
        }
    }
    best
}

struct Cutter<'a> {
    f: &'a Func,
    scope: &'a Scope,
    /// Values live just before each instruction, those that cheap instructions make not counted.
    live: Vec<usize>,
    /// Products with a weight before each instruction.
    weights: Vec<usize>,
}

impl<'a> Cutter<'a> {
    fn new(f: &'a Func, scope: &'a Scope) -> Self {
        let n = f.insts.len();
        let mut change = vec![0isize; n + 2];
        for (v, &at) in scope.made_by.iter().filter(|(_, at)| !scope.cheap[**at]) {
            let uses = scope.used_by.get(v).into_iter().flatten().filter(|i| !scope.cheap[**i]);
            if let Some(&last) = uses.max() {
                change[at + 1] += 1;
                change[last + 1] -= 1;
            }
        }
        let mut live = Vec::with_capacity(n + 1);
        let mut now = 0isize;
        for c in &change[..=n] {
            now += c;
            live.push(now.max(0) as usize);
        }
        let mut weights = vec![0; n + 1];
        for (i, inst) in f.insts.iter().enumerate() {
            let product =
                matches!(inst.op, Op::DotGeneral(_)) && inst.args.iter().any(|&v| scope.is_param(v));
            weights[i + 1] = weights[i] + usize::from(product);
        }
        Self { f, scope, live, weights }
    }

    fn cut(&self, how: Fineness) -> Vec<Segment> {
        let mut out = Vec::new();
        let mut start = 0;
        for (i, inst) in self.f.insts.iter().enumerate() {
            if matches!(inst.op, Op::Call(_)) {
                out.extend(self.run(start..i, how).into_iter().map(Segment::Part));
                out.push(Segment::Call(i));
                start = i + 1;
            }
        }
        out.extend(self.run(start..self.f.insts.len(), how).into_iter().map(Segment::Part));
        out
    }

    /// Segments of a run of instructions without calls.
    fn run(&self, range: Range<usize>, how: Fineness) -> Vec<Range<usize>> {
        let atoms = self.atoms(range, how.live);
        if atoms.is_empty() {
            return Vec::new();
        }
        // Equal atoms get equal numbers.
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let ids: Vec<usize> = atoms
            .iter()
            .map(|a| {
                let next = numbers.len();
                *numbers.entry(self.scope.extract(self.f, a.clone()).key).or_insert(next)
            })
            .collect();
        let mut out = Vec::new();
        self.group(&atoms, &ids, how, 16, &mut out);
        out
    }

    /// The pieces between cuts with at most `live` live values, none without a proper instruction; large ones are cut
    /// where more are live.
    fn atoms(&self, range: Range<usize>, live: usize) -> Vec<Range<usize>> {
        let mut out: Vec<Range<usize>> = Vec::new();
        let mut start = range.start;
        for i in range.start + 1..=range.end {
            if i < range.end && self.live[i] > live {
                continue;
            }
            let piece = start..i;
            start = i;
            let proper = piece.clone().any(|k| !self.scope.cheap[k]);
            match out.last_mut() {
                // A piece of cheap instructions belongs to what precedes it.
                Some(last) if !proper => last.end = i,
                None if !proper => {}
                _ if self.weight(&piece) > LARGE && live < LIVE => out.extend(self.atoms(piece, live + 1)),
                _ => out.push(piece),
            }
        }
        out
    }

    fn weight(&self, range: &Range<usize>) -> usize {
        self.weights[range.end] - self.weights[range.start]
    }

    /// Groups atoms: the longest repetition by its period, what is before and after it likewise, the rest by weights.
    fn group(
        &self,
        atoms: &[Range<usize>],
        ids: &[usize],
        how: Fineness,
        depth: usize,
        out: &mut Vec<Range<usize>>,
    ) {
        let weight =
            |start: usize, period: usize| self.weight(&(atoms[start].start..atoms[start + period - 1].end));
        let found = if depth == 0 { None } else { repetition(ids, |s, p| weight(s, p) > 0) };
        let Some((start, period, count)) = found else {
            self.by_weight(atoms, how, out);
            return;
        };
        let each = weight(start, period);
        // A period with one weight is taken twice, when it occurs often enough for that to repeat.
        let wanted = how.weights.div_ceil(each).max(1);
        let times = if count / wanted >= 2 { wanted } else { 1 };
        let step = period * times;
        let blocks = count / times;
        self.group(&atoms[..start], &ids[..start], how, depth - 1, out);
        for b in 0..blocks {
            let at = start + b * step;
            out.push(atoms[at].start..atoms[at + step - 1].end);
        }
        let end = start + blocks * step;
        self.group(&atoms[end..], &ids[end..], how, depth - 1, out);
    }

    /// Joins atoms until they hold the wanted number of weights and the next one has another.
    fn by_weight(&self, atoms: &[Range<usize>], how: Fineness, out: &mut Vec<Range<usize>>) {
        let mut open: Option<Range<usize>> = None;
        for atom in atoms {
            open = match open {
                Some(o) if how.weights > 0 && (self.weight(&o) < how.weights || self.weight(atom) == 0) => {
                    Some(o.start..atom.end)
                }
                Some(o) => {
                    out.push(o);
                    Some(atom.clone())
                }
                None => Some(atom.clone()),
            };
        }
        out.extend(open);
    }
}

/// The repetition that covers most: `(start, period, count)` with a count of at least 2; the shorter period and the earlier
/// start on ties. `worth(start, period)` says whether one period is worth a function.
fn repetition(ids: &[usize], worth: impl Fn(usize, usize) -> bool) -> Option<(usize, usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    for period in 1..=PERIOD.min(ids.len() / 2) {
        let mut start = 0;
        while start + period < ids.len() {
            let equal = (start..ids.len() - period).take_while(|&i| ids[i] == ids[i + period]).count();
            let count = equal / period + 1;
            let covers = |b: &(usize, usize, usize)| b.1 * b.2;
            if count >= 2 && best.as_ref().is_none_or(|b| period * count > covers(b)) && worth(start, period)
            {
                best = Some((start, period, count));
            }
            start += equal + 1;
        }
    }
    best
}
