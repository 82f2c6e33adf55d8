//! Model families: each reads a config into a [`Transformer`] and has one table of checkpoint names.
//!
//! Adding one is a file here with its `read` function and its [`Naming`], and a line in [`FAMILIES`].

mod bert;
mod gpt2;
mod llama;

use crate::config::Config;
use crate::naming::Naming;
use crate::transformer::Transformer;
use pcc_ir::Diagnostic;

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
    Family { model_type: "gpt2", read: gpt2::read },
    Family { model_type: "llama", read: llama::llama },
    Family { model_type: "mistral", read: llama::mistral },
    Family { model_type: "qwen2", read: llama::qwen2 },
    Family { model_type: "qwen3", read: llama::qwen3 },
];

/// Most layers a config may ask for.
const MAX_LAYERS: usize = 1 << 14;

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
    match config.required(key)? {
        n if n > MAX_LAYERS => Err(config.wrong(key, format!("at most {MAX_LAYERS} layers are supported"))),
        n => Ok(n),
    }
}

/// `hidden / heads`, which must be whole.
fn head_dim(config: &Config, hidden: usize, heads: usize, key: &str) -> Result<usize, Diagnostic> {
    match hidden % heads {
        0 => Ok(hidden / heads),
        _ => Err(config.wrong(key, format!("it does not divide the hidden size {hidden}"))),
    }
}
