//! Copies of blocks and reductions of buffers: a thread runs over elements.

use crate::emit::ir::{FP, IP, Ir, Machine, Op, V};
use crate::ptx::entry::{Entry, Special};
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::values::{IntValue, PointerValue};
use pcc_ir::gpu::{COPY_RANK, LibraryKernel};
use pcc_ir::types::{DType, ReduceKind};

/// Threads of a block of [`LibraryKernel::flat_shape`].
const THREADS: u32 = 256;

/// Runs `body` for the thread's elements below `total`.
fn each<'c>(entry: &Entry<'_, 'c>, total: IntValue<'c>, body: impl FnOnce(IntValue<'c>)) {
    let ir = entry.ir;
    let threads = entry.place(Special::Threads);
    let first = ir.add(ir.mul(entry.place(Special::BlockX), threads), entry.place(Special::Thread));
    let step = ir.mul(entry.place(Special::BlocksX), threads);
    entry.count(first, total, step, &[], |at, _| {
        body(at);
        vec![]
    });
}

/// [`LibraryKernel::Copy`].
pub(super) fn copy<'c>(
    context: &'c Context,
    kernel: &LibraryKernel,
    bytes: u32,
) -> Result<Module<'c>, String> {
    let ir = Ir::new(context, Machine::Ptx);
    let entry = Entry::new(&ir, &kernel.symbol(), kernel.params(), THREADS);
    let (src, dst) = (entry.global(0), entry.global(1));
    let table = |t: usize| (0..COPY_RANK).map(move |d| 2 + t * COPY_RANK + d);
    let extents: Vec<IntValue> = table(0).map(|p| entry.param(p)).collect();
    let strides = [1, 2].map(|t| table(t).map(|p| entry.param(p)).collect::<Vec<_>>());
    let total = extents.iter().fold(ir.long(1), |n, &d| ir.mul(n, d));
    each(&entry, total, |at| {
        let mut rest: V = at.into();
        let mut offsets = [ir.long(0); 2];
        for d in (0..COPY_RANK).rev() {
            // The outermost index is what is left.
            let index = if d == 0 {
                ir.as_int(rest)
            } else {
                let quotient = ir.bin(Op::UDiv, rest, extents[d].into());
                let index = ir.bin(Op::Sub, rest, ir.bin(Op::Mul, quotient, extents[d].into()));
                rest = quotient;
                ir.as_int(index)
            };
            for (offset, strides) in offsets.iter_mut().zip(&strides) {
                *offset = ir.add(*offset, ir.mul(index, strides[d]));
            }
        }
        let ty = ir.int(8 * bytes, 0);
        let value = ir.load(ty, ir.offset(ty, src, offsets[0]), bytes);
        ir.store(value, ir.offset(ty, dst, offsets[1]), bytes);
    });
    entry.end();
    ir.finish()
}

/// [`LibraryKernel::Reduce`]. As on the CPU: f64 in f64, 16-bit floats in f32 and rounded once, bytes of booleans by `or`; NaN is nothing to
/// maxima and minima.
pub(super) fn reduce<'c>(
    context: &'c Context,
    kernel: &LibraryKernel,
    (dtype, reduce, members): (DType, ReduceKind, u32),
) -> Result<Module<'c>, String> {
    let ir = Ir::new(context, Machine::Ptx);
    let entry = Entry::new(&ir, &kernel.symbol(), kernel.params(), THREADS);
    let dst = entry.global(0);
    let sources: Vec<PointerValue> = (0..members as usize).map(|i| entry.global(2 + i)).collect();
    let (ty, bytes) = (ir.memory_type(dtype, 0), dtype.bytes() as u32);
    let narrow = matches!(dtype, DType::BF16 | DType::F16);
    each(&entry, entry.param(1), |at| {
        let load = |&source: &PointerValue<'c>| {
            let raw = ir.load(ty, ir.offset(ty, source, at), bytes);
            if narrow { ir.widen(dtype, raw) } else { raw }
        };
        let sum = sources.iter().map(load).reduce(|a, b| combine(&ir, dtype, reduce, a, b));
        let sum = sum.unwrap_or(ir.zero(ty));
        let sum = if narrow { ir.narrow(dtype, sum) } else { sum };
        ir.store(sum, ir.offset(ty, dst, at), bytes);
    });
    entry.end();
    ir.finish()
}

fn combine<'c>(ir: &Ir<'c>, dtype: DType, reduce: ReduceKind, a: V<'c>, b: V<'c>) -> V<'c> {
    let floats = |p| {
        // b counts unless a is beyond it or b is NaN.
        let first = ir.bin(Op::Or, ir.fcmp(p, a, b), ir.fcmp(FP::UNO, b, b));
        ir.select(first, a, b)
    };
    let integers = |p| ir.select(ir.icmp(p, a, b), a, b);
    match (dtype, reduce) {
        (DType::Bool, ReduceKind::Sum) => ir.bin(Op::Or, a, b),
        (DType::Bool, ReduceKind::Max) => integers(IP::UGT),
        (DType::Bool, ReduceKind::Min) => integers(IP::ULT),
        (DType::I32 | DType::I64, ReduceKind::Sum) => ir.bin(Op::Add, a, b),
        (DType::I32 | DType::I64, ReduceKind::Max) => integers(IP::SGT),
        (DType::I32 | DType::I64, ReduceKind::Min) => integers(IP::SLT),
        (_, ReduceKind::Sum) => ir.fadd(a, b),
        (_, ReduceKind::Max) => floats(FP::OGT),
        (_, ReduceKind::Min) => floats(FP::OLT),
    }
}
