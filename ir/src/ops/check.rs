//! What the tests of ops share: operands by formula, and comparison with values from elsewhere (NumPy 2.4 in
//! f64, printed to ten digits).

use super::Op;
use crate::eval::{At, Tensor};
use crate::types::{DType, Type};

/// Elements `sin(step * i + start)`, i counting row-major; f64, so that the reference is exact.
pub(super) fn wave(shape: &[usize], step: f64, start: f64) -> Tensor {
    Tensor::from_fn(Type::new(DType::F64, shape), |i| (step * i as f64 + start).sin())
}

pub(super) fn ints(shape: &[usize], data: &[i32]) -> Tensor {
    Tensor::new(Type::i32(shape), data.iter().map(|&x| f64::from(x)).collect()).unwrap()
}

pub(super) fn floats(shape: &[usize], data: &[f64]) -> Tensor {
    Tensor::new(Type::new(DType::F64, shape), data.to_vec()).unwrap()
}

/// The only result of the op has these elements.
pub(super) fn check(op: Op, args: &[Tensor], want: &[f64]) {
    let types = op.infer(&args.iter().map(|t| &t.ty).collect::<Vec<_>>()).unwrap();
    let results: Vec<_> = types.iter().collect();
    let got = op.eval(&args.iter().collect::<Vec<_>>(), &results, At::default()).unwrap();
    assert_eq!(got[0].data.len(), want.len(), "{op:?}");
    for (i, (a, b)) in got[0].data.iter().zip(want).enumerate() {
        assert!(a == b || (a - b).abs() < 1e-9, "{op:?}: element {i} is {a}, not {b}");
    }
}

/// The shape rule refuses the operands, and says why in these words.
pub(super) fn refused(op: Op, args: &[Type], why: &str) {
    let error = op.infer(&args.iter().collect::<Vec<_>>()).unwrap_err();
    assert!(error.contains(why), "{op:?}: {error}");
}
