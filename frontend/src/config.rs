//! A Hugging Face config: typed access to its fields, and the refusal of those nobody understood.
//!
//! A family asks for every field it knows. When it is done, [`Config::finish`] refuses the first field that was neither
//! asked for nor is known to leave the mathematics alone, so that no model is guessed.

use pcc_ir::Diagnostic;
use pcc_ir::ops::UnaryKind;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Fields that say nothing about the function from tokens to outputs: bookkeeping, training, generation, numerics.
const HARMLESS: &[&str] = &[
    // Bookkeeping.
    "_name_or_path",
    "_commit_hash",
    "transformers_version",
    "transformers.js_config",
    "auto_map",
    "task_specific_params",
    "id2label",
    "label2id",
    "language",
    "finetuning_task",
    "is_llama_config",
    // Training: dropout, initialisation, memory.
    "attention_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "initializer_range",
    "gradient_checkpointing",
    "sequence_parallel_enabled",
    "selective_checkpoint_enabled",
    // Heads for other tasks.
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "n_special",
    "predict_special_tokens",
    // Generation and how a program runs.
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "decoder_start_token_id",
    "use_cache",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "torch_dtype",
    "dtype",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "torchscript",
    // Slices of one matrix product, added up: the same mathematics.
    "pretraining_tp",
    // Upcasts inside attention: the same mathematics.
    "reorder_and_upcast_attn",
];

/// Largest size any field may give: keeps products of two inside 64 bits.
const MAX_SIZE: u64 = 1 << 31;

/// The fields of one object, and which were asked for.
pub(crate) struct Config<'a> {
    fields: &'a Map<String, Value>,
    /// Path of the object inside the file, empty or ending in a dot.
    path: String,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Config<'a> {
    pub(crate) fn new(fields: &'a Map<String, Value>, path: &str) -> Self {
        Self { fields, path: path.to_owned(), asked: RefCell::default() }
    }

    /// The field's value; `None` when absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.fields.get(key).filter(|v| !v.is_null())
    }

    /// Whether the field is there, null or not.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    pub(crate) fn wrong(&self, key: &str, why: impl Into<String>) -> Diagnostic {
        let value = self.fields.get(key).map_or_else(|| "nothing".into(), shorten);
        Diagnostic::input(format!("the config's field `{}{key}` is {value}", self.path)).why(why)
    }

    /// Which of several names of one field the config uses.
    pub(crate) fn used<'k>(&self, keys: &[&'k str]) -> &'k str {
        keys.iter().find(|k| self.fields.get(**k).is_some_and(|v| !v.is_null())).unwrap_or(&keys[0])
    }

    pub(crate) fn missing(&self, key: &str) -> Diagnostic {
        Diagnostic::input(format!("the config's field `{}{key}` is missing", self.path))
            .why("the model's sizes are never guessed")
    }

    /// A size: an integer from 1 to 2^31.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) if (1..=MAX_SIZE).contains(&n) => Ok(usize::try_from(n).ok()),
                _ => Err(self.wrong(key, format!("an integer from 1 to {MAX_SIZE} is needed"))),
            },
        }
    }

    /// A size under the first of these names that is present; the others must agree with it.
    pub(crate) fn size_of(&self, keys: &[&str]) -> Result<Option<usize>, Diagnostic> {
        let mut found = None;
        for key in keys {
            match (found, self.size(key)?) {
                (Some(a), Some(b)) if a != b => {
                    return Err(self.wrong(key, format!("`{}` says {a}", keys.join("` or `"))));
                }
                (a, b) => found = a.or(b),
            }
        }
        Ok(found)
    }

    pub(crate) fn required(&self, key: &str) -> Result<usize, Diagnostic> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                // Models compute in f32 at most.
                Some(x) if (x as f32).is_finite() => Ok(Some(x)),
                _ => Err(self.wrong(key, "a number that f32 has is needed")),
            },
        }
    }

    /// A number above zero.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, Diagnostic> {
        match self.float(key)? {
            Some(x) if x as f32 <= 0.0 => Err(self.wrong(key, "a number above 0 is needed")),
            x => Ok(x),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false is needed")),
        }
    }

    pub(crate) fn str(&self, key: &str) -> Result<Option<&'a str>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string is needed")),
        }
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Config<'a>>, Diagnostic> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Config::new(fields, &format!("{}{key}.", self.path)))),
            Some(_) => Err(self.wrong(key, "an object is needed")),
        }
    }

    /// Refuses the field unless it is absent, null or this value: the only one that is understood.
    pub(crate) fn only(&self, key: &str, value: impl Into<Value>) -> Result<(), Diagnostic> {
        let value = value.into();
        match self.get(key) {
            Some(v) if !equal(v, &value) => Err(self.wrong(key, format!("only {value} is supported"))),
            _ => Ok(()),
        }
    }

    /// An activation function by its published name.
    pub(crate) fn activation(&self, key: &str, default: UnaryKind) -> Result<UnaryKind, Diagnostic> {
        let Some(name) = self.str(key)? else { return Ok(default) };
        let known = ACTIVATIONS.iter().find(|(n, _)| *n == name);
        known.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<&str> = ACTIVATIONS.iter().map(|(n, _)| *n).collect();
            self.wrong(key, "the function is not known").help(format!("supported: {}", names.join(", ")))
        })
    }

    /// The class in `architectures`, which must be one of `classes`; the first of them when the field is absent.
    pub(crate) fn class(&self, classes: &[&'static str]) -> Result<&'static str, Diagnostic> {
        let first = classes.first().copied().unwrap_or_default();
        let named = match self.get("architectures") {
            None => return Ok(first),
            Some(Value::Array(list)) if list.is_empty() => return Ok(first),
            Some(Value::Array(list)) if list.len() == 1 => list.first().and_then(Value::as_str),
            Some(_) => None,
        };
        classes.iter().copied().find(|c| Some(*c) == named).ok_or_else(|| {
            self.wrong("architectures", "the model class is not supported")
                .help(format!("supported for this model_type: {}", classes.join(", ")))
        })
    }

    /// Refuses the first field that was not asked for, is not known to be harmless, and has a value that says something.
    pub(crate) fn finish(&self) -> Result<(), Diagnostic> {
        let asked = self.asked.borrow();
        let says_nothing = |v: &Value| match v {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        let unknown = |(key, value): &(&String, &Value)| {
            !asked.contains(*key) && !HARMLESS.contains(&key.as_str()) && !says_nothing(value)
        };
        match self.fields.iter().find(unknown) {
            None => Ok(()),
            Some((key, _)) => Err(self
                .wrong(key, "the field is not understood and could change the model's mathematics")
                .help("remove it if it only concerns training or another program")),
        }
    }
}

/// Published names of activation functions. The two tanh forms of gelu differ in how they are written only.
const ACTIVATIONS: &[(&str, UnaryKind)] = &[
    ("silu", UnaryKind::Silu),
    ("swish", UnaryKind::Silu),
    ("gelu", UnaryKind::Gelu),
    ("gelu_python", UnaryKind::Gelu),
    ("gelu_new", UnaryKind::GeluTanh),
    ("gelu_pytorch_tanh", UnaryKind::GeluTanh),
    ("gelu_fast", UnaryKind::GeluTanh),
    ("relu", UnaryKind::Relu),
    ("tanh", UnaryKind::Tanh),
    ("sigmoid", UnaryKind::Sigmoid),
];

/// Equal values; numbers by value, so that 1 is 1.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// A value for a message, cut where it is long.
fn shorten(v: &Value) -> String {
    let text = v.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
