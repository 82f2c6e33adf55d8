//! Loads and stores: element types, lane kinds, run-time indices with limits, masks.

use super::ir::{IP, Op, V};
use super::kernel::Emitter;
use super::row::{Block, Row};
use inkwell::values::PointerValue;
use pcc_ir::kernel::{AccessId, Lane, NodeId};
use pcc_ir::types::DType;

/// Where a per-row index points.
#[derive(Clone, Copy)]
pub(super) struct Site<'c> {
    /// Address of the row's first element there; that of the access if the index is out of range.
    ptr: PointerValue<'c>,
    /// Whether the index is in range.
    valid: V<'c>,
    /// The same for every lane.
    wide: V<'c>,
}

impl<'c> Emitter<'_, 'c> {
    fn dtype(&self, access: AccessId) -> DType {
        self.kernel.accesses[access as usize].dtype
    }

    /// Whether `0 <= index < scalars[limit]`, for an i32 index of any width, and the index as i64.
    fn in_range(&self, index: V<'c>, limit: u32) -> (V<'c>, V<'c>) {
        let ir = self.ir;
        let w = ir.width(index);
        let long = ir.cast(Op::SExt, index, ir.int(64, w));
        let limit = ir.splat(self.scalars[limit as usize].into(), w);
        let below = ir.icmp(IP::SLT, long, limit);
        (ir.bin(Op::And, below, ir.icmp(IP::SGE, long, ir.cl(w, 0))), long)
    }

    /// Where a per-row index points.
    pub(super) fn site(
        &self,
        row: &mut Row<'c>,
        access: AccessId,
        index: NodeId,
        stride: u32,
        limit: u32,
    ) -> Site<'c> {
        let ir = self.ir;
        let index = self.row_value(row, index);
        let (valid, long) = self.in_range(index, limit);
        let offset = ir.mul(ir.as_int(long), self.scalars[stride as usize]);
        let offset = ir.as_int(ir.select(valid, offset.into(), ir.long(0).into()));
        let ptr = ir.offset(ir.memory_type(self.dtype(access), 0), row.ptrs[access as usize], offset);
        Site { ptr, valid, wide: ir.splat(valid, self.w) }
    }

    /// A per-row element, or zero if the index of its site is out of range.
    pub(super) fn load_row(&self, row: &Row<'c>, access: AccessId, site: Option<Site<'c>>) -> V<'c> {
        let ir = self.ir;
        let dtype = self.dtype(access);
        let ptr = match site {
            None => row.ptrs[access as usize],
            Some(s) => ir.as_ptr(ir.select(s.valid, s.ptr.into(), self.nothing.into())),
        };
        ir.widen(dtype, ir.load(ir.memory_type(dtype, 0), ptr, dtype.bytes() as u32))
    }

    /// Stores a per-row node once.
    pub(super) fn store_row(&self, row: &mut Row<'c>, store: usize) {
        let ir = self.ir;
        let (access, node) = (self.kernel.stores[store].access, self.kernel.stores[store].node);
        let dtype = self.dtype(access);
        let value = ir.narrow(dtype, self.row_value(row, node));
        let ptr = match row.store_sites[store] {
            None => row.ptrs[access as usize],
            Some(s) => ir.as_ptr(ir.select(s.valid, s.ptr.into(), self.sink.into())),
        };
        ir.store(value, ptr, dtype.bytes() as u32);
    }

    /// Both masks, of which either may be missing.
    fn both(&self, a: Option<V<'c>>, b: Option<V<'c>>) -> Option<V<'c>> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.ir.bin(Op::And, a, b)),
            (a, b) => a.or(b),
        }
    }

    /// Elements of a block; those out of the mask or of the site's range are zero and not read.
    pub(super) fn load_lanes(
        &self,
        row: &Row<'c>,
        access: AccessId,
        site: Option<Site<'c>>,
        block: Block<'c>,
    ) -> V<'c> {
        let (ir, dtype) = (self.ir, self.dtype(access));
        let base = site.map_or(row.ptrs[access as usize], |s| s.ptr);
        let mask = self.both(site.map(|s| s.wide), block.mask);
        let raw = match self.lane(access) {
            Lane::Unit => {
                let ptr = ir.offset(ir.memory_type(dtype, 0), base, block.at);
                let (ty, align) = (ir.memory_type(dtype, self.w), dtype.bytes() as u32);
                match mask {
                    None => ir.load(ty, ptr, align),
                    Some(mask) => {
                        let args = [ptr.into(), mask, ir.zero(ty)];
                        ir.masked("llvm.masked.load", &[ty, ir.ptr(0)], &args, 0, align)
                            .unwrap_or(ir.zero(ty))
                    }
                }
            }
            _ => self.gather(dtype, base, self.lane_offsets(access, block), mask),
        };
        ir.widen(dtype, raw)
    }

    /// Offsets of a block's elements along the lane dim, in elements.
    fn lane_offsets(&self, access: AccessId, block: Block<'c>) -> V<'c> {
        let (ir, w) = (self.ir, self.w);
        let lanes = || ir.bin(Op::Add, ir.splat(block.at.into(), w), ir.iota(64, w));
        match self.lane(access) {
            Lane::Unit => lanes(),
            Lane::Broadcast => ir.cl(w, 0),
            Lane::Strided => {
                let stride = self.strides[access as usize][self.kernel.rank as usize - 1];
                ir.bin(Op::Mul, lanes(), ir.splat(stride.into(), w))
            }
        }
    }

    /// Offsets with a per-element index added, and which lanes may be used.
    fn indexed(
        &self,
        access: AccessId,
        index: V<'c>,
        stride: u32,
        limit: u32,
        block: Block<'c>,
    ) -> (V<'c>, V<'c>) {
        let (ir, w) = (self.ir, self.w);
        let (valid, long) = self.in_range(index, limit);
        let extra = ir.bin(Op::Mul, long, ir.splat(self.scalars[stride as usize].into(), w));
        let offsets = ir.bin(Op::Add, self.lane_offsets(access, block), extra);
        (offsets, self.both(Some(valid), block.mask).unwrap_or(valid))
    }

    /// Elements of a block at per-element indices.
    pub(super) fn load_indexed(
        &self,
        row: &Row<'c>,
        access: AccessId,
        index: V<'c>,
        (stride, limit): (u32, u32),
        block: Block<'c>,
    ) -> V<'c> {
        let (offsets, mask) = self.indexed(access, index, stride, limit, block);
        let dtype = self.dtype(access);
        self.ir.widen(dtype, self.gather(dtype, row.ptrs[access as usize], offsets, Some(mask)))
    }

    /// Addresses of elements at offsets from a base.
    fn addresses(&self, dtype: DType, base: PointerValue<'c>, offsets: V<'c>) -> V<'c> {
        let (ir, w) = (self.ir, self.w);
        let base = ir.splat(ir.cast(Op::PtrToInt, base.into(), ir.int(64, 0)), w);
        let shift = ir.cl(w, i64::from(dtype.bytes().trailing_zeros()));
        let address = ir.bin(Op::Add, base, ir.bin(Op::Shl, offsets, shift));
        ir.cast(Op::IntToPtr, address, ir.ptr(w))
    }

    fn gather(&self, dtype: DType, base: PointerValue<'c>, offsets: V<'c>, mask: Option<V<'c>>) -> V<'c> {
        let (ir, w) = (self.ir, self.w);
        let ty = ir.memory_type(dtype, w);
        let args = [self.addresses(dtype, base, offsets), mask.unwrap_or(ir.cb(w, true)), ir.zero(ty)];
        ir.masked("llvm.masked.gather", &[ty, ir.ptr(w)], &args, 0, dtype.bytes() as u32)
            .unwrap_or(ir.zero(ty))
    }

    /// Stores a block of a per-element store; later lanes last where several hit one place.
    pub(super) fn store_lanes(
        &self,
        row: &Row<'c>,
        values: &[Option<V<'c>>],
        store: usize,
        block: Block<'c>,
    ) {
        let (ir, w) = (self.ir, self.w);
        let store_ = &self.kernel.stores[store];
        let (access, dtype) = (store_.access, self.dtype(store_.access));
        let value = ir.narrow(dtype, values[store_.node as usize].unwrap_or(ir.cf(w, 0.0)));
        let (ty, align) = (value.get_type(), dtype.bytes() as u32);
        let varying = store_.at.and_then(|at| values[at.index as usize].map(|v| (at, v)));
        let site = row.store_sites[store];
        let base = site.map_or(row.ptrs[access as usize], |s| s.ptr);
        let mask = self.both(site.map(|s| s.wide), block.mask);
        let (offsets, mask) = match (varying, site) {
            (Some((at, index)), None) => {
                let (offsets, mask) = self.indexed(access, index, at.stride, at.limit, block);
                (offsets, Some(mask))
            }
            _ if self.lane(access) == Lane::Unit => {
                let ptr = ir.offset(ir.memory_type(dtype, 0), base, block.at);
                match mask {
                    None => ir.store(value, ptr, align),
                    Some(mask) => {
                        let args = [value, ptr.into(), mask];
                        ir.masked("llvm.masked.store", &[ty, ir.ptr(0)], &args, 1, align);
                    }
                }
                return;
            }
            _ => (self.lane_offsets(access, block), mask),
        };
        let args = [value, self.addresses(dtype, base, offsets), mask.unwrap_or(ir.cb(w, true))];
        ir.masked("llvm.masked.scatter", &[ty, ir.ptr(w)], &args, 1, align);
    }
}
