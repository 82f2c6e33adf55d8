//! The project's own chores, run as `cargo xtask NAME`. Needs neither LLVM nor anything else that `setup` installs.

mod bench;
mod demo;
mod fuzz;
mod gpu;
mod kernels;
mod model;
mod npz;
mod project;
mod readme;
mod setup;
mod step;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

use project::Project;
use step::Steps;

/// Every subcommand: its name, one line of help, and what it does. Usage, dispatch and the tidy check of the docs
/// all read this one table.
pub(crate) const COMMANDS: [(&str, &str, Run); 9] = [
    ("setup", "install LLVM 22 and what linking it needs", Run::Plain(setup::run)),
    (
        "demo",
        "compile a real model for 32 devices, run it, compare it with the unpartitioned one",
        Run::Plain(demo::run),
    ),
    ("test", "everything CI runs", Run::Plain(test::run)),
    ("tidy", "rules of this repository that no compiler checks", Run::Plain(tidy::run)),
    ("readme", "run the commands shown in README.md and CONTRIBUTING.md", Run::Plain(readme::run)),
    (
        "bench",
        "measure every figure pcc claims, with --peers beside other engines",
        Run::WithArguments(bench::run),
    ),
    (
        "kernels",
        "assemble every GPU kernel of the tests, [--arch A]; registers, shared memory and occupancy of each",
        Run::WithArguments(kernels::run),
    ),
    (
        "gpu",
        "check and measure the CUDA target on a GPU; --simulated checks without one, --prepare FOLDER gathers what it needs",
        Run::WithArguments(gpu::run),
    ),
    ("fuzz", "fuzz [TARGET] for --seconds N each, or try one --input FILE", Run::WithArguments(fuzz::run)),
];

/// What a subcommand does.
pub(crate) enum Run {
    Plain(fn(&Project, &mut Steps) -> Result<()>),
    /// Takes the words behind its name.
    WithArguments(fn(&Project, &mut Steps, &[String]) -> Result<()>),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        eprint!("{}", usage());
        return ExitCode::from(2);
    };
    let Some((_, summary, run)) = COMMANDS.iter().find(|(known, _, _)| known == name) else {
        eprint!("unknown command `{name}`\n{}", usage());
        return ExitCode::from(2);
    };
    if rest.iter().any(|word| word == "--help" || word == "-h") {
        println!("cargo xtask {name}: {summary}");
        return ExitCode::SUCCESS;
    }
    let mut steps = Steps::new();
    let outcome = Project::find().and_then(|project| match run {
        Run::Plain(run) if rest.is_empty() => run(&project, &mut steps),
        Run::Plain(_) => bail!("it takes no arguments"),
        Run::WithArguments(run) => run(&project, &mut steps, rest),
    });
    steps.print_times();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask {name} failed: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn usage() -> String {
    let lines: String =
        COMMANDS.iter().map(|(name, summary, _)| format!("  cargo xtask {name:<8} {summary}\n")).collect();
    format!("usage:\n{lines}")
}
