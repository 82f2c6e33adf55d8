//! Which kernels may run with a product.

use super::*;
use crate::extent::{Clip, Part};
use crate::kernel::{Access, Lane, Store};
use crate::ops::UnaryKind;
use crate::program::{Instr, PackedMatrix};
use crate::types::ReduceKind;

const M: i64 = 4;
const N: i64 = 6;
const K: i64 = 8;
/// Bytes of a, c and the kernel's result in the frame.
const A: u64 = (M * K * 4) as u64;
const C: u64 = (M * N * 4) as u64;

fn frame(offset: u64) -> Loc {
    Loc { base: Base::Frame, offset }
}

fn slot(slot: u32) -> Loc {
    Loc { base: Base::Slot(slot), offset: 0 }
}

fn gemm() -> Gemm {
    let matrix = |loc, row, col| Matrix { loc, dtype: DType::F32, row, col };
    Gemm {
        m: Extent::full(M as u64),
        n: Extent::full(N as u64),
        k: Extent::full(K as u64),
        alpha: 1.0,
        a: matrix(frame(0), K, 1),
        b: matrix(slot(0), 0, 0),
        c: matrix(frame(A), N, 1),
        batch: vec![],
        accumulate: false,
        packed: Some(PackedMatrix { k: K as u64, n: N as u64 }),
    }
}

/// `result = relu(c) + bias`, in effect; the nodes are not looked at beyond what they depend on.
fn launch() -> (Launch, Kernel) {
    let access = |write| Access { dtype: DType::F32, lane: Lane::Unit, write };
    let kernel = Kernel {
        name: String::new(),
        rank: 2,
        accesses: vec![access(false), access(false), access(true)],
        scalars: 0,
        nodes: vec![Node::Load(0), Node::Load(1), Node::Unary(UnaryKind::Relu, 0)],
        stores: vec![Store { access: 2, node: 2, at: None }],
    };
    let launch = Launch {
        kernel: KernelId::from_u32(0),
        ptrs: vec![frame(A), slot(1), frame(A + C)],
        extents: vec![Extent::full(M as u64), Extent::full(N as u64)],
        strides: vec![N, 1, 0, 1, N, 1],
        scalars: vec![],
    };
    (launch, kernel)
}

fn fits(change: impl FnOnce(&mut Gemm, &mut Launch, &mut Kernel, &mut FuncProgram)) -> bool {
    let (mut gemm, (mut launch, mut kernel)) = (gemm(), launch());
    let mut func = FuncProgram { args: 2, results: 1, ..FuncProgram::default() };
    change(&mut gemm, &mut launch, &mut kernel, &mut func);
    func.instrs = vec![
        Instr { kind: InstrKind::Gemm(gemm), note: 0, once: false },
        Instr { kind: InstrKind::Kernel(launch), note: 0, once: false },
    ];
    let mut kernels = PrimaryMap::new();
    kernels.push(kernel);
    assert!(!func.has_epilogue(1, &kernels) && !func.has_epilogue(9, &kernels));
    let fits = func.has_epilogue(0, &kernels);
    assert_eq!(fits, func.epilogue_launch(0, &kernels).is_some());
    // What one device runs for its team and what each runs are apart.
    func.instrs[1].once = true;
    assert!(!func.has_epilogue(0, &kernels));
    fits
}

#[test]
fn elementwise_kernels_over_the_result_fit() {
    assert!(fits(|_, _, _, _| ()));
    // In place, or reading the result twice.
    assert!(fits(|_, l, _, _| l.ptrs[2] = frame(A)));
    assert!(fits(|_, l, _, _| (l.ptrs[1], l.strides[2]) = (frame(A), N)));
    // A result with columns apart.
    assert!(fits(|_, l, _, _| l.strides[4..].copy_from_slice(&[1, M])));
    // One row, with or without a dim for it.
    assert!(fits(|g, l, _, _| (g.m, l.extents[0]) = (Extent::full(1), Extent::full(1))));
    let row = |l: &mut Launch, k: &mut Kernel| {
        l.extents.remove(0);
        (l.strides, k.rank) = (vec![1, 1, 1], 1);
    };
    assert!(fits(|g, l, k, _| {
        g.m = Extent::full(1);
        row(l, k);
    }));
    assert!(!fits(|_, l, k, _| row(l, k)));
}

