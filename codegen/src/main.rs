//! `pcc-codegen`: reads requests on standard input, a line each, and answers each with a line on standard output.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        eprintln!(
            "usage: pcc-codegen\nReads requests, one JSON object a line, and answers each; `pcc compile` runs it."
        );
        return ExitCode::from(2);
    }
    pcc_codegen::start();
    match pcc_codegen::serve(std::io::stdin().lock(), std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pcc-codegen: {error}");
            ExitCode::from(4)
        }
    }
}
