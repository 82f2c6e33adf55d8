//! Twins of decoders, of perceptrons and of what cannot shrink.

use super::*;
use crate::cost::Cluster;
use crate::driver;
use crate::solve::models::{self, GPT2, LLAMA_7B, SMOLLM, Sizes};
use crate::solve::{Options, solve};
use pcc_ir::eval::{Tensor, eval_entry};
use pcc_ir::graph::Role;
use pcc_ir::{Mesh, ReduceKind};
use std::collections::BTreeMap;

/// A decoder whose new states have the states' names, as the verifier wants.
fn llama(z: &Sizes, tied: bool) -> Module {
    let mut module = models::llama(z, true, tied);
    for entry in &mut module.entries {
        for &(a, r) in &entry.aliases {
            if let Role::State(s) = entry.args[a] {
                entry.results[r].clone_from(&module.states[s].name);
            }
        }
    }
    module
}

const DEEP: Sizes = Sizes { layers: 9, ..SMOLLM };

fn plan(module: &Module, mesh: Mesh, sp: bool, batch: BatchPlan, stages: Vec<usize>) -> Plan {
    let options = Options { mesh, sp, cluster: Cluster::a100(), pins: Vec::new() };
    let assignment = solve(module, &options).unwrap().assignment;
    let mut plan = Plan::new(module, &assignment, mesh, sp, batch);
    plan.stages = stages;
    plan
}

fn twin_of(module: &Module, plan: &Plan) -> Result<Twin, Diagnostic> {
    let module = Module { mesh: plan.mesh, ..module.clone() };
    twin(&module, plan, &plan.batch, &ModelInfo::default())
}

fn one_row(batch: usize) -> BatchPlan {
    BatchPlan { batch, replicas: 1, micro_batches: 1 }
}

/// Compiles the twin by its plan, which proves it, and runs every entry of its graph.
fn compiles_and_runs(twin: &Twin) -> driver::Compiled {
    let options = driver::Options {
        mesh: twin.plan.mesh,
        sp: twin.plan.sp,
        batch: twin.batch,
        dtype: pcc_ir::DType::F32,
        device: Default::default(),
        memory: None,
        plan: Some(twin.plan.clone()),
        info: twin.info.clone(),
        weights: None,
        print_after: None,
    };
    let mut graph = twin.graph.clone();
    randomise(&mut graph, 1);
    let params: Vec<Tensor> = graph
        .params
        .values()
        .map(|p| {
            let mut data = vec![0.0; p.ty.elements()];
            p.source.fill(&p.ty.shape.iter().map(|&n| 0..n).collect::<Vec<_>>(), &mut data).unwrap();
            Tensor { ty: p.ty.clone(), data: data.into_iter().map(f64::from).collect() }
        })
        .collect();
    let mut states: Vec<Tensor> = graph.states.values().map(|s| Tensor::zeros(s.ty.clone())).collect();
    for entry in &graph.entries {
        let f = &graph.funcs[entry.func];
        let mut inputs = BTreeMap::new();
        for (&v, role) in f.args.iter().zip(&entry.args) {
            if let Role::Input(name) = role {
                inputs.insert(name.clone(), Tensor::from_fn(f.ty(v).clone(), |i| (i % 3) as f64));
            }
        }
        let outputs = eval_entry(&graph, entry, &inputs, &params, &mut states).unwrap();
        for (name, t) in outputs {
            let large = t.data.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!(large.is_finite() && large > 1e-3, "{name} of {}: {large}", entry.name);
        }
    }
    driver::compile(graph, &options).unwrap()
}

#[test]
fn a_deep_cached_decoder() {
    let module = llama(&DEEP, true);
    let calls = module.funcs[module.entries[0].func].insts.len();
    let mesh = Mesh { tp: 9, pp: 3, ..Mesh::default() };
    let twin = twin_of(&module, &plan(&module, mesh, false, one_row(2), vec![4, 4, calls - 8])).unwrap();
    // A stage keeps one of each function: embedding and layer, layer, layer and head.
    assert_eq!(twin.plan.stages, [2, 1, 2]);
    for entry in &twin.graph.entries {
        assert_eq!(twin.graph.funcs[entry.func].insts.len(), 5);
    }
    // One cache of keys and one of values for each layer left.
    assert_eq!(twin.graph.states.len(), 2 * 3);
    let names = |m: &Module| m.funcs.values().map(|f| f.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&twin.graph), names(&module), "every function stays");
    let compiled = compiles_and_runs(&twin);
    assert!(compiled.report.verify.ok && compiled.program.entries.iter().all(|e| e.stages.len() == 3));
}

