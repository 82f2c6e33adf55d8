//! Runs a program on virtual devices against the reference evaluator: every entry, all micro-batches and replicas, rows of
//! different lengths, states carried from entry to entry.

mod selection;

use pcc_ir::eval::{Tensor, eval_entry, round_to};
use pcc_ir::ops::sample::Draw;
use pcc_ir::program::{BatchPlan, EntryProgram, IoSpec, Program};
use pcc_ir::source::Random;
use pcc_ir::{DType, Diagnostic, Entry, Module, Op};
use pcc_runtime::{HostData, HostTensor, Session};
use selection::{disturbed, selects};
use serde::Serialize;
use std::collections::BTreeMap;

/// The largest difference allowed, relative to the largest magnitude of the reference: far above what f32 sums of a few layers
/// lose (1e-5), far below what a missing or doubled contribution makes (1e-1).
const TOLERANCE: f64 = 1e-3;
/// The same for programs that round operands to 16 bits: where f32 sums differ in the last digit, an element in a few thousand
/// rounds the other way, by 1/256 of itself, and what follows from it rounds differently too. Six random layers differ by 6e-3.
const TOLERANCE_16: f64 = 3e-2;
/// The largest difference allowed of a program that computes in `dtype`.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype.bytes() < DType::F32.bytes() { TOLERANCE_16 } else { TOLERANCE }
}

/// One in so many selected indices and tokens may be another by rounding: near ties are rare.
const NEAR_TIES: usize = 4;

/// How often an entry of one position a row runs.
const DECODE_STEPS: usize = 2;

/// How an output compares with the reference over all runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    pub entry: String,
    pub output: String,
    /// Elements compared.
    pub elements: usize,
    pub max_abs_diff: f64,
    /// The largest difference by the largest magnitude of the reference.
    pub max_rel_diff: f64,
    /// Share of positions whose largest element is the same one, for outputs over more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argmax_agreement: Option<f64>,
    /// Indices and tokens that differ, but are the reference's own when what it selects among is rounded.
    #[serde(skip_serializing_if = "is_none")]
    pub near_ties: usize,
    /// Whether nothing may differ: indices and tokens, of which a near one is no better than another.
    #[serde(skip)]
    exact: bool,
    #[serde(skip)]
    largest: f64,
    #[serde(skip)]
    argmax: (usize, usize),
    /// Row and element of the largest difference, and the two values.
    #[serde(skip)]
    worst: Option<(usize, f64, f64)>,
}

fn is_none(n: &usize) -> bool {
    *n == 0
}

impl Comparison {
    fn add(&mut self, row: usize, got: &[f64], want: &[f64], width: usize) {
        for (&g, &w) in got.iter().zip(want) {
            let same = g == w || g.is_nan() && w.is_nan();
            let diff = if same { 0.0 } else { (g - w).abs() };
            // A value that is no number where the reference has one differs without bound.
            let diff = if diff.is_nan() { f64::INFINITY } else { diff };
            if diff > self.max_abs_diff {
                (self.max_abs_diff, self.worst) = (diff, Some((row, g, w)));
            }
            if w.is_finite() {
                self.largest = self.largest.max(w.abs());
            }
        }
        self.elements += want.len();
        if width > 1 {
            for (g, w) in got.chunks_exact(width).zip(want.chunks_exact(width)) {
                self.argmax.0 += usize::from(argmax(g) == argmax(w));
                self.argmax.1 += 1;
            }
        }
    }

    fn finish(&mut self) {
        self.max_rel_diff = if self.max_abs_diff == 0.0 { 0.0 } else { self.max_abs_diff / self.largest };
        let (same, all) = self.argmax;
        self.argmax_agreement = (all > 0).then(|| same as f64 / all as f64);
    }

