//! What the machine can do: the best rate of matrix products and of reading memory, of what `runtime/benches/limits.rs` measures and of
//! pcc's own products, one by one.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Bench, number};

pub(super) struct Limits {
    /// Best measured f32 products, floating-point operations a second on all cores.
    pub(super) flops: f64,
    /// Of these, the ones by the `gemm` crate.
    pub(super) crate_flops: f64,
    /// Best measured reading of memory in huge pages, bytes a second on all cores.
    pub(super) read: f64,
}

pub(super) fn measure(bench: &Bench<'_>) -> Result<Limits> {
    let text =
        bench.project.cargo(["bench", "--quiet", "--package", "pcc-runtime", "--bench", "limits"]).read()?;
    let line = text.lines().rfind(|l| l.starts_with('{')).context("the limits benchmark wrote no JSON")?;
    let value: Value = serde_json::from_str(line)?;
    let flops = number(&value, "flops")?;
    Ok(Limits { flops, crate_flops: flops, read: number(&value, "read")? })
}

impl Limits {
    /// Takes the rates that single products of an entry reach, where they are better: all cores work on one product at a time in a
    /// program of one device.
    pub(super) fn raise(
        &mut self,
        bench: &Bench<'_>,
        artifact: &Path,
        (entry, input, steps): (&str, &Path, u32),
    ) -> Result<()> {
        let trace = bench.folder.join("limits-trace.json");
        let run = bench.pcc("run").args([artifact]).args([
            "--json",
            "--steps",
            &steps.to_string(),
            "--entry",
            entry,
        ]);
        let outcome = super::json(run.args(["--input"]).args([input]).args(["--trace"]).args([&trace]))?;
        let ops = outcome["profile"]["by_op"].as_array().context("the run gave no profile")?;
        for op in ops.iter().filter(|op| op["kind"] == "product") {
            self.flops = self.flops.max(number(op, "gflops_per_second")? * 1e9);
            self.read = self.read.max(number(op, "gigabytes_per_second")? * 1e9);
        }
        Ok(())
    }
}
