//! Ten times more devices than cores: dp 16 x tp 2 against tp 2 on the same rows.

use anyhow::Result;
use serde_json::{Value, json};

use super::table::Table;
use super::{Bench, Best};

const ROUNDS: usize = 5;

/// A llama with layers large enough that the work is matrix products.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 768,
        "intermediate_size": 2048, "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 6,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "vocab_size": 8192,
    })
}

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let model = bench.config("llama-devices", &llama())?;
    let shape = ["--seq", "128", "--batch", "16", "--micro-batches", "1", "--tp", "2"];
    let few = bench.compile(&model, "devices-2", &shape)?;
    let many = bench.compile(&model, "devices-32", &[&shape[..], &["--dp", "16"]].concat())?;
    let prompt = bench.input("devices-prefill", &["tokens:16x128:11,4042,7,1033,262,398"])?;
    let token = bench.input("devices-decode", &["tokens:16x1:262", "positions:16:127"])?;
    for (what, entry, input, steps) in
        [("forward 16x128", "forward", &prompt, 5), ("decode 16 rows", "decode", &token, 50)]
    {
        let best = Best::<2>::of(ROUNDS, |who| bench.run_entry([&few, &many][who], entry, input, steps))?;
        let [few, many] = best.0.map(|seconds| seconds * 1e3);
        let what = format!("{what}, dp 16 x tp 2");
        table.against("devices", what, many, "ms", ("tp 2", few), "<= 1.1");
    }
    Ok(())
}
