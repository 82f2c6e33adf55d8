//! Which bytes an instruction reads and writes, so that work waits for a collective only where it meets it.

use pcc_ir::kernel::{Kernel, Node};
use pcc_ir::program::{Base, FuncProgram, InstrKind, Launch, Loc, Program, View};
use std::ops::Range;

/// Bytes of the frame or of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) base: Base,
    pub(super) bytes: Range<u64>,
    pub(super) write: bool,
}

/// What each instruction of a function touches: at least what it does, whatever the run has. The program is validated.
pub(super) fn of(program: &Program, func: &FuncProgram) -> Vec<Vec<Touched>> {
    func.instrs.iter().map(|i| of_instr(program, func, &i.kind)).collect()
}

/// All of the buffer that an address lies in.
fn whole(func: &FuncProgram, loc: &Loc) -> Range<u64> {
    match loc.base {
        Base::Frame => 0..func.frame_bytes,
        Base::Slot(i) => 0..func.slot_bytes[i as usize],
    }
}

/// What strides reach from an address, for elements of `size` bytes; dims are (extent, stride).
fn reach(loc: &Loc, size: usize, dims: impl IntoIterator<Item = (u64, i64)>) -> Range<u64> {
    let (mut low, mut high) = (0i64, 1i64);
    for (extent, stride) in dims {
        let last = (extent.max(1) - 1) as i64 * stride;
        low += last.min(0);
        high += last.max(0);
    }
    let at = |elements: i64| loc.offset.saturating_add_signed(elements * size as i64);
    at(low)..at(high)
}

fn of_instr(program: &Program, func: &FuncProgram, kind: &InstrKind) -> Vec<Touched> {
    let touched = |loc: &Loc, bytes: Range<u64>, write: bool| Touched { base: loc.base, bytes, write };
    match kind {
        InstrKind::Kernel(launch) => of_launch(program, func, launch),
        InstrKind::Gemm(g) => {
            let batch = |stride: fn(&pcc_ir::program::BatchDim) -> i64| {
                g.batch.iter().map(move |d| (d.extent.full, stride(d))).collect::<Vec<_>>()
            };
            let [m, n, k] = [&g.m, &g.n, &g.k].map(|e| e.full);
            let matrix = |x: &pcc_ir::program::Matrix, rows, cols, outer: Vec<(u64, i64)>, write| {
                let dims = [(rows, x.row), (cols, x.col)].into_iter().chain(outer);
                touched(&x.loc, reach(&x.loc, x.dtype.bytes(), dims), write)
            };
            vec![
                matrix(&g.a, m, k, batch(|d| d.a), false),
                matrix(&g.b, k, n, batch(|d| d.b), false),
                matrix(&g.c, m, n, batch(|d| d.c), true),
            ]
        }
        InstrKind::Attention(call) => {
            let view = |x: &pcc_ir::program::Strided, extents: Vec<&pcc_ir::Extent>, write| {
                let dims = extents.iter().map(|e| e.full).zip(x.strides.iter().copied());
                touched(&x.loc, reach(&x.loc, x.dtype.bytes(), dims), write)
            };
            let reads = call.reads().into_iter().map(|(_, x, extents)| view(x, extents, false));
            let scratch = call.scratch.iter().map(|loc| touched(loc, whole(func, loc), true));
            reads.chain([view(&call.out, call.made(), true)]).chain(scratch).collect()
        }
        InstrKind::TopK(call) => of_views(&call.views()),
        InstrKind::Sample(call) => of_views(&call.views()),
        InstrKind::Collective(c) => {
            let bytes = |loc: &Loc, shape: &[u64]| {
                loc.offset..loc.offset + shape.iter().product::<u64>() * c.dtype.bytes() as u64
            };
            vec![
                touched(&c.src, bytes(&c.src, &c.src_shape), false),
                touched(&c.dst, bytes(&c.dst, &c.dst_shape), true),
            ]
        }
        InstrKind::Rows(r) => [(&r.table, false), (&r.indices, false), (&r.out, true)]
            .map(|(loc, write)| touched(loc, whole(func, loc), write))
            .to_vec(),
    }
}

fn of_views(views: &[View<'_>]) -> Vec<Touched> {
    let view = |v: &View<'_>| {
        let dims = v.extents.iter().map(|e| e.full).zip(v.strided.strides.iter().copied());
        let bytes = reach(&v.strided.loc, v.dtype.bytes(), dims);
        Touched { base: v.strided.loc.base, bytes, write: v.write }
    };
    views.iter().map(view).collect()
}

fn of_launch(program: &Program, func: &FuncProgram, launch: &Launch) -> Vec<Touched> {
    let kernel = &program.kernels[launch.kernel];
    let rank = launch.extents.len();
    let access = |(number, loc): (usize, &Loc)| {
        let a = &kernel.accesses[number];
        let bytes = if is_indexed(kernel, number as u32) {
            whole(func, loc)
        } else {
            let strides = launch.strides[number * rank..(number + 1) * rank].iter().copied();
            reach(loc, a.dtype.bytes(), launch.extents.iter().map(|e| e.full).zip(strides))
        };
        Touched { base: loc.base, bytes, write: a.write }
    };
    launch.ptrs.iter().enumerate().map(access).collect()
}

/// Whether an access goes where an index says.
fn is_indexed(kernel: &Kernel, number: u32) -> bool {
    let loads = |n: &Node| matches!(n, Node::LoadAt { access, .. } if *access == number);
    kernel.nodes.iter().any(loads) || kernel.stores.iter().any(|s| s.access == number && s.at.is_some())
}

/// Bytes at device addresses.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) bytes: Range<u64>,
    pub(super) write: bool,
}

/// Whether one of them writes what the other touches.
pub(super) fn meet(a: &[Span], b: &[Span]) -> bool {
    a.iter().any(|a| {
        b.iter().any(|b| (a.write || b.write) && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_either_sign_reach_what_they_touch() {
        let loc = Loc { base: Base::Frame, offset: 100 };
        assert_eq!(reach(&loc, 4, []), 100..104);
        assert_eq!(reach(&loc, 4, [(3, 10), (2, 1)]), 100..100 + 4 * 22);
        assert_eq!(reach(&loc, 4, [(3, -5)]), 60..104);
    }

    #[test]
    fn readers_of_one_range_do_not_meet() {
        let span = |bytes, write| vec![Span { bytes, write }];
        assert!(!meet(&span(0..10, false), &span(0..10, false)));
        assert!(meet(&span(0..10, true), &span(9..10, false)));
        assert!(!meet(&span(0..10, true), &span(10..20, true)));
    }
}
