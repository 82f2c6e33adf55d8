//! Runs the fuzz targets under libFuzzer, on the stable toolchain: `cargo xtask fuzz [TARGET] [--seconds N] [--input FILE]`.
//!
//! The instrumentation is LLVM's own, asked for by plain code generation flags; everything is built for the host by name, so that
//! build scripts and macros go without it. What is found lies in `fuzz/findings/TARGET` of cargo's target folder; the corpus,
//! which grows from run to run, in `fuzz/corpus/TARGET`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::step::{Call, Steps, call};

/// Seconds for each target when none are given.
const SECONDS: u64 = 60;

/// What rustc is told: counters on every edge, and the operands of comparisons, as libFuzzer wants them.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Limits of one input: seconds, and MiB of memory of the process.
const LIMITS: [&str; 3] = ["-timeout=20", "-rss_limit_mb=2048", "-max_len=65536"];

#[derive(Debug, PartialEq, Eq)]
struct Request {
    target: Option<String>,
    seconds: u64,
    input: Option<PathBuf>,
}

pub(crate) fn run(project: &Project, steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let request = Request::read(arguments)?;
    let folder = project.target_dir()?.join("fuzz");
    let listing = steps.run("targets", || seeds(project).read())?;
    let known: Vec<&str> = listing.lines().collect();
    let targets = match &request.target {
        None => known,
        Some(name) if known.contains(&name.as_str()) => vec![name.as_str()],
        Some(name) => bail!("there is no target `{name}`; there are {}", known.join(", ")),
    };
    let program = steps.run("build", || build(project, &folder))?;
    for target in targets {
        steps.run(target, || fuzz(project, &program, &folder, target, &request))?;
    }
    Ok(())
}

/// The program that lists targets and writes seeds. Built without instrumentation, which only libFuzzer's own program can link.
fn seeds(project: &Project) -> Call {
    project.cargo(["run", "--quiet", "--package", "pcc-fuzz", "--bin", "pcc-fuzz-seeds", "--"])
}

impl Request {
    fn read(arguments: &[String]) -> Result<Self> {
        let mut request = Request { target: None, seconds: SECONDS, input: None };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--seconds" => request.seconds = value()?.parse().context("--seconds takes a number")?,
                "--input" => request.input = Some(PathBuf::from(value()?)),
                name if request.target.is_none() && !name.starts_with('-') => {
                    request.target = Some(name.to_owned());
                }
                other => bail!("`{other}` is not understood; it takes [TARGET] [--seconds N] [--input FILE]"),
            }
        }
        if request.input.is_some() && request.target.is_none() {
            bail!("--input needs the target that takes it");
        }
        Ok(request)
    }
}

/// Builds the program with instrumentation.
fn build(project: &Project, folder: &Path) -> Result<PathBuf> {
    let version = call("rustc").args(["-vV"]).read()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let cargo = ["build", "--profile", "fuzz", "--package", "pcc-fuzz", "--features", "libfuzzer"];
    let only = ["--bin", "pcc-fuzz", "--target", host];
    project
        .cargo(cargo.into_iter().chain(only))
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", folder)
        .run()?;
    Ok(folder.join(host).join("fuzz/pcc-fuzz"))
}

/// Runs one target, or gives it one input.
fn fuzz(project: &Project, program: &Path, folder: &Path, target: &str, request: &Request) -> Result<()> {
    let program = call(program).env("PCC_FUZZ_TARGET", target).args(LIMITS);
    if let Some(input) = &request.input {
        return program.args([input]).run();
    }
    let (start, corpus, findings) = (
        folder.join("seeds").join(target),
        folder.join("corpus").join(target),
        folder.join("findings").join(target),
    );
    for made in [&corpus, &findings] {
        std::fs::create_dir_all(made).with_context(|| format!("cannot create {}", made.display()))?;
    }
    seeds(project).args([Path::new(target), &start]).run()?;
    let found = format!("-artifact_prefix={}/", findings.display());
    let time = format!("-max_total_time={}", request.seconds);
    let outcome = program.args([&found, &time, "-print_final_stats=1"]).args([&corpus, &start]).run();
    outcome.with_context(|| {
        format!(
            "what failed lies in {}; try it with `cargo xtask fuzz {target} --input FILE`",
            findings.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Request> {
        Request::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments() {
        let request = |target: Option<&str>, seconds, input: Option<&str>| Request {
            target: target.map(str::to_owned),
            seconds,
            input: input.map(PathBuf::from),
        };
        assert_eq!(read("").unwrap(), request(None, SECONDS, None));
        assert_eq!(read("--seconds 5 pcir").unwrap(), request(Some("pcir"), 5, None));
        assert_eq!(read("gguf --input a").unwrap(), request(Some("gguf"), SECONDS, Some("a")));
        for wrong in ["a b", "--seconds", "--seconds x", "--input a", "--fast"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
