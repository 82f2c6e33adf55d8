//! GPT-2 124M: prefill of 512 tokens with all logits, and a decode step at context 512, beside JAX, PyTorch and the machine's limits.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::table::Table;
use super::{Bench, Best, least, limits, number};
use crate::step::Call;

const ROUNDS: usize = 3;
const STEPS: u32 = 7;
const SEQ: f64 = 512.0;

/// GPT-2 (Radford et al., 2019).
fn gpt2() -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024,
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-5, "vocab_size": 50257,
    })
}

/// Weights in products: 12 layers of 12 x 768^2, and the head, which is the embedding.
const PRODUCT_WEIGHTS: f64 = 12.0 * 12.0 * 768.0 * 768.0 + 50257.0 * 768.0;
/// Bytes of all weights in f32.
const WEIGHT_BYTES: f64 = 124_439_808.0 * 4.0;

/// Floating-point operations of the products of one prefill; attention's only where a query sees a key.
fn product_flops() -> f64 {
    let seen = SEQ * (SEQ + 1.0) / 2.0;
    2.0 * SEQ * PRODUCT_WEIGHTS + 12.0 * 2.0 * 2.0 * seen * 768.0
}

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let model = bench.config("gpt2-124m", &gpt2())?;
    let flags = |tp: &'static str, dtype: &'static str| ["--seq", "512", "--tp", tp, "--dtype", dtype];
    let tp1 = bench.compile(&model, "gpt2-tp1", &flags("1", "f32"))?;
    let tp8 = bench.compile(&model, "gpt2-tp8", &flags("8", "f32"))?;
    let bf16 = bench.compile(&model, "gpt2-bf16", &flags("1", "bf16"))?;
    let prompt = bench.input("gpt2-prefill", &["tokens:1x512:11,4042,7,1033,262,50256,398"])?;
    let token = bench.input("gpt2-decode", &["tokens:1x1:262", "positions:1:511"])?;
    let torch = bench.peers.as_ref().and_then(|p| p.torch.as_deref());
    let jax = bench.peers.as_ref().and_then(|p| p.jax.as_deref());
    let mut limits = limits::measure(bench)?;
    limits.raise(bench, &tp1, ("forward", &prompt, STEPS))?;
    limits.raise(bench, &tp1, ("decode", &token, 20 * STEPS))?;
    let steps = STEPS.to_string();
    let peer = |python: Option<&Path>, script: &str, flags: &[&str]| -> Result<f64> {
        let Some(python) = python else { return Ok(f64::INFINITY) };
        least(&super::json(bench.python(python, script).args(["--steps", &steps]).args(flags))?, "seconds")
    };
    let prefill = Best::<6>::of(ROUNDS, |who| match who {
        0 => bench.run_entry(&tp1, "forward", &prompt, STEPS),
        1 => bench.run_entry(&tp8, "forward", &prompt, STEPS),
        2 => bench.run_entry(&bf16, "forward", &prompt, STEPS),
        3 => peer(jax, "jax_gpt2.py", &["--mode", "prefill"]),
        4 => peer(torch, "torch_gpt2.py", &["--mode", "prefill"]),
        _ => peer(torch, "torch_gpt2.py", &["--mode", "prefill", "--dtype", "bf16"]),
    })?;
    let decode = Best::<6>::of(ROUNDS, |who| match who {
        0 => bench.run_entry(&tp1, "decode", &token, 10 * STEPS),
        1 => bench.run_entry(&tp8, "decode", &token, 10 * STEPS),
        2 => bench.run_entry(&bf16, "decode", &token, 10 * STEPS),
        3 => peer(jax, "jax_gpt2.py", &["--mode", "decode"]),
        4 => peer(torch, "torch_gpt2.py", &["--mode", "decode"]),
        _ => peer(torch, "torch_gpt2.py", &["--mode", "decode", "--dtype", "bf16"]),
    })?;
    let ms = |seconds: f64| seconds * 1e3;
    let [p1, p8, pb, pj, pt, ptb] = prefill.0.map(ms);
    let [d1, d8, db, dj, dt, dtb] = decode.0.map(ms);
    let products = ms(product_flops() / limits.flops);
    let reading = ms(WEIGHT_BYTES / limits.read);
    table.alone("gpt2", "f32 products by the gemm crate, all cores", limits.crate_flops / 1e9, "GF/s");
    table.alone("gpt2", "f32 products, the best of any, all cores", limits.flops / 1e9, "GF/s");
    table.alone("gpt2", "reading memory, all cores", limits.read / 1e9, "GB/s");
    table.against("gpt2", "prefill 1x512 tp 1", p1, "ms", ("its products alone", products), "<= 1.15");
    table.against("gpt2", "prefill 1x512 tp 8", p8, "ms", ("tp 1", p1), "<= 1.15");
    table.against("gpt2", "decode at 512 tp 1", d1, "ms", ("reading weights once", reading), "<= 1.3");
    table.against("gpt2", "decode at 512 tp 8", d8, "ms", ("reading weights once", reading), "<= 1.3");
    table.faster("gpt2", "decode at 512 bf16", db, "ms", ("f32", d1), ">= 1.6");
    let mut faster = |what: &str, ours: f64, name: &str, theirs: f64, goal| {
        if theirs.is_finite() {
            table.faster("gpt2", what, ours, "ms", (name, theirs), goal);
        }
    };
    faster("prefill 1x512 tp 1", p1, "JAX", pj, ">= 1.15");
    faster("prefill 1x512 tp 1", p1, "PyTorch", pt, ">= 1.15");
    faster("prefill 1x512 bf16", pb, "PyTorch bf16", ptb, ">= 1");
    faster("decode at 512 tp 1", d1, "JAX", dj, "more");
    faster("decode at 512 tp 1", d1, "PyTorch", dt, "more");
    faster("decode at 512 bf16", db, "PyTorch bf16", dtb, "more");
    memory(bench, table, &tp8, &prompt)
}

/// Peak memory of a run at tp 8 against weights and planned activations.
fn memory(bench: &Bench<'_>, table: &mut Table, artifact: &Path, prompt: &Path) -> Result<()> {
    let run = |command: Call| -> Result<Value> {
        super::json(command.args([artifact]).args(["--json", "--entry", "forward", "--input"]).args([prompt]))
    };
    let peak = number(&run(bench.measured("run"))?, "peak_bytes")?;
    let planned = number(&run(bench.pcc("run"))?, "memory_bytes")?;
    let against = ("weights and planned activations", planned / 1e6);
    table.against("gpt2", "peak memory tp 8", peak / 1e6, "MB", against, "<= 1.2");
    Ok(())
}
