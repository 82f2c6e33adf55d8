//! `pcc verify ARTIFACT`.

use super::{print_json, print_text};
use crate::codegen_client::CodegenClient;
use crate::numeric::{self, Comparison};
use crate::progress;
use pcc_ir::Diagnostic;
use pcc_ir::program::{DeviceKind, Program, Storage};
use pcc_passes::driver;
use pcc_passes::plan::Plan;
use pcc_passes::twin::{self, Work};
use pcc_passes::verify::{CheckInput, check};
use pcc_runtime::{Artifact, KernelObject, KernelSet, Levels, NoWeights, Options, Session};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc)
    artifact: PathBuf,
    /// Also run it on virtual devices against the reference evaluator: the program itself when it is small, else a shrunken twin
    /// on the same mesh; parameters and inputs are random
    #[arg(long)]
    numeric: bool,
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
        "\nran {what} ({} parameters, {} calls) on {} virtual devices, {} rows in {} micro-batches, in {:.1} s",
        n.parameters, n.layers, n.devices, n.rows, n.micro_batches, n.seconds
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

/// Runs the program, or its twin, against the reference.
fn run_numeric(args: &Args, artifact: Artifact, levels: Levels) -> Result<Numeric, Diagnostic> {
    let start = Instant::now();
    let spinner = progress::spinner(args.json);
    spinner.set_message("running against the reference evaluator");
    let graph = levels.graph.expanded()?;
    let small = Work::of(&graph, &artifact.program.batch).is_small();
    let (mut graph, mut program, kernels) = if small {
        // A GPU's program runs here as well as there: all it needs is code for its kernels.
        let own = match artifact.program.target.device() {
            DeviceKind::Cpu => Some(artifact.kernels()?),
            DeviceKind::Gpu => None,
        };
        let mut program = artifact.program.expanded()?;
        let kernels = match own {
            Some(kernels) => kernels,
            None => kernels_here(CodegenClient::spawn(), &mut program)?,
        };
        (graph.into_owned(), program, kernels)
    } else {
        drop(graph);
        compile_twin(&artifact, &levels)?
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
    let mut session = Session::new(program, kernels, &NoWeights, &options, &|_, _| {})?;
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
) -> Result<(pcc_ir::Module, Program, Box<dyn KernelSet>), Diagnostic> {
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
    let kernels = kernels_here(client, &mut program)?;
    Ok((compiled.graph, program, kernels))
}

/// Generates the kernels of a program for this machine's CPU.
fn kernels_here(
    client: Result<CodegenClient, Diagnostic>,
    program: &mut Program,
) -> Result<Box<dyn KernelSet>, Diagnostic> {
    if program.kernels.is_empty() {
        return Ok(Box::new(pcc_runtime::Interpreter::new([])));
    }
    let folder = crate::interrupt::Unfinished::scratch("twin")
        .map_err(|e| Diagnostic::run("no temporary folder can be made for the kernels").why(e.to_string()))?;
    let object = folder.path().join("kernels.x86.so");
    let kernels: Vec<_> = program.kernels.values().cloned().collect();
    let built = client?.build(&kernels, None, &object)?;
    for (kernel, symbol) in program.kernels.values_mut().zip(&built.symbols) {
        kernel.name.clone_from(symbol);
    }
    // The mapping outlives the file.
    Ok(Box::new(KernelObject::load(&object, program.kernels.values())?))
}
