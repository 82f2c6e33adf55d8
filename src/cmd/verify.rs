//! `pcc verify ARTIFACT`.

use super::{print_json, print_text};
use pcc_ir::Diagnostic;
use pcc_passes::verify::{CheckInput, check};
use pcc_runtime::Artifact;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc)
    artifact: PathBuf,
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
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let artifact = Artifact::load(&args.artifact)?;
    let levels = artifact.levels()?;
    let start = Instant::now();
    let input = CheckInput {
        graph: &levels.graph,
        sharded: &levels.sharded,
        local: &levels.local,
        program: &artifact.program,
    };
    let summary = check(&input)?;
    let seconds = start.elapsed().as_secs_f64();
    let outcome = Outcome { ok: true, values: summary.values, functions: summary.functions, seconds };
    if args.json { print_json(&outcome) } else { print_text(&text(&outcome)) }
}

fn text(o: &Outcome) -> String {
    format!("proved {} values in {} functions in {:.1} ms", o.values, o.functions, o.seconds * 1e3)
}
