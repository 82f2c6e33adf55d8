//! Model families: each reads a config into a [`Transformer`] and has one table of checkpoint names.
//!
//! Adding one is a file here with its `read` function and its [`Naming`], and a line in [`FAMILIES`].

mod bert;
mod bloom;
mod falcon;
mod gemma2;
mod gpt2;
mod gpt_neox;
mod llama;
mod opt;
mod phi3;
mod rope;

use crate::config::Config;
use crate::naming::Naming;
use crate::transformer::Transformer;
use pcc_ir::Diagnostic;
use serde_json::Value;

/// A model as its config describes it.
#[derive(Clone, Debug)]
pub struct Description {
    /// `llama`, `gpt2`, `bert`, ...: the config's model_type.
    pub family: &'static str,
    /// The model class whose parameters these are.
    pub class: &'static str,
    pub transformer: Transformer,
    pub naming: &'static Naming,
}

/// A model_type and what reads its config.
struct Family {
    model_type: &'static str,
    read: fn(&Config) -> Result<Description, Diagnostic>,
}

/// In the order messages list them.
const FAMILIES: &[Family] = &[
    Family { model_type: "bert", read: bert::read },
    Family { model_type: "bloom", read: bloom::read },
    Family { model_type: "falcon", read: falcon::read },
    Family { model_type: "gemma2", read: gemma2::read },
    Family { model_type: "gpt2", read: gpt2::read },
    Family { model_type: "gpt_neox", read: gpt_neox::read },
    Family { model_type: "llama", read: llama::llama },
    Family { model_type: "mistral", read: llama::mistral },
    Family { model_type: "opt", read: opt::read },
    Family { model_type: "phi3", read: phi3::read },
    Family { model_type: "qwen2", read: llama::qwen2 },
    Family { model_type: "qwen3", read: llama::qwen3 },
];

/// Most layers a config may ask for.
const MAX_LAYERS: usize = 1 << 14;
/// Most attention heads: some families have a number for each.
const MAX_HEADS: usize = 1 << 14;

/// The supported model types, for messages.
pub(crate) fn supported() -> String {
    FAMILIES.iter().map(|f| f.model_type).collect::<Vec<_>>().join(", ")
}

/// Reads a config.
///
/// # Errors
/// A model_type, a class or a field that is not supported, by name; sizes that are missing or do not fit together.
pub(crate) fn read(config: &Config) -> Result<Description, Diagnostic> {
    let model_type = config.str("model_type")?.ok_or_else(|| config.missing("model_type"))?;
    let Some(family) = FAMILIES.iter().find(|f| f.model_type == model_type) else {
        return Err(Diagnostic::input(format!("models of model_type `{model_type}` are not supported"))
            .help(format!(
                "supported model types: {}; any other model can be given as model.json",
                supported()
            )));
    };
    let description = (family.read)(config)?;
    config.finish()?;
    Ok(description)
}

/// Number of layers under `key`.
fn layers(config: &Config, key: &str) -> Result<usize, Diagnostic> {
    check_layers(config, key, config.required(key)?)
}

fn check_layers(config: &Config, key: &str, n: usize) -> Result<usize, Diagnostic> {
    match n {
        n if n > MAX_LAYERS => Err(config.wrong(key, format!("at most {MAX_LAYERS} layers are supported"))),
        n => Ok(n),
    }
}

/// Query heads to each kv head, which must be whole.
fn group(config: &Config, heads: usize, kv: usize, key: &str) -> Result<usize, Diagnostic> {
    match heads % kv {
        0 => Ok(heads / kv),
        _ => Err(config.wrong(key, format!("it does not divide the {heads} attention heads"))),
    }
}

/// What `layer_types` says of each layer, if it is there: whether its attention has a window. `key` holds their number.
fn sliding_layers(config: &Config, key: &str) -> Result<Option<Vec<bool>>, Diagnostic> {
    const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
    let Some(types) = config.get("layer_types") else { return Ok(None) };
    let read = |t: &Value| t.as_str().filter(|t| KINDS.contains(t)).map(|t| t == KINDS[1]);
    let sliding: Option<Vec<bool>> = types.as_array().and_then(|list| list.iter().map(read).collect());
    match sliding {
        Some(list) if list.len() == layers(config, key)? => Ok(Some(list)),
        _ => Err(config.wrong("layer_types", format!("one of {} a layer is needed", KINDS.join(" or ")))),
    }
}

/// `hidden / heads`, which must be whole.
fn head_dim(config: &Config, hidden: usize, heads: usize, key: &str) -> Result<usize, Diagnostic> {
    if heads > MAX_HEADS {
        return Err(config.wrong(key, format!("at most {MAX_HEADS} attention heads are supported")));
    }
    match hidden % heads {
        0 => Ok(hidden / heads),
        _ => Err(config.wrong(key, format!("it does not divide the hidden size {hidden}"))),
    }
}