/// Which accesses of the kernel are the product's result, with this change to the launch.
fn reads(change: impl FnOnce(&mut Gemm, &mut Launch)) -> Vec<bool> {
    let (mut gemm, (mut launch, kernel)) = (gemm(), launch());
    change(&mut gemm, &mut launch);
    reads_of_result(&gemm, &over_batch(&gemm, &launch).unwrap(), &kernel).unwrap()
}

/// Rows and columns as one dim.
#[test]
fn merged_loops_are_taken_apart() {
    let clip = |global, inner| Some(Box::new(Clip { part: Part::Seq, global, axes: vec![], inner }));
    let apart = |change: &dyn Fn(&mut Gemm, &mut Launch, &mut Kernel)| {
        let (mut gemm, (mut launch, mut kernel)) = (gemm(), launch());
        (launch.extents, launch.strides) = (vec![Extent::full((M * N) as u64)], vec![1, 1, 1]);
        kernel.rank = 1;
        change(&mut gemm, &mut launch, &mut kernel);
        let instr = |kind| Instr { kind, note: 0, once: false };
        let instrs = vec![instr(InstrKind::Gemm(gemm)), instr(InstrKind::Kernel(launch))];
        let func = FuncProgram { args: 2, results: 1, instrs, ..FuncProgram::default() };
        let mut kernels = PrimaryMap::new();
        kernels.push(kernel);
        assert!(!func.has_epilogue(0, &kernels), "on a CPU such a kernel runs by itself");
        func.epilogue_launch(0, &kernels).map(|l| (l.extents, l.strides))
    };
    let (one, m, n) = (Extent::full(1), Extent::full(M as u64), Extent::full(N as u64));
    let strides = [[0, N, 1]; 3].concat();
    assert_eq!(apart(&|_, _, _| ()), Some((vec![one.clone(), m, n.clone()], strides.clone())));
    // As much of the one dim is there as of the rows.
    let clipped = |inner| Extent { full: M as u64, clip: clip(M as u64 / 2, inner) };
    let with = |inner: u64| {
        apart(&move |g, l, _| {
            g.m = clipped(2);
            l.extents[0].clip = clip(M as u64 / 2, inner);
        })
    };
    assert_eq!(with(2 * N as u64), Some((vec![one, clipped(2), n], strides)));
    assert_eq!(with(2), None);
    assert_eq!(apart(&|g, _, _| g.n.clip = clip(3, 2)), None);
    assert_eq!(apart(&|_, l, _| l.extents[0].full -= 1), None);
    // A result with space between its rows is not one dim.
    assert_eq!(apart(&|g, _, _| g.c.row = N + 1), None);
    assert_eq!(apart(&|_, _, k| k.rank = 2), None);
}

/// A batch of one dim; on a CPU such kernels run by themselves.
#[test]
fn products_of_a_batch_have_epilogues_of_their_own() {
    let launched = |change: &dyn Fn(&mut Gemm, &mut Launch)| {
        let (mut gemm, (mut launch, mut kernel)) = (gemm(), launch());
        let (all, rows) = (M * N, Extent::full(2));
        let dim = BatchDim { extent: rows.clone(), a: M * K, b: 0, c: all };
        (gemm.batch, gemm.packed) = (vec![dim], None);
        (gemm.b.row, gemm.b.col) = (N, 1);
        (gemm.c.loc, launch.ptrs[0], launch.ptrs[2]) = (frame(2 * A), frame(2 * A), frame(2 * (A + C)));
        launch.extents.insert(0, rows);
        launch.strides = [[all, N, 1], [0, 0, 1], [all, N, 1]].concat();
        kernel.rank = 3;
        change(&mut gemm, &mut launch);
        kernel.rank = launch.extents.len() as u32;
        let instr = |kind| Instr { kind, note: 0, once: false };
        let instrs = vec![instr(InstrKind::Gemm(gemm)), instr(InstrKind::Kernel(launch))];
        let func = FuncProgram { args: 2, results: 1, instrs, ..FuncProgram::default() };
        let mut kernels = PrimaryMap::new();
        kernels.push(kernel);
        assert!(!func.has_epilogue(0, &kernels));
        func.epilogue_launch(0, &kernels).map(|l| l.strides)
    };
    let all = M * N;
    assert_eq!(launched(&|_, _| ()), Some([[all, N, 1], [0, 0, 1], [all, N, 1]].concat()));
    // Rows and columns as one dim.
    let merged = |l: &mut Launch| {
        l.extents = vec![Extent::full(2), Extent::full(all as u64)];
        l.strides = [[all, 1]; 3].concat();
    };
    assert_eq!(launched(&|_, l| merged(l)), Some([[all, N, 1]; 3].concat()));
    // Another member's element, what lies over the other member, and other batches.
    assert_eq!(launched(&|_, l| l.strides[0] = 0), None);
    assert_eq!(launched(&|_, l| l.strides[6] = N), None);
    assert_eq!(launched(&|_, l| l.ptrs[2] = frame(A)), None, "a's second member");
    assert_eq!(launched(&|_, l| l.extents[0] = Extent::full(3)), None);
    assert_eq!(launched(&|g, _| g.batch.push(g.batch[0].clone())), None);
}

