//! Writing outputs: aside first, then renamed, so that nothing half-written stays.

use crate::interrupt::{GONE, Unfinished, remove_abandoned};
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
            .help("create it, or give another one"));
    }
    Ok(folder.join(format!(".{name}.{what}.{}", std::process::id())))
}

/// Removes what processes that were killed while they wrote this output have left beside it.
pub fn clear(path: &Path) {
    let Ok(full) = std::path::absolute(path) else { return };
    let (Some(folder), Some(name)) = (full.parent(), full.file_name().and_then(|n| n.to_str())) else {
        return;
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|e| e.file_name().to_str().is_some_and(|entry| is_aside(entry, name)));
    remove_abandoned(ours.map(|e| e.path()));
}

/// Whether a name is one that lies beside the output `name` while it is written: those of [`sibling`], and the runtime's, which
/// are `.NAME.PROCESS-NUMBER.tmp`; either with [`GONE`] behind it.
fn is_aside(entry: &str, name: &str) -> bool {
    let entry = entry.strip_suffix(GONE).unwrap_or(entry);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let rest = entry.strip_prefix('.').and_then(|r| r.strip_prefix(name)).and_then(|r| r.strip_prefix('.'));
    rest.and_then(|r| r.split_once('.')).is_some_and(|(first, second)| match first {
        "part" | "objects" => digits(second),
        _ => {
            second == "tmp" && first.split_once('-').is_some_and(|(process, n)| digits(process) && digits(n))
        }
    })
}

pub fn cannot_write(path: &Path, e: &io::Error) -> Diagnostic {
    Diagnostic::run("cannot write the output").at(path.display().to_string()).why(e.to_string())
}

/// Refuses early what [`write_aside`] would refuse after all the work: a name that is none, a folder that is not there or that is in
/// the file's place. `option` is what the user gave it with.
pub fn check_place(path: &Path, option: &str) -> Result<(), Diagnostic> {
    if path.is_dir() {
        return Err(Diagnostic::input("a folder is in the place of the output")
            .at(path.display().to_string())
            .help(format!("give {option} a name in it")));
    }
    sibling(path, "part").map(drop).map_err(|d| d.help(format!("create it, or give another {option}")))
}

/// Lets `fill` write a file beside `path`, then gives it that name. A device or a pipe keeps its place and is written to.
pub fn write_aside(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Diagnostic> {
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return write_through(path, fill).map_err(|e| cannot_write(path, &e));
    }
    clear(path);
    let aside = Unfinished::file(sibling(path, "part")?).map_err(|e| cannot_write(path, &e))?;
    fill(aside.path()).and_then(|()| std::fs::rename(aside.path(), path)).map_err(|e| cannot_write(path, &e))
}

/// Writes to what is no file: renaming over `/dev/null` would take the device away from everyone else.
fn write_through(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let aside = std::env::temp_dir().join(format!(".pcc.{}.part", std::process::id()));
    let aside = Unfinished::file(aside)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_what_lies_aside_are_cleared() {
        for aside in [".a.pcc.part.12", ".a.pcc.objects.1", ".a.pcc.7-0.tmp"] {
            assert!(is_aside(aside, "a.pcc"), "{aside}");
        }
        for other in [
            "a.pcc",
            ".a.pcc",
            ".a.pcc.part",
            ".a.pcc.part.x",
            ".b.pcc.part.1",
            ".a.pcc.1-0.old",
            ".a.pcc.-.tmp",
        ] {
            assert!(!is_aside(other, "a.pcc"), "{other}");
        }
    }

    #[test]
    fn what_is_written_or_new_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let written = Unfinished::file(path(".a.part.1")).unwrap();
        for left in [".a.part.2", ".a.part.3"] {
            std::fs::write(path(left), b"half").unwrap();
        }
        std::fs::create_dir(path(".a.objects.4")).unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        for old in [".a.part.1", ".a.part.2", ".a.objects.4"] {
            std::fs::File::open(path(old)).unwrap().set_modified(long_ago).unwrap();
        }
        clear(&path("a"));
        let left: Vec<bool> = [1, 2, 3].map(|n| path(&format!(".a.part.{n}")).exists()).into();
        assert_eq!((left, path(".a.objects.4").exists()), (vec![true, false, true], false));
        drop(written);
        assert!(!path(".a.part.1").exists());
    }
}
