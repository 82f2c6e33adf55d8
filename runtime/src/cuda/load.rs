//! Finding CUDA, or what stands in for it, before anything asks for it: a missing library is an error here and a panic there.

use super::driver;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};
use pcc_ir::Diagnostic;
use pcc_ir::gpu::Arch;
use std::error::Error;
use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Which devices to run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gpus {
    /// The machine's.
    #[default]
    Real,
    /// Simulated on the CPU, by the libraries in this folder.
    Simulated(PathBuf),
}

impl Gpus {
    /// Whether the files are there that simulate them; of real ones only the driver can tell.
    pub fn is_there(&self) -> bool {
        match self {
            Gpus::Real => true,
            Gpus::Simulated(folder) => SIMULATED.iter().all(|name| folder.join(name).is_file()),
        }
    }
}

/// The stand-ins' file names.
const SIMULATED: [&str; 2] = ["libpcc_sim_cuda.so", "libpcc_sim_nccl.so"];
/// That of the stand-in for cuBLASLt, which is loaded if this variable is `on`.
const SIMULATED_BLAS: (&str, &str) = ("libpcc_sim_blaslt.so", "PCC_SIM_BLASLT");
/// The stand-ins, once loaded: a process has one driver.
static STAND_INS: OnceLock<Vec<Library>> = OnceLock::new();
/// The fault that a simulated device found last, of the library that holds it.
type LastFault = unsafe extern "C" fn(*mut c_char, usize) -> usize;

/// Makes the driver's library available. The path of NCCL's library, if it is a given one. A simulated machine gets `devices` GPUs that
/// run code for the architecture, if nobody has said what it is.
///
/// # Errors
/// There is none, or what stands in for it is not there.
pub(super) fn prepare(gpus: &Gpus, arch: Arch, devices: usize) -> Result<Option<PathBuf>, Diagnostic> {
    let folder = match gpus {
        Gpus::Simulated(folder) => folder,
        Gpus::Real => {
            // SAFETY: loads the library by its usual names, which runs its initialisers, and unloads it.
            if unsafe { cudarc::driver::sys::is_culib_present() } {
                return Ok(None);
            }
            return Err(Diagnostic::run("this machine has no CUDA driver")
                .why("libcuda.so was not found; it comes with NVIDIA's driver")
                .help(
                    "install the driver, or check the artifact without a GPU: --device cuda-sim; for this CPU, compile with \
                     --target cpu",
                ));
        }
    };
    let nccl = folder.join(SIMULATED[1]);
    if STAND_INS.get().is_none() {
        let blas = wants_blas().then_some(&SIMULATED_BLAS.0);
        let names = SIMULATED.iter().chain(blas);
        let libraries = names.map(|name| open(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
        // Another thread may have been first: the same libraries then.
        let _ = STAND_INS.set(libraries);
    }
    want(devices, arch.capability());
    Ok(Some(nccl))
}

/// Whether products may go to cuBLASLt, if it is there: with simulated GPUs only to what stands in for it.
pub(super) fn has_libraries(gpus: &Gpus) -> bool {
    match gpus {
        Gpus::Real => true,
        Gpus::Simulated(_) => wants_blas() && STAND_INS.get().is_some_and(|l| l.len() > SIMULATED.len()),
    }
}

fn wants_blas() -> bool {
    std::env::var_os(SIMULATED_BLAS.1).is_some_and(|v| v == "on")
}

/// Tells the stand-in, which decides what machine it is at its first call.
fn want(devices: usize, (major, minor): (u32, u32)) {
    type Want = unsafe extern "C" fn(u64, u32, u32);
    let Some(library) = STAND_INS.get().and_then(|l| l.first()) else { return };
    // SAFETY: the stand-in exports this function with this signature.
    if let Ok(function) = unsafe { library.get::<Want>(b"pcc_sim_want\0") } {
        // SAFETY: as above; it keeps numbers.
        unsafe { function(devices as u64, major, minor) };
    }
}

fn open(path: &Path) -> Result<Library, Diagnostic> {
    // SAFETY: the library is pcc's own, which lies beside its executable; its initialisers do nothing.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| {
        let what = if path.exists() { "cannot be loaded" } else { "is not there" };
        Diagnostic::run(format!("the simulated GPU {what}"))
            .at(path.display().to_string())
            .why(in_full(&e))
            .help("it belongs beside pcc: cargo build -p pcc-sim-cuda -p pcc-sim-nccl -p pcc-sim-blaslt, with --release if pcc is built so")
    })
}

/// An error with what caused it: the loader's reason is behind that of the library that called it.
pub(super) fn in_full(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(behind) = cause {
        text = format!("{text}: {behind}");
        cause = behind.source();
    }
    text
}

/// What CUDA said, and, of a simulated device, what it has found.
pub(super) fn explained(why: &str) -> String {
    match last_fault() {
        Some(fault) => format!("{why}: {fault}"),
        None => why.to_owned(),
    }
}

/// Longest fault that is shown, in bytes.
const FAULT: usize = 4096;

fn last_fault() -> Option<String> {
    let library = STAND_INS.get()?.first()?;
    // SAFETY: the stand-in exports this function with this signature.
    let function: Symbol<LastFault> = unsafe { library.get(b"pcc_sim_last_fault\0") }.ok()?;
    let mut text = vec![0u8; FAULT];
    // SAFETY: the function writes at most the length given.
    let len = unsafe { function(text.as_mut_ptr().cast(), text.len()) };
    text.truncate(len.min(FAULT));
    let text = String::from_utf8_lossy(&text).trim_end_matches('\0').trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The CUDA version that a driver must support to read the PTX of an architecture (PTX ISA, release notes).
fn needed(arch: Arch) -> i32 {
    match arch {
        // cuGraphInstantiateWithFlags.
        Arch::Sm80 => 11_040,
        Arch::Sm90 => 11_080,
        Arch::Sm90a => 12_000,
        Arch::Sm100a => 12_070,
    }
}

/// Checks that the driver is new enough, and the number of devices.
///
/// # Errors
/// The driver is too old, broken, or has no device.
pub(super) fn check_driver(arch: Arch) -> Result<usize, Diagnostic> {
    // A function that the driver's library lacks is a panic of the binding's.
    let asked = std::panic::catch_unwind(|| ask_driver(arch));
    asked.unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().map_or("its library lacks functions", String::as_str);
        Err(Diagnostic::run("the CUDA driver cannot be used")
            .why(why.to_owned())
            .help("install NVIDIA's driver anew; libcuda.so must be the driver's own"))
    })
}

fn ask_driver(arch: Arch) -> Result<usize, Diagnostic> {
    let broken = |e: driver::Failure| {
        Diagnostic::run("the CUDA driver cannot be used").why(explained(&e.to_string())).help(match STAND_INS
            .get()
        {
            Some(_) => "the simulated GPUs are described by the environment's variables PCC_SIM_*",
            None => "nvidia-smi tells whether the driver runs and sees a GPU",
        })
    };
    let devices = driver::devices().map_err(broken)?;
    let version = driver::version().map_err(broken)?;
    let text = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    if version < needed(arch) {
        return Err(Diagnostic::run("the CUDA driver is too old for the artifact")
            .why(format!(
                "it supports CUDA {}, kernels for {} need {}",
                text(version),
                arch.name(),
                text(needed(arch))
            ))
            .help("install a newer driver, or compile for an older architecture"));
    }
    if devices == 0 {
        return Err(Diagnostic::run("the machine has no GPU that CUDA can use")
            .help("nvidia-smi lists GPUs; CUDA_VISIBLE_DEVICES may hide them"));
    }
    Ok(devices)
}
