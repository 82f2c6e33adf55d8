//! The whole `pcc compile` command for llama-2-70b from shapes alone: kernels cached, cold, ten times as deep; beside JAX.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::table::Table;
use super::{Bench, number};
use crate::step::Call;

const ROUNDS: usize = 5;
const FLAGS: [&str; 8] = ["--tp", "8", "--pp", "4", "--batch", "1", "--seq", "2048"];

/// Llama 2 70B (Touvron et al., 2023), with another number of layers.
fn llama_70b(layers: u32) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 8192,
        "intermediate_size": 28672, "max_position_embeddings": 4096, "num_attention_heads": 64,
        "num_hidden_layers": layers, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "vocab_size": 32000,
    })
}

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let models =
        [bench.config("llama-70b-80", &llama_70b(80))?, bench.config("llama-70b-800", &llama_70b(800))?];
    let (warm, cold) = (bench.folder.join("kernels-warm"), bench.folder.join("kernels-cold"));
    let compile = |model: &Path, kernels: &Path| -> Result<[f64; 2]> {
        let artifact = bench.folder.join("llama-70b.pcc");
        let command = bench.measured("compile").args([model]).args(FLAGS).args(["-o"]).args([&artifact]);
        let measured = super::json(command.env("PCC_CACHE", kernels))?;
        Ok([number(&measured, "seconds")?, number(&measured, "peak_bytes")?])
    };
    compile(&models[0], &warm)?;
    let mut seconds = [[f64::INFINITY; 2]; 2];
    let mut peak = [0f64; 2];
    for _ in 0..ROUNDS {
        for (model, seconds) in models.iter().zip(&mut seconds) {
            for (is_cold, best) in seconds.iter_mut().enumerate() {
                if is_cold == 1 && cold.exists() {
                    std::fs::remove_dir_all(&cold)
                        .with_context(|| format!("cannot empty {}", cold.display()))?;
                }
                let [wall, bytes] = compile(model, if is_cold == 1 { &cold } else { &warm })?;
                *best = best.min(wall);
                peak[is_cold] = peak[is_cold].max(bytes / 1e6);
            }
        }
    }
    for (is_cold, kernels) in ["cached", "cold"].into_iter().enumerate() {
        let goal = [0.25, 0.5][is_cold];
        let [shallow, deep] = [seconds[0][is_cold], seconds[1][is_cold]];
        let what = format!("llama-2-70b tp 8 pp 4 seq 2048, kernels {kernels}");
        table.against("compile", what, shallow, "s", ("goal", goal), "<= 1");
        let what = format!("the same with 800 layers, kernels {kernels}");
        table.against("compile", what, deep, "s", ("80 layers", shallow), "<= 1.2");
        table.against(
            "compile",
            format!("peak, kernels {kernels}"),
            peak[is_cold],
            "MB",
            ("goal", 250.0),
            "<= 1",
        );
    }
    let Some(jax) = bench.peers.as_ref().and_then(|p| p.jax.as_ref()) else { return Ok(()) };
    let peer = |scan: bool| -> Result<f64> {
        let command: Call = bench.python(jax, "jax_llama.py").args(scan.then_some("--scan"));
        number(&super::json(command)?, "seconds")
    };
    let scan = peer(true)?.min(peer(true)?);
    let unrolled = peer(false)?;
    table.faster("compile", "cached, against JAX", seconds[0][0], "s", ("JAX unrolled", unrolled), ">= 15");
    table.faster("compile", "cold, against JAX", seconds[0][1], "s", ("JAX unrolled", unrolled), ">= 15");
    table.faster("compile", "cold, against JAX", seconds[0][1], "s", ("JAX scan", scan), ">= 1");
    Ok(())
}
