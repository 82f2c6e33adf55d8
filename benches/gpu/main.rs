//! What `cargo xtask gpu` runs: every kind of kernel and whole models on a GPU against the CPU, then measurements beside PyTorch, in one table.
//!
//! Code is generated and the CPU's results are computed where there is LLVM, with `--prepare`; the machine with the GPU then needs the prepared folder
//! and the programs alone.
//!
//! With `--simulated` the checks run on simulated GPUs, at sizes that those manage, and nothing is measured: a time of the simulator means nothing.

mod kernels;
mod measure;
mod models;
mod selection;

use pcc_ir::Diagnostic;
use pcc_ir::codegen_protocol::{Built, Cpu, Gpu, Reply, Request};
use pcc_ir::gpu::{Arch, LibraryKernel};
use pcc_runtime::{Gpus, Probe};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// One line of the table.
pub struct Line {
    pub what: String,
    pub figure: String,
    /// What it is held against.
    pub limit: String,
    /// `None`: not measured.
    pub ok: Option<bool>,
}

impl Line {
    pub fn new(
        what: impl Into<String>,
        figure: impl Into<String>,
        limit: impl Into<String>,
        ok: bool,
    ) -> Self {
        Self { what: what.into(), figure: figure.into(), limit: limit.into(), ok: Some(ok) }
    }

    pub fn not_measured(what: impl Into<String>, why: impl Into<String>, limit: impl Into<String>) -> Self {
        Self { what: what.into(), figure: why.into(), limit: limit.into(), ok: None }
    }
}

/// Where things are.
pub struct Place {
    /// The folder of `pcc`, `pcc-codegen` and the simulator's libraries.
    pub programs: PathBuf,
    pub gpus: Gpus,
    pub arch: Arch,
    /// A Python that may have PyTorch.
    pub python: PathBuf,
    /// For models, artifacts and kernels: what is there is used as it is.
    pub work: PathBuf,
    /// Whether to make everything that needs no GPU, and nothing else.
    prepare: bool,
    /// Whether the folder outlives the run.
    keep: bool,
}

impl Place {
    pub fn is_simulated(&self) -> bool {
        self.gpus != Gpus::Real
    }

    /// The arguments that choose the device.
    pub fn device(&self) -> [&'static str; 2] {
        ["--device", if self.is_simulated() { "cuda-sim" } else { "cuda" }]
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(d) => {
            eprintln!("{d}");
            ExitCode::from(4)
        }
    }
}

/// Whether nothing was off.
fn run() -> Result<bool, Diagnostic> {
    let mut place = arguments()?;
    std::fs::create_dir_all(&place.work)
        .map_err(|e| Diagnostic::run("no folder to work in").why(e.to_string()))?;
    if place.prepare {
        return prepare(&mut place).map(|()| true);
    }
    let mut table = Vec::new();
    let mut show = |line: Line| {
        let mark = match line.ok {
            Some(true) => "ok  ",
            Some(false) => "OFF ",
            None => "-   ",
        };
        println!("{mark} {:58} {:34} {}", line.what, line.figure, line.limit);
        let _ = std::io::stdout().flush();
        table.push(line.ok);
    };
    let ptx = ptx(&place, "probe", &[LibraryKernel::Copy { bytes: 4 }])?;
    let device = Probe::open(&place.gpus, place.arch, &ptx)?.device()?;
    place.arch = Arch::ALL.into_iter().rev().find(|a| a.runs_on(device.1)).unwrap_or(place.arch);
    let name = if place.is_simulated() { "a simulated GPU" } else { &device.0 };
    println!("{name}, compute capability {}.{}, kernels for {}\n", device.1.0, device.1.1, place.arch.name());
    let done = kernels::check(&place, &mut show)
        .and_then(|()| selection::check(&place, &mut show))
        .and_then(|()| models::check(&place, &mut show))
        .and_then(|()| measure::all(&place, &mut show));
    // Models, artifacts and kernels of this run: nobody else's.
    if !place.keep {
        let _ = std::fs::remove_dir_all(&place.work);
    }
    done?;
    let off = table.iter().filter(|ok| **ok == Some(false)).count();
    let missing = table.iter().filter(|ok| ok.is_none()).count();
    println!("\n{} lines, {off} off, {missing} not measured", table.len());
    Ok(off == 0)
}

