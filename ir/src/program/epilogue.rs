//! Kernels that may run with the product before them, tile by tile, while the product's results are in a cache.

use super::{Base, FuncProgram, Gemm, InstrKind, Launch, Loc, Matrix};
use crate::extent::Extent;
use crate::kernel::{Kernel, KernelId, Node};
use crate::strides::are_injective;
use crate::types::DType;
use cranelift_entity::PrimaryMap;

/// Elements of a product's iteration space in memory: index (i, j) lies `i * row + j * col` elements from `loc`.
#[derive(Clone, Copy, PartialEq)]
struct Elements {
    loc: Loc,
    dtype: DType,
    row: i64,
    col: i64,
}

impl FuncProgram {
    /// Whether instruction `at` is a product and the next one a kernel over the same rows and columns that for each element reads of
    /// the product's result that element alone, and writes nothing that the product still needs. Then each tile of the kernel may run
    /// as soon as that tile of the product is done: nothing else can tell.
    pub fn has_epilogue(&self, at: usize, kernels: &PrimaryMap<KernelId, Kernel>) -> bool {
        let pair = self.product_and_kernel(at, kernels);
        pair.is_some_and(|(gemm, launch, kernel)| self.fits(gemm, launch, kernel).unwrap_or(false))
    }

    /// The launch of the kernel behind the product at `at` over the result's rows and columns, if it may run with it as
    /// [`FuncProgram::has_epilogue`] says. Rows and columns that the kernel has as one dim are two here.
    pub fn epilogue_launch(&self, at: usize, kernels: &PrimaryMap<KernelId, Kernel>) -> Option<Launch> {
        let (gemm, launch, kernel) = self.product_and_kernel(at, kernels)?;
        let launch = unmerged(gemm, launch).unwrap_or_else(|| launch.clone());
        self.fits(gemm, &launch, kernel)?.then_some(launch)
    }

    fn product_and_kernel<'a>(
        &'a self,
        at: usize,
        kernels: &'a PrimaryMap<KernelId, Kernel>,
    ) -> Option<(&'a Gemm, &'a Launch, &'a Kernel)> {
        let [product, next] = self.instrs.get(at..)?.first_chunk()?;
        let (InstrKind::Gemm(gemm), InstrKind::Kernel(launch)) = (&product.kind, &next.kind) else {
            return None;
        };
        let kernel = kernels.get(launch.kernel)?;
        // One of them may run once for a team, the other on each device.
        let matches = product.once == next.once && kernel.rank as usize == launch.extents.len();
        matches.then_some((gemm, launch, kernel))
    }

    /// `None` where sizes overflow.
    fn fits(&self, gemm: &Gemm, launch: &Launch, kernel: &Kernel) -> Option<bool> {
        let same_space = match launch.extents.as_slice() {
            [rows, cols] => (rows, cols) == (&gemm.m, &gemm.n),
            [cols] => gemm.m == Extent::full(1) && *cols == gemm.n,
            _ => false,
        };
        if !same_space || !gemm.batch.is_empty() || !by_element(kernel) {
            return Some(false);
        }
        let (m, n) = (i64::try_from(gemm.m.full).ok()?, i64::try_from(gemm.n.full).ok()?);
        let c = elements(&gemm.c).within(m, n);
        let Some(accesses) = accesses(launch, kernel, m, n) else { return Some(false) };
        let k = i64::try_from(gemm.k.full).ok()?;
        let (a, b) = (elements(&gemm.a), elements(&gemm.b));
        for (number, (access, write)) in accesses.iter().enumerate() {
            let apart = |other: &Elements, rows, cols| {
                Some(
                    !self.one_buffer(access.loc.base, other.loc.base) || {
                        let (from, to) = access.bytes(m, n)?;
                        let (start, end) = other.bytes(rows, cols)?;
                        to <= start || end <= from
                    },
                )
            };
            // Of the product's result each element is its own.
            if *access != c && !apart(&c, m, n)? {
                return Some(false);
            }
            if !write {
                continue;
            }
            // All of a matrix in panels is in the way: its strides say nothing.
            let panels = gemm.packed.is_some() && self.one_buffer(access.loc.base, b.loc.base);
            if panels || !access.is_injective(m, n) || !apart(&a, m, k)? || !apart(&b, k, n)? {
                return Some(false);
            }
            for (other, (o, _)) in accesses.iter().enumerate() {
                if other != number && o != access && !apart(o, m, n)? {
                    return Some(false);
                }
            }
        }
        Some(true)
    }

    /// Whether two addresses may lie in one buffer.
    fn one_buffer(&self, a: Base, b: Base) -> bool {
        // An argument that is updated in place is its result's buffer.
        let buffer = |base| match base {
            Base::Frame => None,
            Base::Slot(s) => Some(self.in_place.iter().find(|p| p.1 == s).map_or(s, |p| p.0)),
        };
        buffer(a) == buffer(b)
    }
}

