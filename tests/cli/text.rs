//! `pcc generate`.

use super::{fails, folder, json, models, succeeds};
use serde_json::Value;

/// Prompts of 2, 7, 1 and 4 tokens.
const PROMPTS: [&str; 4] = ["w3 w14", "w15 w92 w65 w35 w89 w79 w32", "w38", "w46 w26 w43 w38"];

fn tokens(row: &Value) -> Vec<u64> {
    row["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect()
}

#[test]
fn a_batch_equals_its_rows_alone() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let artifact =
        models::artifact("llama", &["--seq", "32", "--batch", "4", "--tp", "3", "--pp", "2", "--dp", "2"]);
    let artifact = artifact.to_str().unwrap();
    let common = ["generate", artifact, "--tokenizer", &tokenizer, "--max-tokens", "12", "--json"];
    let mut args = common.to_vec();
    PROMPTS.iter().for_each(|p| args.extend(["--prompt", p]));
    let batch = json(place.path(), &args);
    let rows = batch["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for (row, prompt) in rows.iter().zip(PROMPTS) {
        let one = json(place.path(), &[&common[..], &["--prompt", prompt]].concat());
        assert_eq!(one["prompt_tokens"].as_array().unwrap().len(), prompt.split(' ').count());
        assert_eq!(tokens(row), tokens(&one), "{prompt}");
        assert_eq!((tokens(&one).len(), &one["ended"]), (12, &"max_tokens".into()));
        assert!(one["seconds"]["prefill"].as_f64().unwrap() > 0.0 && one["seconds"]["decode"].is_number());
        // Streamed text is the text of the object.
        let streamed = succeeds(place.path(), &[&common[..6], &["--prompt", prompt]].concat());
        assert_eq!(streamed.trim(), one["text"].as_str().unwrap().trim());
    }
}

/// A prompt of two tokens leaves room for six of eight positions: with the one after the last, seven are made.
#[test]
fn what_ended_a_text_is_said() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let artifact = models::artifact("llama", &["--seq", "8", "--batch", "1"]);
    let common =
        ["generate", artifact.to_str().unwrap(), "--tokenizer", &tokenizer, "--prompt", "w1 w2", "--json"];
    let ended = |more: &[&str]| {
        let made = json(place.path(), &[&common[..], more].concat());
        (tokens(&made), made["ended"].as_str().unwrap().to_owned())
    };
    let (all, why) = ended(&["--max-tokens", "100"]);
    assert_eq!((all.len(), why.as_str()), (7, "capacity"));
    assert_eq!(ended(&["--max-tokens", "7"]), (all.clone(), "max_tokens".to_owned()));
    // A text that the third token begins.
    let text = json(place.path(), &[&common[..], &["--max-tokens", "3"]].concat());
    let stop = text["text"].as_str().unwrap().trim().split(' ').nth(2).unwrap().to_owned();
    let (few, why) = ended(&["--stop", &stop]);
    assert!(few.len() <= 3 && why == "stop_text", "{few:?} {why}");
}

