//! Elementwise kernels that run inside the matrix product before them.

use crate::kernel::{self, DIGEST, Kernel, Node};
use crate::program::{FuncProgram, InstrKind, Program};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// A fused kernel of the program that a product's kernel runs on each element of its result c, where it stores that. c is stored too.
///
/// Its parameters follow the product's: one pointer per access, two strides per access in elements (along c's rows and columns), the scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epilogue {
    /// [`Kernel::digest`] of the kernel.
    pub kernel: [u8; DIGEST],
    pub accesses: u32,
    pub scalars: u32,
    /// One bit per access, the first one lowest: whether it is c, as the product has just rounded it.
    pub reads: u32,
}

/// Accesses that an epilogue has at most.
const MOST_ACCESSES: usize = 32;
/// Nodes that it has at most: the code of some paths has them for several elements.
const MOST_NODES: usize = 256;

impl Epilogue {
    /// A kernel as an epilogue, `reads` being its accesses that are c.
    pub fn new(kernel: &Kernel, reads: u32) -> Self {
        let accesses = kernel.accesses.len() as u32;
        Epilogue { kernel: kernel.digest(), accesses, scalars: kernel.scalars, reads }
    }

    /// Parameters besides the product's.
    pub fn params(&self) -> usize {
        3 * self.accesses as usize + self.scalars as usize
    }

    /// The kernel's symbol.
    pub fn symbol(&self) -> String {
        kernel::symbol_of(&self.kernel)
    }

    /// Whether the kernel with this symbol can be the epilogue of a product with results of type `c`.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, kernel: &Kernel, c: DType) -> Result<(), &'static str> {
        let by_element =
            |node: &Node| !matches!(node, Node::LoadAt { .. } | Node::Index(_) | Node::RowReduce(..));
        let is_c = |number: usize| self.reads >> number & 1 == 1;
        if !matches!(kernel.rank, 1 | 2) {
            return Err("its rank is not 1 or 2");
        }
        if kernel.accesses.len() > MOST_ACCESSES || kernel.nodes.len() > MOST_NODES {
            return Err("it is too large");
        }
        if (kernel.accesses.len(), kernel.scalars) != (self.accesses as usize, self.scalars) {
            return Err("it has other parameters");
        }
        if !kernel.nodes.iter().all(by_element) || kernel.stores.iter().any(|s| s.at.is_some()) {
            return Err("it is not elementwise");
        }
        let mut accesses = kernel.accesses.iter().enumerate();
        if accesses.any(|(i, a)| is_c(i) && (a.write || a.dtype != c))
            || self.reads.checked_shr(self.accesses).is_some_and(|r| r != 0)
        {
            return Err("an access cannot be the product's result");
        }
        Ok(())
    }
}

/// The kernel that runs with the product at `at`, if that is one and the next instruction allows it
/// ([`FuncProgram::has_epilogue`]). What a GPU runs depends on the program alone, not on the run.
pub fn epilogue_of(program: &Program, func: &FuncProgram, at: usize) -> Option<Epilogue> {
    if !func.has_epilogue(at, &program.kernels) {
        return None;
    }
    let (InstrKind::Gemm(gemm), InstrKind::Kernel(launch)) =
        (&func.instrs.get(at)?.kind, &func.instrs.get(at + 1)?.kind)
    else {
        return None;
    };
    let kernel = program.kernels.get(launch.kernel)?;
    if kernel.accesses.len() > MOST_ACCESSES {
        return None;
    }
    let reads = func.reads_of_result(at, &program.kernels)?;
    let reads = reads.iter().enumerate().fold(0, |bits, (i, &is_c)| bits | u32::from(is_c) << i);
    let epilogue = Epilogue::new(kernel, reads);
    epilogue.check(kernel, gemm.c.dtype).ok().map(|()| epilogue)
}
