//! Kernels that may run with the product before them, tile by tile, while the product's results are in a cache.

use super::{Base, BatchDim, FuncProgram, Gemm, InstrKind, Launch, Loc, Matrix};
use crate::extent::Extent;
use crate::kernel::{Kernel, KernelId, Node};
use crate::strides::are_injective;
use crate::types::DType;
use cranelift_entity::PrimaryMap;

/// Indices of a batch, rows and columns.
type Space = [i64; 3];

/// Elements of a product's iteration space in memory: index (h, i, j) lies the sum of `h`, `i` and `j` times their strides from `loc`, in
/// elements.
#[derive(Clone, Copy, PartialEq)]
struct Elements {
    loc: Loc,
    dtype: DType,
    strides: [i64; 3],
}

impl FuncProgram {
    /// Whether instruction `at` is a product and the next one a kernel over the same rows and columns that for each element reads of
    /// the product's result that element alone, and writes nothing that the product still needs. Then each tile of the kernel may run
    /// as soon as that tile of the product is done: nothing else can tell.
    pub fn has_epilogue(&self, at: usize, kernels: &PrimaryMap<KernelId, Kernel>) -> bool {
        let fits = |(gemm, launch, kernel): (&Gemm, &Launch, &Kernel)| match gemm.batch.is_empty() {
            true => self.fits(gemm, &over_batch(gemm, launch)?, kernel),
            false => None,
        };
        self.product_and_kernel(at, kernels).is_some_and(|pair| fits(pair).unwrap_or(false))
    }

