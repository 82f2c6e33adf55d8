//! Stages, micro-batches, replicas, parameters and states.

use super::fixture::*;
use crate::{Event, HostData, HostTensor, Profile, Trace, Traced, Work};
use pcc_ir::program::*;
use pcc_ir::{Axis, Mesh, Type};
use std::sync::{Arc, Mutex};

const HIDDEN: usize = 6;

/// `pp` stages, each multiplying rows by a matrix whose columns are split over tp and gathering the result. Rows are split over dp.
fn chain(mesh: Mesh, batch: BatchPlan) -> Program {
    let rows = batch.rows() as u64;
    let n = u64::from(mesh.tp);
    let piece = (HIDDEN as u64).div_ceil(n);
    let bytes = rows * HIDDEN as u64 * 4;
    let weight = HIDDEN as u64 * piece * 4;
    let gather = collective(
        CollectiveKind::AllGather,
        &[tp(&mesh)],
        [&[rows, piece], &[rows, HIDDEN as u64]],
        [0, 1],
        [frame(0), slot(2)],
    );
    let layer =
        vec![gemm(rows, piece, HIDDEN as u64, slot(0), slot(1), frame(0)), InstrKind::Collective(gather)];
    let stages = (0..mesh.pp).map(|s| {
        let input = if s == 0 { Slot::Input(0) } else { Slot::Value(0) };
        let output = if s + 1 == mesh.pp { Slot::Output(0) } else { Slot::Value(bytes.next_multiple_of(64)) };
        let mut steps = vec![call(0, &[input, Slot::Param(s), output])];
        if s > 0 {
            steps.insert(0, Step::Recv { from: s - 1, tag: 7, slot: input, bytes });
        }
        if s + 1 < mesh.pp {
            steps.push(Step::Send { to: s + 1, tag: 7, slot: output, bytes });
        }
        StageProgram { arena_bytes: 2 * bytes.next_multiple_of(64), shared_bytes: 0, steps }
    });
    let rows_split = split(2, 0, &[mesh.whole(Axis::Dp)]);
    let spec = |name: &str| IoSpec {
        batch_dim: Some(0),
        ..io(name, &[batch.replicas * batch.rows(), HIDDEN], rows_split.clone())
    };
    let mut p = program(
        mesh,
        vec![func("layer", &[bytes, weight], &[bytes], rows * piece * 4, layer)],
        vec![spec("x")],
        vec![spec("y")],
        stages.collect(),
    );
    p.batch = batch;
    let columns = split(2, 1, &[tp(&mesh)]);
    p.params = (0..mesh.pp).map(|s| param(&format!("w{s}"), &[HIDDEN, HIDDEN], columns.clone())).collect();
    p
}

/// The chain's result for each row, in f64.
fn expected(p: &Program, x: &[f32]) -> Vec<f64> {
    let mut rows: Vec<f64> = x.iter().map(|&v| v.into()).collect();
    for param in &p.params {
        let w = values(param);
        rows = rows
            .chunks(HIDDEN)
            .flat_map(|row| {
                let column = |j| (0..HIDDEN).map(|k| row[k] * f64::from(w[k * HIDDEN + j])).sum::<f64>();
                (0..HIDDEN).map(column).collect::<Vec<_>>()
            })
            .collect();
    }
    rows
}

fn check(p: &Program, rows: usize, workers: usize) -> Vec<f32> {
    let x = numbers(rows * HIDDEN, 9);
    let mut session = session(p.clone(), vec![], workers);
    let y = forward(&mut session, &[("x", &[rows, HIDDEN], x.clone())], rows).unwrap();
    let y = y["y"].as_f32().unwrap().to_vec();
    for (i, (&found, expected)) in y.iter().zip(expected(p, &x)).enumerate() {
        assert!((f64::from(found) - expected).abs() < 1e-4, "element {i}: {found} for {expected}");
    }
    y
}

#[test]
fn stages_micro_batches_and_replicas_give_every_row_its_result() {
    for (pp, dp, tp, micro_batches, batch) in
        [(1, 1, 1, 1, 1), (3, 1, 1, 4, 4), (2, 2, 4, 3, 17), (4, 3, 5, 2, 11), (2, 1, 8, 1, 3)]
    {
        let plan = BatchPlan { batch, replicas: dp, micro_batches };
        let p = chain(mesh(pp, dp as u32, tp), plan);
        // A run may have fewer rows: some replicas and micro-batches then have none.
        for rows in [1, batch.div_ceil(2), batch] {
            check(&p, rows, 2);
        }
    }
}

#[test]
fn results_are_the_same_bits_at_any_number_of_workers() {
    let p = chain(mesh(3, 2, 4), BatchPlan { batch: 23, replicas: 2, micro_batches: 3 });
    let first = check(&p, 23, 1);
    for workers in [2, 3, 8] {
        assert_eq!(first, check(&p, 23, workers));
    }
}

