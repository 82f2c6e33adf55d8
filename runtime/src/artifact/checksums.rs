//! `SHA256SUMS`: digests of the artifact's JSON files, in the format of `sha256sum`. The program's own digests cover the kernel object and
//! the levels, so nothing of an artifact can be changed, or be another's, unnoticed.

use super::{PLAN, PROGRAM, REPORT, digest_of, read};
use pcc_ir::Diagnostic;
use std::path::Path;

pub(super) const CHECKSUMS: &str = "SHA256SUMS";

/// The files it lists.
const FILES: [&str; 3] = [PROGRAM, REPORT, PLAN];

/// The text of the file for the bytes of [`FILES`].
pub(super) fn text(bytes: [&[u8]; 3]) -> String {
    let line = |(name, bytes): (&str, &[u8])| format!("{}  {name}\n", digest_of(bytes));
    FILES.into_iter().zip(bytes).map(line).collect()
}

/// Refuses bytes of one of the files that are not those it was written with.
pub(super) fn check(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Diagnostic> {
    let written = read(&dir.join(CHECKSUMS))?;
    let digest = digest_of(bytes);
    if String::from_utf8_lossy(&written).lines().any(|line| *line == format!("{digest}  {name}")) {
        return Ok(());
    }
    Err(Diagnostic::input("the artifact was changed after it was compiled")
        .at(dir.join(name).display().to_string())
        .why(format!("its SHA-256 is {digest}, which is not what {CHECKSUMS} says"))
        .help("compile the model again"))
}
