//! Programs that draw tokens themselves: the tokens of `--sampler device` are those of `--sampler host`.

use super::{fails, folder, json, models, npz, pcc, succeeds};
use serde_json::Value;
use std::path::Path;

/// Prompts of 2, 7 and 1 tokens.
const PROMPTS: [&str; 3] = ["w3 w14", "w15 w92 w65 w35 w89 w79 w32", "w38"];

/// Ways to draw.
const SAMPLINGS: [&[&str]; 5] = [
    &[],
    &["--temperature", "1.5", "--seed", "7"],
    &["--temperature", "1.2", "--top-p", "0.7", "--seed", "18446744073709551615"],
    &["--temperature", "2", "--top-k", "5", "--seed", "1"],
    &["--temperature", "3", "--top-k", "40", "--top-p", "0.9", "--seed", "2"],
];

/// The tokens of every row.
fn tokens(place: &Path, artifact: &Path, tokenizer: &str, sampling: &[&str]) -> Vec<Vec<u64>> {
    let mut args = vec!["generate", artifact.to_str().unwrap(), "--tokenizer", tokenizer, "--json"];
    args.extend(["--max-tokens", "9"]);
    args.extend(sampling);
    PROMPTS.iter().for_each(|p| args.extend(["--prompt", p]));
    let made = json(place, &args);
    let row = |row: &Value| row["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    made["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn devices_draw_what_the_host_draws() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let mut all = Vec::new();
    for (model, mesh) in [
        ("llama", &["--tp", "2"][..]),
        ("llama", &["--pp", "2"]),
        ("llama", &["--dp", "2"]),
        ("llama", &["--tp", "3", "--pp", "2", "--dp", "2", "--micro-batches", "2"]),
        ("gpt2", &["--tp", "4", "--sp"]),
        ("llama", &["--tp", "2", "--dtype", "bf16"]),
    ] {
        let common = [&["--seq", "32", "--batch", "5"], mesh].concat();
        let of = |sampler| models::artifact(model, &[&common[..], &["--sampler", sampler]].concat());
        let (host, device) = (of("host"), of("device"));
        let mut seen = Vec::new();
        for sampling in SAMPLINGS {
            let [here, there] = [&host, &device].map(|a| tokens(place.path(), a, &tokenizer, sampling));
            assert_eq!(here, there, "{model} on {mesh:?}, {sampling:?}");
            assert!(here.len() == 3 && here.iter().all(|row| row.len() == 9));
            seen.push(here);
        }
        // Not because they are all alike.
        seen.dedup();
        assert_eq!(seen.len(), SAMPLINGS.len(), "{model} on {mesh:?}");
        if model == "llama" && !mesh.contains(&"bf16") {
            all.push(seen);
        }
    }
    all.dedup();
    assert_eq!(all.len(), 1, "the mesh decides nothing");
}

/// One of the likeliest `k` is drawn, whatever the draw.
#[test]
fn few_tokens_are_drawn_from() {
    let place = folder();
    let tokenizer = models::tokenizer(place.path());
    let artifact =
        models::artifact("llama", &["--seq", "32", "--batch", "5", "--tp", "2", "--sampler", "device"]);
    let greedy = tokens(place.path(), &artifact, &tokenizer, &[]);
    let one = ["--temperature", "5", "--top-k", "1", "--seed", "3"];
    assert_eq!(tokens(place.path(), &artifact, &tokenizer, &one), greedy);
    let first = |seed: usize| {
        let seed = seed.to_string();
        let args = ["--temperature", "100", "--top-k", "3", "--seed", &seed];
        tokens(place.path(), &artifact, &tokenizer, &args).iter().map(|row| row[0]).collect::<Vec<_>>()
    };
    let drawn: Vec<Vec<u64>> = (0..24).map(first).collect();
    for row in 0..PROMPTS.len() {
        let mut found: Vec<u64> = drawn.iter().map(|d| d[row]).collect();
        found.sort_unstable();
        found.dedup();
        // Nearly equally likely: all three in 24 draws, but for once in 5000.
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.contains(&greedy[row][0]), "{found:?}");
    }
}

#[test]
fn what_draws_is_checked_by_numbers() {
    let place = folder();
    for args in [
        &["--tp", "2", "--pp", "2"][..],
        &["--tp", "2", "--dp", "2", "--dtype", "bf16"],
        &["--tp", "3", "--micro-batches", "2"],
    ] {
        let args = [&["--seq", "24", "--batch", "6", "--sampler", "device"], args].concat();
        let artifact = models::artifact("llama", &args);
        let report = json(place.path(), &["verify", artifact.to_str().unwrap(), "--numeric", "--json"]);
        let outputs = report["numeric"]["outputs"].as_array().unwrap();
        let names: Vec<_> = outputs.iter().map(|o| o["output"].as_str().unwrap()).collect();
        assert_eq!(names, ["logits", "token", "token"], "{args:?}");
        for o in &outputs[1..] {
            assert_eq!(o["max_abs_diff"], 0.0, "{o}");
            // Six rows, then three; twice for decode.
            assert_eq!(o["elements"], if o["entry"] == "decode" { 18 } else { 9 }, "{o}");
            assert!(o["near_ties"].as_u64().unwrap_or(0) <= 2, "{o}");
        }
    }
}

