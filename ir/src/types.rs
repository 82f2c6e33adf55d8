//! Element types and tensor types.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    F64,
    F32,
    BF16,
    F16,
    I64,
    I32,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::Bool => 1,
        }
    }

    /// Whether the type is a floating-point one.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::BF16 | DType::F16)
    }

    /// The name used in every text form.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }

    /// The inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        use DType::*;
        [F64, F32, BF16, F16, I64, I32, Bool].into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How several contributions to one value are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceKind {
    Sum,
    Max,
    Min,
}

impl ReduceKind {
    /// The value that changes nothing when combined.
    pub fn identity(self) -> f64 {
        match self {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }

    /// Combines two contributions.
    pub fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            ReduceKind::Sum => a + b,
            ReduceKind::Max => a.max(b),
            ReduceKind::Min => a.min(b),
        }
    }

    /// The name used in every text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
        }
    }
}

/// Element type and static shape of a tensor. Rank 0 is a scalar. Every dim is at least 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    pub dtype: DType,
    pub shape: Vec<usize>,
}

impl Type {
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    pub fn f32(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::F32, shape)
    }

    pub fn i32(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::I32, shape)
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements. Shapes are checked against overflow where they enter (see [`Type::checked`]).
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Number of bytes, or `None` when a dim is zero or the product passes 2^60: such a type is refused
    /// wherever a model, a text or an artifact enters.
    pub fn checked(&self) -> Option<usize> {
        let mut n = self.dtype.bytes();
        for &d in &self.shape {
            if d == 0 {
                return None;
            }
            n = n.checked_mul(d).filter(|&n| n < 1 << 60)?;
        }
        Some(n)
    }
}

impl fmt::Display for Type {
    /// `f32[2,3]`; a scalar is `f32[]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

/// A float in JSON: a number, or `"nan"`, `"inf"`, `"-inf"`, which JSON numbers cannot say.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum JsonFloat {
    Number(f64),
    Name(NonFinite),
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum NonFinite {
    #[serde(rename = "nan")]
    Nan,
    #[serde(rename = "inf")]
    Infinity,
    #[serde(rename = "-inf")]
    NegInfinity,
}

impl From<f64> for JsonFloat {
    fn from(x: f64) -> Self {
        if x.is_finite() {
            JsonFloat::Number(x)
        } else if x.is_nan() {
            JsonFloat::Name(NonFinite::Nan)
        } else {
            JsonFloat::Name(if x > 0.0 { NonFinite::Infinity } else { NonFinite::NegInfinity })
        }
    }
}

impl From<JsonFloat> for f64 {
    fn from(x: JsonFloat) -> Self {
        match x {
            JsonFloat::Number(x) => x,
            JsonFloat::Name(NonFinite::Nan) => f64::NAN,
            JsonFloat::Name(NonFinite::Infinity) => f64::INFINITY,
            JsonFloat::Name(NonFinite::NegInfinity) => f64::NEG_INFINITY,
        }
    }
}

/// `#[serde(with)]` for a float that may not be finite.
pub(crate) mod float {
    use super::JsonFloat;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
        JsonFloat::from(*x).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        JsonFloat::deserialize(d).map(f64::from)
    }
}

/// `#[serde(with)]` for floats that may not be finite.
pub(crate) mod floats {
    use super::JsonFloat;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(x: &[f64], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(x.iter().map(|&x| JsonFloat::from(x)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::<JsonFloat>::deserialize(d)?.into_iter().map(f64::from).collect())
    }
}
