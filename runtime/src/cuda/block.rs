//! Copies of rectangular blocks as work for a device: the fewest launches.

use super::work::Move;
use pcc_ir::gpu::{COPY_RANK, LibraryKernel};

/// A block of a row-major tensor: where the tensor lies, its shape, and where the block starts in it.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) address: u64,
    pub(super) shape: &'a [usize],
    pub(super) start: &'a [usize],
}

/// A dim of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    extent: u64,
    from: i64,
    to: i64,
}

/// Copies a block of extents `lens`, of elements of `size` bytes.
pub(super) fn copy(lens: &[usize], from: Place<'_>, to: Place<'_>, size: usize, moves: &mut Vec<Move>) {
    if lens.contains(&0) {
        return;
    }
    let (from_strides, to_strides) = (strides(from.shape), strides(to.shape));
    let at = |p: &Place<'_>, strides: &[i64]| {
        let elements: i64 = p.start.iter().zip(strides).map(|(&s, &stride)| s as i64 * stride).sum();
        p.address + elements as u64 * size as u64
    };
    let dims = lens.iter().zip(from_strides.iter().zip(&to_strides));
    let dims = dims.map(|(&n, (&from, &to))| Dim { extent: n as u64, from, to });
    let (from_at, to_at) = (at(&from, &from_strides), at(&to, &to_strides));
    emit(&merged(dims), from_at, to_at, size, moves);
}

/// Without dims of one index, and with neighbours that are one dim in both tensors as one.
fn merged(dims: impl Iterator<Item = Dim>) -> Vec<Dim> {
    let mut all: Vec<Dim> = Vec::new();
    for dim in dims.filter(|d| d.extent != 1) {
        match all.last_mut() {
            Some(last)
                if last.from == dim.from * dim.extent as i64 && last.to == dim.to * dim.extent as i64 =>
            {
                *last = Dim { extent: last.extent * dim.extent, ..dim };
            }
            _ => all.push(dim),
        }
    }
    all
}

fn emit(dims: &[Dim], from: u64, to: u64, size: usize, moves: &mut Vec<Move>) {
    let bytes = |n: u64| n * size as u64;
    match dims {
        [] => moves.push(Move::Copy { to, from, bytes: bytes(1) }),
        [Dim { extent, from: 1, to: 1 }] => moves.push(Move::Copy { to, from, bytes: bytes(*extent) }),
        [first, rest @ ..] if dims.len() > COPY_RANK => {
            let shifted =
                |base: u64, stride: i64, i: u64| base.wrapping_add_signed(stride * i as i64 * size as i64);
            for i in 0..first.extent {
                emit(rest, shifted(from, first.from, i), shifted(to, first.to, i), size, moves);
            }
        }
        _ => {
            let missing = COPY_RANK - dims.len();
            let padded = |of: fn(&Dim) -> u64, none: u64| {
                std::iter::repeat_n(none, missing).chain(dims.iter().map(of)).collect::<Vec<_>>()
            };
            let mut params = vec![from, to];
            params.extend(padded(|d| d.extent, 1));
            params.extend(padded(|d| d.from as u64, 0));
            params.extend(padded(|d| d.to as u64, 0));
            let elements = dims.iter().map(|d| d.extent).product();
            let kernel = LibraryKernel::Copy { bytes: size as u32 };
            moves.push(Move::Launch { kernel, shape: LibraryKernel::flat_shape(elements), params });
        }
    }
}

/// Strides of a row-major tensor, in elements.
fn strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1] as i64;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(lens: &[usize], from: (&[usize], &[usize]), to: (&[usize], &[usize])) -> Vec<Move> {
        let mut moves = Vec::new();
        let place = |(shape, start), address| Place { address, shape, start };
        copy(lens, place(from, 1000), place(to, 5000), 4, &mut moves);
        moves
    }

    #[test]
    fn what_is_adjacent_in_both_is_one_copy() {
        // Rows 1..3 of a 4x5 into rows 0..2 of a 2x5.
        let whole = moves(&[2, 5], (&[4, 5], &[1, 0]), (&[2, 5], &[0, 0]));
        assert_eq!(whole, [Move::Copy { to: 5000, from: 1000 + 20, bytes: 40 }]);
        assert_eq!(moves(&[2, 0], (&[4, 5], &[1, 0]), (&[2, 5], &[0, 0])), []);
        assert_eq!(moves(&[], (&[], &[]), (&[], &[])), [Move::Copy { to: 5000, from: 1000, bytes: 4 }]);
    }

    #[test]
    fn other_blocks_are_one_launch_with_few_dims() {
        // Columns 1..3 of a 2x2x5 into a dense 2x2x2: rows are one dim.
        let made = moves(&[2, 2, 2], (&[2, 2, 5], &[0, 0, 1]), (&[2, 2, 2], &[0, 0, 0]));
        let [Move::Launch { kernel: LibraryKernel::Copy { bytes: 4 }, params, .. }] = &made[..] else {
            panic!("{made:?}");
        };
        assert_eq!(params[..2], [1004, 5000]);
        assert_eq!(params[2..], [1, 1, 1, 1, 4, 2, 0, 0, 0, 0, 5, 1, 0, 0, 0, 0, 2, 1]);
    }
}
