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

/// Refuses early what [`write_aside`] would refuse after all the work: a name that is none, a folder that is not there.
pub fn check_place(path: &Path) -> Result<(), Diagnostic> {
    sibling(path, "part").map(drop)
}

/// Lets `fill` write a file beside `path`, then gives it that name. A device or a pipe keeps its place and is written to.
pub fn write_aside(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Diagnostic> {
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return write_through(path, fill).map_err(|e| cannot_write(path, &e));
    }
    let aside = Unfinished::new(sibling(path, "part")?);
    fill(aside.path()).and_then(|()| std::fs::rename(aside.path(), path)).map_err(|e| cannot_write(path, &e))
}

/// Writes to what is no file: renaming over `/dev/null` would take the device away from everyone else.
fn write_through(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let aside = std::env::temp_dir().join(format!(".pcc.{}.part", std::process::id()));
    let aside = Unfinished::new(aside);
    fill(aside.path())?;
    let mut to = std::fs::OpenOptions::new().write(true).open(path)?;
    io::copy(&mut std::fs::File::open(aside.path())?, &mut to).map(drop)
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
    serde_json::from_value(pcc_runtime::Artifact::report(artifact)?).map_err(|e| {
        Diagnostic::input("the artifact's report is damaged")
            .at(artifact.join("report.json").display().to_string())
            .why(e.to_string())
            .help("compile the model again")
    })
}
