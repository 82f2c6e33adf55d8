//! Parts of buffers that an instruction leaves out, and whether later ones stay out of them.
//!
//! A loop that is clipped writes the first indices of a dim only. In the buffer this shows as a *cut*: of the addresses from an origin on,
//! those whose digit `(address / unit) % count` is beyond what the clip allows hold nothing. Whatever reads there must run its own loop
//! over that digit and clip it alike. This is decided on strides and extents alone, for every device and every run at once.

use pcc_ir::{Clip, Extent};

/// Addresses that are not written: those whose digit is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cut {
    /// Bytes from one index to the next.
    pub unit: u64,
    /// Indices, all told. A single one is there or not whatever its unit: 0.
    pub count: u64,
    /// What is there, for one iteration an index.
    pub clip: Clip,
    /// Bytes from the start of an index to the last that is touched of it.
    reach: u64,
}

/// The cuts of a region, and where it begins.
pub(super) type Cuts = Vec<(u64, Cut)>;

/// One loop of an access: bytes from one iteration to the next.
#[derive(Clone, Debug)]
struct Loop {
    full: u64,
    stride: i128,
    clip: Option<Clip>,
}

/// All addresses of an access.
#[derive(Clone, Debug, Default)]
pub(super) struct Path {
    start: u64,
    size: u64,
    loops: Vec<Loop>,
    /// Clips of the whole instruction: where one allows nothing, nothing is touched.
    all: Vec<Clip>,
}

/// A clip for one iteration an index.
fn single(clip: &Clip) -> Clip {
    Clip { inner: 1, ..clip.clone() }
}

impl Path {
    /// An access of elements of `size` bytes through loops with strides in elements, of an instruction with these extents.
    pub(super) fn new(start: u64, size: u64, steps: &[(Extent, i64)], all: &[&Extent]) -> Self {
        let one = |(e, stride): &(Extent, i64)| Loop {
            full: e.full,
            stride: i128::from(*stride) * i128::from(size),
            clip: e.clip.as_deref().cloned(),
        };
        let all = all.iter().filter_map(|e| e.clip.as_deref()).map(single).collect();
        Self { start, size, loops: steps.iter().map(one).collect(), all }
    }

    /// What a write through this path leaves out.
    ///
    /// # Errors
    /// The loops do not lie as the dims of a tensor do.
    pub(super) fn cuts(&self) -> Result<Vec<Cut>, String> {
        let mut cuts = Vec::new();
        for (i, l) in self.loops.iter().enumerate() {
            let Some(clip) = &l.clip else { continue };
            if clip.inner == 0 || l.full == 0 || !l.full.is_multiple_of(clip.inner) {
                return Err("it is clipped between the indices of a dim".to_owned());
            }
            let count = l.full / clip.inner;
            let cut = Cut { unit: 0, count, clip: single(clip), reach: 0 };
            if count == 1 {
                cuts.push(cut);
                continue;
            }
            let unit = l.stride * i128::from(clip.inner);
            let reach = self.reach_below(i, unit, count).filter(|_| unit > 0);
            let (Some(reach), Ok(unit)) = (reach, u64::try_from(unit)) else {
                return Err("it is clipped along a dim that others run through".to_owned());
            };
            cuts.push(Cut { unit, reach, ..cut });
        }
        Ok(cuts)
    }

    /// Bytes that an index of loop `digit` reaches, when all loops but it move within an index or by all of them.
    fn reach_below(&self, digit: usize, unit: i128, count: u64) -> Option<u64> {
        let mut reach = i128::from(self.size) - 1;
        for (i, l) in self.loops.iter().enumerate().filter(|(_, l)| l.full > 1) {
            if i == digit {
                let inner = l.clip.as_ref().map_or(1, |c| c.inner);
                reach += l.stride * (i128::from(inner) - 1);
            } else if l.stride == 0 || l.stride % (unit * i128::from(count)).max(1) == 0 {
            } else if l.stride > 0 && l.stride < unit {
                reach += l.stride.checked_mul(i128::from(l.full) - 1)?;
            } else {
                return None;
            }
        }
        (reach < unit).then_some(reach as u64)
    }

    /// Whether a read through this path stays out of what a cut of the region at `origin` leaves out.
    pub(super) fn keeps(&self, origin: u64, cut: &Cut) -> bool {
        if cut.count == 1 {
            return self.all.contains(&cut.clip);
        }
        let (unit, whole) = (i128::from(cut.unit), i128::from(cut.unit) * i128::from(cut.count));
        let at = (i128::from(self.start) - i128::from(origin)).rem_euclid(whole);
        let along = |l: &Loop| {
            let fits = |c: &Clip| {
                l.stride * i128::from(c.inner) == unit && l.full <= cut.count.saturating_mul(c.inner)
            };
            l.clip.as_ref().is_some_and(|c| single(c) == cut.clip && fits(c))
        };
        let Some(digit) = self.loops.iter().position(along) else { return false };
        // One loop over the indices, all else within an index, and indices that lie alike: what either touches of one ends before the
        // other's next one begins.
        let alike =
            |reach: u64| at + i128::from(reach) < unit || at > 0 && whole - at + i128::from(cut.reach) < unit;
        self.reach_below(digit, unit, cut.count).is_some_and(alike)
    }
}