fn arguments() -> Result<Place, Diagnostic> {
    let own = std::env::current_exe().map_err(|e| Diagnostic::run("no own path").why(e.to_string()))?;
    // Cargo puts benches into target/PROFILE/deps, beside the programs' folder.
    let beside = own.parent().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
    let mut place = Place {
        programs: beside,
        gpus: Gpus::Real,
        arch: Arch::Sm80,
        python: PathBuf::from("python3"),
        work: std::env::temp_dir().join(format!("pcc-gpu-{}", std::process::id())),
        prepare: false,
        keep: false,
    };
    let mut simulated = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value =
            || words.next().map(PathBuf::from).ok_or_else(|| Diagnostic::usage(format!("{word} what?")));
        match word.as_str() {
            "--simulated" => simulated = true,
            "--prepare" => (place.prepare, place.keep) = (true, true),
            "--work" => (place.work, place.keep) = (value()?, true),
            "--programs" => place.programs = value()?,
            "--python" => place.python = value()?,
            // What cargo says to every bench.
            "--bench" => {}
            other => return Err(Diagnostic::usage(format!("{other} is unknown"))),
        }
    }
    if simulated {
        place.gpus = Gpus::Simulated(place.programs.clone());
    }
    Ok(place)
}

/// Makes all that a run on any GPU will ask for.
fn prepare(place: &mut Place) -> Result<(), Diagnostic> {
    for arch in Arch::ALL {
        place.arch = arch;
        ptx(place, "probe", &[LibraryKernel::Copy { bytes: 4 }])?;
        kernels::prepare(place)?;
        selection::prepare(place)?;
        models::prepare(place)?;
        measure::prepare(place)?;
        println!("prepared for {}", arch.name());
    }
    Ok(())
}

/// The PTX of library kernels, made if it is not there.
pub fn ptx(place: &Place, name: &str, library: &[LibraryKernel]) -> Result<String, Diagnostic> {
    let out = place.work.join(format!("{name}.{}.ptx", place.arch.name()));
    if let Ok(text) = std::fs::read_to_string(&out) {
        return Ok(text);
    }
    let request = Request {
        kernels: Vec::new(),
        cpu: Cpu::Native,
        gpu: Some(Gpu { arch: place.arch, library: library.to_vec() }),
        out: out.display().to_string(),
        cache: None,
    };
    let failed = |why: String| Diagnostic::run("kernels cannot be generated").why(why);
    let mut child = Command::new(place.programs.join("pcc-codegen"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let mut line = serde_json::to_vec(&request).map_err(|e| failed(e.to_string()))?;
    line.push(b'\n');
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&line).map_err(|e| failed(e.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    match serde_json::from_slice::<Reply>(&output.stdout).map_err(|e| failed(e.to_string()))? {
        Reply::Built(Built { .. }) => std::fs::read_to_string(&out).map_err(|e| failed(e.to_string())),
        Reply::Failed { error } => Err(error),
    }
}

/// Values from a fixed recurrence, in -1..1.
pub struct Noise(u32);

impl Noise {
    pub fn new(seed: u32) -> Self {
        Self(seed)
    }

    fn draw(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// As many as asked for, in bf16.
    pub fn bf16(&mut self, count: usize) -> Vec<half::bf16> {
        (0..count).map(|_| half::bf16::from_f32(self.draw())).collect()
    }
}

/// A matrix of bf16 as bytes.
pub fn bytes(values: &[half::bf16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
