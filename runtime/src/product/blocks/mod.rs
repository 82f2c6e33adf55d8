//! Products with a quantised matrix b, which stays quantised in memory and is expanded in registers.
//!
//! b lies in panels of 32 columns as [`super::panels`] has them, but a panel is a list of *groups* of 16 or 32 rows (the format says):
//! the 32 scales, the 32 offsets if there are any, then the codes. Codes of 4 bits: per 8 rows 32 words, one a column, row r in
//! bits `4 r` of the word, less the least code. Codes of 8 bits: per row 32 bytes.
//!
//! Before the first panel lies a header of [`HEADER`] bytes with two words: how many rows of the first group lie before the device's
//! slice, and how many rows the slice has. Rows of a are laid into a scratch with as many zeros before them and behind them, so that
//! nothing else needs to know.
//!
//! A group's sum over k is taken of codes, and scaled once: `y += scale * sum(code * x) + offset * sum(x)`. Codes are expanded in
//! registers, for as many rows of a at a time as there are registers: that costs less than reading expanded ones.

mod avx512;
mod loops;
mod pack;

pub(crate) use pack::pack;

use super::panels::{Element, Path, WIDTH};
use crate::kernels::Operand;
use pcc_ir::source::BlockFormat;
use pcc_ir::storage::{BLOCKS_HEADER, BlockMatrix};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes before the first panel.
pub(crate) const HEADER: usize = BLOCKS_HEADER as usize;
/// Elements of a that lie in the scratch together, about: half of a second-level cache.
const SCRATCH: usize = 128 << 10;

/// A quantised matrix in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) format: BlockFormat,
    /// Groups of rows.
    pub(crate) groups: usize,
    /// The header; panels follow.
    pub(crate) start: *const u8,
}

/// A loop's work: `rows` rows of the scratch times one panel.
#[derive(Clone, Copy)]
struct Work {
    format: BlockFormat,
    groups: usize,
    rows: usize,
    /// Rows of a, `groups * group` elements apart.
    x: *const f32,
    /// Per row and group the sum of a, rows `groups` apart.
    sums: *const f32,
    panel: *const u8,
    /// `rows` times 32 results.
    y: *mut f32,
}

impl Blocks {
    /// The matrix in an operand's buffer, which is all of it.
    pub(crate) fn new(matrix: &BlockMatrix, operand: &Operand<'_>) -> Self {
        let start = operand.window.as_ptr().wrapping_add(operand.offset);
        Self { format: matrix.format, groups: matrix.groups as usize, start }
    }

    /// Rows of b, those of the phase and behind the slice included.
    pub(crate) fn rows(&self) -> usize {
        self.groups * self.format.group as usize
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.groups * self.format.group_bytes()
    }

    /// The rows of b that are the slice's.
    ///
    /// # Safety
    /// The header is valid.
    pub(crate) unsafe fn slice(&self) -> Range<usize> {
        // SAFETY: the caller's promise.
        let [phase, length] = unsafe { self.start.cast::<[u32; 2]>().read_unaligned() }.map(|n| n as usize);
        // Whatever the header says, the rows stay inside.
        let phase = phase.min(self.rows());
        phase..phase + length.min(self.rows() - phase)
    }

    pub(crate) fn panel(&self, index: usize) -> *const u8 {
        self.start.wrapping_add(HEADER + index * self.panel_bytes())
    }

    /// Copies values of one column, from row `first` of the slice on; zeros where the slice has no more rows.
    ///
    /// # Safety
    /// The column is there.
    pub(crate) unsafe fn column(&self, column: usize, first: usize, to: &mut [f32]) {
        let (group, format) = (self.format.group as usize, &self.format);
        let panel = self.panel(column / WIDTH);
        // SAFETY: the caller's promise.
        let slice = unsafe { self.slice() };
        let (there, beyond) = to.split_at_mut(to.len().min(slice.len().saturating_sub(first)));
        beyond.fill(0.0);
        let (mut row, mut rest) = (slice.start + first, there);
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut(rest.len().min(group - row % group));
            let at = panel.wrapping_add(row / group * format.group_bytes());
            // SAFETY: the group is one of the panel's, and the rows are inside the group.
            unsafe { loops::column(format, at, column % WIDTH, row % group, part) };
            row += part.len();
            rest = after;
        }
    }
}

/// A row-major result or operand: first element, elements from a row to the next, and from a column to the next.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) start: *mut f32,
    pub(crate) row: isize,
    pub(crate) col: isize,
}

impl Rows {
    fn at(&self, i: usize, j: usize) -> *mut f32 {
        self.start.wrapping_offset(i as isize * self.row + j as isize * self.col)
    }
}

/// `c[m,n] = alpha * a[m,k] b[k,n]`, or added to c.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) m: usize,
    /// Columns of b and c, from column 0 on.
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Rows,
    pub(crate) b: Blocks,
    pub(crate) c: Rows,
    pub(crate) alpha: f32,
    pub(crate) accumulate: bool,
}

