//! `pcc doctor`: does this machine have what pcc needs?

use super::{print_json, print_text};
use crate::codegen_client::CodegenClient;
use pcc_ir::Diagnostic;
use serde::Serialize;

#[derive(clap::Args)]
pub struct Args {
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    ok: bool,
    detail: String,
}

#[derive(Serialize)]
struct Findings {
    ok: bool,
    findings: Vec<Finding>,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let findings = vec![cpu(), memory(), codegen(), gpus()];
    let all = Findings { ok: findings.iter().all(|f| f.ok), findings };
    if args.json {
        print_json(&all)?;
    } else {
        for f in &all.findings {
            print_text(&format!("{} {:8} {}", if f.ok { "ok  " } else { "FAIL" }, f.what, f.detail))?;
        }
    }
    match all.findings.iter().find(|f| !f.ok) {
        None => Ok(()),
        Some(f) => Err(Diagnostic::check(format!("{} is not ready", f.what)).why(f.detail.clone())),
    }
}

fn cpu() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    let has = |name: &str| flags.split_whitespace().any(|f| f == name);
    let found: Vec<&str> = ["avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16"]
        .into_iter()
        .filter(|f| has(f))
        .collect();
    Finding {
        what: "cpu",
        // What every generated kernel uses.
        ok: cfg!(target_arch = "x86_64") && ["avx2", "fma", "f16c"].into_iter().all(has),
        detail: format!("{cores} cores, {}", found.join(" ")),
    }
}

fn memory() -> Finding {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info
        .lines()
        .find(|l| l.starts_with("MemAvailable:"))
        .and_then(|l| l.split_whitespace().nth(1))
        .and_then(|kb| kb.parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024);
    Finding {
        what: "memory",
        ok: available > 0,
        detail: format!("{} available", super::human_bytes(available)),
    }
}

/// The GPUs that `--device cuda` would use. None are needed for anything else, so having none is no failure.
fn gpus() -> Finding {
    let simulated = match crate::open::has_simulator() {
        true => "--device cuda-sim can",
        false => "nor --device cuda-sim, whose libraries are not beside pcc",
    };
    let detail = match pcc_runtime::describe_gpus() {
        Ok(gpus) => gpus.join("; "),
        Err(d) => format!("none ({}): --device cuda cannot run here, {simulated}", d.what),
    };
    Finding { what: "gpus", ok: true, detail }
}

/// Builds an object of no kernels: the helper starts, LLVM initialises, the linker runs.
fn codegen() -> Finding {
    let built = crate::interrupt::Unfinished::scratch("doctor")
        .map_err(|e| crate::artifact_output::cannot_write(&std::env::temp_dir(), &e))
        .and_then(|folder| CodegenClient::spawn()?.build(&[], None, &folder.path().join("empty.so")));
    match built {
        Ok(b) => Finding {
            what: "codegen",
            ok: true,
            detail: format!("pcc-codegen generates for {}", b.features.join(" ")),
        },
        Err(d) => Finding { what: "codegen", ok: false, detail: d.to_string() },
    }
}
