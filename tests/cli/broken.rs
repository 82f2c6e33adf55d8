//! Pipes and devices where files belong, and numbers no machine has: refused at once, and never replaced.

use super::{command, example, fails, finish, folder, models, npz};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A named pipe. No one writes to it or reads from it: opening it would wait for ever.
fn pipe(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo starts").success());
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn an_output_that_is_no_file_keeps_its_place() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let input = npz::token_file(place.path(), 1, 4);
    let out = pipe(place.path(), "out.npz");
    let reader = {
        let out = out.clone();
        std::thread::spawn(move || std::fs::read(out).expect("the pipe can be read"))
    };
    let args = ["run", text(&artifact), "--input", text(&input), "--output", text(&out)];
    let o = finish(command(place.path(), &args).spawn().unwrap(), "a run into a pipe");
    assert_eq!(o.code, 0, "{}", o.stderr);
    assert!(std::fs::metadata(&out).unwrap().file_type().is_fifo(), "the pipe was replaced by a file");
    assert!(reader.join().unwrap().starts_with(b"PK"), "what was read is no .npz file");
}

#[test]
fn inputs_that_are_pipes() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let input = pipe(place.path(), "in.npz");
    fails(place.path(), &["run", text(&artifact), "--input", text(&input)], 1, &["in.npz", "regular file"]);
}

#[test]
fn artifacts_with_pipes_in_them() {
    let tokens = folder();
    let input = npz::token_file(tokens.path(), 1, 4);
    for file in ["program.json", "report.json", "plan.json", "kernels.x86.so"] {
        let place = folder();
        let copy = models::copied(&models::artifact("llama", &["--tp", "2"]), place.path());
        std::fs::remove_file(copy.join(file)).unwrap();
        pipe(&copy, file);
        fails(place.path(), &["run", text(&copy), "--input", text(&input)], 1, &[file, "regular file"]);
        if file == "report.json" {
            fails(place.path(), &["inspect", text(&copy)], 1, &[file, "regular file"]);
        }
    }
}

#[test]
fn plans_without_an_end() {
    let place = folder();
    let args = ["compile", &example("mlp.json"), "--plan", "/dev/zero", "-o", "out.pcc"];
    fails(place.path(), &args, 1, &["plan"]);
}

#[test]
fn numbers_of_workers_and_steps() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let input = npz::token_file(place.path(), 1, 4);
    let run = ["run", text(&artifact), "--input", text(&input)];
    for workers in ["1000000", "18446744073709551615"] {
        fails(place.path(), &[&run[..], &["--workers", workers]].concat(), 2, &[workers, "the most is"]);
    }
    fails(place.path(), &[&run[..], &["--steps", "0"]].concat(), 2, &["--steps 0"]);
}

#[test]
fn lengths_of_another_shape() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let path = place.path().join("lengths.npz");
    npz::write_i32(&path, &[("tokens", &[1, 4], vec![1, 2, 3, 4]), ("lengths", &[1, 1], vec![2])]);
    fails(place.path(), &["run", text(&artifact), "--input", text(&path)], 1, &["`lengths`", "[1, 1]"]);
}

/// An output that cannot be written is refused before the work, not after it: nothing is on stdout yet.
#[test]
fn traces_and_outputs_that_cannot_be_written() {
    let place = folder();
    let artifact = models::artifact("llama", &["--tp", "2"]);
    let input = npz::token_file(place.path(), 1, 4);
    let run = ["run", text(&artifact), "--input", text(&input)];
    for (output, trace, code, words) in [
        ("out.npz", "no/t.json", 1, ["folder does not exist", "give another --trace"]),
        ("no/out.npz", "t.json", 1, ["folder does not exist", "give another --output"]),
        ("out.npz", ".", 1, ["in the place of the output", "--trace"]),
        (".", "t.json", 1, ["in the place of the output", "--output"]),
        ("out.npz", "/dev/full", 4, ["/dev/full", ""]),
        ("/dev/full", "/dev/null", 4, ["/dev/full", ""]),
    ] {
        let args = [&run[..], &["--output", output, "--trace", trace]].concat();
        fails(place.path(), &args, code, &words);
    }
}
