//! Whole models on a GPU against the CPU target: all ranks of a plan share the one device.

use super::{Line, Place};
use npyz::WriterBuilder;
use npyz::npz::{NpzArchive, NpzWriter};
use pcc_ir::Diagnostic;
use std::path::Path;
use std::process::Command;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 320, "vocab_size": 501, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}"#;
const GPT2: &str = r#"{"model_type": "gpt2", "n_embd": 192, "n_layer": 3, "n_head": 6, "n_positions": 128, "n_ctx": 128,
    "vocab_size": 501, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}"#;
const BERT: &str = r#"{"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 192, "num_hidden_layers": 3,
    "num_attention_heads": 6, "intermediate_size": 320, "vocab_size": 501, "hidden_act": "gelu", "max_position_embeddings": 128,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}"#;

const MODELS: [(&str, &str, &str); 3] =
    [("llama", LLAMA, "logits"), ("gpt2", GPT2, "logits"), ("bert", BERT, "last_hidden_state")];

/// Largest difference relative to the largest value in f32, mean relative difference in bf16: what the target promises.
const LIMITS: [(&str, f64); 2] = [("f32", 2e-5), ("bf16", 1e-2)];

/// Compiles all models, and computes the CPU's results.
pub fn prepare(place: &Place) -> Result<(), Diagnostic> {
    let seq = length(place);
    write_tokens(&place.work.join("tokens.npz"), 2, seq)?;
    for (name, config, output) in MODELS {
        std::fs::write(place.work.join(format!("{name}.json")), config).map_err(broken)?;
        for (dtype, _) in LIMITS {
            values(place, name, "cpu", dtype, output)?;
            compiled(place, name, place.arch.name(), dtype)?;
        }
    }
    Ok(())
}

/// Tokens of a row.
fn length(place: &Place) -> usize {
    if place.is_simulated() { 12 } else { 96 }
}

pub fn check(place: &Place, show: &mut dyn FnMut(Line)) -> Result<(), Diagnostic> {
    prepare(place)?;
    let seq = length(place);
    for (name, _, output) in MODELS {
        for (dtype, limit) in LIMITS {
            let want = values(place, name, "cpu", dtype, output)?;
            let got = values(place, name, place.arch.name(), dtype, output)?;
            let (largest, mean) = distance(&got, &want);
            let off = if dtype == "f32" { largest } else { mean };
            let what = format!("{name} {dtype}, tp 4 x pp 2, 2 x {seq} tokens, against the CPU");
            show(Line::new(what, format!("off {off:.1e}"), format!("{limit:.0e}"), off <= limit));
        }
    }
    Ok(())
}

fn broken(e: std::io::Error) -> Diagnostic {
    Diagnostic::run("a file cannot be written or read").why(e.to_string())
}

/// The artifact of a model for a target, compiled if it is not there.
fn compiled(place: &Place, name: &str, target: &str, dtype: &str) -> Result<String, Diagnostic> {
    let (model, artifact) = (format!("{name}.json"), format!("{name}-{target}-{dtype}.pcc"));
    if place.work.join(&artifact).is_dir() {
        return Ok(artifact);
    }
    let seq = length(place).to_string();
    let mesh = ["--tp", "4", "--pp", "2", "--batch", "2", "--seq", &seq];
    let compile = ["compile", &model, "--target", target, "--dtype", dtype, "-o", &artifact];
    pcc(place, &[&compile[..], &mesh].concat())?;
    Ok(artifact)
}

/// The outputs of a model for a target; those of the CPU are computed once.
fn values(
    place: &Place,
    name: &str,
    target: &str,
    dtype: &str,
    output: &str,
) -> Result<Vec<f32>, Diagnostic> {
    let results = format!("{name}-{target}-{dtype}.npz");
    if target != "cpu" || !place.work.join(&results).is_file() {
        let artifact = compiled(place, name, target, dtype)?;
        let run = ["run", &artifact, "--entry", "forward", "--input", "tokens.npz", "--output", &results];
        let on_gpu = [&place.device()[..], &["--ranks-per-device", "8"]].concat();
        pcc(place, &[&run[..], if target == "cpu" { &[] } else { &on_gpu }].concat())?;
    }
    let mut npz = NpzArchive::open(place.work.join(&results)).map_err(broken)?;
    let array = npz.by_name(output).map_err(broken)?;
    let array = array.ok_or_else(|| Diagnostic::run(format!("{name} gave no {output}")))?;
    array.into_vec::<f32>().map_err(broken)
}

/// Runs `pcc`; its standard output.
pub fn pcc(place: &Place, args: &[&str]) -> Result<String, Diagnostic> {
    let program = place.programs.join("pcc");
    let output = Command::new(&program).args(args).current_dir(&place.work).output();
    let output = output.map_err(|e| Diagnostic::run("pcc cannot be started").why(e.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Diagnostic::run(format!("pcc {}: {}", args.join(" "), output.status))
        .why(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn write_tokens(path: &Path, rows: usize, seq: usize) -> Result<(), Diagnostic> {
    let tokens: Vec<i32> = (0..rows * seq).map(|i| (i * 7919 % 499) as i32).collect();
    write_i32(path, &[("tokens", vec![rows as u64, seq as u64], tokens)])
}

pub fn write_i32(path: &Path, arrays: &[(&str, Vec<u64>, Vec<i32>)]) -> Result<(), Diagnostic> {
    let mut npz = NpzWriter::create(path).map_err(broken)?;
    for (name, shape, data) in arrays {
        let writer = npz.array(name, Default::default()).map_err(broken)?;
        let mut array = writer.default_dtype().shape(shape).begin_nd().map_err(broken)?;
        array.extend(data).map_err(broken)?;
        array.finish().map_err(broken)?;
    }
    Ok(())
}

/// The largest difference relative to the largest value, and the mean one relative to the mean value; infinite for what is no number.
fn distance(got: &[f32], want: &[f32]) -> (f64, f64) {
    if got.len() != want.len() || got.iter().any(|x| !x.is_finite()) {
        return (f64::INFINITY, f64::INFINITY);
    }
    let differences = || got.iter().zip(want).map(|(a, b)| f64::from((a - b).abs()));
    let sizes = || want.iter().map(|b| f64::from(b.abs()));
    let relative = differences().fold(0.0, f64::max) / sizes().fold(f64::MIN_POSITIVE, f64::max);
    (relative, differences().sum::<f64>() / sizes().sum::<f64>().max(f64::MIN_POSITIVE))
}
