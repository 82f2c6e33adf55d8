//! What the devices of a team make once and share.

use super::fixture::*;
use pcc_ir::program::*;
use pcc_ir::{Axis, Mesh};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const HIDDEN: u64 = 6;

/// `pp` stages, each of which makes `x + 1` of its rows, then of that its product with a matrix whose columns are split over tp, then
/// twice what is gathered of it. With `once`, a team makes first and last once, and shares them and what is gathered.
pub(super) fn model(mesh: Mesh, batch: BatchPlan, once: bool) -> Program {
    let rows = batch.rows() as u64;
    let piece = HIDDEN.div_ceil(mesh.tp.into());
    let (bytes, own) = (rows * HIDDEN * 4, (rows * piece * 4).next_multiple_of(64));
    let buffer = bytes.next_multiple_of(64);
    let spec = |name: &str| IoSpec {
        batch_dim: Some(0),
        ..io(name, &[batch.replicas * batch.rows(), HIDDEN as usize], split(2, 0, &[mesh.whole(Axis::Dp)]))
    };
    let mut p = program(mesh, vec![], vec![spec("x")], vec![spec("y")], vec![]);
    let (r, h) = (rows as i64, HIDDEN as i64);
    let add = map_kernel(&mut p, "add", r, h, [slot(0), frame(own)]);
    let twice = map_kernel(&mut p, "twice", r, h, [frame(own + buffer), slot(2)]);
    let copy = map_kernel(&mut p, "copy", r, h, [slot(0), slot(1)]);
    let gather = collective(
        CollectiveKind::AllGather,
        &[tp(&mesh)],
        [&[rows, piece], &[rows, HIDDEN]],
        [0, 1],
        [frame(0), frame(own + buffer)],
    );
    let product = gemm(rows, piece, HIDDEN, frame(own), slot(1), frame(0));
    let layer = vec![add, product, InstrKind::Collective(gather), twice];
    let mut layer = func("layer", &[bytes, HIDDEN * piece * 4], &[bytes], own + 2 * buffer, layer);
    if once {
        p.team = vec![tp(&mesh)];
        layer.shared_bytes = 2 * buffer;
        layer.shared = vec![2];
        [0, 3].into_iter().for_each(|i| layer.instrs[i].once = true);
    }
    p.funcs = vec![layer, func("copy", &[bytes], &[bytes], 0, vec![copy])];
    let stage = |s: u32| {
        let (input, made) = (if s == 0 { Slot::Input(0) } else { Slot::Value(0) }, Slot::Value(buffer));
        let mut steps = vec![call(0, &[input, Slot::Param(s), made])];
        if s > 0 {
            steps.insert(0, Step::Recv { from: s - 1, tag: 7, slot: input, bytes });
        }
        steps.push(match s + 1 == mesh.pp {
            true => call(1, &[made, Slot::Output(0)]),
            false => Step::Send { to: s + 1, tag: 7, slot: made, bytes },
        });
        StageProgram { arena_bytes: 2 * buffer, shared_bytes: if once { buffer } else { 0 }, steps }
    };
    p.entries[0].stages = (0..mesh.pp).map(stage).collect();
    p.batch = batch;
    let (n, columns) = (HIDDEN as usize, split(2, 1, &[tp(&mesh)]));
    p.params = (0..mesh.pp).map(|s| param(&format!("w{s}"), &[n, n], columns.clone())).collect();
    p
}

/// The model's result for each row, in f64.
fn expected(p: &Program, x: &[f32]) -> Vec<f64> {
    let n = HIDDEN as usize;
    let mut all: Vec<f64> = x.iter().map(|&v| v.into()).collect();
    for w in p.params.iter().map(values) {
        let column = |row: &[f64], j: usize| {
            2.0 * (0..n).map(|k| (row[k] + 1.0) * f64::from(w[k * n + j])).sum::<f64>()
        };
        all = all.chunks(n).flat_map(|row| (0..n).map(|j| column(row, j)).collect::<Vec<_>>()).collect();
    }
    all
}

