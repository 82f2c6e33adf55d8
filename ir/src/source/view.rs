//! Affine views of stored tensors: one mechanism for transposed, fused, reshaped and permuted layouts.

use super::{BlockFormat, element_count};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One factor of a logical dim: `extent` steps of `stride` stored elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub extent: usize,
    pub stride: usize,
}

/// A tensor of a checkpoint seen in another arrangement.
///
/// Each logical dim is a product of segments, major to minor (nearly always one). With the digits `i_s` of a
/// logical index in that mixed radix, the stored row-major element is `offset + sum(stride_s * i_s)`.
///
/// Views are built from [`TensorView::whole`] by [`split`](Self::split), [`merge`](Self::merge),
/// [`permute`](Self::permute) and [`slice`](Self::slice):
///
/// ```
/// use pcc_ir::source::TensorView;
/// # fn main() -> Result<(), pcc_ir::source::ViewError> {
/// // A linear layer [out, in] of 2 kv heads x 3 groups x 4 as the graph wants it, [in, kv, group, head_dim].
/// let q = TensorView::whole("q_proj.weight", [24, 10]).split(0, &[2, 3, 4])?.permute(&[3, 0, 1, 2])?;
/// assert_eq!(q.shape(), [10, 2, 3, 4]);
/// // The keys' part of GPT-2's fused c_attn.weight [in, 3 * hidden].
/// let k = TensorView::whole("c_attn.weight", [8, 24]).slice(1, 8, 8)?;
/// assert_eq!((k.shape(), k.offset), (vec![8, 8], 8));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorView {
    /// Name in the checkpoint.
    pub tensor: String,
    /// Shape in the checkpoint, outermost dim first.
    pub file_shape: Vec<usize>,
    /// Stored element of logical index zero.
    pub offset: usize,
    /// Segments of each logical dim, major to minor; an empty list is a dim of extent 1.
    pub dims: Vec<Vec<Segment>>,
    /// How the tensor is quantised, if it can be kept so in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockFormat>,
}

/// A view that cannot be formed, or that reaches outside its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewError {
    pub tensor: String,
    pub why: String,
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor `{}`: {}", self.tensor, self.why)
    }
}

impl std::error::Error for ViewError {}

impl From<ViewError> for crate::Diagnostic {
    fn from(e: ViewError) -> Self {
        crate::Diagnostic::input(format!("tensor `{}` does not have the layout the model needs", e.tensor))
            .at(e.tensor)
            .why(e.why)
    }
}

impl TensorView {
    /// The tensor as stored.
    pub fn whole(tensor: impl Into<String>, file_shape: impl Into<Vec<usize>>) -> Self {
        let file_shape = file_shape.into();
        let mut dims = vec![Vec::new(); file_shape.len()];
        let mut stride = 1usize;
        for (segments, &extent) in dims.iter_mut().zip(&file_shape).rev() {
            segments.push(Segment { extent, stride });
            // A shape that overflows is caught by `check`; here it must only not panic.
            stride = stride.saturating_mul(extent);
        }
        Self { tensor: tensor.into(), file_shape, offset: 0, dims, blocks: None }
    }

