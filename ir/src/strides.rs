//! What strides say about the elements they reach.

/// Whether no two indices are one element, as far as the sizes show: each stride steps over all that the smaller ones reach. Dims are
/// `(extent, stride)`.
pub fn are_injective(dims: impl IntoIterator<Item = (u64, i64)>) -> bool {
    let moving = dims.into_iter().filter(|d| d.0 > 1);
    let mut moving: Vec<(u64, u64)> =
        moving.map(|(extent, stride)| (stride.unsigned_abs(), extent)).collect();
    moving.sort_unstable();
    let mut reach = 0u128;
    moving.into_iter().all(|(stride, extent)| {
        let (steps_over, stride) = (u128::from(stride) > reach, u128::from(stride));
        reach = reach.saturating_add(stride.saturating_mul(u128::from(extent) - 1));
        steps_over
    })
}

#[cfg(test)]
mod tests {
    use super::are_injective;
    use std::collections::HashSet;

    #[test]
    fn strides_that_step_over_each_other() {
        assert!(are_injective([]) && are_injective([(1, 0), (5, -3)]));
        assert!(are_injective([(4, 1), (3, 4)]) && are_injective([(3, -4), (4, 1)]));
        assert!(
            !are_injective([(4, 0)]) && !are_injective([(4, 1), (3, 3)]) && !are_injective([(2, 1), (2, -1)])
        );
        assert!(!are_injective((0..9).map(|_| (u64::MAX, i64::MIN))));
    }

    #[test]
    fn what_is_called_injective_is() {
        let strides = [-4, -3, -1, 0, 1, 2, 3, 6];
        let dims = |n: usize| (1 + n as u64 % 3, strides[n / 3]);
        let mut found = 0;
        for n in 0..24 * 24 * 24 {
            let dims = [dims(n % 24), dims(n / 24 % 24), dims(n / 576)];
            let [x, y, z] = dims.map(|(extent, stride)| (0..extent as i64).map(move |i| i * stride));
            let at: Vec<i64> = x.flat_map(|x| y.clone().flat_map(move |y| [x + y].into_iter())).collect();
            let at: Vec<i64> = at.into_iter().flat_map(|a| z.clone().map(move |z| a + z)).collect();
            let distinct = at.iter().collect::<HashSet<_>>().len() == at.len();
            assert!(distinct || !are_injective(dims), "{dims:?}");
            found += usize::from(are_injective(dims));
        }
        assert!(found > 1000, "{found}");
    }
}
