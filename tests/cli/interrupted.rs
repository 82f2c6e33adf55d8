//! Signals, a full disk, and a code generator that fails: nothing half-written stays.

use super::{check_failure, command, everything, fails, finish, folder, models, npz, script, succeeds};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Waits until something is so; it must be before long.
fn wait_for(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < super::PATIENCE, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process has begun to handle interrupts itself: the kernel's mask of caught signals, SIGINT is its second bit.
fn handles_signals(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|m| m >> 1 & 1 == 1)
}

fn send(signal: &str, process: u32) {
    // It may have ended by itself.
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
    assert!(sent.is_ok());
}

/// Sends a signal to a command at a moment that it is waited for; its exit code, minus the signal's number if that ended it.
fn signalled(mut command: Command, signal: &str, moment: impl FnOnce(&Child)) -> i32 {
    let child = command.spawn().unwrap();
    wait_for("signals are handled", || handles_signals(child.id()));
    moment(&child);
    send(signal, child.id());
    finish(child, "an interrupted command").code
}

/// The signals that end a command, and its exit code then.
const SIGNALS: [(&str, i32); 3] = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];

/// A larger model, so that there is time to interrupt it.
fn model(folder: &Path) -> String {
    let mut config = models::llama();
    config["num_hidden_layers"] = 40.into();
    config["max_position_embeddings"] = 512.into();
    models::write(folder, "llama", &config)
}

/// Code generators that hold a command at one point of its work.
struct Generators {
    folder: tempfile::TempDir,
}

impl Generators {
    fn new() -> Self {
        Self { folder: folder() }
    }

    fn started(&self) -> PathBuf {
        self.folder.path().join("started")
    }

    /// One that writes into the folder of objects without an end, also while that is being removed.
    fn busy(&self, objects: &str) -> PathBuf {
        let started = self.started().display().to_string();
        let body = format!(
            "head -n 1 > /dev/null\n: > '{started}'\nwhile [ -e '{started}' ]; do for f in {objects}; do echo half >> $f/half; done; done"
        );
        script(&self.folder.path().join("busy"), &format!("exec 2> /dev/null\n{body}"))
    }

    /// One that works, but puts a pipe in the place of its object: whoever copies that waits for ever.
    fn piped(&self) -> PathBuf {
        let real = Path::new(env!("CARGO_BIN_EXE_pcc")).with_file_name("pcc-codegen");
        let body = format!(
            "answer=$(head -n 1 | '{}')\nfor f in .out.pcc.objects.*/kernels.x86.so; do rm $f; mkfifo $f; done\nprintf '%s\\n' \"$answer\"\ncat > /dev/null",
            real.display()
        );
        script(&self.folder.path().join("piped"), &body)
    }
}

impl Drop for Generators {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.started());
    }
}

const OBJECTS: &str = ".out.pcc.objects.*";
const COMPILE: [&str; 7] = ["--tp", "2", "--seq", "16", "-o", "out.pcc", "--json"];

fn compile(place: &Path, model: &str, generator: &Path) -> Command {
    let mut compile = command(place, &[&["compile", model], &COMPILE[..]].concat());
    compile.env("PCC_CODEGEN", generator);
    compile
}

/// Whether the folder that becomes the artifact is there.
fn is_being_written(place: &Path) -> bool {
    let name = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".tmp"));
    everything(place).iter().any(name)
}

#[test]
fn an_interrupted_compile_leaves_nothing() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let before = everything(place.path());
    for (signal, code) in SIGNALS {
        let g = Generators::new();
        let exit = signalled(compile(place.path(), &model, &g.busy(OBJECTS)), signal, |_| {
            wait_for("the generator works", || g.started().exists());
        });
        assert_eq!((exit, everything(place.path())), (code, before.clone()), "code being generated");
        let exit = signalled(compile(place.path(), &model, &g.piped()), signal, |_| {
            wait_for("the artifact is being written", || is_being_written(place.path()));
        });
        assert_eq!((exit, everything(place.path())), (code, before.clone()), "artifact being written");
    }
}

/// At any time: either nothing, or an artifact that was finished before the signal came.
#[test]
fn a_compile_interrupted_at_any_time() {
    let place = folder();
    let model = model(place.path());
    let before = everything(place.path());
    for (i, ms) in [0, 1, 2, 5, 10, 20, 40, 80, 160, 320].into_iter().enumerate() {
        let args = ["compile", &model, "--tp", "8", "--pp", "4", "--seq", "512", "-o", "out.pcc"];
        let (signal, code) = SIGNALS[i % 2];
        let exit = signalled(command(place.path(), &args), signal, |_| {
            std::thread::sleep(Duration::from_millis(ms))
        });
        assert!(exit == code || exit == 0, "{exit}");
        let left: Vec<_> = everything(place.path()).difference(&before).cloned().collect();
        let whole = left.iter().all(|p| p.starts_with(place.path().join("out.pcc")));
        assert!(whole, "left behind: {left:?}");
        if !left.is_empty() {
            succeeds(place.path(), &["verify", "out.pcc"]);
        }
        let _ = std::fs::remove_dir_all(place.path().join("out.pcc"));
    }
}

