//! One file per subcommand.

pub mod compile;
pub mod completions;
pub mod doctor;
pub mod eval;
pub mod generate;
pub mod import;
pub mod inspect;
pub mod opt;
pub mod run;
pub mod schema;
pub mod verify;

use pcc_ir::Diagnostic;
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process shows and writes results: of several that run one program together, one does.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Lets this process show and write nothing from now on.
pub fn fall_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Prints one JSON object on stdout.
pub fn print_json(value: &impl Serialize) -> Result<(), Diagnostic> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Diagnostic::internal(format!("result as JSON: {e}")))?;
    print_text(&text)
}

/// Prints a line on stdout. A reader that has gone away (`| head`) is no fault.
pub fn print_text(text: &str) -> Result<(), Diagnostic> {
    if is_silent() {
        return Ok(());
    }
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Diagnostic::run("cannot write to standard output").why(e.to_string()))
        }
        _ => Ok(()),
    }
}

/// 1234567 as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Bytes with a binary unit: `1.5 MiB`.
pub fn human_bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}
