//! Loads and stores: element types, lane kinds, run-time indices with limits, single elements and groups.

use super::row::Row;
use super::{Fused, IP, IntValue, Op, PointerValue, V};
use inkwell::types::BasicTypeEnum;
use pcc_ir::gpu::fused::VECTOR_BYTES;
use pcc_ir::kernel::{AccessId, Lane, NodeId};
use pcc_ir::types::DType;

/// Where a per-row index points.
#[derive(Clone, Copy)]
pub(super) struct Site<'c> {
    /// Address of the row's first element there; that of the access if the index is out of range.
    pub ptr: PointerValue<'c>,
    /// Whether the index is in range.
    pub valid: V<'c>,
}

impl<'c> Fused<'_, 'c> {
    fn dtype(&self, access: AccessId) -> DType {
        self.kernel.accesses[access as usize].dtype
    }

    /// An element of an access in memory.
    pub(super) fn memory(&self, access: AccessId) -> BasicTypeEnum<'c> {
        self.ir.memory_type(self.dtype(access), 0)
    }

    fn bytes(&self, access: AccessId) -> u32 {
        self.dtype(access).bytes() as u32
    }

    /// Bytes of a vector access, of which a group may take several.
    pub(super) fn vector_bytes(&self, access: AccessId) -> u32 {
        (self.bytes(access) * self.vector).min(VECTOR_BYTES as u32)
    }

    /// Elements of a vector access.
    fn vector_count(&self, access: AccessId) -> u32 {
        self.vector_bytes(access) / self.bytes(access)
    }

    /// Whether `0 <= index < scalars[limit]`, and the index's offset in elements.
    fn in_range(&self, index: V<'c>, stride: u32, limit: u32) -> (V<'c>, IntValue<'c>) {
        let ir = self.ir;
        let long = ir.cast(Op::SExt, index, ir.int(64, 0));
        let below = ir.icmp(IP::SLT, long, self.scalars[limit as usize].into());
        let valid = ir.bin(Op::And, below, ir.icmp(IP::SGE, long, ir.long(0).into()));
        (valid, ir.mul(ir.as_int(long), self.scalars[stride as usize]))
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
        let (valid, offset) = self.in_range(index, stride, limit);
        let offset = ir.as_int(ir.select(valid, offset.into(), ir.long(0).into()));
        Site { ptr: ir.offset(self.memory(access), row.ptrs[access as usize], offset), valid }
    }

    /// Where a store starts in the row, unless its index is per element.
    pub(super) fn store_base(&self, row: &Row<'c>, store: usize) -> Option<PointerValue<'c>> {
        match (row.store_sites[store], self.kernel.stores[store].at) {
            (Some(site), _) => Some(site.ptr),
            (None, None) => Some(row.ptrs[self.kernel.stores[store].access as usize]),
            (None, Some(_)) => None,
        }
    }

    /// The values of `body` where the condition holds (always if there is none), else zeros.
    fn or_zero(
        &self,
        valid: Option<V<'c>>,
        zeros: &[V<'c>],
        body: impl FnOnce() -> Vec<V<'c>>,
    ) -> Vec<V<'c>> {
        match valid {
            None => body(),
            Some(valid) => self.entry.choose(valid, body, || zeros.to_vec()),
        }
    }

    /// A per-row element, or zero if the index of its site is out of range.
    pub(super) fn load_row(&self, row: &Row<'c>, access: AccessId, site: Option<Site<'c>>) -> V<'c> {
        let ptr = site.map_or(row.ptrs[access as usize], |s| s.ptr);
        self.load_one(access, ptr, self.ir.long(0), site.map(|s| s.valid))
    }

    /// The element `offset` elements from a base, or zero.
    fn load_one(
        &self,
        access: AccessId,
        base: PointerValue<'c>,
        offset: IntValue<'c>,
        valid: Option<V<'c>>,
    ) -> V<'c> {
        let (ir, ty) = (self.ir, self.memory(access));
        let raw = self.or_zero(valid, &[ir.zero(ty)], || {
            vec![ir.load(ty, ir.offset(ty, base, offset), self.bytes(access))]
        });
        ir.widen(self.dtype(access), raw[0])
    }

    /// Offset of an element of the row along the lane dim, in elements.
    fn lane_offset(&self, access: AccessId, at: IntValue<'c>) -> IntValue<'c> {
        match self.lane(access) {
            Lane::Unit => at,
            Lane::Broadcast => self.ir.long(0),
            Lane::Strided => self.ir.mul(at, self.strides[access as usize][self.kernel.rank as usize - 1]),
        }
    }

    /// An element of the row.
    pub(super) fn load_element(
        &self,
        row: &Row<'c>,
        access: AccessId,
        site: Option<Site<'c>>,
        at: IntValue<'c>,
    ) -> V<'c> {
        let base = site.map_or(row.ptrs[access as usize], |s| s.ptr);
        self.load_one(access, base, self.lane_offset(access, at), site.map(|s| s.valid))
    }

    /// An element of the row at a per-element index.
    pub(super) fn load_indexed(
        &self,
        row: &Row<'c>,
        access: AccessId,
        index: V<'c>,
        (stride, limit): (u32, u32),
        at: IntValue<'c>,
    ) -> V<'c> {
        let (valid, extra) = self.in_range(index, stride, limit);
        let offset = self.ir.add(self.lane_offset(access, at), extra);
        self.load_one(access, row.ptrs[access as usize], offset, Some(valid))
    }

    /// Stores an element of the row; `index` is its per-element index.
    pub(super) fn store_element(
        &self,
        row: &Row<'c>,
        store: usize,
        value: V<'c>,
        index: Option<V<'c>>,
        at: IntValue<'c>,
    ) {
        let ir = self.ir;
        let access = self.kernel.stores[store].access;
        let lane = self.lane_offset(access, at);
        let (base, offset, valid) = match (row.store_sites[store], self.kernel.stores[store].at, index) {
            (Some(site), ..) => (site.ptr, lane, Some(site.valid)),
            (None, Some(at), Some(index)) => {
                let (valid, extra) = self.in_range(index, at.stride, at.limit);
                (row.ptrs[access as usize], ir.add(lane, extra), Some(valid))
            }
            _ => (row.ptrs[access as usize], lane, None),
        };
        let value = ir.narrow(self.dtype(access), value);
        let put = || ir.store(value, ir.offset(self.memory(access), base, offset), self.bytes(access));
        match valid {
            None => put(),
            Some(valid) => self.entry.when(valid, put),
        }
    }

    /// The group from `at` on of a `Unit` access, by vector loads; zeros if the index of the site is out of range.
    pub(super) fn load_group(
        &self,
        row: &Row<'c>,
        access: AccessId,
        site: Option<Site<'c>>,
        at: IntValue<'c>,
    ) -> Vec<V<'c>> {
        let (ir, dtype) = (self.ir, self.dtype(access));
        let base = site.map_or(row.ptrs[access as usize], |s| s.ptr);
        let zeros = vec![ir.zero(self.memory(access)); self.vector as usize];
        let raw = self.or_zero(site.map(|s| s.valid), &zeros, || {
            let ptr = ir.offset(self.memory(access), base, at);
            if self.bytes(access) == 1 {
                return self.load_bytes(ptr);
            }
            let count = self.vector_count(access);
            let firsts = (0..self.vector).step_by(count as usize);
            firsts.flat_map(|first| self.load_vector(access, ptr, first, count)).collect()
        });
        raw.into_iter().map(|v| ir.widen(dtype, v)).collect()
    }

    /// `count` elements from the `first` on of an address.
    fn load_vector(&self, access: AccessId, ptr: PointerValue<'c>, first: u32, count: u32) -> Vec<V<'c>> {
        let (ir, ty) = (self.ir, self.memory(access));
        let ptr = ir.offset(ty, ptr, ir.long(first.into()));
        let vector = ir.load(ir.vector(ty, count), ptr, count * self.bytes(access));
        (0..count).map(|i| ir.lanes(vector, i, 1)).collect()
    }

    /// A group of bytes, as words.
    fn load_bytes(&self, ptr: PointerValue<'c>) -> Vec<V<'c>> {
        let (ir, words) = (self.ir, self.vector / 4);
        let word = ir.int(32, 0);
        let words = match words {
            1 => vec![ir.load(word, ptr, 4)],
            _ => {
                let vector = ir.load(ir.vector(word, words), ptr, self.vector);
                (0..words).map(|i| ir.lanes(vector, i, 1)).collect()
            }
        };
        let byte = |word, i: i32| ir.cast(Op::Trunc, ir.bin(Op::LShr, word, ir.ci(0, 8 * i)), ir.int(8, 0));
        words.into_iter().flat_map(|word| (0..4).map(move |i| byte(word, i))).collect()
    }

    /// Four bytes as a word.
    fn word(&self, bytes: &[V<'c>]) -> V<'c> {
        let ir = self.ir;
        let part = |(i, &v): (usize, &V<'c>)| {
            ir.bin(Op::Shl, ir.cast(Op::ZExt, v, ir.int(32, 0)), ir.ci(0, 8 * i as i32))
        };
        let word = bytes.iter().enumerate().map(part).reduce(|a, b| ir.bin(Op::Or, a, b));
        word.unwrap_or(ir.ci(0, 0))
    }

    /// Stores the group from `at` on of a `Unit` access, by vector stores.
    pub(super) fn store_group(&self, row: &Row<'c>, store: usize, values: &[V<'c>], at: IntValue<'c>) {
        let ir = self.ir;
        let access = self.kernel.stores[store].access;
        let base = self.store_base(row, store).unwrap_or(row.ptrs[access as usize]);
        let narrow: Vec<V> = values.iter().map(|&v| ir.narrow(self.dtype(access), v)).collect();
        let put = || {
            let ptr = ir.offset(self.memory(access), base, at);
            if self.bytes(access) == 1 {
                let words: Vec<V> = narrow.chunks(4).map(|bytes| self.word(bytes)).collect();
                let value = if let [word] = words[..] { word } else { ir.gather(&words) };
                return ir.store(value, ptr, self.vector);
            }
            let count = self.vector_count(access);
            for (i, part) in (0..).zip(narrow.chunks(count as usize)) {
                let ptr = ir.offset(self.memory(access), ptr, ir.long(i * i64::from(count)));
                ir.store(ir.gather(part), ptr, self.vector_bytes(access));
            }
        };
        match row.store_sites[store] {
            None => put(),
            Some(site) => self.entry.when(site.valid, put),
        }
    }

    /// Stores a per-row value once.
    pub(super) fn store_row(&self, row: &mut Row<'c>, store: usize) {
        let value = self.row_value(row, self.kernel.stores[store].node);
        self.store_element(row, store, value, None, self.ir.long(0));
    }
}
