//! Writing outputs: aside first, then renamed, so that nothing half-written stays.

use crate::interrupt::Unfinished;
use pcc_ir::Diagnostic;
use pcc_passes::report::Report;
use std::io;
use std::path::{Path, PathBuf};

/// A path beside `path` that nothing else uses.
pub fn sibling(path: &Path, what: &str) -> Result<PathBuf, Diagnostic> {
    let full = std::path::absolute(path).map_err(|e| cannot_write(path, &e))?;
    let name = full.file_name().map(|n| n.to_string_lossy().into_owned());
    let (Some(name), Some(folder)) = (name, full.parent()) else {
        return Err(Diagnostic::usage("the output is not a file name").at(path.display().to_string()));
    };
    if !folder.is_dir() {
        return Err(Diagnostic::input("the output's folder does not exist")
            .at(folder.display().to_string())
            .help("create it, or give another -o"));
    }
    Ok(folder.join(format!(".{name}.{what}.{}", std::process::id())))
}

pub fn cannot_write(path: &Path, e: &io::Error) -> Diagnostic {
    Diagnostic::run("cannot write the output").at(path.display().to_string()).why(e.to_string())
}

/// Lets `fill` write a file beside `path`, then gives it that name.
pub fn write_aside(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Diagnostic> {
    let aside = Unfinished::new(sibling(path, "part")?);
    fill(aside.path()).and_then(|()| std::fs::rename(aside.path(), path)).map_err(|e| cannot_write(path, &e))
}

/// Writes a file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Diagnostic> {
    write_aside(path, |aside| std::fs::write(aside, bytes))
}

/// The report of an artifact.
///
/// # Errors
/// There is no artifact, or its report is damaged.
pub fn read_report(artifact: &Path) -> Result<Report, Diagnostic> {
    let path = artifact.join("report.json");
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Diagnostic::input("this is no artifact, or it is damaged")
            .at(path.display().to_string())
            .why(e.to_string())
            .help("give the NAME.pcc folder that `pcc compile` wrote")
    })?;
    serde_json::from_str(&text).map_err(|e| {
        Diagnostic::input("the artifact's report is damaged")
            .at(path.display().to_string())
            .why(e.to_string())
            .help("compile the model again")
    })
}
