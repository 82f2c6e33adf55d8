//! Ops as model.json writes them: a name, or an object of one name with the op's attributes.

use super::attribute::{Float, TypeText};
use super::nearest;
use pcc_ir::ops::{self, BinaryKind, CompareKind, Literal, Op, UnaryKind};
use pcc_ir::{DType, FuncId, ReduceKind};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;

/// An op: `"add"`, or `{"reshape": [2, 3]}`.
#[derive(Clone, Debug)]
pub(super) enum OpJson {
    Plain(Op),
    With(WithAttributes),
}

/// Ops with attributes. Dims count from 0.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum WithAttributes {
    /// `() -> type`: all elements equal, or listed row-major (at most 2^20).
    Constant {
        #[serde(rename = "type")]
        ty: TypeText,
        value: ConstantJson,
    },
    /// `() -> type`: each element is its index along the dim.
    Iota {
        #[serde(rename = "type")]
        ty: TypeText,
        dim: usize,
    },
    /// To an element type.
    Convert(DTypeName),
    /// Operand dim i becomes dim `dims[i]` (increasing, equal extents) of the shape; the other dims repeat.
    Broadcast {
        shape: Vec<usize>,
        dims: Vec<usize>,
    },
    /// To a shape of equal element count, row-major.
    Reshape(Vec<usize>),
    /// Result dim i is operand dim `perm[i]`.
    Transpose(Vec<usize>),
    /// Elements `start..limit` of every dim.
    Slice {
        start: Vec<usize>,
        limit: Vec<usize>,
    },
    /// Joins the operands along the dim.
    Concat(usize),
    /// Adds elements before and after each dim.
    Pad {
        low: Vec<usize>,
        high: Vec<usize>,
        value: Float,
    },
    /// `(lhs, rhs)`: matrix product. Result dims: batch dims, free dims of lhs, free dims of rhs.
    DotGeneral {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lhs_batch: Vec<usize>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rhs_batch: Vec<usize>,
        lhs_contract: Vec<usize>,
        rhs_contract: Vec<usize>,
        /// Element type of the result; the operands' without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<DTypeName>,
    },
    /// Reduces and drops the dims (increasing).
    Reduce {
        kind: ReduceName,
        dims: Vec<usize>,
    },
    /// `(operand [B.., N, rest..], indices i32 [B.., I..]) -> [B.., I.., rest..]`; an index outside gives zeros.
    Gather {
        #[serde(default)]
        batch: usize,
    },
    /// `(operand [B.., N, rest..], new [B.., s, rest..], start i32 [B..])`: rows `start..start+s` replaced.
    Update {
        #[serde(default)]
        batch: usize,
    },
    Softmax {
        dim: usize,
    },
    /// `(x [.., h], weight [h])`
    RmsNorm {
        eps: f64,
    },
    /// `(x [.., h], weight [h], bias [h])`
    LayerNorm {
        eps: f64,
    },
    /// `(x [b, s, .., d], cos [b, s, r/2], sin [b, s, r/2])`: rotates the first r elements of the last dim.
    Rope {
        #[serde(default)]
        interleaved: bool,
    },
    /// `(q [b,s,g,r,d], k [b,t,g,d], v [b,t,g,e], q_pos i32 [b,s], k_pos i32 [b,t] (, slopes [g,r])) -> [b,s,g,r,e]`: g heads
    /// of keys, r queries each. A key at position -1 is hidden; a head's slope times the key's position is added to its scores, with
    /// `bf16_bias` as `scale * product`, slope, position and product rounded to bf16.
    Attention {
        scale: f64,
        #[serde(default)]
        causal: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<usize>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        softcap: Option<f64>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bf16_bias: bool,
    },
    /// `(x [.., n]) -> (values [.., k], indices i32 [.., k])`: the k largest of each row, largest first, of equal ones the first.
    TopK {
        k: usize,
    },
    /// `(logits f32 [b, n], settings f32 [b, 2], key i32 [b, 4]) -> token i32 [b]`: settings are temperature (0: the likeliest token) and top-p, key is
    /// top-k (0: all), the low and the high half of a seed, and the number of the draw.
    Sample {},
    /// Calls the function of this name.
    Call(String),
}

/// Names of [`WithAttributes`].
const WITH: &[&str] = &[
    "constant",
    "iota",
    "convert",
    "broadcast",
    "reshape",
    "transpose",
    "slice",
    "concat",
    "pad",
    "dot_general",
    "reduce",
    "gather",
    "update",
    "softmax",
    "rms_norm",
    "layer_norm",
    "rope",
    "attention",
    "top_k",
    "sample",
    "call",
];

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConstantJson {
    Splat(Float),
    Dense(Vec<Float>),
}

