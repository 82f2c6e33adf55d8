//! Putting a matrix into panels.

use super::{Element, WIDTH};
use half::bf16;

/// Where an index of a matrix comes from and goes to: offset in the source, in elements, and index in the panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) from: isize,
    pub(crate) to: usize,
}

impl Place {
    /// `count` indices, `stride` elements apart, one after another in the panels.
    pub(crate) fn strided(count: usize, stride: isize) -> Vec<Place> {
        (0..count).map(|i| Place { from: i as isize * stride, to: i }).collect()
    }
}

/// Units that a matrix of k rows and n columns takes in panels; `None` when that overflows.
pub(crate) fn units(element: Element, k: usize, n: usize) -> Option<usize> {
    n.div_ceil(WIDTH).checked_mul(k.div_ceil(element.per_unit()))?.checked_mul(WIDTH)
}

/// An element that is copied or rounded to what the panels hold.
pub(crate) trait Packed: Copy {
    type Held: Copy;
    const ELEMENT: Element;
    fn held(self) -> Self::Held;
}

impl Packed for f32 {
    type Held = f32;
    const ELEMENT: Element = Element::F32;
    fn held(self) -> f32 {
        self
    }
}

impl Packed for bf16 {
    type Held = bf16;
    const ELEMENT: Element = Element::Bf16;
    fn held(self) -> bf16 {
        self
    }
}

/// An f32 that is rounded to bf16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Rounded(f32);

impl Packed for Rounded {
    type Held = bf16;
    const ELEMENT: Element = Element::Bf16;
    fn held(self) -> bf16 {
        bf16::from_f32(self.0)
    }
}

/// Packs the elements at `rows` (indices along k) and `columns` (along n); the rest of the panels is left alone.
///
/// # Safety
/// `from` has an element, valid and aligned, at every sum of a row's and a column's offset. `to` has room for the panels that the
/// indices reach, each `panel` units, and nobody else accesses these elements.
pub(crate) unsafe fn pack<T: Packed>(
    from: *const T,
    rows: &[Place],
    columns: &[Place],
    to: *mut u32,
    panel: usize,
) {
    let to = to.cast::<T::Held>();
    // Elements of a unit lie side by side.
    let side = T::ELEMENT.per_unit();
    let mut start = 0;
    while start < columns.len() {
        let first = columns[start];
        // Columns that go to one panel.
        let more = columns[start..].iter().take_while(|c| c.to / WIDTH == first.to / WIDTH).count();
        let run = &columns[start..start + more];
        let even =
            run.iter().enumerate().all(|(i, c)| c.from == first.from + i as isize && c.to == first.to + i);
        for row in rows {
            let unit = first.to / WIDTH * panel + row.to / side * WIDTH;
            let target = to.wrapping_add(unit * side + row.to % side);
            let source = from.wrapping_offset(row.from);
            // SAFETY: the caller's promise for this row and these columns.
            unsafe {
                if even {
                    let (source, at) = (source.wrapping_offset(first.from), first.to % WIDTH);
                    for i in 0..run.len() {
                        target.add((at + i) * side).write(source.add(i).read().held());
                    }
                } else {
                    for column in run {
                        let value = source.wrapping_offset(column.from).read().held();
                        target.add(column.to % WIDTH * side).write(value);
                    }
                }
            }
        }
        start += more;
    }
}
