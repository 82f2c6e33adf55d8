//! Random graphs with random legal shardings on random meshes, partitioned, rewritten and run on all devices, equal the
//! reference evaluator: dims that do not divide, sub-axes and the interior padding they bring, grouped-query attention, partials of
//! sums, maxima and minima, layers called twice.
//!
//! A failure names its seed; `RANDOM_PARTITION_SEEDS=7 cargo test -p pcc-passes --test random_partitions` runs it alone, `0..20000`
//! many more.

mod graph;
mod mutants;
mod oracle;
mod rng;
mod selection;
mod sharded;

use oracle::{arguments, check_claims, compare};
use pcc_ir::eval::{Tensor, eval_func, eval_spmd, shard, unshard};
use pcc_ir::graph::{Entry, Role};
use pcc_ir::ops::{BinaryKind, Collective, Op};
use pcc_ir::{FuncId, Module, Term, Type};
use pcc_passes::{partition, rewrite, verify};
use rng::Rng;
use sharded::Builder;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SEEDS: std::ops::Range<u64> = 0..320;

/// How often each thing occurred, so that the test cannot come to nothing unseen.
type Counts = BTreeMap<&'static str, usize>;

#[test]
fn random_partitions_equal_the_reference() {
    let seeds = rng::seeds("RANDOM_PARTITION_SEEDS", SEEDS);
    let alone = seeds.end - seeds.start < SEEDS.end;
    let (mut counts, mut failures) = (Counts::new(), Vec::new());
    for seed in seeds {
        let run = || if seed % 4 == 3 { layered(seed, &mut counts) } else { single(seed, &mut counts) };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => failures.push(format!("seed {seed}: {e}")),
            Err(_) => failures.push(format!("seed {seed}: panicked")),
        }
    }
    assert!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures.join("\n"));
    println!("{counts:?}");
    for kind in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shard_slice", "mask_tail"] {
        assert!(alone || counts.get(kind).is_some_and(|&n| n >= 40), "too few {kind}: {counts:?}");
    }
    for kind in ["rewritten", "sums of terms", "top_k", "sample"] {
        assert!(alone || counts.get(kind).is_some_and(|&n| n >= 5), "too few {kind}: {counts:?}");
    }
}

/// A seed beyond the ones above that the checker was once wrong about.
#[test]
fn a_seed_that_once_failed() {
    // Zeros in padding that a claim leaves open were relied on.
    assert_eq!(layered(19235, &mut Counts::new()), Ok(()));
}

/// One function, all results of its last ops.
fn single(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mesh = sharded::mesh(&mut rng);
    let count = rng.within(3, 9);
    let mut b = match seed % 4 {
        2 => graph::linear(rng, mesh, "main", count),
        _ => graph::random(rng, mesh, "main", count),
    };
    let reshards = b.f.insts.iter().filter(|i| matches!(i.op, Op::Reshard(_)));
    let reshards: Vec<_> = reshards.map(|i| i.results[0]).collect();
    b.f.results = b.made().into_iter().rev().filter(|v| !reshards.contains(v)).take(3).collect();
    let mut module = Module { name: "random".into(), mesh, ..Module::default() };
    let id = module.funcs.push(b.f.clone());
    module.entries.push(entry(id, b.f.args.len(), b.f.results.len()));
    let args = arguments(&b, &mut Rng::new(seed ^ 0xabcd));
    run(&module, id, &[(id, args)], counts)
}

/// A layer called twice in a chain: the padding of the chain value is agreed between the calls.
fn layered(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mesh = sharded::mesh(&mut rng);
    let count = rng.within(2, 6);
    let mut layer = graph::random(rng, mesh, "layer", count);
    let x = layer.f.args[0];
    let ty = layer.f.ty(x).clone();
    let alike: Vec<_> = layer.f.values.keys().filter(|&v| *layer.f.ty(v) == ty).collect();
    let y = alike[alike.len() - 1];
    let y = layer.op(Op::Binary(BinaryKind::Add), &[x, y]);
    let stream = layer.sharding(x).clone();
    let y = layer.reshard(y, stream);
    layer.f.results = vec![y];

    let mut main = Builder::new(Rng::new(seed), mesh, "main");
    for &v in &layer.f.args {
        let arg = main.f.arg(layer.f.ty(v).clone(), "");
        main.f.values[arg].sharding = Some(layer.sharding(v).clone());
        if let Some(r) = layer.ranges.iter().find(|r| r.0 == v) {
            main.ranges.push((arg, r.1, r.2));
        }
    }
    let mut module = Module { name: "layers".into(), mesh, ..Module::default() };
    let layer_id = module.funcs.push(layer.f.clone());
    let mut chain = main.f.args[0];
    for _ in 0..2 {
        let args = [&[chain], &main.f.args[1..]].concat();
        chain = main.f.push(Op::Call(layer_id), args, vec![ty.clone()], "layer")[0];
        main.f.values[chain].sharding = Some(layer.sharding(x).clone());
    }
    main.f.results = vec![chain];
    let id = module.funcs.push(main.f.clone());
    module.entries.push(entry(id, main.f.args.len(), 1));
    let mut rng = Rng::new(seed ^ 0xabcd);
    let (inner, outer) = (arguments(&layer, &mut rng), arguments(&main, &mut rng));
    run(&module, id, &[(id, outer), (layer_id, inner)], counts)
}