#[test]
fn a_drawing_entry_is_run() {
    let place = folder();
    let args = ["--seq", "24", "--batch", "3", "--tp", "2"];
    let of = |sampler: &str| models::artifact("llama", &[&args[..], &["--sampler", sampler]].concat());
    let ids = npz::tokens(3, 5);
    let shared = [("tokens", &[3, 5][..], ids), ("lengths", &[3][..], vec![5, 2, 4])];
    npz::write_i32(&place.path().join("host.npz"), &shared);
    let run = |sampler: &str, input: &str, output: &str| {
        let artifact = of(sampler);
        let args =
            ["run", artifact.to_str().unwrap(), "--entry", "prefill", "--input", input, "--output", output];
        succeeds(place.path(), &args)
    };
    run("host", "host.npz", "logits.npz");
    let (_, logits) = npz::read_f32(&place.path().join("logits.npz"), "logits");
    let best = |row: &[f32]| (0..101).fold(0, |b, j| if row[j] > row[b] { j } else { b }) as i32;
    // Where nothing says how to draw, the likeliest.
    run("device", "host.npz", "likeliest.npz");
    let (_, likeliest) = npz::read_i32(&place.path().join("likeliest.npz"), "token");
    assert!(logits.chunks(101).map(best).eq(likeliest));
    let key = ("key", &[3, 4][..], vec![0, 1, 2, 0, 1, 5, 6, 7, 0, 0, 0, 0]);
    let [a, b] = shared;
    npz::write_mixed(
        &place.path().join("device.npz"),
        &[a, b, key],
        &[("settings", &[3, 2], vec![0.0, 1.0, 9.0, 1.0, -1.0, 0.1])],
    );
    run("device", "device.npz", "token.npz");
    let (shape, token) = npz::read_i32(&place.path().join("token.npz"), "token");
    assert_eq!(shape, [3]);
    // Greedy, the likeliest of one, greedy.
    for (row, token) in logits.chunks(101).zip(token) {
        assert_eq!(best(row), token);
    }
}

#[test]
fn what_cannot_draw_is_said() {
    let place = folder();
    let bert = models::write(place.path(), "bert", &models::bert());
    let device = ["compile", &bert, "-o", "bert.pcc", "--sampler", "device"];
    fails(place.path(), &device, 2, &["no tokens to draw", "logits", "--sampler"]);
    let other = ["compile", &bert, "-o", "bert.pcc", "--sampler", "gpu"];
    fails(place.path(), &other, 2, &["--sampler", "host", "device"]);
    succeeds(place.path(), &["compile", &bert, "-o", "bert.pcc", "--sampler", "host", "--seq", "16"]);
    let help = pcc(place.path(), &["generate", "--help"]).stdout;
    assert!(help.contains("--top-k") && help.contains("before top-p counts"), "{help}");
    let artifact = models::artifact("llama", &["--seq", "32", "--batch", "4"]);
    let tokenizer = models::tokenizer(place.path());
    let common = ["generate", artifact.to_str().unwrap(), "--tokenizer", &tokenizer, "--prompt", "w1"];
    for bad in ["--top-k=-1", "--top-k=many", "--top-k=4294967296", "--top-k=1.5"] {
        fails(place.path(), &[&common[..], &[bad]].concat(), 2, &["--top-k"]);
    }
}

/// Tokens in another order are the same bytes: the proof or the run refuses them.
#[test]
fn tokens_in_another_order_are_caught() {
    let place = folder();
    let args = ["--seq", "24", "--batch", "6", "--tp", "2", "--sampler", "device"];
    let copy = models::copied(&models::artifact("llama", &args), place.path());
    let path = copy.join("program.json");
    let whole: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut wrong = 0;
    for (f, func) in whole["funcs"].as_array().unwrap().iter().enumerate() {
        for (i, instr) in func["instrs"].as_array().unwrap().iter().enumerate() {
            if instr["kind"].get("sample").is_none() {
                continue;
            }
            for (operand, n) in [("logits", 101), ("key", 4)] {
                let mut broken = whole.clone();
                let view = &mut broken["funcs"][f]["instrs"][i]["kind"]["sample"][operand];
                let step = view["strides"][1].as_i64().unwrap();
                let offset = view["loc"]["offset"].as_i64().unwrap();
                view["strides"][1] = (-step).into();
                view["loc"]["offset"] = (offset + (n - 1) * step * 4).into();
                std::fs::write(&path, broken.to_string()).unwrap();
                models::sign(&copy);
                fails(place.path(), &["verify", "copy.pcc", "--numeric"], 3, &[]);
                wrong += 1;
            }
        }
    }
    assert_eq!(wrong, 4);
}