impl Task {
    /// Computes the columns of some panels, by the fastest path of this machine.
    ///
    /// # Safety
    /// a has m rows of k elements, b has panels for n columns and at least k rows, c has m rows and the panels' columns below n, which
    /// nobody else accesses.
    pub(crate) unsafe fn run(&self, panels: Range<usize>) {
        // SAFETY: the caller's promise; the path is there.
        unsafe { self.run_on(Path::best(Element::F32), panels) }
    }

    /// As [`Self::run`], by a given path.
    ///
    /// # Safety
    /// As [`Self::run`], and the machine has the path's instructions.
    pub(crate) unsafe fn run_on(&self, path: Path, panels: Range<usize>) {
        let together = (SCRATCH / self.b.rows().max(1)).max(avx512::ROWS);
        // Equal pieces, so that the last is not a row or two.
        let together = self.m.div_ceil(self.m.div_ceil(together).max(1)).max(1);
        SCRATCHES.with_borrow_mut(|scratch| {
            for first in (0..self.m).step_by(together) {
                let rows = first..(first + together).min(self.m);
                // SAFETY: the caller's promise, for these rows.
                unsafe { self.run_rows(path, rows, panels.clone(), scratch) };
            }
        });
    }

    /// # Safety
    /// As [`Self::run_on`]; the rows are a's.
    unsafe fn run_rows(&self, path: Path, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
        // SAFETY: the caller's promise.
        unsafe { scratch.fill(self, rows.clone()) };
        for panel in panels {
            let columns = panel * WIDTH..((panel + 1) * WIDTH).min(self.n);
            let work = Work {
                format: self.b.format,
                groups: self.b.groups,
                rows: rows.len(),
                x: scratch.x.as_ptr(),
                sums: scratch.sums.as_ptr(),
                panel: self.b.panel(panel),
                y: scratch.y.as_mut_ptr(),
            };
            // SAFETY: the scratch has these rows; the caller's promise for the panel and the path.
            unsafe { work.run(path) };
            for (i, y) in rows.clone().zip(scratch.y.chunks_exact(WIDTH)) {
                for (&y, j) in y.iter().zip(columns.clone()) {
                    let to = self.c.at(i, j);
                    // SAFETY: the caller's promise for c.
                    unsafe { *to = self.alpha * y + if self.accumulate { *to } else { 0.0 } };
                }
            }
        }
    }
}

/// Rows of a and results of one panel.
#[derive(Default)]
struct Scratch {
    /// Rows of as many elements as b has rows, phase included.
    x: Vec<f32>,
    /// Per row and group the sum of a.
    sums: Vec<f32>,
    /// Rows of 32 columns.
    y: Vec<f32>,
}

thread_local! {
    static SCRATCHES: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// # Safety
    /// As [`Task::run`]; the rows are a's.
    unsafe fn fill(&mut self, task: &Task, rows: Range<usize>) {
        let (group, length) = (task.b.format.group as usize, task.b.rows());
        // SAFETY: the caller's promise.
        let slice = unsafe { task.b.slice() };
        self.x.clear();
        self.x.resize(rows.len() * length, 0.0);
        self.sums.clear();
        self.y.resize(rows.len() * WIDTH, 0.0);
        for (i, x) in rows.zip(self.x.chunks_exact_mut(length.max(1))) {
            for (p, x) in x[slice.clone()].iter_mut().take(task.k).enumerate() {
                // SAFETY: row i of a has k elements.
                *x = unsafe { *task.a.at(i, p) };
            }
        }
        self.sums.extend(self.x.chunks_exact(group).map(|x| x.iter().sum::<f32>()));
    }
}

impl Work {
    /// # Safety
    /// The machine has the path's instructions; scratch, panel and result are as the fields say.
    unsafe fn run(&self, path: Path) {
        let mut row = 0;
        while row < self.rows {
            let most = match path {
                Path::Avx512 => avx512::ROWS,
                Path::Avx2 | Path::Scalar => loops::ROWS,
            };
            let left = self.rows - row;
            let rows = left.div_ceil(left.div_ceil(most));
            let part = Work {
                rows,
                x: self.x.wrapping_add(row * self.groups * self.format.group as usize),
                sums: self.sums.wrapping_add(row * self.groups),
                y: self.y.wrapping_add(row * WIDTH),
                ..*self
            };
            // SAFETY: the caller's promise, for some of the rows.
            unsafe {
                match path {
                    Path::Avx512 => avx512::run(&part),
                    Path::Avx2 => loops::run_avx2(&part),
                    Path::Scalar => loops::run_scalar(&part),
                }
            }
            row += rows;
        }
    }
}

#[cfg(test)]
mod tests;
