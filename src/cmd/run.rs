//! `pcc run ARTIFACT`.

use super::{print_json, print_text};
use crate::{artifact_output, npz, open, trace};
use pcc_ir::Diagnostic;
use pcc_ir::program::{EntryProgram, IoSpec, Program};
use pcc_runtime::{HostData, HostTensor, Summary};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Args {
    /// Artifact directory (NAME.pcc)
    artifact: PathBuf,
    #[command(flatten)]
    open: open::Args,
    /// Entry to run [default: forward, or the only one]
    #[arg(long)]
    entry: Option<String>,
    /// Inputs by name, a NumPy .npz file
    #[arg(long, value_name = "F.npz")]
    input: PathBuf,
    /// File for the outputs
    #[arg(long, value_name = "F.npz")]
    output: Option<PathBuf>,
    /// Keep only each row's last position of outputs over a sequence
    #[arg(long)]
    output_last: bool,
    /// Run this many times on the same inputs (states carry over)
    #[arg(long, default_value_t = 1)]
    steps: usize,
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    entry: String,
    rows: usize,
    outputs: BTreeMap<String, Vec<usize>>,
    /// What was planned for all devices of the process: weights, states and activations.
    memory_bytes: usize,
    seconds: Seconds,
    /// Where the time went, with --trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Summary>,
}

#[derive(Serialize)]
struct Seconds {
    load: f64,
    steps: Vec<f64>,
}

pub fn run(args: &Args) -> Result<(), Diagnostic> {
    let start = Instant::now();
    if args.steps == 0 {
        return Err(Diagnostic::usage("--steps 0 runs nothing").help("use 1 or more"));
    }
    args.output.as_deref().map(|path| artifact_output::check_place(path, "--output")).transpose()?;
    let given = npz::read(&args.input)?;
    let artifact = open::artifact(&args.artifact, &args.open)?;
    let entry = find_entry(&artifact.program, args.entry.as_deref())?.clone();
    let prepared = prepare(&entry, given)?;
    let mut opened = open::session(artifact, &args.open, args.json)?;
    let load = start.elapsed().as_secs_f64();
    let mut steps = Vec::new();
    let mut outputs = BTreeMap::new();
    for _ in 0..args.steps {
        let start = Instant::now();
        opened.session.run_into(&entry.name, &prepared.inputs, prepared.rows, &mut outputs)?;
        steps.push(start.elapsed().as_secs_f64());
    }
    if args.output_last {
        for spec in &entry.outputs {
            if let (Some(1), Some(t)) = (spec.seq_dim, outputs.get_mut(&spec.name)) {
                *t = last_positions(t, &prepared.lengths)?;
            }
        }
    }
    let profile = opened.finish_trace()?;
    if let Some(path) = args.output.as_ref().filter(|_| !super::is_silent()) {
        npz::write(path, &outputs)?;
    }
    let shapes = outputs.iter().map(|(n, t)| (n.clone(), t.shape.clone())).collect();
    let outcome = Outcome {
        entry: entry.name,
        rows: prepared.rows,
        outputs: shapes,
        memory_bytes: opened.session.memory_bytes(),
        seconds: Seconds { load, steps },
        profile,
    };
    if args.json {
        return print_json(&outcome);
    }
    print_text(&text(&outcome))?;
    trace::show(outcome.profile.as_ref());
    Ok(())
}

fn text(o: &Outcome) -> String {
    let outputs: Vec<String> = o.outputs.iter().map(|(n, s)| format!("{n} {s:?}")).collect();
    let mean = o.seconds.steps.iter().sum::<f64>() / o.seconds.steps.len() as f64;
    format!(
        "{} on {} row(s): {}; loaded in {:.2} s, {:.1} ms a run",
        o.entry,
        o.rows,
        outputs.join(", "),
        o.seconds.load,
        mean * 1e3
    )
}

fn find_entry<'a>(program: &'a Program, name: Option<&str>) -> Result<&'a EntryProgram, Diagnostic> {
    let names: Vec<&str> = program.entries.iter().map(|e| e.name.as_str()).collect();
    let wanted = match name {
        Some(n) => n,
        None if names.contains(&"forward") => "forward",
        None if names.len() == 1 => names[0],
        None => {
            return Err(Diagnostic::usage("which entry to run?")
                .help(format!("give --entry, one of {}", names.join(", "))));
        }
    };
    program.entries.iter().find(|e| e.name == wanted).ok_or_else(|| {
        Diagnostic::usage(format!("the artifact has no entry `{wanted}`"))
            .help(format!("it has {}", names.join(", ")))
    })
}

struct Prepared {
    inputs: BTreeMap<String, HostTensor>,
    rows: usize,
    /// Valid positions of each row.
    lengths: Vec<usize>,
}