/// What a run gives, how often it added, and the bytes that it took.
fn run(p: &Program, rows: usize, workers: usize) -> (Vec<f32>, usize, usize) {
    let x = numbers(rows * HIDDEN as usize, 9);
    let added = Arc::new(AtomicUsize::new(0));
    let counter = added.clone();
    let add = map(move |v| {
        counter.fetch_add(1, Relaxed);
        v + 1.0
    });
    let mut session = session(p.clone(), vec![add, map(|v| 2.0 * v), map(|v| v)], workers);
    let y = forward(&mut session, &[("x", &[rows, HIDDEN as usize], x.clone())], rows).unwrap();
    let y = y["y"].as_f32().unwrap().to_vec();
    for (i, (&found, wanted)) in y.iter().zip(expected(p, &x)).enumerate() {
        assert!(
            (f64::from(found) - wanted).abs() < 1e-3 * wanted.abs().max(1.0),
            "{i}: {found} for {wanted}"
        );
    }
    (y, added.load(Relaxed), session.memory_bytes())
}

#[test]
fn a_team_does_its_work_once_with_the_same_bits() {
    for (pp, dp, tp, micro_batches, batch) in
        [(1, 1, 1, 1, 1), (1, 1, 8, 1, 5), (3, 1, 2, 4, 9), (2, 2, 4, 3, 17), (2, 3, 5, 2, 11)]
    {
        let plan = BatchPlan { batch, replicas: dp, micro_batches };
        let mesh = mesh(pp, dp as u32, tp);
        let alone = model(mesh, plan, false);
        let together = model(mesh, plan, true);
        for rows in [1, batch.div_ceil(2), batch] {
            let (wanted, each, held) = run(&alone, rows, 2);
            for workers in [1, 2, 3, 8] {
                let (found, once, shared) = run(&together, rows, workers);
                assert_eq!(wanted, found);
                assert_eq!(once * tp as usize, each);
                assert!(shared < held || tp == 1, "{shared} bytes where alone it is {held}");
            }
        }
    }
}

#[test]
fn many_runs_end_alike() {
    let p = model(mesh(2, 2, 3), BatchPlan { batch: 12, replicas: 2, micro_batches: 3 }, true);
    let x = numbers(12 * HIDDEN as usize, 4);
    let mut session = session(p, vec![map(|v| v + 1.0), map(|v| 2.0 * v), map(|v| v)], 4);
    let mut once = || forward(&mut session, &[("x", &[12, HIDDEN as usize], x.clone())], 12).unwrap();
    let first = once();
    assert!((0..200).all(|_| once() == first));
}

#[test]
fn what_a_team_cannot_share_is_refused() {
    type Break = fn(&mut Program);
    let cases: &[(Break, &str)] = &[
        (|p| p.team.clear(), "not the same work"),
        (|p| p.team[0].size = 3, "team"),
        (|p| p.funcs[0].instrs[0].once = false, "each device writes what a team shares"),
        (|p| p.funcs[0].instrs[1].once = true, "writes what each device has"),
        (|p| p.funcs[0].instrs[2].once = true, "not the same work"),
        (|p| p.funcs[0].shared.clear(), "writes what each device has"),
        (|p| p.funcs[0].shared.push(0), "cannot share slot 0"),
        (|p| p.funcs[0].shared.push(2), "cannot share slot 2"),
        (|p| p.funcs[0].shared_bytes += 1, "of its frame a team shares"),
        (|p| p.funcs[0].shared_bytes = 1 << 40, "of its frame a team shares"),
        (|p| p.funcs[0].shared_bytes += 64, "each device writes what a team shares"),
        (|p| p.funcs[0].shared_bytes -= 64, "leave a buffer"),
        (|p| p.entries[0].stages[0].shared_bytes = 0, "is not shared as result 2 of layer is"),
        (|p| p.entries[0].stages[0].shared_bytes += 1, "of its arena a team shares"),
        (|p| p.entries[0].stages[0].shared_bytes = 1 << 40, "of its arena a team shares"),
        (|p| p.entries[0].stages[1].shared_bytes *= 2, "each device's own"),
    ];
    for (change, why) in cases {
        let mut p = model(mesh(2, 1, 2), BatchPlan { batch: 4, replicas: 1, micro_batches: 1 }, true);
        crate::validate::check(&p).unwrap();
        change(&mut p);
        let e = crate::validate::check(&p).unwrap_err();
        assert!(e.to_string().contains(why), "{e} for {why}");
    }
}
