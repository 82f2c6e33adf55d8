//! Building an entry function: parameters, addresses in their spaces, threads, barriers, shuffles, loops. Everything else
//! goes through [`Ir`], whose loads, stores and offsets take addresses of any space.

use crate::emit::ir::{IP, Ir, Op, V};
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::types::{BasicMetadataTypeEnum, BasicTypeEnum, FunctionType};
use inkwell::values::{BasicMetadataValueEnum, CallSiteValue, FunctionValue, IntValue, PointerValue};
use inkwell::{AddressSpace, AtomicOrdering, AtomicRMWBinOp};

/// Address spaces of NVPTX.
pub(crate) const GLOBAL: u16 = 1;
pub(crate) const SHARED: u16 = 3;
/// LLVM's number of the calling convention `ptx_kernel`.
const PTX_KERNEL: u32 = 71;

/// Registers that say where a thread is. The dims of grids and blocks are x, y and z; blocks have only x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread,
    Threads,
    BlockX,
    BlockY,
    BlockZ,
    BlocksX,
    BlocksY,
    BlocksZ,
    /// Of the warp, 0 to 31.
    Lane,
}

/// An entry function under construction. Build code through it and [`Ir`], then call [`Entry::end`].
pub(crate) struct Entry<'i, 'c> {
    pub ir: &'i Ir<'c>,
    pub function: FunctionValue<'c>,
    symbol: String,
}

impl<'i, 'c> Entry<'i, 'c> {
    /// Adds an entry with `params` parameters of 8 bytes, and puts the builder at its beginning. It is never launched with more than `threads`
    /// threads a block, which bounds the registers that ptxas may use.
    pub fn new(ir: &'i Ir<'c>, symbol: &str, params: usize, threads: u32) -> Self {
        let long: BasicMetadataTypeEnum = ir.context.i64_type().into();
        let signature = ir.context.void_type().fn_type(&vec![long; params], false);
        let function = ir.module.add_function(symbol, signature, None);
        function.set_call_conventions(PTX_KERNEL);
        ir.at(ir.block(function, "entry"));
        let entry = Entry { ir, function, symbol: symbol.to_owned() };
        entry.attribute("nvvm.maxntid", threads);
        // Without it ptxas spills registers of some kernels to fit more blocks.
        entry.resident(1);
        entry
    }

    /// At least so many blocks shall fit on a multiprocessor together, which bounds registers too.
    pub fn resident(&self, blocks: u32) {
        self.attribute("nvvm.minctasm", blocks);
    }

    fn attribute(&self, name: &str, value: u32) {
        let attribute = self.ir.context.create_string_attribute(name, &value.to_string());
        self.function.add_attribute(AttributeLoc::Function, attribute);
    }

    /// Ends the function where the builder is.
    pub fn end(&self) {
        self.ir.ret();
    }

    // Parameters.

