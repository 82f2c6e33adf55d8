//! Parameters in panels: a tied embedding, rows of which are looked up and with all of which rows are multiplied.

use super::fixture::*;
use crate::HostTensor;
use pcc_ir::program::*;
use pcc_ir::{Axis, DType, Mesh, ReduceKind, Type};

/// `tokens -> y[i, v] = sum over d of table[tokens[i], d] * table[v, d]`, the vocabulary split over tp.
pub(super) fn tied(mesh: Mesh, vocab: usize, width: usize, tokens: usize) -> Program {
    let axes = vec![mesh.whole(Axis::Tp)];
    let piece = vocab.div_ceil(mesh.tp as usize);
    let (n, k, m) = (piece as u64, width as u64, tokens as u64);
    let packed = PackedMatrix { k, n };
    let rows = (m * k * 4).next_multiple_of(64);
    let (base, valid) = (
        Scalar::Base { global: vocab as u64, axes: axes.clone() },
        Scalar::Valid { global: vocab as u64, axes: axes.clone() },
    );
    let look_up = InstrKind::Rows(Rows {
        table: slot(1),
        packed,
        dtype: DType::F32,
        indices: slot(0),
        count: m.into(),
        out: frame(0),
        base,
        valid,
    });
    let shape: &[u64] = &[m, k];
    let sum = collective(CollectiveKind::AllReduce, &axes, [shape, shape], [0, 0], [frame(0), frame(rows)]);
    let InstrKind::Gemm(mut product) = gemm(m, n, k, frame(rows), slot(1), slot(2)) else { unreachable!() };
    (product.packed, product.b.row, product.b.col) = (Some(packed), 0, 0);
    let code = vec![look_up, InstrKind::Collective(sum), InstrKind::Gemm(product)];
    let args = [m * 4, packed.bytes(DType::F32)];
    let mut inputs = vec![io("tokens", &[tokens], split(1, 0, &[]))];
    inputs[0].ty = Type::i32([tokens]);
    let steps = vec![call(0, &[Slot::Input(0), Slot::Param(0), Slot::Output(0)])];
    let mut p = program(
        mesh,
        vec![func("tied", &args, &[m * n * 4], 2 * rows, code)],
        inputs,
        vec![io("y", &[tokens, vocab], split(2, 1, &axes))],
        vec![StageProgram { arena_bytes: 0, shared_bytes: 0, steps }],
    );
    p.params = vec![param("table", &[vocab, width], split(2, 0, &axes))];
    p.params[0].storage = Storage::Panels { k: vec![1], n: vec![0] };
    p
}

fn run(p: &Program, tokens: &[i32], workers: usize) -> Vec<f32> {
    let mut session = session(p.clone(), vec![], workers);
    let input = HostTensor::i32([tokens.len()], tokens.to_vec());
    let inputs = [("tokens".to_owned(), input)].into_iter().collect();
    let y = session.run("forward", &inputs, 1).unwrap();
    y["y"].as_f32().unwrap().to_vec()
}

#[test]
fn rows_and_products_of_a_table_in_panels() {
    for (tp, vocab, width, tokens) in [(1, 5, 4, 2), (2, 37, 9, 3), (3, 200, 33, 70), (8, 50, 16, 1)] {
        let p = tied(mesh(1, 1, tp), vocab, width, tokens);
        let table = values(&p.params[0]);
        let row = |v: usize| &table[v * width..(v + 1) * width];
        // One word is in no vocabulary: its row is zero.
        let words: Vec<i32> =
            (0..tokens).map(|i| if i == 1 { 1000 } else { (i * 7 % vocab) as i32 }).collect();
        let y = run(&p, &words, 1);
        for (i, (&word, y)) in words.iter().zip(y.chunks(vocab)).enumerate() {
            for (v, &found) in y.iter().enumerate() {
                let known = (word as usize) < vocab;
                let product = |(a, b): (&f32, &f32)| f64::from(*a) * f64::from(*b);
                let expected: f64 =
                    if known { row(word as usize).iter().zip(row(v)).map(product).sum() } else { 0.0 };
                assert!(
                    (f64::from(found) - expected).abs() < 1e-5,
                    "tp {tp}, {i}, {v}: {found} for {expected}"
                );
            }
        }
        assert_eq!(y, run(&p, &words, 2), "another number of workers");
    }
}