#[test]
fn large_products_and_kernels_are_shared_without_changing_bits() {
    let (m, n, k) = (64usize, 1536, 256);
    let bytes = |r: usize, c: usize| (r * c * 4) as u64;
    let mut p = program(
        mesh(1, 1, 1),
        vec![],
        vec![io("x", &[m, k], pcc_ir::Sharding::replicated(2))],
        vec![io("y", &[m, n], pcc_ir::Sharding::replicated(2))],
        vec![StageProgram {
            arena_bytes: 0,
            shared_bytes: 0,
            steps: vec![call(0, &[Slot::Input(0), Slot::Param(0), Slot::Output(0)])],
        }],
    );
    p.params = vec![param("w", &[k, n], pcc_ir::Sharding::replicated(2))];
    let half = map_kernel(&mut p, "half", m as i64, n as i64, [frame(0), slot(2)]);
    let product = gemm(m as u64, n as u64, k as u64, slot(0), slot(1), frame(0));
    p.funcs = vec![func("f", &[bytes(m, k), bytes(k, n)], &[bytes(m, n)], bytes(m, n), vec![product, half])];
    let x = numbers(m * k, 3);
    let run = |workers| {
        let mut session = session(p.clone(), vec![map(|v| v / 2.0)], workers);
        // Several runs: whether a worker is idle in time to help differs.
        let mut outputs = (0..5).map(|_| {
            let out = forward(&mut session, &[("x", &[m, k], x.clone())], 1).unwrap();
            out["y"].as_f32().unwrap().to_vec()
        });
        let first = outputs.next().unwrap();
        assert!(outputs.all(|o| o == first));
        first
    };
    let first = run(1);
    let w = values(&p.params[0]);
    for (i, j) in [(0, 0), (3, 1000), (63, 1535)] {
        let exact: f64 = (0..k).map(|q| f64::from(x[i * k + q]) * f64::from(w[q * n + j])).sum::<f64>() / 2.0;
        assert!((f64::from(first[i * n + j]) - exact).abs() < 1e-3);
    }
    for workers in [2, 3, 8] {
        assert!(run(workers) == first, "{workers} workers");
    }
}

#[test]
fn a_thousand_devices_run() {
    let p = chain(mesh(4, 32, 8), BatchPlan { batch: 64, replicas: 32, micro_batches: 2 });
    assert_eq!(p.mesh.devices(), 1024);
    check(&p, 64, 2);
}

/// An entry that adds its input to a state and returns the sum.
fn counter(micro_batches: usize) -> Program {
    let batch = BatchPlan { batch: micro_batches, replicas: 1, micro_batches };
    let spec =
        |name: &str| IoSpec { batch_dim: Some(0), ..io(name, &[1, 2], pcc_ir::Sharding::replicated(2)) };
    let step = call(0, &[Slot::Input(0), Slot::State(0), Slot::State(0), Slot::Output(0)]);
    let mut p = program(
        mesh(1, 1, 1),
        vec![],
        vec![spec("x")],
        vec![spec("y")],
        vec![StageProgram { arena_bytes: 0, shared_bytes: 0, steps: vec![step] }],
    );
    p.batch = batch;
    p.states = vec![LocalState {
        stack: None,
        name: "sum".into(),
        ty: Type::f32([1, 2]),
        sharding: pcc_ir::Sharding::replicated(2),
    }];
    let add = map_kernel(&mut p, "add", 1, 2, [slot(0), slot(2)]);
    let copy = map_kernel(&mut p, "copy", 1, 2, [slot(2), slot(3)]);
    p.funcs = vec![func("f", &[8, 8], &[8, 8], 0, vec![add, copy])];
    p.funcs[0].in_place = vec![(1, 2)];
    p
}