    pub fn param(&self, i: usize) -> IntValue<'c> {
        match self.function.get_nth_param(i as u32) {
            Some(v) => self.ir.as_int(v),
            None => {
                self.ir.fail(format!("{} has no parameter {i}", self.symbol));
                self.ir.long(0)
            }
        }
    }

    /// A parameter that is an address of global memory.
    pub fn global(&self, i: usize) -> PointerValue<'c> {
        let ir = self.ir;
        ir.as_ptr(ir.cast(Op::IntToPtr, self.param(i).into(), self.pointer(GLOBAL)))
    }

    /// A parameter that is an f32, in the low half.
    pub fn float(&self, i: usize) -> V<'c> {
        let ir = self.ir;
        ir.float(ir.cast(Op::Trunc, self.param(i).into(), ir.int(32, 0)))
    }

    fn pointer(&self, space: u16) -> BasicTypeEnum<'c> {
        self.ir.context.ptr_type(AddressSpace::from(space)).into()
    }

    // Threads.

    /// A special register as an i32, at least 0.
    pub fn special(&self, which: Special) -> V<'c> {
        let name = match which {
            Special::Thread => "tid.x",
            Special::Threads => "ntid.x",
            Special::BlockX => "ctaid.x",
            Special::BlockY => "ctaid.y",
            Special::BlockZ => "ctaid.z",
            Special::BlocksX => "nctaid.x",
            Special::BlocksY => "nctaid.y",
            Special::BlocksZ => "nctaid.z",
            Special::Lane => "laneid",
        };
        self.ir.intrinsic(&format!("llvm.nvvm.read.ptx.sreg.{name}"), &[], &[])
    }

    /// A special register as an i64.
    pub fn place(&self, which: Special) -> IntValue<'c> {
        self.ir.as_int(self.ir.cast(Op::ZExt, self.special(which), self.ir.int(64, 0)))
    }

    /// All threads of the block wait for each other, and see what the others wrote before.
    pub fn barrier(&self) {
        self.ir.call("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[self.ir.ci(0, 0)]);
    }

    /// As [`Entry::barrier`] for the threads of the warp.
    pub fn warp_barrier(&self) {
        self.ir.call("llvm.nvvm.bar.warp.sync", &[], &[self.ir.ci(0, -1)]);
    }

    /// The 32-bit value (f32 or i32) of the lane whose number differs by the bits of `mask`. All 32 lanes of the warp must come here.
    pub fn shuffle_xor(&self, value: V<'c>, mask: u32) -> V<'c> {
        let ir = self.ir;
        let name = match value {
            V::FloatValue(_) => "llvm.nvvm.shfl.sync.bfly.f32",
            _ => "llvm.nvvm.shfl.sync.bfly.i32",
        };
        ir.intrinsic(name, &[], &[ir.ci(0, -1), value, ir.ci(0, mask as i32), ir.ci(0, 31)])
    }

    /// The value of a lane of the warp. All 32 lanes must come here.
    pub fn shuffle_from(&self, value: V<'c>, lane: V<'c>) -> V<'c> {
        let ir = self.ir;
        let name = match value {
            V::FloatValue(_) => "llvm.nvvm.shfl.sync.idx.f32",
            _ => "llvm.nvvm.shfl.sync.idx.i32",
        };
        ir.intrinsic(name, &[], &[ir.ci(0, -1), value, lane, ir.ci(0, 31)])
    }

    // Shared memory.

    /// Bytes of the block's shared memory, aligned to 16; `name` is unique within the function.
    pub fn shared(&self, name: &str, bytes: u32) -> PointerValue<'c> {
        let ty = self.ir.context.i8_type().array_type(bytes);
        let space = Some(AddressSpace::from(SHARED));
        let global = self.ir.module.add_global(ty, space, &format!("{}_{name}", self.symbol));
        global.set_linkage(inkwell::module::Linkage::Internal);
        global.set_initializer(&ty.get_undef());
        global.set_alignment(16);
        global.as_pointer_value()
    }

    /// Adds an i32 to that at an address of shared memory, as one step for the threads of the block. What was there before.
    pub fn add_atomic(&self, at: PointerValue<'c>, value: V<'c>) -> V<'c> {
        let (add, order) = (AtomicRMWBinOp::Add, AtomicOrdering::Monotonic);
        let built = self.ir.builder.build_atomicrmw(add, at, self.ir.as_int(value), order);
        self.ir.or(built.map(V::from), value)
    }

    /// The shared memory whose size the launch gives, aligned to so many bytes.
    pub fn shared_dynamic(&self, align: u32) -> PointerValue<'c> {
        let name = format!("{}_dynamic", self.symbol);
        if let Some(global) = self.ir.module.get_global(&name) {
            return global.as_pointer_value();
        }
        let ty = self.ir.context.i8_type().array_type(0);
        let global = self.ir.module.add_global(ty, Some(AddressSpace::from(SHARED)), &name);
        global.set_linkage(inkwell::module::Linkage::External);
        global.set_alignment(align);
        global.as_pointer_value()
    }

    // Assembly.

    /// Instructions that LLVM does not know, in the order in which they are built among all that has an effect: `text` with `$0`, `$1`, .. for the
    /// 64-bit `operands`.
    pub fn assembly(&self, text: String, operands: &[IntValue<'c>]) {
        let ir = self.ir;
        let long: BasicMetadataTypeEnum = ir.context.i64_type().into();
        let signature = ir.context.void_type().fn_type(&vec![long; operands.len()], false);
        let constraints = [vec!["l"; operands.len()], vec!["~{memory}"]].concat().join(",");
        self.inline(signature, text, constraints, operands);
    }

    /// Likewise with `results` results of f32, `$0`, `$1`, ..: at least two.
    pub fn assembly_floats(&self, text: String, results: usize) -> Vec<V<'c>> {
        let ir = self.ir;
        let all = ir.context.struct_type(&vec![ir.f32(0); results], false);
        let constraints = vec!["=f"; results].join(",");
        let call = self.inline(all.fn_type(&[], false), text, constraints, &[]);
        let value = call.and_then(|c| c.try_as_basic_value().basic()).unwrap_or(all.const_zero().into());
        (0..results as u32).map(|i| self.member(value, i)).collect()
    }

    fn inline(
        &self,
        signature: FunctionType<'c>,
        text: String,
        constraints: String,
        operands: &[IntValue<'c>],
    ) -> Option<CallSiteValue<'c>> {
        let ir = self.ir;
        let code = ir.context.create_inline_asm(signature, text, constraints, true, false, None, false);
        let operands: Vec<BasicMetadataValueEnum> = operands.iter().map(|&v| v.into()).collect();
        let call =
            ir.builder.build_indirect_call(signature, code, &operands, "").map_err(|e| ir.fail(e)).ok()?;
        // What the threads of a warp do together may not be moved to where some of them are.
        let convergent = ir.context.create_enum_attribute(Attribute::get_named_enum_kind_id("convergent"), 0);
        call.add_attribute(AttributeLoc::Function, convergent);
        Some(call)
    }

    /// A member of a result that is a struct.
    pub fn member(&self, of: V<'c>, i: u32) -> V<'c> {
        match of {
            V::StructValue(s) => self.ir.or(self.ir.builder.build_extract_value(s, i, ""), of),
            _ => {
                self.ir.fail("takes a member of what is no struct");
                of
            }
        }
    }

    // Control flow. Bodies may branch; the builder ends behind them.

    /// Runs `body` where the condition holds.
    pub fn when(&self, condition: V<'c>, body: impl FnOnce()) {
        let ir = self.ir;
        let (then, done) = (ir.block(self.function, "then"), ir.block(self.function, "done"));
        ir.br_if(condition, then, done);
        ir.at(then);
        body();
        ir.br(done);
        ir.at(done);
    }

    /// The values of one of two bodies, which give equally many of equal types.
    pub fn choose(
        &self,
        condition: V<'c>,
        yes: impl FnOnce() -> Vec<V<'c>>,
        no: impl FnOnce() -> Vec<V<'c>>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let [then, other, done] = ["then", "else", "done"].map(|name| ir.block(self.function, name));
        ir.br_if(condition, then, other);
        ir.at(then);
        let a = yes();
        let a_end = ir.here().unwrap_or(then);
        ir.br(done);
        ir.at(other);
        let b = no();
        let b_end = ir.here().unwrap_or(other);
        ir.br(done);
        ir.at(done);
        if a.len() != b.len() {
            ir.fail("two ways give different numbers of values");
        }
        let merge = |(&a, &b): (&V<'c>, &V<'c>)| {
            let phi = ir.phi(a, a_end);
            phi.incoming(b, b_end);
            phi.value
        };
        a.iter().zip(&b).map(merge).collect()
    }

    /// Runs `body` for `from, from + step, ..` below `to` (signed, of one integer type), perhaps never. It gets the number and the loop's values
    /// and gives the next ones. The values after.
    pub fn count(
        &self,
        from: IntValue<'c>,
        to: IntValue<'c>,
        step: IntValue<'c>,
        first: &[V<'c>],
        body: impl FnOnce(IntValue<'c>, &[V<'c>]) -> Vec<V<'c>>,
    ) -> Vec<V<'c>> {
        let ir = self.ir;
        let [head, inside, done] = ["loop", "body", "done"].map(|name| ir.block(self.function, name));
        let Some(before) = ir.here() else { return first.to_vec() };
        ir.br(head);
        ir.at(head);
        let at = ir.phi(from.into(), before);
        let phis: Vec<_> = first.iter().map(|&v| ir.phi(v, before)).collect();
        let values: Vec<V> = phis.iter().map(|p| p.value).collect();
        ir.br_if(ir.icmp(IP::SLT, at.value, to.into()), inside, done);
        ir.at(inside);
        let number = ir.as_int(at.value);
        let next = body(number, &values);
        let last = ir.here().unwrap_or(inside);
        at.incoming(ir.add(number, step).into(), last);
        if next.len() != phis.len() {
            ir.fail("a loop's turn gives another number of values");
        }
        phis.iter().zip(&next).for_each(|(phi, &v)| phi.incoming(v, last));
        ir.br(head);
        ir.at(done);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::ir::Machine;
    use crate::ptx::{Generator, header};
    use pcc_ir::gpu::Arch;

    /// Every part of an entry becomes the instruction it stands for, on every architecture.
    #[test]
    fn parts_become_their_instructions() {
        for arch in Arch::ALL {
            let generator = Generator::new(arch).unwrap();
            let ir = Ir::new(&generator.context, Machine::Ptx);
            let entry = Entry::new(&ir, "parts", 3, 64);
            let (from, to) = (entry.global(0), entry.shared("tile", 256));
            let at = entry.place(Special::Thread);
            let x = ir.load(ir.f32(0), ir.offset(ir.f32(0), from, at), 4);
            entry.when(ir.less(at, ir.long(64)), || ir.store(x, ir.offset(ir.f32(0), to, at), 4));
            entry.barrier();
            let first = ir.cf(0, 0.0);
            let sum = entry.count(ir.long(0), entry.param(1), ir.long(1), &[first], |i, sum| {
                vec![ir.fadd(sum[0], ir.load(ir.f32(0), ir.offset(ir.f32(0), to, i), 4))]
            })[0];
            let sum = ir.fadd(entry.shuffle_xor(sum, 16), entry.float(2));
            let doubled = ir.fadd(sum, sum);
            ir.store(doubled, ir.offset(ir.f32(0), from, at), 4);
            ir.store(doubled, entry.shared_dynamic(16), 4);
            entry.end();
            let ptx = header(arch) + &generator.ptx(&ir.finish().unwrap()).unwrap();
            for part in [
                ".visible .entry parts(",
                ".maxntid 64",
                "ld.global.b32",
                "st.global.b32",
                "st.shared.b32",
                "bar.sync",
                "shfl.sync.bfly.b32",
                "%tid.x",
                ".extern .shared .align 16 .b8 parts_dynamic[]",
                &format!(".target {}\n", arch.name()),
            ] {
                assert!(ptx.contains(part), "{part} in\n{ptx}");
            }
            assert_eq!(ptx.matches(".version").count(), 1);
        }
    }
}
