//! Where the time of runs went: totals by kind of instruction and by op.

use super::{Event, Subject, Traced, Work};
use pcc_ir::program::Program;
use serde::Serialize;
use std::collections::BTreeMap;

/// Totals of what was added so far.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    totals: BTreeMap<Key, Totals>,
}

/// An instruction of a function, or the messages between two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Instr { func: u32, instr: u32 },
    Send { to: u32 },
    Recv { from: u32 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    count: u64,
    nanoseconds: u64,
    work: Work,
}

/// A row of a summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileRow {
    /// `product`, `all_reduce`, ...
    pub kind: &'static str,
    /// In the model's terms, all layers together; empty where the row is all ops of the kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub op: String,
    /// How often it was done: on how many devices, layers, micro-batches and runs.
    pub count: u64,
    /// Of all devices together.
    pub milliseconds: f64,
    /// Of the time of all rows.
    pub share: f64,
    pub gflops_per_second: f64,
    pub gigabytes_per_second: f64,
}

/// Totals, those that took longest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    pub by_kind: Vec<ProfileRow>,
    pub by_op: Vec<ProfileRow>,
}

impl Profile {
    /// Adds the events of a run.
    pub fn add(&mut self, traced: &Traced<'_>) {
        for event in traced.events {
            let Some(key) = key(event, traced.program) else { continue };
            let totals = self.totals.entry(key).or_default();
            totals.count += u64::from(!event.waits);
            totals.nanoseconds += event.end.saturating_sub(event.start);
            let work = event.work(traced);
            totals.work.flops += work.flops;
            totals.work.bytes += work.bytes;
        }
    }

    /// The totals, with the names of the program that they are of.
    pub fn summary(&self, program: &Program) -> Summary {
        let (mut kinds, mut ops) = (BTreeMap::new(), BTreeMap::new());
        for (key, totals) in &self.totals {
            let Some(subject) = subject(*key, program) else { continue };
            let (kind, op) = (subject.kind(), subject.op());
            add(kinds.entry((kind, String::new())).or_default(), totals);
            add(ops.entry((kind, op)).or_default(), totals);
        }
        let all = kinds.values().map(|t| t.nanoseconds).sum();
        Summary { by_kind: rows(kinds, all), by_op: rows(ops, all) }
    }
}

fn key(event: &Event, program: &Program) -> Option<Key> {
    Some(match event.subject(program)? {
        Subject::Instr { index, .. } => Key::Instr { func: index, instr: event.instr },
        Subject::Send { to, .. } => Key::Send { to },
        Subject::Recv { from, .. } => Key::Recv { from },
    })
}

fn subject(key: Key, program: &Program) -> Option<Subject<'_>> {
    match key {
        Key::Send { to } => Some(Subject::Send { to, bytes: 0 }),
        Key::Recv { from } => Some(Subject::Recv { from, bytes: 0 }),
        Key::Instr { func: index, instr } => {
            let func = program.funcs.get(index as usize)?;
            let instr = func.instrs.get(instr as usize)?;
            Some(Subject::Instr { func, index, instr, epilogue: None, layer: None })
        }
    }
}

fn add(to: &mut Totals, from: &Totals) {
    to.count += from.count;
    to.nanoseconds += from.nanoseconds;
    to.work.flops += from.work.flops;
    to.work.bytes += from.work.bytes;
}

fn rows(totals: BTreeMap<(&'static str, String), Totals>, all: u64) -> Vec<ProfileRow> {
    let row = |((kind, op), t): ((&'static str, String), Totals)| {
        // Work by nanoseconds is in thousands of millions a second.
        let rate = |amount: f64| if t.nanoseconds == 0 { 0.0 } else { amount / t.nanoseconds as f64 };
        ProfileRow {
            kind,
            op,
            count: t.count,
            milliseconds: t.nanoseconds as f64 / 1e6,
            share: if all == 0 { 0.0 } else { t.nanoseconds as f64 / all as f64 },
            gflops_per_second: rate(t.work.flops),
            gigabytes_per_second: rate(t.work.bytes),
        }
    };
    let mut rows: Vec<ProfileRow> = totals.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    rows
}
