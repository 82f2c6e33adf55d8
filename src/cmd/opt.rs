//! `pcc opt FILE.pcir --pass a,b`.

use super::print_text;
use pcc_ir::{Diagnostic, Fault};
use pcc_passes::driver::{self, Pass};
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Module in text form; `-` reads standard input
    file: PathBuf,
    /// Passes to run, in order; none: parse, verify and print
    #[arg(long = "pass", value_delimiter = ',', value_name = "A,B")]
    passes: Vec<String>,
    /// Sequence parallelism, for assign_shardings
    #[arg(long)]
    sp: bool,
}

/// Texts larger than this are refused.
const MAX_BYTES: u64 = 1 << 30;

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let text = read(&args.file)?;
    let place = |d: Diagnostic| {
        let file = args.file.display();
        let at = d.place.as_ref().map_or_else(|| file.to_string(), |p| format!("{file}: {p}"));
        d.at(at)
    };
    let passes = args.passes.iter().map(|p| pass(p)).collect::<Result<Vec<_>, _>>()?;
    let module = pcc_ir::text::parse(&text).map_err(place)?;
    pcc_ir::verifier::verify(&module).map_err(place)?;
    let module = driver::run_passes(module, &passes, args.sp, |pass, module| {
        pcc_ir::verifier::verify(module).map_err(|d| after(pass, d))
    })?;
    print_text(module.to_string().trim_end())
}

/// A module that a pass made ill-formed is a fault of the pass.
fn after(pass: Pass, d: Diagnostic) -> Diagnostic {
    let place = format!("{}, after {}", d.place.as_deref().unwrap_or("the module"), pass.name());
    Diagnostic { fault: Fault::Internal, ..d }.at(place)
}

fn pass(name: &str) -> Result<Pass, Diagnostic> {
    Pass::from_name(name).filter(|p| p.is_module_pass()).ok_or_else(|| {
        let all: Vec<String> = Pass::ALL
            .iter()
            .filter(|p| p.is_module_pass())
            .map(|p| format!("{} ({})", p.name(), p.summary()))
            .collect();
        Diagnostic::usage(format!("there is no pass `{name}` on modules")).at("--pass").help(all.join(", "))
    })
}

fn read(path: &Path) -> Result<String, Diagnostic> {
    let failed = |e: std::io::Error| {
        Diagnostic::input("cannot read the module").at(path.display().to_string()).why(e.to_string())
    };
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    } else {
        std::fs::File::open(path)
            .and_then(|f| f.take(MAX_BYTES).read_to_string(&mut text))
            .map_err(failed)?;
    }
    Ok(text)
}
