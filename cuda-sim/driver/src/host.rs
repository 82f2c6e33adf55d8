//! Memory of the host, as copies use it.

use std::ptr;

/// Reads memory that a caller named in a copy.
pub fn read(addr: u64, len: u64) -> Vec<u8> {
    if len == 0 {
        return Vec::new();
    }
    let mut bytes = vec![0; len as usize];
    // SAFETY: who asks for a copy promises that the range is readable until the copy has run; pinned memory that is freed earlier through this
    // library is found before (`free_pinned`), and copies from pageable memory are made while the caller waits. The copy's own buffer is
    // new, so the ranges do not overlap.
    unsafe { ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), len as usize) };
    bytes
}

/// Writes memory that a caller named in a copy.
pub fn write(addr: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    // SAFETY: as for `read`: the caller promised that the range is writable until the copy has run, and nothing else uses it meanwhile.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
}

/// Sets memory that a caller named as the target of a copy.
pub fn fill(addr: u64, byte: u8, len: u64) {
    // SAFETY: as for `write`; the one caller has checked that the range is page-locked memory that the caller of the copy named.
    unsafe { ptr::write_bytes(addr as *mut u8, byte, len as usize) };
}

/// What pinned memory is aligned to: a page.
const ALIGN: usize = 4096;

/// New memory, all bytes 0; null if there is none.
pub fn alloc(bytes: u64) -> u64 {
    let Some(layout) = layout(bytes) else { return 0 };
    // SAFETY: the layout's size is not 0.
    unsafe { std::alloc::alloc_zeroed(layout) as u64 }
}

/// Gives memory of [`alloc`] back.
pub fn free(addr: u64, bytes: u64) {
    let Some(layout) = layout(bytes) else { return };
    // SAFETY: the only caller takes address and size out of the table of what `alloc` answered, once.
    unsafe { std::alloc::dealloc(addr as *mut u8, layout) };
}

fn layout(bytes: u64) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(usize::try_from(bytes.max(1)).ok()?, ALIGN).ok()
}
