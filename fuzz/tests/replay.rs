//! Every target on its seeds and on some changes of each: what continuous integration runs of fuzzing, without libFuzzer.
//!
//! `FUZZ_MUTATIONS=n cargo test -p pcc-fuzz` tries n changes of each seed; a failure names its seed and change.

use pcc_fuzz::{Target, mutate::mutate, seeds::seeds};
use std::time::{Duration, Instant};

/// An input that takes longer hangs, for all that a user can see.
const LONGEST: Duration = Duration::from_secs(20);

/// Runs a target on its seeds, and on `changes` mutations in all, dealt evenly to the seeds.
fn replay(name: &str, changes: usize) {
    let target = Target::find(name).expect("a target of this name");
    let seeds = seeds(target).expect("seeds");
    std::panic::set_hook(Box::new(|_| {}));
    assert!(!seeds.is_empty(), "{name} has no seeds");
    let asked = std::env::var("FUZZ_MUTATIONS").ok().and_then(|n| n.parse().ok());
    let each = asked.unwrap_or(changes / seeds.len());
    let mut failures = Vec::new();
    for (i, (seed, bytes)) in seeds.iter().enumerate() {
        let mut run = |what: String, input: &[u8]| {
            let start = Instant::now();
            if let Err(why) = target.run(input) {
                failures.push(format!("{seed}, {what}: {why}"));
            }
            if start.elapsed() > LONGEST {
                failures.push(format!("{seed}, {what}: took {:?}", start.elapsed()));
            }
        };
        run("unchanged".into(), bytes);
        for change in 0..each {
            let number = ((i as u64) << 32) + change as u64;
            run(format!("change {number}"), &mutate(target.form, bytes, number));
        }
    }
    // The hook that would print the assertion's text is silent.
    failures.iter().for_each(|f| println!("{f}"));
    assert!(failures.is_empty());
}

#[test]
fn model_json() {
    replay("model_json", 1000);
}

#[test]
fn config_json() {
    replay("config_json", 300);
}

#[test]
fn pcir() {
    replay("pcir", 600);
}

#[test]
fn pipeline() {
    replay("pipeline", 60);
}

#[test]
fn gguf() {
    replay("gguf", 1000);
}

#[test]
fn safetensors() {
    replay("safetensors", 2000);
}

#[test]
fn artifact() {
    replay("artifact", 150);
}

#[test]
fn tokenizer() {
    replay("tokenizer", 1000);
}

#[test]
fn npz() {
    replay("npz", 1000);
}
