//! Products between values that no one packed in advance: b is put into panels on the way.

use super::panels::{Element, Place, Task, Term, WIDTH, multiply, pack, units};
use super::{Side, Tile};
use half::bf16;
use pcc_ir::DType;
use std::cell::RefCell;

thread_local! {
    /// Panels of b, or of some of its columns.
    static PANELS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Units packed together, about: b stays in the second-level cache.
const TOGETHER: usize = 128 << 10;

/// The element type when the loops have one for these operands.
pub(super) fn element(types: [DType; 3]) -> Option<Element> {
    match types {
        [DType::F32, DType::F32, DType::F32] => Some(Element::F32),
        [DType::BF16, DType::BF16, DType::F32 | DType::BF16] => Some(Element::Bf16),
        _ => None,
    }
}

/// Computes a tile whose operands are of the given element type.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(tile: &Tile, element: Element) {
    // Adjacent columns of the result are stored at once.
    let tile = if tile.c.row == 1 && tile.c.col != 1 { tile.transposed() } else { *tile };
    let panel = tile.k.div_ceil(element.per_unit()) * WIDTH;
    let step = (TOGETHER / panel.max(1)).max(1) * WIDTH;
    let rows = Place::strided(tile.k, tile.b.row);
    PANELS.with_borrow_mut(|panels| {
        for first in (0..tile.n).step_by(step) {
            let n = step.min(tile.n - first);
            let columns = Place::strided(n, tile.b.col);
            // Whatever was there last, nothing may be left beside the matrix: it could be NaN.
            let size = units(element, tile.k, n).unwrap_or(0);
            if n % WIDTH != 0 || tile.k % element.per_unit() != 0 {
                panels.clear();
            }
            panels.resize(size.max(panels.len()), 0);
            let b = element_at(&tile.b, first);
            // SAFETY: the caller's promise for these columns of b; the panels have room for them.
            unsafe {
                match element {
                    Element::F32 => pack(b.cast::<f32>(), &rows, &columns, panels.as_mut_ptr(), panel),
                    Element::Bf16 => pack(b.cast::<bf16>(), &rows, &columns, panels.as_mut_ptr(), panel),
                }
            }
            let c = Side { start: element_at(&tile.c, first), ..tile.c };
            let task = Task {
                m: tile.m,
                n,
                k: tile.k,
                element,
                a: term(&tile.a),
                b: panels.as_ptr(),
                panel,
                c: term(&c),
                alpha: tile.alpha as f32,
                accumulate: tile.accumulate,
            };
            // SAFETY: the caller's promise; b was packed for these columns right here.
            unsafe { multiply(&task) };
        }
    });
}

fn element_at(side: &Side, column: usize) -> *mut u8 {
    side.start.wrapping_offset(column as isize * side.col * side.dtype.bytes() as isize)
}

pub(super) fn term(side: &Side) -> Term {
    Term { start: side.start, dtype: side.dtype, row: side.row, col: side.col }
}
