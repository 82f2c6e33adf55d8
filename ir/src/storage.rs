//! How a device holds its slice of a parameter.

use crate::source::{BlockFormat, ParamSource, Values};
use crate::types::{DType, Type};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Columns of a panel: the one constant that sizes of buffers and addresses in them come from.
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
    /// As panels, but quantised as the checkpoint has it: [`BLOCKS_HEADER`] bytes, then per panel `groups` groups of rows, each the
    /// scales and offsets of the 32 columns and their codes, as the runtime's products read them. `groups` is what the device with the
    /// most touches; one whose slice begins inside a group has rows of another slice before its own, and the header says how many.
    Blocks { k: Vec<usize>, n: Vec<usize>, format: BlockFormat, groups: u64 },
}

/// Bytes before the panels of a quantised matrix.
pub const BLOCKS_HEADER: u64 = 64;

/// A matrix [K, N] that lies in quantised panels ([`Storage::Blocks`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMatrix {
    pub matrix: PackedMatrix,
    pub format: BlockFormat,
    /// Groups of rows of a panel.
    pub groups: u64,
}

impl BlockMatrix {
    /// Bytes in memory; saturates.
    pub fn bytes(&self) -> u64 {
        let panel = self.groups.saturating_mul(self.format.group_bytes() as u64);
        self.matrix.n.div_ceil(PANEL).saturating_mul(panel).saturating_add(BLOCKS_HEADER)
    }
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
            Storage::Panels { k, n } | Storage::Blocks { k, n, .. } => {
                Some(PackedMatrix { k: extent(k), n: extent(n) })
            }
        }
    }

    /// The quantised matrix that a slice of this shape is, if it is one.
    pub fn blocks(&self, shape: &[usize]) -> Option<BlockMatrix> {
        match *self {
            Storage::Blocks { format, groups, .. } => {
                Some(BlockMatrix { matrix: self.matrix(shape)?, format, groups })
            }
            Storage::Dense | Storage::Panels { .. } => None,
        }
    }

    /// Bytes of a slice of this type.
    pub fn bytes(&self, local: &Type) -> u64 {
        if let Some(blocks) = self.blocks(&local.shape) {
            return blocks.bytes();
        }
        self.matrix(&local.shape).map_or(local.bytes() as u64, |m| m.bytes(local.dtype))
    }

    /// Checks that a parameter of this type and source can be held so, by devices whose slices have shape `local`.
    ///
    /// # Errors
    /// Why not: a type that panels do not hold, dims that are not each dim once in ascending order, another quantisation than the
    /// source has, too few groups.
    pub fn check(&self, ty: &Type, source: &ParamSource, local: &[usize]) -> Result<(), String> {
        let (k, n) = match self {
            Storage::Dense => return Ok(()),
            Storage::Panels { k, n } | Storage::Blocks { k, n, .. } => (k, n),
        };
        let blocks = matches!(self, Storage::Blocks { .. });
        if !(ty.dtype == DType::F32 || ty.dtype == DType::BF16 && !blocks) {
            return Err(format!("panels do not hold {}", ty.dtype));
        }
        let ascending = |dims: &[usize]| dims.windows(2).all(|d| d[0] < d[1]);
        let named = |d: &usize| k.contains(d) != n.contains(d);
        let whole = k.len() + n.len() == ty.rank() && (0..ty.rank()).all(|d| named(&d));
        if !(whole && ascending(k) && ascending(n)) {
            return Err(format!("panels over dims {k:?} and {n:?} of {} dims", ty.rank()));
        }
        match self.blocks(local) {
            Some(b) => check_blocks(&b, source),
            None => Ok(()),
        }
    }

    /// The same panels holding what the source has quantised, when every device's slice is a run of neighbours along the stored rows.
    /// `slices` are the logical ranges that devices hold, of shape `local` with their padding.
    pub fn quantised(
        &self,
        source: &ParamSource,
        slices: &[Vec<Range<usize>>],
        local: &[usize],
    ) -> Option<Storage> {
        let (Storage::Panels { k, n }, Values::Tensor(view)) = (self, &source.values) else { return None };
        let format = view.blocks?;
        let (rows, group) = (local_rows(k, local)?, u64::from(format.group));
        let mut groups = rows.div_ceil(group);
        for slice in slices.iter().filter(|s| s.iter().all(|r| !r.is_empty())) {
            let phase = view.group_span(k, slice, local)?.phase as u64;
            groups = groups.max(phase.checked_add(rows)?.div_ceil(group));
        }
        Some(Storage::Blocks { k: k.clone(), n: n.clone(), format, groups })
    }
}

