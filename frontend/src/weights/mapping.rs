//! The one place that maps files into memory; unsafe lives here alone.

use super::bad_file;
use memmap2::{Mmap, UncheckedAdvice};
use pcc_ir::Diagnostic;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A whole file, mapped read-only.
#[derive(Debug)]
pub(super) struct Mapping {
    path: PathBuf,
    file: File,
    map: Mmap,
    /// Bytes that may have been read since pages were last given back.
    read: AtomicU64,
}

/// Bytes read after which the file's pages are given back: weights are read once, and what is read is kept elsewhere.
const GIVE_BACK: u64 = 16 << 20;

impl Mapping {
    /// Maps a regular file that is not empty. Pipes and devices are refused before they are opened, since opening
    /// one can block for ever.
    pub(super) fn open(path: &Path) -> Result<Self, Diagnostic> {
        let refuse = |e: std::io::Error| bad_file(path, e.to_string());
        let found = fs::metadata(path).map_err(refuse)?;
        if !found.is_file() {
            return Err(bad_file(path, "it is not a regular file"));
        }
        if found.len() == 0 {
            return Err(bad_file(path, "it is empty"));
        }
        let file = File::open(path).map_err(refuse)?;
        // SAFETY: the mapping is read-only and only ever seen as bytes, for which every content is valid. If another
        // process truncates the file, touching the lost pages raises SIGBUS; `check_length` is called before each
        // read to turn that into an error except in the instant between the two. Writing to the file meanwhile
        // changes values, as it would under any other way of reading.
        let map = unsafe { Mmap::map(&file) }.map_err(refuse)?;
        Ok(Self { path: path.to_path_buf(), file, map, read: AtomicU64::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Notes that up to `bytes` were read. Now and then takes the file's pages out of this process's memory, so that weights that
    /// were loaded do not lie there twice; the system still caches them, and reading on brings them back.
    pub(super) fn done_with(&self, bytes: usize) {
        if self.read.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 >= GIVE_BACK {
            self.read.store(0, Ordering::Relaxed);
            // SAFETY: the mapping is shared and read-only: pages that are dropped are read again from the file, with the same
            // content, by whoever touches them next. Refusal is harmless.
            let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    /// Refuses to go on when the file has become shorter than when it was opened.
    pub(super) fn check_length(&self) -> Result<(), Diagnostic> {
        let now = self.file.metadata().map_err(|e| bad_file(&self.path, e.to_string()))?.len();
        if now >= self.map.len() as u64 {
            return Ok(());
        }
        let why = format!("it had {} bytes when it was opened and now has {now}", self.map.len());
        Err(Diagnostic::run("the weight file was truncated").at(self.path.display().to_string()).why(why))
    }
}
