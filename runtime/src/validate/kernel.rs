//! Kernels: a symbol, and the rules of [`Kernel::check`].

use crate::kernels::MAX_ACCESSES;
use pcc_ir::kernel::Kernel;

pub(super) fn check(kernel: &Kernel) -> Result<(), String> {
    let symbol = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if kernel.name.is_empty() || !kernel.name.chars().all(symbol) {
        return Err(format!("`{}` is no symbol", kernel.name.escape_debug()));
    }
    if kernel.accesses.len() > MAX_ACCESSES {
        return Err(format!("{} accesses", kernel.accesses.len()));
    }
    kernel.check().map(|_| ())
}