/// Greedy text is the arg-max of `forward`, token by token, and the same on every mesh: cache, prefill and decode agree with it.
#[test]
fn generation_follows_forward() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    for model in ["llama", "gpt2"] {
        let mut seen = Vec::new();
        for mesh in [&[][..], &["--tp", "2", "--sp"], &["--tp", "4", "--pp", "3"]] {
            let artifact = models::artifact(model, &[&["--seq", "32", "--batch", "4"], mesh].concat());
            let args = [
                "generate",
                artifact.to_str().unwrap(),
                "--tokenizer",
                &tokenizer,
                "--max-tokens",
                "8",
                "--json",
            ];
            seen.push(tokens(&json(place.path(), &[&args[..], &["--prompt", PROMPTS[1]]].concat())));
        }
        assert!(seen.iter().all(|s| *s == seen[0]), "{model}: {seen:?}");
        let artifact = models::artifact(model, &["--seq", "32", "--batch", "4"]);
        let mut ids: Vec<i32> = PROMPTS[1].split(' ').map(|w| w[1..].parse().unwrap()).collect();
        let prompt = ids.len();
        ids.extend(seen[0].iter().map(|&t| t as i32));
        let input = place.path().join("in.npz");
        super::npz::write_i32(&input, &[("tokens", &[1, ids.len() as u64], ids.clone())]);
        succeeds(
            place.path(),
            &["run", artifact.to_str().unwrap(), "--input", input.to_str().unwrap(), "--output", "out.npz"],
        );
        let (_, logits) = super::npz::read_f32(&place.path().join("out.npz"), "logits");
        for (i, &token) in seen[0].iter().enumerate() {
            let row = &logits[(prompt + i - 1) * 101..][..101];
            let best = (0..101).fold(0, |b, j| if row[j] > row[b] { j } else { b });
            assert_eq!(best as u64, token, "{model}, token {i}");
        }
    }
}

#[test]
fn sampling_repeats_with_its_seed() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let artifact = models::artifact("llama", &["--seq", "32", "--batch", "4"]);
    let run = |seed: &str| {
        let args = [
            "generate",
            artifact.to_str().unwrap(),
            "--tokenizer",
            &tokenizer,
            "--json",
            "--max-tokens",
            "10",
            "--temperature",
            "1.5",
            "--top-p",
            "0.95",
            "--seed",
            seed,
            "--prompt",
            PROMPTS[0],
        ];
        tokens(&json(place.path(), &args))
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn what_cannot_be_generated() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let artifact = models::artifact("llama", &["--seq", "32", "--batch", "4"]);
    let artifact = artifact.to_str().unwrap();
    let with = |args: &[&str], code: i32, words: &[&str]| {
        fails(
            place.path(),
            &[&["generate", artifact, "--tokenizer", &tokenizer], args].concat(),
            code,
            words,
        );
    };
    with(&[], 2, &["--prompt"]);
    with(&["--prompt", "w1", "--max-tokens", "0"], 2, &["--max-tokens"]);
    with(&["--prompt", "w1", "--temperature=-1"], 2, &["--temperature"]);
    with(&["--prompt", "w1", "--top-p", "0"], 2, &["--top-p"]);
    with(&["--prompt", ""], 1, &[]);
    let long = "w1 ".repeat(33);
    with(&["--prompt", &long], 1, &["33", "32"]);
    let many = ["--prompt", "w1"].repeat(5);
    with(&many, 1, &["5", "4"]);
    fails(place.path(), &["generate", artifact, "--prompt", "w1"], 1, &["--tokenizer"]);
    fails(
        place.path(),
        &["generate", artifact, "--prompt", "w1", "--tokenizer", "absent.json"],
        1,
        &["absent.json"],
    );
    let bad = |path: &str, words: &[&str]| {
        fails(place.path(), &["generate", artifact, "--prompt", "w1", "--tokenizer", path], 1, words);
    };
    std::fs::write(place.path().join("other.json"), b"{").unwrap();
    bad("other.json", &["other.json", "tokenizer.json"]);
    std::fs::create_dir(place.path().join("bad")).unwrap();
    std::fs::write(place.path().join("bad/tokenizer.json"), b"{").unwrap();
    bad("bad/tokenizer.json", &["bad/tokenizer.json"]);
    bad("bad", &["bad/tokenizer.json"]);
    // What is wrong with the request is said before weights are looked for.
    let other = folder();
    let large = models::tokenizer_of(other.path(), 5000);
    bad(&large, &["another model", "5000", "101"]);
    let bert = models::artifact("bert", &["--seq", "16", "--batch", "5"]);
    fails(
        place.path(),
        &["generate", bert.to_str().unwrap(), "--prompt", "w1", "--tokenizer", &tokenizer],
        1,
        &["generate"],
    );
}
