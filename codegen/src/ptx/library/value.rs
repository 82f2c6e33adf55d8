//! Numbers of a kernel under construction, with Rust's operators: tiles and fragments are mostly address arithmetic.

use crate::emit::ir::{FP, IP, Op, V};
use crate::ptx::entry::{Entry, Special};
use inkwell::types::BasicTypeEnum;
use inkwell::values::PointerValue;
use pcc_ir::kernel_check::Kind;
use pcc_ir::types::DType;
use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Shl, Shr, Sub};

/// An integer (signed, of any width), an f32, a truth or an address of a kernel. Operators take two of one type, or a constant.
#[derive(Clone, Copy)]
pub(super) struct Num<'e, 'c> {
    entry: &'e Entry<'e, 'c>,
    pub v: V<'c>,
}

/// Makes [`Num`]s.
#[derive(Clone, Copy)]
pub(super) struct Code<'e, 'c> {
    pub entry: &'e Entry<'e, 'c>,
}

/// What stands on the right of an operator: a number, or a constant of the left one's type.
pub(super) trait Right<'e, 'c> {
    fn of(self, left: Num<'e, 'c>) -> Num<'e, 'c>;
}

impl<'e, 'c> Right<'e, 'c> for Num<'e, 'c> {
    fn of(self, _: Num<'e, 'c>) -> Num<'e, 'c> {
        self
    }
}

impl<'e, 'c> Right<'e, 'c> for i64 {
    fn of(self, left: Num<'e, 'c>) -> Num<'e, 'c> {
        left.constant(self)
    }
}

impl<'e, 'c> Right<'e, 'c> for u32 {
    fn of(self, left: Num<'e, 'c>) -> Num<'e, 'c> {
        left.constant(self.into())
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $int:ident $float:expr;)*) => {$(
        impl<'e, 'c, R: Right<'e, 'c>> $trait<R> for Num<'e, 'c> {
            type Output = Self;
            fn $method(self, right: R) -> Self {
                let float: Option<Op> = $float;
                let op = if matches!(self.v, V::FloatValue(_)) { float.unwrap_or(Op::$int) } else { Op::$int };
                self.with(self.entry.ir.bin(op, self.v, right.of(self).v))
            }
        }
    )*};
}

operators! {
    Add add Add Some(Op::FAdd);
    Sub sub Sub Some(Op::FSub);
    Mul mul Mul Some(Op::FMul);
    BitAnd bitand And None;
    BitOr bitor Or None;
    BitXor bitxor Xor None;
    Shl shl Shl None;
    Shr shr LShr None;
}

impl<'e, 'c> Num<'e, 'c> {
    fn with(self, v: V<'c>) -> Self {
        Num { entry: self.entry, v }
    }

    fn constant(self, value: i64) -> Self {
        self.with(match self.v {
            V::FloatValue(_) => self.entry.ir.cf(0, value as f32),
            V::IntValue(v) => v.get_type().const_int(value as u64, true).into(),
            other => other,
        })
    }

    /// The quotient of two numbers that are not negative.
    pub fn quotient(self, by: impl Right<'e, 'c>) -> Self {
        self.with(self.entry.ir.bin(Op::UDiv, self.v, by.of(self).v))
    }

    /// The remainder of two numbers that are not negative.
    pub fn remainder(self, by: impl Right<'e, 'c>) -> Self {
        self.with(self.entry.ir.bin(Op::URem, self.v, by.of(self).v))
    }

    /// `self / by`, rounded up, of numbers that are not negative.
    pub fn tiles(self, by: u32) -> Self {
        (self + (by - 1)).quotient(by)
    }

    fn compare(self, int: IP, float: FP, right: impl Right<'e, 'c>) -> Self {
        let (ir, right) = (self.entry.ir, right.of(self).v);
        self.with(match self.v {
            V::FloatValue(_) => ir.fcmp(float, self.v, right),
            _ => ir.icmp(int, self.v, right),
        })
    }

    pub fn lt(self, right: impl Right<'e, 'c>) -> Self {
        self.compare(IP::SLT, FP::OLT, right)
    }

    pub fn le(self, right: impl Right<'e, 'c>) -> Self {
        self.compare(IP::SLE, FP::OLE, right)
    }

    pub fn gt(self, right: impl Right<'e, 'c>) -> Self {
        self.compare(IP::SGT, FP::OGT, right)
    }

    pub fn ge(self, right: impl Right<'e, 'c>) -> Self {
        self.compare(IP::SGE, FP::OGE, right)
    }

