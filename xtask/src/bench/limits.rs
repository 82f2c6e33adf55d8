//! What the machine can do: the best rate of matrix products and of reading memory, by `runtime/benches/limits.rs`.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Bench, number};

pub(super) struct Limits {
    /// Best measured f32 products, floating-point operations a second on all cores.
    pub(super) flops: f64,
    /// Best measured reading of memory in huge pages, bytes a second on all cores.
    pub(super) read: f64,
}

pub(super) fn measure(bench: &Bench<'_>) -> Result<Limits> {
    let text =
        bench.project.cargo(["bench", "--quiet", "--package", "pcc-runtime", "--bench", "limits"]).read()?;
    let line = text.lines().rfind(|l| l.starts_with('{')).context("the limits benchmark wrote no JSON")?;
    let value: Value = serde_json::from_str(line)?;
    Ok(Limits { flops: number(&value, "flops")?, read: number(&value, "read")? })
}