#[test]
fn only_reads_at_the_results_own_place_are_the_result() {
    assert_eq!(reads(|_, _| ()), [true, false, false]);
    // What is written in place is no read; other strides are other elements.
    assert_eq!(reads(|_, l| l.ptrs[2] = frame(A)), [true, false, false]);
    assert_eq!(reads(|_, l| (l.ptrs[1], l.strides[2]) = (frame(A), N)), [true, true, false]);
    assert_eq!(reads(|_, l| l.ptrs[1] = frame(A)), [true, false, false]);
    assert_eq!(reads(|g, _| g.c.dtype = DType::BF16), [false, false, false]);
    // Of one row the stride along rows says nothing.
    let row = |g: &mut Gemm, l: &mut Launch| (g.m, l.extents[0]) = (Extent::full(1), Extent::full(1));
    assert_eq!(
        reads(|g, l| {
            row(g, l);
            l.ptrs[1] = frame(A);
        }),
        [true, true, false]
    );
}

#[test]
fn other_spaces_and_kernels_that_look_further_do_not() {
    assert!(!fits(|_, l, _, _| l.extents[1] = Extent::full(N as u64 - 1)));
    assert!(!fits(|_, l, _, _| l.extents.swap(0, 1)));
    assert!(!fits(|_, _, k, _| k.nodes.push(Node::RowReduce(ReduceKind::Max, 0))));
    assert!(!fits(|_, _, k, _| k.nodes.push(Node::Index(1))));
    assert!(!fits(|_, _, k, _| k.nodes.push(Node::LoadAt { access: 1, index: 0, stride: 0, limit: 0 })));
    // Another element of the result: its transpose, or one to the right.
    assert!(!fits(|_, l, _, _| l.strides[..2].copy_from_slice(&[1, M])));
    assert!(!fits(|_, l, _, _| l.ptrs[0].offset += 4));
    assert!(!fits(|_, l, _, _| l.strides[0] = 0));
}

#[test]
fn writes_keep_clear_of_what_is_still_read() {
    // The last element of a, and the first byte behind it.
    assert!(!fits(|_, l, _, _| l.ptrs[2] = frame(A - 4)));
    assert!(!fits(|g, l, _, _| (g.a.loc, l.ptrs[2]) = (frame(A + C), frame(A + C + A - 4))));
    assert!(fits(|g, l, _, _| (g.a.loc, l.ptrs[2]) = (frame(A + C), frame(A + C + A))));
    // The weight, also as the result that it is updated in place as.
    assert!(!fits(|_, l, _, _| l.ptrs[2] = slot(0)));
    assert!(fits(|_, l, _, _| l.ptrs[2] = slot(2)));
    assert!(!fits(|_, l, _, f| (l.ptrs[2], f.in_place) = (slot(2), vec![(0, 2)])));
    // What another tile of the kernel reads.
    assert!(!fits(|_, l, _, f| (l.ptrs[2], f.in_place) = (slot(2), vec![(1, 2)])));
    assert!(fits(|_, l, _, f| {
        (l.ptrs[2], l.strides[2], f.in_place) = (slot(2), N, vec![(1, 2)]);
        l.ptrs[1] = slot(2);
    }));
    // Two indices at one element.
    assert!(!fits(|_, l, _, _| l.strides[4] = 0));
    assert!(!fits(|_, l, _, _| l.strides[4] = N - 1));
    assert!(!fits(|_, l, _, _| l.strides[4] = i64::MAX));
}
