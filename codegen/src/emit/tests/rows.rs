//! Row reductions and iteration spaces against f64 closed forms.

use super::gpu::ptx;
use super::harness::*;
use super::simulate::runs;
use pcc_cuda_sim::ptx::Module;
use pcc_ir::gpu::Arch;
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::ops::{BinaryKind as B, UnaryKind as U};
use pcc_ir::types::{DType, ReduceKind};

const UNIT: [Lane; 2] = [Lane::Unit, Lane::Unit];

fn in_out(nodes: &[Node]) -> Kernel {
    let accesses = [read(DType::F32, UNIT[0]), write(DType::F32, UNIT[1])];
    kernel(2, 0, &accesses, nodes, &[store(1, nodes.len() as u32 - 1)])
}

pub(super) fn softmax() -> Kernel {
    in_out(&[
        Node::Load(0),
        Node::RowReduce(ReduceKind::Max, 0),
        Node::Binary(B::Sub, 0, 1),
        Node::Unary(U::Exp, 2),
        Node::RowReduce(ReduceKind::Sum, 3),
        Node::Binary(B::Div, 3, 4),
    ])
}

/// `(x - mean) / sqrt(var + eps)` with 1/n from the row's length.
pub(super) fn layer_norm(n: usize) -> Kernel {
    in_out(&[
        Node::Load(0),
        Node::RowReduce(ReduceKind::Sum, 0),
        float(1.0 / n as f32),
        Node::Binary(B::Mul, 1, 2),
        Node::Binary(B::Sub, 0, 3),
        Node::Binary(B::Mul, 4, 4),
        Node::RowReduce(ReduceKind::Sum, 5),
        Node::Binary(B::Mul, 6, 2),
        float(1e-5),
        Node::Binary(B::Add, 7, 8),
        Node::Unary(U::Rsqrt, 9),
        Node::Binary(B::Mul, 4, 10),
    ])
}

/// Rows of a kernel of one input and one output, packed.
pub(super) fn rows_case(kernel: Kernel, rows: usize, n: usize) -> (Case, Vec<Vec<f64>>) {
    let mut rng = Rng(n as u64);
    let input: Vec<f64> =
        (0..rows * n).map(|_| f64::from((rng.below(2000) as f32 - 1000.0) / 250.0)).collect();
    let buffers = vec![elements(DType::F32, input.iter().copied()), vec![0; rows * n * 4]];
    let strides = vec![n as i64, 1, n as i64, 1];
    let case = Case { kernel, buffers, extents: vec![rows as i64, n as i64], strides, scalars: vec![] };
    (case, input.chunks(n).map(<[f64]>::to_vec).collect())
}

/// Checks a kernel over many row lengths against a function of a row.
fn rows_equal(make: impl Fn(usize) -> Kernel, form: impl Fn(&[f64]) -> Vec<f64>, tolerance: f64) {
    let lengths: Vec<usize> = (1..=70).chain([127, 128, 1000, 4096]).collect();
    let cases: Vec<_> = lengths.iter().map(|&n| rows_case(make(n), 3, n)).collect();
    let kernels: Vec<Kernel> = cases.iter().map(|c| c.0.kernel.clone()).collect();
    super::gpu::check_all(&cases.iter().map(|c| c.0.clone()).collect::<Vec<_>>(), tolerance);
    for cpu in cpus() {
        let code = compile(&kernels, cpu);
        for (i, (case, rows)) in cases.iter().enumerate() {
            case.check(&code, i, tolerance);
            let want = elements(DType::F32, rows.iter().flat_map(|r| form(r)));
            case.compare(&case.run(&code, i, &[0, 3]), &[case.buffers[0].clone(), want], tolerance);
        }
    }
}

#[test]
fn softmax_is_right_at_every_length() {
    let form = |row: &[f64]| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        row.iter().map(|x| (x - max).exp() / sum).collect()
    };
    rows_equal(|_| softmax(), form, 1e-6);
}

#[test]
fn layer_norm_is_right_at_every_length() {
    let form = |row: &[f64]| {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        row.iter().map(|x| (x - mean) / (var + 1e-5).sqrt()).collect()
    };
    rows_equal(layer_norm, form, 2e-6);
}

