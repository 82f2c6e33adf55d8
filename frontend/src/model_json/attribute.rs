//! Fields that are written in a short text form: types and floats.

use pcc_ir::{DType, Type};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// Greatest rank of a tensor.
const MAX_RANK: usize = 8;

/// A tensor type: `f32[2,3]`, or `i32[]` for a scalar.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TypeText(pub(super) Type);

impl TypeText {
    fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is no tensor type; one looks like f32[2,3], a scalar like f32[]");
        let (dtype, dims) = text.split_once('[').ok_or_else(form)?;
        let dims = dims.strip_suffix(']').ok_or_else(form)?;
        let dtype = DType::from_name(dtype).ok_or_else(|| {
            format!("`{dtype}` is no element type; there are f64, f32, bf16, f16, i64, i32, bool")
        })?;
        let shape: Vec<usize> = match dims.trim() {
            "" => Vec::new(),
            dims => dims
                .split(',')
                .map(|d| {
                    d.trim().parse().map_err(|_| format!("the dim `{}` of `{text}` is no size", d.trim()))
                })
                .collect::<Result<_, _>>()?,
        };
        if shape.len() > MAX_RANK {
            return Err(format!("`{text}` has {} dims, at most {MAX_RANK} are supported", shape.len()));
        }
        let ty = Type::new(dtype, shape);
        match ty.checked() {
            Some(_) => Ok(Self(ty)),
            None => Err(format!("`{text}` has a dim of 0 or more than 2^60 bytes")),
        }
    }
}

impl Serialize for TypeText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TypeText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

impl JsonSchema for TypeText {
    fn schema_name() -> Cow<'static, str> {
        "Type".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Element type and shape: f32[2,3]; a scalar is f32[].",
            "type": "string",
            "pattern": r"^(f64|f32|bf16|f16|i64|i32|bool)\[( *[0-9]+ *(, *[0-9]+ *)*)?\]$",
        })
    }
}

/// A float, with names for those JSON has no number for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Float(pub(super) f64);

const NON_FINITE: [(&str, f64); 3] = [("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY), ("nan", f64::NAN)];

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_finite() => s.serialize_f64(x),
            x if x.is_nan() => s.serialize_str("nan"),
            x => s.serialize_str(if x > 0.0 { "inf" } else { "-inf" }),
        }
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number, or one of the strings inf, -inf, nan")]
        enum Either {
            Number(f64),
            Name(String),
        }
        match Either::deserialize(d)? {
            Either::Number(x) => Ok(Self(x)),
            Either::Name(name) => NON_FINITE
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, x)| Self(*x))
                .ok_or_else(|| D::Error::custom(format!("`{name}` is no number; inf, -inf and nan are"))),
        }
    }
}

impl JsonSchema for Float {
    fn schema_name() -> Cow<'static, str> {
        "Float".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]})
    }
}
