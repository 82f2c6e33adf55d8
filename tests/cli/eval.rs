//! `pcc eval`: perplexities of texts whose logits NumPy worked out (frontend/tests/data/make_reference.py).

use super::{data, fails, folder, json, models, succeeds};
use serde_json::Value;
use std::path::Path;

/// A text of tokens: the tokenizer of `models` calls token 7 `w7`.
fn text(tokens: &[usize]) -> String {
    tokens.iter().map(|t| format!("w{t} ")).collect()
}

/// Tokens and logits `[row][position][word]` of a tiny model.
fn reference(model: &str) -> (Vec<Vec<usize>>, Vec<Vec<Vec<f64>>>) {
    let file = std::fs::read_to_string(data(model).join("expected.json")).expect("the reference is there");
    let file: Value = serde_json::from_str(&file).expect("JSON");
    let take = |key: &str| file[key].clone();
    (
        serde_json::from_value(take("tokens")).expect("rows of tokens"),
        serde_json::from_value(take("logits")).expect("rows of logits"),
    )
}

/// Negative log likelihoods of a row's tokens but the first.
fn nlls(tokens: &[usize], logits: &[Vec<f64>]) -> Vec<f64> {
    let one = |i: usize| logits[i - 1].iter().map(|x| x.exp()).sum::<f64>().ln() - logits[i - 1][tokens[i]];
    (1..tokens.len()).map(one).collect()
}

fn close(got: &Value, want: f64) {
    let got = got.as_f64().expect("a number");
    assert!((got - want).abs() <= 1e-4 * want.abs(), "{got}, not {want}");
}

/// Compiles a tiny model into the folder.
fn compile(place: &Path, model: &str, mesh: &[&str]) {
    let path = data(model);
    let args = ["compile", path.to_str().expect("UTF-8"), "-o", "m.pcc", "--seq", "7"];
    succeeds(place, &[&args[..], mesh].concat());
}

#[test]
fn perplexity_is_that_of_numpys_logits_on_every_mesh() {
    let place = folder();
    let tokenizer = models::tokenizer_of(place.path(), 19);
    for model in ["tiny-llama", "tiny-gpt2"] {
        let (tokens, logits) = reference(model);
        std::fs::write(place.path().join("text"), text(&tokens.concat())).unwrap();
        let all: Vec<f64> = tokens.iter().zip(&logits).flat_map(|(t, l)| nlls(t, l)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        for mesh in [&["--batch", "2"][..], &["--tp", "3", "--batch", "3"], &["--pp", "2", "--batch", "2"]] {
            compile(place.path(), model, mesh);
            let args = ["eval", "m.pcc", "--data", "text", "--tokenizer", &tokenizer, "--json"];
            let got = json(place.path(), &args);
            close(&got["nll"], mean);
            close(&got["perplexity"], mean.exp());
            for (key, count) in
                [("tokens", 14), ("predicted", 12), ("windows", 2), ("window", 7), ("stride", 7)]
            {
                assert_eq!(got[key], count, "{key}");
            }
            assert!(got["tokens_per_second"].as_f64().unwrap() > 0.0);
            let one = json(place.path(), &[&args[..], &["--workers", "1"]].concat());
            assert_eq!(one["nll"], got["nll"]);
        }
    }
}

/// A window of the whole row counts its last two tokens only, when it begins two after the one before.
#[test]
fn with_a_stride_what_windows_share_is_context() {
    let place = folder();
    let tokenizer = models::tokenizer_of(place.path(), 19);
    let (tokens, logits) = reference("tiny-llama");
    compile(place.path(), "tiny-llama", &["--batch", "2"]);
    // The first row alone, whose windows begin at 0 and end with the row.
    std::fs::write(place.path().join("text"), text(&tokens[0])).unwrap();
    let row = nlls(&tokens[0], &logits[0]);
    let args = ["eval", "m.pcc", "--data", "text", "--tokenizer", &tokenizer, "--json", "--stride"];
    let got = json(place.path(), &[&args[..], &["2"]].concat());
    close(&got["nll"], row.iter().sum::<f64>() / 6.0);
    // The second row preceded by two tokens: its window counts what the one before has not, the row's last two tokens.
    let two = [&[1, 2], &tokens[1][..]].concat();
    std::fs::write(place.path().join("text"), text(&two)).unwrap();
    let got = json(place.path(), &[&args[..], &["2"]].concat());
    assert_eq!((&got["windows"], &got["predicted"]), (&2.into(), &8.into()));
    std::fs::write(place.path().join("text"), text(&two[..7])).unwrap();
    let first = json(place.path(), &args[..7]);
    let last: f64 = nlls(&tokens[1], &logits[1])[4..].iter().sum();
    close(&got["nll"], (first["nll"].as_f64().unwrap() * 6.0 + last) / 8.0);
}

#[test]
fn what_cannot_be_evaluated() {
    let place = folder();
    let tokenizer = models::tokenizer_of(place.path(), 19);
    compile(place.path(), "tiny-llama", &[]);
    let write = |name: &str, bytes: &[u8]| std::fs::write(place.path().join(name), bytes).unwrap();
    write("text", b"w1 w2 w3");
    write("short", b"w1");
    write("bytes", b"w1 \xff");
    let with = |args: &[&str], code: i32, words: &[&str]| {
        fails(place.path(), &[&["eval", "m.pcc", "--tokenizer", &tokenizer], args].concat(), code, words);
    };
    with(&[], 2, &["--data"]);
    with(&["--data", "absent"], 1, &["absent"]);
    with(&["--data", "short"], 1, &["short", "1 token"]);
    with(&["--data", "bytes"], 1, &["bytes", "UTF-8", "byte 3"]);
    with(&["--data", "text", "--stride", "0"], 2, &["1 to 7"]);
    with(&["--data", "text", "--stride", "8"], 2, &["1 to 7"]);
    fails(place.path(), &["eval", "m.pcc", "--data", "text"], 1, &["--tokenizer"]);
    let other = models::tokenizer_of(place.path(), 20);
    fails(
        place.path(),
        &["eval", "m.pcc", "--data", "text", "--tokenizer", &other],
        1,
        &["another model", "20", "19"],
    );
    let bert = models::artifact("bert", &["--seq", "16", "--batch", "5"]);
    fails(place.path(), &["eval", bert.to_str().unwrap(), "--data", "text"], 1, &["predict"]);
}
