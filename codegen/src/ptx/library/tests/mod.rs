//! The kernels, assembled and run.

use super::module;
use crate::ptx::{Generator, header};
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::{Arch, LibraryKernel};
use pcc_ir::types::DType;

/// PTX of one kernel with its header.
fn ptx(arch: Arch, kernel: &LibraryKernel) -> String {
    let generator = Generator::new(arch).unwrap();
    header(arch) + &generator.ptx(&module(&generator.context, kernel).unwrap()).unwrap()
}

/// Kernels of every path and orientation.
fn gemms() -> Vec<GemmKernel> {
    let mut all = vec![];
    for (a_by_k, b_by_k) in [(true, true), (true, false), (false, true), (false, false)] {
        for (dtype, c) in [(DType::BF16, DType::BF16), (DType::F16, DType::F32)] {
            for rows in [64, 128] {
                all.push(GemmKernel { path: GemmPath::Mma, a: dtype, b: dtype, c, rows, a_by_k, b_by_k });
            }
        }
        for (a, b, c) in [
            (DType::BF16, DType::BF16, DType::BF16),
            (DType::F32, DType::BF16, DType::F32),
            (DType::F32, DType::F32, DType::F32),
        ] {
            for rows in [1, 2, 4, 8] {
                all.push(GemmKernel { path: GemmPath::Few, a, b, c, rows, a_by_k, b_by_k });
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
        };
        all.push(simt);
    }
    all
}

#[test]
fn products_become_tensor_core_instructions() {
    for g in gemms() {
        let text = ptx(Arch::Sm80, &LibraryKernel::Gemm(g));
        let mma = text.matches("mma.sync.aligned.m16n8k16.row.col.f32").count();
        let tile = g.mma_tile();
        let fragments = tile.warp_rows / 16 * (tile.warp_cols / 8) * (tile.depth / 16);
        let expected = if g.path == GemmPath::Mma { fragments as usize } else { 0 };
        assert_eq!(mma, expected, "{g:?}");
    }
}
