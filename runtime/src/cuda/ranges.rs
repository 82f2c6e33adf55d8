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
    /// Whether it is each of the bytes that a full run has, once.
    pub(super) dense: bool,
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
fn reach(loc: &Loc, size: usize, dims: impl IntoIterator<Item = (u64, i64)>) -> (Range<u64>, bool) {
    let mut dims: Vec<(u64, i64)> = dims.into_iter().filter(|d| d.0 > 1).collect();
    let (mut low, mut high) = (0i64, 1i64);
    for &(extent, stride) in &dims {
        let last = (extent - 1) as i64 * stride;
        low += last.min(0);
        high += last.max(0);
    }
    dims.sort_unstable_by_key(|d| d.1);
    let mut next = 1;
    let dense = dims.iter().all(|&(extent, stride)| {
        let fits = stride == next;
        next = stride.saturating_mul(extent as i64);
        fits
    });
    let at = |elements: i64| loc.offset.saturating_add_signed(elements * size as i64);
    (at(low)..at(high), dense)
}

fn of_instr(program: &Program, func: &FuncProgram, kind: &InstrKind) -> Vec<Touched> {
    let touched = |loc: &Loc, (bytes, dense): (Range<u64>, bool), write: bool| Touched {
        base: loc.base,
        bytes,
        write,
        dense,
    };
    // Of what is used as needed.
    let scratch = |loc: &Loc, write| touched(loc, (whole(func, loc), false), write);
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
            let scratch = call.scratch.iter().map(|loc| scratch(loc, true));
            reads.chain([view(&call.out, call.made(), true)]).chain(scratch).collect()
        }
        InstrKind::TopK(call) => of_views(&call.views()),
        InstrKind::Sample(call) => of_views(&call.views()),
        InstrKind::Collective(c) => {
            let bytes = |loc: &Loc, shape: &[u64]| {
                let bytes = shape.iter().product::<u64>() * c.dtype.bytes() as u64;
                (loc.offset..loc.offset + bytes, true)
            };
            vec![
                touched(&c.src, bytes(&c.src, &c.src_shape), false),
                touched(&c.dst, bytes(&c.dst, &c.dst_shape), true),
            ]
        }
        InstrKind::Rows(r) => [(&r.table, false), (&r.indices, false), (&r.out, true)]
            .map(|(loc, write)| scratch(loc, write))
            .to_vec(),
    }
}

fn of_views(views: &[View<'_>]) -> Vec<Touched> {
    let view = |v: &View<'_>| {
        let dims = v.extents.iter().map(|e| e.full).zip(v.strided.strides.iter().copied());
        let (bytes, dense) = reach(&v.strided.loc, v.dtype.bytes(), dims);
        Touched { base: v.strided.loc.base, bytes, write: v.write, dense }
    };
    views.iter().map(view).collect()
}

fn of_launch(program: &Program, func: &FuncProgram, launch: &Launch) -> Vec<Touched> {
    let kernel = &program.kernels[launch.kernel];
    let rank = launch.extents.len();
    let access = |(number, loc): (usize, &Loc)| {
        let a = &kernel.accesses[number];
        let (bytes, dense) = if is_indexed(kernel, number as u32) {
            (whole(func, loc), false)
        } else {
            let strides = launch.strides[number * rank..(number + 1) * rank].iter().copied();
            reach(loc, a.dtype.bytes(), launch.extents.iter().map(|e| e.full).zip(strides))
        };
        Touched { base: loc.base, bytes, write: a.write, dense }
    };
    launch.ptrs.iter().enumerate().map(access).collect()
}

/// Whether an access goes where an index says.
fn is_indexed(kernel: &Kernel, number: u32) -> bool {
    let loads = |n: &Node| matches!(n, Node::LoadAt { access, .. } if *access == number);
    kernel.nodes.iter().any(loads) || kernel.stores.iter().any(|s| s.access == number && s.at.is_some())
}

/// Whether nothing reads what instruction `at` has written, its last access, once instruction `at + 1` is done: bytes of the frame, whose
/// next readers come behind others that write them anew.
pub(super) fn is_dead_behind(touched: &[Vec<Touched>], at: usize) -> bool {
    let Some(made) = touched.get(at).and_then(|t| t.last()).filter(|t| t.base == Base::Frame) else {
        return false;
    };
    let mut left = vec![made.bytes.clone()];
    let meets = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
    for instr in &touched[at + 1..] {
        let mut of_frame = instr.iter().filter(|t| t.base == Base::Frame);
        // The next instruction reads it as its own.
        let is_next = std::ptr::eq(instr, &touched[at + 1]);
        if !is_next && of_frame.clone().any(|t| !t.write && left.iter().any(|l| meets(l, &t.bytes))) {
            return false;
        }
        for written in of_frame.by_ref().filter(|t| t.write && t.dense).map(|t| &t.bytes) {
            let cut = |l: &Range<u64>| [l.start..l.end.min(written.start), l.start.max(written.end)..l.end];
            left = left.iter().flat_map(cut).filter(|l| !l.is_empty()).collect();
        }
        if left.is_empty() {
            break;
        }
    }
    true
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
        assert_eq!(reach(&loc, 4, []), (100..104, true));
        assert_eq!(reach(&loc, 4, [(3, 10), (2, 1)]), (100..100 + 4 * 22, false));
        assert_eq!(reach(&loc, 4, [(3, -5)]), (60..104, false));
        // All of it, once.
        assert_eq!(reach(&loc, 4, [(2, 1), (1, 9), (3, 2)]), (100..124, true));
        assert_eq!(reach(&loc, 4, [(2, 1), (3, 0)]), (100..108, false));
    }

    #[test]
    fn what_is_written_anew_or_never_read_is_dead() {
        let touched = |base, bytes, write| Touched { base, bytes, write, dense: true };
        let frame = |bytes, write| touched(Base::Frame, bytes, write);
        // A product of 8 bytes and the kernel that reads it.
        let program = |rest: &[Touched]| {
            let product = vec![frame(0..8, true)];
            let kernel = vec![frame(0..8, false), frame(8..16, true)];
            [&[product, kernel], &rest.iter().map(|t| vec![t.clone()]).collect::<Vec<_>>()[..]].concat()
        };
        let dead = |rest: &[Touched]| is_dead_behind(&program(rest), 0);
        assert!(dead(&[]) && dead(&[frame(8..16, false)]));
        assert!(!dead(&[frame(7..9, false)]));
        // Written anew before, all of it or not.
        assert!(dead(&[frame(0..8, true), frame(0..8, false)]));
        assert!(dead(&[frame(0..4, true), frame(4..16, true), frame(0..16, false)]));
        assert!(!dead(&[frame(0..4, true), frame(0..8, false)]));
        assert!(!dead(&[Touched { dense: false, ..frame(0..8, true) }, frame(0..8, false)]));
        // A result of the function has readers elsewhere.
        let mut result = program(&[]);
        result[0][0].base = Base::Slot(0);
        assert!(!is_dead_behind(&result, 0));
    }

    #[test]
    fn readers_of_one_range_do_not_meet() {
        let span = |bytes, write| vec![Span { bytes, write }];
        assert!(!meet(&span(0..10, false), &span(0..10, false)));
        assert!(meet(&span(0..10, true), &span(9..10, false)));
        assert!(!meet(&span(0..10, true), &span(10..20, true)));
    }
}
