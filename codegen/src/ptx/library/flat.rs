//! Copies of blocks and reductions of buffers: a thread runs over elements.

use crate::emit::ir::{FP, IP, Ir, Machine, Op, V};
use crate::ptx::entry::{Entry, Special};
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::types::BasicTypeEnum;
use inkwell::values::{IntValue, PointerValue};
use pcc_ir::gpu::{COPY_RANK, LibraryKernel};
use pcc_ir::types::{DType, ReduceKind};

/// Bytes of a vector access.
const VECTOR_BYTES: u32 = 16;
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

/// Two blocks of tensors: what is copied where.
struct Blocks<'c> {
    src: PointerValue<'c>,
    dst: PointerValue<'c>,
    extents: Vec<IntValue<'c>>,
    /// Of src and of dst.
    strides: [Vec<IntValue<'c>>; 2],
}

/// [`LibraryKernel::Copy`]. Where rows are dense and everything is a multiple of 16 bytes, 16 bytes count as an element.
pub(super) fn copy<'c>(
    context: &'c Context,
    kernel: &LibraryKernel,
    bytes: u32,
) -> Result<Module<'c>, String> {
    let ir = Ir::new(context, Machine::Ptx);
    let entry = Entry::new(&ir, &kernel.symbol(), kernel.params(), THREADS);
    let table = |t: usize| (0..COPY_RANK).map(|d| entry.param(2 + t * COPY_RANK + d)).collect();
    let blocks = Blocks {
        src: entry.global(0),
        dst: entry.global(1),
        extents: table(0),
        strides: [table(1), table(2)],
    };
    let factor = i64::from(VECTOR_BYTES / bytes);
    let (inner, last) = (COPY_RANK - 1, |v: &[IntValue<'c>]| v[COPY_RANK - 1]);
    // Numbers of elements that the factor must divide, ..
    let mut counts = vec![last(&blocks.extents)];
    blocks.strides.iter().for_each(|s| counts.extend_from_slice(&s[..inner]));
    // .. and of bytes that 16 must.
    let addresses = [0, 1].map(|i| entry.param(i));
    let odd = |of: &[IntValue<'c>], multiple: i64| {
        let all = of.iter().copied().map(V::from).reduce(|a, b| ir.bin(Op::Or, a, b));
        ir.bin(Op::And, all.unwrap_or(ir.long(0).into()), ir.long(multiple - 1).into())
    };
    let odd = ir.bin(Op::Or, odd(&counts, factor), odd(&addresses, VECTOR_BYTES.into()));
    let even = ir.icmp(IP::EQ, odd, ir.long(0).into());
    let dense = |s: &Vec<IntValue<'c>>| ir.icmp(IP::EQ, last(s).into(), ir.long(1).into());
    let wide = blocks.strides.iter().map(dense).fold(even, |a, b| ir.bin(Op::And, a, b));
    let scaled = |v: &[IntValue<'c>], from: usize, to: usize| -> Vec<IntValue<'c>> {
        let divide = |(d, &n): (usize, &IntValue<'c>)| match (from..to).contains(&d) {
            // Exact, whatever the sign.
            true => ir.as_int(ir.bin(Op::AShr, n.into(), ir.long(factor.trailing_zeros().into()).into())),
            false => n,
        };
        v.iter().enumerate().map(divide).collect()
    };
    entry.choose(
        wide,
        || {
            let extents = scaled(&blocks.extents, inner, COPY_RANK);
            let strides = blocks.strides.each_ref().map(|s| scaled(s, 0, inner));
            copy_elements(&entry, &Blocks { extents, strides, ..blocks }, ir.int(32, 4), VECTOR_BYTES);
            vec![]
        },
        || {
            copy_elements(&entry, &blocks, ir.int(8 * bytes, 0), bytes);
            vec![]
        },
    );
    entry.end();
    ir.finish()
}

fn copy_elements<'c>(entry: &Entry<'_, 'c>, blocks: &Blocks<'c>, ty: BasicTypeEnum<'c>, bytes: u32) {
    let (ir, extents) = (entry.ir, &blocks.extents);
    let total = extents.iter().fold(ir.long(1), |n, &d| ir.mul(n, d));
    each(entry, total, |at| {
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
            for (offset, strides) in offsets.iter_mut().zip(&blocks.strides) {
                *offset = ir.add(*offset, ir.mul(index, strides[d]));
            }
        }
        let value = ir.load(ty, ir.offset(ty, blocks.src, offsets[0]), bytes);
        ir.store(value, ir.offset(ty, blocks.dst, offsets[1]), bytes);
    });
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
    let count = VECTOR_BYTES / bytes;
    let elements = ir.long(count.into());
    let total = entry.param(1);
    let groups =
        ir.as_int(ir.bin(Op::UDiv, ir.add(total, ir.long(i64::from(count) - 1)).into(), elements.into()));
    let addresses = (0..members as usize + 2).filter(|&p| p != 1).map(|p| V::from(entry.param(p)));
    let addresses = addresses.reduce(|a, b| ir.bin(Op::Or, a, b)).unwrap_or(ir.long(0).into());
    let odd = ir.bin(Op::And, addresses, ir.long(i64::from(VECTOR_BYTES) - 1).into());
    let aligned = ir.icmp(IP::EQ, odd, ir.long(0).into());
    each(&entry, groups, |group| {
        let at = ir.mul(group, elements);
        let end = ir.add(at, elements);
        let whole = ir.icmp(IP::SLE, end.into(), total.into());
        // A row of values by member: loads of all members come first.
        let reduced = |values: Vec<Vec<V<'c>>>| -> Vec<V<'c>> {
            let sum = |i: usize| {
                let parts = values.iter().map(|v| to_sum(&ir, dtype, v[i]));
                let sum = parts.reduce(|a, b| combine(&ir, dtype, reduce, a, b));
                from_sum(&ir, dtype, sum.unwrap_or(ir.zero(ty)))
            };
            (0..values.first().map_or(0, Vec::len)).map(sum).collect()
        };
        let vector = || {
            let load = |&source: &PointerValue<'c>| {
                let vector = ir.load(ir.vector(ty, count), ir.offset(ty, source, at), VECTOR_BYTES);
                (0..count).map(|i| ir.lanes(vector, i, 1)).collect()
            };
            let sums = reduced(sources.iter().map(load).collect());
            ir.store(ir.gather(&sums), ir.offset(ty, dst, at), VECTOR_BYTES);
            vec![]
        };
        let single = || {
            let end = ir.as_int(ir.select(whole, end.into(), total.into()));
            entry.count(at, end, ir.long(1), &[], |at, _| {
                let load = |&source: &PointerValue<'c>| vec![ir.load(ty, ir.offset(ty, source, at), bytes)];
                let sums = reduced(sources.iter().map(load).collect());
                sums.iter().for_each(|&sum| ir.store(sum, ir.offset(ty, dst, at), bytes));
                vec![]
            })
        };
        entry.choose(ir.bin(Op::And, whole, aligned), vector, single);
    });
    entry.end();
    ir.finish()
}

/// From memory to what is summed in, and back.
fn to_sum<'c>(ir: &Ir<'c>, dtype: DType, v: V<'c>) -> V<'c> {
    if matches!(dtype, DType::BF16 | DType::F16) { ir.widen(dtype, v) } else { v }
}

fn from_sum<'c>(ir: &Ir<'c>, dtype: DType, v: V<'c>) -> V<'c> {
    if matches!(dtype, DType::BF16 | DType::F16) { ir.narrow(dtype, v) } else { v }
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

#[cfg(test)]
mod tests;