    /// The launch of the kernel behind the product at `at` over three dims: a batch (of one index if there is none), the result's rows, its
    /// columns; if it may run with it as [`FuncProgram::has_epilogue`] says. Rows and columns that the kernel has as one dim are two here.
    pub fn epilogue_launch(&self, at: usize, kernels: &PrimaryMap<KernelId, Kernel>) -> Option<Launch> {
        let (gemm, launch, kernel) = self.product_and_kernel(at, kernels)?;
        let apart = unmerged(gemm, launch);
        let launch = over_batch(gemm, apart.as_ref().unwrap_or(launch))?;
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
        if !by_element(kernel) {
            return Some(false);
        }
        let space = space(gemm)?;
        let [h, m, n] = space;
        let c = elements(&gemm.c, batch_stride(gemm, |d| d.c)).within(space);
        let Some(accesses) = accesses(launch, kernel, space) else { return Some(false) };
        let k = i64::try_from(gemm.k.full).ok()?;
        let a = elements(&gemm.a, batch_stride(gemm, |d| d.a));
        let b = elements(&gemm.b, batch_stride(gemm, |d| d.b));
        for (number, (access, write)) in accesses.iter().enumerate() {
            let apart = |other: &Elements, of: Space| {
                Some(
                    !self.one_buffer(access.loc.base, other.loc.base) || {
                        let (from, to) = access.bytes(space)?;
                        let (start, end) = other.bytes(of)?;
                        to <= start || end <= from
                    },
                )
            };
            // Of the product's result each element is its own.
            if *access != c && !apart(&c, space)? {
                return Some(false);
            }
            if !write {
                continue;
            }
            // All of a matrix in panels is in the way: its strides say nothing.
            let panels = gemm.packed.is_some() && self.one_buffer(access.loc.base, b.loc.base);
            if panels || !access.is_injective(space) || !apart(&a, [h, m, k])? || !apart(&b, [h, k, n])? {
                return Some(false);
            }
            for (other, (o, _)) in accesses.iter().enumerate() {
                if other != number && o != access && !apart(o, space)? {
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
    let space = space(gemm)?;
    let c = elements(&gemm.c, batch_stride(gemm, |d| d.c)).within(space);
    let accesses = accesses(launch, kernel, space)?;
    Some(accesses.iter().map(|(access, write)| !write && *access == c).collect())
}

fn space(gemm: &Gemm) -> Option<Space> {
    let batch = gemm.batch.first().map_or(1, |d| d.extent.full);
    let of = |extent| i64::try_from(extent).ok();
    Some([of(batch)?, of(gemm.m.full)?, of(gemm.n.full)?])
}

fn batch_stride(gemm: &Gemm, of: fn(&BatchDim) -> i64) -> i64 {
    gemm.batch.first().map_or(0, of)
}

/// A launch whose last dim is the rows and columns of the product's result, one row after another, over both.
fn unmerged(gemm: &Gemm, launch: &Launch) -> Option<Launch> {
    let (all, outer) = launch.extents.split_last()?;
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
    let strides: Option<Vec<Vec<i64>>> = launch
        .strides
        .chunks_exact(launch.extents.len())
        .map(|strides| {
            let (&last, outer) = strides.split_last()?;
            Some([outer, &[last.checked_mul(n)?, last]].concat())
        })
        .collect();
    let extents = [outer, &[gemm.m.clone(), gemm.n.clone()]].concat();
    Some(Launch { extents, strides: strides?.concat(), ..launch.clone() })
}

/// A launch over the product's rows and columns, and its batch of one dim if it has one, over all three.
fn over_batch(gemm: &Gemm, launch: &Launch) -> Option<Launch> {
    let one = Extent::full(1);
    let batch = match gemm.batch.as_slice() {
        [] => &one,
        [dim] => &dim.extent,
        _ => return None,
    };
    // How many of the three dims, the first ones, the launch lacks: each is of one index.
    let missing = match launch.extents.as_slice() {
        [b, m, n] if (b, m, n) == (batch, &gemm.m, &gemm.n) => 0,
        [m, n] if *batch == one && (m, n) == (&gemm.m, &gemm.n) => 1,
        [n] if *batch == one && gemm.m == one && *n == gemm.n => 2,
        _ => return None,
    };
    let strides = launch.strides.chunks_exact(launch.extents.len());
    let strides = strides.map(|s| [&[0, 0][..missing], s].concat()).collect::<Vec<_>>().concat();
    let extents = vec![batch.clone(), gemm.m.clone(), gemm.n.clone()];
    Some(Launch { extents, strides, ..launch.clone() })
}

/// What each access of a launch over three dims touches, and whether it writes; `None` where the launch has fewer.
fn accesses(launch: &Launch, kernel: &Kernel, space: Space) -> Option<Vec<(Elements, bool)>> {
    let (strides, _) = launch.strides.as_chunks();
    let all: Vec<(Elements, bool)> = kernel
        .accesses
        .iter()
        .zip(&launch.ptrs)
        .zip(strides)
        .map(|((a, &loc), &strides)| (Elements { loc, dtype: a.dtype, strides }.within(space), a.write))
        .collect();
    (all.len() == kernel.accesses.len()).then_some(all)
}

fn elements(matrix: &Matrix, batch: i64) -> Elements {
    Elements { loc: matrix.loc, dtype: matrix.dtype, strides: [batch, matrix.row, matrix.col] }
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
    fn within(mut self, space: Space) -> Self {
        self.strides.iter_mut().zip(space).filter(|(_, extent)| *extent == 1).for_each(|(s, _)| *s = 0);
        self
    }

    /// The bytes that the elements lie in; `None` where that overflows.
    fn bytes(&self, space: Space) -> Option<(i64, i64)> {
        let size = self.dtype.bytes() as i64;
        let at = i64::try_from(self.loc.offset).ok()?;
        let (mut first, mut last) = (0i64, 1i64);
        for (extent, stride) in space.into_iter().zip(self.strides) {
            let reach = extent.max(1).checked_sub(1)?.checked_mul(stride)?;
            first = first.checked_add(reach.min(0))?;
            last = last.checked_add(reach.max(0))?;
        }
        Some((at.checked_add(first.checked_mul(size)?)?, at.checked_add(last.checked_mul(size)?)?))
    }

    /// Whether no two indices are one element.
    fn is_injective(&self, space: Space) -> bool {
        are_injective(space.map(i64::unsigned_abs).into_iter().zip(self.strides))
    }
}

#[cfg(test)]
mod tests;