/// For each access of an epilogue, launched as [`FuncProgram::epilogue_launch`] says: whether it reads the product's result.
pub(crate) fn reads_of_result(gemm: &Gemm, launch: &Launch, kernel: &Kernel) -> Option<Vec<bool>> {
    let (m, n) = (i64::try_from(gemm.m.full).ok()?, i64::try_from(gemm.n.full).ok()?);
    let c = elements(&gemm.c).within(m, n);
    let accesses = accesses(launch, kernel, m, n)?;
    Some(accesses.iter().map(|(access, write)| !write && *access == c).collect())
}

/// A launch over one dim that is the rows and columns of the product's result, one row after another, over both.
fn unmerged(gemm: &Gemm, launch: &Launch) -> Option<Launch> {
    let [all] = launch.extents.as_slice() else { return None };
    let n = gemm.n.full;
    let mut rows = gemm.m.clone();
    rows.full = rows.full.checked_mul(n)?;
    if let Some(clip) = &mut rows.clip {
        clip.inner = clip.inner.checked_mul(n)?;
    }
    if gemm.m.full == 1 || gemm.n.clip.is_some() || *all != rows {
        return None;
    }
    let n = i64::try_from(n).ok()?;
    let strides: Option<Vec<[i64; 2]>> =
        launch.strides.iter().map(|&s| Some([s.checked_mul(n)?, s])).collect();
    let (extents, strides) = (vec![gemm.m.clone(), gemm.n.clone()], strides?.concat());
    Some(Launch { extents, strides, ..launch.clone() })
}

/// What each access of a launch over one or two dims touches, and whether it writes; `None` where the launch has fewer.
fn accesses(launch: &Launch, kernel: &Kernel, m: i64, n: i64) -> Option<Vec<(Elements, bool)>> {
    let rank = launch.extents.len();
    let all: Vec<(Elements, bool)> = kernel
        .accesses
        .iter()
        .zip(&launch.ptrs)
        .zip(launch.strides.chunks_exact(rank.max(1)))
        .map(|((a, &loc), s)| {
            let row = if rank == 2 { s[0] } else { 0 };
            (Elements { loc, dtype: a.dtype, row, col: s[s.len() - 1] }.within(m, n), a.write)
        })
        .collect();
    (all.len() == kernel.accesses.len()).then_some(all)
}

fn elements(matrix: &Matrix) -> Elements {
    Elements { loc: matrix.loc, dtype: matrix.dtype, row: matrix.row, col: matrix.col }
}

/// Whether what a kernel does for an element depends on that element's loads alone, at addresses that are fixed.
fn by_element(kernel: &Kernel) -> bool {
    let alone = |node: &Node| match node {
        Node::LoadAt { .. } | Node::Index(_) | Node::RowReduce(..) => false,
        Node::Load(_)
        | Node::Const { .. }
        | Node::Scalar(_)
        | Node::Unary(..)
        | Node::Binary(..)
        | Node::Compare(..)
        | Node::Select(..)
        | Node::Convert(..) => true,
    };
    kernel.nodes.iter().all(alone) && kernel.stores.iter().all(|s| s.at.is_none())
}

impl Elements {
    /// Without strides along dims of one index, which say nothing.
    fn within(self, rows: i64, cols: i64) -> Self {
        let stride = |extent, stride| if extent == 1 { 0 } else { stride };
        Self { row: stride(rows, self.row), col: stride(cols, self.col), ..self }
    }

    /// The bytes that `rows * cols` elements lie in; `None` where that overflows.
    fn bytes(&self, rows: i64, cols: i64) -> Option<(i64, i64)> {
        let size = self.dtype.bytes() as i64;
        let (row, col) = (rows.max(1).checked_sub(1)?, cols.max(1).checked_sub(1)?);
        let (row, col) = (row.checked_mul(self.row)?, col.checked_mul(self.col)?);
        let at = i64::try_from(self.loc.offset).ok()?;
        let first = row.min(0).checked_add(col.min(0))?.checked_mul(size)?;
        let last = row.max(0).checked_add(col.max(0))?.checked_add(1)?.checked_mul(size)?;
        Some((at.checked_add(first)?, at.checked_add(last)?))
    }

    /// Whether no two indices are one element.
    fn is_injective(&self, rows: i64, cols: i64) -> bool {
        are_injective([(rows.unsigned_abs(), self.row), (cols.unsigned_abs(), self.col)])
    }
}

#[cfg(test)]
mod tests;
