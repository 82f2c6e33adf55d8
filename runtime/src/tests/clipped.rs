//! A program with all that a run clips, and with all forms of parameters: rows of the batch, positions and uneven pieces on every kind
//! of instruction, a quantised table, a stack of layers in bf16, equal steps that the file has once.

use super::fixture::*;
use crate::{HostTensor, Interpreter, Options, Session};
use pcc_ir::kernel::{Access, Kernel, Lane, Node, Store};
use pcc_ir::ops::{BinaryKind, CompareKind};
use pcc_ir::program::*;
use pcc_ir::source::{BlockFormat, BlockRows, ParamSource, ReadParams, TensorView, Values};
use pcc_ir::{Axis, AxisRef, Clip, DType, Diagnostic, Extent, Mesh, Part, ReduceKind, Type};
use std::collections::BTreeMap;
use std::ops::Range;

const FORMAT: BlockFormat = BlockFormat { group: 16, bits: 4, low: -8, offsets: true, half: true };
/// Rows of a replica, positions, width, and the width that tp splits into 15 and 14.
const ROWS: u64 = 2;
const SEQ: u64 = 3;
const WIDTH: u64 = 16;
const SPLIT: u64 = 29;
const PIECE: u64 = 15;
const LAYERS: u32 = 3;

/// Small values for whatever is asked.
pub(super) struct Anything;

impl ReadParams for Anything {
    fn read_param_slice(
        &self,
        source: &ParamSource,
        slice: &[Range<usize>],
        out: &mut [f32],
    ) -> Result<(), Diagnostic> {
        if !source.fill(slice, out)? {
            out.fill(0.25);
        }
        Ok(())
    }

    fn read_param_blocks(
        &self,
        source: &ParamSource,
        _: &[usize],
        _: &[Range<usize>],
        _: Range<usize>,
        out: BlockRows<'_>,
    ) -> Result<(), Diagnostic> {
        let low = match &source.values {
            Values::Tensor(view) => view.blocks.map_or(0, |b| b.low),
            _ => 0,
        };
        out.codes.fill(low);
        out.scales.fill(0.5);
        out.offsets.fill(-0.5);
        Ok(())
    }
}

/// Tokens and positions for `rows` rows of `seq` positions.
pub(super) fn inputs(rows: usize, seq: usize) -> BTreeMap<String, HostTensor> {
    let named = |name: &str, of: fn(usize, usize) -> i32| {
        let data = (0..rows * seq).map(|i| of(i / seq, i % seq)).collect();
        (name.to_owned(), HostTensor::i32([rows, seq], data))
    };
    [named("tokens", |row, at| (row * 5 + at) as i32 % 9), named("positions", |_, at| at as i32)].into()
}

struct Clips {
    rows: Clip,
    seq: Clip,
    piece: Clip,
}

impl Clips {
    fn new(mesh: &Mesh) -> Self {
        let of = |part, global, axes| Clip { part, global, axes, inner: 1 };
        Self {
            rows: of(Part::Rows, 2 * ROWS, vec![mesh.whole(Axis::Dp)]),
            seq: of(Part::Seq, SEQ, vec![]),
            piece: of(Part::Piece, SPLIT, vec![mesh.whole(Axis::Tp)]),
        }
    }

    fn rows(&self) -> Extent {
        Extent::part(ROWS, Some(self.rows.clone()))
    }

    fn seq(&self) -> Extent {
        Extent::part(SEQ, Some(self.seq.clone()))
    }

    fn piece(&self) -> Extent {
        Extent::part(PIECE, Some(self.piece.clone()))
    }
}

