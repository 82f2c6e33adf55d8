//! Several processes at once over one output and one cache, and processes that are killed: every one that ends well has made a whole
//! artifact, and nothing half-written is left.

use super::{Outcome, check_failure, command, everything, finish, folder, models, npz, script, succeeds};
use std::path::{Path, PathBuf};
use std::process::Child;

/// Compiles into `out.pcc`, with the folder's own cache.
fn compile(place: &Path, model: &str, tp: &str) -> Child {
    let args = ["compile", model, "--seq", "8", "--tp", tp, "-o", "out.pcc"];
    command(place, &args).env("PCC_CACHE", place.join("cache")).spawn().expect("pcc starts")
}

fn ends_well(o: &Outcome) {
    assert_eq!(o.code, 0, "{}", o.stderr);
}

/// What lies beside the artifact and the cache.
fn beside(place: &Path) -> Vec<PathBuf> {
    let own = ["out.pcc", "cache"].map(|n| place.join(n));
    everything(place).into_iter().filter(|p| !own.iter().any(|o| p.starts_with(o))).collect()
}

#[test]
fn compiles_into_one_output_at_once() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let before = beside(place.path());
    let input = npz::token_file(place.path(), 1, 5);
    for round in 0..3 {
        let children: Vec<Child> =
            (0..6).map(|i| compile(place.path(), &model, ["1", "2", "3"][i % 3])).collect();
        for child in children {
            ends_well(&finish(child, "one of several compiles"));
        }
        // Whoever was last: the artifact is whole.
        succeeds(place.path(), &["run", "out.pcc", "--input", input.to_str().unwrap()]);
        succeeds(place.path(), &["verify", "out.pcc"]);
        let after: Vec<PathBuf> = beside(place.path()).into_iter().filter(|p| *p != input).collect();
        assert_eq!(after, before);
        if round == 1 {
            std::fs::remove_dir_all(place.path().join("out.pcc")).unwrap();
        }
    }
    let aside =
        everything(&place.path().join("cache")).into_iter().filter(|p| !p.to_string_lossy().ends_with(".o"));
    assert!(aside.filter(|p| p.is_file()).count() == 0, "files half-written in the cache");
}

/// A code generator that is killed while it works: one message, and nothing left.
#[test]
fn a_code_generator_killed_at_work() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let generator = script(&place.path().join("killed"), "read line\nkill -9 $$");
    let before = everything(place.path());
    let args = ["compile", &model, "--seq", "8", "-o", "out.pcc"];
    let o = finish(command(place.path(), &args).env("PCC_CODEGEN", &generator).spawn().unwrap(), "compile");
    check_failure(&o, "a killed generator", 4, &["without an answer", "signal: 9"]);
    assert_eq!(everything(place.path()), before);
}

/// The real one, killed at any time of its work.
#[test]
fn a_code_generator_killed_at_any_time() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let before = everything(place.path());
    let real = Path::new(env!("CARGO_BIN_EXE_pcc")).with_file_name("pcc-codegen");
    let tools = folder();
    for ms in [0, 3, 10, 20, 30, 45, 60, 90, 120, 200] {
        let fresh = tools.path().join(format!("cache{ms}"));
        let body = format!(
            "( sleep 0.{ms:03}; kill -9 $$ ) > /dev/null 2>&1 < /dev/null &\nexec '{}'",
            real.display()
        );
        let generator = script(&tools.path().join("timed"), &body);
        let args = ["compile", &model, "--seq", "8", "-o", "out.pcc"];
        let mut compile = command(place.path(), &args);
        compile.env("PCC_CODEGEN", &generator).env("PCC_CACHE", &fresh);
        let o = finish(compile.spawn().unwrap(), "compile");
        if o.code == 0 {
            succeeds(place.path(), &["verify", "out.pcc"]);
            std::fs::remove_dir_all(place.path().join("out.pcc")).unwrap();
        } else {
            check_failure(&o, "a killed generator", 4, &["without an answer", "signal: 9"]);
        }
        assert_eq!(everything(place.path()), before, "{ms} ms");
        // What it left in the cache harms nobody.
        let again = command(place.path(), &args).env("PCC_CACHE", &fresh).spawn().unwrap();
        ends_well(&finish(again, "a compile after that"));
        std::fs::remove_dir_all(place.path().join("out.pcc")).unwrap();
    }
}

/// Whatever lies in the cache, and wherever it is said to be.
#[test]
fn caches_that_are_damaged_or_no_folders() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    ends_well(&finish(compile(place.path(), &model, "2"), "compile"));
    let kernels = std::fs::read(place.path().join("out.pcc/kernels.x86.so")).unwrap();
    let entries: Vec<PathBuf> =
        everything(&place.path().join("cache")).into_iter().filter(|p| p.is_file()).collect();
    assert!(entries.len() >= 4, "{entries:?}");
    for (i, entry) in entries.iter().enumerate() {
        let bytes = std::fs::read(entry).unwrap();
        match i % 4 {
            0 => std::fs::write(entry, &bytes[..bytes.len() / 2]).unwrap(),
            1 => std::fs::write(entry, [&bytes[..bytes.len() - 1], &[!bytes[bytes.len() - 1]]].concat())
                .unwrap(),
            2 => std::fs::write(entry, b"").unwrap(),
            _ => drop(std::fs::copy(&entries[0], entry).unwrap()),
        }
    }
    ends_well(&finish(compile(place.path(), &model, "2"), "compile"));
    assert_eq!(std::fs::read(place.path().join("out.pcc/kernels.x86.so")).unwrap(), kernels);
    std::fs::remove_dir_all(place.path().join("cache")).unwrap();
    std::fs::write(place.path().join("cache"), b"a file").unwrap();
    ends_well(&finish(compile(place.path(), &model, "2"), "compile"));
    assert_eq!(std::fs::read(place.path().join("out.pcc/kernels.x86.so")).unwrap(), kernels);
}
