//! Objects to a shared object by the system's linker.

use pcc_ir::Diagnostic;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What both linkers are told: no build id or symbols of files (equal objects give equal bytes), nothing undefined (kernels call
/// nothing), no executable stack.
const OPTIONS: [&str; 4] = ["--build-id=none", "--hash-style=gnu", "-znoexecstack", "-zdefs"];

/// Links the objects, in order, into `out`, written aside and renamed. The bytes of the result.
///
/// # Errors
/// No linker is installed, it fails, or the folder cannot be written.
pub(crate) fn shared_object(objects: &[Vec<u8>], out: &Path) -> Result<Vec<u8>, Diagnostic> {
    let run = |what: &str, e: std::io::Error| {
        Diagnostic::run(format!("the kernels' shared object cannot be {what}"))
            .at(out.display().to_string())
            .why(e.to_string())
    };
    let parent = match out.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let folder =
        tempfile::Builder::new().prefix(".pcc-codegen-").tempdir_in(parent).map_err(|e| run("written", e))?;
    let mut inputs = vec![];
    for (i, object) in objects.iter().enumerate() {
        let path = folder.path().join(format!("{i:05}.o"));
        std::fs::write(&path, object).map_err(|e| run("written", e))?;
        inputs.push(path);
    }
    let linked = folder.path().join("linked.so");
    link(&inputs, &linked)?;
    let bytes = std::fs::read(&linked).map_err(|e| run("read", e))?;
    std::fs::rename(&linked, out).map_err(|e| run("written", e))?;
    Ok(bytes)
}

/// `ld`, which is quickest, or else the C compiler.
fn link(inputs: &[PathBuf], out: &Path) -> Result<(), Diagnostic> {
    let mut ld = Command::new("ld");
    ld.args(["-shared", "-s"]).args(OPTIONS);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-s"]).args(OPTIONS.map(|o| format!("-Wl,{o}")));
    let mut missing = vec![];
    for (name, mut command) in [("ld", ld), ("cc", cc)] {
        match command.arg("-o").arg(out).args(inputs).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
                return Err(Diagnostic::run(format!("{name} failed to link the kernels: {}", output.status))
                    .why(said));
            }
            Err(error) => missing.push(format!("{name}: {error}")),
        }
    }
    Err(Diagnostic::run("no linker was found").why(missing.join("; ")).help("install binutils"))
}