    pub fn eq(self, right: impl Right<'e, 'c>) -> Self {
        self.compare(IP::EQ, FP::OEQ, right)
    }

    /// Of floats: or one is NaN.
    pub fn ne(self, right: impl Right<'e, 'c>) -> Self {
        self.compare(IP::NE, FP::UNE, right)
    }

    /// Of integers without sign: at most the other.
    pub fn not_above(self, right: Self) -> Self {
        self.with(self.entry.ir.icmp(IP::ULE, self.v, right.v))
    }

    /// Likewise: more than the other.
    pub fn above(self, right: Self) -> Self {
        self.with(self.entry.ir.icmp(IP::UGT, self.v, right.v))
    }

    /// One of two values, by a truth.
    pub fn choose(self, yes: Self, no: impl Right<'e, 'c>) -> Self {
        self.with(self.entry.ir.select(self.v, yes.v, no.of(yes).v))
    }

    pub fn min(self, right: impl Right<'e, 'c>) -> Self {
        let right = right.of(self);
        self.lt(right).choose(self, right)
    }

    /// Of floats: the one that is a number, if one is NaN.
    pub fn max(self, right: impl Right<'e, 'c>) -> Self {
        let right = right.of(self);
        match self.v {
            V::FloatValue(v) => {
                let ty = v.get_type().into();
                self.with(self.entry.ir.intrinsic("llvm.maxnum", &[ty], &[self.v, right.v]))
            }
            _ => self.gt(right).choose(self, right),
        }
    }

    /// `self * by + plus`, rounded once.
    pub fn fma(self, by: Self, plus: Self) -> Self {
        self.with(self.entry.ir.fma(self.v, by.v, plus.v))
    }

    /// 2 to the power of an f32, to 2 units in the last place; 0 of -infinity, and for subnormal results.
    pub fn exp2(self) -> Self {
        self.with(self.entry.ir.intrinsic("llvm.nvvm.ex2.approx.ftz", &[self.v.get_type()], &[self.v]))
    }

    /// 1 / self, to 1 unit in the last place; subnormal numbers count as 0.
    pub fn reciprocal(self) -> Self {
        self.with(self.entry.ir.intrinsic("llvm.nvvm.rcp.approx.ftz.f", &[], &[self.v]))
    }

    /// 1 / self, rounded.
    pub fn inverse(self) -> Self {
        self.with(self.entry.ir.fdiv(self.constant(1).v, self.v))
    }

    /// The quotient of floats, rounded.
    pub fn over(self, by: Self) -> Self {
        self.with(self.entry.ir.fdiv(self.v, by.v))
    }

    fn cast(self, op: Op, to: BasicTypeEnum<'c>) -> Self {
        self.with(self.entry.ir.cast(op, self.v, to))
    }

    /// As i64, sign-extended.
    pub fn long(self) -> Self {
        match self.v {
            V::IntValue(v) if v.get_type().get_bit_width() < 64 => {
                self.cast(Op::SExt, self.entry.ir.int(64, 0))
            }
            _ => self,
        }
    }

    /// The low 32 bits of an i64; of a truth 0 or 1.
    pub fn int(self) -> Self {
        match self.v {
            V::IntValue(v) if v.get_type().get_bit_width() > 32 => {
                self.cast(Op::Trunc, self.entry.ir.int(32, 0))
            }
            V::IntValue(v) if v.get_type().get_bit_width() < 32 => {
                self.cast(Op::ZExt, self.entry.ir.int(32, 0))
            }
            _ => self,
        }
    }

    /// An integer as f32, rounded.
    pub fn float(self) -> Self {
        self.cast(Op::SIToFP, self.entry.ir.f32(0))
    }

    /// A float rounded to the precision of a type.
    pub fn rounded(self, dtype: DType) -> Self {
        self.with(self.entry.ir.round_to(dtype, self.v))
    }

    /// The bits of an f32 as an i32, and back.
    pub fn bits(self) -> Self {
        self.cast(Op::BitCast, self.entry.ir.int(32, 0))
    }

    pub fn as_float(self) -> Self {
        self.cast(Op::BitCast, self.entry.ir.f32(0))
    }

    /// An f32 as an f64, and an i64 without sign, rounded.
    pub fn double(self) -> Self {
        self.cast(Op::FPExt, self.entry.ir.context.f64_type().into())
    }

    pub fn double_of_long(self) -> Self {
        self.cast(Op::UIToFP, self.entry.ir.context.f64_type().into())
    }

    /// The whole part of an f64 that is not negative, as an i64.
    pub fn whole(self) -> Self {
        self.cast(Op::FPToUI, self.entry.ir.int(64, 0))
    }

