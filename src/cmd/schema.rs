//! `pcc schema`.

use pcc_ir::Diagnostic;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: &Args) -> Result<(), Diagnostic> {
    super::print_json(&pcc_frontend::schema())
}
