//! Elementwise kernels that run inside the matrix product before them.

use crate::kernel::{self, DIGEST, Kernel, Node};
use crate::program::{FuncProgram, InstrKind, Program, reads_of_result};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// A fused kernel of the program that a product's kernel runs on each element of its result c, where it stores that. c is stored too.
///
/// Its parameters follow the product's: one pointer per access, strides per access in elements (along c's rows and columns, and along the
/// product's batch if that is of one dim, its last), the scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epilogue {
    /// [`Kernel::digest`] of the kernel.
    pub kernel: [u8; DIGEST],
    pub accesses: u32,
    pub scalars: u32,
    /// One bit per access, the first one lowest: whether it is c, as the product has just rounded it.
    pub reads: u32,
    /// Whether the product has a batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch: bool,
}

/// Accesses that an epilogue has at most.
const MOST_ACCESSES: usize = 32;
/// Nodes that it has at most: the code of some paths has them for several elements.
const MOST_NODES: usize = 256;

impl Epilogue {
    /// A kernel as the epilogue of a product without a batch, `reads` being its accesses that are c.
    pub fn new(kernel: &Kernel, reads: u32) -> Self {
        let accesses = kernel.accesses.len() as u32;
        Epilogue { kernel: kernel.digest(), accesses, scalars: kernel.scalars, reads, batch: false }
    }

    /// Strides of an access.
    pub fn strides(&self) -> usize {
        2 + usize::from(self.batch)
    }

    /// Parameters besides the product's.
    pub fn params(&self) -> usize {
        (1 + self.strides()) * self.accesses as usize + self.scalars as usize
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
        if !matches!(kernel.rank, 1..=3) {
            return Err("its rank is not 1, 2 or 3");
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
/// ([`FuncProgram::epilogue_launch`]). What a GPU runs depends on the program alone, not on the run.
pub fn epilogue_of(program: &Program, func: &FuncProgram, at: usize) -> Option<Epilogue> {
    let launch = func.epilogue_launch(at, &program.kernels)?;
    let InstrKind::Gemm(gemm) = &func.instrs.get(at)?.kind else { return None };
    let kernel = program.kernels.get(launch.kernel)?;
    if kernel.accesses.len() > MOST_ACCESSES {
        return None;
    }
    let reads = reads_of_result(gemm, &launch, kernel)?;
    let reads = reads.iter().enumerate().fold(0, |bits, (i, &is_c)| bits | u32::from(is_c) << i);
    let epilogue = Epilogue { batch: !gemm.batch.is_empty(), ..Epilogue::new(kernel, reads) };
    epilogue.check(kernel, gemm.c.dtype).ok().map(|()| epilogue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::LibraryKernel;
    use crate::gpu::gemm::{GemmKernel, GemmPath};
    use crate::kernel::{Access, Lane, Store};
    use crate::ops::UnaryKind;

    fn kernel() -> Kernel {
        let access = |write| Access { dtype: DType::F32, lane: Lane::Unit, write };
        Kernel {
            name: String::new(),
            rank: 2,
            accesses: vec![access(false), access(false), access(true)],
            scalars: 1,
            nodes: vec![Node::Load(0), Node::Unary(UnaryKind::Relu, 0)],
            stores: vec![Store { access: 2, node: 1, at: None }],
        }
    }

    fn refused(reads: u32, change: impl FnOnce(&mut Kernel)) -> bool {
        let epilogue = Epilogue::new(&kernel(), reads);
        let mut kernel = kernel();
        change(&mut kernel);
        epilogue.check(&kernel, DType::F32).is_err()
    }

    #[test]
    fn only_elementwise_kernels_with_the_same_parameters_are_epilogues() {
        assert!(!refused(0b11, |_| ()));
        assert!(refused(0b100, |_| ()), "it writes the access");
        assert!(refused(0b1000, |_| ()), "there is no such access");
        assert!(refused(1, |k| k.accesses[0].dtype = DType::BF16));
        assert!(refused(1, |k| k.scalars = 0));
        assert!(refused(1, |k| k.rank = 4));
        assert!(refused(1, |k| k.nodes.push(Node::Index(0))));
        assert!(refused(1, |k| k.nodes.resize(MOST_NODES + 1, Node::Load(0))));
        let many = || {
            let mut kernel = kernel();
            kernel.accesses.resize(MOST_ACCESSES + 1, kernel.accesses[0].clone());
            kernel
        };
        assert!(Epilogue::new(&many(), 1).check(&many(), DType::F32).is_err());
    }

    #[test]
    fn products_without_epilogues_have_the_symbols_they_had() {
        let dtype = DType::BF16;
        let gemm = GemmKernel {
            path: GemmPath::Few,
            a: dtype,
            b: dtype,
            c: dtype,
            rows: 1,
            a_by_k: true,
            b_by_k: true,
            epilogue: None,
        };
        assert!(!serde_json::to_string(&gemm).unwrap().contains("epilogue"));
        let epilogue = |reads| Some(Epilogue::new(&kernel(), reads));
        let of = |epilogue| LibraryKernel::Gemm(GemmKernel { epilogue, ..gemm });
        let [plain, one, two] = [None, epilogue(1), epilogue(3)].map(of);
        assert_eq!((plain.params(), one.params()), (GemmKernel::PARAMS, GemmKernel::PARAMS + 3 + 6 + 1));
        assert!(plain.symbol() != one.symbol() && one.symbol() != two.symbol());
        assert_eq!(epilogue(1).unwrap().symbol(), kernel().symbol());
        let back: LibraryKernel = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
        assert_eq!(back, one);
    }
}
