//! What configs say of rotary positions: `rope_theta` and `rope_scaling`, or both inside `rope_parameters` as newer files have them.

use crate::config::Config;
use crate::gguf_config::ROPE_DIVISORS;
use crate::transformer::{Rope, RopeScaling};
use pcc_ir::Diagnostic;
use serde_json::Value;

/// What families say differently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotary {
    pub(super) theta: &'static str,
    /// The field that says which part of each head is rotated, and its default; without one the whole head is.
    pub(super) part: Option<(&'static str, f64)>,
    /// The scalings the class knows.
    pub(super) scalings: &'static [&'static str],
}

impl Default for Rotary {
    fn default() -> Self {
        Self { theta: "rope_theta", part: None, scalings: &["default", "linear", "llama3"] }
    }
}

/// # Errors
/// A head without pairs; a scaling, a field or a number that is not supported.
pub(super) fn read(c: &Config, head_dim: usize, r: &Rotary) -> Result<Rope, Diagnostic> {
    let mut theta = c.positive(r.theta)?;
    let mut part = match r.part {
        Some((key, default)) => c.positive(key)?.unwrap_or(default),
        None => 1.0,
    };
    let mut objects = Vec::new();
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(s) = c.object(key)? {
            theta = s.positive("rope_theta")?.or(theta);
            match r.part {
                Some(_) => part = s.positive("partial_rotary_factor")?.unwrap_or(part),
                None => s.only("partial_rotary_factor", 1.0)?,
            }
            objects.push(s);
        }
    }
    let dim = (head_dim as f64 * part) as usize;
    if dim == 0 || dim > head_dim || dim % 2 == 1 {
        let (key, why) = match r.part {
            Some((key, _)) => (key, format!("{part} of heads of {head_dim} is {dim}")),
            None => ("head_dim", format!("heads have {head_dim} elements")),
        };
        return Err(c.wrong(key, format!("{why}: an even number of them is rotated, by pairs")));
    }
    let mut scaling = RopeScaling::None;
    for s in objects {
        scaling = read_scaling(c, &s, dim, r)?;
        s.finish()?;
    }
    // GGUF files hold the finished divisors.
    if c.has(ROPE_DIVISORS) {
        scaling = RopeScaling::Divisors(divisors(c, ROPE_DIVISORS, dim)?);
    }
    Ok(Rope { dim, theta: theta.unwrap_or(10_000.0), scaling, interleaved: false })
}

fn read_scaling(c: &Config, s: &Config, dim: usize, r: &Rotary) -> Result<RopeScaling, Diagnostic> {
    let kind = match s.str("rope_type")? {
        Some(kind) => kind,
        None => s.str("type")?.unwrap_or("default"),
    };
    s.get("type");
    // Older names of the same.
    let kind =
        if matches!(kind, "su" | "yarn") && r.scalings.contains(&"longrope") { "longrope" } else { kind };
    let number = |key: &str| s.positive(key)?.ok_or_else(|| s.missing(key));
    match kind {
        _ if !r.scalings.contains(&kind) => Err(s
            .wrong(if s.has("rope_type") { "rope_type" } else { "type" }, "this scaling is not supported")
            .help(format!("supported: {}", r.scalings.join(", ")))),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(s.wrong("low_freq_factor", format!("it must be below high_freq_factor, {high}")));
            }
            let (factor, original) = (number("factor")?, number("original_max_position_embeddings")?);
            Ok(RopeScaling::Llama3 { factor, low, high, original })
        }
        "longrope" => long(c, s, dim),
        _ => Ok(RopeScaling::None),
    }
}

/// LongRoPE. The lengths before and after may stand beside the scaling, the first also in it.
fn long(c: &Config, s: &Config, dim: usize) -> Result<RopeScaling, Diagnostic> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let max = c.positive("max_position_embeddings")?;
    let inside = s.positive(ORIGINAL)?;
    let original = c.positive(ORIGINAL)?.or(inside).ok_or_else(|| c.missing(ORIGINAL))?;
    let extended = s.positive("factor")?.or(max.map(|m| m / original)).unwrap_or(1.0);
    let factor = match s.positive("attention_factor")? {
        Some(factor) => factor,
        None if extended <= 1.0 => 1.0,
        None => (1.0 + extended.ln() / original.ln()).sqrt(),
    };
    let (short, long) = (divisors(s, "short_factor", dim)?, divisors(s, "long_factor", dim)?);
    if !factor.is_finite() {
        return Err(c.wrong(ORIGINAL, "it gives no finite factor of the scores"));
    }
    Ok(RopeScaling::Long { short, long, original, factor })
}

/// A number for each pair.
fn divisors(c: &Config, key: &str, dim: usize) -> Result<Vec<f64>, Diagnostic> {
    let list = c.get(key).and_then(Value::as_array).ok_or_else(|| c.missing(key))?;
    let numbers: Option<Vec<f64>> = list.iter().map(|v| v.as_f64().filter(|d| *d > 0.0)).collect();
    match numbers {
        Some(d) if d.len() == dim / 2 => Ok(d),
        _ => Err(c.wrong(key, format!("{} numbers above 0 are needed", dim / 2))),
    }
}
