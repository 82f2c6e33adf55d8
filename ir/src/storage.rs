//! How a device holds its slice of a parameter.

use crate::types::{DType, Type};
use serde::{Deserialize, Serialize};

/// Columns of a panel.
pub const PANEL: u64 = 32;

/// The form a parameter has in memory, the same on all devices of a program. Lowering chooses it by how the parameter is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// Row-major, as the type says.
    #[default]
    Dense,
    /// The right side of matrix products. The local slice is a matrix [K, N], K row-major over dims `k` and N over dims `n`, both
    /// ascending, that lies in panels of [`PANEL`] columns: `[ceil(N/32)][K][32]` for f32, and for bf16 with neighbours along K side by
    /// side, `[ceil(N/32)][ceil(K/2)][32][2]`. What a panel has beyond the matrix is zero.
    Panels { k: Vec<usize>, n: Vec<usize> },
}

/// Extents of a matrix [K, N] that lies in panels ([`Storage::Panels`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PackedMatrix {
    pub k: u64,
    pub n: u64,
}

impl PackedMatrix {
    /// Bytes in memory; saturates.
    pub fn bytes(&self, dtype: DType) -> u64 {
        let k = if dtype == DType::BF16 { self.k.next_multiple_of(2) } else { self.k };
        self.n.div_ceil(PANEL).saturating_mul(PANEL).saturating_mul(k).saturating_mul(dtype.bytes() as u64)
    }
}

impl Storage {
    /// The matrix that a slice of this shape is; `None` when it is dense.
    pub fn matrix(&self, shape: &[usize]) -> Option<PackedMatrix> {
        let extent =
            |dims: &[usize]| dims.iter().map(|&d| shape.get(d).copied().unwrap_or(1) as u64).product();
        match self {
            Storage::Dense => None,
            Storage::Panels { k, n } => Some(PackedMatrix { k: extent(k), n: extent(n) }),
        }
    }

    /// Bytes of a slice of this type.
    pub fn bytes(&self, local: &Type) -> u64 {
        self.matrix(&local.shape).map_or(local.bytes() as u64, |m| m.bytes(local.dtype))
    }

    /// Checks that a parameter of this type can be held so.
    ///
    /// # Errors
    /// Why not: a type that panels do not hold, dims that are not each dim once in ascending order.
    pub fn check(&self, ty: &Type) -> Result<(), String> {
        let Storage::Panels { k, n } = self else { return Ok(()) };
        if !matches!(ty.dtype, DType::F32 | DType::BF16) {
            return Err(format!("panels do not hold {}", ty.dtype));
        }
        let ascending = |dims: &[usize]| dims.windows(2).all(|d| d[0] < d[1]);
        let named = |d: &usize| k.contains(d) != n.contains(d);
        let whole = k.len() + n.len() == ty.rank() && (0..ty.rank()).all(|d| named(&d));
        match whole && ascending(k) && ascending(n) {
            true => Ok(()),
            false => Err(format!("panels over dims {k:?} and {n:?} of {} dims", ty.rank())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_padded_to_whole_columns_and_pairs() {
        let storage = Storage::Panels { k: vec![0, 2], n: vec![1] };
        let shape = [3, 33, 5];
        assert_eq!(storage.matrix(&shape), Some(PackedMatrix { k: 15, n: 33 }));
        assert_eq!(storage.bytes(&Type::f32(shape)), 15 * 64 * 4);
        assert_eq!(storage.bytes(&Type::new(DType::BF16, shape)), 16 * 64 * 2);
        assert_eq!(Storage::Dense.bytes(&Type::f32(shape)), 15 * 33 * 4);
        assert_eq!(PackedMatrix { k: u64::MAX, n: u64::MAX - 100 }.bytes(DType::F32), u64::MAX);
    }

    #[test]
    fn dims_are_each_named_once() {
        let ty = Type::f32([3, 33, 5]);
        let check =
            |k: &[usize], n: &[usize]| Storage::Panels { k: k.into(), n: n.into() }.check(&ty).is_ok();
        assert!(check(&[0, 2], &[1]) && check(&[], &[0, 1, 2]));
        assert!(
            !check(&[2, 0], &[1]) && !check(&[0], &[1]) && !check(&[0, 1, 2], &[2]) && !check(&[0, 1], &[3])
        );
        assert!(Storage::Panels { k: vec![0], n: vec![] }.check(&Type::new(DType::I32, [3])).is_err());
    }
}
