//! Opening an artifact for execution: program, kernels, weights.

use crate::{artifact_output, progress};
use pcc_frontend::tokenizer::Tokenizer;
use pcc_frontend::weights::Checkpoint;
use pcc_ir::Diagnostic;
use pcc_ir::program::ModelInfo;
use pcc_runtime::{Artifact, Event, NoWeights, Options, ReadParams, Session};
use std::path::{Path, PathBuf};

/// Options of every command that executes.
#[derive(clap::Args)]
#[group(id = "execution")]
pub struct Args {
    /// Checkpoint [default: the one the model was compiled with]
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Threads [default: one a core]; results are the same bits for any number
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Write the time of every instruction in Chrome's trace format
    #[arg(long, value_name = "F.json")]
    trace: Option<PathBuf>,
}

/// Loads an artifact, without its weights.
///
/// # Errors
/// The artifact is damaged, or `--trace` names a place where nothing can be written.
pub fn artifact(path: &Path, args: &Args) -> Result<Artifact, Diagnostic> {
    args.trace.as_deref().map(artifact_output::check_place).transpose()?;
    Artifact::load(path)
}

/// Loads the kernels and the weights of an artifact.
///
/// # Errors
/// The artifact is for another machine, the weights are missing or of another model, or memory is short.
pub fn session(artifact: Artifact, args: &Args, quiet: bool) -> Result<Session, Diagnostic> {
    let checkpoint = checkpoint(&artifact, args.weights.as_deref())?;
    let weights: &dyn ReadParams = match &checkpoint {
        Some(c) => c,
        None => &NoWeights,
    };
    let kernels = artifact.kernels()?;
    let bar = progress::bytes(quiet, "weights");
    let options = Options { workers: args.workers, trace: args.trace.is_some(), ..Options::default() };
    let session = Session::new(artifact.program, kernels, weights, &options, &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    session
}

/// The checkpoint to read, after checking that it is the one compiled with.
fn checkpoint(artifact: &Artifact, given: Option<&Path>) -> Result<Option<Checkpoint>, Diagnostic> {
    let Some(compiled) = &artifact.program.weights else {
        return match given {
            Some(path) => Err(Diagnostic::input("the artifact was compiled without weights")
                .at(path.display().to_string())
                .help("compile the model with --weights")),
            None => Ok(None),
        };
    };
    let path = given.map_or_else(|| PathBuf::from(&compiled.path), Path::to_path_buf);
    let checkpoint = Checkpoint::open(&path).map_err(|d| match given {
        None => {
            d.help("the weights were there when the model was compiled; give --weights if they have moved")
        }
        Some(_) => d,
    })?;
    if checkpoint.header_digest() != compiled.digest {
        return Err(Diagnostic::input("these are the weights of another model")
            .at(path.display().to_string())
            .why("names, types or shapes of their tensors differ from those of the model that was compiled")
            .help("give the weights the model was compiled with, or compile again"));
    }
    Ok(Some(checkpoint))
}

/// The tokenizer: the one given, else the model's.
///
/// # Errors
/// There is none, it cannot be used, or it is plainly of another model.
pub fn tokenizer(model: &ModelInfo, given: Option<&Path>) -> Result<Tokenizer, Diagnostic> {
    // Opening a path looks for a tokenizer.json beside a model's file: another file's name here is a mistake, not a model.
    if let Some(path) = given
        && path.is_file()
        && path.extension().is_some_and(|e| e == "json")
        && path.file_name().is_none_or(|n| n != "tokenizer.json")
    {
        return Err(Diagnostic::input("a tokenizer's file is called tokenizer.json")
            .at(path.display().to_string())
            .help("rename it, or give the folder or GGUF file it belongs to"));
    }
    let known = model.tokenizer.as_ref().map(PathBuf::from);
    let Some(path) = given.map(Path::to_path_buf).or(known) else {
        return Err(Diagnostic::input("the model came without a tokenizer")
            .help("give --tokenizer FILE, a tokenizer.json or a GGUF file, or use `pcc run` on token ids"));
    };
    let tokenizer = Tokenizer::open(&path)?;
    check_vocabulary(&tokenizer, model.vocab).map_err(|d| d.at(path.display().to_string()))?;
    Ok(tokenizer)
}

/// Rows of an embedding beyond the tokenizer's tokens that are still padding: published models have up to a fiftieth, small ones
/// are rounded up to a multiple of 64 or 128.
fn padding(vocab: usize) -> usize {
    (vocab / 10).max(256)
}

/// A tokenizer of another model usually has another number of tokens.
fn check_vocabulary(tokenizer: &Tokenizer, vocab: usize) -> Result<(), Diagnostic> {
    let (own, all) = (tokenizer.own_vocab_size(), tokenizer.vocab_size());
    if own <= vocab && all.saturating_add(padding(vocab)) >= vocab {
        return Ok(());
    }
    Err(Diagnostic::input("the tokenizer is of another model")
        .why(format!("it has {all} tokens, the model {vocab}"))
        .help("give the tokenizer that came with the model"))
}

/// Writes the trace, if one was asked for: one row a device.
pub fn write_trace(session: &mut Session, args: &Args) -> Result<(), Diagnostic> {
    let Some(path) = &args.trace else { return Ok(()) };
    let events = session.take_events();
    let program = session.program();
    let rows: Vec<serde_json::Value> = events.iter().map(|e| trace_row(program, e)).collect();
    artifact_output::write_file(path, serde_json::json!({ "traceEvents": rows }).to_string().as_bytes())
}

fn trace_row(program: &pcc_ir::program::Program, e: &Event) -> serde_json::Value {
    serde_json::json!({
        "name": e.what(program),
        "ph": "X",
        "pid": 0,
        "tid": e.device,
        "ts": e.start as f64 / 1e3,
        "dur": (e.end - e.start) as f64 / 1e3,
        "args": { "worker": e.worker, "micro_batch": e.micro_batch, "step": e.step, "instr": e.instr },
    })
}
