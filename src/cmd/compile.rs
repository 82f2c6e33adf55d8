//! `pcc compile MODEL`.

use super::{grouped, inspect, print_json, print_text};
use crate::artifact_output;
use crate::codegen_client::CodegenClient;
use crate::{diagnose, interrupt, progress};
use pcc_frontend::{LoadOptions, Summary};
use pcc_ir::codegen_protocol::Gpu;
use pcc_ir::gpu::{self, Arch};
use pcc_ir::mesh::MAX_DEVICES;
use pcc_ir::program::{BatchPlan, DeviceKind, WeightsRef};
use pcc_ir::{Axis, DType, Diagnostic, Mesh};
use pcc_passes::driver::{self, Compiled, Options};
use pcc_passes::plan::Plan;
use pcc_passes::report::Report;
use pcc_runtime::{Artifact, Contents, Levels};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// model.json, a Hugging Face config.json or folder, or a GGUF file
    model: PathBuf,
    /// Tensor parallelism: devices that split every weight
    #[arg(long, default_value_t = 1)]
    tp: u32,
    /// Pipeline stages
    #[arg(long, default_value_t = 1)]
    pp: u32,
    /// Replicas that share the batch
    #[arg(long, default_value_t = 1)]
    dp: u32,
    /// Expert parallelism; 1 for the dense models that this version compiles
    #[arg(long, default_value_t = 1)]
    ep: u32,
    /// Context parallelism; 1 in this version
    #[arg(long, default_value_t = 1)]
    cp: u32,
    /// What to compile for; this version takes `infer`
    #[arg(long, default_value = "infer")]
    mode: String,
    /// Element type of weights, caches and what matrices are multiplied in: f32 or bf16 [default: f32 on cpu, bf16 on GPUs]
    #[arg(long)]
    dtype: Option<String>,
    /// What to generate code for: cpu (the CPU at hand), or the GPUs sm_80, sm_90, sm_90a, sm_100a
    #[arg(long, default_value = "cpu", value_parser = parse_target)]
    target: CodeTarget,
    /// Who draws tokens when text is generated: `host` from logits, or `device`, which logits then never leave [default: host on cpu, device on
    /// GPUs]
    #[arg(long, value_enum)]
    sampler: Option<Sampler>,
    /// Sequence parallelism: split activations between layers over tp as well
    #[arg(long)]
    sp: bool,
    /// Rows of a batch at most [default: dp x micro-batches]
    #[arg(long)]
    batch: Option<usize>,
    /// Sequence capacity [default: the smaller of 512 and the model's limit]
    #[arg(long)]
    seq: Option<usize>,
    /// Micro-batches per batch [default: pp, or the rows of a replica if fewer]
    #[arg(long)]
    micro_batches: Option<usize>,
    /// Device memory that bounds a stage, for instance 80GiB
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Replay a plan instead of searching
    #[arg(long)]
    plan: Option<PathBuf>,
    /// Checkpoint, when the model comes without one
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Seed of random weights, when there are none
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Artifact to write [default: NAME.pcc in the current folder]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Print a level of the program instead of writing an artifact: graph, sharded, local or program
    #[arg(long, value_name = "LEVEL", value_parser = parse_level)]
    emit: Option<driver::Level>,
    /// Print the module after a pass (on stderr)
    #[arg(long, value_name = "PASS", value_parser = parse_pass)]
    print_after: Option<driver::Pass>,
    /// Print how long each pass took
    #[arg(long)]
    time_passes: bool,
    /// One JSON object on stdout: what `inspect --json` gives
    #[arg(long)]
    json: bool,
}

/// Who draws tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sampler {
    Host,
    Device,
}

/// What code is generated for.
#[derive(Clone, Copy)]
enum CodeTarget {
    /// The CPU at hand.
    Cpu,
    Gpu(Arch),
}

