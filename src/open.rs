//! Opening an artifact for execution: program, kernels, weights.

use crate::{artifact_output, progress};
use pcc_frontend::weights::Checkpoint;
use pcc_ir::Diagnostic;
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

/// Loads an artifact and its weights.
///
/// # Errors
/// The artifact is damaged or for another machine, the weights are missing or of another model, or memory is short.
pub fn session(artifact: &Path, args: &Args, quiet: bool) -> Result<Session, Diagnostic> {
    args.trace.as_deref().map(artifact_output::check_place).transpose()?;
    let artifact = Artifact::load(artifact)?;
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
