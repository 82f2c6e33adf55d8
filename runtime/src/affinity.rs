//! Which cores the process may use, and pinning a thread to one: a worker that moves loses its caches.

/// The cores the process may run on; empty when the system does not say.
pub(crate) fn allowed_cores() -> Vec<usize> {
    // SAFETY: the call writes at most the given size into a set that lives here; an all-zero set is a valid value.
    let (set, failed) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let failed = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (set, failed)
    };
    if failed != 0 {
        return Vec::new();
    }
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Pins the calling thread to a core. Failure costs speed only, and is ignored.
pub(crate) fn pin(core: usize) {
    if core >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: an all-zero set is valid, the core's index is below the set's size, and the call only reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
