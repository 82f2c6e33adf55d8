//! Lowering and execution, end to end: random graphs with random shardings on random meshes (the generator of the partitioner's
//! test) are partitioned, rewritten, lowered, checked, and run by the runtime with interpreted kernels; the results
//! must be what the reference evaluator says.
//! `RANDOM_PROGRAM_SEEDS=m..n` runs other seeds; a failure names its own.

#[path = "../../passes/tests/random_partitions/graph.rs"]
mod graph;
#[path = "../../passes/tests/random_partitions/rng.rs"]
mod rng;
#[path = "../../passes/tests/random_partitions/selection.rs"]
mod selection;
#[path = "../../passes/tests/random_partitions/sharded.rs"]
mod sharded;

mod models;
mod repeats;
mod short;

use pcc_ir::eval::{Tensor, eval_func};
use pcc_ir::graph::{Entry, Role};
use pcc_ir::ops::Op;
use pcc_ir::program::{BatchPlan, ModelInfo};
use pcc_ir::{DType, Func, Module};
use pcc_passes::cost::Cluster;
use pcc_passes::lower::{LowerInput, lower};
use pcc_passes::{partition, rewrite, verify};
use pcc_runtime::{HostData, HostTensor, Interpreter, NoWeights, Options, Session};
use rng::Rng;
use sharded::Builder;

const SEEDS: std::ops::Range<u64> = 0..200;

/// Runs `one` on every seed; it says how much it compared.
fn run_seeds(one: impl Fn(u64) -> Result<usize, String> + std::panic::RefUnwindSafe) {
    let mut failures = Vec::new();
    let mut compared = 0;
    for seed in rng::seeds("RANDOM_PROGRAM_SEEDS", SEEDS) {
        match std::panic::catch_unwind(|| one(seed)) {
            Ok(Ok(n)) => compared += n,
            Ok(Err(e)) => failures.push(format!("seed {seed}: {e}")),
            Err(_) => failures.push(format!("seed {seed}: panicked")),
        }
    }
    assert!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures.join("\n"));
    assert!(compared > 0 || std::env::var("RANDOM_PROGRAM_SEEDS").is_ok());
}

#[test]
fn random_programs_equal_the_reference() {
    run_seeds(one);
}

/// Runs one seed; returns how many results were compared.
fn one(seed: u64) -> Result<usize, String> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mesh = sharded::mesh(&mut rng);
    let count = rng.within(3, 9);
    let mut b = match seed % 4 {
        2 => graph::linear(rng, mesh, "body", count),
        _ => graph::random(rng, mesh, "body", count),
    };
    // An entry's results are never partial.
    let whole = |v: &pcc_ir::ValueId| b.sharding(*v).partial.is_empty();
    b.f.results = b.made().into_iter().filter(whole).rev().take(3).collect();
    b.f.results.dedup();
    if b.f.results.is_empty() {
        return Ok(0);
    }
    let module = module(&b, mesh, seed);
    let args = arguments(&b, &mut Rng::new(seed ^ 0xabcd));
    let body = module.func_named("body").ok_or("no body")?;
    let want = eval_func(&module, body, &args)?;
    let batch = BatchPlan { batch: mesh.dp as usize, replicas: mesh.dp as usize, micro_batches: 1 };
    let mut session = session(&module, batch)?;
    let inputs = args.iter().enumerate().map(|(i, t)| (format!("x{i}"), host(t))).collect();
    let got = session.run("main", &inputs, mesh.dp as usize).map_err(|d| format!("run: {d}"))?;
    for (i, want) in want.iter().enumerate() {
        compare(&got[&format!("y{i}")], want).map_err(|e| format!("result {i}: {e}"))?;
    }
    Ok(want.len())
}

