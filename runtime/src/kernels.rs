//! How the executor calls kernels: a trait, so that tests need no compiled object.

use crate::memory::Window;
use pcc_ir::kernel::KernelId;
use std::ops::Range;

/// Most accesses a kernel may have; an artifact with more is refused.
pub const MAX_ACCESSES: usize = 256;

/// Accesses of a kernel that are prepared on the stack.
pub(crate) const FEW_ACCESSES: usize = 16;

/// One access: the element at index zero lies `offset` bytes into `window`, which is the whole buffer addressed.
#[derive(Clone, Copy)]
pub struct Operand<'m> {
    pub window: Window<'m>,
    pub offset: usize,
}

impl Operand<'_> {
    /// Element `index` (may be negative) from the operand's address, widened; `None` outside the buffer.
    pub fn load(&self, dtype: pcc_ir::DType, index: i64) -> Option<f64> {
        self.window.load(dtype, self.element(dtype, index)?)
    }

    /// Stores `value`, rounded to `dtype`, as element `index`; `None` outside the buffer.
    pub fn store(&self, dtype: pcc_ir::DType, index: i64, value: f64) -> Option<()> {
        self.window.store(dtype, self.element(dtype, index)?, value)
    }

    fn element(&self, dtype: pcc_ir::DType, index: i64) -> Option<usize> {
        usize::try_from((self.offset / dtype.bytes()) as i64 + index).ok()
    }
}

/// A kernel and everything it is called with; see [`pcc_ir::kernel`].
#[derive(Clone, Copy)]
pub struct KernelCall<'a> {
    pub kernel: KernelId,
    /// One per access.
    pub operands: &'a [Operand<'a>],
    /// One per iteration dim.
    pub extents: &'a [i64],
    /// `accesses * rank`, in elements.
    pub strides: &'a [i64],
    pub scalars: &'a [i64],
}

/// The kernels of a program. Many workers call at once.
pub trait KernelSet: Send + Sync {
    /// Runs rows `rows` of the call's row space.
    fn call(&self, call: &KernelCall<'_>, rows: Range<i64>);
}