    /// The bits of an f64 as an i64, and back.
    pub fn long_bits(self) -> Self {
        self.cast(Op::BitCast, self.entry.ir.int(64, 0))
    }

    pub fn as_double(self) -> Self {
        self.cast(Op::BitCast, self.entry.ir.context.f64_type().into())
    }

    /// An i64 of an i32, its low half, and another.
    pub fn joined(self, high: Self) -> Self {
        let long = self.entry.ir.int(64, 0);
        self.cast(Op::ZExt, long) | (high.cast(Op::ZExt, long) << 32u32)
    }

    pub fn pointer(self) -> PointerValue<'c> {
        self.entry.ir.as_ptr(self.v)
    }

    /// An address as an i64.
    pub fn address(self) -> Self {
        self.cast(Op::PtrToInt, self.entry.ir.int(64, 0))
    }

    /// An address and some bytes.
    pub fn bytes(self, offset: impl Right<'e, 'c>) -> Self {
        let ir = self.entry.ir;
        let offset = offset.of(self.with(ir.cl(0, 0)));
        self.with(ir.offset(ir.int(8, 0), self.pointer(), ir.as_int(offset.v)).into())
    }

    /// An address and some elements of a type.
    pub fn elements(self, dtype: DType, offset: Self) -> Self {
        self.bytes(offset.long() * dtype.bytes() as i64)
    }

    /// The element at an address, as f32.
    pub fn load(self, dtype: DType) -> Self {
        let ir = self.entry.ir;
        let v = ir.load(ir.memory_type(dtype, 0), self.pointer(), dtype.bytes() as u32);
        self.with(ir.widen(dtype, v))
    }

    /// Adjacent elements as f32: a power of two of them, at an address that all their bytes, or else 16, divide.
    pub fn load_run(self, dtype: DType, count: u32) -> Vec<Self> {
        let ir = self.entry.ir;
        let size = dtype.bytes() as u32;
        let words = size * count / 4;
        if !matches!(dtype, DType::BF16 | DType::F16) || words == 0 {
            let at_once = count.min(16 / size);
            let load = |i: u32| {
                let at = self.bytes(i64::from(i * at_once * size)).pointer();
                let width = if at_once == 1 { 0 } else { at_once };
                let v = ir.widen(dtype, ir.load(ir.memory_type(dtype, width), at, at_once * size));
                (0..at_once).map(move |lane| self.with(if width == 0 { v } else { ir.lanes(v, lane, 1) }))
            };
            return (0..count / at_once).flat_map(load).collect();
        }
        let load = |i: u32| self.bytes(i64::from(i * 16)).load_words(words.min(4));
        let words: Vec<Self> = (0..words.div_ceil(4)).flat_map(load).collect();
        words.into_iter().flat_map(|word| word.halves(dtype)).collect()
    }

    /// Adjacent i32 at an address that all their bytes divide: 1, 2 or 4 of them.
    pub fn load_words(self, count: u32) -> Vec<Self> {
        let ir = self.entry.ir;
        if count == 1 {
            return vec![self.with(ir.load(ir.int(32, 0), self.pointer(), 4))];
        }
        let v = ir.load(ir.int(32, count), self.pointer(), 4 * count);
        (0..count).map(|lane| self.with(ir.lanes(v, lane, 1))).collect()
    }

    /// The i64 at an address that 8 divides.
    pub fn load_long(self) -> Self {
        let ir = self.entry.ir;
        self.with(ir.load(ir.int(64, 0), self.pointer(), 8))
    }

    pub fn store_long(self, value: Self) {
        self.entry.ir.store(value.v, self.pointer(), 8);
    }

    /// Adds to the i32 of shared memory at an address, which other threads may do, too. What it was before.
    pub fn add_atomic(self, value: Self) -> Self {
        self.with(self.entry.add_atomic(self.pointer(), value.v))
    }

    /// Both 16-bit floats of an i32, the low one first.
    pub fn halves(self, dtype: DType) -> [Self; 2] {
        let ir = self.entry.ir;
        if dtype == DType::BF16 {
            return [self << 16u32, self & -65536i64].map(|bits| self.with(ir.float(bits.v)));
        }
        let pair = ir.cast(Op::BitCast, self.v, ir.vector(ir.context.f16_type().into(), 2));
        [0, 1].map(|lane| self.with(ir.cast(Op::FPExt, ir.lanes(pair, lane, 1), ir.f32(0))))
    }

    /// Writes an f32 as an element of a type.
    pub fn store(self, dtype: DType, value: Self) {
        let ir = self.entry.ir;
        ir.store(ir.narrow(dtype, value.v), self.pointer(), dtype.bytes() as u32);
    }

    /// Writes two to eight f32 as adjacent elements, at an address that all their bytes, or else 16, divide.
    pub fn store_run(self, dtype: DType, values: &[Self]) {
        let (ir, size) = (self.entry.ir, dtype.bytes());
        let at_once = values.len().min(16 / size);
        for (i, run) in values.chunks_exact(at_once).enumerate() {
            let v = self.vector(run);
            let at = self.bytes((i * at_once * size) as i64).pointer();
            ir.store(ir.narrow(dtype, v), at, (at_once * size) as u32);
        }
    }

    /// Writes 1, 2 or 4 i32 at an address that all their bytes divide.
    pub fn store_words(self, words: &[Self]) {
        let (ir, bytes) = (self.entry.ir, 4 * words.len() as u32);
        match words {
            [word] => ir.store(word.v, self.pointer(), bytes),
            _ => ir.store(self.vector(words), self.pointer(), bytes),
        }
    }

    fn vector(self, values: &[Self]) -> V<'c> {
        let ir = self.entry.ir;
        let Some(first) = values.first() else { return self.v };
        let V::VectorValue(none) = ir.vector(first.v.get_type(), values.len() as u32).const_zero() else {
            ir.fail("makes a vector of what has none");
            return self.v;
        };
        let insert = |lanes, (i, n): (usize, &Self)| {
            let at = ir.context.i32_type().const_int(i as u64, false);
            ir.or(ir.builder.build_insert_element(lanes, n.v, at, ""), lanes)
        };
        values.iter().enumerate().fold(none, insert).into()
    }

    /// Two f32 rounded to a 16-bit type, as one i32, the first in the low half.
    pub fn packed(self, dtype: DType, high: Self) -> Self {
        let ir = self.entry.ir;
        let pair = ir.narrow(dtype, self.vector(&[self, high]));
        self.with(ir.cast(Op::BitCast, pair, ir.int(32, 0)))
    }

    /// The value of the lane whose number differs by the bits of `mask`.
    pub fn of_lane_xor(self, mask: u32) -> Self {
        self.with(self.entry.shuffle_xor(self.v, mask))
    }

    /// The value of a lane.
    pub fn of_lane(self, lane: Self) -> Self {
        self.with(self.entry.shuffle_from(self.v, lane.v))
    }

    /// Likewise of i64.
    pub fn of_lane_xor_long(self, mask: u32) -> Self {
        self.int().of_lane_xor(mask).joined((self >> 32u32).int().of_lane_xor(mask))
    }

    pub fn of_lane_long(self, lane: Self) -> Self {
        self.int().of_lane(lane).joined((self >> 32u32).int().of_lane(lane))
    }

    /// The sum over all lanes of the warp that differ in the bits of `lanes`, in each of them.
    pub fn sum_over(self, lanes: &[u32]) -> Self {
        lanes.iter().fold(self, |sum, &mask| sum + sum.of_lane_xor(mask))
    }

    /// The largest, likewise.
    pub fn max_over(self, lanes: &[u32]) -> Self {
        lanes.iter().fold(self, |most, &mask| most.max(most.of_lane_xor(mask)))
    }

    /// One bit for each lane of the warp in which the truth holds.
    pub fn ballot(self) -> Self {
        let ir = self.entry.ir;
        self.with(ir.intrinsic("llvm.nvvm.vote.ballot.sync", &[], &[ir.ci(0, -1), self.v]))
    }
}

