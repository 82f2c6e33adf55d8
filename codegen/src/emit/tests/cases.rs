//! Every element type, lane kind and exact node kind, against the interpreter to the bit (to the value for zeros and NaN).

use super::harness::*;
use pcc_ir::kernel::{At, Lane, Node};
use pcc_ir::kernel_check::Kind;
use pcc_ir::ops::{BinaryKind, CompareKind, UnaryKind};
use pcc_ir::types::DType;

const DTYPES: [DType; 7] =
    [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::Bool];

/// Numbers that a type holds or that test its rounding, 70 of them.
fn numbers(dtype: DType, seed: u64) -> Vec<f64> {
    let mut rng = Rng(seed);
    let special: &[f64] = match Kind::of(dtype) {
        // Ties of bf16 and f16, their largest and smallest, what overflows them, floats beyond i32.
        Kind::Float => &[
            1.003_906_25,
            1.011_718_75,
            1.000_488_281_25,
            1.001_464_843_75,
            65504.0,
            65520.0,
            5.96e-8,
            2.9e-8,
            1e-40,
            9.2e-41,
            3.39e38,
            -3.4e38,
            3e9,
            -3e9,
            0.0,
            -0.0,
            0.5,
            -1.5,
            2.5,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            2147483520.0,
        ],
        Kind::Int => &[0.0, 1.0, -1.0, 2147483647.0, -2147483648.0, 7.0, -7.0, 16777217.0],
        Kind::Bool => &[0.0, 1.0],
    };
    let random = |_| match Kind::of(dtype) {
        Kind::Float => rng.float() * 1.1,
        Kind::Int => rng.below(41) as f64 - 20.0,
        Kind::Bool => rng.below(2) as f64,
    };
    let random: Vec<f64> = (0..70).map(random).collect();
    special.iter().copied().chain(random).take(70).collect()
}

#[test]
fn types_convert_and_store() {
    let mut cases = vec![];
    for from in DTYPES {
        for to in DTYPES {
            let k = kernel(
                1,
                0,
                &[read(from, Lane::Unit), write(to, Lane::Unit)],
                &[Node::Load(0), Node::Convert(to, 0)],
                &[store(1, 1)],
            );
            cases.extend([70, 64, 5].map(|n| flat(k.clone(), n, &[numbers(from, 1)])));
        }
    }
    check_all(&cases, 0.0);
}

#[test]
fn every_length_of_a_row() {
    let k = kernel(
        1,
        0,
        &[read(DType::F32, Lane::Unit), read(DType::BF16, Lane::Unit), write(DType::F32, Lane::Unit)],
        &[Node::Load(0), Node::Load(1), Node::Binary(BinaryKind::Add, 0, 1)],
        &[store(2, 2)],
    );
    let inputs = [numbers(DType::F32, 2), numbers(DType::BF16, 3)];
    let cases: Vec<Case> = (1..=70).map(|n| flat(k.clone(), n, &inputs)).collect();
    check_all(&cases, 0.0);
}

/// Two dims: rows of `n` elements through accesses of any lane kind.
#[test]
fn lanes_of_every_kind_and_type() {
    let (rows, n, stride) = (3usize, 37usize, 3usize);
    let mut cases = vec![];
    for dtype in DTYPES {
        for from in [Lane::Unit, Lane::Broadcast, Lane::Strided] {
            for to in [Lane::Unit, Lane::Broadcast, Lane::Strided] {
                if to == Lane::Broadcast && from != Lane::Broadcast {
                    continue;
                }
                let k =
                    kernel(2, 0, &[read(dtype, from), write(dtype, to)], &[Node::Load(0)], &[store(1, 0)]);
                // A row, and the elements between its neighbours.
                let shape = |lane| match lane {
                    Lane::Unit => (n, 1),
                    Lane::Broadcast => (1, 0),
                    Lane::Strided => (n * stride, stride),
                };
                let ((a, al), (b, bl)) = (shape(from), shape(to));
                let input = numbers(dtype, 4).into_iter().cycle().take(rows * a);
                cases.push(Case {
                    kernel: k,
                    buffers: vec![elements(dtype, input), elements(dtype, vec![7.0; rows * b])],
                    extents: vec![rows as i64, n as i64],
                    strides: [a, al, b, bl].map(|s| s as i64).to_vec(),
                    scalars: vec![],
                });
            }
        }
    }
    check_all(&cases, 0.0);
}

/// A case of two operands of one type, 70 elements, that stores the last node with its own type.
fn pairs(dtype: DType, result: DType, node: Node) -> Case {
    let k = kernel(
        1,
        0,
        &[read(dtype, Lane::Unit), read(dtype, Lane::Unit), write(result, Lane::Unit)],
        &[Node::Load(0), Node::Load(1), node],
        &[store(2, 2)],
    );
    let (a, b) = (numbers(dtype, 5), numbers(dtype, 6).into_iter().rev().collect());
    flat(k, 70, &[a, b])
}

#[test]
fn unary_binary_and_comparisons() {
    use BinaryKind::*;
    let mut cases = vec![];
    for (dtype, kinds) in [
        (DType::F32, vec![Add, Sub, Mul, Div, Max, Min]),
        (DType::I32, vec![Add, Sub, Mul, Div, Max, Min, And, Or]),
        (DType::Bool, vec![And, Or]),
    ] {
        cases.extend(kinds.into_iter().map(|k| pairs(dtype, dtype, Node::Binary(k, 0, 1))));
        cases.extend(CompareKind::ALL.iter().map(|&k| pairs(dtype, DType::Bool, Node::Compare(k, 0, 1))));
    }
    use UnaryKind::*;
    for (dtype, kinds) in [
        (DType::F32, vec![Neg, Abs, Sqrt, Recip, Relu]),
        (DType::I32, vec![Neg, Abs, Relu, Not]),
        (DType::Bool, vec![Not]),
    ] {
        cases.extend(kinds.into_iter().map(|k| pairs(dtype, dtype, Node::Unary(k, 0))));
    }
    check_all(&cases, 0.0);
}

