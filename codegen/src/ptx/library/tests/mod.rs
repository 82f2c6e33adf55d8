//! The kernels, assembled and run.

mod attentions;
mod data;
mod epilogues;
mod mutants;
mod products;
mod random;
mod selections;

use super::epilogue::Follows;
use super::module;
use crate::emit::tests::gpu::keep;
use crate::ptx::{Generator, header};
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath, JoinKernel};
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::selection::TopKKernel;
use pcc_ir::gpu::{Arch, LibraryKernel};
use pcc_ir::kernel::Kernel;
use pcc_ir::types::DType;
use std::collections::BTreeSet;

/// PTX of one kernel with its header.
fn ptx(arch: Arch, kernel: &LibraryKernel) -> String {
    ptx_with(arch, kernel, None)
}

/// PTX of attention, and of the kernel that has to follow.
fn attention_ptx(arch: Arch, kernel: &AttentionKernel) -> String {
    let follows = kernel.join().map(|join| ptx(arch, &LibraryKernel::AttentionJoin(join)));
    let body = follows.map_or(String::new(), |text| text.replacen(&header(arch), "", 1));
    ptx(arch, &LibraryKernel::Attention(*kernel)) + &body
}

/// Likewise of one that may have an epilogue.
fn ptx_with(arch: Arch, kernel: &LibraryKernel, epilogue: Option<&Kernel>) -> String {
    let info = epilogue.map(|k| k.check().unwrap());
    let (reads, batch) = match kernel {
        LibraryKernel::Gemm(gemm) => gemm.epilogue.map_or((0, false), |e| (e.reads, e.batch)),
        _ => (0, false),
    };
    let follows = epilogue.zip(info.as_ref()).map(|(kernel, info)| Follows { kernel, info, reads, batch });
    let generator = Generator::new(arch).unwrap();
    header(arch) + &generator.ptx(&module(&generator.context, kernel, follows).unwrap()).unwrap()
}

/// The oldest architecture that a product's path runs on.
fn arch_of(kernel: &GemmKernel) -> Arch {
    if kernel.path == GemmPath::Wgmma { Arch::Sm90a } else { Arch::Sm80 }
}

/// Kernels of every path and orientation.
fn gemms() -> Vec<GemmKernel> {
    let mut all = vec![];
    for (a_by_k, b_by_k) in [(true, true), (true, false), (false, true), (false, false)] {
        for (dtype, c) in [(DType::BF16, DType::BF16), (DType::F16, DType::F32)] {
            for (path, rows) in [(GemmPath::Mma, 64), (GemmPath::Mma, 128), (GemmPath::Wgmma, 128)] {
                all.push(GemmKernel { path, a: dtype, b: dtype, c, rows, a_by_k, b_by_k, epilogue: None });
            }
        }
        for (a, b, c) in [
            (DType::BF16, DType::BF16, DType::BF16),
            (DType::F32, DType::BF16, DType::F32),
            (DType::F32, DType::F32, DType::F32),
        ] {
            for rows in [1, 2, 4, 8] {
                all.push(GemmKernel { path: GemmPath::Few, a, b, c, rows, a_by_k, b_by_k, epilogue: None });
            }
        }
    }
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let simt = GemmKernel {
            path: GemmPath::Simt,
            a: dtype,
            b: dtype,
            c: DType::F32,
            rows: 64,
            a_by_k: false,
            b_by_k: false,
            epilogue: None,
        };
        all.push(simt);
    }
    all
}

/// Attention of every path, with every flag.
fn attentions() -> Vec<AttentionKernel> {
    let plain = AttentionKernel {
        path: AttentionPath::Mma,
        split: false,
        dtype: DType::BF16,
        d: 64,
        e: 64,
        causal: true,
        window: false,
        softcap: false,
        slopes: false,
        bf16_bias: false,
    };
    let mut all = vec![];
    for (d, e) in [(16, 16), (48, 32), (64, 64), (128, 128), (256, 256), (192, 128)] {
        all.push(AttentionKernel { d, e, ..plain });
        all.push(AttentionKernel { d, e, dtype: DType::F16, window: true, softcap: true, ..plain });
        all.push(AttentionKernel { d, e, causal: false, slopes: true, ..plain });
        let most = AttentionKernel { d, e, window: true, softcap: true, slopes: true, ..plain };
        all.push(AttentionKernel { bf16_bias: true, ..most });
        let few = AttentionKernel { path: AttentionPath::Few, ..most };
        let plain_few = AttentionKernel { d, e, path: AttentionPath::Few, ..plain };
        for few in [plain_few, few] {
            all.extend([few, AttentionKernel { split: true, ..few }]);
        }
        if d <= 128 && e <= 128 {
            let wide = AttentionKernel { d, e, path: AttentionPath::Wide, ..plain };
            all.push(wide);
            all.push(AttentionKernel { dtype: DType::F16, window: true, ..wide });
            all.push(AttentionKernel { causal: false, ..wide });
        }
    }
    // Where registers are fewest.
    for (d, e) in [(64, 128), (96, 112), (128, 64)] {
        let wide = AttentionKernel { d, e, path: AttentionPath::Wide, ..plain };
        all.extend([wide, AttentionKernel { dtype: DType::F16, window: true, ..wide }]);
    }
    for (d, e) in [(128, 256), (160, 160)] {
        let most = AttentionKernel { d, e, window: true, softcap: true, slopes: true, ..plain };
        let most = AttentionKernel { bf16_bias: true, ..most };
        all.extend([most, AttentionKernel { path: AttentionPath::Few, ..most }]);
    }
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let simt = AttentionKernel { path: AttentionPath::Simt, dtype, ..plain };
        all.push(AttentionKernel { split: true, ..simt });
        all.push(simt);
        all.push(AttentionKernel { d: 7, e: 300, window: true, softcap: true, slopes: true, ..simt });
    }
    all
}

fn all() -> Vec<LibraryKernel> {
    let gemms = gemms().into_iter().map(LibraryKernel::Gemm);
    let attentions = attentions();
    let joins: BTreeSet<JoinKernel> = attentions.iter().filter_map(AttentionKernel::join).collect();
    let attentions = attentions.into_iter().map(LibraryKernel::Attention);
    let tops = [(DType::F32, 40), (DType::BF16, 8), (DType::F16, 1000)]
        .map(|(dtype, k)| LibraryKernel::TopK(TopKKernel { dtype, k }));
    let joins = joins.into_iter().map(LibraryKernel::AttentionJoin);
    gemms.chain(attentions).chain(joins).chain(tops).chain([LibraryKernel::Sample]).collect()
}

/// Products of 16 x 16 by 16 x 8 that the text of a kernel has.
fn products(kernel: &LibraryKernel) -> u32 {
    match kernel {
        LibraryKernel::Gemm(g) if g.path == GemmPath::Mma => {
            let tile = g.mma_tile();
            tile.warp_rows / 16 * (tile.warp_cols / 8) * (tile.depth / 16)
        }
        LibraryKernel::Attention(a) if a.path != AttentionPath::Simt => {
            a.warp_rows() / 16 * (a.tile_keys() / 8 * (a.d / 16) + a.tile_keys() / 16 * (a.e / 8))
        }
        _ => 0,
    }
}

#[test]
fn products_become_tensor_core_instructions() {
    for kernel in all().into_iter().filter(|k| k.exists_for(Arch::Sm80)) {
        let text = ptx(Arch::Sm80, &kernel);
        let mma = text.matches("mma.sync.aligned.m16n8k16.row.col.f32").count();
        assert_eq!(mma, products(&kernel) as usize, "{kernel:?}");
    }
    keep(&[], &all());
}