impl<'e, 'c> Code<'e, 'c> {
    pub fn of(self, v: impl Into<V<'c>>) -> Num<'e, 'c> {
        Num { entry: self.entry, v: v.into() }
    }

    pub fn i32(self, v: i32) -> Num<'e, 'c> {
        self.of(self.entry.ir.ci(0, v))
    }

    pub fn i64(self, v: i64) -> Num<'e, 'c> {
        self.of(self.entry.ir.cl(0, v))
    }

    pub fn f32(self, v: f32) -> Num<'e, 'c> {
        self.of(self.entry.ir.cf(0, v))
    }

    pub fn f64(self, v: f64) -> Num<'e, 'c> {
        self.of(self.entry.ir.context.f64_type().const_float(v))
    }

    /// Zero as elements of a type are computed with.
    pub fn zero(self, dtype: DType) -> Num<'e, 'c> {
        let ir = self.entry.ir;
        self.of(match Kind::of(dtype) {
            Kind::Float => ir.cf(0, 0.0),
            Kind::Int => ir.ci(0, 0),
            Kind::Bool => ir.cb(0, false),
        })
    }

    pub fn param(self, i: usize) -> Num<'e, 'c> {
        self.of(self.entry.param(i))
    }

    pub fn param_float(self, i: usize) -> Num<'e, 'c> {
        self.of(self.entry.float(i))
    }

