//! Fused kernels, for the launches that [`pcc_ir::gpu::fused`] describes.
//!
//! A thread works on *groups* of [`fused::vector`] adjacent elements of a row: by vector accesses where the whole group exists and the row's
//! addresses are aligned, else element by element. Per-row values are worked out by every thread of the row.

mod access;
mod flat;
mod group;
mod row;
mod rows;

use super::entry::{Entry, Special};
use crate::emit::ir::{IP, Ir, Machine, Op, V};
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::values::{IntValue, PointerValue};
use pcc_ir::gpu::fused;
use pcc_ir::kernel::{AccessId, Kernel, Lane};
use pcc_ir::kernel_check::KernelInfo;

/// Parameters that a kernel may have, 4096 bytes of them (PTX ISA, before version 8.1).
pub(crate) const MOST_PARAMS: usize = 512;

/// Parameters of a kernel, unless they are too many.
///
/// # Errors
/// How many there are, and how many there may be.
pub(crate) fn params(kernel: &Kernel) -> Result<usize, String> {
    let (accesses, rank) = (kernel.accesses.len(), kernel.rank as usize);
    let params = accesses + rank + accesses * rank + kernel.scalars as usize;
    if params > MOST_PARAMS {
        return Err(format!("{params} parameters, more than the {MOST_PARAMS} that a GPU kernel may have"));
    }
    Ok(params)
}

/// A module with the kernel as the entry `symbol`.
///
/// # Errors
/// Too many parameters, or this crate is wrong.
pub(crate) fn module<'c>(
    context: &'c Context,
    kernel: &Kernel,
    info: &KernelInfo,
    symbol: &str,
) -> Result<Module<'c>, String> {
    let params = params(kernel)?;
    let ir = Ir::new(context, Machine::Ptx);
    let threads = if fused::reduces(kernel) { fused::ROW_THREADS } else { fused::THREADS };
    let entry = Entry::new(&ir, symbol, params, threads);
    let fused = Fused::new(&entry, kernel, info);
    if fused::reduces(kernel) {
        fused.rows();
    } else {
        fused.flat();
    }
    entry.end();
    ir.finish()
}

/// A kernel being emitted.
struct Fused<'a, 'c> {
    entry: &'a Entry<'a, 'c>,
    ir: &'a Ir<'c>,
    kernel: &'a Kernel,
    info: &'a KernelInfo,
    ptrs: Vec<PointerValue<'c>>,
    extents: Vec<IntValue<'c>>,
    /// By access and dim, in elements.
    strides: Vec<Vec<IntValue<'c>>>,
    scalars: Vec<IntValue<'c>>,
    /// Elements of a group.
    vector: u32,
}

impl<'a, 'c> Fused<'a, 'c> {
    fn new(entry: &'a Entry<'a, 'c>, kernel: &'a Kernel, info: &'a KernelInfo) -> Self {
        let ir = entry.ir;
        let (accesses, rank) = (kernel.accesses.len(), kernel.rank as usize);
        // The stride along the lane dim is known but for `Strided` accesses.
        let stride = |a: usize, d: usize| match kernel.accesses[a].lane {
            Lane::Unit if d + 1 == rank => ir.long(1),
            Lane::Broadcast if d + 1 == rank => ir.long(0),
            _ => entry.param(accesses + rank + a * rank + d),
        };
        let scalars = accesses + rank + accesses * rank;
        Fused {
            entry,
            ir,
            kernel,
            info,
            ptrs: (0..accesses).map(|a| entry.global(a)).collect(),
            extents: (0..rank).map(|d| entry.param(accesses + d)).collect(),
            strides: (0..accesses).map(|a| (0..rank).map(|d| stride(a, d)).collect()).collect(),
            scalars: (0..kernel.scalars as usize).map(|s| entry.param(scalars + s)).collect(),
            vector: fused::vector(kernel) as u32,
        }
    }

    fn lane(&self, access: AccessId) -> Lane {
        self.kernel.accesses[access as usize].lane
    }

    /// Elements of a row.
    fn lanes(&self) -> IntValue<'c> {
        self.extents[self.kernel.rank as usize - 1]
    }

    /// Rows of the iteration space.
    fn row_count(&self) -> IntValue<'c> {
        let ir = self.ir;
        self.extents[..self.kernel.rank as usize - 1].iter().fold(ir.long(1), |n, &d| ir.mul(n, d))
    }

    /// Index of a row along each row dim.
    fn row_index(&self, row: IntValue<'c>) -> Vec<IntValue<'c>> {
        let ir = self.ir;
        if self.kernel.rank == 1 {
            return vec![];
        }
        let mut rest: V = row.into();
        let mut index = vec![];
        for dim in (1..self.kernel.rank as usize - 1).rev() {
            let extent = self.extents[dim].into();
            let quotient = ir.bin(Op::UDiv, rest, extent);
            index.push(ir.as_int(ir.bin(Op::Sub, rest, ir.bin(Op::Mul, quotient, extent))));
            rest = quotient;
        }
        index.push(ir.as_int(rest));
        index.reverse();
        index
    }

    /// The lesser of two numbers.
    fn least(&self, a: IntValue<'c>, b: IntValue<'c>) -> IntValue<'c> {
        let ir = self.ir;
        ir.as_int(ir.select(ir.less(a, b), a.into(), b.into()))
    }
}
