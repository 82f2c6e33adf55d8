//! Files for what pcc reads from files: one folder a process, in memory where the system has such a place.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let made = tempfile::Builder::new().prefix("pcc-fuzz-").tempdir_in(place);
        made.unwrap_or_else(|e| panic!("no folder for inputs: {e}")) // invariant: a harness that cannot write must stop
    });
    made.path()
}

/// Writes a file of the folder, with the folders it lies in; targets of one process that may run at once use names of their own.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    let written = std::fs::create_dir_all(path.parent().unwrap_or(folder()))
        .and_then(|()| std::fs::write(&path, bytes));
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display())); // invariant: a harness that cannot write must stop
    path
}