    /// The logical shape.
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|segments| extent(segments)).collect()
    }

    /// The stored element behind a logical index: the definition of the view, one element at a time. `None` when
    /// the index is outside the logical shape.
    pub fn element_at(&self, index: &[usize]) -> Option<usize> {
        let mut element = self.offset;
        if index.len() != self.dims.len() {
            return None;
        }
        for (segments, &i) in self.dims.iter().zip(index) {
            let mut rest = i;
            for s in segments.iter().rev() {
                element = element.checked_add(rest.checked_rem(s.extent)?.checked_mul(s.stride)?)?;
                rest /= s.extent;
            }
            if rest > 0 {
                return None;
            }
        }
        Some(element)
    }

    /// Splits logical dim `dim` into dims of the given extents, major to minor: `[h * d, n] -> [h, d, n]`.
    pub fn split(mut self, dim: usize, extents: &[usize]) -> Result<Self, ViewError> {
        let whole = self.dim(dim)?;
        if element_count(extents) != Some(extent(whole)) {
            let why = format!("a dim of {} does not split into {extents:?}", extent(whole));
            return Err(self.error(why));
        }
        let Some(parts) = split_segments(whole, extents) else {
            return Err(self.error(format!("splitting dim {dim} into {extents:?} cuts a permuted part")));
        };
        self.dims.splice(dim..=dim, parts);
        Ok(self)
    }

    /// Merges `count` logical dims from `dim` on into one: `[h, d, n] -> [h * d, n]`.
    pub fn merge(mut self, dim: usize, count: usize) -> Result<Self, ViewError> {
        let Some(end) = dim.checked_add(count).filter(|&end| count > 0 && end <= self.dims.len()) else {
            return Err(self.error(format!("there are no {count} dims from dim {dim} on to merge")));
        };
        let merged = coalesce(self.dims.drain(dim..end).flatten());
        self.dims.insert(dim, merged);
        Ok(self)
    }

    /// Reorders the logical dims: dim `i` of the result is dim `order[i]` of `self`.
    pub fn permute(mut self, order: &[usize]) -> Result<Self, ViewError> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.dims.len()) {
            return Err(self.error(format!("{order:?} is no order of {} dims", self.dims.len())));
        }
        self.dims = order.iter().filter_map(|&d| self.dims.get(d).cloned()).collect();
        Ok(self)
    }

    /// The two-dim case of [`permute`](Self::permute).
    pub fn transpose(self) -> Result<Self, ViewError> {
        self.permute(&[1, 0])
    }

    /// Keeps `len` indices of logical dim `dim` from `start` on. A dim of several segments is cut at multiples
    /// of its inner extent only.
    pub fn slice(mut self, dim: usize, start: usize, len: usize) -> Result<Self, ViewError> {
        let segments = coalesce(self.dim(dim)?.iter().copied());
        let (whole, inner) = (extent(&segments), extent(segments.get(1..).unwrap_or_default()));
        let inside = len > 0 && start.checked_add(len).is_some_and(|end| end <= whole);
        if !inside || !start.is_multiple_of(inner) || !len.is_multiple_of(inner) {
            let why = format!("indices {start}.. ({len} of them) cannot be cut from a dim of {whole}");
            return Err(self.error(why));
        }
        if let Some(&Segment { stride, .. }) = segments.first() {
            let mut kept = segments;
            kept[0].extent = len / inner;
            self.offset = self.offset.saturating_add((start / inner).saturating_mul(stride));
            self.dims[dim] = kept;
        }
        Ok(self)
    }

    /// Undoes the row order of GGUF's llama models in a dim of `heads * head_dim` rows.
    ///
    /// Their converter stores each head's rows so that the two halves which rotary embedding pairs, rows `i` and
    /// `head_dim / 2 + i` in the published order, are neighbours (`2 i` and `2 i + 1`). The result has the
    /// published order: logical row `(h, half, i)` is stored row `(h, i, half)`.
    pub fn undo_rope_interleave(self, dim: usize, heads: usize) -> Result<Self, ViewError> {
        let rows = extent(self.dim(dim)?);
        if heads == 0 || !rows.is_multiple_of(heads) || !(rows / heads).is_multiple_of(2) {
            return Err(self.error(format!("{rows} rows are not {heads} heads of an even size")));
        }
        let rank = self.dims.len();
        let order: Vec<usize> = (0..=dim).chain([dim + 2, dim + 1]).chain(dim + 3..rank + 2).collect();
        self.split(dim, &[heads, rows / heads / 2, 2])?.permute(&order)?.merge(dim, 3)
    }

    /// Checks that extents and strides do not overflow, that no dim is empty, and that every logical index lies
    /// inside the stored tensor.
    pub fn check(&self) -> Result<(), ViewError> {
        let Some(stored) = element_count(&self.file_shape) else {
            return Err(self.error(format!("the stored shape {:?} is empty or overflows", self.file_shape)));
        };
        let mut last = Some(self.offset);
        let mut count = Some(1usize);
        for s in self.dims.iter().flatten() {
            count = count.and_then(|c| c.checked_mul(s.extent)).filter(|&c| c > 0);
            let reach = s.extent.checked_sub(1).and_then(|e| e.checked_mul(s.stride));
            last = last.zip(reach).and_then(|(l, r)| l.checked_add(r));
        }
        match (count, last) {
            (Some(_), Some(last)) if last < stored => Ok(()),
            (Some(_), Some(last)) => Err(self.error(format!(
                "the view reaches element {last} of a stored tensor {:?} of {stored}",
                self.file_shape
            ))),
            _ => Err(self.error("a dim of the view is empty or overflows".into())),
        }
    }

    fn dim(&self, dim: usize) -> Result<&[Segment], ViewError> {
        match self.dims.get(dim) {
            Some(segments) => Ok(segments),
            None => Err(self.error(format!("there is no dim {dim} in a tensor of shape {:?}", self.shape()))),
        }
    }

    fn error(&self, why: String) -> ViewError {
        ViewError { tensor: self.tensor.clone(), why }
    }
}