/// The same cuts, seen from another origin.
///
/// # Errors
/// The regions do not lie alike.
pub(super) fn rebase(cuts: &Cuts, origin: u64) -> Result<Vec<Cut>, String> {
    let one = |(from, cut): &(u64, Cut)| {
        if cut.count == 1 {
            return Ok(cut.clone());
        }
        let whole = i128::from(cut.unit) * i128::from(cut.count);
        let at = (i128::from(*from) - i128::from(origin)).rem_euclid(whole) as u64;
        match at + cut.reach < cut.unit {
            true => Ok(Cut { reach: at + cut.reach, ..cut.clone() }),
            false => Err("its parts are clipped along other dims".to_owned()),
        }
    };
    cuts.iter().map(one).collect()
}

/// Whether two lists of cuts leave out the same.
pub(super) fn same(a: &[Cut], b: &[Cut]) -> bool {
    let key = |c: &Cut| (c.unit, c.count, c.clip.clone());
    let within = |a: &[Cut], b: &[Cut]| a.iter().all(|x| b.iter().any(|y| key(x) == key(y)));
    within(a, b) && within(b, a)
}

/// What is left out of the union of regions that lie in one, which begins at `origin`.
///
/// # Errors
/// They are not cut alike.
pub(super) fn joined<'a>(parts: impl IntoIterator<Item = &'a Cuts>, origin: u64) -> Result<Vec<Cut>, String> {
    let mut found: Option<Vec<Cut>> = None;
    for part in parts {
        let part = rebase(part, origin)?;
        match &mut found {
            None => found = Some(part),
            Some(all) if same(all, &part) => {
                let wider = |c: &Cut| part.iter().filter(|p| p.unit == c.unit).map(|p| p.reach).max();
                all.iter_mut().for_each(|c| c.reach = wider(c).unwrap_or(0).max(c.reach));
            }
            Some(_) => return Err("its parts are not clipped alike".to_owned()),
        }
    }
    Ok(found.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Part;

    fn clipped(full: u64, inner: u64) -> Extent {
        Extent::part(full, Some(Clip { part: Part::Seq, global: full / inner, axes: Vec::new(), inner }))
    }

    fn path(start: u64, steps: &[(Extent, i64)]) -> Path {
        let all: Vec<&Extent> = steps.iter().map(|s| &s.0).collect();
        Path::new(start, 4, steps, &all)
    }

    #[test]
    fn readers_clip_the_dim_that_the_writer_clipped() {
        // [2, 5, 8] f32, clipped along its middle dim; written with the two inner ones merged.
        let write = path(64, &[(2.into(), 40), (clipped(40, 8), 1)]);
        let cuts = write.cuts().unwrap();
        assert_eq!((cuts.len(), cuts[0].unit, cuts[0].count), (1, 32, 5));
        let keeps = |steps: &[(Extent, i64)], start| path(start, steps).keeps(64, &cuts[0]);
        assert!(keeps(&[(2.into(), 40), (clipped(5, 1), 8), (8.into(), 1)], 64));
        assert!(keeps(&[(clipped(5, 1), 8), (2.into(), 40)], 64 + 28));
        // Not clipped, clipped along another dim, or shifted by an index.
        assert!(!keeps(&[(2.into(), 40), (40.into(), 1)], 64));
        assert!(!keeps(&[(clipped(5, 1), 40), (5.into(), 8)], 64));
        assert!(!keeps(&[(clipped(4, 1), 8), (8.into(), 1)], 64 + 32));
        assert!(!keeps(&[(clipped(5, 1), 8), (9.into(), 1)], 64));
        assert!(!keeps(&[(8.into(), 1)], 64));
    }

    #[test]
    fn halves_of_rows_are_cut_as_their_whole() {
        let half =
            |start| (start, path(start, &[(clipped(5, 1), 8), (4.into(), 1)]).cuts().unwrap().remove(0));
        let (a, b) = (vec![half(64)], vec![half(80)]);
        let whole = joined([&a, &b], 64).unwrap();
        assert_eq!((whole[0].unit, whole[0].count, whole[0].reach), (32, 5, 31));
        assert!(joined([&a, &Vec::new()], 64).is_err());
        assert!(rebase(&b, 48).is_err());
    }

    #[test]
    fn a_dim_of_one_is_there_or_not() {
        let one = (clipped(8, 8), 1);
        let cuts = path(0, std::slice::from_ref(&one)).cuts().unwrap();
        assert_eq!(cuts[0].count, 1);
        assert!(path(0, &[one]).keeps(0, &cuts[0]));
        assert!(!path(0, &[(8.into(), 1)]).keeps(0, &cuts[0]));
    }
}