fn entry(func: FuncId, args: usize, results: usize) -> Entry {
    Entry {
        name: "main".into(),
        func,
        args: (0..args).map(|i| Role::Input(format!("x{i}"))).collect(),
        results: (0..results).map(|i| format!("y{i}")).collect(),
        aliases: Vec::new(),
        weight: 1.0,
        repeats: Vec::new(),
    }
}

/// Partitions, checks every claim of every function, rewrites, checks again, and compares the entry's results.
fn run(
    sharded: &Module,
    main: FuncId,
    funcs: &[(FuncId, Vec<Tensor>)],
    counts: &mut Counts,
) -> Result<(), String> {
    let mut local = partition::partition(sharded).map_err(|d| format!("partition: {d}"))?;
    count(&local, counts);
    for (id, args) in funcs {
        check_claims(sharded, &local, *id, args).map_err(|e| format!("partitioned: {e}"))?;
    }
    check_results(sharded, &local, main, &funcs[0].1).map_err(|e| format!("partitioned: {e}"))?;
    verify::check_functions(sharded, &local).map_err(|d| format!("verify partitioned: {d}"))?;
    let reports = rewrite::rewrite_collectives(&mut local, sharded).map_err(|d| format!("rewrite: {d}"))?;
    for r in &reports {
        *counts.entry("unsaturated").or_default() += usize::from(!r.stop.contains("Saturated"));
        *counts.entry("rewritten").or_default() += usize::from(r.after < r.before);
        *counts.entry("with a gap").or_default() += usize::from(r.gap > 0.0);
    }
    let claims = local.funcs.values().flat_map(|f| f.values.values()).filter_map(|v| v.claim.as_ref());
    *counts.entry("sums of terms").or_default() += claims.filter(|c| matches!(c.term, Term::Sum(_))).count();
    for (id, args) in funcs {
        check_claims(sharded, &local, *id, args).map_err(|e| format!("rewritten: {e}"))?;
    }
    check_results(sharded, &local, main, &funcs[0].1).map_err(|e| format!("rewritten: {e}"))?;
    verify::check_functions(sharded, &local).map_err(|d| format!("verify rewritten: {d}"))?;
    let made = mutants::check(sharded, &local, funcs, &mut Rng::new(seed_of(&local)))?;
    *counts.entry("mutants rejected").or_default() += made.rejected;
    *counts.entry("mutants accepted").or_default() += made.accepted;
    Ok(())
}

/// A number of a module, so that each has its own mutants.
fn seed_of(local: &Module) -> u64 {
    let sizes = local.funcs.values().flat_map(|f| f.values.values()).map(|v| v.ty.elements() as u64);
    sizes.fold(17, |h, n| h.wrapping_mul(31).wrapping_add(n))
}

fn check_results(sharded: &Module, local: &Module, id: FuncId, args: &[Tensor]) -> Result<(), String> {
    let want = eval_func(sharded, id, args)?;
    let f = &sharded.funcs[id];
    let placed = |v| f.values[v].sharding.as_ref().expect("sharded");
    let mesh = sharded.mesh;
    let on = |d: usize| f.args.iter().zip(args).map(|(&v, t)| shard(t, placed(v), &mesh, d, 0.0)).collect();
    let pieces: Vec<Vec<Tensor>> = (0..mesh.stage_devices()).map(on).collect();
    let got = eval_spmd(local, id, &pieces)?;
    for (i, (&v, want)) in f.results.iter().zip(&want).enumerate() {
        let ty: &Type = f.ty(v);
        let pieces: Vec<_> = got.iter().map(|r| r[i].clone()).collect();
        let whole = unshard(&pieces, placed(v), &mesh, ty).map_err(|e| format!("result {i}: {e}"))?;
        compare(&whole, want).map_err(|e| format!("result {i}: {e}"))?;
    }
    Ok(())
}

fn count(local: &Module, counts: &mut Counts) {
    for inst in local.funcs.values().flat_map(|f| &f.insts) {
        let name = match &inst.op {
            Op::Collective(Collective::AllReduce { .. }) => "all_reduce",
            Op::Collective(Collective::AllGather { .. }) => "all_gather",
            Op::Collective(Collective::ReduceScatter { .. }) => "reduce_scatter",
            Op::Collective(Collective::AllToAll { .. }) => "all_to_all",
            Op::ShardSlice(_) => "shard_slice",
            Op::MaskTail(_) => "mask_tail",
            Op::TopK(_) => "top_k",
            Op::Sample(_) => "sample",
            _ => continue,
        };
        *counts.entry(name).or_default() += 1;
    }
}