/// An element type.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum DTypeName {
    F64,
    F32,
    Bf16,
    F16,
    I64,
    I32,
    Bool,
}

impl DTypeName {
    fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => DTypeName::F64,
            DType::F32 => DTypeName::F32,
            DType::BF16 => DTypeName::Bf16,
            DType::F16 => DTypeName::F16,
            DType::I64 => DTypeName::I64,
            DType::I32 => DTypeName::I32,
            DType::Bool => DTypeName::Bool,
        }
    }

    fn dtype(self) -> DType {
        match self {
            DTypeName::F64 => DType::F64,
            DTypeName::F32 => DType::F32,
            DTypeName::Bf16 => DType::BF16,
            DTypeName::F16 => DType::F16,
            DTypeName::I64 => DType::I64,
            DTypeName::I32 => DType::I32,
            DTypeName::Bool => DType::Bool,
        }
    }
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ReduceName {
    Sum,
    Max,
    Min,
}

impl OpJson {
    /// The IR's op; a call's function is found by its name.
    pub(super) fn to_op(&self, func: impl Fn(&str) -> Option<FuncId>) -> Option<Op> {
        let with = match self {
            OpJson::Plain(op) => return Some(op.clone()),
            OpJson::With(with) => with.clone(),
        };
        use WithAttributes as W;
        Some(match with {
            W::Constant { ty, value } => Op::Constant(ops::Constant {
                ty: ty.0,
                value: match value {
                    ConstantJson::Splat(x) => Literal::Splat(x.0),
                    ConstantJson::Dense(list) => Literal::Dense(list.into_iter().map(|x| x.0).collect()),
                },
            }),
            W::Iota { ty, dim } => Op::Iota(ops::Iota { ty: ty.0, dim, base: None }),
            W::Convert(dtype) => Op::Convert(dtype.dtype()),
            W::Broadcast { shape, dims } => Op::Broadcast(ops::Broadcast { shape, dims }),
            W::Reshape(shape) => Op::Reshape(shape),
            W::Transpose(perm) => Op::Transpose(perm),
            W::Slice { start, limit } => Op::Slice(ops::Slice { start, limit }),
            W::Concat(dim) => Op::Concat(dim),
            W::Pad { low, high, value } => Op::Pad(ops::Pad { low, high, value: value.0 }),
            W::DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, result } => {
                let result = result.map(DTypeName::dtype);
                Op::DotGeneral(ops::DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, result })
            }
            W::Reduce { kind, dims } => {
                let kind = match kind {
                    ReduceName::Sum => ReduceKind::Sum,
                    ReduceName::Max => ReduceKind::Max,
                    ReduceName::Min => ReduceKind::Min,
                };
                Op::Reduce(ops::Reduce { kind, dims })
            }
            W::Gather { batch } => Op::Gather(ops::Gather { batch, base: None }),
            W::Update { batch } => Op::Update(ops::Update { batch, base: None }),
            W::Softmax { dim } => Op::Softmax(ops::Softmax { dim }),
            W::RmsNorm { eps } => Op::RmsNorm(ops::RmsNorm { eps }),
            W::LayerNorm { eps } => Op::LayerNorm(ops::LayerNorm { eps }),
            W::Rope { interleaved } => Op::Rope(ops::Rope { interleaved }),
            W::Attention { scale, causal, window, softcap, bf16_bias } => {
                Op::Attention(ops::Attention { scale, causal, window, softcap, bf16_bias })
            }
            W::TopK { k } => Op::TopK(ops::TopK { k }),
            W::Sample {} => Op::Sample(ops::Sample {}),
            W::Call(name) => Op::Call(func(&name)?),
        })
    }

    /// The form of an op of the graph level; `None` for the others.
    pub(super) fn from_op(op: &Op, func: impl Fn(FuncId) -> String) -> Option<Self> {
        use WithAttributes as W;
        let with = match op.clone() {
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select => {
                return Some(OpJson::Plain(op.clone()));
            }
            Op::Constant(c) => W::Constant {
                ty: TypeText(c.ty),
                value: match c.value {
                    Literal::Splat(x) => ConstantJson::Splat(Float(x)),
                    Literal::Dense(list) => ConstantJson::Dense(list.into_iter().map(Float).collect()),
                },
            },
            Op::Iota(ops::Iota { ty, dim, base: None }) => W::Iota { ty: TypeText(ty), dim },
            Op::Convert(dtype) => W::Convert(DTypeName::of(dtype)),
            Op::Broadcast(ops::Broadcast { shape, dims }) => W::Broadcast { shape, dims },
            Op::Reshape(shape) => W::Reshape(shape),
            Op::Transpose(perm) => W::Transpose(perm),
            Op::Slice(ops::Slice { start, limit }) => W::Slice { start, limit },
            Op::Concat(dim) => W::Concat(dim),
            Op::Pad(ops::Pad { low, high, value }) => W::Pad { low, high, value: Float(value) },
            Op::DotGeneral(ops::DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, result }) => {
                let result = result.map(DTypeName::of);
                W::DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, result }
            }
            Op::Reduce(ops::Reduce { kind, dims }) => {
                let kind = match kind {
                    ReduceKind::Sum => ReduceName::Sum,
                    ReduceKind::Max => ReduceName::Max,
                    ReduceKind::Min => ReduceName::Min,
                };
                W::Reduce { kind, dims }
            }
            Op::Gather(ops::Gather { batch, base: None }) => W::Gather { batch },
            Op::Update(ops::Update { batch, base: None }) => W::Update { batch },
            Op::Softmax(ops::Softmax { dim }) => W::Softmax { dim },
            Op::RmsNorm(ops::RmsNorm { eps }) => W::RmsNorm { eps },
            Op::LayerNorm(ops::LayerNorm { eps }) => W::LayerNorm { eps },
            Op::Rope(ops::Rope { interleaved }) => W::Rope { interleaved },
            Op::Attention(ops::Attention { scale, causal, window, softcap, bf16_bias }) => {
                W::Attention { scale, causal, window, softcap, bf16_bias }
            }
            Op::TopK(ops::TopK { k }) => W::TopK { k },
            Op::Sample(ops::Sample {}) => W::Sample {},
            Op::Call(id) => W::Call(func(id)),
            // Local forms, and the sharded and local levels.
            Op::Iota(_)
            | Op::Gather(_)
            | Op::Update(_)
            | Op::Reshard(_)
            | Op::Collective(_)
            | Op::ShardSlice(_)
            | Op::MaskTail(_)
            | Op::Send { .. }
            | Op::Recv { .. } => return None,
        };
        Some(OpJson::With(with))
    }
}