#[test]
fn states_persist_by_micro_batch_until_reset() {
    let add: Function = Box::new(|call, _| {
        for i in 0..2 {
            let [x, sum] = [0, 1].map(|a| call.operands[a].load(pcc_ir::DType::F32, i).unwrap());
            call.operands[1].store(pcc_ir::DType::F32, i, x + sum).unwrap();
        }
    });
    let mut session = session(counter(2), vec![add, map(|x| x)], 2);
    let run = |session: &mut crate::Session, x: &[f32]| {
        let out = forward(session, &[("x", &[x.len() / 2, 2], x.to_vec())], x.len() / 2).unwrap();
        out["y"].as_f32().unwrap().to_vec()
    };
    assert_eq!(run(&mut session, &[1.0, 2.0, 10.0, 20.0]), [1.0, 2.0, 10.0, 20.0]);
    assert_eq!(run(&mut session, &[1.0, 1.0, 1.0, 1.0]), [2.0, 3.0, 11.0, 21.0]);
    assert_eq!(run(&mut session, &[1.0, 1.0]), [3.0, 4.0], "one row: the first micro-batch");
    session.reset_states().unwrap();
    assert_eq!(run(&mut session, &[1.0, 1.0, 1.0, 1.0]), [1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn inputs_that_do_not_fit_are_refused_by_name() {
    let p = chain(mesh(1, 1, 2), BatchPlan { batch: 3, replicas: 1, micro_batches: 1 });
    let mut session = session(p, vec![], 1);
    let tensor = |shape: &[usize], data| HostTensor { shape: shape.to_vec(), data };
    let fine = || HostData::F32(numbers(12, 1));
    let mut refused = |name: &str, tensor: HostTensor, rows| {
        let inputs = [(name.to_owned(), tensor)].into_iter().collect();
        session.run("forward", &inputs, rows).unwrap_err().to_string()
    };
    assert!(refused("x", tensor(&[2, 6], fine()), 3).contains("3 rows"));
    assert!(refused("x", tensor(&[2, 6], fine()), 0).contains("1 to 3"));
    assert!(refused("x", tensor(&[4, 3], fine()), 4).contains("1 to 3"));
    assert!(refused("x", tensor(&[2, 5], fine()), 2).contains("12 elements"));
    assert!(refused("x", tensor(&[2, 3, 2], fine()), 2).contains("f32[3,6]"));
    assert!(refused("z", tensor(&[2, 6], fine()), 2).contains("no input `z`"));
    assert!(refused("x", tensor(&[2, 6], HostData::I32(vec![0; 12])), 2).contains("i32"));
    assert!(session.run("backward", &Default::default(), 1).unwrap_err().to_string().contains("forward"));
    assert!(
        session.run("forward", &Default::default(), 1).unwrap_err().to_string().contains("`x` is missing")
    );
}

/// Keeps everything.
#[derive(Default)]
struct Kept {
    events: Vec<Event>,
    profile: Profile,
    work: Vec<(Event, Work)>,
}

impl Trace for Kept {
    fn add(&mut self, traced: &Traced<'_>) -> Result<(), pcc_ir::Diagnostic> {
        self.events.extend(traced.events);
        self.profile.add(traced);
        self.work.extend(traced.events.iter().map(|e| (*e, e.work(traced))));
        Ok(())
    }
}

#[test]
fn every_instruction_and_message_is_timed_when_asked_for() {
    let p = chain(mesh(2, 1, 3), BatchPlan { batch: 2, replicas: 1, micro_batches: 2 });
    let kept = Arc::new(Mutex::new(Kept::default()));
    let options = crate::Options { workers: 2, trace: Some(kept.clone()), ..Default::default() };
    let kernels = Box::new(Functions(vec![]));
    let mut session = crate::Session::new(p, kernels, &crate::NoWeights, &options, &|_, _| {}).unwrap();
    forward(&mut session, &[("x", &[2, HIDDEN], numbers(12, 1))], 2).unwrap();
    let Kept { events, profile, work } = std::mem::take(&mut *kept.lock().unwrap());
    assert!(events.iter().all(|e| e.start <= e.end) && events.is_sorted_by_key(|e| e.start));
    let count = |text: &str| events.iter().filter(|e| e.what(session.program()) == text).count();
    // 6 devices, 2 micro-batches each; a message that has to wait is timed again when it goes on.
    assert_eq!(count("layer: product of the op of layer"), 12);
    assert_eq!(count("layer: all_gather of the op of layer"), 12);
    assert!(count("send to stage 1") >= 6 && count("receive from stage 0") >= 6);
    // Of a group of 3 one does the work of all, for each stage and micro-batch.
    let gathers = |e: &&Event| e.what(session.program()) == "layer: all_gather of the op of layer";
    assert_eq!(events.iter().filter(gathers).filter(|e| !e.waits).count(), 4);
    let summary = profile.summary(session.program());
    let total: f64 = summary.by_kind.iter().map(|r| r.share).sum();
    assert!((total - 1.0).abs() < 1e-9);
    let row = |kind: &str| summary.by_op.iter().find(|r| r.kind == kind).unwrap();
    assert_eq!((row("product").count, row("all_gather").count), (12, 4));
    assert_eq!(row("product").op, "the op of layer");
    let products = |e: &(Event, Work)| e.0.what(session.program()).contains("product");
    for (_, work) in work.iter().filter(|e| products(e)) {
        // One row of [1, 6] x [6, 2], all f32.
        assert_eq!(*work, Work { flops: 2.0 * 12.0, bytes: 4.0 * (6.0 + 12.0 + 2.0) });
    }
}
