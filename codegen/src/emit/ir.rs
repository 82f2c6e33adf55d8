//! A thin layer over inkwell's builder: values of any width (a scalar, or a vector of lanes) go through the same calls, so that one
//! formula serves per-row scalars and per-element vectors and gives the same bits in both.
//!
//! The builder can fail only where this crate is wrong (an unpositioned builder, mixed types). Such a failure is
//! remembered, a placeholder carries on, and [`Ir::finish`] reports it.

use inkwell::attributes::AttributeLoc;
use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicTypeEnum, VectorType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, CallSiteValue, FastMathFlags, FunctionValue,
    IntValue, PointerValue,
};
pub(crate) use inkwell::values::{BasicValueEnum as V, InstructionOpcode as Op};
pub(crate) use inkwell::{FloatPredicate as FP, IntPredicate as IP};
use std::cell::RefCell;

/// Number of lanes of a vector; 0 for a scalar.
pub(crate) type Width = u32;

/// What formulas are written for, where that makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86 {
        /// Whether vectors of sixteen lanes have AVX-512's instructions.
        avx512: bool,
    },
    Ptx,
}

pub(crate) struct Ir<'c> {
    pub context: &'c Context,
    pub module: Module<'c>,
    pub builder: Builder<'c>,
    pub machine: Machine,
    error: RefCell<Option<String>>,
}

impl<'c> Ir<'c> {
    pub fn new(context: &'c Context, machine: Machine) -> Self {
        let (module, builder) = (context.create_module("kernels"), context.create_builder());
        Ir { context, module, builder, machine, error: RefCell::new(None) }
    }

