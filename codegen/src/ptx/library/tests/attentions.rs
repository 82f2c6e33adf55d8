//! Attention against its formula in f64.

use super::attention_ptx;
use super::data::{Data, Device, View, rounded_off, rounding};
use pcc_ir::gpu::attention::{AttentionKernel, AttentionPath, RANGE_KEYS};
use pcc_ir::gpu::{Arch, LibraryKernel, Shape, f32_param};
use pcc_ir::ops::Attention;
use pcc_ir::types::DType;

/// Attention over noise.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub kernel: AttentionKernel,
    pub b: u64,
    pub s: u64,
    pub t: u64,
    pub g: u64,
    pub r: u64,
    /// Position of the first query; another row of the batch stands two further on.
    pub start: i64,
    /// Where key `t` of a row of the batch stands; negative where there is none.
    pub k_pos: fn(b: u64, t: u64) -> i64,
    pub window: u64,
    pub softcap: f32,
    /// What scores of noise are multiplied by.
    pub scale: f32,
    /// Whether operands have heads outside of positions, and gaps.
    pub by_head: bool,
    /// Whether the call has positions of queries, and these go up and down.
    pub positions: bool,
    pub scattered: bool,
}

/// Keys one after another, the last of which is behind the end of its row.
pub(super) fn in_order(_: u64, t: u64) -> i64 {
    t as i64
}

impl Case {
    pub fn new(kernel: AttentionKernel, (b, s, t, g, r): (u64, u64, u64, u64, u64)) -> Self {
        let start = t as i64 - s as i64;
        let (window, softcap, scale) = (5, 2.0, 1.5);
        Case {
            kernel,
            b,
            s,
            t,
            g,
            r,
            start,
            k_pos: in_order,
            window,
            softcap,
            scale,
            by_head: false,
            positions: true,
            scattered: false,
        }
    }

    fn op(&self) -> Attention {
        Attention {
            scale: self.scale.into(),
            causal: self.kernel.causal,
            window: self.kernel.window.then_some(self.window as usize),
            softcap: self.kernel.softcap.then_some(self.softcap.into()),
            bf16_bias: self.kernel.bf16_bias,
        }
    }

    fn q_pos(&self, b: u64, s: u64) -> i64 {
        match (self.positions, self.scattered) {
            (false, _) => 0,
            (true, false) => self.start + (s + 2 * b) as i64,
            (true, true) => self.start + (s * 29 % 67 + 2 * b) as i64,
        }
    }

    /// Runs the kernel's text as the runtime would and compares.
    pub fn check(&self, text: &str, seed: u64) -> Result<(), String> {
        let shape = self.kernel.shape(self.b, self.s, self.g, self.r);
        let grid = [shape.grid[0], shape.grid[1], self.kernel.ranges(self.t)];
        self.check_at(text, Shape { grid, ..shape }, seed)
    }