/// A matrix in panels, wide and deep enough for many parts, gives what it gives dense.
#[test]
fn a_weight_is_the_same_in_either_form() {
    for m in [1usize, 5, 200] {
        let (n, k) = (1100usize, 300);
        let bytes = |r: usize, c: usize| (r * c * 4) as u64;
        let form = |packed: Option<PackedMatrix>| {
            let InstrKind::Gemm(mut product) = gemm(m as u64, n as u64, k as u64, slot(0), slot(1), slot(2))
            else {
                unreachable!()
            };
            let mut weight = bytes(k, n);
            if let Some(packed) = packed {
                (product.packed, product.b.row, product.b.col) = (Some(packed), 0, 0);
                weight = packed.bytes(DType::F32);
            }
            let steps = vec![call(0, &[Slot::Input(0), Slot::Param(0), Slot::Output(0)])];
            let mut p = program(
                mesh(1, 1, 1),
                vec![func(
                    "product",
                    &[bytes(m, k), weight],
                    &[bytes(m, n)],
                    0,
                    vec![InstrKind::Gemm(product)],
                )],
                vec![io("x", &[m, k], split(2, 0, &[]))],
                vec![io("y", &[m, n], split(2, 0, &[]))],
                vec![StageProgram { arena_bytes: 0, shared_bytes: 0, steps }],
            );
            p.params = vec![param("w", &[k, n], split(2, 0, &[]))];
            if packed.is_some() {
                p.params[0].storage = Storage::Panels { k: vec![0], n: vec![1] };
            }
            p
        };
        let x = numbers(m * k, 4);
        let run = |p: Program, workers| {
            let mut session = session(p, vec![], workers);
            let y = forward(&mut session, &[("x", &[m, k], x.clone())], 1).unwrap();
            y["y"].as_f32().unwrap().to_vec()
        };
        let dense = run(form(None), 1);
        let packed = run(form(Some(PackedMatrix { k: k as u64, n: n as u64 })), 1);
        dense.iter().zip(&packed).for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{a} {b}"));
        assert_eq!(packed, run(form(Some(PackedMatrix { k: k as u64, n: n as u64 })), 3));
    }
}

#[test]
fn what_is_not_in_panels_is_not_read_as_if() {
    type Break = fn(&mut Program);
    let cases: &[(Break, &str)] = &[
        (|p| p.params[0].storage = Storage::Dense, "held in the form"),
        (|p| p.params[0].storage = Storage::Panels { k: vec![0], n: vec![1] }, "held in the form"),
        (|p| p.params[0].storage = Storage::Panels { k: vec![1], n: vec![1] }, "panels over dims"),
        (|p| p.params[0].ty.dtype = DType::F16, "do not hold"),
        (
            |p| {
                let InstrKind::Rows(r) = &mut p.funcs[0].instrs[0].kind else { unreachable!() };
                r.indices = slot(1);
            },
            "as panels and as dense",
        ),
        (
            |p| {
                let InstrKind::Rows(r) = &mut p.funcs[0].instrs[0].kind else { unreachable!() };
                r.packed = PackedMatrix { k: 5, n: 3 };
            },
            "two matrices",
        ),
        (
            |p| {
                let InstrKind::Collective(c) = &mut p.funcs[0].instrs[1].kind else { unreachable!() };
                (c.reduce, c.src) = (ReduceKind::Sum, slot(1));
            },
            "as panels and as dense",
        ),
        (
            |p| {
                let InstrKind::Gemm(g) = &mut p.funcs[0].instrs[2].kind else { unreachable!() };
                g.b.col = 1;
            },
            "strides do not fit",
        ),
    ];
    for (change, why) in cases {
        let mut p = tied(mesh(1, 1, 2), 5, 4, 2);
        change(&mut p);
        let e = crate::validate::check(&p).unwrap_err();
        assert!(e.to_string().contains(why), "{why}: {e}");
    }
}