    /// # Errors
    /// The output differs by more than the tolerance, or rounding is the excuse for too much of it.
    fn check(&self, tolerance: f64) -> Result<(), Diagnostic> {
        let most = (self.elements / NEAR_TIES).max(2);
        if self.near_ties > most {
            return Err(Diagnostic::check("the program selects something else than the model")
                .at(format!("output `{}` of entry `{}`", self.output, self.entry))
                .why(format!(
                    "{} of {} elements are the reference's only when what it selects among is rounded; at most {most} may be",
                    self.near_ties, self.elements
                )));
        }
        // Not `>`: a difference that is no number must not pass.
        if self.max_rel_diff <= if self.exact { 0.0 } else { tolerance } {
            return Ok(());
        }
        let (row, got, want) = self.worst.unwrap_or_default();
        let how_far = match self.exact {
            true => {
                "it was selected, and no rounding of what it is selected from explains another".to_owned()
            }
            false => format!(
                "{:.1e} of the largest magnitude, at most {tolerance:.0e} is rounding",
                self.max_rel_diff
            ),
        };
        Err(Diagnostic::check("the program computes something else than the model")
            .at(format!("output `{}` of entry `{}`, row {row}", self.output, self.entry))
            .why(format!("it gives {got} where the reference evaluator gives {want}: {how_far}")))
    }
}

/// Runs every entry of a session against a graph whose parameters need no file: with all rows, then where that means something with
/// half of them.
///
/// # Errors
/// An output differs; or the program or the reference cannot run.
pub fn compare(session: &mut Session, graph: &Module, seed: u64) -> Result<Vec<Comparison>, Diagnostic> {
    let program = session.program().clone();
    let params = parameters(graph)?;
    let limit = index_limit(graph, &program);
    let mut order: Vec<(&EntryProgram, &Entry)> = Vec::new();
    for entry in &program.entries {
        match graph.entries.iter().find(|e| e.name == entry.name) {
            Some(of) => order.push((entry, of)),
            None => return Err(Diagnostic::check(format!("the model has no entry `{}`", entry.name))),
        }
    }
    // One position a row after whole rows: decode goes on from what prefill left.
    order.sort_by_key(|e| takes(e.0, "positions"));
    let start = |e: &EntryProgram| {
        let of = |o: &IoSpec| Comparison {
            entry: e.name.clone(),
            output: o.name.clone(),
            exact: is_int(o) && selects(graph),
            ..Comparison::default()
        };
        e.outputs.iter().map(of).collect::<Vec<_>>()
    };
    let mut found: Vec<Vec<Comparison>> = order.iter().map(|e| start(e.0)).collect();
    let all = program.batch.batch;
    // An output over the whole batch is there for all rows only.
    let by_rows = |e: &EntryProgram| {
        e.outputs.iter().all(|o| o.batch_dim.is_some()) || e.inputs.iter().all(|i| i.batch_dim.is_none())
    };
    let fewer = all > 1 && program.entries.iter().all(by_rows);
    for count in if fewer { vec![all, all / 2] } else { vec![all] } {
        let rows = Rows {
            count,
            batch: program.batch,
            positions: sequence(&program),
            step: 0,
            seed,
            index_limit: limit,
        };
        run_rows(session, graph, &order, rows, &params, &mut found)?;
    }
    let mut found: Vec<Comparison> = found.into_iter().flatten().collect();
    found.iter_mut().for_each(Comparison::finish);
    let tolerance = tolerance(program.dtype);
    found.iter().try_for_each(|c| c.check(tolerance))?;
    Ok(found)
}