    pub fn check_at(&self, text: &str, shape: Shape, seed: u64) -> Result<(), String> {
        let Case { kernel, b, s, t, g, r, .. } = *self;
        let AttentionKernel { dtype, d, e, .. } = kernel;
        let align = if kernel.path == AttentionPath::Simt { 1 } else { 8 };
        let pad = i64::from(self.by_head) * 3;
        let of_queries = |width: u32| {
            let order = if self.by_head { [4, 1, 3, 2, 0] } else { [4, 3, 2, 1, 0] };
            View::new(dtype, &[b, s, g, r, width.into()], &order, align, pad)
        };
        let of_keys = |width: u32| {
            let order = if self.by_head { [3, 1, 2, 0] } else { [3, 2, 1, 0] };
            View::new(dtype, &[b, t, g, width.into()], &order, align, pad)
        };
        let q = Data::noise(of_queries(d), 1);
        let (k, v) = (Data::noise(of_keys(d), 2), Data::noise(of_keys(e), 3));
        let positions = |n: u64, at: &dyn Fn(u64, u64) -> i64| {
            let view = View::new(DType::I32, &[b, n], &[1, 0], 1, 0);
            let values = view.indices().map(|i| at(i[0], i[1]) as f64).collect();
            Data { view, values }
        };
        let (q_pos, k_pos) = (positions(s, &|b, s| self.q_pos(b, s)), positions(t, &self.k_pos));
        let of_slopes = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let slopes = Data::noise(View::new(of_slopes, &[g, r], &[1, 0], 1, 0), 4);
        let out = of_queries(e);
        let op = self.op();
        let sees = |b: u64, s: u64, t: u64| op.sees(q_pos.at(&[b, s]), k_pos.at(&[b, t]));
        // What is before or behind all that the queries see was never written.
        let seen = |i: &[u64]| {
            let (at, k_pos) = ((0..s).map(|at| q_pos.at(&[i[0], at])), k_pos.at(&[i[0], i[1]]));
            let ends = at.fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
            let low = if kernel.window { ends.0 - self.window as f64 } else { -1.0 };
            k_pos >= 0.0 && k_pos > low && (!kernel.causal || k_pos <= ends.1)
        };
        let device = Device::new();
        let places = [
            device.put(&q, |_| true)?,
            device.put(&k, seen)?,
            device.put(&v, seen)?,
            if self.positions { device.put(&q_pos, |_| true)? } else { 0 },
            device.put(&k_pos, |_| true)?,
            if kernel.slopes { device.put(&slopes, |_| true)? } else { 0 },
            device.alloc(&out)?,
        ];
        let mut params = places.to_vec();
        params.extend([b, s, t, g, r]);
        for view in [&q.view, &k.view, &v.view, &q_pos.view, &k_pos.view, &slopes.view, &out] {
            params.extend(view.strides.iter().map(|&s| s as u64));
        }
        params.extend([f32_param(self.scale), f32_param(self.softcap), self.window]);
        let ranges = t.div_ceil(RANGE_KEYS.into()).max(1);
        let partials = View::new(DType::F32, &[b * g * ranges * s * r * u64::from(e + 2)], &[0], 1, 0);
        let partials = device.alloc(&partials)?;
        params.extend(kernel.split.then_some(partials));
        device.run(text, &LibraryKernel::Attention(kernel), shape, &params, seed)?;
        if let Some(join) = kernel.join() {
            let mut params = vec![partials, places[6], b, s, g, r, ranges];
            params.extend(out.strides.iter().map(|&s| s as u64));
            let kernel = LibraryKernel::AttentionJoin(join);
            let shape = join.shape(b * s * g * r);
            let grid = [shape.grid[0].min(3), 1, 1];
            device.run(text, &kernel, Shape { grid, ..shape }, &params, seed)?;
        }
        let weights = |index: &[u64]| -> Vec<f64> {
            let &[b, s, g, r] = index else { unreachable!() };
            let slope = if kernel.slopes { slopes.at(&[g, r]) } else { 0.0 };
            let score = |t: u64| {
                let product =
                    (0..d.into()).map(|i| q.at(&[b, s, g, r, i]) * k.at(&[b, t, g, i])).sum::<f64>();
                let x = op.scale * product;
                let x = op.softcap.map_or(x, |cap| cap * (x / cap).tanh());
                if sees(b, s, t) { x + op.bias(slope, k_pos.at(&[b, t])) } else { f64::NEG_INFINITY }
            };
            let scores: Vec<f64> = (0..t).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if most == f64::NEG_INFINITY {
                return vec![0.0; scores.len()];
            }
            let sum: f64 = scores.iter().map(|x| (x - most).exp()).sum();
            scores.iter().map(|x| (x - most).exp() / sum).collect()
        };
        let queries = View::new(DType::F64, &[b, s, g, r], &[3, 2, 1, 0], 1, 0);
        let all: Vec<Vec<f64>> = queries.indices().map(|i| weights(&i)).collect();
        device.compare(places[6], &out, |index| {
            let &[b, s, g, r, column] = index else { unreachable!() };
            let weights = &all[(((b * self.s + s) * self.g + g) * self.r + r) as usize];
            let terms = (0..t).map(|t| weights[t as usize] * v.at(&[b, t, g, column]));
            let (want, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            // Weights are rounded to 16 bits on tensor cores, scores and sums to f32.
            let weight = if kernel.path == AttentionPath::Simt { 0.0 } else { rounding(dtype) };
            // Biases grow with the distance of a key, and a unit in their last place with them.
            let bias = if kernel.slopes { t as f64 * rounding(DType::F32) } else { 0.0 };
            (want, size * (1.01 * weight + 1e-5 + bias) + rounded_off(dtype, want))
        })
    }
}

/// Checks each case with its kernel, under two orders of blocks and warps.
fn check_all(cases: &[Case]) {
    for case in cases {
        let text = attention_ptx(Arch::Sm80, &case.kernel);
        for seed in [1, 2] {
            case.check(&text, seed).unwrap_or_else(|e| panic!("{e}\nseed {seed}, {case:?}"));
        }
    }
}

pub(super) fn kernel(path: AttentionPath, dtype: DType, d: u32, e: u32) -> AttentionKernel {
    AttentionKernel {
        path,
        split: false,
        dtype,
        d,
        e,
        causal: true,
        window: false,
        softcap: false,
        slopes: false,
        bf16_bias: false,
    }
}

/// Each flag by itself, and all together.
fn flags(plain: AttentionKernel) -> [AttentionKernel; 7] {
    let window = AttentionKernel { window: true, ..plain };
    let slopes = AttentionKernel { slopes: true, ..plain };
    [
        plain,
        AttentionKernel { causal: false, ..plain },
        window,
        AttentionKernel { softcap: true, ..plain },
        slopes,
        AttentionKernel { bf16_bias: true, ..slopes },
        AttentionKernel { softcap: true, slopes: true, ..window },
    ]
}

/// Every third key is padding, and the first row of the batch begins late.
pub(super) fn with_holes(b: u64, t: u64) -> i64 {
    if t % 3 == 1 || (b == 0 && t < 4) { -1 } else { t as i64 - 1 }
}

/// A cache of which the first 21 keys are there.
pub(super) fn cache(_: u64, t: u64) -> i64 {
    if t < 21 { t as i64 } else { -1 }
}

/// Keys from the last to the first.
pub(super) fn backwards(_: u64, t: u64) -> i64 {
    200 - t as i64
}

/// Only a far tile has keys.
fn far(_: u64, t: u64) -> i64 {
    if t < 700 { -1 } else { t as i64 - 700 }
}

fn cases(path: AttentionPath, dtype: DType, d: u32, e: u32) -> Vec<Case> {
    let plain = kernel(path, dtype, d, e);
    let mut all = vec![];
    for (i, kernel) in flags(plain).into_iter().enumerate() {
        let r = [1, 3, 4][i % 3];
        // A prefill, one behind a cache, and a decode step.
        all.push(Case::new(kernel, (2, 37, 37, 2, r)));
        all.push(Case { by_head: true, k_pos: with_holes, ..Case::new(kernel, (2, 5, 70, 1, r)) });
        all.push(Case { start: 20, k_pos: cache, ..Case::new(kernel, (1, 1, 150, 2, r)) });
    }
    all
}

#[test]
fn tensor_cores_with_every_flag() {
    check_all(&cases(AttentionPath::Mma, DType::BF16, 32, 16));
}

#[test]
fn tensor_cores_of_any_heads() {
    for (i, (d, e)) in
        [(16, 48), (64, 64), (80, 112), (96, 128), (128, 256), (192, 144), (16, 256)].into_iter().enumerate()
    {
        let dtype = if i % 2 == 0 { DType::F16 } else { DType::BF16 };
        let kernel = AttentionKernel { window: i == 4, ..kernel(AttentionPath::Mma, dtype, d, e) };
        check_all(&[Case { window: 40, scale: 0.3, ..Case::new(kernel, (1, 50, 130, 1, 2)) }]);
    }
}

#[test]
fn tensor_cores_pass_over_tiles_that_no_row_sees() {
    let plain = kernel(AttentionPath::Mma, DType::BF16, 16, 16);
    let window = AttentionKernel { window: true, ..plain };
    let shape = (1, 70, 200, 1, 2);
    check_all(&[
        Case { k_pos: backwards, start: 100, ..Case::new(plain, shape) },
        Case { k_pos: far, start: 3, ..Case::new(plain, (1, 3, 800, 1, 4)) },
        Case { window: 3, ..Case::new(window, (2, 100, 600, 1, 1)) },
        // Nobody sees anything, and positions before the first.
        Case { k_pos: |_, _| -1, ..Case::new(plain, (1, 3, 70, 1, 1)) },
        Case { start: -2, ..Case::new(plain, (1, 5, 70, 1, 1)) },
    ]);
    // Few blocks go round over heads.
    let case = Case::new(plain, (2, 33, 40, 3, 2));
    let text = attention_ptx(Arch::Sm80, &plain);
    case.check_at(&text, Shape { grid: [3, 4, 1], ..plain.shape(2, 33, 3, 2) }, 3).unwrap();
}

#[test]
fn wide_tensor_cores_with_every_flag() {
    check_all(&cases(AttentionPath::Wide, DType::BF16, 16, 32));
    for (i, (d, e)) in [(16, 48), (64, 64), (80, 112), (128, 128)].into_iter().enumerate() {
        let dtype = if i % 2 == 0 { DType::F16 } else { DType::BF16 };
        let kernel = kernel(AttentionPath::Wide, dtype, d, e);
        check_all(&[Case { scale: 0.3, ..Case::new(kernel, (1, 90, 130, 1, 2)) }]);
    }
}

#[test]
fn few_rows_with_every_flag() {
    let mut all = vec![];
    for (i, kernel) in flags(kernel(AttentionPath::Few, DType::BF16, 32, 16)).into_iter().enumerate() {
        let r = [1, 3, 4][i % 3];
        all.push(Case { start: 20, k_pos: cache, ..Case::new(kernel, (2, 1, 150, 2, r)) });
        all.push(Case { by_head: true, k_pos: with_holes, ..Case::new(kernel, (1, 4, 600, 2, r)) });
        all.push(Case { window: 300, ..Case::new(kernel, (1, 2, 700, 1, 8)) });
    }
    check_all(&all);
}

#[test]
fn few_rows_of_any_heads() {
    for (i, (d, e)) in
        [(16, 48), (80, 112), (128, 128), (128, 256), (192, 144), (16, 256)].into_iter().enumerate()
    {
        let dtype = if i % 2 == 0 { DType::F16 } else { DType::BF16 };
        let kernel = kernel(AttentionPath::Few, dtype, d, e);
        check_all(&[Case { scale: 0.3, ..Case::new(kernel, (1, 3, 330, 1, 4)) }]);
    }
    // More rows than the kernel is chosen for, and few blocks that go round.
    let plain = kernel(AttentionPath::Few, DType::BF16, 16, 16);
    let case = Case::new(plain, (2, 19, 300, 3, 2));
    let text = attention_ptx(Arch::Sm80, &plain);
    case.check_at(&text, Shape { grid: [3, 4, 1], ..plain.shape(2, 19, 3, 2) }, 3).unwrap();
}

#[test]
fn no_keys_give_zeros() {
    for path in [AttentionPath::Mma, AttentionPath::Wide, AttentionPath::Few, AttentionPath::Simt] {
        check_all(&[Case::new(kernel(path, DType::BF16, 16, 16), (1, 3, 0, 2, 2))]);
    }
}

#[test]
fn warps_with_every_flag() {
    check_all(&cases(AttentionPath::Simt, DType::F32, 6, 5));
}

#[test]
fn warps_of_any_types_and_heads() {
    for (dtype, d, e) in
        [(DType::BF16, 7, 33), (DType::F16, 16, 300), (DType::F64, 3, 64), (DType::F32, 1, 257)]
    {
        let kernel = AttentionKernel { window: e == 64, ..kernel(AttentionPath::Simt, dtype, d, e) };
        check_all(&[Case { by_head: true, ..Case::new(kernel, (2, 6, 45, 2, 2)) }]);
    }
    // Slopes without positions of queries.
    let plain = kernel(AttentionPath::Simt, DType::F32, 8, 8);
    let kernel = AttentionKernel { causal: false, slopes: true, ..plain };
    let case = Case { positions: false, ..Case::new(kernel, (1, 3, 40, 2, 2)) };
    check_all(std::slice::from_ref(&case));
    let text = attention_ptx(Arch::Sm80, &kernel);
    case.check_at(&text, Shape { grid: [1, 2, 1], ..kernel.shape(1, 3, 2, 2) }, 3).unwrap();
}

/// Keys of the second range only; of three ranges the first and the last have nothing.
fn second_range(_: u64, t: u64) -> i64 {
    if (300..310).contains(&t) { t as i64 } else { -1 }
}

/// Keys around the bounds of ranges, and ranges in which some query or none sees anything.
fn split_cases(plain: AttentionKernel) -> Vec<Case> {
    let mut all = vec![];
    for (i, t) in [0, 1, 31, 255, 256, 257, 511, 513, 700].into_iter().enumerate() {
        let (s, r) = [(1, 1), (1, 4), (2, 3)][i % 3];
        all.push(Case { by_head: i % 2 == 0, ..Case::new(plain, (1 + t % 2, s, t, 2, r)) });
    }
    for (i, kernel) in flags(plain).into_iter().enumerate() {
        let r = [1, 3, 4][i % 3];
        all.push(Case { start: 20, k_pos: cache, ..Case::new(kernel, (2, 1, 530, 2, r)) });
        all.push(Case { by_head: true, k_pos: with_holes, ..Case::new(kernel, (1, 4, 600, 2, r)) });
        all.push(Case { window: 300, ..Case::new(kernel, (1, 2, 700, 1, 8)) });
    }
    all.push(Case { k_pos: second_range, ..Case::new(plain, (1, 1, 768, 1, 2)) });
    all.push(Case { k_pos: |_, _| -1, ..Case::new(plain, (1, 3, 600, 1, 1)) });
    all
}

#[test]
fn few_rows_of_split_keys() {
    let plain = AttentionKernel { split: true, ..kernel(AttentionPath::Few, DType::BF16, 32, 16) };
    check_all(&split_cases(plain));
    for (i, (d, e)) in [(16, 48), (128, 128), (128, 256), (192, 144), (16, 256)].into_iter().enumerate() {
        let dtype = if i % 2 == 0 { DType::F16 } else { DType::BF16 };
        let kernel = AttentionKernel { split: true, ..kernel(AttentionPath::Few, dtype, d, e) };
        check_all(&[Case { scale: 0.3, ..Case::new(kernel, (1, 3, 330, 1, 4)) }]);
    }
    // More rows than the kernel is chosen for, and few blocks that go round over heads and ranges.
    let case = Case::new(plain, (2, 19, 900, 3, 2));
    let text = attention_ptx(Arch::Sm80, &plain);
    case.check_at(&text, Shape { grid: [3, 4, 2], ..plain.shape(2, 19, 3, 2) }, 3).unwrap();
}

#[test]
fn warps_of_split_keys() {
    let plain = AttentionKernel { split: true, ..kernel(AttentionPath::Simt, DType::F32, 6, 5) };
    check_all(&split_cases(plain));
    for (dtype, d, e) in [(DType::BF16, 7, 33), (DType::F16, 16, 300), (DType::F64, 3, 64)] {
        let kernel = AttentionKernel { split: true, ..kernel(AttentionPath::Simt, dtype, d, e) };
        check_all(&[Case { by_head: true, ..Case::new(kernel, (2, 3, 520, 2, 2)) }]);
    }
}