    pub fn param_global(self, i: usize) -> Num<'e, 'c> {
        self.of(self.entry.global(i))
    }

    /// A special register as an i32.
    pub fn special(self, which: Special) -> Num<'e, 'c> {
        self.of(self.entry.special(which))
    }

    /// The launch's shared memory, aligned to 16 bytes.
    pub fn shared(self) -> Num<'e, 'c> {
        self.shared_aligned(16)
    }

    /// Likewise, to so many bytes.
    pub fn shared_aligned(self, align: u32) -> Num<'e, 'c> {
        self.of(self.entry.shared_dynamic(align))
    }

    pub fn barrier(self) {
        self.entry.barrier();
    }

    pub fn warp_barrier(self) {
        self.entry.warp_barrier();
    }

    pub fn when(self, condition: Num<'e, 'c>, body: impl FnOnce()) {
        self.entry.when(condition.v, body);
    }

    /// The values of one of two bodies.
    pub fn either(
        self,
        condition: Num<'e, 'c>,
        yes: impl FnOnce() -> Vec<Num<'e, 'c>>,
        no: impl FnOnce() -> Vec<Num<'e, 'c>>,
    ) -> Vec<Num<'e, 'c>> {
        let values = |all: Vec<Num<'e, 'c>>| all.into_iter().map(|n| n.v).collect();
        self.all(self.entry.choose(condition.v, || values(yes()), || values(no())))
    }

    fn all(self, values: Vec<V<'c>>) -> Vec<Num<'e, 'c>> {
        values.into_iter().map(|v| self.of(v)).collect()
    }

    /// Runs `body` for `from, from + step, ..` below `to` with values carried from turn to turn, which it gives at the end.
    pub fn count(
        self,
        (from, to): (Num<'e, 'c>, Num<'e, 'c>),
        step: impl Right<'e, 'c>,
        first: &[Num<'e, 'c>],
        body: impl FnOnce(Num<'e, 'c>, &[Num<'e, 'c>]) -> Vec<Num<'e, 'c>>,
    ) -> Vec<Num<'e, 'c>> {
        let ir = self.entry.ir;
        let first: Vec<V> = first.iter().map(|n| n.v).collect();
        let [from, to, step] = [from, to, step.of(from)].map(|n| ir.as_int(n.v));
        let turn = |i: inkwell::values::IntValue<'c>, values: &[V<'c>]| {
            let values = self.all(values.to_vec());
            body(self.of(i), &values).into_iter().map(|n| n.v).collect()
        };
        self.all(self.entry.count(from, to, step, &first, turn))
    }

    /// Runs `body` as long as `condition` holds of the values it is given and gives. The values after.
    pub fn repeat(
        self,
        first: &[Num<'e, 'c>],
        condition: impl FnOnce(&[Num<'e, 'c>]) -> Num<'e, 'c>,
        body: impl FnOnce(&[Num<'e, 'c>]) -> Vec<Num<'e, 'c>>,
    ) -> Vec<Num<'e, 'c>> {
        let ir = self.entry.ir;
        let [head, inside, done] = ["head", "body", "done"].map(|name| ir.block(self.entry.function, name));
        let Some(before) = ir.here() else { return first.to_vec() };
        ir.br(head);
        ir.at(head);
        let phis: Vec<_> = first.iter().map(|n| ir.phi(n.v, before)).collect();
        let values = self.all(phis.iter().map(|p| p.value).collect());
        ir.br_if(condition(&values).v, inside, done);
        ir.at(inside);
        let next = body(&values);
        let last = ir.here().unwrap_or(inside);
        phis.iter().zip(&next).for_each(|(phi, n)| phi.incoming(n.v, last));
        ir.br(head);
        ir.at(done);
        values
    }

    /// As [`Code::count`] without values.
    pub fn each(
        self,
        range: (Num<'e, 'c>, Num<'e, 'c>),
        step: impl Right<'e, 'c>,
        body: impl FnOnce(Num<'e, 'c>),
    ) {
        self.count(range, step, &[], |i, _| {
            body(i);
            vec![]
        });
    }
}
