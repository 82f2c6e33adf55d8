//! A whole product: rows are copied to a scratch, block by block, and multiplied with one panel after another.

use super::{Block, CHUNK, Element, Path, ROW, WIDTH, avx2, avx512, scalar};
use half::{bf16, f16};
use pcc_ir::DType;
use std::cell::RefCell;
use std::ops::Range;

/// Units of a that lie in the scratch together, about: half of a second-level cache.
const SCRATCH: usize = 96 << 10;
/// Chunks of k that all rows of the scratch take before the next ones, where sums may rest in the result: more rows share a
/// walk through b then.
const DEPTH: usize = 3;

/// A strided matrix: address of the first element, strides in elements.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    pub(crate) start: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) row: isize,
    pub(crate) col: isize,
}

/// `c[m,n] = alpha * a[m,k] b[k,n]`, or added to c, where b lies in panels.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) m: usize,
    /// Columns, from the first of the first panel on.
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) element: Element,
    /// Of the element's type.
    pub(crate) a: Term,
    /// First unit of the first panel.
    pub(crate) b: *const u32,
    /// Units from a panel to the next.
    pub(crate) panel: usize,
    /// f32, bf16 or f16.
    pub(crate) c: Term,
    pub(crate) alpha: f32,
    pub(crate) accumulate: bool,
}

/// Sums of one block, before they are scaled, rounded or put where columns are not adjacent.
type Sums = [f32; MOST_SUMS];

/// Sums of the largest block.
const MOST_SUMS: usize = 14 * WIDTH;

const _: () = {
    // Any path's rows and panels at once: what is too small for a block is memory out of bounds.
    let mut rows = 1;
    while rows <= avx512::ROWS {
        assert!(rows * avx512::panels(rows) * WIDTH <= MOST_SUMS);
        rows += 1;
    }
    assert!(avx2::ROWS * WIDTH <= MOST_SUMS && scalar::ROWS * WIDTH <= MOST_SUMS);
};

thread_local! {
    static ROWS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Computes the product by the fastest path of this machine.
///
/// # Safety
/// Every element of a and c that the extents reach is valid and aligned, b has panels for n columns and k rows; c is not accessed by
/// anyone else and overlaps neither a nor b.
pub(crate) unsafe fn multiply(task: &Task) {
    // SAFETY: the caller's promise; the path is there.
    unsafe { multiply_on(Path::best(task.element), task) }
}

/// Computes the product by a given path.
///
/// # Safety
/// As [`multiply`], and the machine has the path's instructions.
pub(crate) unsafe fn multiply_on(path: Path, task: &Task) {
    if task.m == 0 || task.n == 0 {
        return;
    }
    let units = task.k.div_ceil(task.element.per_unit());
    let chunks = units.div_ceil(CHUNK).max(1);
    // Equal blocks, as large as the path has loops for.
    let rows = task.m.div_ceil(task.m.div_ceil(path.rows(task.element)));
    let all = task.m.next_multiple_of(rows) * chunks * ROW;
    let depth = if all > SCRATCH && keeps_sums(task) { DEPTH.min(chunks) } else { chunks };
    let together = (SCRATCH / (rows * depth * ROW)).max(1) * rows;
    ROWS.with_borrow_mut(|scratch| {
        let needed = task.m.min(together).next_multiple_of(rows) * depth * ROW;
        if scratch.len() < needed {
            scratch.resize(needed, 0);
        }
        for first in (0..task.m).step_by(together) {
            let last = (first + together).min(task.m);
            for chunk in (0..chunks).step_by(depth) {
                let step = Step {
                    path,
                    rows: first..last,
                    block: rows,
                    units: chunk * CHUNK..((chunk + depth) * CHUNK).min(units),
                };
                // SAFETY: the caller's promise; the scratch has room for these rows and units.
                unsafe {
                    step.copy_rows(task, scratch);
                    step.with_panels(task, scratch);
                }
            }
        }
    });
}

/// Whether sums can rest in the result between steps along k and go on from there: f32 as they are, where nothing else is.
fn keeps_sums(task: &Task) -> bool {
    task.c.dtype == DType::F32 && task.c.col == 1 && task.alpha == 1.0 && !task.accumulate
}

/// Rows of a, as far along k as they lie in the scratch together.
struct Step {
    path: Path,
    rows: Range<usize>,
    /// Rows worked on together.
    block: usize,
    /// Units of k, from a multiple of [`CHUNK`] on.
    units: Range<usize>,
}

impl Step {
    /// Units of the scratch that a block of `rows` rows takes.
    fn size(&self, rows: usize) -> usize {
        rows * self.units.len().div_ceil(CHUNK).max(1) * ROW
    }

    /// Blocks of rows: the first, and how many.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let (block, end) = (self.block, self.rows.end);
        self.rows.clone().step_by(block).map(move |start| (start, block.min(end - start)))
    }

    /// Copies rows of a to the scratch: blocks, in a block chunks of k, in a chunk all rows.
    ///
    /// # Safety
    /// These rows of a are valid.
    unsafe fn copy_rows(&self, task: &Task, scratch: &mut [u32]) {
        for (start, count) in self.blocks() {
            let to = &mut scratch[self.size(start - self.rows.start)..][..self.size(count)];
            for (chunk, to) in to.chunks_exact_mut(count * ROW).enumerate() {
                // SAFETY: the caller's promise.
                unsafe { copy_chunk(task, start, self.units.start / CHUNK + chunk, to) };
            }
        }
    }

    /// Multiplies the rows in the scratch with all panels.
    ///
    /// # Safety
    /// As [`multiply_on`]; the scratch holds the step's rows; with units before these the result holds their sums.
    unsafe fn with_panels(&self, task: &Task, scratch: &[u32]) {
        let all = task.n.div_ceil(WIDTH);
        let resumes = self.units.start > 0;
        let mut sums: Sums = [0.0; MOST_SUMS];
        let mut panel = 0;
        while panel < all {
            let mut step = self.path.panels(self.block);
            if all - panel < step {
                step = 1;
            }
            let columns = panel * WIDTH..((panel + step) * WIDTH).min(task.n);
            let direct = keeps_sums(task) && columns.len() == step * WIDTH;
            for (start, count) in self.blocks() {
                // The last block of rows may be shorter, and have loops for fewer panels.
                let together = if self.path.panels(count) == step { step } else { 1 };
                if resumes && !direct {
                    // SAFETY: the caller's promise for these elements of c, which are f32.
                    unsafe { resume(task, start, count, columns.clone(), &mut sums, step * WIDTH) };
                }
                for p in (0..step).step_by(together) {
                    let (c, c_row) = match direct {
                        true => (at(&task.c, start, columns.start + p * WIDTH).cast::<f32>(), task.c.row),
                        false => (sums.as_mut_ptr().wrapping_add(p * WIDTH), (step * WIDTH) as isize),
                    };
                    let b = (panel + p) * task.panel + self.units.start * WIDTH;
                    let work = Block {
                        element: task.element,
                        rows: count,
                        panels: together,
                        units: self.units.len(),
                        a: scratch[self.size(start - self.rows.start)..].as_ptr(),
                        b: task.b.wrapping_add(b),
                        panel: task.panel,
                        c,
                        c_row,
                        resumes,
                    };
                    // SAFETY: the caller's promise; c is either the task's, whole panels of it, or the sums, which have room.
                    unsafe { work.run(self.path) };
                }
                if !direct {
                    // SAFETY: the caller's promise for these elements of c.
                    unsafe { finish(task, start, count, columns.clone(), &sums, step * WIDTH) };
                }
            }
            panel += step;
        }
    }
}