    /// The module, unless something went wrong while it was built.
    pub fn finish(self) -> Result<Module<'c>, String> {
        match self.error.into_inner() {
            None => Ok(self.module),
            Some(error) => Err(error),
        }
    }

    pub fn fail(&self, what: impl ToString) {
        self.error.borrow_mut().get_or_insert_with(|| what.to_string());
    }

    /// The result, or the placeholder after noting the failure.
    pub fn or<T>(&self, result: Result<T, BuilderError>, placeholder: T) -> T {
        result.unwrap_or_else(|e| {
            self.fail(e);
            placeholder
        })
    }

    // Types.

    pub fn vector(&self, element: BasicTypeEnum<'c>, w: Width) -> BasicTypeEnum<'c> {
        let vector = |t: VectorType<'c>| t.into();
        match (w, element) {
            (0, t) => t,
            (_, BasicTypeEnum::FloatType(t)) => vector(t.vec_type(w)),
            (_, BasicTypeEnum::IntType(t)) => vector(t.vec_type(w)),
            (_, BasicTypeEnum::PointerType(t)) => vector(t.vec_type(w)),
            (_, t) => {
                self.fail(format!("no vector of {t}"));
                t
            }
        }
    }

    pub fn f32(&self, w: Width) -> BasicTypeEnum<'c> {
        self.vector(self.context.f32_type().into(), w)
    }

    pub fn f64(&self, w: Width) -> BasicTypeEnum<'c> {
        self.vector(self.context.f64_type().into(), w)
    }

    pub fn int(&self, bits: u32, w: Width) -> BasicTypeEnum<'c> {
        match self
            .context
            .custom_width_int_type(std::num::NonZero::new(bits).unwrap_or(std::num::NonZero::<u32>::MIN))
        {
            Ok(t) => self.vector(t.into(), w),
            Err(e) => {
                self.fail(e);
                self.context.i32_type().into()
            }
        }
    }

    pub fn ptr(&self, w: Width) -> BasicTypeEnum<'c> {
        self.vector(self.context.ptr_type(inkwell::AddressSpace::default()).into(), w)
    }

    pub fn width(&self, v: V<'c>) -> Width {
        match v {
            V::VectorValue(v) => v.get_type().get_size(),
            _ => 0,
        }
    }

    // Constants.

    /// A constant of `like`'s width.
    fn repeat(&self, v: V<'c>, w: Width) -> V<'c> {
        if w == 0 { v } else { VectorType::const_vector(&vec![v; w as usize]).into() }
    }

    pub fn cf(&self, w: Width, v: f32) -> V<'c> {
        self.repeat(self.context.f32_type().const_float(f64::from(v)).into(), w)
    }

    pub fn cd(&self, w: Width, v: f64) -> V<'c> {
        self.repeat(self.context.f64_type().const_float(v).into(), w)
    }

    pub fn ci(&self, w: Width, v: i32) -> V<'c> {
        self.repeat(self.context.i32_type().const_int(v as u32 as u64, false).into(), w)
    }

    pub fn cl(&self, w: Width, v: i64) -> V<'c> {
        self.repeat(self.context.i64_type().const_int(v as u64, false).into(), w)
    }

    pub fn cb(&self, w: Width, v: bool) -> V<'c> {
        self.repeat(self.context.bool_type().const_int(u64::from(v), false).into(), w)
    }

    /// Lane numbers 0, 1, .. of the given integer width.
    pub fn iota(&self, bits: u32, w: Width) -> V<'c> {
        let lane = |i: u32| match bits {
            64 => self.context.i64_type().const_int(u64::from(i), false),
            _ => self.context.i32_type().const_int(u64::from(i), false),
        };
        VectorType::const_vector(&(0..w).map(lane).collect::<Vec<_>>()).into()
    }

    pub fn zero(&self, ty: BasicTypeEnum<'c>) -> V<'c> {
        ty.const_zero()
    }

    // Arithmetic.

    pub fn bin(&self, op: Op, a: V<'c>, b: V<'c>) -> V<'c> {
        self.or(self.builder.build_binop(op, a, b, ""), a)
    }

    pub fn fadd(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        self.bin(Op::FAdd, a, b)
    }

    pub fn fsub(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        self.bin(Op::FSub, a, b)
    }

    pub fn fmul(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        self.bin(Op::FMul, a, b)
    }

    pub fn fdiv(&self, a: V<'c>, b: V<'c>) -> V<'c> {
        self.bin(Op::FDiv, a, b)
    }

    /// `1 / b` to about an ulp, where the machine has that.
    pub fn reciprocal_approx(&self, b: V<'c>) -> V<'c> {
        let quotient = self.fdiv(self.cf(self.width(b), 1.0), b);
        if let Some(instruction) = quotient.as_instruction_value() {
            let _ = instruction.set_fast_math_flags(FastMathFlags::ApproxFunc).map_err(|e| self.fail(e));
        }
        quotient
    }

    pub fn fneg(&self, a: V<'c>) -> V<'c> {
        match a {
            V::FloatValue(v) => self.or(self.builder.build_float_neg(v, ""), v).into(),
            V::VectorValue(v) => self.or(self.builder.build_float_neg(v, ""), v).into(),
            _ => {
                self.fail("negates what is no float");
                a
            }
        }
    }

    /// `a * b + c`, rounded once.
    pub fn fma(&self, a: V<'c>, b: V<'c>, c: V<'c>) -> V<'c> {
        self.intrinsic("llvm.fma", &[a.get_type()], &[a, b, c])
    }

    /// Polynomial in `x`, lowest coefficient first, by Horner's rule.
    pub fn poly(&self, x: V<'c>, coefficients: &[f32]) -> V<'c> {
        let w = self.width(x);
        let mut terms = coefficients.iter().rev().map(|&c| self.cf(w, c));
        let first = terms.next().unwrap_or_else(|| self.cf(w, 0.0));
        terms.fold(first, |sum, c| self.fma(sum, x, c))
    }

    /// [`Ir::poly`] in f64.
    pub fn poly64(&self, x: V<'c>, coefficients: &[f64]) -> V<'c> {
        let w = self.width(x);
        let mut terms = coefficients.iter().rev().map(|&c| self.cd(w, c));
        let first = terms.next().unwrap_or_else(|| self.cd(w, 0.0));
        terms.fold(first, |sum, c| self.fma(sum, x, c))
    }

    /// `a * 2^n` rounded once, for a whole `n` within the range of [`Ir::power_of_two`] twice over.
    pub fn scale(&self, a: V<'c>, n: V<'c>, n_bits: impl FnOnce() -> V<'c>) -> V<'c> {
        let w = self.width(a);
        if self.machine == (Machine::X86 { avx512: true }) && w == 16 {
            let all = self.context.i16_type().const_all_ones().into();
            let rounding_as_set = self.ci(0, 4);
            return self.intrinsic(
                "llvm.x86.avx512.mask.scalef.ps.512",
                &[],
                &[a, n, a, all, rounding_as_set],
            );
        }
        // In two steps, of which the first is exact, so that subnormal results are right.
        let n = n_bits();
        let half = self.bin(Op::AShr, n, self.ci(w, 1));
        let rest = self.bin(Op::Sub, n, half);
        self.fmul(self.fmul(a, self.power_of_two(half)), self.power_of_two(rest))
    }

    /// 2^n as f32 for an i32 -126 <= n <= 127.
    fn power_of_two(&self, n: V<'c>) -> V<'c> {
        let w = self.width(n);
        self.float(self.bin(Op::Shl, self.bin(Op::Add, n, self.ci(w, 127)), self.ci(w, 23)))
    }

    pub fn fcmp(&self, p: FP, a: V<'c>, b: V<'c>) -> V<'c> {
        let b_ = &self.builder;
        match (a, b) {
            (V::FloatValue(x), V::FloatValue(y)) => {
                self.or(b_.build_float_compare(p, x, y, ""), self.context.bool_type().const_zero()).into()
            }
            (V::VectorValue(x), V::VectorValue(y)) => self.or(b_.build_float_compare(p, x, y, ""), x).into(),
            _ => {
                self.fail("compares what are no floats");
                a
            }
        }
    }

    pub fn icmp(&self, p: IP, a: V<'c>, b: V<'c>) -> V<'c> {
        let b_ = &self.builder;
        match (a, b) {
            (V::IntValue(x), V::IntValue(y)) => self.or(b_.build_int_compare(p, x, y, ""), x).into(),
            (V::VectorValue(x), V::VectorValue(y)) => self.or(b_.build_int_compare(p, x, y, ""), x).into(),
            _ => {
                self.fail("compares what are no integers");
                a
            }
        }
    }

    pub fn select(&self, c: V<'c>, a: V<'c>, b: V<'c>) -> V<'c> {
        match c {
            V::IntValue(c) => self.or(self.builder.build_select(c, a, b, ""), a),
            V::VectorValue(c) => self.or(self.builder.build_select(c, a, b, ""), a),
            _ => {
                self.fail("selects by what is no bool");
                a
            }
        }
    }

    pub fn cast(&self, op: Op, v: V<'c>, to: BasicTypeEnum<'c>) -> V<'c> {
        self.or(self.builder.build_cast(op, v, to, ""), v)
    }

    /// The bits of a float as an i32 of the same width, or back.
    pub fn bits(&self, v: V<'c>) -> V<'c> {
        self.cast(Op::BitCast, v, self.int(32, self.width(v)))
    }

    pub fn float(&self, v: V<'c>) -> V<'c> {
        self.cast(Op::BitCast, v, self.f32(self.width(v)))
    }

    /// A scalar repeated over `w` lanes; a vector, or width 0, as it is.
    pub fn splat(&self, v: V<'c>, w: Width) -> V<'c> {
        if w == 0 || self.width(v) != 0 {
            return v;
        }
        let (V::VectorValue(none), V::VectorValue(zeros)) =
            (self.vector(v.get_type(), w).const_zero(), self.int(32, w).const_zero())
        else {
            self.fail("repeats what has no vector");
            return v;
        };
        let one = self
            .or(self.builder.build_insert_element(none, v, self.context.i32_type().const_zero(), ""), none);
        self.or(self.builder.build_shuffle_vector(one, none, zeros, ""), one).into()
    }

    /// Lanes `from..from + count` of a vector; a single one as a scalar.
    pub fn lanes(&self, v: V<'c>, from: u32, count: u32) -> V<'c> {
        let V::VectorValue(vector) = v else {
            self.fail("takes lanes of what is no vector");
            return v;
        };
        let index = |i: u32| self.context.i32_type().const_int(u64::from(i), false);
        if count == 1 {
            return self.or(self.builder.build_extract_element(vector, index(from), ""), v);
        }
        let mask = VectorType::const_vector(&(from..from + count).map(index).collect::<Vec<_>>());
        self.or(self.builder.build_shuffle_vector(vector, vector.get_type().get_poison(), mask, ""), vector)
            .into()
    }

    /// Scalars of one type as a vector.
    pub fn gather(&self, parts: &[V<'c>]) -> V<'c> {
        let Some(first) = parts.first() else {
            self.fail("a vector of nothing");
            return self.ci(0, 0);
        };
        let mut vector = self.vector(first.get_type(), parts.len() as u32).const_zero();
        for (i, &part) in parts.iter().enumerate() {
            let V::VectorValue(v) = vector else {
                self.fail("a vector of what has none");
                return *first;
            };
            let index = self.context.i32_type().const_int(i as u64, false);
            vector = self.or(self.builder.build_insert_element(v, part, index, ""), v).into();
        }
        vector
    }

    // Calls, memory, control flow.

    pub fn call(&self, name: &str, types: &[BasicTypeEnum<'c>], args: &[V<'c>]) -> Option<CallSiteValue<'c>> {
        let declared = Intrinsic::find(name).and_then(|i| i.get_declaration(&self.module, types));
        let Some(function) = declared else {
            self.fail(format!("LLVM has no {name}"));
            return None;
        };
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|&a| a.into()).collect();
        self.builder.build_call(function, &args, "").map_err(|e| self.fail(e)).ok()
    }

    /// Calls an intrinsic that has a result; `types` are its overloaded types.
    pub fn intrinsic(&self, name: &str, types: &[BasicTypeEnum<'c>], args: &[V<'c>]) -> V<'c> {
        let value = self.call(name, types, args).and_then(|c| c.try_as_basic_value().basic());
        value.unwrap_or_else(|| {
            self.fail(format!("{name} has no value"));
            args[0]
        })
    }

    /// Calls a masked memory intrinsic whose argument `pointer` has the given alignment.
    pub fn masked(
        &self,
        name: &str,
        types: &[BasicTypeEnum<'c>],
        args: &[V<'c>],
        pointer: u32,
        align: u32,
    ) -> Option<V<'c>> {
        let call = self.call(name, types, args)?;
        call.set_alignment_attribute(AttributeLoc::Param(pointer), align);
        call.try_as_basic_value().basic()
    }

    pub fn load(&self, ty: BasicTypeEnum<'c>, ptr: PointerValue<'c>, align: u32) -> V<'c> {
        let value = self.or(self.builder.build_load(ty, ptr, ""), ty.const_zero());
        if let Some(load) = value.as_instruction_value() {
            let _ = load.set_alignment(align).map_err(|e| self.fail(e));
        }
        value
    }

    pub fn store(&self, value: V<'c>, ptr: PointerValue<'c>, align: u32) {
        match self.builder.build_store(ptr, value) {
            Ok(store) => _ = store.set_alignment(align).map_err(|e| self.fail(e)),
            Err(e) => self.fail(e),
        }
    }

    /// `ptr` plus `index` elements of a type.
    pub fn offset(
        &self,
        element: BasicTypeEnum<'c>,
        ptr: PointerValue<'c>,
        index: IntValue<'c>,
    ) -> PointerValue<'c> {
        // SAFETY: this only builds the instruction (no `inbounds`); whether the address may be used is the kernel's contract.
        self.or(unsafe { self.builder.build_gep(element, ptr, &[index], "") }, ptr)
    }

    pub fn alloca(&self, ty: BasicTypeEnum<'c>) -> PointerValue<'c> {
        self.or(self.builder.build_alloca(ty, ""), self.null())
    }

    pub fn null(&self) -> PointerValue<'c> {
        self.context.ptr_type(inkwell::AddressSpace::default()).const_null()
    }

    pub fn block(&self, function: FunctionValue<'c>, name: &str) -> BasicBlock<'c> {
        self.context.append_basic_block(function, name)
    }

    pub fn at(&self, block: BasicBlock<'c>) {
        self.builder.position_at_end(block);
    }

    pub fn br(&self, to: BasicBlock<'c>) {
        let _ = self.builder.build_unconditional_branch(to).map_err(|e| self.fail(e));
    }

    pub fn br_if(&self, c: V<'c>, then: BasicBlock<'c>, other: BasicBlock<'c>) {
        match c {
            V::IntValue(c) => {
                _ = self.builder.build_conditional_branch(c, then, other).map_err(|e| self.fail(e))
            }
            _ => self.fail("branches on what is no bool"),
        }
    }

    pub fn ret(&self) {
        let _ = self.builder.build_return(None).map_err(|e| self.fail(e));
    }

    /// Where the builder is.
    pub fn here(&self) -> Option<BasicBlock<'c>> {
        self.builder.get_insert_block()
    }

    /// A phi with its first incoming value from the block `from`.
    pub fn phi(&self, first: V<'c>, from: BasicBlock<'c>) -> Phi<'c> {
        match self.builder.build_phi(first.get_type(), "") {
            Ok(phi) => {
                phi.add_incoming(&[(&first, from)]);
                Phi { phi: Some(phi), value: phi.as_basic_value() }
            }
            Err(e) => {
                self.fail(e);
                Phi { phi: None, value: first }
            }
        }
    }

    // Integers of addresses and loops: i64 scalars.

    pub fn long(&self, v: i64) -> IntValue<'c> {
        self.context.i64_type().const_int(v as u64, false)
    }

    pub fn add(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.or(self.builder.build_int_add(a, b, ""), a)
    }

    pub fn sub(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.or(self.builder.build_int_sub(a, b, ""), a)
    }

    pub fn mul(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        self.or(self.builder.build_int_mul(a, b, ""), a)
    }

    pub fn less(&self, a: IntValue<'c>, b: IntValue<'c>) -> V<'c> {
        self.icmp(IP::SLT, a.into(), b.into())
    }

    /// The integer in a value that must be one.
    pub fn as_int(&self, v: V<'c>) -> IntValue<'c> {
        match v {
            V::IntValue(v) => v,
            _ => {
                self.fail("uses as an integer what is none");
                self.long(0)
            }
        }
    }

    pub fn as_ptr(&self, v: V<'c>) -> PointerValue<'c> {
        match v {
            V::PointerValue(v) => v,
            _ => {
                self.fail("uses as an address what is none");
                self.null()
            }
        }
    }
}

/// A phi under construction.
#[derive(Clone, Copy)]
pub(crate) struct Phi<'c> {
    phi: Option<inkwell::values::PhiValue<'c>>,
    pub value: BasicValueEnum<'c>,
}

impl<'c> Phi<'c> {
    pub fn incoming(&self, value: V<'c>, from: BasicBlock<'c>) {
        if let Some(phi) = &self.phi {
            phi.add_incoming(&[(&value as &dyn BasicValue<'c>, from)]);
        }
    }
}
