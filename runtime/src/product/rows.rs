//! Rows of a table that lies in panels: its row is a column there, one unit in every step of a panel.

use super::blocks::Blocks;
use super::panels::{Element, WIDTH};
use crate::kernels::Operand;
use pcc_ir::DType;
use pcc_ir::program::Rows;
use pcc_ir::storage::BlockMatrix;

/// Rows in a part.
const PART: u64 = 32;

/// Number of parts of `count` rows.
pub(crate) fn parts(count: u64) -> usize {
    count.div_ceil(PART) as usize
}

/// A look-up with its operands' buffers; `base` and `valid` are the device's.
pub(crate) struct LookUp<'a> {
    pub(crate) rows: &'a Rows,
    /// Rows that the run has.
    pub(crate) count: u64,
    pub(crate) table: Operand<'a>,
    /// The table is quantised.
    pub(crate) blocks: Option<BlockMatrix>,
    pub(crate) indices: Operand<'a>,
    pub(crate) out: Operand<'a>,
    pub(crate) base: i64,
    pub(crate) valid: i64,
}

impl LookUp<'_> {
    /// Computes one of the [`parts`].
    pub(crate) fn run_part(&self, part: usize) {
        let rows = self.rows;
        let (k, valid) = (rows.packed.k as usize, self.valid.min(rows.packed.n as i64));
        let first = part as u64 * PART;
        for i in first..(first + PART).min(self.count) {
            let index = self
                .indices
                .load(DType::I32, i as i64)
                .and_then(|x| (x as i64).checked_sub(self.base))
                .unwrap_or(-1);
            let column = (0..valid).contains(&index).then_some(index as usize);
            let out = start(&self.out).wrapping_add(i as usize * k * rows.dtype.bytes());
            if let Some(blocks) = &self.blocks {
                // SAFETY: validation checked that the result has `count` rows of k f32, and that the table's buffer is all of its
                // blocks; the column is inside it.
                unsafe {
                    let out = std::slice::from_raw_parts_mut(out.cast::<f32>(), k);
                    match column {
                        Some(column) => Blocks::new(blocks, &self.table).column(column, 0, out),
                        None => out.fill(0.0),
                    }
                }
                continue;
            }
            // SAFETY: validation checked that the table's buffer is all of its panels and that the result has `count` rows of k
            // elements; the executor lets no one else at this part of it. The column is inside the table.
            unsafe {
                match rows.dtype {
                    DType::BF16 => {
                        copy::<u16>(start(&self.table).cast(), column, Element::Bf16, k, out.cast())
                    }
                    _ => copy::<u32>(start(&self.table).cast(), column, Element::F32, k, out.cast()),
                }
            }
        }
    }
}

fn start(operand: &Operand<'_>) -> *mut u8 {
    operand.window.as_ptr().wrapping_add(operand.offset)
}

/// Copies a column of the panels, or zeros.
///
/// # Safety
/// The column is inside the table, whose panels have k rows; `out` has room for k elements.
unsafe fn copy<T: Copy + Default>(
    table: *const T,
    column: Option<usize>,
    element: Element,
    k: usize,
    out: *mut T,
) {
    let side = element.per_unit();
    let panel = k.div_ceil(side) * side * WIDTH;
    for p in 0..k {
        // SAFETY: the caller's promise.
        unsafe {
            let value = column.map_or(T::default(), |c| {
                let unit = p / side * WIDTH + c % WIDTH;
                table.add(c / WIDTH * panel + unit * side + p % side).read()
            });
            out.add(p).write(value);
        }
    }
}
