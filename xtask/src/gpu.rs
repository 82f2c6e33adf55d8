//! Checks and measures the CUDA target on a GPU, or checks it on simulated ones.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::step::{Steps, call};

/// The time allowed on a machine with a GPU, from prebuilt programs.
const LIMIT_SECONDS: u64 = 8 * 60;
/// What the bench is called beside the other programs.
const PROGRAM: &str = "pcc-gpu";
/// Runs what was prepared.
const SCRIPT: &str = r#"#!/bin/sh
# On the machine with the GPU.
cd "$(dirname "$0")" && exec ./pcc-gpu --programs . --work work
"#;

/// `--simulated` needs no GPU and measures nothing; `--prepare FOLDER` gathers all that a machine with a GPU needs, which runs
/// `FOLDER/run.sh` then.
pub(crate) fn run(project: &Project, steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (simulated, folder) = match words[..] {
        [] => (false, None),
        ["--simulated"] => (true, None),
        ["--prepare", folder] => (false, Some(PathBuf::from(folder))),
        _ => bail!("cargo xtask gpu [--simulated | --prepare FOLDER]"),
    };
    let programs = project.target_dir()?.join("release");
    steps.run("build", || build(project, &programs))?;
    if let Some(folder) = folder {
        return steps.run("prepare", || prepare(&programs, &folder));
    }
    let start = Instant::now();
    steps.run("gpu", || {
        let bench = call(programs.join(PROGRAM)).args(["--programs"]).args([&programs]);
        if simulated { bench.args(["--simulated"]).run() } else { bench.run() }
    })?;
    println!("in {} s of the {LIMIT_SECONDS} s allowed", start.elapsed().as_secs());
    Ok(())
}

/// The programs, and the bench beside them.
fn build(project: &Project, programs: &Path) -> Result<()> {
    let packages = ["pcc", "pcc-codegen", "pcc-sim-cuda", "pcc-sim-nccl", "pcc-sim-blaslt"];
    let build = packages.iter().flat_map(|p| ["--package", p]);
    project.cargo(["build", "--release"].into_iter().chain(build)).run()?;
    let bench = ["bench", "--package", "pcc", "--bench", "gpu", "--no-run", "--message-format=json"];
    let said = project.cargo(bench).read()?;
    let path = said.lines().find_map(executable).context("cargo did not say where the bench is")?;
    std::fs::copy(&path, programs.join(PROGRAM)).with_context(|| format!("copying {}", path.display()))?;
    Ok(())
}

/// The bench's path, if a line of cargo's tells it.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_bench = message["target"]["name"] == "gpu";
    message["executable"].as_str().filter(|_| is_bench).map(PathBuf::from)
}

fn prepare(programs: &Path, folder: &Path) -> Result<()> {
    let work = folder.join("work");
    std::fs::create_dir_all(&work)?;
    for name in ["pcc", PROGRAM] {
        std::fs::copy(programs.join(name), folder.join(name))?;
    }
    let bench = call(programs.join(PROGRAM)).args(["--prepare", "--programs"]).args([programs]);
    bench.args(["--work"]).args([&work]).run()?;
    std::fs::write(folder.join("run.sh"), SCRIPT)?;
    println!("run it on a machine with a GPU: sh {}/run.sh", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bench_is_found_among_cargos_messages() {
        let other = r#"{"reason":"compiler-artifact","target":{"name":"pcc"},"executable":"/t/pcc"}"#;
        let bench = r#"{"reason":"compiler-artifact","target":{"name":"gpu"},"executable":"/t/gpu-1"}"#;
        assert_eq!([other, bench, "no JSON"].map(executable), [None, Some(PathBuf::from("/t/gpu-1")), None]);
    }
}
