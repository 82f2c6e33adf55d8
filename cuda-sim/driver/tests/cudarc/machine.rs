//! A process of its own for each test, since the simulated machine is one per process, and what tests ask of cudarc again and again.

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::c_char;
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Names the test that a process was started for.
const CHILD: &str = "PCC_SIM_TEST";

/// Runs a test in a process of its own, with the stand-ins loaded. `name` is the test's path.
pub fn isolated(name: &str, environment: &[(&str, &str)], body: fn()) {
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        load();
        return body();
    }
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
    command.env("PCC_SIM_TIMEOUT_MS", "20000").envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name} {environment:?}:\n{text}");
}

/// Runs a test under several seeds.
pub fn seeded(name: &str, body: fn()) {
    for seed in ["0", "1", "2", "3"] {
        isolated(name, &[("PCC_SIM_SEED", seed)], body);
        if std::env::var(CHILD).is_ok() {
            return;
        }
    }
}

fn load() {
    static LOADED: OnceLock<[Library; 2]> = OnceLock::new();
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    LOADED.get_or_init(|| {
        ["libpcc_sim_cuda.so", "libpcc_sim_nccl.so"].map(|name| {
            // SAFETY: the library's initialisers are those of the Rust standard library, and do nothing.
            unsafe { Library::open(Some(folder.join(name)), RTLD_NOW | RTLD_GLOBAL) }.unwrap()
        })
    });
}

/// What the simulator said last.
pub fn last_fault() -> String {
    let all = Library::this();
    let mut buffer = vec![0u8; 1 << 16];
    // SAFETY: this is the function's type.
    let get =
        unsafe { all.get::<extern "C" fn(*mut c_char, usize) -> usize>(b"pcc_sim_last_fault") }.unwrap();
    let length = get(buffer.as_mut_ptr().cast(), buffer.len());
    buffer.truncate(length);
    String::from_utf8(buffer).unwrap()
}

/// A device's context and a stream, without cudarc's own events around every slice.
pub fn device(ordinal: usize) -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = CudaContext::new(ordinal).unwrap();
    // SAFETY: the tests order work themselves, or leave it out on purpose.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    (context, stream)
}

pub fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |DriverError(code)| code)
}
