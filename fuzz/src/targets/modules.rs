//! Modules through the passes: text and JSON round-trip, and whatever compiles passes the checker and is a valid program.

use super::execute::run_everywhere;
use super::{accept, demand};
use crate::scratch;
use pcc_frontend::{LoadOptions, describe, load};
use pcc_ir::graph::Label;
use pcc_ir::program::{BatchPlan, ModelInfo, Program};
use pcc_ir::verifier::verify;
use pcc_ir::{Axis, Fault, Mesh, Module, text};
use pcc_passes::driver::{self, Compiled, Options, Pass};
use serde_json::Value;

/// Modules of more instructions than this are not compiled.
const COMPILED: usize = 400;
/// Devices of a stage, at most: every device is a table in some passes.
const DEVICES: u32 = 64;

/// A module in text form: parsed, printed, and brought through the passes as far as it goes.
pub fn pcir(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Some(module) = accept("parse", text::parse(source)) else { return };
    // Only well-formed modules can be printed: a constant that is no number has no text.
    if accept("verify", verify(&module)).is_none() {
        return;
    }
    let printed = module.to_string();
    let again = demand("parsing what was printed", text::parse(&printed));
    assert_eq!(again.to_string(), printed, "text form does not round-trip");
    json_round_trip(&module);
    if !is_compiled(&module) {
        return;
    }
    let passes = [Pass::Outline, Pass::AssignShardings, Pass::Partition, Pass::RewriteCollectives];
    let made = driver::run_passes(module.clone(), &passes, module.mesh.tp > 2, |pass, made| {
        demand(pass.name(), verify(made));
        Ok(())
    });
    accept("passes", made);
    let sharded = module
        .funcs
        .values()
        .flat_map(|f| f.values.values())
        .any(|v| v.sharding.is_some() || v.claim.is_some());
    if !sharded {
        let rows = rows_of(&module).unwrap_or(1);
        // Experts' devices hold rows of their own.
        let replicas = module.mesh.dp as usize * module.mesh.ep as usize;
        let batch = BatchPlan { batch: rows, replicas, micro_batches: 1 };
        let options = options(module.mesh, false, batch, ModelInfo::default());
        if batch.rows() * replicas == rows {
            compile(module, &options);
        }
    }
}

/// A model with the flags of a compile: `{"tp": 2, "pp": 1, "dp": 1, "sp": false, "batch": 4, "micro_batches": 1, "dtype": "f32",
/// "model": ..}`.
pub fn pipeline(data: &[u8]) {
    let Ok(given) = serde_json::from_slice::<Value>(data) else { return };
    let number = |key: &str, most: u64| given[key].as_u64().unwrap_or(1).clamp(1, most);
    let mesh = Mesh {
        tp: number("tp", 12) as u32,
        pp: number("pp", 5) as u32,
        dp: number("dp", 4) as u32,
        ..Mesh::default()
    };
    let (replicas, micro_batches) = (mesh.dp as usize, number("micro_batches", 4) as usize);
    let path = scratch::file("pipeline/model.json", given["model"].to_string().as_bytes());
    let Some(summary) = accept("describe", describe(&path)) else { return };
    let cells = replicas * micro_batches;
    let fixed = summary.rows.map(|rows| rows.saturating_mul(micro_batches));
    let batch = given["batch"].as_u64().map(|b| b.clamp(1, 32) as usize).or(fixed).unwrap_or(cells);
    if batch < cells || batch > 1 << 20 {
        return;
    }
    let batch = BatchPlan { batch, replicas, micro_batches };
    let load_options = LoadOptions {
        batch_rows: batch.rows() * replicas,
        seq: given["seq"].as_u64().map(|n| n.clamp(1, 16) as usize),
        weights: None,
        seed: 1,
    };
    let Some(model) = accept("load", load(&path, &load_options)) else { return };
    if !is_compiled(&model.module) {
        return;
    }
    let mut options = options(mesh, given["sp"] == true, batch, model.info);
    options.memory = given["memory"].as_u64();
    if given["dtype"] == "bf16" {
        options.dtype = pcc_ir::DType::BF16;
    }
    compile(model.module, &options);
}

pub fn options(mesh: Mesh, sp: bool, batch: BatchPlan, info: ModelInfo) -> Options {
    let dtype = pcc_ir::DType::F32;
    Options {
        mesh,
        sp,
        batch,
        dtype,
        device: Default::default(),
        memory: None,
        plan: None,
        info,
        weights: None,
        print_after: None,
    }
}

/// Compiles, and holds what comes of it to its promises.
pub fn compile(module: Module, options: &Options) -> Option<Compiled> {
    let outcome = driver::compile(module, options);
    if let Err(d) = &outcome {
        assert!(d.fault != Fault::Check, "the checker refuses what the passes made: {d}");
    }
    let compiled = accept("compile", outcome)?;
    let unfolded = demand("unfold", compiled.program.clone().expanded());
    demand("validate", pcc_runtime::validate(&unfolded));
    for level in [&compiled.graph, &compiled.sharded, &compiled.local] {
        demand("verify", verify(level));
        text_round_trip(level);
    }
    program_round_trip(&compiled.program);
    run_everywhere(&compiled.program);
    replay(&compiled, options);
    Some(compiled)
}

/// The plan that came out gives the same program again.
fn replay(compiled: &Compiled, options: &Options) {
    let plan = demand("the plan as JSON", compiled.plan.to_json());
    let plan = demand("the plan from JSON", pcc_passes::plan::Plan::from_json(&plan));
    let again = Options { plan: Some(plan), ..options.clone() };
    let again = demand("replaying the plan", driver::compile(compiled.graph.clone(), &again));
    assert_eq!(again.program, compiled.program, "the plan gives another program");
}

fn text_round_trip(module: &Module) {
    let printed = module.to_string();
    let again = demand("parsing what was printed", text::parse(&printed));
    assert_eq!(again.to_string(), printed, "text form does not round-trip");
    json_round_trip(module);
}

fn json_round_trip(module: &Module) {
    let bytes = json(module);
    let again: Module = from_json(&bytes);
    assert_eq!(again.to_string(), module.to_string(), "JSON form does not round-trip");
}

fn program_round_trip(program: &Program) {
    let bytes = json(program);
    assert_eq!(json(&from_json::<Program>(&bytes)), bytes, "the program does not round-trip");
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|e| panic!("as JSON: {e}")) // invariant: a finding
}

fn from_json<T: for<'a> serde::Deserialize<'a>>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("from its own JSON: {e}")) // invariant: a finding
}

/// Whether a module is of a size to try.
pub fn is_compiled(module: &Module) -> bool {
    let devices = Axis::ALL.iter().try_fold(1u32, |n, &a| n.checked_mul(module.mesh.size(a)));
    module.funcs.values().map(|f| f.insts.len()).sum::<usize>() <= COMPILED
        && devices.is_some_and(|n| n <= DEVICES)
}

/// Extent of the dim that holds rows.
fn rows_of(module: &Module) -> Option<usize> {
    let values = module.entries.iter().flat_map(|e| {
        let f = &module.funcs[e.func];
        f.args.iter().map(|&v| &f.values[v])
    });
    let labelled = |v: &pcc_ir::Value| {
        let dim = v.labels.iter().position(|l| *l == Some(Label::Batch))?;
        v.ty.shape.get(dim).copied()
    };
    values.into_iter().find_map(labelled)
}