/// Completes what a user may leave out: `attention_mask` (from `lengths`, else all ones), `token_types` (zeros), and how an entry draws tokens (always
/// the likeliest).
fn prepare(entry: &EntryProgram, mut given: BTreeMap<String, HostTensor>) -> Result<Prepared, Diagnostic> {
    let main = entry.inputs.iter().find(|i| i.batch_dim == Some(0) && given.contains_key(&i.name));
    let shape = main.map(|i| given[&i.name].shape.clone()).unwrap_or_default();
    let rows = shape.first().copied().unwrap_or(1);
    let seq = main.filter(|i| i.seq_dim == Some(1)).and_then(|_| shape.get(1).copied()).unwrap_or(1);
    let takes_lengths = entry.inputs.iter().any(|i| i.name == "lengths");
    let lengths = match given.get("lengths") {
        Some(t) => lengths_of(t, rows, seq)?,
        None => vec![seq; rows],
    };
    if !takes_lengths {
        given.remove("lengths");
    }
    for spec in &entry.inputs {
        if !given.contains_key(&spec.name)
            && let Some(made) = default_input(entry, spec, rows, seq, &lengths)
        {
            given.insert(spec.name.clone(), made);
        }
    }
    Ok(Prepared { inputs: given, rows, lengths })
}

fn default_input(
    entry: &EntryProgram,
    spec: &IoSpec,
    rows: usize,
    seq: usize,
    lengths: &[usize],
) -> Option<HostTensor> {
    match spec.name.as_str() {
        "attention_mask" => {
            let mask = lengths.iter().flat_map(|&n| (0..seq).map(move |i| i32::from(i < n))).collect();
            Some(HostTensor::i32([rows, seq], mask))
        }
        "token_types" => Some(HostTensor::i32([rows, seq], vec![0; rows * seq])),
        "lengths" => Some(HostTensor::i32([rows], lengths.iter().map(|&n| n as i32).collect())),
        "settings" if entry.draws() => Some(HostTensor::f32([rows, 2], [0.0, 1.0].repeat(rows))),
        "key" if entry.draws() => Some(HostTensor::i32([rows, 4], vec![0; rows * 4])),
        _ => None,
    }
}

fn lengths_of(t: &HostTensor, rows: usize, seq: usize) -> Result<Vec<usize>, Diagnostic> {
    let values: Vec<i64> = match &t.data {
        HostData::I32(v) => v.iter().map(|&x| x.into()).collect(),
        HostData::I64(v) => v.clone(),
        _ => return Err(Diagnostic::input("`lengths` must be i32 or i64")),
    };
    if t.shape != [rows] {
        return Err(Diagnostic::input(format!("`lengths` has shape {:?}, not [{rows}]: one a row", t.shape)));
    }
    values
        .iter()
        .map(|&n| {
            usize::try_from(n).ok().filter(|&n| n >= 1 && n <= seq).ok_or_else(|| {
                Diagnostic::input(format!("a row of length {n}"))
                    .at("`lengths`")
                    .why(format!("rows have 1 to {seq} positions"))
            })
        })
        .collect()
}

/// `[rows, seq, ..]` to `[rows, ..]`: the last valid position of each row.
fn last_positions(t: &HostTensor, lengths: &[usize]) -> Result<HostTensor, Diagnostic> {
    let (Some(data), [rows, seq, rest @ ..]) = (t.as_f32(), t.shape.as_slice()) else { return Ok(t.clone()) };
    let width: usize = rest.iter().product();
    let mut out = Vec::with_capacity(rows * width);
    for row in 0..*rows {
        let at = (row * seq + lengths.get(row).copied().unwrap_or(*seq) - 1) * width;
        out.extend_from_slice(
            data.get(at..at + width).ok_or_else(|| Diagnostic::internal("an output is too short"))?,
        );
    }
    let shape: Vec<usize> = std::iter::once(*rows).chain(rest.iter().copied()).collect();
    Ok(HostTensor::f32(shape, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_positions_follow_lengths() {
        let t = HostTensor::f32([2, 3, 2], (0..12).map(|x| x as f32).collect());
        let last = last_positions(&t, &[3, 1]).unwrap();
        assert_eq!((last.shape.as_slice(), last.as_f32().unwrap()), (&[2, 2][..], &[4., 5., 6., 7.][..]));
    }

    #[test]
    fn lengths_are_checked() {
        assert_eq!(lengths_of(&HostTensor::i32([2], vec![1, 4]), 2, 4).unwrap(), [1, 4]);
        assert!(lengths_of(&HostTensor::i32([2], vec![1, 5]), 2, 4).is_err());
        assert!(lengths_of(&HostTensor::i32([1], vec![1]), 2, 4).is_err());
        assert!(lengths_of(&HostTensor::i32([2], vec![0, 1]), 2, 4).is_err());
    }
}