impl CodeTarget {
    fn name(self) -> &'static str {
        match self {
            CodeTarget::Cpu => "cpu",
            CodeTarget::Gpu(arch) => arch.name(),
        }
    }
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let start = Instant::now();
    check_scope(args)?;
    let mesh = mesh(args)?;
    let dtype = dtype(args)?;
    // Generating code starts with seconds of initialisation in another process: overlap it with everything else.
    let client = args.emit.is_none().then(CodegenClient::spawn);
    let spinner = progress::spinner(args.json);
    spinner.set_message("reading the model");
    let summary = pcc_frontend::describe(&args.model)?;
    let batch = batch_plan(args, &summary)?;
    let output = output_path(args, &summary)?;
    let model = pcc_frontend::load(
        &args.model,
        &LoadOptions {
            batch_rows: batch.rows() * batch.replicas,
            seq: args.seq,
            weights: args.weights.clone(),
            seed: args.seed,
        },
    )?;
    let model = match (args.sampler, args.target) {
        (Some(Sampler::Device), _) => model.draw_tokens()?,
        (None, CodeTarget::Gpu(_)) if model.can_draw_tokens() => model.draw_tokens()?,
        (Some(Sampler::Host) | None, _) => model,
    };
    let plan = args.plan.as_deref().map(read_plan).transpose()?;
    let weights = match &model.checkpoint {
        Some(c) => Some(WeightsRef { path: absolute(c.path())?, digest: c.header_digest() }),
        None => None,
    };
    let mut info = model.info.clone();
    info.tokenizer = model.tokenizer.as_deref().map(absolute).transpose()?;
    spinner.set_message("partitioning");
    let options = Options {
        mesh,
        sp: args.sp,
        batch,
        dtype,
        device: match args.target {
            CodeTarget::Cpu => DeviceKind::Cpu,
            CodeTarget::Gpu(_) => DeviceKind::Gpu,
        },
        memory: args.memory,
        plan,
        info,
        weights,
        print_after: args.print_after,
    };
    let compiled = driver::compile(model.module, &options)?;
    if let Some(level) = args.emit {
        spinner.finish_and_clear();
        return print_text(compiled.text(level)?.trim_end());
    }
    spinner.set_message("generating code");
    let report = match client {
        Some(client) => write_artifact(compiled, client?, args.target, &output, start)?,
        None => compiled.report,
    };
    spinner.finish_and_clear();
    if !args.json {
        model.notices.iter().for_each(|n| diagnose::notice(n));
    }
    if args.time_passes {
        for p in &report.compile.passes {
            eprintln!("{:>9.3} ms  {}", p.seconds * 1e3, p.name);
        }
    }
    if args.json { print_json(&report) } else { print_text(&summary_text(&report, &output)) }
}

/// Refuses by name what scripts may ask for and this version cannot do.
fn check_scope(args: &Args) -> Result<(), Diagnostic> {
    let only = |flag: &str, given: &str, takes: &str| match given == takes {
        true => Ok(()),
        false => Err(Diagnostic::usage(format!("--{flag} {given} is beyond this version"))
            .help(format!("it takes --{flag} {takes}"))),
    };
    only("ep", &args.ep.to_string(), "1")?;
    only("cp", &args.cp.to_string(), "1")?;
    only("mode", &args.mode, "infer")
}

fn dtype(args: &Args) -> Result<DType, Diagnostic> {
    let default = match args.target {
        CodeTarget::Cpu => "f32",
        CodeTarget::Gpu(_) => "bf16",
    };
    match args.dtype.as_deref().unwrap_or(default) {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::BF16),
        "f16" => Err(Diagnostic::usage("--dtype f16 is beyond this version")
            .why("sums of f16 leave its range of 65504 in many models")
            .help("use --dtype bf16, which is as small and has the range of f32")),
        other => Err(Diagnostic::usage(format!("--dtype {other} is unknown")).help("it takes f32 or bf16")),
    }
}

fn mesh(args: &Args) -> Result<Mesh, Diagnostic> {
    let mesh = Mesh { pp: args.pp, dp: args.dp, tp: args.tp, ..Mesh::default() };
    let mut devices: u64 = 1;
    for axis in Axis::ALL {
        let n = mesh.size(axis);
        if n == 0 {
            return Err(Diagnostic::usage(format!("--{axis} 0 leaves no device"))
                .help(format!("the least is --{axis} 1")));
        }
        devices = devices.saturating_mul(u64::from(n));
    }
    if devices > MAX_DEVICES {
        return Err(Diagnostic::usage(format!("a mesh of {devices} devices"))
            .why(format!("at most {MAX_DEVICES} devices are supported"))
            .help("use smaller --tp, --pp or --dp"));
    }
    Ok(mesh)
}

/// Most rows of a batch: more is a mistake, and sizes stay far from overflow.
const MAX_BATCH: usize = 1 << 20;

