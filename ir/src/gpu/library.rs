//! The kernels of the library, by what they are made of.

use super::attention::{AttentionKernel, JoinKernel};
use super::gemm::{GemmKernel, GemmPath};
use super::selection::{SAMPLE_PARAMS, TopKKernel};
use super::{Arch, epilogue_of};
use crate::program::{InstrKind, Program};
use crate::types::{DType, ReduceKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub grid: [u32; 3],
    /// Threads of a block, one-dimensional.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A kernel that is not fused from ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LibraryKernel {
    Gemm(GemmKernel),
    Attention(AttentionKernel),
    AttentionJoin(JoinKernel),
    TopK(TopKKernel),
    /// See [`SAMPLE_PARAMS`].
    Sample,
    /// Copies a block of a tensor into a block of another. Parameters: pointers src, dst; [`COPY_RANK`] extents, outermost first (1 where there
    /// is none); as many strides of src, and of dst, in elements. `bytes` of an element: 1, 2, 4 or 8. Threads run over elements, in row-major
    /// order.
    Copy {
        bytes: u32,
    },
    /// `dst[i] = src[0][i] (+) src[1][i] (+) ..`, in this order and in f32 (i32, i64 for integers, where sums wrap), of `members` buffers. Parameters:
    /// dst; the number of elements; `members` pointers. dst may be one of them.
    Reduce {
        dtype: DType,
        reduce: ReduceKind,
        members: u32,
    },
}

/// Members that [`LibraryKernel::Reduce`] is made for at most. Only ranks that share a GPU use it, and no more of them do.
pub const REDUCE_MEMBERS: u32 = 64;

/// Dims of [`LibraryKernel::Copy`].
pub const COPY_RANK: usize = 6;

impl LibraryKernel {
    /// The symbol: what the kernel is, in words, and a digest of all that it is made of.
    pub fn symbol(&self) -> String {
        // invariant: numbers and unit variants always have a JSON form.
        let json = serde_json::to_vec(self).expect("a kernel can be written");
        let digest = Sha256::new_with_prefix(b"pcc library 1\0").chain_update(json).finalize();
        let hex: String = digest[..6].iter().map(|b| format!("{b:02x}")).collect();
        let word = match self {
            LibraryKernel::Gemm(g) => format!("gemm_{:?}", g.path),
            LibraryKernel::Attention(a) => {
                format!("attention_{:?}{}", a.path, if a.split { "_split" } else { "" })
            }
            LibraryKernel::AttentionJoin(_) => "attention_join".to_owned(),
            LibraryKernel::TopK(_) => "top_k".to_owned(),
            LibraryKernel::Sample => "sample".to_owned(),
            LibraryKernel::Copy { .. } => "copy".to_owned(),
            LibraryKernel::Reduce { .. } => "reduce".to_owned(),
        };
        format!("pcc_{}_{hex}", word.to_lowercase())
    }

    /// Whether code for this architecture can have it.
    pub fn exists_for(&self, arch: Arch) -> bool {
        !matches!(self, LibraryKernel::Gemm(GemmKernel { path: GemmPath::Wgmma, .. })) || arch == Arch::Sm90a
    }

    /// Parameters it takes.
    pub fn params(&self) -> usize {
        match self {
            LibraryKernel::Gemm(g) => g.params(),
            LibraryKernel::Attention(a) => a.params(),
            LibraryKernel::AttentionJoin(_) => JoinKernel::PARAMS,
            LibraryKernel::TopK(_) => TopKKernel::PARAMS,
            LibraryKernel::Sample => SAMPLE_PARAMS,
            LibraryKernel::Copy { .. } => 2 + 3 * COPY_RANK,
            LibraryKernel::Reduce { members, .. } => 2 + *members as usize,
        }
    }

    /// Bytes of dynamic shared memory.
    pub fn shared(&self) -> u32 {
        match self {
            LibraryKernel::Gemm(g) => g.shape(1, 1, 1).shared,
            LibraryKernel::Attention(a) => a.shape(1, 1, 1, 1).shared,
            LibraryKernel::AttentionJoin(j) => j.shape(1).shared,
            LibraryKernel::TopK(_) | LibraryKernel::Sample => 0,
            LibraryKernel::Copy { .. } | LibraryKernel::Reduce { .. } => 0,
        }
    }

    /// How to launch a copy or reduction of `elements`.
    pub fn flat_shape(elements: u64) -> Shape {
        Shape { grid: [elements.div_ceil(256).clamp(1, 65_536) as u32, 1, 1], threads: 256, shared: 0 }
    }
}

/// Every library kernel that running the program on GPUs of its target may need.
pub fn library(program: &Program) -> Vec<LibraryKernel> {
    let (mut all, arch) = (BTreeSet::new(), program.target.arch());
    let instrs = program.funcs.iter().flat_map(|f| f.instrs.iter().enumerate().map(move |i| (f, i)));
    for (func, (at, instr)) in instrs {
        match &instr.kind {
            InstrKind::Kernel(_) | InstrKind::Rows(_) => {}
            InstrKind::Gemm(g) => {
                let kernel =
                    GemmKernel { epilogue: epilogue_of(program, func, at), ..GemmKernel::of(g, arch) };
                all.insert(LibraryKernel::Gemm(kernel));
            }
            InstrKind::Attention(a) => {
                let kernel = AttentionKernel::of(a);
                all.insert(LibraryKernel::Attention(kernel));
                all.extend(kernel.join().map(LibraryKernel::AttentionJoin));
            }
            InstrKind::TopK(t) => {
                all.insert(LibraryKernel::TopK(TopKKernel { dtype: t.x.dtype, k: t.k as u32 }));
            }
            InstrKind::Sample(_) => {
                all.insert(LibraryKernel::Sample);
            }
            InstrKind::Collective(c) => {
                all.insert(LibraryKernel::Copy { bytes: c.dtype.bytes() as u32 });
                let members = program.mesh.group(0, &c.axes).len() as u32;
                if members <= REDUCE_MEMBERS {
                    all.insert(LibraryKernel::Reduce { dtype: c.dtype, reduce: c.reduce, members });
                }
            }
        }
    }
    all.into_iter().collect()
}
