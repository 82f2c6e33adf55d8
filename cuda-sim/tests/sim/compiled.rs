//! Kernels as LLVM 22 writes them: `opt -O2 X.ll -S | llc -mtriple=nvptx64 -mcpu=sm_90 -mattr=+ptx78` (`wide`: `sm_100a`, `ptx86`, without `opt`).

use half::bf16;
use pcc_cuda_sim::Fault;
use pcc_cuda_sim::exec::{Launch, run};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::Module;

const SOFTMAX: &str = include_str!("../kernels/softmax.ptx");
const ROWS: usize = 3;
const COLUMNS: usize = 300;

#[test]
fn everything_in_it_is_known() {
    let module = Module::load(include_str!("../kernels/mixed.ptx")).unwrap();
    assert_eq!(module.target, "sm_90");
    let k4 = module.kernel("k4").unwrap();
    assert_eq!(k4.params, [8, 8, 8, 4, 4, 8, 2]);
    assert_eq!(module.kernel("k2").unwrap().shared, 256);
    let module = Module::load(include_str!("../kernels/wide.ptx")).unwrap();
    assert_eq!((module.target.as_str(), module.kernels().len()), ("sm_100a", 3));
}

/// The rows' elements: from -8 to 8.
fn rows() -> Vec<bf16> {
    (0..ROWS * COLUMNS).map(|i| bf16::from_f32((i * 37 % 257) as f32 / 16.0 - 8.0)).collect()
}

/// Runs a text over the rows, 128 threads each.
fn softmax(text: &str, seed: u64) -> Result<Vec<f32>, Fault> {
    let module = Module::load(text)?;
    let memory = Memory::new();
    let bytes: Vec<u8> = rows().iter().flat_map(|x| x.to_le_bytes()).collect();
    let len = bytes.len() as u64;
    let (x, y) = (memory.alloc(0, len)?, memory.alloc(0, len)?);
    memory.write(x, &bytes)?;
    let params = [x, y, COLUMNS as u64].map(|p| p.to_le_bytes().to_vec());
    let kernel = module.kernel("softmax").unwrap();
    let (grid, block) = ([ROWS as u32, 1, 1], [128, 1, 1]);
    run(&memory, &Launch { kernel, device: 0, grid, block, shared: 0, params: &params, seed })?;
    Ok(memory.read(y, len)?.chunks(2).map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32()).collect())
}

/// Whether these are the softmax of the rows, as f64 has it, within the rounding of bf16.
fn right(got: &[f32]) -> bool {
    rows().chunks(COLUMNS).zip(got.chunks(COLUMNS)).all(|(row, got)| {
        let exp: Vec<f64> = row.iter().map(|x| f64::from(x.to_f32()).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().zip(got).all(|(e, &g)| (e / sum - f64::from(g)).abs() <= e / sum / 250.0)
    })
}

#[test]
fn softmax_of_rows_is_that_of_f64() {
    for seed in 0..6 {
        assert!(right(&softmax(SOFTMAX, seed).unwrap()), "seed {seed}");
    }
}

/// The text with the n-th of some pieces replaced.
fn with(text: &str, n: usize, piece: &str, instead: &str) -> String {
    let (at, _) = text.match_indices(piece).nth(n).unwrap();
    format!("{}{instead}{}", &text[..at], &text[at + piece.len()..])
}

/// Any maximum at all makes the same softmax: only the shuffles of the sum, from the tenth on, are changed in value. Of its last five, those of the
/// sums of four warps, the first three add zeros.
#[test]
fn mutants_of_it_are_caught() {
    let caught = |text: String| (0..6).all(|seed| softmax(&text, seed).map_or(true, |got| !right(&got)));
    let each = |piece: &str, instead: &str, which: std::ops::Range<usize>| {
        assert!(SOFTMAX.matches(piece).count() >= which.end, "{piece}");
        for n in which {
            assert!(caught(with(SOFTMAX, n, piece, instead)), "{piece} number {n} as {instead:?}");
        }
    };
    each("bar.sync", "//", 0..3);
    each("st.shared.b32", "//", 0..2);
    each(", 31, -1;", ", 31, 0xffff;", 0..20);
    each(", 31, -1;", ", 0, -1;", 10..15);
    each(", 1, 31, -1;", ", 2, 31, -1;", 2..4);
    each("setp.ne.b32", "setp.eq.b32", 0..1);
    each("setp.ge.u32", "setp.gt.u32", 0..1);
    each("setp.lt.u64", "setp.le.u64", 0..3);
}
