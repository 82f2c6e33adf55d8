//! Exchanges two directories in one step, which the standard library cannot.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Exchanges what the two names refer to, atomically.
///
/// # Errors
/// A name does not exist, or the file system cannot do it (`Unsupported` or `InvalidInput`).
pub(super) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let text = |p: &Path| CString::new(p.as_os_str().as_bytes()).map_err(io::Error::other);
    let (a, b) = (text(a)?, text(b)?);
    // SAFETY: both are zero-terminated strings that live until the call returns; the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