/// Runs the entries once each, from fresh states, and adds to what was found.
fn run_rows(
    session: &mut Session,
    graph: &Module,
    order: &[(&EntryProgram, &Entry)],
    mut rows: Rows,
    params: &[Tensor],
    found: &mut [Vec<Comparison>],
) -> Result<(), Diagnostic> {
    let fresh = || graph.states.values().map(|s| Tensor::zeros(s.ty.clone())).collect::<Vec<_>>();
    let mut states: Vec<_> = (0..rows.batch.micro_batches).map(|_| fresh()).collect();
    session.reset_states()?;
    for ((entry, of), outcomes) in order.iter().zip(found) {
        let steps = if takes(entry, "positions") { DECODE_STEPS } else { 1 };
        for step in 0..steps {
            rows.step = step;
            let inputs: BTreeMap<String, HostTensor> =
                entry.inputs.iter().map(|spec| (spec.name.clone(), rows.input(spec, entry))).collect();
            let got = session.run(&entry.name, &inputs, rows.count)?;
            for (m, states) in states.iter_mut().enumerate().filter(|s| rows.are_in(s.0)) {
                let before = selects(graph).then(|| states.clone());
                let mut want = reference(graph, of, entry, &rows, m, &inputs, params, states)?;
                if let Some(before) = before {
                    let rounded = |number| {
                        let graph = disturbed(graph, tolerance(session.program().dtype), number)?;
                        reference(&graph, of, entry, &rows, m, &inputs, params, &mut before.clone())
                    };
                    accept_near_ties(entry, &rows, m, (&got, &mut want), outcomes, rounded)?;
                }
                for (spec, outcome) in entry.outputs.iter().zip(&mut *outcomes) {
                    let (Some(got), Some(want)) = (got.get(&spec.name), want.get(&spec.name)) else {
                        return Err(Diagnostic::check(format!("output `{}` is missing", spec.name)));
                    };
                    compare_rows(spec, &rows, m, got, want, outcome);
                }
            }
        }
    }
    Ok(())
}

fn takes(entry: &EntryProgram, input: &str) -> bool {
    entry.inputs.iter().any(|i| i.name == input)
}

/// The values of every parameter, as f64.
fn parameters(graph: &Module) -> Result<Vec<Tensor>, Diagnostic> {
    let value = |p: &pcc_ir::Param| {
        let mut out = vec![0.0f32; p.ty.elements()];
        let whole: Vec<_> = p.ty.shape.iter().map(|&n| 0..n).collect();
        if !p.source.fill(&whole, &mut out)? {
            return Err(Diagnostic::internal(format!("parameter `{}` needs a file", p.name)));
        }
        let data = out.into_iter().map(|x| round_to(p.ty.dtype, f64::from(x))).collect();
        Ok(Tensor { ty: p.ty.clone(), data })
    };
    graph.params.values().map(value).collect()
}

/// Positions of a row: the sequence extent of the inputs, or 1.
fn sequence(program: &Program) -> usize {
    let specs = program.entries.iter().flat_map(|e| &e.inputs);
    specs.filter_map(|s| s.ty.shape.get(s.seq_dim?).copied()).max().unwrap_or(1)
}

/// Indices below this are in every table that rows are gathered from.
fn index_limit(graph: &Module, program: &Program) -> usize {
    if program.model.vocab > 0 {
        return program.model.vocab;
    }
    let gathers = graph.funcs.values().flat_map(|f| f.insts.iter().map(move |i| (f, i)));
    let rows = gathers.filter_map(|(f, i)| match &i.op {
        Op::Gather(g) => f.ty(*i.args.first()?).shape.get(g.batch).copied(),
        _ => None,
    });
    rows.min().unwrap_or(2)
}

/// The rows of one run.
struct Rows {
    count: usize,
    batch: BatchPlan,
    /// Positions of a row.
    positions: usize,
    /// How many tokens were decoded before.
    step: usize,
    seed: u64,
    index_limit: usize,
}

impl Rows {
    /// Whether a micro-batch has any of the rows: others do not run.
    fn are_in(&self, micro_batch: usize) -> bool {
        (0..self.batch.replicas).any(|r| !self.batch.cell(self.count, r, micro_batch).is_empty())
    }

    /// Valid positions of a row: the first row is nearly full, the others have other lengths. Two positions are left for decoding.
    fn length(&self, row: usize) -> usize {
        let most = self.positions.saturating_sub(DECODE_STEPS).max(1);
        most - row * 3 % most
    }

