//! Artifacts that are damaged, edited, of another version or for another CPU.

use super::{fails, folder, models, npz, succeeds};
use serde_json::{Value, json};
use std::path::Path;

/// Runs a copy of an artifact after a change: exit 1, one message with these words.
#[track_caller]
fn refused(change: impl FnOnce(&Path), words: &[&str]) {
    let place = folder();
    let copy = models::copied(&models::artifact("llama", &["--tp", "2"]), place.path());
    change(&copy);
    let input = npz::token_file(place.path(), 1, 4);
    fails(place.path(), &["run", "copy.pcc", "--input", input.to_str().unwrap()], 1, words);
}

/// Changes program.json as JSON.
fn edit(copy: &Path, change: impl FnOnce(&mut Value)) {
    let path = copy.join("program.json");
    let mut program: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut program);
    std::fs::write(&path, program.to_string()).unwrap();
    models::sign(copy);
}

/// A change that no other check would notice.
#[test]
fn edited_without_a_new_checksum() {
    let edited = &["program.json", "changed after it was compiled"];
    refused(
        |copy| {
            let path = copy.join("program.json");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, text.replacen("llama", "lamas", 1)).unwrap();
        },
        edited,
    );
    refused(|copy| std::fs::write(copy.join("SHA256SUMS"), "0").unwrap(), edited);
    refused(|copy| std::fs::remove_file(copy.join("SHA256SUMS")).unwrap(), &["SHA256SUMS"]);
}

#[test]
fn missing_or_no_artifact() {
    let place = folder();
    let input = npz::token_file(place.path(), 1, 4);
    let input = input.to_str().unwrap();
    fails(place.path(), &["run", "absent.pcc", "--input", input], 1, &["absent.pcc", "no artifact"]);
    fails(place.path(), &["run", input, "--input", input], 1, &["no artifact"]);
    fails(place.path(), &["inspect", "absent.pcc"], 1, &["absent.pcc"]);
    fails(place.path(), &["verify", "absent.pcc"], 1, &["absent.pcc"]);
    std::fs::create_dir(place.path().join("empty.pcc")).unwrap();
    fails(place.path(), &["run", "empty.pcc", "--input", input], 1, &["program.json"]);
    fails(place.path(), &["inspect", "empty.pcc"], 1, &["program.json"]);
    fails(place.path(), &["generate", "absent.pcc", "--prompt", "x"], 1, &["absent.pcc"]);
}

#[test]
fn truncated() {
    for file in ["program.json", "report.json", "plan.json"] {
        let cut = |copy: &Path| {
            let path = copy.join(file);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        };
        refused(cut, &[file]);
        refused(|copy| std::fs::write(copy.join(file), b"").unwrap(), &[file]);
        refused(|copy| std::fs::remove_file(copy.join(file)).unwrap(), &[file]);
        refused(|copy| std::fs::write(copy.join(file), "[".repeat(1 << 20)).unwrap(), &[file]);
    }
    refused(|copy| std::fs::remove_file(copy.join("kernels.x86.so")).unwrap(), &["kernels.x86.so"]);
    refused(
        |copy| std::fs::write(copy.join("kernels.x86.so"), b"\x7fELF").unwrap(),
        &["kernels.x86.so", "SHA-256"],
    );
}