#[test]
fn integer_division_at_its_edges() {
    let edges = [i32::MIN, i32::MIN + 1, -7, -1, 0, 1, 2, 3, 46341, i32::MAX - 1, i32::MAX].map(f64::from);
    let (a, b): (Vec<f64>, Vec<f64>) = edges.iter().flat_map(|&a| edges.map(|b| (a, b))).unzip();
    let k = kernel(
        1,
        0,
        &[read(DType::I32, Lane::Unit), read(DType::I32, Lane::Unit), write(DType::I32, Lane::Unit)],
        &[Node::Load(0), Node::Load(1), Node::Binary(BinaryKind::Div, 0, 1)],
        &[store(2, 2)],
    );
    check_all(&[flat(k, a.len(), &[a, b])], 0.0);
}

#[test]
fn constants_scalars_indices_and_select() {
    // out[i, j] = j * 2 < scalar ? i + f16(1.5) : bf16(-2)
    let constant = |dtype, bits| Node::Const { dtype, bits };
    let k = kernel(
        2,
        1,
        &[write(DType::F32, Lane::Unit)],
        &[
            Node::Index(1),
            constant(DType::I64, 2),
            Node::Binary(BinaryKind::Mul, 0, 1),
            Node::Scalar(0),
            Node::Compare(CompareKind::Lt, 2, 3),
            Node::Index(0),
            Node::Convert(DType::F32, 5),
            constant(DType::F16, 0x3e00),
            Node::Binary(BinaryKind::Add, 6, 7),
            constant(DType::BF16, 0xc000),
            Node::Select(4, 8, 9),
        ],
        &[store(0, 10)],
    );
    let case = Case {
        kernel: k.clone(),
        buffers: vec![elements(DType::F32, vec![7.0; 5 * 40])],
        extents: vec![5, 40],
        strides: vec![40, 1],
        scalars: vec![33],
    };
    check_all(std::slice::from_ref(&case), 0.0);
    let got = case.run(&compile(&[k], cpus()[0].clone()), 0, &[0, 5]).remove(0);
    for (at, bytes) in got.chunks(4).enumerate() {
        let (i, j) = (at / 40, at % 40);
        let want = if j * 2 < 33 { i as f64 + 1.5 } else { -2.0 };
        assert_eq!(number(DType::F32, bytes), want);
    }
}

/// Accesses at run-time indices: the table has 5 rows of 40 elements; indices -2..7.
#[test]
fn loads_and_stores_at_indices() {
    let (rows, n, table) = (6usize, 40usize, 5usize);
    let mut cases = vec![];
    for dtype in [DType::F32, DType::BF16, DType::Bool, DType::I64, DType::I32] {
        for lane in [Lane::Unit, Lane::Strided, Lane::Broadcast] {
            for index_lane in [Lane::Broadcast, Lane::Unit] {
                let index_row = if index_lane == Lane::Unit { n } else { 1 };
                let indices = (0..rows * index_row).map(|i| (i * 7 % 9) as f64 - 2.0);
                // The table's rows: contiguous, every other element, or one element.
                let (step, row) = match lane {
                    Lane::Unit => (1, n),
                    Lane::Strided => (2, 2 * n),
                    Lane::Broadcast => (0, 1),
                };
                let at = At { index: 0, stride: 0, limit: 1 };
                let index = read(DType::I32, index_lane);
                let scalars = vec![row as i64, table as i64];
                let values = numbers(dtype, 8).into_iter().cycle();
                cases.push(Case {
                    kernel: kernel(
                        2,
                        2,
                        &[index.clone(), read(dtype, lane), write(dtype, Lane::Unit)],
                        &[Node::Load(0), Node::LoadAt { access: 1, index: 0, stride: 0, limit: 1 }],
                        &[store(2, 1)],
                    ),
                    buffers: vec![
                        elements(DType::I32, indices.clone()),
                        elements(dtype, values.clone().take(table * row)),
                        elements(dtype, vec![7.0; rows * n]),
                    ],
                    extents: vec![rows as i64, n as i64],
                    strides: [index_row, usize::from(index_row == n), 0, step, n, 1]
                        .map(|s| s as i64)
                        .to_vec(),
                    scalars: scalars.clone(),
                });
                if lane == Lane::Broadcast && index_lane == Lane::Unit {
                    continue;
                }
                let source = if lane == Lane::Broadcast { Lane::Broadcast } else { Lane::Unit };
                let source_row = if lane == Lane::Broadcast { 1 } else { n };
                cases.push(Case {
                    kernel: kernel(
                        2,
                        2,
                        &[index, read(dtype, source), write(dtype, lane)],
                        &[Node::Load(0), Node::Load(1)],
                        &[store_at(2, 1, at)],
                    ),
                    buffers: vec![
                        elements(DType::I32, indices),
                        elements(dtype, values.take(rows * source_row)),
                        elements(dtype, vec![7.0; table * row]),
                    ],
                    extents: vec![rows as i64, n as i64],
                    strides: [index_row, usize::from(index_row == n), source_row, 1, 0, step]
                        .map(|s| s as i64)
                        .to_vec(),
                    scalars,
                });
            }
        }
    }
    check_all(&cases, 0.0);
}
