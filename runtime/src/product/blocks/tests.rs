use super::*;
use crate::product::panels::Element;
use pcc_ir::source::BlockRows;

/// A matrix of `k` rows and `n` columns, quantised, with `phase` rows of another slice before them; and its values.
struct Case {
    format: BlockFormat,
    phase: usize,
    k: usize,
    n: usize,
    /// 64-byte aligned.
    memory: Vec<[u64; 8]>,
    /// Row-major.
    values: Vec<f32>,
}

/// Numbers without a pattern, in -1..1.
fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Case {
    fn new(format: BlockFormat, phase: usize, k: usize, n: usize, mut seed: u64) -> Self {
        let group = format.group as usize;
        let groups = (phase + k).div_ceil(group);
        let low = if format.bits == 4 { i32::from(format.low) } else { -128 };
        let code = |x: f32| (low + ((x + 1.0) / 2.0 * (1 << format.bits) as f32) as i32) as i8;
        let scale = |x: f32| if format.half { half::f16::from_f32(x).to_f32() } else { x };
        let codes: Vec<i8> = (0..n * groups * group).map(|_| code(noise(&mut seed))).collect();
        let mut scales: Vec<f32> = (0..n * groups).map(|_| scale(0.1 * noise(&mut seed))).collect();
        let mut offsets: Vec<f32> = (0..n * groups).map(|_| scale(noise(&mut seed))).collect();
        if !format.offsets {
            offsets.fill(0.0);
        }
        let mut values = vec![0.0; k * n];
        for (i, v) in values.iter_mut().enumerate() {
            let (row, column) = (phase + i / n, i % n);
            let g = column * groups + row / group;
            *v = scales[g] * f32::from(codes[column * groups * group + row]) + offsets[g];
        }
        let panel = groups * format.group_bytes();
        let mut memory = vec![[0u64; 8]; (HEADER + n.div_ceil(WIDTH) * panel) / 64];
        let bytes: &mut [u8] = as_bytes(&mut memory);
        bytes[..4].copy_from_slice(&(phase as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(k as u32).to_le_bytes());
        let rows = BlockRows { codes: &mut codes.clone(), scales: &mut scales, offsets: &mut offsets };
        for (p, panel) in bytes[HEADER..].chunks_exact_mut(panel).enumerate() {
            let columns = p * WIDTH..((p + 1) * WIDTH).min(n);
            pack(&format, groups, columns.clone().map(|c| (c - p * WIDTH, c)), &rows, panel);
        }
        Self { format, phase, k, n, memory, values }
    }

    fn blocks(&self) -> Blocks {
        let groups = (self.phase + self.k).div_ceil(self.format.group as usize);
        Blocks { format: self.format, groups, start: self.memory.as_ptr().cast() }
    }
}

fn as_bytes(memory: &mut [[u64; 8]]) -> &mut [u8] {
    // SAFETY: integers are plain bytes.
    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.len() * 64) }
}

fn formats() -> Vec<BlockFormat> {
    let mut all = Vec::new();
    for (group, offsets, half) in
        [(32, true, true), (32, false, true), (32, true, false), (16, false, false), (16, true, false)]
    {
        for (bits, low) in [(4, 0), (4, -8), (8, i8::MIN)] {
            all.push(BlockFormat { group, bits, low, offsets, half });
        }
    }
    all
}

fn paths() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|p| p.is_there(Element::F32))
}

/// Every path multiplies right, wherever blocks are cut, and columns are the values themselves.
fn check(case: &Case, m: usize, seed: u64) {
    let (k, n, blocks) = (case.k, case.n, case.blocks());
    let mut seed = seed;
    let a: Vec<f32> = (0..m * k).map(|_| noise(&mut seed)).collect();
    let before: Vec<f32> = (0..m * n).map(|_| noise(&mut seed)).collect();
    for path in paths() {
        for accumulate in [false, true] {
            let mut c = before.clone();
            let (rows_a, rows_c) = (
                Rows { start: a.as_ptr().cast_mut(), row: k as isize, col: 1 },
                Rows { start: c.as_mut_ptr(), row: n as isize, col: 1 },
            );
            let cut = n.div_ceil(WIDTH) / 2;
            let task = Task { m, n, k, a: rows_a, b: blocks, c: rows_c, alpha: 0.5, accumulate };
            for panels in [0..cut, cut..n.div_ceil(WIDTH)] {
                // SAFETY: a, b and c have the extents given.
                unsafe { task.run_on(path, panels) };
            }
            for i in 0..m {
                for j in 0..n {
                    let terms = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(case.values[p * n + j]));
                    let (sum, size) = terms.fold((0.0, 1.0), |(s, t), x| (s + x, t + x.abs()));
                    let want = 0.5 * sum + if accumulate { f64::from(before[i * n + j]) } else { 0.0 };
                    let got = f64::from(c[i * n + j]);
                    assert!(
                        (got - want).abs() < 1e-5 * size,
                        "{path:?} {:?} {m}x{k}x{n} {i} {j}: {got} {want}",
                        case.format
                    );
                }
            }
        }
    }
    for column in 0..n {
        let first = column % k;
        let mut values = vec![f32::NAN; k - first];
        // SAFETY: the column is there.
        unsafe { blocks.column(column, first, &mut values) };
        let want: Vec<f32> = (first..k).map(|p| case.values[p * n + column]).collect();
        assert_eq!(values, want, "{:?}", case.format);
    }
}

#[test]
fn every_format_path_and_number_of_rows() {
    for (i, format) in formats().into_iter().enumerate() {
        for m in [1, 2, 3, 7, 12, 13] {
            check(&Case::new(format, 0, 64, 40, i as u64), m, m as u64);
        }
    }
}

#[test]
fn any_cut() {
    let mut seed = 7;
    for round in 0..25 {
        let mut below = |n: usize| ((noise(&mut seed) + 1.0) / 2.0 * n as f32) as usize;
        let format = formats()[below(15)];
        let (phase, k, n, m) = (below(format.group as usize), 1 + below(150), 1 + below(100), 1 + below(30));
        check(&Case::new(format, phase, k, n, round), m, round);
    }
}

/// A header that lies moves nothing outside.
#[test]
fn a_lying_header_stays_inside() {
    let format = formats()[0];
    let mut case = Case::new(format, 3, 64, 32, 1);
    let asked = |case: &Case| {
        let mut values = vec![f32::NAN; 200];
        // SAFETY: the column is there, if not so many rows.
        unsafe { case.blocks().column(31, 0, &mut values) };
        values
    };
    assert_eq!(asked(&case)[64..], [0.0; 136]);
    for (header, rows) in [(u64::MAX, 96..96), (u64::MAX << 32 | 3, 3..96), (200 << 32 | 90, 90..96)] {
        case.memory[0][0] = header;
        // SAFETY: the header is there.
        assert_eq!(unsafe { case.blocks().slice() }, rows);
        assert_eq!(asked(&case)[rows.len()..], vec![0.0; 200 - rows.len()]);
    }
}
