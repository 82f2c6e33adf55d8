//! The front door: a path to a model of any kind becomes a [`Model`].

use crate::config::Config;
use crate::families::{self, Description};
use crate::transformer::Capacity;
use crate::weights::Checkpoint;
use crate::{gguf_config, graph, json};
use pcc_ir::program::{ModelInfo, Task};
use pcc_ir::{Diagnostic, Module};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What a model is loaded for.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Extent of the module's batch dim: the rows of one micro-batch over all replicas.
    pub batch_rows: usize,
    /// Extent of the sequence dim; by default the smaller of 512 and the model's limit.
    pub seq: Option<usize>,
    /// A checkpoint, for a model that comes without one or to replace its own.
    pub weights: Option<PathBuf>,
    /// Of random parameters, when there is no checkpoint.
    pub seed: u64,
}

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    pub module: Module,
    pub info: ModelInfo,
    /// Where parameters that are views of tensors are read from.
    pub checkpoint: Option<Checkpoint>,
    /// The file with the tokenizer, if one came with the model.
    pub tokenizer: Option<PathBuf>,
    /// What the user should know: that weights are random, for instance.
    pub notices: Vec<String>,
    /// Most positions the model can take.
    pub max_seq: usize,
}

impl Model {
    /// The model with every layer by itself, for who needs parameters and states one by one.
    ///
    /// # Errors
    /// As [`Module::expanded`].
    pub fn unfolded(mut self) -> Result<Self, Diagnostic> {
        if self.module.is_folded() {
            self.module = self.module.expanded()?.into_owned();
            self.module.funcs.values_mut().for_each(crate::canonical::renumber);
        }
        Ok(self)
    }
}

/// What is known of a model before it is built; defaults depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub family: String,
    pub class: String,
    pub task: Task,
    pub layers: usize,
    /// Most positions the model can take.
    pub max_seq: usize,
    /// Extent of the batch dim, where the file fixes it (model.json).
    pub rows: Option<usize>,
    /// Extent of the sequence dim, where the file fixes it.
    pub seq: Option<usize>,
}

/// Sequence capacity when none is asked for and the model can take more.
const DEFAULT_SEQ: usize = 512;

/// What a path leads to.
enum Source {
    /// A family's model, with its own checkpoint if it has one.
    Family { fields: Map<String, Value>, checkpoint: Option<Checkpoint> },
    /// A model.json.
    Graph(Value, PathBuf),
}

/// A path that was looked at.
struct Opened {
    /// Of the config, for messages.
    place: String,
    name: String,
    source: Source,
    tokenizer: Option<PathBuf>,
}

/// Reads what a model is, without building it or opening separate weights.
///
/// # Errors
/// As [`load`], as far as the model's description is concerned.
pub fn describe(path: &Path) -> Result<Summary, Diagnostic> {
    let Opened { place, source, .. } = open(path)?;
    match source {
        Source::Graph(value, path) => graph::describe(value, &path),
        Source::Family { fields, .. } => {
            let d = read_config(&fields, &place)?;
            Ok(Summary {
                family: d.family.into(),
                class: d.class.into(),
                task: d.transformer.task,
                layers: d.transformer.layers.len(),
                max_seq: d.transformer.max_seq,
                rows: None,
                seq: None,
            })
        }
    }
}

/// Loads a model: a model.json, a Hugging Face `config.json`, a folder with one of them, or a GGUF file.
///
/// # Errors
/// One diagnostic: a file that cannot be read or is malformed, a model or field that is not supported, sizes that do
/// not fit together or overflow, a sequence longer than the model takes, weights of another model.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Model, Diagnostic> {
    let Opened { place, name, source, tokenizer } = open(path)?;
    match source {
        Source::Graph(value, path) => graph::load(value, &path, options),
        Source::Family { fields, checkpoint } => {
            let description = read_config(&fields, &place)?;
            let checkpoint = match &options.weights {
                Some(path) => Some(Checkpoint::open(path)?),
                None => checkpoint,
            };
            build_family(&description, &fields, name, checkpoint, tokenizer, options)
        }
    }
}

fn build_family(
    d: &Description,
    fields: &Map<String, Value>,
    name: String,
    checkpoint: Option<Checkpoint>,
    tokenizer: Option<PathBuf>,
    options: &LoadOptions,
) -> Result<Model, Diagnostic> {
    let max_seq = d.transformer.max_seq;
    let seq = options.seq.unwrap_or(DEFAULT_SEQ.min(max_seq));
    if seq == 0 || seq > max_seq {
        return Err(Diagnostic::input(format!("a sequence of {seq} positions does not fit the model"))
            .why(format!("it takes 1 to {max_seq} positions"))
            .help(format!("give --seq {} or less", max_seq)));
    }
    let capacity = Capacity { rows: options.batch_rows, seq, seed: options.seed };
    let mut network = d.transformer.build(&name, d.naming, capacity)?;
    let parameters = graph::count_parameters(&network.module)?;
    let mut notices = Vec::new();
    match &checkpoint {
        Some(checkpoint) => d.naming.bind(&mut network, checkpoint)?,
        None => notices.push(format!("no weights were given: they are random, from seed {}", options.seed)),
    }
    notices.extend(d.transformer.notice(seq));
    let info = ModelInfo {
        name,
        family: d.family.into(),
        class: d.class.into(),
        parameters,
        task: d.transformer.task,
        vocab: d.transformer.vocab,
        seq,
        layers: d.transformer.layers.len(),
        tokenizer: tokenizer.as_ref().map(|p| p.display().to_string()),
        bos: token_ids(fields.get("bos_token_id")).first().copied(),
        eos: token_ids(fields.get("eos_token_id")),
    };
    Ok(Model { module: network.module, info, checkpoint, tokenizer, notices, max_seq })
}

