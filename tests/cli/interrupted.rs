//! Ctrl-C, a full disk, and a code generator that fails: nothing half-written stays.

use super::{check_failure, command, everything, fails, finish, folder, models, npz, succeeds};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Sends a signal to a running command after a while; gives its exit code, or `None` when it was done before.
fn signalled(mut command: Command, signal: &str, after: Duration) -> Option<i32> {
    let mut child = command.spawn().unwrap();
    std::thread::sleep(after);
    if child.try_wait().unwrap().is_some() {
        return None;
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    Some(finish(child, "an interrupted command").code)
}

/// A larger model, so that there is time to interrupt it.
fn model(folder: &Path) -> String {
    let mut config = models::llama();
    config["num_hidden_layers"] = 40.into();
    config["max_position_embeddings"] = 512.into();
    models::write(folder, "llama", &config)
}

#[test]
fn an_interrupted_compile_leaves_nothing() {
    let place = folder();
    let model = model(place.path());
    let before = everything(place.path());
    let mut stopped = 0;
    for (i, ms) in [20, 40, 60, 80, 120, 200, 300, 450].into_iter().enumerate() {
        let args = ["compile", &model, "--tp", "8", "--pp", "4", "--seq", "512", "-o", "out.pcc"];
        let (signal, code) = [("-INT", 130), ("-TERM", 143)][i % 2];
        match signalled(command(place.path(), &args), signal, Duration::from_millis(ms)) {
            // Done before the signal came.
            None | Some(0) => {}
            Some(exit) => {
                assert_eq!(exit, code);
                stopped += 1;
            }
        }
        // Either nothing, or an artifact that was finished before the signal came.
        let left: Vec<_> = everything(place.path()).difference(&before).cloned().collect();
        let whole = left.iter().all(|p| p.starts_with(place.path().join("out.pcc")));
        assert!(whole, "left behind: {left:?}");
        let _ = std::fs::remove_dir_all(place.path().join("out.pcc"));
    }
    assert!(stopped > 0, "every compile was faster than its signal");
}

/// The twin's kernels are generated in a folder of their own.
#[test]
fn an_interrupted_numeric_check_leaves_nothing() {
    let place = folder();
    let mut config = models::llama();
    config["num_hidden_layers"] = 40.into();
    config["vocab_size"] = 3_000_011.into();
    let model = models::write(place.path(), "llama", &config);
    succeeds(place.path(), &["compile", &model, "--tp", "2", "-o", "large.pcc"]);
    let scratch = place.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let mut stopped = 0;
    for (i, ms) in [10, 20, 40, 60, 80, 120, 160].into_iter().enumerate() {
        let mut check = command(place.path(), &["verify", "large.pcc", "--numeric"]);
        // Without a cache the kernels are generated each time, which takes longest.
        check.env("TMPDIR", &scratch).env("PCC_CACHE", place.path().join(format!("cache{i}")));
        let code = signalled(check, "-INT", Duration::from_millis(ms));
        stopped += usize::from(code == Some(130));
        assert!(everything(&scratch).is_empty(), "after {ms} ms: {:?}", everything(&scratch));
    }
    assert!(stopped > 0, "every check was faster than its signal");
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
    let code = signalled(command(place.path(), &args), "-INT", Duration::from_millis(700));
    assert_eq!(code, Some(130));
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
