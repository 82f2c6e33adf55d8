//! Programs that are right, and programs with one thing wrong, which both the checker and the comparison must notice.

use super::*;
use pcc_ir::Mesh;
use pcc_ir::graph::Role;
use pcc_ir::program::InstrKind;
use pcc_passes::driver::{self, Compiled};
use pcc_passes::twin::randomise;
use pcc_passes::verify::{CheckInput, check};
use pcc_runtime::{Interpreter, NoWeights, Options};

/// An example of the project, compiled for a mesh. `rows`: of a micro-batch over all replicas.
fn compiled(example: &str, mesh: Mesh, sp: bool, rows: usize, micro_batches: usize) -> Compiled {
    compiled_in(DType::F32, example, mesh, sp, rows, micro_batches)
}

/// The same in another type, with few positions where the example has no say.
fn compiled_in(
    dtype: DType,
    example: &str,
    mesh: Mesh,
    sp: bool,
    rows: usize,
    micro_batches: usize,
) -> Compiled {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
    let load = pcc_frontend::LoadOptions {
        batch_rows: rows,
        seq: example.ends_with("llama").then_some(6),
        weights: None,
        seed: 0,
    };
    let model = pcc_frontend::load(&path, &load).unwrap();
    let replicas = mesh.dp as usize;
    let batch = BatchPlan { batch: rows * micro_batches, replicas, micro_batches };
    let options = driver::Options {
        mesh,
        sp,
        batch,
        dtype,
        device: Default::default(),
        memory: None,
        plan: None,
        info: model.info,
        weights: None,
        print_after: None,
    };
    let mut graph = model.module;
    randomise(&mut graph, 5);
    driver::compile(graph, &options).unwrap()
}

fn run(c: &Compiled, program: &Program) -> Result<Vec<Comparison>, Diagnostic> {
    let kernels = Interpreter::new(program.kernels.values());
    let options = Options { workers: 2, ..Options::default() };
    let mut session =
        Session::new(program.clone().expanded()?, Box::new(kernels), &NoWeights, &options, &|_, _| {})
            .unwrap();
    let graph = c.graph.expanded()?;
    compare(&mut session, &graph, 5)
}

fn prove(c: &Compiled, program: &Program) -> Result<(), Diagnostic> {
    check(&CheckInput { graph: &c.graph, sharded: &c.sharded, local: &c.local, program }).map(drop)
}

#[test]
fn right_programs_agree() {
    for (example, mesh, sp, rows, micro_batches) in [
        ("mlp.json", Mesh { tp: 3, ..Mesh::default() }, false, 8, 2),
        ("skip.json", Mesh { tp: 2, pp: 2, ..Mesh::default() }, false, 6, 3),
        ("transformer.json", Mesh { tp: 2, pp: 2, dp: 2, ..Mesh::default() }, true, 2, 2),
    ] {
        let c = compiled(example, mesh, sp, rows, micro_batches);
        for outcome in run(&c, &c.program).unwrap() {
            // f32 sums of at most a few hundred terms.
            assert!(outcome.max_rel_diff < 1e-5, "{example}: {outcome:?}");
            let spec = &c.program.entries[0].outputs[0];
            // All rows, and half of them.
            let all = spec.ty.elements() * micro_batches;
            assert_eq!(outcome.elements, all + all / 2, "{example}");
        }
    }
}

/// Logits of the first entry by the reference evaluator.
fn logits(graph: &Module) -> Vec<f64> {
    let graph = &graph.expanded().unwrap();
    let entry = &graph.entries[0];
    let params = parameters(graph).unwrap();
    let f = &graph.funcs[entry.func];
    let tokens = |i: usize| (i * 7 % 32) as f64;
    let inputs = f.args.iter().zip(&entry.args).filter_map(|(&v, role)| match role {
        Role::Input(name) => Some((name.clone(), Tensor::from_fn(f.ty(v).clone(), tokens))),
        _ => None,
    });
    eval_entry(graph, entry, &inputs.collect(), &params, &mut []).unwrap()["logits"].data.clone()
}

/// Two products: few elements are so close to the middle of two numbers that f32 and f64 round them apart.
#[test]
fn products_in_bf16_round_where_the_graph_does() {
    for tp in [1, 3, 8] {
        let c = compiled_in(DType::BF16, "mlp.json", Mesh { tp, ..Mesh::default() }, false, 8, 1);
        for outcome in run(&c, &c.program).unwrap() {
            assert!(outcome.max_rel_diff < 1e-3, "tp {tp}: {outcome:?}");
        }
    }
}

