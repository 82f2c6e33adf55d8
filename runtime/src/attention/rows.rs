//! Rows of strided operands, of any float type, and the memory of a worker.

use crate::kernels::Operand;
use half::{bf16, f16};
use pcc_ir::DType;
use pcc_ir::program::Strided;
use std::cell::RefCell;

/// A matrix in memory: address of the first element, strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) start: *mut u8,
    pub(super) dtype: DType,
    pub(super) row: isize,
    pub(super) col: isize,
}

impl Rows {
    /// Two dims of an operand, from the element at `index` on.
    pub(super) fn of(view: &Strided, operand: &Operand<'_>, index: &[usize], row: usize, col: usize) -> Self {
        let elements: isize = index.iter().zip(&view.strides).map(|(&i, &s)| i as isize * s as isize).sum();
        let bytes = elements.wrapping_mul(view.dtype.bytes() as isize);
        let start = operand.window.as_ptr().wrapping_add(operand.offset).wrapping_offset(bytes);
        Self { start, dtype: view.dtype, row: view.strides[row] as isize, col: view.strides[col] as isize }
    }

    /// The same rows from row `n` on.
    pub(super) fn from(self, n: usize) -> Self {
        self.skip(n as isize * self.row)
    }

    /// The same rows, so many elements further on.
    pub(super) fn skip(self, elements: isize) -> Self {
        let bytes = elements.wrapping_mul(self.dtype.bytes() as isize);
        Self { start: self.start.wrapping_offset(bytes), ..self }
    }

    fn at(&self, i: usize, j: usize) -> *mut u8 {
        let elements = i as isize * self.row + j as isize * self.col;
        self.start.wrapping_offset(elements.wrapping_mul(self.dtype.bytes() as isize))
    }

