//! How fast: products, attention, decoding and prefill of a Llama 3 8B, each against its limit or PyTorch in the same run.

use super::kernels::{attention_call, attention_operands, large, product_kernel};
use super::models::{pcc, write_i32};
use super::{Line, Noise, Place, bytes, ptx};
use pcc_ir::Diagnostic;
use pcc_ir::gpu::LibraryKernel;
use pcc_ir::gpu::attention::AttentionKernel;
use pcc_ir::gpu::gemm::GemmKernel;
use pcc_runtime::{DenseProduct, Probe};
use serde_json::Value;
use std::process::Command;

const SIDE: u64 = 4096;
/// b, s, t, g, r, d: a layer of Llama 3 8B on 4 sequences of 2048 tokens.
const ATTENTION: [u64; 6] = [4, 2048, 2048, 8, 4, 128];
const REPEATS: u32 = 20;
/// Artifacts of the large model, without the architecture.
const DECODE: &str = "decode";
const PREFILL: &str = "prefill";
/// The sizes of meta-llama/Meta-Llama-3-8B.
const LLAMA_3_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": false}"#;
/// Its parameters without the embedding, of which a step reads single rows.
const READ: f64 = 8_030_261_248.0 - 128_256.0 * 4096.0;

/// The code of all that is measured.
pub fn prepare(place: &Place) -> Result<String, Diagnostic> {
    if place.is_simulated() {
        return Ok(String::new());
    }
    for (name, sizes) in
        [(DECODE, ["--batch", "1", "--seq", "512"]), (PREFILL, ["--batch", "4", "--seq", "2048"])]
    {
        compile(place, name, &sizes)?;
    }
    let product = product_kernel(SIDE, large(place.arch));
    let attention = AttentionKernel::of(&attention_call(ATTENTION));
    let library = [LibraryKernel::Gemm(product), LibraryKernel::Attention(attention)];
    ptx(place, "measured", &library)
}

/// What the simulator or a missing PyTorch leaves unmeasured is said so, never guessed.
pub fn all(place: &Place, show: &mut dyn FnMut(Line)) -> Result<(), Diagnostic> {
    let limits = [
        ("our product 4096^3 bf16", "0.6 of cuBLAS"),
        ("cuBLASLt's product through pcc 4096^3 bf16", "0.97 of cuBLAS"),
        ("our attention, 4 x 2048, 32 heads of 128, 8 kv", "0.7 of PyTorch's"),
        ("Llama 3 8B decode, batch 1", "0.8 of reading the weights"),
        ("Llama 3 8B prefill 4 x 2048", "0.6 of the product's rate"),
    ];
    if place.is_simulated() {
        limits
            .iter()
            .for_each(|(what, limit)| show(Line::not_measured(*what, "not measured: simulated", *limit)));
        return Ok(());
    }
    let torch = torch(place);
    let mut probe = Probe::open(&place.gpus, place.arch, &prepare(place)?)?;
    let rate = products(&mut probe, product_kernel(SIDE, large(place.arch)), &torch, limits, show)?;
    attentions(&mut probe, &torch, limits[2], show)?;
    let bandwidth = bandwidth(&mut probe)?;
    drop(probe);
    decode(place, bandwidth, limits[3], show)?;
    prefill(place, rate, limits[4], show)
}