/// dp 2, tp 2: a look-up in a quantised table split over tp, three calls of a layer, a copy of its result.
pub(super) fn program() -> Program {
    let mesh = mesh(1, 2, 2);
    let (dp, tp) = (vec![mesh.whole(Axis::Dp)], vec![mesh.whole(Axis::Tp)]);
    let clips = Clips::new(&mesh);
    let (tokens, wide) = (ROWS * SEQ * 4, ROWS * SEQ * WIDTH * 4);
    let mut p = super::fixture::program(mesh, vec![], vec![], vec![], vec![]);
    p.batch = BatchPlan { batch: 2 * ROWS as usize, replicas: 2, micro_batches: 1 };
    let rows = look_up(&clips, &tp);
    let layer = layer(&mut p, &clips, &tp);
    let InstrKind::Kernel(mut copy) = map_kernel(&mut p, "copy", 1, 1, [slot(0), slot(1)]) else {
        unreachable!()
    };
    copy.extents = vec![(ROWS * SEQ).into(), WIDTH.into()];
    copy.strides = [WIDTH as i64, 1, WIDTH as i64, 1].to_vec();
    let table = table(tp.clone());
    let weight = PackedMatrix { k: WIDTH, n: PIECE };
    p.funcs = vec![
        func("look_up", &[tokens, rows.1.bytes(DType::F32)], &[wide], wide, rows.0),
        func("layer", &[wide, weight.bytes(DType::BF16), tokens], &[wide], 4096, layer),
        func("copy", &[wide], &[wide], 0, vec![InstrKind::Kernel(copy)]),
    ];
    let name = "layer.{0+1}.w";
    let shape = [WIDTH as usize, SPLIT as usize];
    p.params = vec![
        table,
        LocalParam {
            ty: Type::new(DType::BF16, shape),
            stack: Some(LAYERS),
            storage: Storage::Panels { k: vec![0], n: vec![1] },
            ..param(name, &shape, split(2, 1, &tp))
        },
    ];
    let spec = |name: &str, ty: Type| IoSpec {
        name: name.into(),
        sharding: split(ty.rank(), 0, &dp),
        ty,
        batch_dim: Some(0),
        seq_dim: Some(1),
    };
    let (all, seq) = (2 * ROWS as usize, SEQ as usize);
    let (x, y) = (Slot::Value(0), Slot::Value(wide.next_multiple_of(64)));
    let mut steps = vec![call(0, &[Slot::Input(0), Slot::Param(0), x])];
    steps.extend((0..LAYERS).map(|i| call(1, &[x, Slot::Param(1 + i), Slot::Input(1), y])));
    steps.push(call(2, &[y, Slot::Output(0)]));
    p.entries = vec![EntryProgram {
        name: "forward".into(),
        inputs: vec![spec("tokens", Type::i32([all, seq])), spec("positions", Type::i32([all, seq]))],
        outputs: vec![spec("y", Type::f32([all, seq, WIDTH as usize]))],
        stages: vec![StageProgram { arena_bytes: 1024, shared_bytes: 0, steps }],
    }];
    p
}

/// A quantised table of 9 rows: the second device has one row less.
fn table(tp: Vec<AxisRef>) -> LocalParam {
    let shape = [9, WIDTH as usize];
    let view = TensorView { blocks: Some(FORMAT), ..TensorView::whole("table", shape) };
    LocalParam {
        source: ParamSource::tensor(view),
        storage: Storage::Blocks { k: vec![1], n: vec![0], format: FORMAT, groups: WIDTH / 16 },
        ..param("table", &shape, split(2, 0, &tp))
    }
}

/// The rows of the table, summed over tp.
fn look_up(clips: &Clips, tp: &[AxisRef]) -> (Vec<InstrKind>, PackedMatrix) {
    let packed = PackedMatrix { k: WIDTH, n: 5 };
    let rows = Rows {
        table: slot(1),
        packed,
        dtype: DType::F32,
        indices: slot(0),
        count: clips.rows().times(SEQ),
        out: frame(0),
        base: Scalar::Base { global: 9, axes: tp.to_vec() },
        valid: Scalar::Valid { global: 9, axes: tp.to_vec() },
    };
    let shape: &[u64] = &[ROWS, SEQ, WIDTH];
    let mut sum = collective(CollectiveKind::AllReduce, tp, [shape, shape], [0, 0], [frame(0), slot(2)]);
    sum.there = vec![clips.rows(), clips.seq(), WIDTH.into()];
    (vec![InstrKind::Rows(rows), InstrKind::Collective(sum)], packed)
}

