//! Products and attention of random extents, types, strides and flags. `RANDOM_GPU_SEEDS=0..2000` draws more.

use super::data::noise;
use super::{arch_of, attention_ptx, ptx};
use super::{attentions, products};
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath};
use pcc_ir::gpu::gemm::{GemmKernel, GemmPath};
use pcc_ir::gpu::{Arch, LibraryKernel};
use pcc_ir::types::DType;
use std::ops::Range;

/// Draws of one seed.
struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.count += 1;
        (((noise(self.seed, self.count) + 1.0) / 2.0 * n as f64) as u64).min(n - 1)
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Mostly small, at times up to `most`.
    fn extent(&mut self, most: u64) -> u64 {
        let most = self.of(&[9, 40, most]);
        1 + self.below(most)
    }
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(range) = std::env::var("RANDOM_GPU_SEEDS") else { return usual };
    let (from, to) = range.split_once("..").expect("RANDOM_GPU_SEEDS is a range, 0..2000");
    from.parse().unwrap()..to.parse().unwrap()
}

fn product(draws: &mut Draws) -> products::Case {
    let path = draws.of(&[GemmPath::Mma, GemmPath::Few, GemmPath::Simt, GemmPath::Wgmma]);
    let floats = [DType::F32, DType::BF16, DType::F16, DType::F64];
    let (mut a, mut b, c) = (draws.of(&floats), draws.of(&floats), draws.of(&floats));
    if matches!(path, GemmPath::Mma | GemmPath::Wgmma) {
        a = draws.of(&[DType::BF16, DType::F16]);
        b = a;
    }
    let rows = match path {
        GemmPath::Mma => draws.of(&[64, 128]),
        GemmPath::Few => draws.of(&[1, 2, 4, 8]),
        GemmPath::Simt => 64,
        GemmPath::Wgmma => 128,
    };
    let m = if path == GemmPath::Few { 1 + draws.below(u64::from(rows) + 1) } else { draws.extent(200) };
    let kernel =
        GemmKernel { path, a, b, c, rows, a_by_k: draws.coin(), b_by_k: draws.coin(), epilogue: None };
    let shape = (m, draws.extent(200), draws.extent(300));
    products::Case {
        batch: [1 + draws.below(2), 1, 1 + draws.below(2)],
        alpha: draws.of(&[1.0, -0.5, 0.3]),
        pad: draws.below(10) as i64,
        c_by_m: draws.coin(),
        shared_b: draws.coin(),
        ..products::Case::new(kernel, shape)
    }
}

fn attention(draws: &mut Draws) -> attentions::Case {
    let path = draws.of(&[AttentionPath::Mma, AttentionPath::Wide, AttentionPath::Few, AttentionPath::Simt]);
    let simt = path == AttentionPath::Simt;
    let floats = [DType::BF16, DType::F16, DType::F32, DType::F64];
    let dtype = if simt { draws.of(&floats) } else { draws.of(&floats[..2]) };
    let mut width = || {
        if simt {
            draws.extent(100) as u32
        } else {
            draws.extent(if path == AttentionPath::Wide { 128 } else { 256 }) as u32
        }
        .next_multiple_of(if simt { 1 } else { 16 })
        .min(256)
    };
    let (d, e) = (width(), width());
    let slopes = draws.coin();
    let kernel = AttentionKernel {
        split: matches!(path, AttentionPath::Few | AttentionPath::Simt) && draws.coin(),
        causal: draws.coin(),
        window: draws.coin(),
        softcap: draws.coin(),
        slopes,
        bf16_bias: slopes && draws.coin(),
        ..attentions::kernel(path, dtype, d, e)
    };
    let s = if path == AttentionPath::Few { 1 + draws.below(4) } else { draws.extent(60) };
    let shape = (
        1 + draws.below(2),
        s,
        draws.extent(if path == AttentionPath::Few { 600 } else { 150 }),
        1 + draws.below(2),
        draws.of(&[1, 2, 3, 4]),
    );
    attentions::Case {
        start: draws.below(shape.2) as i64,
        k_pos: draws.of(&[
            attentions::in_order,
            attentions::with_holes,
            attentions::cache,
            attentions::backwards,
        ]),
        window: 1 + draws.below(100),
        scale: draws.of(&[0.2, 1.0, -0.7]),
        softcap: draws.of(&[0.5, 3.0]),
        by_head: draws.coin(),
        scattered: draws.coin(),
        ..attentions::Case::new(kernel, shape)
    }
}

#[test]
fn random_products_equal_their_formula() {
    for seed in seeds(0..8) {
        let case = product(&mut Draws { seed, count: 0 });
        let text = ptx(arch_of(&case.kernel), &LibraryKernel::Gemm(case.kernel));
        case.check(&text, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{case:?}"));
    }
}

#[test]
fn random_attention_equals_its_formula() {
    for seed in seeds(0..8) {
        let case = attention(&mut Draws { seed, count: 0 });
        let text = attention_ptx(Arch::Sm80, &case.kernel);
        case.check(&text, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{case:?}"));
    }
}