/// What is killed outright cannot clean up: the artifact that was there stays whole, and the next compile removes what was left.
#[test]
fn a_killed_compile_spoils_nothing() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    succeeds(place.path(), &[&["compile", &model], &COMPILE[..]].concat());
    let before = everything(place.path());
    let g = Generators::new();
    let exit = signalled(compile(place.path(), &model, &g.busy(OBJECTS)), "-KILL", |_| {
        wait_for("the generator works", || g.started().exists());
    });
    assert_eq!(exit, -9);
    drop(g);
    let g = Generators::new();
    let exit = signalled(compile(place.path(), &model, &g.piped()), "-KILL", |_| {
        wait_for("the artifact is being written", || is_being_written(place.path()));
    });
    assert_eq!(exit, -9);
    succeeds(place.path(), &["verify", "out.pcc"]);
    // A moment later, when it is certain that nobody works on it.
    for left in std::fs::read_dir(place.path()).unwrap().flatten() {
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
        std::fs::File::open(left.path()).unwrap().set_modified(long_ago).unwrap();
    }
    succeeds(place.path(), &[&["compile", &model], &COMPILE[..]].concat());
    assert_eq!(everything(place.path()), before);
}

/// The twin's kernels are generated in a folder of their own.
#[test]
fn an_interrupted_numeric_check_leaves_nothing() {
    let (place, scratch) = (folder(), folder());
    let mut config = models::llama();
    // Too large to be evaluated as it is.
    config["vocab_size"] = 3_000_011.into();
    let model = models::write(place.path(), "llama", &config);
    succeeds(place.path(), &["compile", &model, "--tp", "2", "-o", "large.pcc"]);
    for (signal, code) in SIGNALS {
        let g = Generators::new();
        let mut check = command(place.path(), &["verify", "large.pcc", "--numeric"]);
        check.env("TMPDIR", scratch.path()).env("PCC_CODEGEN", g.busy("pcc-twin-*"));
        let exit = signalled(check, signal, |_| wait_for("the generator works", || g.started().exists()));
        assert_eq!(exit, code);
        assert!(everything(scratch.path()).is_empty(), "{:?}", everything(scratch.path()));
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let input = npz::token_file(place.path(), 1, 16);
    let args = [
        "run",
        artifact.to_str().unwrap(),
        "--input",
        input.to_str().unwrap(),
        "--steps",
        "1000000",
        "--output",
        "out.npz",
        "--trace",
        "trace.json",
    ];
    let before = everything(place.path());
    let code = signalled(command(place.path(), &args), "-INT", |_| {
        wait_for("the trace is being written", || everything(place.path()) != before);
    });
    assert_eq!(code, 130);
    assert_eq!(everything(place.path()), before);
}

/// A limit on the size of files stands for a disk that is full: the same error, of a write that is not complete.
fn with_small_files(folder: &Path, args: &[&str], kib: u32) -> super::Outcome {
    let inner = command(folder, args);
    let mut shell = Command::new("bash");
    // The signal of the limit is ignored, so that writes fail with an error as on a full disk.
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script]).arg(inner.get_program()).args(inner.get_args()).current_dir(folder);
    shell
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    for (key, value) in inner.get_envs() {
        if let Some(value) = value {
            shell.env(key, value);
        }
    }
    // A cache of its own, which the limit may not damage for others.
    shell.env("PCC_CACHE", folder.join("cache"));
    finish(shell.spawn().unwrap(), "a command with little disk")
}

#[test]
fn a_full_disk_while_compiling() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    std::fs::create_dir(place.path().join("cache")).unwrap();
    let outside = |p: &std::path::PathBuf| !p.starts_with(place.path().join("cache"));
    let before: Vec<_> = everything(place.path()).into_iter().filter(outside).collect();
    for kib in [1, 40] {
        let o = with_small_files(place.path(), &["compile", &model, "--seq", "8", "-o", "out.pcc"], kib);
        check_failure(&o, "a compile with a full disk", 4, &[]);
        let after: Vec<_> = everything(place.path()).into_iter().filter(outside).collect();
        assert_eq!(after, before, "{kib} KiB");
    }
}

#[test]
fn a_full_disk_while_running() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let input = npz::token_file(place.path(), 1, 64);
    let args = ["run", artifact.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"];
    let before = everything(place.path());
    // 64 x 101 logits are 25 KiB.
    let o = with_small_files(place.path(), &args, 4);
    check_failure(&o, "a run with a full disk", 4, &["out.npz"]);
    let after: std::collections::BTreeSet<_> =
        everything(place.path()).into_iter().filter(|p| !p.ends_with("cache")).collect();
    assert_eq!(after, before);
    fails(place.path(), &[&args[..5], &["absent/out.npz"]].concat(), 1, &["absent"]);
}

#[test]
fn a_full_disk_behind_stdout() {
    let place = folder();
    let mut schema = command(place.path(), &["schema"]);
    schema.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let child = schema.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let o = child.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(4), "{}", String::from_utf8_lossy(&o.stderr));
    // A reader that has gone is no fault.
    let mut child = command(place.path(), &["schema"]).spawn().unwrap();
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    assert!(o.status.code() == Some(0) && o.stderr.is_empty(), "{o:?}");
}

/// Whatever becomes of the code generator, the user gets one message, and no artifact.
#[test]
fn code_generators_that_fail() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let before = everything(place.path());
    for (generator, code, word) in [
        ("/nowhere/pcc-codegen", 4, "/nowhere/pcc-codegen"),
        ("/bin/false", 3, "without an answer"),
        ("/bin/cat", 3, "malformed"),
    ] {
        let mut compile = command(place.path(), &["compile", &model, "--seq", "8", "-o", "out.pcc"]);
        let o = finish(compile.env("PCC_CODEGEN", generator).spawn().unwrap(), generator);
        check_failure(&o, generator, code, &[word]);
        assert_eq!(everything(place.path()), before, "{generator}");
    }
}