/// Seconds that PyTorch takes, by name.
fn torch(place: &Place) -> Result<Value, String> {
    let script = include_str!("torch_times.py");
    let output = Command::new(&place.python).args(["-c", script]).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(stderr.lines().last().unwrap_or("it failed").to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}

/// A figure held against PyTorch's of the same name.
fn beside(
    (what, limit): (&str, &str),
    (seconds, flops): (f64, f64),
    torch: &Result<Value, String>,
    name: &str,
    least: f64,
) -> Line {
    let own = format!("{:.0} TFLOP/s", flops / seconds / 1e12);
    match torch.as_ref().map(|t| t[name].as_f64()) {
        Ok(Some(theirs)) => {
            let ratio = theirs / seconds;
            Line::new(what, format!("{own}, {ratio:.2} of PyTorch's"), limit, ratio >= least)
        }
        Ok(None) => Line::not_measured(what, format!("{own}; PyTorch did not say"), limit),
        Err(why) => Line::not_measured(what, format!("{own}; no PyTorch: {why}"), limit),
    }
}

/// Products of both kinds; the better rate, in operations a second.
fn products(
    probe: &mut Probe,
    kernel: GemmKernel,
    torch: &Result<Value, String>,
    limits: [(&str, &str); 5],
    show: &mut dyn FnMut(Line),
) -> Result<f64, Diagnostic> {
    let count = (SIDE * SIDE) as usize;
    let mut noise = Noise::new(1);
    let [a, b, c] =
        [noise.bf16(count), noise.bf16(count), noise.bf16(count)].map(|x| probe.upload(&bytes(&x)));
    let p = DenseProduct { kernel, m: SIDE, n: SIDE, k: SIDE, a: a?, b: b?, c: c? };
    let flops = 2.0 * (SIDE as f64).powi(3);
    let own = probe.time_product(&p, REPEATS)?;
    show(beside(limits[0], (own, flops), torch, "product", 0.6));
    let library = probe.time_library_product(&p, REPEATS)?;
    match library {
        Some(seconds) => show(beside(limits[1], (seconds, flops), torch, "product", 0.97)),
        None => show(Line::not_measured(limits[1].0, "cuBLASLt is not there", limits[1].1)),
    }
    probe.clear();
    Ok(flops / own.min(library.unwrap_or(own)))
}

fn attentions(
    probe: &mut Probe,
    torch: &Result<Value, String>,
    limit: (&str, &str),
    show: &mut dyn FnMut(Line),
) -> Result<(), Diagnostic> {
    let call = attention_call(ATTENTION);
    let operands = attention_operands(probe, &call)?;
    let [b, s, t, g, r, d] = ATTENTION;
    let kernel = AttentionKernel::of(&call);
    let shape = kernel.shape(b, s, g, r);
    let seconds = probe.time(&LibraryKernel::Attention(kernel), &shape, &operands.params, REPEATS)?;
    // Two products over half the pairs.
    let flops = 2.0 * 2.0 * (b * g * r * s * t * d) as f64 / 2.0;
    show(beside(limit, (seconds, flops), torch, "attention", 0.7));
    probe.clear();
    Ok(())
}

/// Bytes a second, read and written together, of a large copy.
fn bandwidth(probe: &mut Probe) -> Result<f64, Diagnostic> {
    let bytes = 1 << 30;
    let zeros = vec![0; bytes];
    let (from, to) = (probe.upload(&zeros)?, probe.upload(&zeros)?);
    let seconds = probe.time_copy(to, from, bytes as u64, REPEATS)?;
    probe.clear();
    Ok(2.0 * bytes as f64 / seconds)
}

/// Seconds of the fastest run of an entry.
fn fastest(place: &Place, artifact: &str, entry: &str, steps: &str) -> Result<f64, Diagnostic> {
    let run = ["run", artifact, "--entry", entry, "--input", "in.npz", "--steps", steps, "--json"];
    let text = pcc(place, &[&run[..], &place.device()].concat())?;
    let told: Value = serde_json::from_str(&text)
        .map_err(|e| Diagnostic::run("pcc run gave no JSON").why(e.to_string()))?;
    let seconds = told["seconds"]["steps"].as_array().into_iter().flatten().filter_map(Value::as_f64);
    Ok(seconds.fold(f64::INFINITY, f64::min))
}

fn artifact(place: &Place, name: &str) -> String {
    format!("llama-3-8b-{name}-{}.pcc", place.arch.name())
}

fn compile(place: &Place, name: &str, sizes: &[&str]) -> Result<(), Diagnostic> {
    let artifact = artifact(place, name);
    if place.work.join(&artifact).is_dir() {
        return Ok(());
    }
    std::fs::write(place.work.join("llama-3-8b.json"), LLAMA_3_8B)
        .map_err(|e| Diagnostic::run("the model cannot be written").why(e.to_string()))?;
    let args = ["compile", "llama-3-8b.json", "--target", place.arch.name(), "-o", &artifact];
    pcc(place, &[&args[..], sizes].concat()).map(|_| ())
}

fn decode(
    place: &Place,
    bandwidth: f64,
    (what, limit): (&str, &str),
    show: &mut dyn FnMut(Line),
) -> Result<(), Diagnostic> {
    let inputs = [("tokens", vec![1, 1], vec![17]), ("positions", vec![1], vec![256])];
    write_i32(&place.work.join("in.npz"), &inputs)?;
    let seconds = fastest(place, &artifact(place, DECODE), "decode", "50")?;
    let ratio = READ * 2.0 / bandwidth / seconds;
    let figure = format!("{:.1} tokens/s, {ratio:.2} at {:.2} TB/s", 1.0 / seconds, bandwidth / 1e12);
    show(Line::new(what, figure, limit, ratio >= 0.8));
    Ok(())
}

fn prefill(
    place: &Place,
    rate: f64,
    (what, limit): (&str, &str),
    show: &mut dyn FnMut(Line),
) -> Result<(), Diagnostic> {
    let tokens: Vec<i32> = (0..4 * 2048).map(|i| i * 7919 % 128_000).collect();
    write_i32(
        &place.work.join("in.npz"),
        &[("tokens", vec![4, 2048], tokens), ("lengths", vec![4], vec![2048; 4])],
    )?;
    let seconds = fastest(place, &artifact(place, PREFILL), "prefill", "4")?;
    // The head runs over one position a row.
    let head = 128_256.0 * 4096.0;
    let products = 2.0 * (READ - head) * 4.0 * 2048.0 + 2.0 * head * 4.0;
    let attention = 32.0 * 2.0 * 2.0 * 4.0 * 32.0 * 2048.0 * 2048.0 * 128.0 / 2.0;
    let ratio = (products + attention) / rate / seconds;
    let figure = format!("{:.0} ms, {ratio:.2} at {:.0} TFLOP/s", seconds * 1e3, rate / 1e12);
    show(Line::new(what, figure, limit, ratio >= 0.6));
    Ok(())
}
