//! The command line as a user or a script sees it: exit codes, one diagnostic on stderr, nothing on stdout and nothing left behind
//! when something is wrong; what DESIGN calls "what scripts rely on" when not.

mod artifacts;
mod broken;
mod commands;
mod concurrent;
mod descriptions;
mod drawing;
mod eval;
mod families;
mod gpu_blas;
mod gpu_mutants;
mod gpus;
mod graphs;
mod interrupted;
mod mesh_flags;
mod models;
mod npz;
mod quantised;
mod runs;
mod text;
mod verify;
mod weights;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; minus the number of the signal that ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Longer than any command of these tests takes: one that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(100);

/// The command with these arguments, to be run in `folder`.
pub fn command(folder: &Path, args: &[&str]) -> Command {
    let pcc = Path::new(env!("CARGO_BIN_EXE_pcc"));
    let codegen = pcc.with_file_name("pcc-codegen");
    assert!(codegen.is_file(), "build it first: cargo build -p pcc-codegen (cargo xtask test does)");
    let mut command = Command::new(pcc);
    command.args(args).current_dir(folder).stdin(Stdio::null()).env("PCC_CACHE", shared().join("cache"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of a process and reads what it wrote.
pub fn finish(mut child: Child, what: &str) -> Outcome {
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("stdout is piped")));
    let stderr = read(Box::new(child.stderr.take().expect("stderr is piped")));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{what} did not end in {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let code = status.code().unwrap_or_else(|| -signal.unwrap_or(0));
    Outcome { code, stdout: stdout.join().expect("a reader"), stderr: stderr.join().expect("a reader") }
}

/// Runs `pcc` in `folder`.
pub fn pcc(folder: &Path, args: &[&str]) -> Outcome {
    let child = command(folder, args).spawn().expect("pcc starts");
    finish(child, &format!("pcc {}", args.join(" ")))
}

/// Runs a command that must succeed, and gives its stdout.
#[track_caller]
pub fn succeeds(folder: &Path, args: &[&str]) -> String {
    let o = pcc(folder, args);
    assert_eq!(o.code, 0, "pcc {}\n{}{}", args.join(" "), o.stdout, o.stderr);
    o.stdout
}

/// Runs a command that must succeed, and gives the one JSON object on its stdout.
#[track_caller]
pub fn json(folder: &Path, args: &[&str]) -> serde_json::Value {
    let text = succeeds(folder, args);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("pcc {}: {e}\n{text}", args.join(" ")))
}

/// Runs a command that must fail so: this exit code, one diagnostic that has all `words`, an empty stdout, and the folder as it was.
#[track_caller]
pub fn fails(folder: &Path, args: &[&str], code: i32, words: &[&str]) {
    let before = everything(folder);
    let outcome = pcc(folder, args);
    check_failure(&outcome, &format!("pcc {}", args.join(" ")), code, words);
    assert_eq!(
        everything(folder),
        before,
        "pcc {} left something behind or took something away",
        args.join(" ")
    );
}

#[track_caller]
pub fn check_failure(o: &Outcome, what: &str, code: i32, words: &[&str]) {
    assert_eq!(o.code, code, "exit code of {what}\n{}", o.stderr);
    assert_eq!(o.stdout, "", "stdout of {what}");
    let errors =
        o.stderr.lines().filter(|l| l.starts_with("error") || l.starts_with("internal error")).count();
    assert_eq!(errors, 1, "{what} gives one diagnostic:\n{}", o.stderr);
    assert!(!o.stderr.contains("panicked"), "{what}:\n{}", o.stderr);
    // The renderer may break lines.
    let flat = o.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(flat.contains(word), "{what} does not say `{word}`:\n{}", o.stderr);
    }
}

/// Every path below a folder.
pub fn everything(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                open.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

/// A folder that all tests of this run share, empty at the start.
pub fn shared() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli");
        // Kernels stay: they are kept by content.
        let _ = std::fs::remove_dir_all(folder.join("artifacts"));
        std::fs::create_dir_all(folder.join("artifacts")).expect("the target folder can be written");
        folder
    })
}

/// A folder of a test's own.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

pub fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// A tiny checkpoint with its config (frontend/tests/data).
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("frontend/tests/data").join(name)
}

/// Copies a folder (of files only) into `to`, under its own name.
pub fn copied_folder(from: &Path, to: &Path) -> PathBuf {
    let copy = to.join(from.file_name().expect("a folder with a name"));
    std::fs::create_dir(&copy).expect("a temporary folder can be written");
    for entry in std::fs::read_dir(from).expect("the folder is there").flatten() {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("a file can be copied");
    }
    copy
}

/// Writes a shell script that stands for another program. Another process writes it: of an open file of ours a child that is just
/// being started may have a copy, and what somebody writes cannot be executed.
pub fn script(path: &Path, body: &str) -> PathBuf {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf '%s\\n' '#!/bin/sh' \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(path).arg(body);
    assert!(shell.status().expect("a shell").success());
    path.to_owned()
}
