//! Which elements strides reach, without overflow.

/// Element offsets `low..=high` relative to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) low: i128,
    pub(super) high: i128,
}

impl Reach {
    pub(super) const POINT: Reach = Reach { low: 0, high: 0 };

    /// Also every multiple of `stride` up to `extent - 1` times. Saturates, far outside any buffer.
    pub(super) fn along(self, extent: i128, stride: i128) -> Self {
        self.shifted(0, stride.saturating_mul(extent - 1))
    }

    /// Also everything shifted by `a..=b` or `b..=a`.
    pub(super) fn shifted(self, a: i128, b: i128) -> Self {
        Reach { low: self.low.saturating_add(a.min(b)), high: self.high.saturating_add(a.max(b)) }
    }

    /// What either reaches.
    pub(super) fn or(self, other: Reach) -> Self {
        Reach { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// The bytes reached from `offset` in a buffer, for elements of `size` bytes; `None` when they leave `0..bytes` or are
    /// not aligned.
    pub(super) fn bytes_in(self, offset: u64, size: usize, bytes: u64) -> Option<std::ops::Range<u64>> {
        let (offset, size) = (i128::from(offset), size as i128);
        let bytes_of = |elements: i128| elements.saturating_mul(size).saturating_add(offset);
        let (start, end) = (bytes_of(self.low), bytes_of(self.high.saturating_add(1)));
        let inside = start >= 0 && end <= i128::from(bytes) && offset % size == 0;
        inside.then_some(start as u64..end as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_and_huge_strides() {
        let reach = Reach::POINT.along(3, 4).along(2, -1);
        assert_eq!(reach, Reach { low: -1, high: 8 });
        assert_eq!(reach.bytes_in(4, 4, 40), Some(0..40));
        assert_eq!(reach.bytes_in(0, 4, 400), None);
        assert_eq!(reach.bytes_in(4, 4, 39), None);
        assert_eq!(reach.bytes_in(5, 4, 400), None);
        let far = (0..16).fold(Reach::POINT, |r, _| r.along(i64::MAX.into(), i64::MIN.into()));
        assert_eq!(far.bytes_in(u64::MAX, 8, u64::MAX), None);
    }
}