/// Partitions, lowers, checks and loads a sharded module. Buffers hold NaN until they are written.
fn session(module: &Module, batch: BatchPlan) -> Result<Session, String> {
    let mut local = partition::partition(module).map_err(|d| format!("partition: {d}"))?;
    rewrite::rewrite_collectives(&mut local, module).map_err(|d| format!("rewrite: {d}"))?;
    let input = LowerInput {
        sharded: module,
        local: &local,
        info: ModelInfo::default(),
        batch,
        dtype: pcc_ir::DType::F32,
        weights: None,
        device: Default::default(),
        memory: None,
        cluster: Cluster::a100(),
        stages: None,
    };
    let shown =
        |e: String| if std::env::var("RANDOM_PROGRAM_SEEDS").is_ok() { format!("{e}\n{local}") } else { e };
    let program = lower(&input).map_err(|d| shown(format!("lower: {d}")))?.program;
    for kernel in program.kernels.values() {
        kernel.check().map_err(|e| format!("kernel {}: {e:?}", kernel.name))?;
    }
    verify::check_program(module, &local, &program).map_err(|d| shown(format!("verify: {d}")))?;
    let kernels = Box::new(Interpreter::new(program.kernels.values()));
    let options = Options { workers: 1, poison: true, ..Options::default() };
    Session::new(program, kernels, &NoWeights, &options, &|_, _| {}).map_err(|d| format!("session: {d}"))
}

/// The body, and an entry that calls it.
fn module(b: &Builder, mesh: pcc_ir::Mesh, seed: u64) -> Module {
    let mut main = Func::new("main");
    let like = |main: &mut Func, v, arg: bool| {
        let value = b.f.values[v].clone();
        let id = if arg { main.arg(value.ty.clone(), "") } else { main.value(value.ty.clone()) };
        main.values[id].sharding = value.sharding;
        id
    };
    let args: Vec<_> = b.f.args.iter().map(|&v| like(&mut main, v, true)).collect();
    let results: Vec<_> = b.f.results.iter().map(|&v| like(&mut main, v, false)).collect();
    let mut m = Module { name: format!("seed {seed}"), mesh, ..Module::default() };
    let body = m.funcs.push(b.f.clone());
    main.insts.push(pcc_ir::Inst { op: Op::Call(body), args, results: results.clone(), loc: "body".into() });
    main.results = results;
    let (n, r) = (main.args.len(), main.results.len());
    let func = m.funcs.push(main);
    m.entries.push(Entry {
        name: "main".into(),
        func,
        args: (0..n).map(|i| Role::Input(format!("x{i}"))).collect(),
        results: (0..r).map(|i| format!("y{i}")).collect(),
        aliases: Vec::new(),
        weight: 1.0,
        repeats: Vec::new(),
    });
    m
}

/// Arguments that f32 holds exactly, so that both sides start from the same numbers.
fn arguments(b: &Builder, rng: &mut Rng) -> Vec<Tensor> {
    let one = |&v: &pcc_ir::ValueId| {
        let ty = b.f.ty(v).clone();
        match b.ranges.iter().find(|r| r.0 == v) {
            Some(&(_, low, high)) => {
                Tensor::from_fn(ty, |_| low as f64 + rng.below((high - low + 1) as usize) as f64)
            }
            None => Tensor::from_fn(ty, |_| f64::from(rng.number() as f32)),
        }
    };
    b.f.args.iter().map(one).collect()
}

fn host(t: &Tensor) -> HostTensor {
    let data = match t.ty.dtype {
        DType::I32 => HostData::I32(t.data.iter().map(|&x| x as i32).collect()),
        DType::I64 => HostData::I64(t.data.iter().map(|&x| x as i64).collect()),
        DType::Bool => HostData::Bool(t.data.iter().map(|&x| x != 0.0).collect()),
        _ => HostData::F32(t.data.iter().map(|&x| x as f32).collect()),
    };
    HostTensor { shape: t.ty.shape.clone(), data }
}

/// f32 arithmetic against f64: 1e-3 of the largest magnitude.
fn compare(got: &HostTensor, want: &Tensor) -> Result<(), String> {
    if got.shape != want.ty.shape {
        return Err(format!("shape {:?}, not {:?}", got.shape, want.ty.shape));
    }
    let got: Vec<f64> = match &got.data {
        HostData::F32(v) => v.iter().map(|&x| x.into()).collect(),
        HostData::F64(v) => v.clone(),
        HostData::I32(v) => v.iter().map(|&x| x.into()).collect(),
        HostData::I64(v) => v.iter().map(|&x| x as f64).collect(),
        HostData::Bool(v) => v.iter().map(|&x| f64::from(u8::from(x))).collect(),
    };
    let scale = want.data.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(&want.data).enumerate() {
        let close = g == w || (g - w).abs() <= 1e-3 * scale;
        if !close {
            return Err(format!("element {i} is {g}, not {w}"));
        }
    }
    Ok(())
}
