//! Host programs that are wrong in one call: a wait that was forgotten, a collective on another stream, a count that other ranks do not have. The
//! simulator, or the comparison with the CPU, must notice every one; what changes nothing is listed with the reason.

use super::models::artifact;
use super::{command, finish, folder, npz};
use std::path::{Path, PathBuf};

/// Ranks 0 and 1 are stage 0, ranks 2 and 3 stage 1; 2 micro-batches.
const MESH: [&str; 8] = ["--tp", "2", "--pp", "2", "--seq", "4", "--dtype", "f32"];

/// Kind, rank, number of the call of its kind.
const CAUGHT: [&str; 26] = [
    "skip-wait:0:0",
    "skip-wait:0:1",
    "skip-wait:0:2",
    "skip-wait:0:3",
    "skip-wait:0:4",
    "skip-wait:0:5",
    "skip-wait:1:6",
    "skip-wait:2:1",
    "skip-wait:2:2",
    "skip-wait:3:3",
    "other-stream:0:0",
    "other-stream:0:1",
    "other-stream:2:0",
    "other-stream:3:1",
    "count:0:0",
    "count:2:0",
    "count:3:1",
    "dtype:1:0",
    "dtype:2:1",
    "operation:0:0",
    "operation:2:0",
    "skip-collective:0:0",
    "skip-collective:2:0",
    "skip-copy:0:0",
    "skip-copy:2:1",
    "skip-launch:1:4",
];

/// Changes that no result can show.
const HARMLESS: [(&str, &str); 2] = [
    (
        "skip-wait:2:0",
        "the link's stream waits for the start of the run before its first message: the host has waited for all that touched the buffer before",
    ),
    (
        "skip-zero:0:0",
        "outputs are zeroed so that padding the host copies is defined; a run writes all that is asked for",
    ),
];

fn run(place: &Path, made: &Path, device: &str, mutant: Option<&str>) -> (i32, Vec<f32>, String) {
    run_rows(place, (made, 2), device, mutant)
}

/// Exit code, logits and standard error of a run on so many rows.
fn run_rows(
    place: &Path,
    (made, rows): (&Path, usize),
    device: &str,
    mutant: Option<&str>,
) -> (i32, Vec<f32>, String) {
    let input = npz::token_file(place, rows, 4);
    let _ = std::fs::remove_file(place.join("out.npz"));
    let args = ["run", made.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"];
    let args = [&args[..], &["--entry", "forward", "--device", device]].concat();
    let mut command = command(place, &args);
    command.env("PCC_SIM_TIMEOUT_MS", "2000");
    command.envs(mutant.map(|m| ("PCC_SIM_MUTANT", m)));
    let outcome = finish(command.spawn().expect("pcc starts"), &format!("{mutant:?}"));
    let values = match outcome.code {
        0 => npz::read_f32(&place.join("out.npz"), "logits").1,
        _ => Vec::new(),
    };
    (outcome.code, values, outcome.stderr)
}

/// The CPU's results, and the program for GPUs.
fn subject(place: &Path) -> (Vec<f32>, PathBuf) {
    let cpu = artifact("gpt2", &[&MESH[..], &["--target", "cpu"]].concat());
    let (code, want, stderr) = run(place, &cpu, "cpu", None);
    assert_eq!(code, 0, "{stderr}");
    (want, artifact("gpt2", &[&MESH[..], &["--target", "sm_90"]].concat()))
}

/// Whether results are as far from the CPU's as sums in another order may be.
fn is_equal(got: &[f32], want: &[f32]) -> bool {
    let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 2e-5 * largest)
}

#[test]
fn every_wrong_host_program_is_noticed() {
    let place = folder();
    let (want, gpu) = subject(place.path());
    let (code, got, stderr) = run(place.path(), &gpu, "cuda-sim", None);
    assert!(code == 0 && is_equal(&got, &want), "unchanged: {stderr}");
    let mut missed = Vec::new();
    for mutant in CAUGHT {
        let (code, got, stderr) = run(place.path(), &gpu, "cuda-sim", Some(mutant));
        if code == 0 && is_equal(&got, &want) {
            missed.push(mutant);
        }
        assert!(code == 0 || code == 4, "{mutant}: exit code {code}\n{stderr}");
        assert!(!stderr.contains("panicked"), "{mutant}: {stderr}");
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// Waits for message buffers that are used again: the third message is the first to need one.
#[test]
fn buffers_that_are_used_too_early_are_noticed() {
    let place = folder();
    let args =
        ["--pp", "2", "--seq", "4", "--batch", "4", "--micro-batches", "4", "--dtype", "f32", "--target"];
    let [cpu, gpu] = ["cpu", "sm_90"].map(|target| artifact("gpt2", &[&args[..], &[target]].concat()));
    let (_, want, _) = run_rows(place.path(), (&cpu, 4), "cpu", None);
    let mut noticed = 0;
    for number in 0..16 {
        for rank in ["0", "1"] {
            let mutant = format!("skip-wait:{rank}:{number}");
            let (code, got, stderr) = run_rows(place.path(), (&gpu, 4), "cuda-sim", Some(&mutant));
            assert!(code == 0 || code == 4, "{mutant}: {stderr}");
            noticed += usize::from(code != 0 || !is_equal(&got, &want));
            assert!(code == 4 || is_equal(&got, &want), "{mutant} gave wrong results and no fault");
        }
    }
    // Stage 0 waits twice for a buffer to be sent, stage 1 for each of 4 messages and twice for a buffer to be emptied.
    assert!(noticed >= 8, "{noticed} noticed");
}

/// A rank that hangs while communicators are made: the others give up when their patience ends, not the simulator's.
#[test]
fn a_rank_that_never_joins_is_not_waited_for_for_ever() {
    let place = folder();
    let (_, gpu) = subject(place.path());
    let input = npz::token_file(place.path(), 2, 4);
    let args = ["run", gpu.to_str().unwrap(), "--input", input.to_str().unwrap(), "--entry", "forward"];
    let args = [&args[..], &["--output", "out.npz", "--device", "cuda-sim", "--patience", "2"]].concat();
    let mut command = command(place.path(), &args);
    command.env("PCC_SIM_MUTANT", "skip-join:1:0");
    let outcome = finish(command.spawn().expect("pcc starts"), "a rank that never joins");
    assert_eq!(outcome.code, 4, "{}", outcome.stderr);
    for part in ["in vain", "joining the other ranks", "nothing has moved for 2 s"] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
}

#[test]
fn what_is_called_harmless_changes_nothing() {
    let place = folder();
    let (want, gpu) = subject(place.path());
    for (mutant, reason) in HARMLESS {
        let (code, got, stderr) = run(place.path(), &gpu, "cuda-sim", Some(mutant));
        assert!(code == 0 && is_equal(&got, &want), "{mutant} is not harmless ({reason}): {stderr}");
    }
}