/// One id or a list of them.
fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(v) => id(v).into_iter().collect(),
        None => vec![],
    }
}

/// The family's description, with the file as the place of what is wrong.
fn read_config(fields: &Map<String, Value>, place: &str) -> Result<Description, Diagnostic> {
    families::read(&Config::new(fields, "")).map_err(|d| if d.place.is_none() { d.at(place) } else { d })
}

fn open(path: &Path) -> Result<Opened, Diagnostic> {
    let stem = |p: &Path| p.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    if path.is_dir() {
        return open_folder(path);
    }
    if !path.exists() {
        return Err(Diagnostic::input("there is no such model").at(path.display().to_string()).help(KINDS));
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("gguf") => open_gguf(path),
        Some("safetensors") => Err(Diagnostic::input("weights alone are no model")
            .at(path.display().to_string())
            .help("give the folder with their config.json, or the config with --weights")),
        _ => {
            let opened = Opened {
                place: path.display().to_string(),
                name: stem(path),
                source: read_json(path)?,
                tokenizer: None,
            };
            Ok(opened)
        }
    }
}

/// What a model may be, for messages.
const KINDS: &str =
    "a model is a model.json, a Hugging Face config.json, a folder with one of them, or a GGUF file";

fn open_folder(folder: &Path) -> Result<Opened, Diagnostic> {
    let inside = |end: &str| folder_files(folder, end);
    let file = ["config.json", "model.json"].map(|n| folder.join(n)).into_iter().find(|f| f.is_file());
    let Some(file) = file else {
        return match inside(".gguf").as_slice() {
            [one] => open_gguf(one),
            _ => Err(Diagnostic::input("the folder is no model")
                .at(folder.display().to_string())
                .why("it has no config.json, no model.json and not exactly one GGUF file")
                .help(KINDS)),
        };
    };
    let name = folder.canonicalize().ok().and_then(|p| Some(p.file_name()?.to_string_lossy().into_owned()));
    let mut source = read_json(&file)?;
    if let Source::Family { checkpoint, .. } = &mut source
        && !inside(".safetensors").is_empty()
    {
        *checkpoint = Some(Checkpoint::open(folder)?);
    }
    if let Source::Family { fields, .. } = &mut source {
        merge_generation_config(fields, &folder.join("generation_config.json"));
    }
    let tokenizer = Some(folder.join("tokenizer.json")).filter(|t| t.is_file());
    let place = file.display().to_string();
    Ok(Opened { place, name: name.unwrap_or_else(|| "model".into()), source, tokenizer })
}

/// Chat models end a turn with tokens that only this file lists; one that cannot be read changes nothing.
fn merge_generation_config(fields: &mut Map<String, Value>, path: &Path) {
    if !path.is_file() {
        return;
    }
    if let Ok(Value::Object(generation)) = json::read(path)
        && let Some(eos) = generation.get("eos_token_id").filter(|v| !v.is_null())
    {
        fields.insert("eos_token_id".into(), eos.clone());
    }
}

/// Files of a folder whose names end so.
fn folder_files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut found: Vec<PathBuf> = entries.filter(|p| p.to_string_lossy().ends_with(end)).collect();
    found.sort();
    found
}

fn open_gguf(path: &Path) -> Result<Opened, Diagnostic> {
    let checkpoint = Checkpoint::open(path)?;
    let fields = gguf_config::read(&checkpoint)?;
    let name = path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    Ok(Opened {
        place: path.display().to_string(),
        name,
        source: Source::Family { fields, checkpoint: Some(checkpoint) },
        tokenizer: Some(path.to_path_buf()),
    })
}

fn read_json(path: &Path) -> Result<Source, Diagnostic> {
    match json::read(path)? {
        Value::Object(fields) if fields.contains_key("model_type") => {
            if fields.contains_key(gguf_config::ROPE_DIVISORS) {
                let unknown = Config::new(&fields, "").wrong(
                    gguf_config::ROPE_DIVISORS,
                    "the field is not understood and could change the model's mathematics",
                );
                return Err(unknown.at(path.display().to_string()));
            }
            Ok(Source::Family { fields, checkpoint: None })
        }
        Value::Object(fields) if fields.contains_key("pcc") => {
            Ok(Source::Graph(Value::Object(fields), path.to_path_buf()))
        }
        _ => Err(Diagnostic::input("the file is neither a Hugging Face config nor a model.json")
            .at(path.display().to_string())
            .why("the first has a field `model_type`, the second a field `pcc`")
            .help(format!("supported model types: {}", families::supported()))),
    }
}
