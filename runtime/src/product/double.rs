//! Products of f64: plain loops. The compiler makes none; a program written by hand may.

use super::{Side, Tile};

/// # Safety
/// As [`super::run`]; all matrices are f64.
pub(super) unsafe fn run(t: &Tile) {
    for i in 0..t.m as isize {
        for j in 0..t.n as isize {
            // SAFETY: the caller's promise for elements of a, b and c.
            unsafe {
                let term = |p: isize| at(&t.a, i, p).read() * at(&t.b, p, j).read();
                let sum: f64 = (0..t.k as isize).map(term).sum();
                let c = at(&t.c, i, j);
                c.write(t.alpha * sum + if t.accumulate { c.read() } else { 0.0 });
            }
        }
    }
}

fn at(side: &Side, i: isize, j: isize) -> *mut f64 {
    side.start.cast::<f64>().wrapping_offset(i * side.row + j * side.col)
}
