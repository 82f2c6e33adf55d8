//! Groups of every element type move 16 bytes at a time.

use super::gpu::ptx;
use super::harness::*;
use super::rows::{layer_norm, softmax};
use pcc_ir::gpu::{Arch, fused};
use pcc_ir::kernel::{Kernel, Lane, Node};
use pcc_ir::ops::{BinaryKind as B, UnaryKind as U};
use pcc_ir::types::{DType, ReduceKind};

/// The kernel with accesses of another type.
fn of(dtype: DType, mut kernel: Kernel) -> Kernel {
    kernel.accesses.iter_mut().for_each(|a| a.dtype = dtype);
    kernel
}

/// `silu(a) * b`.
fn gate() -> Kernel {
    let accesses =
        [read(DType::BF16, Lane::Unit), read(DType::BF16, Lane::Unit), write(DType::BF16, Lane::Unit)];
    let nodes = [
        Node::Load(0),
        Node::Load(1),
        Node::Unary(U::Sigmoid, 0),
        Node::Binary(B::Mul, 0, 2),
        Node::Binary(B::Mul, 3, 1),
    ];
    kernel(2, 0, &accesses, &nodes, &[store(2, 4)])
}

/// `x + r`, which is kept, and its root-mean-square norm with weights.
fn residual_norm() -> Kernel {
    let [x, r, w, sum, out] = [false, false, false, true, true].map(|w| match w {
        true => write(DType::BF16, Lane::Unit),
        false => read(DType::BF16, Lane::Unit),
    });
    let nodes = [
        Node::Load(0),
        Node::Load(1),
        Node::Binary(B::Add, 0, 1),
        Node::Convert(DType::BF16, 2),
        Node::Binary(B::Mul, 3, 3),
        Node::RowReduce(ReduceKind::Sum, 4),
        float(1.0 / 64.0),
        Node::Binary(B::Mul, 5, 6),
        Node::Unary(U::Rsqrt, 7),
        Node::Binary(B::Mul, 3, 8),
        Node::Load(2),
        Node::Binary(B::Mul, 9, 10),
    ];
    kernel(2, 0, &[x, r, w, sum, out], &nodes, &[store(3, 3), store(4, 11)])
}

/// One of two bytes' truths, where the first holds a number.
fn masks() -> Kernel {
    let accesses =
        [read(DType::Bool, Lane::Unit), read(DType::Bool, Lane::Unit), write(DType::Bool, Lane::Unit)];
    kernel(2, 0, &accesses, &[Node::Load(0), Node::Load(1), Node::Binary(B::And, 0, 1)], &[store(2, 2)])
}

/// Rows of numbers from -1 to 1; lengths at which rows are aligned to 16 bytes, to 8, to 2, and at which groups are left over.
fn cases(kernel: &Kernel) -> Vec<Case> {
    let case = |n: usize| {
        let mut rng = Rng(n as u64);
        let mut buffer = |dtype, written: bool| {
            let number = |_| if written { 0.0 } else { rng.below(2001) as f64 / 1000.0 - 1.0 };
            elements(dtype, (0..3 * n).map(number).collect::<Vec<_>>())
        };
        let buffers = kernel.accesses.iter().map(|a| buffer(a.dtype, a.write)).collect();
        let strides = kernel.accesses.iter().flat_map(|_| [n as i64, 1]).collect();
        Case { kernel: kernel.clone(), buffers, extents: vec![3, n as i64], strides, scalars: vec![] }
    };
    [1, 7, 16, 33, 64, 100, 1000, 4112, 8200].into_iter().map(case).collect()
}

/// Accesses of global memory, by basic block: the instruction without its operands.
fn blocks(ptx: &str) -> Vec<Vec<&str>> {
    let mut blocks = vec![vec![]];
    for line in ptx.lines().map(str::trim) {
        let word = line.split_whitespace().find(|w| !w.starts_with('@')).unwrap_or_default();
        let last = blocks.last_mut();
        match last {
            Some(block) if word.starts_with("ld.global") || word.starts_with("st.global") => block.push(word),
            _ if word.ends_with(':') || word.starts_with("bra") => blocks.push(vec![]),
            _ => {}
        }
    }
    blocks.retain(|b| !b.is_empty());
    blocks
}

#[test]
fn groups_move_sixteen_bytes_at_a_time() {
    for (kernel, single) in [
        (gate(), "b16"),
        (residual_norm(), "b16"),
        (of(DType::BF16, softmax()), "b16"),
        (of(DType::F16, layer_norm(100)), "b16"),
        (softmax(), "b32"),
        (masks(), "b8"),
    ] {
        let text = ptx(std::slice::from_ref(&kernel), &[], Arch::Sm90);
        let (mut wide, mut narrow) = (0, 0);
        for block in blocks(&text) {
            let is = |form: &str| block.iter().all(|a| a[9..].trim_start_matches('.') == form);
            if is("v4.b32") {
                wide += block.len();
            } else {
                // One element at a time: a whole group is nowhere in narrower pieces.
                assert!(is(single) && block.len() <= kernel.accesses.len(), "{block:?} in\n{text}");
                narrow += block.len();
            }
        }
        assert!(wide >= kernel.accesses.len() && narrow >= kernel.accesses.len(), "{wide} {narrow}\n{text}");
        super::gpu::check_all(&cases(&kernel), 1.0 / 128.0);
    }
}

#[test]
fn wider_elements_take_several_accesses() {
    let accesses_of = |dtypes: [DType; 2]| {
        let accesses = [read(dtypes[0], Lane::Unit), write(dtypes[1], Lane::Unit)];
        let kernel = kernel(1, 0, &accesses, &[Node::Load(0), Node::Convert(dtypes[1], 0)], &[store(1, 1)]);
        let text = ptx(std::slice::from_ref(&kernel), &[], Arch::Sm90);
        let blocks = blocks(&text).into_iter().flatten().map(str::to_owned);
        (fused::vector(&kernel), blocks.filter(|a| a.contains(".v")).collect::<Vec<_>>())
    };
    let wide = |loads: usize, load: &str, stores: usize, store: &str| {
        let all = std::iter::repeat_n(format!("ld.global.{load}"), loads);
        all.chain(std::iter::repeat_n(format!("st.global.{store}"), stores)).collect::<Vec<_>>()
    };
    assert_eq!(accesses_of([DType::F32, DType::BF16]), (8, wide(2, "v4.b32", 1, "v4.b32")));
    assert_eq!(accesses_of([DType::Bool, DType::F32]), (16, wide(1, "v4.b32", 4, "v4.b32")));
    assert_eq!(accesses_of([DType::F16, DType::I64]), (8, wide(1, "v4.b32", 4, "v2.b64")));
    assert_eq!(accesses_of([DType::F64, DType::F32]), (4, wide(2, "v2.b64", 1, "v4.b32")));
}