/// Names of ops without attributes.
fn plain_names() -> impl Iterator<Item = &'static str> {
    let unary = UnaryKind::ALL.iter().map(|k| k.name());
    let binary = BinaryKind::ALL.iter().map(|k| k.name());
    let compare = CompareKind::ALL.iter().map(|k| k.name());
    unary.chain(binary).chain(compare).chain(["select"])
}

fn plain(name: &str) -> Option<Op> {
    UnaryKind::from_name(name)
        .map(Op::Unary)
        .or_else(|| BinaryKind::from_name(name).map(Op::Binary))
        .or_else(|| CompareKind::from_name(name).map(Op::Compare))
        .or_else(|| (name == "select").then_some(Op::Select))
}

impl Serialize for OpJson {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            OpJson::Plain(op) => s.serialize_str(op.name()),
            OpJson::With(with) => with.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for OpJson {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        let unknown = |name: &str| {
            let near = nearest(name, plain_names().chain(WITH.iter().copied()));
            D::Error::custom(format!("`{name}` is no op{near}"))
        };
        match &value {
            Value::String(name) if WITH.contains(&name.as_str()) => {
                Err(D::Error::custom(format!("`{name}` needs attributes: {{\"{name}\": ...}}")))
            }
            Value::String(name) => plain(name).map(OpJson::Plain).ok_or_else(|| unknown(name)),
            Value::Object(fields) => match fields.iter().next() {
                Some((name, _)) if fields.len() == 1 => {
                    if plain(name).is_some() {
                        return Err(D::Error::custom(format!(
                            "`{name}` has no attributes: write \"{name}\""
                        )));
                    }
                    if !WITH.contains(&name.as_str()) {
                        return Err(unknown(name));
                    }
                    let name = name.clone();
                    let with: Result<WithAttributes, _> = serde_json::from_value(value);
                    with.map(OpJson::With).map_err(|e| D::Error::custom(format!("`{name}`: {e}")))
                }
                _ => Err(D::Error::custom("an op is a name, or an object of one name and its attributes")),
            },
            _ => Err(D::Error::custom("an op is a name, or an object of one name and its attributes")),
        }
    }
}

impl JsonSchema for OpJson {
    fn schema_name() -> Cow<'static, str> {
        "Op".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = plain_names().collect();
        let with = generator.subschema_for::<WithAttributes>();
        json_schema!({
            "description": "An elementwise op by its name, or an object of one name with the op's attributes.",
            "anyOf": [{"enum": names}, with],
        })
    }
}
