//! `pcc verify ARTIFACT`.

use super::{print_json, print_text};
use crate::codegen_client::CodegenClient;
use crate::numeric::{self, Comparison};
use crate::open::{Device, PATIENCE};
use crate::progress;
use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::Gpu;
use pcc_ir::gpu::Arch;
use pcc_ir::program::{DeviceKind, Program, Storage};
use pcc_passes::driver;
use pcc_passes::plan::Plan;
use pcc_passes::twin::{self, Work};
use pcc_passes::verify::{CheckInput, check};
use pcc_runtime::{Artifact, KernelObject, KernelSet, Levels, NoWeights, Options, Session};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc)
    artifact: PathBuf,
    /// Also run it on virtual devices against the reference evaluator: the program itself when it is small, else a shrunken twin
    /// on the same mesh; parameters and inputs are random
    #[arg(long)]
    numeric: bool,
    /// What --numeric runs on: cpu, or for an artifact for GPUs also cuda or cuda-sim (GPUs simulated on this CPU)
    #[arg(long, value_enum, default_value = "cpu", requires = "numeric")]
    device: Device,
    /// Ranks that share a GPU
    #[arg(long, default_value_t = 1, value_name = "N", requires = "numeric", value_parser = clap::value_parser!(u16).range(1..))]
    ranks_per_device: u16,
    /// Seed of the parameters and inputs of --numeric
    #[arg(long, default_value_t = 0, requires = "numeric")]
    seed: u64,
    /// Threads of --numeric [default: one a core]
    #[arg(long, default_value_t = 0, requires = "numeric")]
    workers: usize,
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    ok: bool,
    /// Local values whose claims were proved, and function instances.
    values: usize,
    functions: usize,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    numeric: Option<Numeric>,
}

