//! Peak memory of a 7B model that stays quantised: llama-2-7b's shapes with random blocks, in the types of Q4_K_M.

use anyhow::Result;

use super::table::Table;
use super::{Bench, number};

pub(super) fn run(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let model = bench.folder.join("llama-7b-q4_k_m.gguf");
    // 4.2 GB: written once.
    if !model.exists() {
        let half = model.with_extension("half");
        bench.python("python3".as_ref(), "write_gguf.py").args([&half]).run()?;
        std::fs::rename(&half, &model)?;
    }
    let artifact = bench.compile(&model, "llama-7b", &["--seq", "512"])?;
    let command = bench.measured("generate").args([&artifact]);
    let measured = super::json(command.args(["--prompt", "ab cd", "--max-tokens", "4", "--json"]))?;
    let peak = number(&measured, "peak_bytes")? / f64::from(1 << 30);
    table.against("memory", "llama-2-7b shapes, Q4_K_M, generating", peak, "GiB", ("goal", 8.0), "<= 1");
    Ok(())
}