fn at(term: &Term, i: usize, j: usize) -> *mut u8 {
    let elements = i as isize * term.row + j as isize * term.col;
    term.start.wrapping_offset(elements * term.dtype.bytes() as isize)
}

/// Copies rows `start..` of one chunk of k, as many as `to` has room for.
///
/// # Safety
/// These rows of a are valid.
unsafe fn copy_chunk(task: &Task, start: usize, chunk: usize, to: &mut [u32]) {
    let per_unit = task.element.per_unit();
    let first = chunk * CHUNK * per_unit;
    let length = task.k.saturating_sub(first).min(CHUNK * per_unit);
    for (row, to) in to.chunks_exact_mut(ROW).enumerate() {
        let from = at(&task.a, start + row, first);
        // SAFETY: the caller's promise: row `start + row` has `length` elements from `first` on, `col` apart; the row of
        // the scratch has room for a chunk.
        unsafe {
            match task.element {
                Element::F32 => copy(from.cast(), task.a.col, length, to.as_mut_ptr()),
                Element::Bf16 => {
                    let units = length.div_ceil(2);
                    if length % 2 == 1 {
                        to[units - 1] = 0;
                    }
                    copy(from.cast(), task.a.col, length, to.as_mut_ptr().cast::<u16>());
                }
            }
        }
    }
}

/// # Safety
/// `from` has `count` elements, `stride` apart; `to` has room for as many.
unsafe fn copy<T: Copy>(from: *const T, stride: isize, count: usize, to: *mut T) {
    // SAFETY: the caller's promise.
    unsafe {
        if stride == 1 {
            std::ptr::copy_nonoverlapping(from, to, count);
        } else {
            for i in 0..count {
                to.add(i).write(from.wrapping_offset(i as isize * stride).read());
            }
        }
    }
}

/// Takes sums back from where they rest in c.
///
/// # Safety
/// These elements of c are valid f32 that nobody else accesses.
unsafe fn resume(
    task: &Task,
    start: usize,
    count: usize,
    columns: Range<usize>,
    sums: &mut Sums,
    width: usize,
) {
    for row in 0..count {
        let sums = &mut sums[row * width..][..columns.len()];
        for (sum, column) in sums.iter_mut().zip(columns.clone()) {
            // SAFETY: the caller's promise.
            *sum = unsafe { at(&task.c, start + row, column).cast::<f32>().read() };
        }
    }
}

/// Scales, adds and rounds sums, and puts them where they belong.
///
/// # Safety
/// These elements of c are valid, and nobody else accesses them.
unsafe fn finish(task: &Task, start: usize, count: usize, columns: Range<usize>, sums: &Sums, width: usize) {
    for row in 0..count {
        let sums = &sums[row * width..][..columns.len()];
        for (&sum, column) in sums.iter().zip(columns.clone()) {
            let to = at(&task.c, start + row, column);
            let sum = task.alpha * sum;
            // SAFETY: the caller's promise.
            unsafe {
                match task.c.dtype {
                    DType::BF16 => {
                        let old = if task.accumulate { to.cast::<bf16>().read().to_f32() } else { 0.0 };
                        to.cast::<bf16>().write(bf16::from_f32(old + sum));
                    }
                    DType::F16 => {
                        let old = if task.accumulate { to.cast::<f16>().read().to_f32() } else { 0.0 };
                        to.cast::<f16>().write(f16::from_f32(old + sum));
                    }
                    _ => {
                        let old = if task.accumulate { to.cast::<f32>().read() } else { 0.0 };
                        to.cast::<f32>().write(old + sum);
                    }
                }
            }
        }
    }
}
