//! `pcc import MODEL -o model.json`.

use super::print_text;
use crate::artifact_output;
use pcc_frontend::LoadOptions;
use pcc_ir::Diagnostic;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// model.json, a Hugging Face config.json or folder, or a GGUF file
    model: PathBuf,
    /// File to write
    #[arg(short, long)]
    output: PathBuf,
    /// Rows of the batch [default: those a model.json fixes, else 1]
    #[arg(long)]
    batch: Option<usize>,
    /// Sequence capacity [default: the smaller of 512 and the model's limit]
    #[arg(long)]
    seq: Option<usize>,
    /// Checkpoint, when the model comes without one
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Seed of random weights, when there are none
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    if args.batch == Some(0) {
        return Err(Diagnostic::usage("--batch must be at least 1"));
    }
    let rows = match args.batch {
        Some(rows) => rows,
        None => pcc_frontend::describe(&args.model)?.rows.unwrap_or(1),
    };
    let model = pcc_frontend::load(
        &args.model,
        &LoadOptions { batch_rows: rows, seq: args.seq, weights: args.weights.clone(), seed: args.seed },
    )?;
    let text = pcc_frontend::export(&model)?;
    artifact_output::write_file(&args.output, text.as_bytes())?;
    print_text(&format!("wrote {}", args.output.display()))
}