/// The sharding of each value of the twin is the real one, with the same remainders and empty devices.
#[test]
fn extents_are_as_uneven_as_the_real_ones() {
    for (module, tp, sp) in [
        (llama(&SMOLLM, true), 9, false),
        (llama(&LLAMA_7B, false), 8, true),
        (models::gpt2(&GPT2), 5, false),
    ] {
        let mesh = Mesh { tp, ..Mesh::default() };
        let calls = module.funcs[module.entries[0].func].insts.len();
        let plan = plan(&module, mesh, sp, one_row(2), vec![calls]);
        let twin = twin_of(&module, &plan).unwrap();
        assert!(twin.graph.parameters() < module.parameters() / 20, "{}", twin.graph.parameters());
        for p in twin.graph.params.values() {
            let real = module.params.values().find(|q| q.name == p.name).unwrap();
            let of = |plan: &Plan| plan.params.iter().find(|q| q.name == p.name).unwrap().sharding.clone();
            let sharding = of(&plan);
            assert_eq!(of(&twin.plan), sharding, "{}", p.name);
            for (i, axes) in sharding.dims.iter().enumerate().filter(|d| !d.1.is_empty()) {
                let (n, m) = (real.ty.shape[i], p.ty.shape[i]);
                let group = pcc_ir::mesh::group_size(axes);
                assert_eq!(n % group, m % group, "dim {i} of {}: {n} and {m}", p.name);
                let empty = |n: usize| {
                    (0..mesh.devices()).filter(|&d| sharding.span(&mesh, d, i, n).len == 0).count()
                };
                assert_eq!(empty(n), empty(m), "dim {i} of {}: {n} and {m}", p.name);
            }
        }
        compiles_and_runs(&twin);
    }
}

#[test]
fn rows_and_replicas_stay_uneven() {
    let of = |batch, replicas, micro_batches| fewer_rows(&BatchPlan { batch, replicas, micro_batches });
    assert_eq!(of(64, 2, 8), BatchPlan { batch: 16, replicas: 2, micro_batches: 4 });
    assert_eq!(of(13, 2, 3), BatchPlan { batch: 11, replicas: 2, micro_batches: 3 });
    assert_eq!(of(6, 2, 3), BatchPlan { batch: 6, replicas: 2, micro_batches: 3 });
    let module = models::mlp(6, 4096, 11008, 8, false);
    let mesh = Mesh { tp: 3, dp: 2, ..Mesh::default() };
    let batch = BatchPlan { batch: 5, replicas: 2, micro_batches: 1 };
    let calls = module.funcs[module.entries[0].func].insts.len();
    let twin = twin_of(&module, &plan(&module, mesh, false, batch, vec![calls])).unwrap();
    // 3 rows a replica become 2, of which the last has none for the second.
    assert_eq!(twin.batch, BatchPlan { batch: 3, replicas: 2, micro_batches: 1 });
    let entry = &twin.graph.funcs[twin.graph.entries[0].func];
    assert_eq!(entry.ty(entry.args[0]).shape[0], 4);
    compiles_and_runs(&twin);
}

/// Dims in a reshape that joins them keep their extents, and a model of only such dims says that it cannot shrink.
#[test]
fn what_cannot_shrink_is_said() {
    let mut f = Func::new("forward");
    let x = f.arg(Type::f32([1, 1 << 14]), "x");
    f.values[x].labels = vec![Some(Label::Batch), None];
    let w = f.arg(Type::f32([1 << 14, 1 << 14]), "w");
    let y = f.linear(x, w, 1).unwrap();
    let y = f.reshape(y, vec![1, 1 << 7, 1 << 7]).unwrap();
    let y = f.reduce(ReduceKind::Max, y, &[2]).unwrap();
    f.results = vec![y];
    let mut module = Module { name: "square".into(), ..Module::default() };
    let ty = Type::f32([1 << 14, 1 << 14]);
    let source = pcc_ir::ParamSource::zeros(ty.shape.clone());
    let p = module.params.push(pcc_ir::Param { name: "w".into(), ty, source, sharding: None, stack: None });
    let func = module.funcs.push(f);
    module.entries.push(pcc_ir::Entry {
        name: "forward".into(),
        func,
        args: vec![Role::Input("x".into()), Role::Param(p)],
        results: vec!["y".into()],
        aliases: vec![],
        weight: 1.0,
        repeats: Vec::new(),
    });
    let module = crate::outline::outline(&module, 1).unwrap();
    let calls = module.funcs[module.entries[0].func].insts.len();
    let plan = plan(&module, Mesh { tp: 2, ..Mesh::default() }, false, one_row(1), vec![calls]);
    // The contracted dim shrinks, the joined one does not: that is enough here.
    let small = twin_of(&module, &plan).unwrap();
    assert_eq!(small.graph.params.values().next().unwrap().ty.shape, [64, 1 << 14]);
    // A plan that someone edited.
    let lying = Plan { stages: vec![usize::MAX, 2], ..plan.clone() };
    assert!(twin_of(&module, &lying).unwrap_err().what.contains("another chain"));
    // With many rows it is not.
    let batch = BatchPlan { batch: 1 << 20, replicas: 1 << 19, micro_batches: 1 };
    let e = too_large(&module, Work::of(&small.graph, &batch));
    assert!(e.why.unwrap().contains("reshapes"));
}