#[test]
fn edited_kernels() {
    let flip = |copy: &Path| {
        let path = copy.join("kernels.x86.so");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    refused(flip, &["kernels.x86.so", "SHA-256"]);
}

/// What an artifact was lowered from is checked by `verify`, and not needed to run.
#[test]
fn edited_levels() {
    let place = folder();
    let copy = models::copied(&models::artifact("llama", &["--tp", "2"]), place.path());
    let verify = |words: &[&str]| fails(place.path(), &["verify", "copy.pcc"], 1, words);
    let path = copy.join("levels.json");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    verify(&["levels.json", "SHA-256"]);
    std::fs::remove_file(&path).unwrap();
    verify(&["levels.json"]);
    let input = npz::token_file(place.path(), 1, 4);
    succeeds(place.path(), &["run", "copy.pcc", "--input", input.to_str().unwrap()]);
}

#[test]
fn another_version() {
    refused(|copy| edit(copy, |p| p["version"] = json!(999)), &["version", "999"]);
    refused(|copy| edit(copy, |p| p["version"] = json!("old")), &["program.json"]);
}

#[test]
fn another_cpu() {
    let feature = |p: &mut Value| p["target"]["features"].as_array_mut().unwrap().push(json!("avx9000"));
    refused(|copy| edit(copy, feature), &["avx9000"]);
}

#[test]
fn edited_programs() {
    refused(|copy| edit(copy, |p| drop(p.as_object_mut().unwrap().remove("entries"))), &["program.json"]);
    refused(|copy| edit(copy, |p| p["mesh"]["tp"] = json!(0)), &[]);
    refused(|copy| edit(copy, |p| p["mesh"]["tp"] = json!(1u64 << 31)), &[]);
    refused(|copy| edit(copy, |p| p["batch"]["micro_batches"] = json!(0)), &[]);
    refused(|copy| edit(copy, |p| p["batch"]["batch"] = json!(1u64 << 62)), &[]);
}

/// Numbers of the program, one at a time made larger or huge: whatever the artifact then is, checking and running it end orderly, and
/// nearly all such edits are noticed. A sample of them, since there are thousands.
#[test]
fn edited_numbers_are_noticed() {
    let place = folder();
    let artifact =
        models::artifact("llama", &["--seq", "16", "--batch", "5", "--tp", "3", "--pp", "2", "--dp", "2"]);
    let copy = models::copied(&artifact, place.path());
    let path = copy.join("program.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let input = npz::token_file(place.path(), 5, 7);
    let run = ["run", "copy.pcc", "--input", input.to_str().unwrap()];
    succeeds(place.path(), &run);
    let numbers = numbers(&text);
    let every = (numbers.len() / 60).max(1);
    let (mut noticed, mut edits) = (0, 0);
    for (i, &(start, end)) in numbers.iter().enumerate().skip(every / 2).step_by(every) {
        let number: u64 = text[start..end].parse().unwrap();
        let changed = if i % 3 == 0 { u64::MAX } else { number.saturating_add(1) };
        let what = format!("{number} made {changed} at {}", &text[start.saturating_sub(60)..end]);
        std::fs::write(&path, format!("{}{changed}{}", &text[..start], &text[end..])).unwrap();
        models::sign(&copy);
        let verify = super::pcc(place.path(), &["verify", "copy.pcc"]);
        let ran = super::pcc(place.path(), &run);
        assert!([0, 1, 3].contains(&verify.code), "{what}: verify {verify:?}");
        assert!([0, 1, 4].contains(&ran.code), "{what}: run {ran:?}");
        assert!(!format!("{verify:?}{ran:?}").contains("internal error"), "{what}: {verify:?} {ran:?}");
        edits += 1;
        noticed += usize::from(verify.code != 0);
    }
    assert!(noticed * 10 >= edits * 7, "only {noticed} of {edits} edits were noticed");
}

/// Where the integers of a JSON text are.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut found, mut i) = (Vec::new(), 0);
    while i < bytes.len() {
        let start = i;
        while i < bytes.len() && bytes[i].is_ascii_digit() {
            i += 1;
        }
        if i > start
            && start > 0
            && b":[,".contains(&bytes[start - 1])
            && i < bytes.len()
            && b",]}".contains(&bytes[i])
        {
            found.push((start, i));
        }
        i = i.max(start) + 1;
    }
    found
}

#[test]
fn outputs_in_the_way() {
    let place = folder();
    let model = models::write(place.path(), "llama", &models::llama());
    let args = |out: &'static str| ["compile", model.as_str(), "--seq", "8", "-o", out];
    fails(place.path(), &args("absent/out.pcc"), 1, &["absent"]);
    std::fs::write(place.path().join("file.pcc"), b"mine").unwrap();
    fails(place.path(), &args("file.pcc"), 1, &["file.pcc"]);
    assert_eq!(std::fs::read(place.path().join("file.pcc")).unwrap(), b"mine");
    std::fs::create_dir(place.path().join("folder")).unwrap();
    std::fs::write(place.path().join("folder/note"), b"mine").unwrap();
    fails(place.path(), &args("folder"), 1, &["folder"]);
    // An older artifact is replaced.
    succeeds(place.path(), &args("out.pcc"));
    succeeds(place.path(), &args("out.pcc"));
}

#[test]
fn inputs_that_do_not_fit() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let artifact = artifact.to_str().unwrap();
    let run = |name: &str, words: &[&str]| {
        fails(place.path(), &["run", artifact, "--input", name, "--output", "out.npz"], 1, words);
    };
    run("absent.npz", &["absent.npz"]);
    std::fs::write(place.path().join("bad.npz"), b"PK\x03\x04 no zip").unwrap();
    run("bad.npz", &["bad.npz"]);
    let write =
        |name: &str, arrays: &[(&str, &[u64], Vec<i32>)]| npz::write_i32(&place.path().join(name), arrays);
    write("none.npz", &[]);
    run("none.npz", &["tokens"]);
    write("other.npz", &[("token", &[1, 4], vec![1; 4])]);
    run("other.npz", &["tokens"]);
    write("rank.npz", &[("tokens", &[1], vec![1])]);
    run("rank.npz", &["tokens"]);
    write("long.npz", &[("tokens", &[1, 65], vec![1; 65])]);
    run("long.npz", &["tokens", "64"]);
    write("rows.npz", &[("tokens", &[9, 4], vec![1; 36])]);
    run("rows.npz", &["9"]);
    write("range.npz", &[("tokens", &[1, 4], vec![1, 2, 101, 3])]);
    run("range.npz", &["101"]);
    write("negative.npz", &[("tokens", &[1, 4], vec![1, -2, 1, 3])]);
    run("negative.npz", &["-2"]);
    write("lengths.npz", &[("tokens", &[1, 4], vec![1; 4]), ("lengths", &[1], vec![5])]);
    run("lengths.npz", &["length"]);
    npz::write_f32(&place.path().join("type.npz"), "tokens", &[1, 4], vec![1.0; 4]);
    run("type.npz", &["tokens"]);
    fails(
        place.path(),
        &["run", artifact, "--input", "rank.npz", "--entry", "backward"],
        2,
        &["backward", "forward"],
    );
}