/// Rounds to bf16 what is there, multiplies, attends, and passes pieces around.
fn layer(p: &mut Program, clips: &Clips, tp: &[AxisRef]) -> Vec<InstrKind> {
    let access = |dtype, write| Access { dtype, lane: Lane::Unit, write };
    let round = p.kernels.push(Kernel {
        name: "round".into(),
        rank: 3,
        accesses: vec![access(DType::F32, false), access(DType::BF16, true)],
        scalars: 1,
        nodes: vec![
            Node::Load(0),
            Node::Index(1),
            Node::Scalar(0),
            Node::Compare(CompareKind::Lt, 1, 2),
            Node::Const { dtype: DType::F32, bits: 0 },
            Node::Select(3, 0, 4),
        ],
        stores: vec![Store { access: 1, node: 5, at: None }],
    });
    let add = p.kernels.push(Kernel {
        name: "add".into(),
        rank: 3,
        accesses: vec![access(DType::F32, false), access(DType::F32, false), access(DType::F32, true)],
        scalars: 0,
        nodes: vec![Node::Load(0), Node::Load(1), Node::Binary(BinaryKind::Add, 0, 1)],
        stores: vec![Store { access: 2, node: 2, at: None }],
    });
    let (w, s, q) = (WIDTH as i64, SEQ as i64, PIECE as i64);
    let [halves, product, heads, gathered, part] = [0, 256, 1024, 2048, 3072].map(frame);
    let rounded = Launch {
        kernel: round,
        ptrs: vec![slot(0), halves],
        extents: vec![clips.rows(), clips.seq(), WIDTH.into()],
        strides: vec![s * w, w, 1, s * w, w, 1],
        scalars: vec![Scalar::There(Box::new(clips.seq.clone()))],
    };
    let InstrKind::Gemm(mut gemm) = gemm(SEQ, PIECE, WIDTH, halves, slot(1), product) else { unreachable!() };
    (gemm.m, gemm.n, gemm.packed) = (clips.seq(), clips.piece(), Some(PackedMatrix { k: WIDTH, n: PIECE }));
    (gemm.a.dtype, gemm.b.dtype, gemm.b.row, gemm.b.col) = (DType::BF16, DType::BF16, 0, 0);
    gemm.batch = vec![BatchDim { extent: clips.rows(), a: s * w, b: 0, c: s * q }];
    let of = |loc, dtype, strides: &[i64]| Strided { loc, dtype, strides: strides.to_vec() };
    let keys = || of(product, DType::F32, &[s * q, q, 0, 1]);
    let positions = || of(slot(2), DType::I32, &[s, 1]);
    let attention = AttentionCall {
        b: clips.rows(),
        s: clips.seq(),
        t: clips.seq(),
        g: 1.into(),
        r: 1.into(),
        d: clips.piece(),
        e: clips.piece(),
        scale: 0.5,
        causal: true,
        window: None,
        softcap: None,
        bf16_bias: false,
        q: of(product, DType::F32, &[s * q, q, 0, 0, 1]),
        k: keys(),
        v: keys(),
        q_pos: Some(positions()),
        k_pos: positions(),
        slopes: None,
        out: of(heads, DType::F32, &[s * q, q, 0, 0, 1]),
        scratch: None,
    };
    let (piece, whole): (&[u64], &[u64]) = (&[ROWS, SEQ, PIECE], &[ROWS, SEQ, SPLIT]);
    let mut gather = collective(CollectiveKind::AllGather, tp, [piece, whole], [0, 2], [heads, gathered]);
    gather.there = vec![clips.rows(), clips.seq(), SPLIT.into()];
    let mut scatter =
        collective(CollectiveKind::ReduceScatter, tp, [piece, &[ROWS, 2, PIECE]], [1, 0], [heads, part]);
    (scatter.there, scatter.reduce) = (vec![clips.rows(), clips.seq(), clips.piece()], ReduceKind::Max);
    let added = Launch {
        kernel: add,
        ptrs: vec![slot(0), gathered, slot(3)],
        extents: vec![clips.rows(), clips.seq(), WIDTH.into()],
        strides: vec![s * w, w, 1, s * SPLIT as i64, SPLIT as i64, 1, s * w, w, 1],
        scalars: vec![],
    };
    vec![
        InstrKind::Kernel(rounded),
        InstrKind::Gemm(gemm),
        InstrKind::Attention(Box::new(attention)),
        InstrKind::Collective(gather),
        InstrKind::Collective(scatter),
        InstrKind::Kernel(added),
    ]
}

