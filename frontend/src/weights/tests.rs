//! Tests of whole files: good ones written by the test itself or by the `safetensors` crate, and hostile ones.

mod gguf;
mod hostile_gguf;
mod hostile_safetensors;
mod safetensors;

use super::Checkpoint;
use pcc_ir::Diagnostic;
use std::path::{Path, PathBuf};

/// A folder of its own for one test, removed afterwards.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Opens a file of these bytes.
fn open(name: &str, bytes: &[u8]) -> Result<Checkpoint, Diagnostic> {
    Checkpoint::open(&Folder::new().write(name, bytes))
}

/// The diagnostic of a file that must be refused, as the user sees it.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let diagnostic = open(name, bytes).expect_err("the file must be refused");
    assert_eq!(diagnostic.fault, pcc_ir::Fault::Input);
    assert!(diagnostic.place.is_some(), "{diagnostic}");
    diagnostic.to_string()
}
