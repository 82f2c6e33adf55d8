//! Where the values of a parameter come from: a description, without IO, that goes into the artifact.
//!
//! A parameter has a logical shape, the one the graph uses (`q_proj: [hidden, kv, group, head_dim]`), while a
//! checkpoint stores some other arrangement (`[kv * group * head_dim, hidden]`). A [`ParamSource`] holds the
//! logical shape and either an affine view of a stored tensor ([`TensorView`]) or a rule that makes the values
//! ([`Values::Constant`], [`Values::Random`]). Readers implement [`ReadParams`]; the frontend's checkpoint is one.

mod blocks;
mod random;
mod view;

pub use blocks::{BlockFormat, BlockRows, GroupSpan};
pub use random::Random;
pub use view::{Segment, TensorView, ViewError};

use crate::Diagnostic;
use crate::repeat::names;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Logical shape of a parameter and where its values come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamSource {
    /// The shape the graph uses; every dim is at least 1.
    pub shape: Vec<usize>,
    pub values: Values,
}

/// How the values of a parameter are obtained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// A view of a tensor in the checkpoint.
    Tensor(TensorView),
    /// Every element has this value (`ones`, `zeros`).
    Constant(f32),
    /// Deterministic noise for models without weights.
    Random(Random),
}

/// The largest number of elements a parameter or stored tensor may have.
const MAX_ELEMENTS: usize = 1 << 58;

impl ParamSource {
    /// A view of a stored tensor; the logical shape is the view's.
    pub fn tensor(view: TensorView) -> Self {
        Self { shape: view.shape(), values: Values::Tensor(view) }
    }

    pub fn constant(shape: impl Into<Vec<usize>>, value: f32) -> Self {
        Self { shape: shape.into(), values: Values::Constant(value) }
    }

    pub fn zeros(shape: impl Into<Vec<usize>>) -> Self {
        Self::constant(shape, 0.0)
    }

    pub fn ones(shape: impl Into<Vec<usize>>) -> Self {
        Self::constant(shape, 1.0)
    }

    /// Noise of standard deviation `scale`; `name` keeps the parameters of one model apart.
    pub fn random(shape: impl Into<Vec<usize>>, seed: u64, name: impl Into<String>, scale: f32) -> Self {
        Self { shape: shape.into(), values: Values::Random(Random { seed, name: name.into(), scale }) }
    }

    /// Name of the stored tensor, if the values come from one.
    pub fn tensor_name(&self) -> Option<&str> {
        match &self.values {
            Values::Tensor(view) => Some(&view.tensor),
            Values::Constant(_) | Values::Random(_) => None,
        }
    }

    /// The source of an element of a stack, whose names leave the layer's number open ([`crate::repeat`]).
    pub fn element(&self, k: u32) -> Self {
        let mut source = self.clone();
        if let Some(name) = source.name_mut() {
            *name = names::element(name, k);
        }
        source
    }

    /// The name that tells the source's values from others': of the stored tensor, or of the noise.
    pub fn name(&self) -> Option<&str> {
        match &self.values {
            Values::Tensor(view) => Some(&view.tensor),
            Values::Random(random) => Some(&random.name),
            Values::Constant(_) => None,
        }
    }

    fn name_mut(&mut self) -> Option<&mut String> {
        match &mut self.values {
            Values::Tensor(view) => Some(&mut view.tensor),
            Values::Random(random) => Some(&mut random.name),
            Values::Constant(_) => None,
        }
    }

    /// Number of elements of the logical shape. Only meaningful after [`ParamSource::validate`].
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks what an edited artifact could have broken: no zero dim, no overflow, and for a view the logical
    /// shape and every index inside the stored tensor.
    pub fn validate(&self) -> Result<(), Diagnostic> {
        let wrong = |why: String| {
            Err(Diagnostic::input(format!("a parameter of shape {:?} has no valid source", self.shape))
                .why(why))
        };
        if element_count(&self.shape).is_none() {
            return wrong("a dim is zero or the number of elements overflows".into());
        }
        match &self.values {
            Values::Constant(value) if value.is_finite() => Ok(()),
            // JSON has no such number: the artifact could not be read back.
            Values::Constant(value) => wrong(format!("the constant {value} is not finite")),
            Values::Random(random) if random.scale.is_finite() => Ok(()),
            Values::Random(random) => wrong(format!("the scale {} is not finite", random.scale)),
            Values::Tensor(view) => match view.check() {
                Err(e) => wrong(e.to_string()),
                Ok(()) if view.blocks.is_some_and(|b| b.check(&view.file_shape).is_err()) => {
                    wrong(format!("tensor `{}` is not quantised in any known way", view.tensor))
                }
                Ok(()) if view.shape() != self.shape => {
                    wrong(format!("the view of tensor `{}` has shape {:?}", view.tensor, view.shape()))
                }
                Ok(()) => Ok(()),
            },
        }
    }

    /// Checks a slice against the logical shape and returns its number of elements.
    pub fn check_slice(&self, slice: &[Range<usize>]) -> Result<usize, Diagnostic> {
        check_slice(&self.shape, slice)
    }

    /// Fills `out` when the values need no file. Returns `false`, leaving `out` alone, when they do.
    ///
    /// `slice` has one range per logical dim; `out` is row-major over the slice.
    pub fn fill(&self, slice: &[Range<usize>], out: &mut [f32]) -> Result<bool, Diagnostic> {
        let wanted = self.check_slice(slice)?;
        if wanted != out.len() {
            return Err(Diagnostic::internal(format!(
                "a slice of {wanted} elements read into {}",
                out.len()
            )));
        }
        match &self.values {
            Values::Tensor(_) => return Ok(false),
            Values::Constant(value) => out.fill(*value),
            Values::Random(random) => random.fill(&self.shape, slice, out),
        }
        Ok(true)
    }
}