#[test]
fn what_is_there_is_computed_from_what_is_there() {
    let p = program();
    // A row of the table is `-8 * 0.5 - 0.5` everywhere: all keys are alike, and attention gives the value of any.
    let w = LocalParam {
        name: "w".into(),
        stack: None,
        source: p.params[1].source.element(LAYERS - 1),
        ..p.params[1].clone()
    };
    let w = values(&w);
    let sums: Vec<f32> = (0..WIDTH as usize)
        .map(|j| w.iter().skip(j).step_by(SPLIT as usize).map(|x| -4.5 * x).sum())
        .collect();
    for (rows, seq, workers) in [(4, 3, 1), (4, 3, 3), (1, 2, 1), (3, 1, 2), (2, 3, 2)] {
        let options = Options { workers, poison: true, ..Options::default() };
        let kernels = Box::new(Interpreter::new(p.kernels.values()));
        let mut session = Session::new(p.clone(), kernels, &Anything, &options, &|_, _| {}).unwrap();
        let y = session.run("forward", &inputs(rows, seq), rows).unwrap();
        let y = y["y"].as_f32().unwrap();
        assert_eq!(y.len(), rows * seq * WIDTH as usize);
        for (at, found) in y.iter().enumerate() {
            let expected = -4.5 + sums[at % WIDTH as usize];
            // Weights are rounded to bf16.
            assert!((found - expected).abs() < 0.1, "{rows} x {seq}, {at}: {found} {expected}");
        }
    }
}

/// One row for two replicas, and a matrix wide and deep enough to be cut: the second has a product of no rows.
#[test]
fn a_replica_without_a_row_multiplies_nothing() {
    let mesh = mesh(1, 2, 1);
    let (k, n) = (256usize, 2048usize);
    let dp = vec![mesh.whole(Axis::Dp)];
    let clip = Clip { part: Part::Rows, global: 2, axes: dp.clone(), inner: 1 };
    let InstrKind::Gemm(mut product) = gemm(1, n as u64, k as u64, slot(0), slot(1), slot(2)) else {
        unreachable!()
    };
    product.m = Extent::part(1, Some(clip));
    let code = func(
        "product",
        &[4 * k as u64, 4 * (k * n) as u64],
        &[4 * n as u64],
        0,
        vec![InstrKind::Gemm(product)],
    );
    let rows = |name: &str, width| IoSpec { batch_dim: Some(0), ..io(name, &[2, width], split(2, 0, &dp)) };
    let steps = vec![call(0, &[Slot::Input(0), Slot::Param(0), Slot::Output(0)])];
    let stages = vec![StageProgram { arena_bytes: 0, shared_bytes: 0, steps }];
    let mut p = super::fixture::program(mesh, vec![code], vec![rows("x", k)], vec![rows("y", n)], stages);
    p.batch = BatchPlan { batch: 2, replicas: 2, micro_batches: 1 };
    p.params = vec![param("w", &[k, n], split(2, 0, &[]))];
    let w = values(&p.params[0]);
    for workers in [1, 2] {
        let mut session = session(p.clone(), vec![], workers);
        for rows in [2, 1] {
            let x = numbers(rows * k, 7);
            let y = forward(&mut session, &[("x", &[rows, k], x.clone())], rows).unwrap();
            let y = y["y"].as_f32().unwrap();
            assert_eq!(y.len(), rows * n);
            for (at, found) in y.iter().enumerate() {
                let term = |p: usize| f64::from(x[at / n * k + p]) * f64::from(w[p * n + at % n]);
                let expected: f64 = (0..k).map(term).sum();
                assert!((f64::from(*found) - expected).abs() < 1e-3, "{rows} rows, {at}: {found} {expected}");
            }
        }
    }
}
