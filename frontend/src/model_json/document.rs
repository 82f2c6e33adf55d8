//! The fields of model.json. Their doc comments are the descriptions of the JSON Schema.

use super::attribute::TypeText;
use super::op::OpJson;
use pcc_ir::source::{Segment, TensorView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model as a graph of ops over named tensors.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "pcc model.json")]
pub(super) struct Document {
    /// Version of the format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub(super) pcc: u32,
    pub(super) name: String,
    /// What is known of the model beyond its graph; needed to generate text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) info: Option<InfoJson>,
    /// Checkpoint of the parameters that name a tensor: safetensors, its index or folder, or GGUF; relative to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) weights: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) params: Vec<ParamJson>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) states: Vec<StateJson>,
    pub(super) functions: Vec<FuncJson>,
    pub(super) entries: Vec<EntryJson>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct InfoJson {
    pub(super) family: String,
    pub(super) class: String,
    /// Which entries and inputs there are. It changes nothing of what is computed.
    pub(super) task: TaskName,
    pub(super) vocab: usize,
    /// Layers of the chain.
    pub(super) layers: usize,
    /// Most positions the model can take.
    pub(super) max_seq: usize,
    /// tokenizer.json or GGUF file, relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokenizer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bos: Option<u32>,
    pub(super) eos: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TaskName {
    /// `tokens` to `logits`, with entries forward, prefill and decode.
    CausalLm,
    /// `tokens`, `attention_mask`, `token_types` to `last_hidden_state`.
    Encoder,
    /// Named inputs to named outputs.
    #[default]
    Graph,
}

/// A parameter. Without `values` it is the tensor of its name in `weights`, or random when there are no weights.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ParamJson {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: TypeText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) values: Option<ValuesJson>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ValuesJson {
    /// The tensor of this name, which has the parameter's shape.
    Tensor(String),
    /// A rearrangement of a tensor.
    View(#[schemars(with = "ViewJson")] TensorView),
    /// All elements equal.
    Constant(f32),
    /// Noise that is a function of seed, name and index.
    Random { seed: u64, name: String, scale: f32 },
}

/// Element (i, j, ..) of the parameter is element `offset + sum(stride * digit)` of the stored tensor, row-major.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "describes TensorView in the schema")]
struct ViewJson {
    tensor: String,
    /// Shape of the stored tensor.
    file_shape: Vec<usize>,
    offset: usize,
    /// For each dim its segments, major to minor, whose product is the dim.
    #[schemars(with = "Vec<Vec<SegmentJson>>")]
    dims: Vec<Vec<Segment>>,
}

#[derive(JsonSchema)]
#[allow(dead_code, reason = "describes Segment in the schema")]
struct SegmentJson {
    extent: usize,
    stride: usize,
}

/// A tensor kept between calls, zero at the start.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StateJson {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: TypeText,
}

/// A function. Instructions may come in any order; every value is defined once.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FuncJson {
    pub(super) name: String,
    #[serde(default)]
    pub(super) args: Vec<ArgJson>,
    pub(super) body: Vec<InstJson>,
    /// Names of values.
    pub(super) results: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ArgJson {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: TypeText,
    /// One per dim: batch, seq or null.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) labels: Vec<Option<LabelName>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum LabelName {
    /// Rows of a batch.
    Batch,
    /// Positions of a sequence.
    Seq,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InstJson {
    pub(super) op: OpJson,
    /// Names of the operands.
    #[serde(rename = "in", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    /// Names of the results: one, but for calls.
    pub(super) out: Vec<String>,
    /// Where in the user's model this comes from, for messages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) loc: String,
}

/// What a user calls.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryJson {
    pub(super) name: String,
    pub(super) function: String,
    /// What each argument of the function is.
    pub(super) args: Vec<RoleJson>,
    /// Names of the function's results.
    pub(super) results: Vec<ResultJson>,
    /// Weight of this entry's cost when shardings are chosen.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) weight: f64,
}

fn one() -> f64 {
    1.0
}

fn is_one(x: &f64) -> bool {
    *x == 1.0
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum RoleJson {
    /// Given by the user under this name.
    Input(String),
    Param(String),
    State(String),
}

/// A name, or `{"state": name}` for the new value of a state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a name, or an object with the name of a state")]
pub(super) enum ResultJson {
    Output(String),
    State { state: String },
}