    fn input(&self, spec: &IoSpec, entry: &EntryProgram) -> HostTensor {
        let mut shape = spec.ty.shape.clone();
        if let Some(n) = spec.batch_dim.and_then(|d| shape.get_mut(d)) {
            *n = self.count;
        }
        let elements: usize = shape.iter().product();
        let name = format!("{}.{}.{}", entry.name, spec.name, self.step);
        let noise = Random { seed: self.seed, name, scale: 1.0 };
        if entry.draws()
            && let Some(data) = self.draws(&spec.name, &noise)
        {
            return HostTensor { shape, data };
        }
        // Row and position of an element, from the labelled dims.
        let place = |i: usize, dim: Option<usize>| {
            dim.map_or(0, |d| i / shape[d + 1..].iter().product::<usize>() % shape[d])
        };
        let whole = |i: usize| {
            let (row, position) = (place(i, spec.batch_dim), place(i, spec.seq_dim));
            match spec.name.as_str() {
                "lengths" => self.length(row),
                "positions" => self.length(row) + self.step,
                "attention_mask" => usize::from(position < self.length(row)),
                "token_types" => usize::from(2 * position >= self.length(row)),
                // 1000 steps a standard deviation: spread over any table.
                _ => (noise.value(i as u64).abs() * 1000.0) as usize % self.index_limit,
            }
        };
        let data = match spec.ty.dtype {
            DType::Bool => HostData::Bool((0..elements).map(|i| noise.value(i as u64) > 0.0).collect()),
            DType::I64 => HostData::I64((0..elements).map(|i| whole(i) as i64).collect()),
            DType::I32 => HostData::I32((0..elements).map(|i| whole(i) as i32).collect()),
            _ => HostData::F32((0..elements).map(|i| noise.value(i as u64)).collect()),
        };
        HostTensor { shape, data }
    }
}

impl Rows {
    /// What says how to draw, each row in another way, none of which often leaves one token to choose.
    fn draws(&self, input: &str, noise: &Random) -> Option<HostData> {
        let draw = |row: usize| Draw {
            temperature: [1.0, 0.5, 2.0][row % 3],
            top_p: [1.0, 0.9][row % 2],
            top_k: [0, 8, 0, 40][row % 4],
            seed: u64::from(noise.value(row as u64).to_bits()) << 13 | row as u64,
            draw: (self.step * 7 + row) as u32,
        };
        match input {
            "settings" => Some(HostData::F32((0..self.count).flat_map(|r| draw(r).settings()).collect())),
            "key" => Some(HostData::I32((0..self.count).flat_map(|r| draw(r).key()).collect())),
            _ => None,
        }
    }
}

/// What the model computes for one micro-batch; the states move on.
fn reference(
    graph: &Module,
    of: &Entry,
    entry: &EntryProgram,
    rows: &Rows,
    micro_batch: usize,
    inputs: &BTreeMap<String, HostTensor>,
    params: &[Tensor],
    states: &mut [Tensor],
) -> Result<BTreeMap<String, Tensor>, Diagnostic> {
    let mut given = BTreeMap::new();
    for spec in &entry.inputs {
        let Some(host) = inputs.get(&spec.name) else { continue };
        let data = numbers(host);
        let mut tensor = Tensor::zeros(spec.ty.clone());
        for lane in lanes(spec, rows, micro_batch) {
            let width = lane.width;
            for o in 0..lane.outer {
                let (to, from) = ((o * lane.lanes + lane.at) * width, (o * lane.rows + lane.row) * width);
                let values = data[from..from + width].iter().map(|&x| round_to(spec.ty.dtype, x));
                tensor.data[to..to + width].iter_mut().zip(values).for_each(|(t, v)| *t = v);
            }
        }
        given.insert(spec.name.clone(), tensor);
    }
    eval_entry(graph, of, &given, params, states).map_err(|why| {
        Diagnostic::internal(format!("the reference evaluator cannot run entry `{}`", entry.name)).why(why)
    })
}

fn is_int(spec: &IoSpec) -> bool {
    matches!(spec.ty.dtype, DType::I32 | DType::I64)
}

