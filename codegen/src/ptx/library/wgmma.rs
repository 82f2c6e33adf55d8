//! Products of a warpgroup, the `wgmma` instructions of sm_90a. LLVM has no intrinsics for them: they are assembly. (PTX ISA 8.7, "Asynchronous
//! Warpgroup Level Matrix Multiply-Accumulate Instructions"; sections are named by their titles there.)
//!
//! Both operands lie in shared memory as *atoms* of 8 rows of 128 bytes, at multiples of 1024 bytes: 8 rows (columns of b) x 64 of depth, or 8 of depth x
//! 64 rows (columns). Chunk c of row r lies at place `c ^ r` of the row, the 128-byte swizzle. ("Shared Memory Matrix Layout", "Canonical
//! Layouts", `Swizzle<3, 4, 3>`.) Descriptors agree with those of CUTLASS (`make_gmma_desc` in `cute/atom/mma_traits_sm90_gmma.hpp`) and, of the order that is not by
//! k, of ThunderKittens (`st_descriptor`).

use super::value::{Code, Num};
use pcc_ir::types::DType;

/// Rows of c that a warpgroup makes at a time, and the depth of an instruction.
pub(super) const ROWS: u32 = 64;
pub(super) const DEPTH: u32 = 16;
/// Bytes of an atom, which its address must be a multiple of.
pub(super) const ATOM: u32 = 1024;
/// Elements of a row of an atom, and bytes of it.
pub(super) const ATOM_ELEMENTS: u32 = 64;
const ATOM_ROW: u32 = 128;

/// How an operand lies in shared memory. `by_k`: its atoms are 8 rows (columns) x 64 of depth, one below the other. Otherwise they are 8 of depth x 64
/// rows (columns), `depth` of depth one below the other, and behind them those of the next 64.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub by_k: bool,
    pub depth: u32,
}

impl Layout {
    /// Bytes from the first 64 rows (columns) to the next 64: of `by_k` eight atoms, else those of all the depth.
    pub fn next_rows(self) -> u32 {
        if self.by_k { ROWS * ATOM_ROW } else { self.depth * ATOM_ROW }
    }

    /// Bytes from one instruction's depth to the next's. Within an atom's row it is the address that advances, before it is swizzled.
    fn next_depth(self) -> u32 {
        if self.by_k { DEPTH * 2 } else { DEPTH * ATOM_ROW }
    }

    /// The descriptor of what an instruction reads at an address. ("Matrix Descriptor Format".) The stride offset is from 8 rows to the next by k, else
    /// from 8 of depth to the next: an atom either way. The leading offset is not used by k, else it is that of the next 64 rows, for the
    /// swizzled `((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))`.
    pub fn descriptor<'e, 'c>(self, code: Code<'e, 'c>, at: Num<'e, 'c>) -> Num<'e, 'c> {
        let encoded = |bytes: u32| i64::from((bytes & 0x3ffff) >> 4);
        let leading = if self.by_k { 1 } else { encoded(self.next_rows()) };
        let fixed = leading << 16 | encoded(ATOM) << 32 | SWIZZLE_128 << 62;
        let place = (at.address() & 0x3ffffi64) >> 4u32;
        place | code.i64(fixed)
    }

    /// The descriptor of the depth that an instruction reads `number` instructions later.
    pub fn deeper<'e, 'c>(self, descriptor: Num<'e, 'c>, number: u32) -> Num<'e, 'c> {
        descriptor + number * (self.next_depth() >> 4)
    }
}

const SWIZZLE_128: i64 = 1;

/// The sums of a warpgroup, 64 rows x `cols`. They lie in registers that LLVM does not know: it would copy them from one piece of assembly to the next,
/// and nothing may touch them while products are under way.
///
/// Registers 4 j to 4 j + 3 of a lane are the fragment of 16 x 8 of its warp's rows and columns 8 j to 8 j + 7 ("Register Fragments", accumulator D), in
/// which they stand as those of `mma.sync` do.
pub(super) struct Sums<'e, 'c> {
    code: Code<'e, 'c>,
    cols: u32,
}

impl<'e, 'c> Sums<'e, 'c> {
    /// Declares the registers: once a kernel, at its beginning.
    pub fn declare(code: Code<'e, 'c>, cols: u32) -> Self {
        let sums = Sums { code, cols };
        code.entry.assembly(format!(".reg .f32 %sum<{}>;", sums.registers()), &[]);
        sums
    }

    fn registers(&self) -> u32 {
        self.cols * ROWS / 128
    }

    /// Makes all sums 0.
    pub fn clear(&self) {
        let zero = |i| format!("mov.f32 %sum{i}, 0f00000000;");
        self.code.entry.assembly(lines((0..self.registers()).map(zero)), &[]);
    }

    /// Begins to add the products of operands whose descriptors these are, one after the other: a's rows and b's columns.
    pub fn add(&self, dtype: DType, layouts: [Layout; 2], operands: &[[Num<'e, 'c>; 2]]) {
        let kind = if dtype == DType::F16 { "f16" } else { "bf16" };
        let list: Vec<String> = (0..self.registers()).map(|i| format!("%sum{i}")).collect();
        let [a, b] = layouts.map(|layout| u32::from(!layout.by_k));
        let one = |i: usize| {
            format!(
                "wgmma.mma_async.sync.aligned.m64n{}k16.f32.{kind}.{kind} {{{}}}, ${}, ${}, p, 1, 1, {a}, {b};",
                self.cols,
                list.join(", "),
                2 * i,
                2 * i + 1
            )
        };
        // The predicate says that sums are added to.
        let before = ["{", ".reg .pred p;", "setp.ne.b32 p, 1, 0;", "wgmma.fence.sync.aligned;"];
        let after = ["wgmma.commit_group.sync.aligned;", "}"];
        let text = before.map(str::to_owned).into_iter().chain((0..operands.len()).map(one));
        let ir = self.code.entry.ir;
        let operands: Vec<_> = operands.iter().flatten().map(|n| ir.as_int(n.v)).collect();
        self.code.entry.assembly(lines(text.chain(after.map(str::to_owned))), &operands);
    }

    /// The sums, after [`wait`] for all.
    pub fn get(&self) -> Vec<Num<'e, 'c>> {
        let one = |i| format!("mov.f32 ${i}, %sum{i};");
        let registers = self.registers();
        let values = self.code.entry.assembly_floats(lines((0..registers).map(one)), registers as usize);
        values.into_iter().map(|v| self.code.of(v)).collect()
    }
}

/// Waits until all but the last `but` of this warp's [`Sums::add`] are done, reading shared memory as well.
pub(super) fn wait(code: Code<'_, '_>, but: u32) {
    code.entry.assembly(format!("wgmma.wait_group.sync.aligned {but};"), &[]);
}

/// What this thread has written to shared memory so far can be read by products that begin after the next barrier. ("Async Proxy".)
pub(super) fn publish(code: Code<'_, '_>) {
    code.entry.assembly("fence.proxy.async.shared::cta;".to_owned(), &[]);
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join("\n\t")
}
