//! A product as one run has it: its extents resolved, loops that step alike joined.

use pcc_ir::Extent;
use pcc_ir::program::{Gemm, Matrix, PackedMatrix};
use pcc_ir::storage::BlockMatrix;

/// [`Gemm`] in numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
    pub(crate) alpha: f64,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Matrix,
    /// Outer loops.
    pub(crate) batch: Vec<Loop>,
    pub(crate) accumulate: bool,
    /// b is all of a parameter in panels.
    pub(crate) packed: Option<PackedMatrix>,
    /// That parameter is quantised.
    pub(crate) blocks: Option<BlockMatrix>,
}

/// An outer loop: extent, and strides of a, b and c in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) extent: u64,
    pub(crate) a: i64,
    pub(crate) b: i64,
    pub(crate) c: i64,
}

impl Shape {
    /// The product with extents as `extent` says, asked in the order of [`pcc_ir::program::InstrKind::extents`].
    pub(crate) fn new(g: &Gemm, mut extent: impl FnMut(&Extent) -> u64) -> Self {
        let (m, n, k) = (extent(&g.m), extent(&g.n), extent(&g.k));
        let loops = g.batch.iter().map(|d| Loop { extent: extent(&d.extent), a: d.a, b: d.b, c: d.c });
        let mut shape = Self {
            m,
            n,
            k,
            alpha: g.alpha,
            a: g.a,
            b: g.b,
            c: g.c,
            batch: loops.filter(|l| l.extent != 1).collect(),
            accumulate: g.accumulate,
            packed: g.packed,
            blocks: None,
        };
        shape.join();
        shape
    }

    /// Loops that go on where the rows or columns end are more rows or columns: at full length a clipped sequence is one with the rows
    /// of the batch again, and the product is as large as it can be.
    fn join(&mut self) {
        for at in (0..self.batch.len()).rev() {
            if self.join_rows(self.batch[at]) || self.join_columns(self.batch[at]) {
                self.batch.remove(at);
            }
        }
    }

    fn join_rows(&mut self, l: Loop) -> bool {
        let joined =
            if l.b == 0 { step((self.m, self.a.row, self.c.row), (l.extent, l.a, l.c)) } else { None };
        if let Some((extent, a, c)) = joined {
            (self.m, self.a.row, self.c.row) = (extent, a, c);
        }
        joined.is_some()
    }

    fn join_columns(&mut self, l: Loop) -> bool {
        let joined = if l.a == 0 && self.packed.is_none() {
            step((self.n, self.b.col, self.c.col), (l.extent, l.b, l.c))
        } else {
            None
        };
        if let Some((extent, b, c)) = joined {
            (self.n, self.b.col, self.c.col) = (extent, b, c);
        }
        joined.is_some()
    }
}

/// Two nested loops, each an extent and two strides, as one, when they step like one in either order.
fn step(x: (u64, i64, i64), y: (u64, i64, i64)) -> Option<(u64, i64, i64)> {
    let within = |inner: (u64, i64, i64), outer: (u64, i64, i64)| {
        let reach = |stride: i64| i64::try_from(inner.0).ok().and_then(|n| n.checked_mul(stride));
        let goes_on = reach(inner.1) == Some(outer.1) && reach(inner.2) == Some(outer.2);
        if goes_on { Some((inner.0.checked_mul(outer.0)?, inner.1, inner.2)) } else { None }
    };
    if x.0 == 1 { Some(y) } else { within(x, y).or_else(|| within(y, x)) }
}
