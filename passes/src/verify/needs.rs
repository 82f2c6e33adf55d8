//! What a value depends on, as far as its op says it. A slice may take only what some of a concatenation's parts made, or miss what was
//! padded: then only bounds are known.

use super::memory::Roots;

/// Bounds of what the bytes of a value depend on.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// At most this.
    most: Roots,
    /// What is certain, where that is less.
    sure: Option<Box<Sure>>,
}

#[derive(Clone, Debug)]
struct Sure {
    /// What the whole depends on at least.
    all: Roots,
    /// What each element by itself depends on at least.
    each: Roots,
}

impl Needs {
    pub(super) fn one(root: usize) -> Self {
        Self { most: Roots::one(root), sure: None }
    }

    fn least(&self) -> &Roots {
        self.sure.as_ref().map_or(&self.most, |s| &s.all)
    }

    fn each(&self) -> &Roots {
        self.sure.as_ref().map_or(&self.most, |s| &s.each)
    }

    /// Of a value whose every element is made of elements of all operands.
    pub(super) fn of_all<'n>(operands: impl Clone + IntoIterator<Item = &'n Needs>) -> Self {
        let (mut most, mut all, mut each) = (Roots::default(), Roots::default(), Roots::default());
        operands.clone().into_iter().for_each(|n| most.join(&n.most));
        if operands.clone().into_iter().all(|n| n.sure.is_none()) {
            return Self { most, sure: None };
        }
        for n in operands {
            all.join(n.least());
            each.join(n.each());
        }
        Self { most, sure: Some(Box::new(Sure { all, each })) }
    }

    /// Of a value of which each element is one of one of the operands.
    pub(super) fn of_parts<'n>(operands: impl Clone + IntoIterator<Item = &'n Needs>) -> Self {
        let whole = Self::of_all(operands.clone());
        let mut parts = operands.into_iter().map(Needs::each);
        let first = parts.next().cloned().unwrap_or_default();
        let each = parts.fold(first, |common, more| common.common(more));
        if whole.most.within(&each) {
            return whole;
        }
        let all = whole.least().clone();
        Self { sure: Some(Box::new(Sure { all, each })), ..whole }
    }

    /// Of some elements.
    pub(super) fn cut(mut self) -> Self {
        if let Some(sure) = &mut self.sure {
            sure.all.clone_from(&sure.each);
        }
        self
    }

    pub(super) fn met_by(&self, have: &Roots) -> bool {
        self.least().within(have) && have.within(&self.most)
    }

    /// What is needed and not there.
    pub(super) fn missing(&self, have: &Roots) -> Vec<usize> {
        self.least().without(have)
    }

    /// What is there and has no place there.
    pub(super) fn extra(&self, have: &Roots) -> Vec<usize> {
        have.without(&self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(of: &[usize]) -> Roots {
        let mut all = Roots::default();
        of.iter().for_each(|&r| all.join(&Roots::one(r)));
        all
    }

    #[test]
    fn only_what_is_cut_from_parts_is_uncertain() {
        let (a, b, c) = (Needs::one(1), Needs::one(2), Needs::one(70));
        let sum = Needs::of_all([&a, &b]);
        for exact in [&sum, &sum.clone().cut(), &Needs::of_parts([&a, &b])] {
            assert!(exact.met_by(&roots(&[1, 2])));
            assert!(!exact.met_by(&roots(&[1])) && !exact.met_by(&roots(&[1, 2, 3])));
        }
        // Parts a + c and b + c: whatever is cut out depends on c.
        let parts = Needs::of_parts([&Needs::of_all([&a, &c]), &Needs::of_all([&b, &c])]).cut();
        for held in [&[1, 70][..], &[2, 70], &[1, 2, 70], &[70]] {
            assert!(parts.met_by(&roots(held)), "{held:?}");
        }
        assert!(!parts.met_by(&roots(&[1])) && !parts.met_by(&roots(&[1, 3, 70])));
        let more = Needs::of_all([&parts, &b]);
        assert!(more.met_by(&roots(&[2, 70])) && !more.met_by(&roots(&[1, 70])));
    }
}