/// Reads slices of parameters. Implemented by the frontend's checkpoint, used by the runtime and the checks, so
/// that neither needs to know file formats. Many threads read at once.
pub trait ReadParams: Sync {
    /// Writes the logical slice, one range per dim of `source.shape`, row-major into `out`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape, a stored type that cannot be read, a slice outside.
    fn read_param_slice(
        &self,
        source: &ParamSource,
        slice: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), Diagnostic>;

    /// Reads the groups under a slice as they are stored: rows `rows` of the logical `slice`, counted row-major over the dims
    /// that are not in `k`; of each the groups that [`TensorView::group_span`] names.
    ///
    /// # Errors
    /// As [`read_param_slice`](Self::read_param_slice); also a source whose values are not quantised as it says.
    fn read_param_blocks(
        &self,
        source: &ParamSource,
        k: &[usize],
        slice: &[Range<usize>],
        rows: Range<usize>,
        out: BlockRows<'_>,
    ) -> Result<(), Diagnostic>;
}

/// Serves parameters that need no file; refuses the others by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWeights;

impl ReadParams for NoWeights {
    fn read_param_slice(
        &self,
        source: &ParamSource,
        slice: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), Diagnostic> {
        if source.fill(slice, out)? { Ok(()) } else { Err(no_weights(source)) }
    }

    fn read_param_blocks(
        &self,
        source: &ParamSource,
        _: &[usize],
        _: &[Range<usize>],
        _: Range<usize>,
        _: BlockRows<'_>,
    ) -> Result<(), Diagnostic> {
        Err(no_weights(source))
    }
}

fn no_weights(source: &ParamSource) -> Diagnostic {
    let name = source.tensor_name().unwrap_or_default();
    Diagnostic::input(format!("tensor `{name}` is needed, but no weights were given"))
        .help("name the checkpoint with --weights")
}

/// Product of a shape; `None` for a zero dim or more than 2^58 elements.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d).filter(|&n| n > 0 && n <= MAX_ELEMENTS))
}

/// Checks that `slice` has one non-reversed range inside each dim; returns its number of elements.
pub fn check_slice(shape: &[usize], slice: &[Range<usize>]) -> Result<usize, Diagnostic> {
    let inside = |(r, &d): (&Range<usize>, &usize)| r.start <= r.end && r.end <= d;
    if slice.len() != shape.len() || !slice.iter().zip(shape).all(inside) {
        return Err(Diagnostic::internal(format!("slice {slice:?} is outside a tensor of shape {shape:?}")));
    }
    Ok(slice.iter().map(|r| r.end - r.start).product())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_fills_and_needs_no_file() {
        let mut out = [0.0; 6];
        assert!(ParamSource::ones([4, 3]).fill(&[1..3, 0..3], &mut out).unwrap());
        assert_eq!(out, [1.0; 6]);
        let stored = ParamSource::tensor(TensorView::whole("w", [4, 3]));
        assert!(!stored.fill(&[1..3, 0..3], &mut out).unwrap());
        let refused = NoWeights.read_param_slice(&stored, &[1..3, 0..3], &mut out).unwrap_err();
        assert!(refused.what.contains("`w`"), "{refused}");
        let blocks = BlockRows { codes: &mut [0; 4], scales: &mut [0.0], offsets: &mut [0.0] };
        let refused = NoWeights.read_param_blocks(&stored, &[1], &[0..1, 0..3], 0..1, blocks).unwrap_err();
        assert!(refused.what.contains("`w`"), "{refused}");
    }

    #[test]
    fn slices_outside_are_refused() {
        let source = ParamSource::zeros([4, 3]);
        let mut out = [0.0; 6];
        for slice in [vec![0..5, 0..3], vec![0..2; 1], vec![0..2, 0..2, 0..2], vec![3..5, 0..3]] {
            assert!(source.fill(&slice, &mut out).is_err(), "{slice:?}");
        }
        assert!(source.fill(&[0..1, 0..3], &mut out).is_err(), "out has another length");
    }

    #[test]
    fn edited_sources_are_refused() {
        let good = ParamSource::tensor(TensorView::whole("w", [4, 3]));
        assert!(good.validate().is_ok());
        let mut shape = good.clone();
        shape.shape = vec![3, 4];
        assert!(shape.validate().is_err());
        assert!(ParamSource::zeros([0, 2]).validate().is_err());
        assert!(ParamSource::zeros([usize::MAX, 2]).validate().is_err());
        assert!(ParamSource::random([2], 1, "w", f32::NAN).validate().is_err());
        assert!(ParamSource::constant([2], f32::INFINITY).validate().is_err());
        let Values::Tensor(mut view) = good.values.clone() else { unreachable!() };
        view.offset = 1;
        assert!(ParamSource::tensor(view).validate().is_err(), "the last index is outside");
    }

    #[test]
    fn sources_survive_json() {
        let view = TensorView::whole("w", [12, 5]).split(0, &[3, 4]).unwrap().permute(&[2, 0, 1]).unwrap();
        for source in
            [ParamSource::tensor(view), ParamSource::ones([2]), ParamSource::random([3], 7, "w", 0.02)]
        {
            let text = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<ParamSource>(&text).unwrap(), source, "{text}");
        }
    }
}