/// Extent of a dim; saturates, which `check` then refuses.
fn extent(segments: &[Segment]) -> usize {
    segments.iter().fold(1usize, |n, s| n.saturating_mul(s.extent))
}

/// Joins neighbouring segments that walk as one, and drops those of extent 1.
fn coalesce(segments: impl IntoIterator<Item = Segment>) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::new();
    for s in segments.into_iter().filter(|s| s.extent != 1) {
        match out.last_mut() {
            Some(major) if s.extent.checked_mul(s.stride) == Some(major.stride) => {
                *major = Segment { extent: major.extent.saturating_mul(s.extent), stride: s.stride };
            }
            _ => out.push(s),
        }
    }
    out
}

/// Deals the segments out to dims of the given extents, whose product is theirs, minor end first. `None` when a
/// boundary falls inside a segment that does not divide there.
fn split_segments(segments: &[Segment], extents: &[usize]) -> Option<Vec<Vec<Segment>>> {
    let mut rest: Vec<Segment> = coalesce(segments.iter().copied());
    let mut parts = Vec::with_capacity(extents.len());
    for &wanted in extents.iter().rev() {
        let mut part = Vec::new();
        let mut need = wanted;
        while need > 1 {
            let s = rest.pop()?;
            if need.is_multiple_of(s.extent) {
                need /= s.extent;
                part.push(s);
            } else if s.extent.is_multiple_of(need) {
                part.push(Segment { extent: need, stride: s.stride });
                rest.push(Segment { extent: s.extent / need, stride: s.stride.checked_mul(need)? });
                need = 1;
            } else {
                return None;
            }
        }
        part.reverse();
        parts.push(part);
    }
    parts.reverse();
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored elements behind all logical indices, row-major.
    fn elements(view: &TensorView) -> Vec<usize> {
        let shape = view.shape();
        let total: usize = shape.iter().product();
        let mut out = Vec::new();
        for flat in 0..total {
            let mut rest = flat;
            let mut index = vec![0; shape.len()];
            for (i, &d) in index.iter_mut().zip(&shape).rev() {
                *i = rest % d;
                rest /= d;
            }
            out.push(view.element_at(&index).unwrap());
        }
        out
    }

    #[test]
    fn whole_split_and_merge_keep_the_order() {
        let view = TensorView::whole("w", [4, 6]);
        assert_eq!(elements(&view), (0..24).collect::<Vec<_>>());
        let split = view.clone().split(0, &[2, 2]).unwrap().split(2, &[3, 2]).unwrap();
        assert_eq!(split.shape(), [2, 2, 3, 2]);
        assert_eq!(elements(&split), (0..24).collect::<Vec<_>>());
        assert_eq!(split.merge(0, 4).unwrap().dims, [[Segment { extent: 24, stride: 1 }]]);
    }

    #[test]
    fn transposing_and_slicing_walk_columns() {
        let view = TensorView::whole("w", [2, 6]).slice(1, 2, 2).unwrap().transpose().unwrap();
        assert_eq!(view.shape(), [2, 2]);
        assert_eq!(elements(&view), [2, 8, 3, 9]);
    }

    #[test]
    fn linear_layer_in_the_graphs_dims() {
        // [kv 2 * group 1 * d 2, in 3] -> [in, kv, group, d]; element (i, k, 0, d) is stored at (2 k + d) * 3 + i.
        let view =
            TensorView::whole("q", [4, 3]).split(0, &[2, 1, 2]).unwrap().permute(&[3, 0, 1, 2]).unwrap();
        assert_eq!(elements(&view), [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]);
    }

    #[test]
    fn rope_rows_return_to_the_published_order() {
        // Two heads of four rows: published rows (0 1 | 2 3) are stored as 0 2 1 3.
        let view = TensorView::whole("q", [8, 1]).undo_rope_interleave(0, 2).unwrap();
        assert_eq!(view.shape(), [8, 1]);
        assert_eq!(elements(&view), [0, 2, 1, 3, 4, 6, 5, 7]);
        let split = view.split(0, &[2, 4]).unwrap().slice(0, 1, 1).unwrap();
        assert_eq!(elements(&split), [4, 6, 5, 7]);
        // Also after another dim, and for a bias.
        let second = TensorView::whole("q", [2, 4]).undo_rope_interleave(1, 1).unwrap();
        assert_eq!(elements(&second), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(elements(&TensorView::whole("b", [4]).undo_rope_interleave(0, 1).unwrap()), [0, 2, 1, 3]);
        // A permuted dim still slices at whole heads, and nowhere inside one.
        let whole = TensorView::whole("q", [8, 1]).undo_rope_interleave(0, 2).unwrap();
        assert_eq!(elements(&whole.clone().slice(0, 4, 4).unwrap()), [4, 6, 5, 7]);
        assert!(whole.clone().slice(0, 2, 4).is_err());
        assert!(whole.split(0, &[8 / 3, 3]).is_err());
    }

    #[test]
    fn impossible_views_are_errors() {
        let view = TensorView::whole("w", [4, 6]);
        assert!(view.clone().split(0, &[3, 2]).is_err());
        assert!(view.clone().split(2, &[1]).is_err());
        assert!(view.clone().split(0, &[]).is_err());
        assert!(view.clone().split(0, &[usize::MAX, usize::MAX]).is_err());
        assert!(view.clone().merge(1, 2).is_err());
        assert!(view.clone().merge(0, usize::MAX).is_err());
        assert!(view.clone().permute(&[0, 0]).is_err());
        assert!(view.clone().slice(1, 6, 1).is_err());
        assert!(view.clone().slice(1, usize::MAX, 2).is_err());
        assert!(view.clone().slice(1, 0, 0).is_err());
        assert!(view.clone().undo_rope_interleave(0, 0).is_err());
        assert!(view.undo_rope_interleave(0, 4).is_err());
        assert!(TensorView::whole("w", [0, 3]).check().is_err());
        assert!(TensorView::whole("w", [usize::MAX, 3]).check().is_err());
    }

    #[test]
    fn dims_of_extent_one_survive() {
        let view = TensorView::whole("w", [1, 3]).split(1, &[1, 3, 1]).unwrap();
        assert_eq!(view.shape(), [1, 1, 3, 1]);
        assert_eq!(elements(&view), [0, 1, 2]);
        assert_eq!(view.slice(0, 0, 1).unwrap().shape(), [1, 1, 3, 1]);
    }
}
