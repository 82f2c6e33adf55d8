//! Memory: inputs are small, so what takes a lot of it believed a number of the file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes of one allocation.
const LARGEST: usize = 256 << 20;
/// Most bytes at a time.
const MOST: usize = 1 << 30;

/// The system's allocator, which ends the process where one input takes too much.
struct Bounded {
    held: AtomicUsize,
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded { held: AtomicUsize::new(0) };

impl Bounded {
    fn take(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if bytes > LARGEST || held > MOST {
            // No unwinding out of an allocator, and no formatting that would allocate.
            eprintln!("a small input takes more memory than any should");
            std::process::abort();
        }
    }

    fn give(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments given, and its answer is handed on.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout.size());
        // SAFETY: the caller's promise about `layout` is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.give(layout.size());
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.take(layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.take(size);
        self.give(layout.size());
        // SAFETY: `at` came from `System` with this layout, and the caller promises a sane size.
        unsafe { System.realloc(at, layout, size) }
    }
}
