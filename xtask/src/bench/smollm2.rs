//! Decoding SmolLM2-135M (Q4_1) in tokens a second, beside llama.cpp on the same file and cores.

use anyhow::{Context, Result};

use super::table::Table;
use super::{Bench, Best, number};
use crate::model::{self, Fetched};

const ROUNDS: usize = 3;
const TOKENS: &str = "128";
const PROMPT: &str = "The three laws of thermodynamics say that";

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let cache = bench.folder.parent().context("the folder of the benchmarks has no parent")?;
    let Fetched::Model(model) = model::fetch(cache)? else {
        println!("left out: the model could not be fetched");
        return Ok(());
    };
    let tp1 = bench.compile(&model, "smollm2-tp1", &["--seq", "512"])?;
    let meshed = bench.compile(
        &model,
        "smollm2-tp8-pp4",
        &["--seq", "512", "--tp", "8", "--pp", "4", "--batch", "1"],
    )?;
    let llama_cpp = bench.peers.as_ref().and_then(|p| p.llama_cpp.as_deref());
    let best = Best::<3>::of(ROUNDS, |who| {
        let artifact = match who {
            0 => &tp1,
            1 => &meshed,
            _ => {
                let Some(python) = llama_cpp else { return Ok(f64::INFINITY) };
                let command = bench.python(python, "gguf_decode.py").args([&model]);
                let outcome = super::json(command.args(["--prompt", PROMPT, "--max-tokens", TOKENS]))?;
                return Ok(number(&outcome, "decode")? / number(&outcome, "tokens")?);
            }
        };
        let command = bench.pcc("generate").args([artifact]);
        let outcome = super::json(command.args(["--prompt", PROMPT, "--max-tokens", TOKENS, "--json"]))?;
        let tokens = outcome["tokens"].as_array().context("generate gave no tokens")?.len();
        // The first token comes from the prefill.
        Ok(number(&outcome["seconds"], "decode")? / (tokens.max(2) - 1) as f64)
    })?;
    let [ours, meshed, theirs] = best.0.map(|seconds| 1.0 / seconds);
    table.alone("smollm2", "decode tp 1", ours, "tok/s");
    table.alone("smollm2", "decode tp 8 pp 4", meshed, "tok/s");
    if theirs > 0.0 {
        table.against("smollm2", "decode tp 1", ours, "tok/s", ("llama.cpp", theirs), ">= 1.0");
    }
    Ok(())
}
