//! Which bytes an instruction touches: strided boxes.

/// A box of elements: `base + sum(stride_i * index_i)`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footprint {
    /// First byte and the byte after the last one.
    pub start: u64,
    pub end: u64,
    /// Bytes touched; less than `end - start` when the box has holes.
    pub bytes: u64,
}

impl Footprint {
    pub(super) fn is_dense(&self) -> bool {
        self.bytes == self.end - self.start
    }

    pub(super) fn meets(&self, other: &Footprint) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The box at byte `offset` with these `(extent, stride)` steps, in elements of `size` bytes.
    ///
    /// # Errors
    /// Why it is no box: an extent below 1, an address below 0 or beyond 2^62.
    pub(super) fn of(offset: u64, size: u64, steps: &[(i64, i64)]) -> Result<Self, String> {
        let (mut low, mut high) = (0i128, 0i128);
        let mut moving: Vec<(i128, i128)> = Vec::new();
        for &(extent, stride) in steps {
            if extent < 1 {
                return Err(format!("an extent is {extent}"));
            }
            let reach = i128::from(extent - 1) * i128::from(stride);
            if reach.abs() > 1 << 62 {
                return Err("it reaches outside any buffer".to_owned());
            }
            (low, high) = (low + reach.min(0), high + reach.max(0));
            if extent > 1 && stride != 0 {
                moving.push((i128::from(stride).abs(), i128::from(extent)));
            }
        }
        let size = i128::from(size);
        let (start, end) = (i128::from(offset) + low * size, i128::from(offset) + (high + 1) * size);
        if start < 0 || end > 1 << 62 {
            return Err("it reaches outside any buffer".to_owned());
        }
        // Distinct elements: exact when no two steps meet (each stride passes the reach of the smaller ones), else the least there can be.
        moving.sort_unstable();
        let (mut reach, mut count) = (1i128, 1i128);
        for (stride, extent) in moving {
            if stride >= reach {
                count *= extent;
                reach += stride * (extent - 1);
            }
        }
        let bytes = (count * size).clamp(0, end - start);
        Ok(Self { start: start as u64, end: end as u64, bytes: bytes as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_know_their_hull_and_their_holes() {
        // Rows of 8 f32 of which the first 4 are touched: 3 rows.
        let halves = Footprint::of(64, 4, &[(3, 8), (4, 1)]).unwrap();
        assert_eq!((halves.start, halves.end, halves.bytes), (64, 64 + 4 * 20, 4 * 12));
        assert!(!halves.is_dense());
        let whole = Footprint::of(0, 4, &[(3, 8), (8, 1)]).unwrap();
        assert!(whole.is_dense() && whole.bytes == 96);
        // A broadcast dim adds nothing; a transposed walk is as dense as a straight one.
        assert_eq!(Footprint::of(0, 4, &[(8, 1), (5, 0), (3, 8)]).unwrap(), whole);
        assert!(Footprint::of(0, 4, &[(2, -1)]).is_err());
        assert_eq!(Footprint::of(4, 4, &[(2, -1)]).unwrap().start, 0);
        assert!(Footprint::of(0, 4, &[(0, 1)]).is_err());
        assert!(Footprint::of(0, 8, &[(i64::MAX, i64::MAX)]).is_err());
    }
}