#[derive(Serialize)]
struct Numeric {
    /// What was run: the program itself, or its twin.
    twin: bool,
    parameters: u64,
    /// Calls of the chain, tokens of the vocabulary and positions of a row in what was run.
    layers: usize,
    vocab: usize,
    seq: usize,
    devices: usize,
    /// What kind of devices.
    device: &'static str,
    rows: usize,
    micro_batches: usize,
    tolerance: f64,
    outputs: Vec<Comparison>,
    seconds: f64,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let artifact = Artifact::load(&args.artifact)?;
    let levels = artifact.levels()?;
    let start = Instant::now();
    let summary = check(&CheckInput {
        graph: &levels.graph,
        sharded: &levels.sharded,
        local: &levels.local,
        program: &artifact.program,
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let numeric = args.numeric.then(|| run_numeric(args, artifact, levels)).transpose()?;
    let outcome =
        Outcome { ok: true, values: summary.values, functions: summary.functions, seconds, numeric };
    if args.json { print_json(&outcome) } else { print_text(&text(&outcome)) }
}

fn text(o: &Outcome) -> String {
    let mut out =
        format!("proved {} values in {} functions in {:.1} ms", o.values, o.functions, o.seconds * 1e3);
    let Some(n) = &o.numeric else { return out };
    let what = if n.twin { "a shrunken twin" } else { "the program" };
    out += &format!(
        "\nran {what} ({} parameters, {} calls) on {} {}, {} rows in {} micro-batches, in {:.1} s",
        n.parameters, n.layers, n.devices, n.device, n.rows, n.micro_batches, n.seconds
    );
    for c in &n.outputs {
        out += &format!(
            "\n  {} {}: differs from the reference by at most {:.1e} ({:.1e} of the largest)",
            c.entry, c.output, c.max_abs_diff, c.max_rel_diff
        );
        if let Some(share) = c.argmax_agreement {
            out += &format!(", same argmax in {:.1}%", share * 100.0);
        }
        if c.near_ties > 0 {
            out += &format!(", {} of {} by rounding of what is selected from", c.near_ties, c.elements);
        }
    }
    out
}

/// The code of what is run.
enum Code {
    Cpu(Box<dyn KernelSet>),
    Gpu(String),
}

/// Runs the program, or its twin, against the reference.
fn run_numeric(args: &Args, artifact: Artifact, levels: Levels) -> Result<Numeric, Diagnostic> {
    let start = Instant::now();
    let gpus = args.device.gpus(args.ranks_per_device, PATIENCE)?;
    if gpus.is_some() {
        // Says what it is for.
        artifact.ptx()?;
    }
    let spinner = progress::spinner(args.json);
    spinner.set_message("running against the reference evaluator");
    let graph = levels.graph.expanded()?;
    let small = Work::of(&graph, &artifact.program.batch).is_small();
    let (mut graph, mut program, code) = if small {
        // A GPU's program runs here as well as there: all it needs is code for its kernels.
        let own = match (artifact.program.target.device(), &gpus) {
            (DeviceKind::Cpu, _) => Some(Code::Cpu(artifact.kernels()?)),
            (DeviceKind::Gpu, Some(_)) => Some(Code::Gpu(artifact.ptx()?)),
            (DeviceKind::Gpu, None) => None,
        };
        let mut program = artifact.program.expanded()?;
        let code = match own {
            Some(code) => code,
            None => Code::Cpu(kernels_here(CodegenClient::spawn(), &mut program)?),
        };
        (graph.into_owned(), program, code)
    } else {
        drop(graph);
        compile_twin(&artifact, &levels, gpus.is_some())?
    };
    twin::randomise(&mut graph, args.seed);
    // The checker has proved that the program has the graph's parameters, in the same order.
    for (param, global) in program.params.iter_mut().zip(graph.params.values()) {
        param.source = global.source.clone();
        // Noise is made, not stored in blocks: the same matrix in panels of plain elements.
        if let Storage::Blocks { k, n, .. } = &mut param.storage {
            param.storage = Storage::Panels { k: std::mem::take(k), n: std::mem::take(n) };
        }
    }
    let options = Options { workers: args.workers, ..Options::default() };
    let mut session = match (code, gpus) {
        (Code::Gpu(ptx), Some(gpus)) => {
            Session::on_gpus(program, ptx, &NoWeights, &options, &gpus, &|_, _| {})?
        }
        (Code::Cpu(kernels), None) => Session::new(program, kernels, &NoWeights, &options, &|_, _| {})?,
        _ => return Err(Diagnostic::internal("code for another device than the one asked for")),
    };
    let outputs = numeric::compare(&mut session, &graph, args.seed).map_err(|d| {
        let place = d.place.as_ref().filter(|_| !small).map(|p| format!("{p}, of the model's shrunken twin"));
        if let Some(place) = place { d.at(place) } else { d }
    })?;
    spinner.finish_and_clear();
    let program = session.program();
    Ok(Numeric {
        twin: !small,
        parameters: graph.parameters(),
        layers: graph.entries.first().map_or(0, |e| graph.funcs[e.func].insts.len()),
        vocab: program.model.vocab,
        seq: program.model.seq,
        devices: program.mesh.devices(),
        device: match args.device {
            Device::Cpu => "virtual devices",
            Device::Cuda => "ranks on GPUs",
            Device::CudaSim => "ranks on simulated GPUs",
        },
        rows: program.batch.batch,
        micro_batches: program.batch.micro_batches,
        tolerance: numeric::tolerance(program.dtype),
        outputs,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Shrinks the model and compiles it as the artifact was: the same mesh, shardings and stages.
fn compile_twin(
    artifact: &Artifact,
    levels: &Levels,
    on_gpus: bool,
) -> Result<(pcc_ir::Module, Program, Code), Diagnostic> {
    let client = CodegenClient::spawn();
    let plan = Plan::from_json(&artifact.plan.to_string())?;
    let twin = twin::twin(&levels.graph, &plan, &artifact.program.batch, &artifact.program.model)?;
    let options = driver::Options {
        mesh: plan.mesh,
        sp: plan.sp,
        batch: twin.batch,
        dtype: artifact.program.dtype,
        device: artifact.program.target.device(),
        memory: None,
        plan: Some(twin.plan),
        info: twin.info,
        weights: None,
        print_after: None,
    };
    let compiled = driver::compile(twin.graph, &options)?;
    let mut program = compiled.program;
    let code = match Arch::parse(&artifact.program.target.name).filter(|_| on_gpus) {
        Some(arch) => {
            artifact.program.target.name.clone_into(&mut program.target.name);
            Code::Gpu(ptx(client?, &mut program, arch)?)
        }
        None => Code::Cpu(kernels_here(client, &mut program)?),
    };
    Ok((compiled.graph, program, code))
}

/// Generates the kernels of a program for a GPU.
fn ptx(client: CodegenClient, program: &mut Program, arch: Arch) -> Result<String, Diagnostic> {
    let folder = scratch()?;
    let object = folder.path().join("kernels.ptx");
    let gpu = Gpu { arch, library: pcc_ir::gpu::library(program) };
    build(client, program, Some(gpu), &object)?;
    std::fs::read_to_string(&object)
        .map_err(|e| Diagnostic::internal("the kernels cannot be read").why(e.to_string()))
}

fn scratch() -> Result<crate::interrupt::Unfinished, Diagnostic> {
    crate::interrupt::Unfinished::scratch("twin")
        .map_err(|e| Diagnostic::run("no temporary folder can be made for the kernels").why(e.to_string()))
}

/// Generates code, and tells the program the kernels' symbols.
fn build(
    client: CodegenClient,
    program: &mut Program,
    gpu: Option<Gpu>,
    out: &Path,
) -> Result<(), Diagnostic> {
    let kernels: Vec<_> = program.kernels.values().cloned().collect();
    let built = client.build(&kernels, gpu, out)?;
    for (kernel, symbol) in program.kernels.values_mut().zip(&built.symbols) {
        kernel.name.clone_from(symbol);
    }
    Ok(())
}

/// Generates the kernels of a program for this machine's CPU.
fn kernels_here(
    client: Result<CodegenClient, Diagnostic>,
    program: &mut Program,
) -> Result<Box<dyn KernelSet>, Diagnostic> {
    if program.kernels.is_empty() {
        return Ok(Box::new(pcc_runtime::Interpreter::new([])));
    }
    let folder = scratch()?;
    let object = folder.path().join("kernels.x86.so");
    build(client?, program, None, &object)?;
    // The mapping outlives the file.
    Ok(Box::new(KernelObject::load(&object, program.kernels.values())?))
}
