//! Closed forms for each kind of instruction.

use super::*;
use crate::tests::fixture;
use pcc_ir::kernel::{Access, Lane, Store};
use pcc_ir::ops::BinaryKind;
use pcc_ir::program::{Base, PackedMatrix, Rows, Scalar};
use pcc_ir::{Axis, AxisRef, DType, Part, ReduceKind};

fn program() -> Program {
    fixture::program(fixture::mesh(1, 1, 1), vec![], vec![], vec![], vec![])
}

fn loc() -> Loc {
    Loc { base: Base::Slot(0), offset: 0 }
}

/// An extent of which a run has half.
fn half(full: u64) -> Extent {
    let clip = pcc_ir::Clip { part: Part::Seq, global: full, axes: Vec::new(), inner: 1 };
    Extent { full, clip: Some(Box::new(clip)) }
}

fn there(e: &Extent) -> u64 {
    if e.clip.is_some() { e.full / 2 } else { e.full }
}

fn work(kind: &InstrKind, element: Option<f64>) -> Work {
    of(&program(), kind, there, |_| element)
}

fn product_of(packed: bool) -> InstrKind {
    let matrix = |dtype| Matrix { loc: loc(), dtype, row: 1, col: 1 };
    InstrKind::Gemm(Gemm {
        m: half(6),
        n: 5.into(),
        k: 7.into(),
        alpha: 1.0,
        a: matrix(DType::BF16),
        b: matrix(DType::BF16),
        c: matrix(DType::F32),
        // b is the same for all of them.
        batch: vec![BatchDim { extent: 2.into(), a: 1, b: 0, c: 1 }],
        accumulate: false,
        packed: packed.then_some(PackedMatrix { k: 7, n: 5 }),
    })
}

#[test]
fn products_read_what_is_there_as_it_is_stored() {
    let flops = 2.0 * (2 * 3 * 5 * 7) as f64;
    let others = (2 * 3 * 7 * 2 + 2 * 3 * 5 * 4) as f64;
    for (packed, element, b) in
        [(false, None, 2.0), (false, Some(0.5), 2.0), (true, None, 2.0), (true, Some(0.5625), 0.5625)]
    {
        assert_eq!(work(&product_of(packed), element), Work { flops, bytes: others + 35.0 * b });
    }
}

#[test]
fn look_ups_read_rows_as_they_are_stored_and_write_them_expanded() {
    let rows = InstrKind::Rows(Rows {
        table: loc(),
        packed: PackedMatrix { k: 64, n: 100 },
        dtype: DType::F32,
        indices: loc(),
        count: half(10),
        out: loc(),
        base: Scalar::Const(0),
        valid: Scalar::Const(100),
    });
    assert_eq!(work(&rows, None), Work { flops: 0.0, bytes: 5.0 * (64.0 * 8.0 + 4.0) });
    assert_eq!(work(&rows, Some(0.5)), Work { flops: 0.0, bytes: 5.0 * (64.0 * 4.5 + 4.0) });
}

#[test]
fn kernels_touch_an_element_once_wherever_it_is_used_again() {
    let access = |write| Access { dtype: DType::F32, lane: Lane::Unit, write };
    let mut program = program();
    let kernel = program.kernels.push(Kernel {
        name: String::new(),
        rank: 2,
        accesses: vec![access(false), access(false), access(true)],
        scalars: 0,
        nodes: vec![Node::Load(0), Node::Load(1), Node::Binary(BinaryKind::Add, 0, 1)],
        stores: vec![Store { access: 2, node: 2, at: None }],
    });
    let launch = InstrKind::Kernel(Launch {
        kernel,
        ptrs: vec![loc(); 3],
        extents: vec![half(8), 5.into()],
        // The second is a bias.
        strides: vec![5, 1, 0, 1, 5, 1],
        scalars: vec![],
    });
    assert_eq!(
        of(&program, &launch, there, |_| None),
        Work { flops: 20.0, bytes: 4.0 * (20.0 + 5.0 + 20.0) }
    );
}

#[test]
fn attention_reads_keys_and_values_once() {
    let view = |dtype, rank| Strided { loc: loc(), dtype, strides: vec![1; rank] };
    let (b, s, t, g, r, d, e) = (2u64, 6u64, 10u64, 3u64, 2u64, 8u64, 4u64);
    let call = AttentionCall {
        b: b.into(),
        s: half(s),
        t: t.into(),
        g: g.into(),
        r: r.into(),
        d: d.into(),
        e: e.into(),
        scale: 1.0,
        causal: true,
        window: None,
        softcap: None,
        bf16_bias: false,
        q: view(DType::F32, 5),
        k: view(DType::BF16, 4),
        v: view(DType::BF16, 4),
        q_pos: None,
        k_pos: view(DType::I32, 2),
        slopes: None,
        out: view(DType::F32, 5),
        scratch: None,
    };
    let queries = b * (s / 2) * g * r;
    let bytes = 4 * queries * (d + e) + 2 * b * t * g * (d + e);
    let expected = Work { flops: (2 * queries * t * (d + e)) as f64, bytes: bytes as f64 };
    assert_eq!(work(&InstrKind::Attention(Box::new(call)), None), expected);
}

#[test]
fn collectives_move_what_is_there() {
    let axes = vec![AxisRef { axis: Axis::Tp, pre: 1, size: 4 }];
    let call = |kind, dst: Vec<u64>, there| {
        InstrKind::Collective(CollectiveCall {
            kind,
            axes: axes.clone(),
            reduce: ReduceKind::Sum,
            dtype: DType::F32,
            src: loc(),
            dst: loc(),
            src_shape: vec![6, 8],
            dst_shape: dst,
            split_dim: 1,
            concat_dim: 1,
            logical_bytes: 0,
            there,
        })
    };
    // Four devices; sums of four terms take three additions.
    let reduce = call(CollectiveKind::AllReduce, vec![6, 8], vec![]);
    assert_eq!(work(&reduce, None), Work { flops: 3.0 * 48.0, bytes: 4.0 * 96.0 * 4.0 });
    let short = call(CollectiveKind::AllReduce, vec![6, 8], vec![half(6), 8.into()]);
    assert_eq!(work(&short, None), Work { flops: 3.0 * 24.0, bytes: 4.0 * 48.0 * 4.0 });
    let gather = call(CollectiveKind::AllGather, vec![6, 32], vec![half(6), 32.into()]);
    assert_eq!(work(&gather, None), Work { flops: 0.0, bytes: 4.0 * (24.0 + 96.0) * 4.0 });
}
