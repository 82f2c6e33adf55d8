//! Opening an artifact for execution: program, kernels, weights.

use crate::cmd::fall_silent;
use crate::trace::TraceFile;
use crate::{artifact_output, progress};
use pcc_frontend::tokenizer::Tokenizer;
use pcc_frontend::weights::Checkpoint;
use pcc_ir::Diagnostic;
use pcc_ir::program::{DeviceKind, ModelInfo};
use pcc_runtime::{Artifact, GpuOptions, Gpus, NoWeights, Options, ReadParams, Session, Summary, TraceSink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Seconds in which nothing moves before ranks stop waiting for one another, if nobody says.
pub const PATIENCE: u64 = 300;

/// Options of every command that executes.
#[derive(clap::Args)]
#[group(id = "execution")]
pub struct Args {
    /// Checkpoint [default: the one the model was compiled with]
    #[arg(long)]
    weights: Option<PathBuf>,
    /// What to run on [default: what the artifact was compiled for]
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// Ranks that share a GPU: a plan for many GPUs can be checked on one
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks_per_device: u16,
    /// Seconds in which nothing moves before ranks on GPUs stop waiting for one another
    #[arg(long, default_value_t = PATIENCE, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
    /// Threads [default: one a core]; results are the same bits for any number
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Write the time of every instruction in Chrome's trace format (for Perfetto), and show where it went
    #[arg(long, value_name = "F.json")]
    trace: Option<PathBuf>,
}

/// What a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// Virtual devices of this process
    Cpu,
    /// GPUs, through NVIDIA's driver
    Cuda,
    /// GPUs simulated on this CPU: slow, and strict
    CudaSim,
}

/// Loads an artifact, without its weights.
///
/// # Errors
/// The artifact is damaged, or `--trace` names a place where nothing can be written.
pub fn artifact(path: &Path, args: &Args) -> Result<Artifact, Diagnostic> {
    args.trace.as_deref().map(|path| artifact_output::check_place(path, "--trace")).transpose()?;
    Artifact::load(path)
}

/// Loads the kernels and the weights of an artifact.
///
/// # Errors
/// The artifact is for another machine, the weights are missing or of another model, or memory is short.
pub fn session(artifact: Artifact, args: &Args, quiet: bool) -> Result<Opened, Diagnostic> {
    let checkpoint = checkpoint(&artifact, args.weights.as_deref())?;
    let weights: &dyn ReadParams = match &checkpoint {
        Some(c) => c,
        None => &NoWeights,
    };
    let own = match artifact.program.target.device() {
        DeviceKind::Cpu => Device::Cpu,
        DeviceKind::Gpu => Device::Cuda,
    };
    let device = args.device.unwrap_or(own);
    if device != Device::Cpu && args.trace.is_some() {
        return Err(Diagnostic::usage("--trace times the instructions of CPUs only")
            .help("leave it out, or use NVIDIA's nsys with --device cuda"));
    }
    let gpus = device.gpus(args.ranks_per_device, args.patience)?;
    let trace = args.trace.as_deref().map(TraceFile::create).transpose()?.map(|t| Arc::new(Mutex::new(t)));
    let sink = trace.clone().map(|t| t as TraceSink);
    let options = Options { workers: args.workers, trace: sink, ..Options::default() };
    let bar = progress::bytes(quiet, "weights");
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let session = match gpus {
        None => {
            let kernels = artifact.kernels()?;
            Session::new(artifact.program, kernels, weights, &options, &progress)
        }
        Some(gpus) => {
            let ptx = artifact.ptx()?;
            Session::on_gpus(artifact.program, ptx, weights, &options, &gpus, &progress)
        }
    };
    bar.finish_and_clear();
    if session.as_ref().is_ok_and(|s| !s.is_first()) {
        fall_silent();
    }
    Ok(Opened { session: session?, trace })
}

impl Device {
    /// The GPUs that it stands for, if any; `patience` in seconds.
    ///
    /// # Errors
    /// Ranks are to share GPUs where there is none, or the simulator's place is not known.
    pub fn gpus(self, ranks_per_device: u16, patience: u64) -> Result<Option<GpuOptions>, Diagnostic> {
        let gpus = match self {
            Device::Cpu if ranks_per_device > 1 => {
                return Err(Diagnostic::usage("--ranks-per-device is about GPUs")
                    .help("any number of virtual devices share the CPU without it"));
            }
            Device::Cpu => return Ok(None),
            Device::Cuda => Gpus::Real,
            Device::CudaSim => Gpus::Simulated(simulator()?),
        };
        let patience = Duration::from_secs(patience);
        Ok(Some(GpuOptions { gpus, ranks_per_device: ranks_per_device.into(), patience }))
    }
}

/// The folder that has the libraries of the simulated GPUs, and the variable that says where it is.
const SIMULATOR: &str = "PCC_CUDA_SIM";

/// That of the variable, or that of this executable.
fn simulator() -> Result<PathBuf, Diagnostic> {
    if let Some(folder) = std::env::var_os(SIMULATOR) {
        return Ok(PathBuf::from(folder));
    }
    let exe = std::env::current_exe().ok();
    exe.as_deref().and_then(Path::parent).map(Path::to_path_buf).ok_or_else(|| {
        Diagnostic::run("the executable's own folder is not known, where the simulated GPU's libraries lie")
            .help(format!("set {SIMULATOR} to their folder"))
    })
}

/// Whether the libraries of simulated GPUs are where they are looked for.
pub fn has_simulator() -> bool {
    simulator().is_ok_and(|folder| Gpus::Simulated(folder).is_there())
}

/// A session, and the trace of its runs if one was asked for.
pub struct Opened {
    pub session: Session,
    trace: Option<Arc<Mutex<TraceFile>>>,
}

impl Opened {
    /// Ends the trace; where the time went.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish_trace(&self) -> Result<Option<Summary>, Diagnostic> {
        let Some(trace) = &self.trace else { return Ok(None) };
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.finish(self.session.program()).map(Some)
    }
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
