//! Rectangular blocks of row-major tensors, as runs of adjacent elements.

/// A block inside a tensor: the tensor's shape and where the block starts.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) start: &'a [usize],
}

/// Calls `each(from, to, count)`, element offsets and run length, for every run of a block of extents `lens` that lies at `from`
/// in one tensor and at `to` in another. The block must lie inside both.
pub(crate) fn runs(
    lens: &[usize],
    from: Place<'_>,
    to: Place<'_>,
    mut each: impl FnMut(usize, usize, usize),
) {
    if lens.contains(&0) {
        return;
    }
    let offset = |p: &Place<'_>| p.start.iter().zip(p.shape).fold(0, |o, (&s, &n)| o * n + s);
    let (from_start, to_start) = (offset(&from), offset(&to));
    // Trailing dims that the block covers in both tensors are one run with the dim before them.
    let mut inner = lens.len().saturating_sub(1);
    let mut run = lens.last().copied().unwrap_or(1);
    while inner > 0 && lens[inner] == from.shape[inner] && lens[inner] == to.shape[inner] {
        inner -= 1;
        run *= lens[inner];
    }
    let strides = |shape: &[usize]| {
        let mut strides = vec![1; shape.len()];
        for d in (0..shape.len().saturating_sub(1)).rev() {
            strides[d] = strides[d + 1] * shape[d + 1];
        }
        strides
    };
    let (from_strides, to_strides) = (strides(from.shape), strides(to.shape));
    let mut index = vec![0; inner];
    let (mut f, mut t) = (from_start, to_start);
    loop {
        each(f, t, run);
        // The next index of the outer dims, last one fastest.
        let mut dim = inner;
        loop {
            if dim == 0 {
                return;
            }
            dim -= 1;
            index[dim] += 1;
            f += from_strides[dim];
            t += to_strides[dim];
            if index[dim] < lens[dim] {
                break;
            }
            f -= index[dim] * from_strides[dim];
            t -= index[dim] * to_strides[dim];
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lens: &[usize], fs: (&[usize], &[usize]), ts: (&[usize], &[usize])) -> Vec<(usize, usize, usize)> {
        let mut out = Vec::new();
        let place = |(shape, start)| Place { shape, start };
        runs(lens, place(fs), place(ts), |a, b, c| out.push((a, b, c)));
        out
    }

    #[test]
    fn blocks_are_cut_into_the_longest_runs() {
        // Rows 1..3 of a 4x5 into rows 0..2 of a 2x5: one run.
        assert_eq!(all(&[2, 5], (&[4, 5], &[1, 0]), (&[2, 5], &[0, 0])), [(5, 0, 10)]);
        // Columns 1..3 of a 2x2x5: a run a row.
        let runs = all(&[2, 2, 2], (&[2, 2, 5], &[0, 0, 1]), (&[2, 2, 2], &[0, 0, 0]));
        assert_eq!(runs, [(1, 0, 2), (6, 2, 2), (11, 4, 2), (16, 6, 2)]);
        assert_eq!(all(&[], (&[], &[]), (&[], &[])), [(0, 0, 1)]);
        assert_eq!(all(&[0, 3], (&[4, 3], &[4, 0]), (&[1, 3], &[0, 0])), []);
    }
}
