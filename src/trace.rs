//! Traces of runs in Chrome's format, which Perfetto and chrome://tracing show: one row a device, written run by run, so that a long
//! generation takes no memory; and the table of where the time went.

use crate::artifact_output::{cannot_write, clear, sibling};
use crate::interrupt::Unfinished;
use pcc_ir::Diagnostic;
use pcc_ir::mesh::Axis;
use pcc_ir::program::Program;
use pcc_runtime::{Event, Profile, ProfileRow, Summary, Trace, Traced};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A trace being written. It takes its place when it is finished; until then it lies aside.
pub struct TraceFile {
    path: PathBuf,
    /// Where it is written; `None` for a device or a pipe, which is written to as it is.
    aside: Option<Unfinished>,
    out: BufWriter<File>,
    /// Whether something was written that the next event follows.
    begun: bool,
    profile: Profile,
}

/// An event of Chrome's format: `X` a span of time, `M` a name of a row.
#[derive(Serialize)]
struct Row<'a, A> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    ph: &'static str,
    pid: u32,
    tid: u32,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: A,
}

/// What a click on a span shows.
#[derive(Serialize)]
struct Details<'a> {
    entry: &'a str,
    op: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<u32>,
    micro_batch: u32,
    worker: u32,
    #[serde(skip_serializing_if = "is_zero")]
    flops: f64,
    #[serde(skip_serializing_if = "is_zero")]
    bytes: f64,
    #[serde(rename = "GFLOP/s", skip_serializing_if = "is_zero")]
    gflops: f64,
    #[serde(rename = "GB/s", skip_serializing_if = "is_zero")]
    gigabytes: f64,
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

#[derive(Serialize)]
struct Name {
    name: String,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u32,
}

impl TraceFile {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be written there.
    pub fn create(path: &Path) -> Result<Self, Diagnostic> {
        let failed = |e: io::Error| cannot_write(path, &e);
        let special = std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
        let aside = match special {
            true => None,
            false => {
                clear(path);
                Some(Unfinished::file(sibling(path, "part")?).map_err(failed)?)
            }
        };
        let file = match &aside {
            Some(aside) => File::create(aside.path()),
            None => File::options().write(true).open(path),
        };
        let mut out = BufWriter::new(file.map_err(failed)?);
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[").map_err(failed)?;
        Ok(Self { path: path.to_owned(), aside, out, begun: false, profile: Profile::default() })
    }

    fn put(&mut self, row: &impl Serialize) -> io::Result<()> {
        let separator: &[u8] = if self.begun { b",\n" } else { b"\n" };
        self.out.write_all(separator)?;
        serde_json::to_writer(&mut self.out, row)?;
        self.begun = true;
        Ok(())
    }

    /// Names the rows: `stage 1: dp 0, tp 3`.
    fn name_rows(&mut self, program: &Program) -> io::Result<()> {
        let name = |name, tid, args| Row { name, cat: None, ph: "M", pid: 0, tid, ts: None, dur: None, args };
        self.put(&name("process_name", 0, Name { name: program.model.name.clone() }))?;
        for device in 0..program.mesh.devices() {
            let tid = device as u32;
            self.put(&name("thread_name", tid, Name { name: device_name(program, device) }))?;
            let row = Row {
                name: "thread_sort_index",
                cat: None,
                ph: "M",
                pid: 0,
                tid,
                ts: None,
                dur: None,
                args: SortIndex { sort_index: tid },
            };
            self.put(&row)?;
        }
        Ok(())
    }

    fn put_event(&mut self, event: &Event, traced: &Traced<'_>) -> io::Result<()> {
        let Some(subject) = event.subject(traced.program) else { return Ok(()) };
        let (work, nanoseconds) = (event.work(traced), event.end.saturating_sub(event.start));
        let rate = |amount: f64| if nanoseconds == 0 { 0.0 } else { amount / nanoseconds as f64 };
        let arrives = if event.waits { "arrives at " } else { "" };
        let entry = traced.program.entries.get(event.entry as usize);
        self.put(&Row {
            name: &format!("{arrives}{}", subject.what()),
            cat: Some(subject.kind()),
            ph: "X",
            pid: 0,
            tid: event.device,
            ts: Some(event.start as f64 / 1e3),
            dur: Some(nanoseconds as f64 / 1e3),
            args: Details {
                entry: entry.map_or("", |e| e.name.as_str()),
                op: subject.op(),
                layer: subject.layer(),
                micro_batch: event.micro_batch,
                worker: event.worker,
                flops: work.flops,
                bytes: work.bytes,
                gflops: rate(work.flops),
                gigabytes: rate(work.bytes),
            },
        })
    }

    /// Ends the file and gives it its name; where the time went.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(&mut self, program: &Program) -> Result<Summary, Diagnostic> {
        let written = self.out.write_all(b"\n]}\n").and_then(|()| self.out.flush());
        let placed = written.and_then(|()| match self.aside.take() {
            Some(aside) => std::fs::rename(aside.path(), &self.path),
            None => Ok(()),
        });
        placed.map_err(|e| cannot_write(&self.path, &e))?;
        Ok(self.profile.summary(program))
    }
}

impl Trace for TraceFile {
    fn add(&mut self, traced: &Traced<'_>) -> Result<(), Diagnostic> {
        self.profile.add(traced);
        let named = if self.begun { Ok(()) } else { self.name_rows(traced.program) };
        let written = named.and_then(|()| traced.events.iter().try_for_each(|e| self.put_event(e, traced)));
        written.map_err(|e| cannot_write(&self.path, &e))
    }
}

/// Stage and rank of a device; axes of one device are left out.
fn device_name(program: &Program, device: usize) -> String {
    let mesh = &program.mesh;
    let axes = Axis::ALL.into_iter().filter(|&a| a != Axis::Pp && mesh.size(a) > 1);
    let ranks: Vec<String> = axes.map(|a| format!("{a} {}", mesh.coord(device, mesh.whole(a)))).collect();
    let stage = format!("stage {}", device / mesh.stage_devices());
    if ranks.is_empty() { stage } else { format!("{stage}: {}", ranks.join(", ")) }
}

/// Ops in the table; the rest is in --json.
const SHOWN: usize = 16;

/// Shows a summary on standard error.
pub fn show(summary: Option<&Summary>) {
    if let Some(summary) = summary {
        eprint!("{}", table(summary));
    }
}

fn table(summary: &Summary) -> String {
    let line = |r: &ProfileRow| {
        let number = |x: f64| if x == 0.0 { "-".to_owned() } else { format!("{x:.1}") };
        format!(
            "{:>10} {:>12.2} {:>6.1}% {:>10} {:>8}  {} {}\n",
            r.count,
            r.milliseconds,
            r.share * 100.0,
            number(r.gflops_per_second),
            number(r.gigabytes_per_second),
            r.kind,
            r.op
        )
    };
    let mut out = format!(
        "{:>10} {:>12} {:>7} {:>10} {:>8}  time of all devices by kind, and by op\n",
        "count", "ms", "share", "GFLOP/s", "GB/s"
    );
    out.extend(summary.by_kind.iter().map(line));
    out.push('\n');
    out.extend(summary.by_op.iter().take(SHOWN).map(line));
    let more = summary.by_op.len().saturating_sub(SHOWN);
    if more > 0 {
        out += &format!("{more} more ops: --json\n");
    }
    out
}
