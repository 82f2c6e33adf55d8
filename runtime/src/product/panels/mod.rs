//! Products with a matrix b that lies in *panels*: 32 columns side by side, so that a step along k reads two cache lines, and a walk
//! through b is one sequential stream whatever the number of rows of a.
//!
//! Elements are seen in *units* of 32 bits: an f32, or two bf16 that follow each other along k. Panel j holds, for every unit of k,
//! the units of columns `32 j .. 32 j + 32`; what a panel has beyond the matrix is zero.
//!
//! Rows of a are copied to a scratch first (as they lie: rows stay rows), where their distance is a constant: the loops then need one
//! address for all rows, and no two rows fight for a set of the cache. A sum takes its terms in ascending k, whatever the shape:
//! a row's result does not depend on how many rows there are. All paths give the same bits for f32 where the machine has FMA.

mod avx2;
mod avx512;
mod pack;
mod scalar;
pub(crate) mod task;

pub(crate) use pack::{Place, Rounded, pack, units};
pub(crate) use task::{Task, Term, multiply};

/// Columns of a panel.
pub(crate) const WIDTH: usize = pcc_ir::storage::PANEL as usize;

/// Units of k that a row of the scratch has before the next row begins.
const CHUNK: usize = 256;
/// Distance of rows in the scratch: no multiple of a large power of two.
const ROW: usize = CHUNK + 16;

/// Type of the elements of a and b, which are of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    Bf16,
}

impl Element {
    /// Elements of k in a unit.
    pub(crate) fn per_unit(self) -> usize {
        match self {
            Element::F32 => 1,
            Element::Bf16 => 2,
        }
    }
}

/// Which instructions compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Avx512,
    Avx2,
    Scalar,
}

impl Path {
    /// Every path, the fastest first.
    pub(crate) const ALL: [Path; 3] = [Path::Avx512, Path::Avx2, Path::Scalar];

    /// Whether this machine has the path's instructions for these elements.
    pub(crate) fn is_there(self, element: Element) -> bool {
        match (self, element) {
            (Path::Avx512, Element::F32) => is_x86_feature_detected!("avx512f"),
            (Path::Avx512, Element::Bf16) => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
            }
            (Path::Avx2, _) => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            (Path::Scalar, _) => true,
        }
    }

    /// The fastest path there is.
    pub(crate) fn best(element: Element) -> Path {
        Path::ALL.into_iter().find(|p| p.is_there(element)).unwrap_or(Path::Scalar)
    }

    /// Rows of a that are worked on together, at most.
    fn rows(self, element: Element) -> usize {
        match self {
            Path::Avx512 => avx512::ROWS,
            Path::Avx2 => avx2::rows(element),
            Path::Scalar => scalar::ROWS,
        }
    }

    /// Panels that are worked on together for so many rows: few rows alone would leave the adders waiting for each other.
    fn panels(self, rows: usize) -> usize {
        match self {
            Path::Avx512 => avx512::panels(rows),
            Path::Avx2 | Path::Scalar => 1,
        }
    }
}

/// What a loop works on: `rows` rows of the scratch times `panels` adjacent panels.
#[derive(Clone, Copy)]
struct Block {
    element: Element,
    rows: usize,
    panels: usize,
    /// Units of k.
    units: usize,
    /// The scratch: chunks of [`CHUNK`] units of k; in a chunk the rows, [`ROW`] units apart.
    a: *const u32,
    /// First unit of the first panel, and units from a panel to the next.
    b: *const u32,
    panel: usize,
    /// First element of the block of the result and elements from a row to the next; columns are adjacent.
    c: *mut f32,
    c_row: isize,
    /// Whether the sums go on from what the result holds: the terms of smaller k.
    resumes: bool,
}

impl Block {
    /// Computes the block.
    ///
    /// # Safety
    /// The machine has the path's instructions; scratch and panels have the block's units; the result has `rows` rows of
    /// `32 * panels` columns, which nobody else accesses; the path has loops for so many rows and panels.
    unsafe fn run(&self, path: Path) {
        // SAFETY: the caller's promise.
        unsafe {
            match path {
                Path::Avx512 => avx512::run(self),
                Path::Avx2 => avx2::run(self),
                Path::Scalar => scalar::run(self),
            }
        }
    }
}

#[cfg(test)]
mod tests;