fn batch_plan(args: &Args, summary: &Summary) -> Result<BatchPlan, Diagnostic> {
    let replicas = args.dp as usize;
    if args.batch == Some(0) || args.micro_batches == Some(0) || args.seq == Some(0) {
        return Err(Diagnostic::usage("--batch, --seq and --micro-batches must be at least 1"));
    }
    let rows = args.batch.map_or(usize::MAX, |b| b / replicas);
    let micro_batches = args.micro_batches.unwrap_or((args.pp as usize).min(rows).max(1));
    let cells = replicas.saturating_mul(micro_batches);
    // A file that fixes the rows of a micro-batch over all replicas fixes the batch.
    let fixed = summary.rows.map(|rows| rows.saturating_mul(micro_batches));
    let batch = args.batch.or(fixed).unwrap_or(cells);
    if batch < cells {
        let most = (batch / replicas).max(1);
        return Err(Diagnostic::input(format!(
            "a batch of {batch} rows leaves a replica or a micro-batch without a row"
        ))
        .why(format!("{replicas} replica(s) x {micro_batches} micro-batch(es) need {cells} rows"))
        .help(if batch < replicas {
            format!("use --batch {replicas} or more, or --dp {batch} or less")
        } else {
            format!("use --batch {cells} or more, or --micro-batches {most} or fewer")
        }));
    }
    if batch > MAX_BATCH {
        return Err(
            Diagnostic::usage(format!("a batch of {batch} rows")).help(format!("the most is {MAX_BATCH}"))
        );
    }
    Ok(BatchPlan { batch, replicas, micro_batches })
}

fn output_path(args: &Args, summary: &Summary) -> Result<PathBuf, Diagnostic> {
    if let Some(path) = &args.output {
        return Ok(path.clone());
    }
    let stem = args.model.file_stem().map(|s| s.to_string_lossy().into_owned());
    // A folder's config.json would all be called config.
    let name = match stem.as_deref() {
        Some("config" | "model") => {
            let full = std::path::absolute(&args.model).ok();
            let parent = full.as_deref().and_then(Path::parent).and_then(Path::file_name);
            parent.map(|p| p.to_string_lossy().into_owned())
        }
        _ => stem,
    };
    let name = name.unwrap_or_else(|| summary.family.clone());
    Ok(PathBuf::from(format!("{name}.pcc")))
}

fn absolute(path: &Path) -> Result<String, Diagnostic> {
    let full = std::path::absolute(path).map_err(|e| {
        Diagnostic::run("cannot find the current folder").at(path.display().to_string()).why(e.to_string())
    })?;
    Ok(full.display().to_string())
}

/// Most bytes of a plan that are read, so that a device without an end does not fill the memory.
const MAX_PLAN: u64 = 1 << 28;

fn read_plan(path: &Path) -> Result<Plan, Diagnostic> {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(MAX_PLAN).read_to_string(&mut text));
    read.map_err(|e| {
        Diagnostic::input("cannot read the plan").at(path.display().to_string()).why(e.to_string())
    })?;
    Plan::from_json(&text).map_err(|d| if d.place.is_none() { d.at(path.display().to_string()) } else { d })
}