/// Against the same graph only such roundings, and what follows from them; against the model in f32, what 8 digits leave.
#[test]
fn programs_in_bf16_agree_with_their_graph_and_nearly_with_f32() {
    let of = |tp, pp| Mesh { tp, pp, ..Mesh::default() };
    let exact = logits(&compiled("tiny-llama", of(1, 1), false, 2, 1).graph);
    for (mesh, sp) in [(of(1, 1), false), (of(3, 1), true), (of(8, 1), false), (of(2, 2), true)] {
        let c = compiled_in(DType::BF16, "tiny-llama", mesh, sp, 2, mesh.pp as usize);
        assert!(c.program.states.iter().all(|s| s.ty.dtype == DType::BF16));
        let halves = c.program.params.iter().filter(|p| p.ty.dtype == DType::BF16).count();
        assert_eq!(halves, c.program.params.iter().filter(|p| p.ty.rank() > 1).count());
        for outcome in run(&c, &c.program).unwrap() {
            assert!(outcome.max_rel_diff < 2e-2, "{mesh:?}: {outcome:?}");
        }
        let half = logits(&c.graph);
        let mean = |it: &mut dyn Iterator<Item = f64>| it.sum::<f64>() / exact.len() as f64;
        let size = mean(&mut exact.iter().map(|x| x.abs()));
        let error = mean(&mut exact.iter().zip(&half).map(|(x, y)| (x - y).abs()));
        assert!(error > 0.0 && error <= 1e-2 * size, "{mesh:?}: {error} of {size}");
    }
}

/// Every collective in turn is left out: the checker and the comparison both say so.
#[test]
fn a_dropped_collective_is_caught_twice() {
    let c = compiled("transformer.json", Mesh { tp: 2, ..Mesh::default() }, false, 2, 1);
    let mut dropped = 0;
    for f in 0..c.program.funcs.len() {
        for i in 0..c.program.funcs[f].instrs.len() {
            if !matches!(c.program.funcs[f].instrs[i].kind, InstrKind::Collective(_)) {
                continue;
            }
            let mut broken = c.program.clone();
            let gone = broken.funcs[f].instrs.remove(i);
            let what = &broken.funcs[f].notes[gone.note as usize].what;
            assert_eq!(prove(&c, &broken).unwrap_err().fault, pcc_ir::Fault::Check, "{what}");
            let e = run(&c, &broken).unwrap_err();
            assert_eq!(e.fault, pcc_ir::Fault::Check, "{what}: {e}");
            assert!(e.place.is_some_and(|p| p.contains("logits")), "{what}");
            dropped += 1;
        }
    }
    // Two layers of two reductions, one of the embedding; layers may share a function.
    assert!(dropped >= 3, "{dropped}");
}

#[test]
fn a_layer_with_another_layers_weights_is_caught_twice() {
    let c = compiled("transformer.json", Mesh { tp: 2, ..Mesh::default() }, false, 2, 1);
    let of = |name: &str| c.program.params.iter().position(|p| p.name == name);
    let same = |a: usize, b: usize| {
        let (p, q) = (&c.program.params[a], &c.program.params[b]);
        p.ty == q.ty && p.ty.rank() > 1 && p.sharding == q.sharding
    };
    let n = c.program.params.len();
    let (a, b) = (0..n).flat_map(|a| (0..a).map(move |b| (a, b))).find(|&(a, b)| same(a, b)).unwrap();
    let mut broken = c.program.clone();
    broken.params.swap(a, b);
    assert!(of(&broken.params[a].name) == Some(b));
    assert_eq!(prove(&c, &broken).unwrap_err().fault, pcc_ir::Fault::Check);
    assert_eq!(run(&c, &broken).unwrap_err().fault, pcc_ir::Fault::Check);
}

#[test]
fn no_number_is_no_agreement() {
    let mut c = Comparison::default();
    c.add(0, &[1.0, f64::NAN], &[1.0, 2.0], 2);
    c.finish();
    assert!(c.check(1e-3).is_err());
    let mut c = Comparison::default();
    c.add(0, &[0.0, 1e-9], &[0.0, 0.0], 1);
    c.finish();
    assert!(c.check(1e-3).is_err(), "anything differs from nothing but zeros");
    let mut c = Comparison::default();
    c.add(3, &[1.0, 4.0005, 2.0, 1.0], &[1.0, 4.0, 2.0, 1.0], 2);
    c.finish();
    assert!(c.check(1e-3).is_ok());
    assert_eq!((c.argmax_agreement, c.elements), (Some(1.0), 4));
    assert!((c.max_rel_diff - 0.0005 / 4.0).abs() < 1e-9);
    let excused = |near_ties| Comparison { elements: 16, near_ties, ..Comparison::default() }.check(1e-3);
    assert!(excused(4).is_ok() && excused(5).is_err(), "rounding explains few selections");
}
