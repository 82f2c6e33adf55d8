//! The `pcc` command. No logic of its own: each subcommand in [`cmd`] parses its arguments, calls the crates and prints.

mod artifact_output;
mod cmd;
mod codegen_client;
mod diagnose;
mod interrupt;
mod npz;
mod numeric;
mod open;
mod progress;
mod trace;

use clap::{CommandFactory, Parser, Subcommand};
use pcc_ir::Diagnostic;
use std::process::ExitCode;

/// The parallel compute compiler: partitions a model over many devices, proves that it is still the same function, compiles and
/// runs it.
#[derive(Parser)]
#[command(name = "pcc", version, about, propagate_version = true, infer_subcommands = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Partition, check and compile a model into an artifact
    Compile(cmd::compile::Args),
    /// Run an artifact on inputs from a .npz file
    Run(cmd::run::Args),
    /// Generate text with a compiled language model
    Generate(cmd::generate::Args),
    /// Measure how well a compiled language model predicts a text
    Eval(cmd::eval::Args),
    /// Show what an artifact does: stages, memory, every collective and why it is there
    Inspect(cmd::inspect::Args),
    /// Check an artifact again, and with --numeric run it against the reference evaluator
    Verify(cmd::verify::Args),
    /// Run passes on a .pcir file and print the result
    Opt(cmd::opt::Args),
    /// Write any model as model.json
    Import(cmd::import::Args),
    /// Print the JSON Schema of model.json
    Schema(cmd::schema::Args),
    /// Check that this machine has what pcc needs
    Doctor(cmd::doctor::Args),
    /// Print a shell completion script
    Completions(cmd::completions::Args),
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    interrupt::install();
    match std::panic::catch_unwind(parse_and_run).unwrap_or_else(|p| Err(from_panic(p.as_ref()))) {
        Ok(code) => code,
        Err(d) => {
            diagnose::print(&d);
            ExitCode::from(d.fault.exit_code() as u8)
        }
    }
}

fn parse_and_run() -> Result<ExitCode, Diagnostic> {
    match Cli::try_parse() {
        Ok(cli) => run(cli.command).map(|()| ExitCode::SUCCESS),
        Err(e) => {
            let _ = e.print();
            Ok(ExitCode::from(if e.use_stderr() { 2 } else { 0 }))
        }
    }
}

fn run(command: Command) -> Result<(), Diagnostic> {
    match command {
        Command::Compile(a) => cmd::compile::run(&a),
        Command::Run(a) => cmd::run::run(&a),
        Command::Generate(a) => cmd::generate::run(&a),
        Command::Eval(a) => cmd::eval::run(&a),
        Command::Inspect(a) => cmd::inspect::run(&a),
        Command::Verify(a) => cmd::verify::run(&a),
        Command::Opt(a) => cmd::opt::run(&a),
        Command::Import(a) => cmd::import::run(&a),
        Command::Schema(a) => cmd::schema::run(&a),
        Command::Doctor(a) => cmd::doctor::run(&a),
        Command::Completions(a) => cmd::completions::run(&a, &mut Cli::command()),
    }
}

/// A panic is a fault of pcc; the user still gets one message.
fn from_panic(payload: &(dyn std::any::Any + Send)) -> Diagnostic {
    let text = payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    Diagnostic::internal("pcc itself failed").why(text.unwrap_or_else(|| "no reason given".to_owned()))
}
