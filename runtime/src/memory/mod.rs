//! Memory of all devices of the process: one anonymous mapping in huge pages, seen through bounds-checked windows.
//!
//! A [`Window`] is a plain view; several workers hold views of one mapping at a time. Who may touch which bytes when is the
//! executor's order: a device's own memory is touched only by the worker that runs the device, or by the last arriver of a
//! collective while every other member is blocked in it; parts of a split instruction write disjoint elements.
//! Mutexes and atomics of the executor carry the happens-before between them.

mod reduce;

pub(crate) use reduce::{Region, reduce_block};

use pcc_ir::{DType, Diagnostic};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Every buffer starts at a multiple of this: a cache line, and an AVX-512 register.
pub(crate) const ALIGN: u64 = 64;

/// Zeroed memory from the system, freed on drop.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; the executor orders accesses (see the module's doc).
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing in the mapping is thread-bound.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zero bytes, in 2 MiB pages where the system has them. Pages are taken when first touched.
    pub(crate) fn new(len: usize) -> Result<Self, Diagnostic> {
        let len = len.max(1);
        // SAFETY: an anonymous private mapping at an address of the system's choice touches no existing memory.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        let start = NonNull::new(start.cast::<u8>()).filter(|p| p.as_ptr().cast() != libc::MAP_FAILED);
        let Some(start) = start else {
            return Err(Diagnostic::run(format!("the system refused {len} bytes of memory"))
                .why(std::io::Error::last_os_error().to_string()));
        };
        if len >= 1 << 21 {
            // SAFETY: the range is the mapping just made; the advice changes page sizes only. Refusal is harmless.
            unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { start, len })
    }

    /// A view of `len` bytes at `offset`.
    pub(crate) fn window(&self, offset: usize, len: usize) -> Window<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "window {offset}+{len} outside {}", self.len);
        // SAFETY: `offset` is inside the mapping, checked above.
        let start = unsafe { self.start.as_ptr().add(offset) };
        Window { start, len, mapping: PhantomData }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and windows borrow the mapping, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A view of part of a [`Mapping`].
#[derive(Clone, Copy)]
pub struct Window<'m> {
    start: *mut u8,
    len: usize,
    mapping: PhantomData<&'m Mapping>,
}

// SAFETY: a window is an address range of a shared mapping; the executor orders accesses (see the module's doc).
unsafe impl Send for Window<'_> {}
// SAFETY: as above.
unsafe impl Sync for Window<'_> {}

impl<'m> Window<'m> {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Part of this window.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Window<'m> {
        assert!(offset <= self.len && len <= self.len - offset, "part {offset}+{len} outside {}", self.len);
        // SAFETY: `offset` is inside the window, checked above.
        Window { start: unsafe { self.start.add(offset) }, len, mapping: PhantomData }
    }

    /// Copies all of `from`, which may overlap, to the start of this window.
    pub(crate) fn copy_from(&self, from: &Window<'_>) {
        assert!(from.len <= self.len, "copy of {} bytes into {}", from.len, self.len);
        // SAFETY: both ranges are inside live mappings and the length fits both; `copy` allows overlap.
        unsafe { std::ptr::copy(from.start, self.start, from.len) };
    }

    /// Copies `bytes` to `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.part(offset, bytes.len());
        // SAFETY: `part` checked the range; `bytes` is a Rust slice, which never lies in a mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.start, bytes.len()) };
    }

    /// Copies the bytes at `offset` into `bytes`.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.part(offset, bytes.len());
        // SAFETY: `part` checked the range; `bytes` is a Rust slice, which never lies in a mapping.
        unsafe { std::ptr::copy_nonoverlapping(from.start, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Sets every byte to zero.
    pub(crate) fn zero(&self) {
        self.fill(0);
    }

    /// Sets every byte.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: the range is inside a live mapping.
        unsafe { std::ptr::write_bytes(self.start, byte, self.len) };
    }

    /// The window as floats, for a reader that fills it. The caller is the only one to know of the window.
    pub(crate) fn fill_f32<R>(&self, fill: impl FnOnce(&mut [f32]) -> R) -> R {
        assert!((self.start as usize).is_multiple_of(4), "floats at an odd address");
        // SAFETY: in bounds, aligned, initialised (the system zeroes pages), and every bit pattern is a float. While
        // parameters are loaded each range has one writer and no reader.
        fill(unsafe { std::slice::from_raw_parts_mut(self.start.cast::<f32>(), self.len / 4) })
    }

    /// Element `index` of a buffer of `dtype`, widened; `None` outside the window.
    pub fn load(&self, dtype: DType, index: usize) -> Option<f64> {
        let (at, size) = (index.checked_mul(dtype.bytes())?, dtype.bytes());
        if at.checked_add(size)? > self.len {
            return None;
        }
        let mut bytes = [0; 8];
        self.read(at, &mut bytes[..size]);
        Some(decode(dtype, bytes))
    }

    /// Stores `value`, rounded to `dtype`, as element `index`; `None` outside the window.
    pub fn store(&self, dtype: DType, index: usize, value: f64) -> Option<()> {
        let (at, size) = (index.checked_mul(dtype.bytes())?, dtype.bytes());
        if at.checked_add(size)? > self.len {
            return None;
        }
        self.write(at, &encode(dtype, value)[..size]);
        Some(())
    }
}

/// An element from its little-endian bytes.
pub(crate) fn decode(dtype: DType, b: [u8; 8]) -> f64 {
    match dtype {
        DType::F64 => f64::from_le_bytes(b),
        DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
        DType::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).into(),
        DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).into(),
        DType::I64 => i64::from_le_bytes(b) as f64,
        DType::I32 => i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
        DType::Bool => f64::from(u8::from(b[0] != 0)),
    }
}

/// The little-endian bytes of an element, the first `dtype.bytes()` of the result.
pub(crate) fn encode(dtype: DType, value: f64) -> [u8; 8] {
    let mut out = [0; 8];
    match dtype {
        DType::F64 => out = value.to_le_bytes(),
        DType::F32 => out[..4].copy_from_slice(&(value as f32).to_le_bytes()),
        DType::BF16 => out[..2].copy_from_slice(&half::bf16::from_f64(value).to_le_bytes()),
        DType::F16 => out[..2].copy_from_slice(&half::f16::from_f64(value).to_le_bytes()),
        DType::I64 => out = (value as i64).to_le_bytes(),
        DType::I32 => out[..4].copy_from_slice(&(value as i32).to_le_bytes()),
        DType::Bool => out[0] = u8::from(value != 0.0),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_starts_zero_and_aligned_and_keeps_what_is_written() {
        let mapping = Mapping::new(1 << 22).unwrap();
        let window = mapping.window(64, 128);
        assert!((window.as_ptr() as usize).is_multiple_of(ALIGN as usize));
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::Bool] {
            assert_eq!(window.load(dtype, 3), Some(0.0));
            window.store(dtype, 3, 1.0).unwrap();
            assert_eq!(window.load(dtype, 3), Some(1.0));
            window.zero();
        }
        assert_eq!(window.load(DType::F32, 32), None);
        assert_eq!(window.store(DType::I64, usize::MAX, 1.0), None);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_window_outside_is_never_made() {
        let mapping = Mapping::new(100).unwrap();
        mapping.window(64, 37);
    }
}
