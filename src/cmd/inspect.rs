//! `pcc inspect ARTIFACT`.

use super::{grouped, human_bytes, print_json, print_text};
use pcc_ir::Diagnostic;
use pcc_passes::report::{CollectiveReport, Report, StageReport};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc)
    artifact: PathBuf,
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let report = crate::artifact_output::read_report(&args.artifact)?;
    if args.json { print_json(&report) } else { print_text(&text(&report)) }
}

/// The report as text.
pub fn text(r: &Report) -> String {
    let m = &r.mesh;
    // A graph of one's own has a family but no model class.
    let kind: Vec<&str> = [&*r.model.family, &*r.model.class].into_iter().filter(|s| !s.is_empty()).collect();
    let mut out = format!(
        "{} ({}): {} parameters, {}, {}{}\nmesh pp {} x dp {} x tp {}: {} devices, {} micro-batch(es), entries {}\n",
        r.model.name,
        kind.join(", "),
        grouped(r.model.parameters),
        r.mode,
        r.dtype,
        if r.target.is_empty() { String::new() } else { format!(", for {}", r.target) },
        m.pp,
        m.dp,
        m.tp,
        r.devices,
        r.schedule.micro_batches,
        r.entries.join(", "),
    );
    for s in &r.stages {
        out += &stage_text(s);
    }
    let e = &r.estimate;
    out += &format!(
        "estimate on {}: {:.3} ms a batch, {:.0} tokens/s a device, MFU {:.1}%, peak memory {} a device\n",
        e.cluster,
        e.step_time_s * 1e3,
        e.tokens_per_s_per_device,
        e.mfu * 100.0,
        human_bytes(e.peak_memory_bytes),
    );
    if r.search.gap > 0.0 {
        out += &format!("shardings: at most {:.2}% above the least modelled time\n", r.search.gap * 100.0);
    }
    for f in r.search.rewrites.iter().filter(|f| f.stop != "Saturated" || f.gap > 0.0) {
        out += &format!(
            "collectives of {}: rewriting ended with {}, at most {:.3} ms above the cheapest form found\n",
            f.name,
            f.stop,
            f.gap * 1e3
        );
    }
    out += &format!(
        "verified: {} values in {} functions in {:.1} ms; compiled in {:.0} ms",
        r.verify.values,
        r.verify.functions,
        r.verify.seconds * 1e3,
        r.compile.seconds * 1e3
    );
    out
}

fn stage_text(s: &StageReport) -> String {
    let mut out = format!(
        "\nstage {}: layers {}, {} parameters, {} a device, peak {} a device, {:.2} Gflop a micro-batch\n",
        s.stage,
        ranges(&s.layers),
        grouped(s.parameters),
        human_bytes(s.parameter_bytes_per_device),
        human_bytes(s.peak_memory_bytes_per_device),
        s.flops_per_device as f64 / 1e9,
    );
    for c in &s.collectives {
        out += &collective_text(c);
    }
    for send in &s.sends {
        out += &format!("  {}: send {} to stage {}\n", send.entry, human_bytes(send.bytes), send.to);
    }
    out
}

fn collective_text(c: &CollectiveReport) -> String {
    let place = if c.layers.is_empty() { String::new() } else { format!(" in layers {}", ranges(&c.layers)) };
    format!(
        "  {}: {} x {} of {} over {} at `{}`{place}\n      {}\n",
        c.entry,
        c.count,
        c.kind,
        human_bytes(c.bytes),
        c.axes.join(" x "),
        c.what,
        c.why,
    )
}

/// `0-3, 5` for increasing indices; `none` for none.
pub fn ranges(layers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &l in layers {
        match parts.last_mut() {
            Some(p) if p.1.checked_add(1) == Some(l) => p.1 = l,
            _ => parts.push((l, l)),
        }
    }
    let show = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    if parts.is_empty() { "none".to_owned() } else { parts.iter().map(show).collect::<Vec<_>>().join(", ") }
}
