//! `pcc verify ARTIFACT`.

use super::{print_json, print_text};
use pcc_ir::Diagnostic;
use pcc_runtime::Artifact;
use serde::Serialize;
use std::path::PathBuf;

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
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let _ = Artifact::load(&args.artifact)?;
    let outcome = Outcome { ok: true };
    if args.json { print_json(&outcome) } else { print_text("ok") }
}