/// Takes over integers that the reference gives, too, when what it selects among is `rounded` in one of [`selection::TRIES`] ways.
fn accept_near_ties(
    entry: &EntryProgram,
    rows: &Rows,
    micro_batch: usize,
    (got, want): (&BTreeMap<String, HostTensor>, &mut BTreeMap<String, Tensor>),
    outcomes: &mut [Comparison],
    rounded: impl Fn(u64) -> Result<BTreeMap<String, Tensor>, Diagnostic>,
) -> Result<(), Diagnostic> {
    // Output, position in the reference's tensor, value found.
    let mut open: Vec<(usize, usize, f64)> = Vec::new();
    for (o, spec) in entry.outputs.iter().enumerate().filter(|(_, spec)| is_int(spec)) {
        let (Some(got), Some(want)) = (got.get(&spec.name), want.get(&spec.name)) else { continue };
        let data = numbers(got);
        for lane in lanes(spec, rows, micro_batch) {
            let differs = |(from, at): (usize, usize)| {
                let (&g, &w) = (data.get(from)?, want.data.get(at)?);
                (g != w).then_some((o, at, g))
            };
            open.extend(lane.elements().filter_map(differs));
        }
    }
    for number in 0..selection::TRIES {
        if open.is_empty() {
            break;
        }
        let other = rounded(number)?;
        let same = |&(o, at, g): &(usize, usize, f64)| {
            other.get(&entry.outputs[o].name).is_some_and(|t| t.data.get(at) == Some(&g))
        };
        for &(o, at, g) in open.iter().filter(|x| same(x)) {
            if let Some(want) = want.get_mut(&entry.outputs[o].name) {
                want.data[at] = g;
                outcomes[o].near_ties += 1;
            }
        }
        open.retain(|x| !same(x));
    }
    Ok(())
}

fn compare_rows(
    spec: &IoSpec,
    rows: &Rows,
    micro_batch: usize,
    got: &HostTensor,
    want: &Tensor,
    outcome: &mut Comparison,
) {
    let data = numbers(got);
    let last =
        if spec.batch_dim == spec.ty.rank().checked_sub(1) { 1 } else { *spec.ty.shape.last().unwrap_or(&1) };
    for lane in lanes(spec, rows, micro_batch) {
        let width = lane.width;
        for o in 0..lane.outer {
            let (at, from) = ((o * lane.lanes + lane.at) * width, (o * lane.rows + lane.row) * width);
            let got = data.get(from..from + width).unwrap_or_default();
            outcome.add(lane.row, got, &want.data[at..at + width], last);
        }
    }
}

/// One row the user gives, in a tensor of one micro-batch: blocks of `width` elements, `outer` of them.
struct Lane {
    outer: usize,
    width: usize,
    /// Extents of the batch dim in the micro-batch's tensor and in the user's, and the indices of the row in them.
    lanes: usize,
    rows: usize,
    at: usize,
    row: usize,
}

impl Lane {
    /// Of each element, its place in the user's tensor and in the micro-batch's.
    fn elements(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let block =
            |o: usize| ((o * self.rows + self.row) * self.width, (o * self.lanes + self.at) * self.width);
        (0..self.outer).map(block).flat_map(|(from, at)| (0..self.width).map(move |i| (from + i, at + i)))
    }
}

/// The rows of a micro-batch; the whole tensor when it has no batch dim.
fn lanes(spec: &IoSpec, rows: &Rows, micro_batch: usize) -> Vec<Lane> {
    let shape = &spec.ty.shape;
    let Some(d) = spec.batch_dim else {
        return vec![Lane { outer: 1, width: spec.ty.elements(), lanes: 1, rows: 1, at: 0, row: 0 }];
    };
    let (outer, width) = (shape[..d].iter().product(), shape[d + 1..].iter().product());
    let capacity = rows.batch.rows();
    let lane = |at: usize| {
        let row = rows.batch.cell(rows.count, at / capacity, micro_batch).nth(at % capacity)?;
        Some(Lane { outer, width, lanes: shape[d], rows: rows.count, at, row })
    };
    (0..shape[d]).filter_map(lane).collect()
}

/// The elements as f64.
fn numbers(t: &HostTensor) -> Vec<f64> {
    match &t.data {
        HostData::F32(v) => v.iter().map(|&x| x.into()).collect(),
        HostData::F64(v) => v.clone(),
        HostData::I32(v) => v.iter().map(|&x| x.into()).collect(),
        HostData::I64(v) => v.iter().map(|&x| x as f64).collect(),
        HostData::Bool(v) => v.iter().map(|&x| f64::from(u8::from(x))).collect(),
    }
}

/// Index of the largest element, the first of equal ones.
fn argmax(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (i, &x)| if x > values[best] { i } else { best })
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