/// Generates the kernels and writes the artifact.
fn write_artifact(
    mut c: Compiled,
    client: CodegenClient,
    target: CodeTarget,
    output: &Path,
    start: Instant,
) -> Result<Report, Diagnostic> {
    let codegen = Instant::now();
    let folder = artifact_output::sibling(output, "objects")?;
    artifact_output::clear(output);
    let created = interrupt::Unfinished::folder(folder.clone());
    let folder = created.map_err(|e| artifact_output::cannot_write(&folder, &e))?;
    let object = folder.path().join(match target {
        CodeTarget::Cpu => "kernels.x86.so",
        CodeTarget::Gpu(_) => "kernels.ptx",
    });
    let kernels: Vec<_> = c.program.kernels.values().cloned().collect();
    // The library's kernels depend on it.
    c.program.target.name = target.name().to_owned();
    let gpu = match target {
        CodeTarget::Cpu => None,
        CodeTarget::Gpu(arch) => Some(Gpu { arch, library: gpu::library(&c.program) }),
    };
    let has_code = !kernels.is_empty() || gpu.is_some();
    let built = client.build(&kernels, gpu, &object)?;
    for (kernel, symbol) in c.program.kernels.values_mut().zip(&built.symbols) {
        kernel.name.clone_from(symbol);
    }
    c.program.target.features = built.features;
    c.program.target.object_digest = built.object_digest;
    let mut report = c.report;
    target.name().clone_into(&mut report.target);
    report.compile.passes.push(pcc_passes::report::PassReport {
        name: "codegen".to_owned(),
        seconds: codegen.elapsed().as_secs_f64(),
    });
    report.compile.seconds = start.elapsed().as_secs_f64();
    report.compile.peak_rss_bytes = peak_rss();
    let json = |e: serde_json::Error| Diagnostic::internal(format!("the artifact as JSON: {e}"));
    let levels = Levels { graph: c.graph, sharded: c.sharded, local: c.local };
    let contents = Contents {
        program: &c.program,
        kernels: has_code.then_some(&*object),
        report: &serde_json::to_value(&report).map_err(json)?,
        plan: &serde_json::to_value(&c.plan).map_err(json)?,
        levels: Some(&levels),
    };
    let mut aside = None;
    Artifact::write_created(output, &contents, &mut |path| {
        aside = Some(interrupt::Unfinished::folder(path.to_owned())?);
        Ok(())
    })?;
    Ok(report)
}

/// Peak resident memory of this process, bytes; 0 where the system does not say.
fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    line.and_then(|l| l.split_whitespace().nth(1))
        .and_then(|kb| kb.parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024)
}

fn summary_text(r: &Report, output: &Path) -> String {
    let m = &r.mesh;
    let mut out = format!(
        "{}: {} parameters over {} devices (pp {} x dp {} x tp {}), {} micro-batch(es)\n",
        r.model.name,
        grouped(r.model.parameters),
        r.devices,
        m.pp,
        m.dp,
        m.tp,
        r.schedule.micro_batches
    );
    for s in &r.stages {
        let count: u64 =
            s.collectives.iter().filter(|c| Some(&c.entry) == r.entries.first()).map(|c| c.count).sum();
        out += &format!(
            "  stage {}: layers {}, {} of weights a device, {count} collectives a {} micro-batch\n",
            s.stage,
            inspect::ranges(&s.layers),
            super::human_bytes(s.parameter_bytes_per_device),
            r.entries.first().map_or("", |e| e.as_str()),
        );
    }
    out += &format!(
        "verified {} values in {} functions; compiled in {:.2} s to {}",
        r.verify.values,
        r.verify.functions,
        r.compile.seconds,
        output.display()
    );
    out
}

fn parse_level(name: &str) -> Result<driver::Level, String> {
    driver::Level::from_name(name).ok_or_else(|| "there are graph, sharded, local and program".to_owned())
}

fn parse_target(name: &str) -> Result<CodeTarget, String> {
    if name == "cpu" {
        return Ok(CodeTarget::Cpu);
    }
    Arch::parse(name).map(CodeTarget::Gpu).ok_or_else(|| {
        let archs = Arch::ALL.map(Arch::name).join(", ");
        format!("pcc generates code for cpu and the GPU architectures {archs}")
    })
}

fn parse_pass(name: &str) -> Result<driver::Pass, String> {
    // Others make no module: there is nothing to print after them.
    let all = driver::Pass::ALL.into_iter().filter(|p| p.is_module_pass());
    all.clone().find(|p| p.name() == name).ok_or_else(|| {
        let names: Vec<&str> = all.map(|p| p.name()).collect();
        format!("there is no module to print after it; there is after {}", names.join(", "))
    })
}

/// `80GiB`, `512MB`, `1073741824`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "kib" | "k" => 1024.0,
        "mib" | "m" => 1048576.0,
        "gib" | "g" => 1073741824.0,
        "tib" | "t" => 1099511627776.0,
        _ => return Err(format!("`{unit}` is no unit; use MiB or GiB, for instance 80GiB")),
    };
    let value: f64 = number.parse().map_err(|_| format!("`{text}` is no size; use for instance 80GiB"))?;
    Ok((value * scale) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("80GiB"), Ok(80 << 30));
        assert_eq!(parse_bytes("1.5k"), Ok(1536));
        assert_eq!(parse_bytes("12"), Ok(12));
        assert!(parse_bytes("12 parsecs").is_err());
        assert!(parse_bytes("GiB").is_err());
    }
}