/// Extent of the rows of panels.
fn local_rows(k: &[usize], local: &[usize]) -> Option<u64> {
    k.iter().try_fold(1u64, |n, &d| n.checked_mul(*local.get(d)? as u64))
}

fn check_blocks(b: &BlockMatrix, source: &ParamSource) -> Result<(), String> {
    let Values::Tensor(view) = &source.values else {
        return Err("blocks hold values that are made, not stored".to_owned());
    };
    if view.blocks != Some(b.format) {
        return Err(format!("blocks {:?} of a tensor stored as {:?}", b.format, view.blocks));
    }
    b.format.check(&view.file_shape)?;
    // No device can need more: a row of groups, or one cut at both ends.
    let (group, k) = (u64::from(b.format.group), b.matrix.k);
    let enough = b.groups.checked_mul(group).is_some_and(|rows| rows >= k && rows <= u64::from(u32::MAX));
    if !enough || b.groups > k.div_ceil(group).saturating_add(1) {
        return Err(format!("{} groups of {group} for {k} rows", b.groups));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::TensorView;

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
        let source = ParamSource::zeros([3, 33, 5]);
        let check = |k: &[usize], n: &[usize]| {
            Storage::Panels { k: k.into(), n: n.into() }.check(&ty, &source, &ty.shape).is_ok()
        };
        assert!(check(&[0, 2], &[1]) && check(&[], &[0, 1, 2]));
        assert!(
            !check(&[2, 0], &[1]) && !check(&[0], &[1]) && !check(&[0, 1, 2], &[2]) && !check(&[0, 1], &[3])
        );
        let one = ParamSource::zeros([3]);
        let odd = Storage::Panels { k: vec![0], n: vec![] };
        assert!(odd.check(&Type::new(DType::I32, [3]), &one, &[3]).is_err());
    }

    #[test]
    fn blocks_are_chosen_where_slices_are_runs() {
        let format = BlockFormat { group: 32, bits: 4, low: 0, offsets: true, half: true };
        let view = TensorView { blocks: Some(format), ..TensorView::whole("w", [70, 128]) };
        let source = ParamSource::tensor(view.transpose().unwrap());
        let panels = Storage::Panels { k: vec![0], n: vec![1] };
        // Thirds of 43, 43 and 42 rows. The second has 11 rows of its first group before it, the third 22, and a row of padding.
        let slices: Vec<_> = [0..43, 43..86, 86..128].map(|r| vec![r, 0..70]).into();
        let blocks = panels.quantised(&source, &slices[..2], &[43, 70]).unwrap();
        let Storage::Blocks { groups, .. } = blocks else { panic!("{blocks:?}") };
        assert_eq!(groups, 2);
        let Some(Storage::Blocks { groups, .. }) = panels.quantised(&source, &slices, &[43, 70]) else {
            panic!()
        };
        assert_eq!(groups, 3);
        // Per panel and group 32 scales and offsets of 2 bytes and 32 x 32 codes of half a byte; three panels.
        assert_eq!(blocks.bytes(&Type::f32([43, 70])), 64 + 3 * 2 * (128 + 512));
        let ty = Type::f32([128, 70]);
        assert_eq!(blocks.check(&ty, &source, &[43, 70]), Ok(()));
        let with = |format: BlockFormat, groups| Storage::Blocks { k: vec![0], n: vec![1], format, groups };
        let refused = |s: &Storage, source: &ParamSource| s.check(&ty, source, &[43, 70]).unwrap_err();
        assert!(refused(&with(format, 1), &source).contains("1 groups"));
        assert!(refused(&with(format, 4), &source).contains("4 groups"));
        assert!(refused(&with(format, u64::MAX), &source).contains("groups"));
        assert!(
            refused(&with(BlockFormat { bits: 8, low: -128, ..format }, 2), &source).contains("stored as")
        );
        assert!(refused(&with(format, 2), &ParamSource::zeros([128, 70])).contains("made"));
        // The other side of the matrix runs across rows; made values have no blocks.
        let other = Storage::Panels { k: vec![1], n: vec![0] };
        assert_eq!(other.quantised(&source, &slices, &[43, 70]), None);
        assert_eq!(panels.quantised(&ParamSource::zeros([128, 70]), &slices, &[43, 70]), None);
    }
}