    /// # Safety
    /// The element is valid, aligned and of the type the matrix says.
    pub(super) unsafe fn load(&self, i: usize, j: usize) -> f32 {
        let at = self.at(i, j);
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::BF16 => at.cast::<bf16>().read().to_f32(),
                DType::F16 => at.cast::<f16>().read().to_f32(),
                _ => at.cast::<f32>().read(),
            }
        }
    }

    /// # Safety
    /// As [`Rows::load`], for i32.
    pub(super) unsafe fn load_i32(&self, i: usize, j: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { self.at(i, j).cast::<i32>().read() }
    }

    /// Copies adjacent elements of the first row from `j` on.
    ///
    /// # Safety
    /// As [`Rows::load_i32`], for as many elements as `to` has, with a column stride of 1.
    pub(super) unsafe fn copy_i32(&self, j: usize, to: &mut [i32]) {
        // SAFETY: the caller's promise; a slice of ours never lies in a buffer of the program.
        unsafe { std::ptr::copy_nonoverlapping(self.at(0, j).cast::<i32>(), to.as_mut_ptr(), to.len()) };
    }

    /// # Safety
    /// As [`Rows::load`], and no one else accesses the element.
    pub(super) unsafe fn store(&self, i: usize, j: usize, x: f32) {
        let at = self.at(i, j);
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::BF16 => at.cast::<bf16>().write(bf16::from_f32(x)),
                DType::F16 => at.cast::<f16>().write(f16::from_f32(x)),
                _ => at.cast::<f32>().write(x),
            }
        }
    }

    /// Whether the first `width` elements of `n` rows are finite.
    ///
    /// # Safety
    /// As [`Rows::load`].
    #[inline(always)]
    pub(super) unsafe fn finite(&self, n: usize, width: usize) -> bool {
        let mut bad = 0;
        for i in 0..n {
            // SAFETY: the caller's promise; the elements of a row are adjacent where this reads them so.
            unsafe {
                match (self.dtype, self.col) {
                    (DType::F32, 1) => {
                        let row = std::slice::from_raw_parts(self.at(i, 0).cast::<u32>(), width);
                        row.iter().for_each(|x| bad |= u32::from(x & 0x7f80_0000 == 0x7f80_0000));
                    }
                    (DType::BF16, 1) => {
                        let row = std::slice::from_raw_parts(self.at(i, 0).cast::<u16>(), width);
                        row.iter().for_each(|x| bad |= u32::from(x & 0x7f80 == 0x7f80));
                    }
                    _ => (0..width).for_each(|j| bad |= u32::from(!self.load(i, j).is_finite())),
                }
            }
        }
        bad == 0
    }

    /// The bits of an element of 16 bits.
    ///
    /// # Safety
    /// As [`Rows::load`].
    pub(super) unsafe fn load_bits(&self, i: usize, j: usize) -> u16 {
        // SAFETY: the caller's promise.
        unsafe { self.at(i, j).cast::<u16>().read() }
    }

    /// Copies `width` elements of 16 bits of row `i`, filling `to` up with zeros.
    ///
    /// # Safety
    /// As [`Rows::load`] for those elements.
    #[inline(always)]
    pub(super) unsafe fn copy_halves(&self, i: usize, width: usize, to: &mut [u16]) {
        let (used, rest) = to.split_at_mut(width);
        rest.fill(0);
        if self.col == 1 {
            // SAFETY: the caller's promise; the elements are adjacent.
            used.copy_from_slice(unsafe { std::slice::from_raw_parts(self.at(i, 0).cast(), width) });
        } else {
            // SAFETY: the caller's promise.
            used.iter_mut().enumerate().for_each(|(j, x)| *x = unsafe { self.load_bits(i, j) });
        }
    }

    /// Stores weighted values, divided by the sum of their weights, as the first row; zeros where there are no weights.
    ///
    /// # Safety
    /// As [`Rows::store`] for as many elements as `o` has.
    #[inline(always)]
    pub(super) unsafe fn put(&self, o: &mut [f32], sum: f32) {
        let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        o.iter_mut().for_each(|x| *x *= scale);
        // SAFETY: the caller's promise; the elements of a row are adjacent where this writes them so.
        unsafe {
            match (self.dtype, self.col) {
                (DType::F32, 1) => {
                    std::slice::from_raw_parts_mut(self.start.cast(), o.len()).copy_from_slice(o)
                }
                (DType::BF16, 1) => {
                    let to = std::slice::from_raw_parts_mut(self.start.cast::<u16>(), o.len());
                    to.iter_mut().zip(o).for_each(|(to, x)| *to = nearest(*x));
                }
                _ => o.iter().enumerate().for_each(|(j, x)| self.store(0, j, *x)),
            }
        }
    }

    /// Copies `width` elements of each of `n` rows to rows of f32 that are `stride` apart, filling them up with zeros.
    ///
    /// # Safety
    /// As [`Rows::load`] for those elements; `to` has room for `n * stride` floats.
    #[inline(always)]
    pub(super) unsafe fn widen(&self, n: usize, width: usize, to: *mut f32, stride: usize) {
        for i in 0..n {
            // SAFETY: the caller's promise.
            let out = unsafe { std::slice::from_raw_parts_mut(to.add(i * stride), stride) };
            let (used, rest) = out.split_at_mut(width);
            rest.fill(0.0);
            let first = self.at(i, 0);
            // SAFETY: the caller's promise; the elements of a row are adjacent where this reads them so.
            unsafe {
                match (self.dtype, self.col) {
                    (DType::F32, 1) => {
                        used.copy_from_slice(std::slice::from_raw_parts(first.cast::<f32>(), width));
                    }
                    (DType::BF16, 1) => {
                        let from = std::slice::from_raw_parts(first.cast::<u16>(), width);
                        used.iter_mut().zip(from).for_each(|(x, &b)| *x = f32::from_bits(u32::from(b) << 16));
                    }
                    _ => used.iter_mut().enumerate().for_each(|(j, x)| *x = self.load(i, j)),
                }
            }
        }
    }
}

/// The bits of the nearest number of bf16, even when two are as near; without branches.
#[inline(always)]
fn nearest(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // What is no number stays none.
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// A cache line, so that scratch starts where one does.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "reached by address")] [f32; 16]);

thread_local! {
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with this worker's scratch of at least `floats` floats. They hold anything.
pub(super) fn with_scratch<R>(floats: usize, f: impl FnOnce(Carver) -> R) -> R {
    SCRATCH.with_borrow_mut(|lines| {
        let needed = floats.div_ceil(16);
        if lines.len() < needed {
            lines.resize(needed, Line([0.0; 16]));
        }
        let start = lines.as_mut_ptr().cast::<f32>();
        f(Carver { start, left: lines.len() * 16 })
    })
}

/// Hands out distinct pieces of scratch.
pub(super) struct Carver {
    start: *mut f32,
    left: usize,
}

impl Carver {
    /// Room for `floats` floats (or i32), on lines of its own.
    pub(super) fn take(&mut self, floats: usize) -> *mut f32 {
        let floats = rounded(floats);
        assert!(floats <= self.left, "scratch of {floats} floats, {} left", self.left);
        let taken = self.start;
        self.start = self.start.wrapping_add(floats);
        self.left -= floats;
        taken
    }
}

/// Floats of whole cache lines.
pub(super) fn rounded(floats: usize) -> usize {
    floats.next_multiple_of(16)
}
