//! `pcc completions SHELL`.

use clap_complete::Shell;
use pcc_ir::Diagnostic;

#[derive(clap::Args)]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

pub fn run(args: &Args, command: &mut clap::Command) -> Result<(), Diagnostic> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "pcc", &mut script);
    super::print_text(&String::from_utf8_lossy(&script))
}
