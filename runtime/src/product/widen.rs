//! Products with 16-bit operands: widened to f32, multiplied, rounded once. Simple and correct; not fast.

use super::{Side, Tile};
use half::{bf16, f16};
use pcc_ir::DType;

/// # Safety
/// As [`super::run`]; the matrices are f32, bf16 or f16.
pub(super) unsafe fn run(t: Tile) {
    // SAFETY: the caller's promise.
    let (mut a, mut b, mut c) = unsafe {
        let c = if t.accumulate { elements(&t.c, t.m, t.n) } else { vec![0.0; t.m * t.n] };
        (elements(&t.a, t.m, t.k), elements(&t.b, t.k, t.n), c)
    };
    let wide = Tile { a: dense(&mut a, t.k), b: dense(&mut b, t.n), c: dense(&mut c, t.n), ..t };
    // SAFETY: the three buffers are row-major with exactly the tile's extents, f32, and distinct.
    unsafe { super::run(wide) };
    for i in 0..t.m {
        for j in 0..t.n {
            // SAFETY: the caller's promise for elements of c.
            unsafe { store(&t.c, i as isize, j as isize, c[i * t.n + j]) };
        }
    }
}

fn dense(data: &mut [f32], cols: usize) -> Side {
    Side { start: data.as_mut_ptr().cast(), dtype: DType::F32, row: cols as isize, col: 1 }
}

/// # Safety
/// The matrix has valid, aligned elements of its type for these rows and columns.
unsafe fn elements(side: &Side, rows: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * cols);
    for i in 0..rows as isize {
        for j in 0..cols as isize {
            // SAFETY: the caller's promise.
            out.push(unsafe { load(side, i, j) });
        }
    }
    out
}

/// # Safety
/// The element is valid, aligned and of the side's type.
unsafe fn load(side: &Side, i: isize, j: isize) -> f32 {
    let at = i * side.row + j * side.col;
    // SAFETY: the caller's promise.
    unsafe {
        match side.dtype {
            DType::BF16 => side.start.cast::<bf16>().wrapping_offset(at).read().to_f32(),
            DType::F16 => side.start.cast::<f16>().wrapping_offset(at).read().to_f32(),
            _ => side.start.cast::<f32>().wrapping_offset(at).read(),
        }
    }
}

/// # Safety
/// The element is valid, aligned, of the side's type, and no one else accesses it.
unsafe fn store(side: &Side, i: isize, j: isize, value: f32) {
    let at = i * side.row + j * side.col;
    // SAFETY: the caller's promise.
    unsafe {
        match side.dtype {
            DType::BF16 => side.start.cast::<bf16>().wrapping_offset(at).write(bf16::from_f32(value)),
            DType::F16 => side.start.cast::<f16>().wrapping_offset(at).write(f16::from_f32(value)),
            _ => side.start.cast::<f32>().wrapping_offset(at).write(value),
        }
    }
}