#[test]
fn reductions_to_one_element_a_row() {
    let (rows, n) = (5usize, 77usize);
    let mut cases = vec![];
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
        for special in [None, Some(f64::NAN), Some(f64::INFINITY)] {
            let k = kernel(
                2,
                0,
                &[
                    read(DType::F32, Lane::Unit),
                    write(DType::F32, Lane::Broadcast),
                    write(DType::BF16, Lane::Unit),
                ],
                &[Node::Load(0), Node::RowReduce(kind, 0)],
                &[store(1, 1), store(2, 1)],
            );
            let (mut case, _) = rows_case(k, rows, n);
            if let Some(special) = special {
                case.buffers[0][4 * (n + 70)..][..4].copy_from_slice(&element(DType::F32, special));
            }
            case.buffers = vec![case.buffers[0].clone(), vec![0; rows * 4], vec![0; rows * n * 2]];
            case.strides = [n, 1, 1, 0, n, 1].map(|s| s as i64).to_vec();
            cases.push(case);
        }
    }
    check_all(&cases, 1e-6);
}

/// A reduction of a row without elements gives its identity; per-row constants count once an element.
#[test]
fn empty_rows_and_constant_operands() {
    let k = kernel(
        2,
        0,
        &[write(DType::F32, Lane::Broadcast), write(DType::F32, Lane::Broadcast)],
        &[float(0.5), Node::RowReduce(ReduceKind::Sum, 0), Node::RowReduce(ReduceKind::Max, 0)],
        &[store(0, 1), store(1, 2)],
    );
    let case = |n: i64| Case {
        kernel: k.clone(),
        buffers: vec![vec![1; 8], vec![1; 8]],
        extents: vec![2, n],
        strides: vec![1, 0, 1, 0],
        scalars: vec![],
    };
    check_all(&[case(0), case(1), case(100)], 0.0);
}

#[test]
fn a_row_may_be_rewritten_in_place() {
    let (case, rows) = rows_case(softmax(), 4, 100);
    let code = compile(std::slice::from_ref(&case.kernel), cpus()[0].clone());
    let apart = case.run(&code, 0, &[0, 4]).pop().unwrap();
    let together = case.run_in_place(&code);
    assert_eq!(apart, together);
    let module = Module::load(&ptx(std::slice::from_ref(&case.kernel), &[], Arch::Sm90)).unwrap();
    for how in runs(&case.kernel) {
        let apart = case.simulate(&module, how, false).unwrap().pop();
        assert_eq!(apart, case.simulate(&module, how, true).unwrap().pop(), "{how:?}");
    }
    assert_eq!(rows.len(), 4);
}

/// Ranks 1 to 8 over packed shapes with permuted dims: `out[i..] = in[permuted i..] + 100 * (first index)`.
#[test]
fn every_rank() {
    let mut cases = vec![];
    for rank in 1..=8usize {
        let extents: Vec<i64> = [2i64, 3, 1, 2, 3, 2, 2, 19][8 - rank..].to_vec();
        let total: i64 = extents.iter().product();
        let packed = |order: &[usize]| {
            let mut strides = vec![0i64; rank];
            let mut stride = 1;
            for &dim in order.iter().rev() {
                strides[dim] = stride;
                stride *= extents[dim];
            }
            strides
        };
        let forward: Vec<usize> = (0..rank).collect();
        // Row dims reversed, the lane dim last.
        let mut turned: Vec<usize> = (0..rank - 1).rev().collect();
        turned.push(rank - 1);
        let k = kernel(
            rank as u32,
            0,
            &[read(DType::F32, Lane::Unit), write(DType::F32, Lane::Unit)],
            &[
                Node::Load(0),
                Node::Index(0),
                Node::Convert(DType::F32, 1),
                float(100.0),
                Node::Binary(B::Mul, 2, 3),
                Node::Binary(B::Add, 0, 4),
            ],
            &[store(1, 5)],
        );
        let strides = packed(&turned).into_iter().chain(packed(&forward)).collect();
        let input = elements(DType::F32, (0..total).map(|i| i as f64));
        cases.push(Case {
            kernel: k,
            buffers: vec![input, vec![0; total as usize * 4]],
            extents,
            strides,
            scalars: vec![],
        });
    }
    check_all(&cases, 0.0);
}

/// The comparison itself: code of another kernel is noticed.
#[test]
#[should_panic(expected = "element 0: got")]
fn wrong_code_is_noticed() {
    let (case, _) = rows_case(softmax(), 3, 50);
    let other = in_out(&[Node::Load(0), Node::Unary(U::Exp, 0)]);
    case.check(&compile(&[other], cpus()[0].clone()), 0, 1e-6);
}
