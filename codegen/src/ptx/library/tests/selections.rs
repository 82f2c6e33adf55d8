//! Top-k and sampling against the ops' reference.

use super::data::{Data, Device, View, noise};
use super::ptx;
use pcc_ir::eval::{At, Tensor, round_to};
use pcc_ir::gpu::selection::{self, ROW_DIMS, TopKKernel};
use pcc_ir::gpu::{Arch, LibraryKernel};
use pcc_ir::ops::sample::Draw;
use pcc_ir::ops::{Op, Sample, TopK};
use pcc_ir::types::{DType, Type};

/// Logits of a row, by index.
type Logit = fn(row: u64, i: u64) -> f64;

fn spread(row: u64, i: u64) -> f64 {
    5.0 * noise(row, i)
}

/// A handful of values, each many times, and zeros of both signs.
fn ties(row: u64, i: u64) -> f64 {
    [0.0, -0.0, 1.5, -2.0, 1.5, 0.25][((noise(row, i) + 1.0) * 3.0) as usize % 6]
}

fn equal(_: u64, _: u64) -> f64 {
    -3.0
}

/// Infinities of both signs.
fn infinite(row: u64, i: u64) -> f64 {
    match (noise(row, i) * 8.0) as i64 {
        5 => f64::INFINITY,
        -7..-2 => f64::NEG_INFINITY,
        _ => spread(row, i),
    }
}

fn no_number(row: u64, i: u64) -> f64 {
    if noise(row, i) > 0.9 || i == 0 { f64::NAN } else { infinite(row, i) }
}

/// Some have no chance at all.
fn impossible(row: u64, i: u64) -> f64 {
    if i.is_multiple_of(3) { f64::NEG_INFINITY } else { spread(row, i) }
}

fn hopeless(_: u64, _: u64) -> f64 {
    f64::NEG_INFINITY
}

/// Wider than a weight can tell.
fn wide(row: u64, i: u64) -> f64 {
    200.0 * noise(row, i)
}

/// One row of a few.
#[derive(Clone, Copy, Debug)]
struct Top {
    dtype: DType,
    n: u64,
    k: u32,
    rows: [u64; ROW_DIMS],
    logit: Logit,
    /// Elements from one to the next.
    stride: i64,
    /// Elements behind each row.
    pad: i64,
}

impl Top {
    fn kernel(&self) -> LibraryKernel {
        LibraryKernel::TopK(TopKKernel { dtype: self.dtype, k: self.k })
    }

    fn view(&self, dtype: DType, width: u64) -> View {
        let extents = [&self.rows[..], &[width]].concat();
        let mut view = View::new(dtype, &extents, &[3, 2, 1, 0], 1, self.pad);
        view.strides.iter_mut().for_each(|s| *s *= self.stride);
        view
    }

    fn check(&self, text: &str, seed: u64) -> Result<(), String> {
        let [x, values, indices] =
            [(self.dtype, self.n), (self.dtype, self.k.into()), (DType::I32, self.k.into())]
                .map(|(dtype, width)| self.view(dtype, width));
        let data = (0..x.extents.iter().product())
            .map(|i| round_to(self.dtype, (self.logit)(i / self.n, i % self.n)))
            .collect();
        let x = Data { view: x, values: data };
        let device = Device::new();
        let places = [device.put(&x, |_| true)?, device.alloc(&values)?, device.alloc(&indices)?];
        let mut params = [&places[..], &[self.n]].concat();
        for (dim, &extent) in self.rows.iter().enumerate() {
            params.push(extent);
            params.extend([&x.view, &values, &indices].map(|v| v.strides[dim] as u64));
        }
        params.extend([&x.view, &values, &indices].map(|v| v.strides[ROW_DIMS] as u64));
        let shape = selection::shape(2);
        device.run(text, &self.kernel(), shape, &params, seed)?;
        let ty = |v: &View| Type::new(v.dtype, v.extents.iter().map(|&e| e as usize).collect::<Vec<_>>());
        let op = Op::TopK(TopK { k: self.k as usize });
        let types = [ty(&values), ty(&indices)];
        let x = Tensor::new(ty(&x.view), x.values)?;
        let want = op.eval(&[&x], &types.each_ref(), At::default())?;
        for ((view, place), want) in [&values, &indices].into_iter().zip(&places[1..]).zip(&want) {
            let got = device.get(*place, view)?.values;
            let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            if let Some(i) = got.iter().zip(&want.data).position(|pair| !same(pair)) {
                return Err(format!("{i}: {} instead of {}", got[i], want.data[i]));
            }
        }
        Ok(())
    }
}

const TOP: Top = Top { dtype: DType::F32, n: 31, k: 5, rows: [1, 1, 3], logit: spread, stride: 1, pad: 0 };

fn tops() -> Vec<Top> {
    let mut all = vec![];
    for (n, k) in [(1, 1), (2, 1), (2, 2), (31, 8), (257, 40), (512, 512), (513, 3), (5000, 50)] {
        for (i, logit) in [spread, ties, equal, no_number].into_iter().enumerate() {
            let dtype = [DType::F32, DType::BF16, DType::F16][(i + n as usize) % 3];
            all.push(Top { dtype, n, k, logit, pad: (i as i64) % 2 * 3, ..TOP });
        }
    }
    all.push(Top { n: 2300, k: 1100, logit: ties, rows: [1, 1, 1], ..TOP });
    all.push(Top { n: 600, k: 600, logit: spread, rows: [1, 1, 1], ..TOP });
    all.push(Top { n: 700, k: 7, rows: [2, 1, 2], stride: 2, ..TOP });
    all.push(Top { n: 40, k: 7, rows: [2, 3, 2], stride: 3, dtype: DType::BF16, ..TOP });
    all
}

#[test]
fn the_largest_elements_in_order() {
    for top in tops() {
        let text = ptx(Arch::Sm80, &top.kernel());
        top.check(&text, 1).unwrap_or_else(|e| panic!("{e}\n{top:?}"));
    }
}

/// Draws for rows that differ in the number of the draw.
#[derive(Clone, Copy, Debug)]
struct Draws {
    n: u64,
    rows: u64,
    logit: Logit,
    draw: Draw,
    pad: i64,
}

impl Draws {
    fn tokens(&self, text: &str, seed: u64) -> Result<(Vec<f64>, Vec<f64>), String> {
        let row = |dtype: DType, width: u64, at: &dyn Fn(u64, u64) -> f64| {
            let view = View::new(dtype, &[self.rows, width], &[1, 0], 1, self.pad);
            let values = view.indices().map(|i| round_to(dtype, at(i[0], i[1]))).collect();
            Data { view, values }
        };
        let draw = |row: u64| Draw { draw: self.draw.draw.wrapping_add(row as u32), ..self.draw };
        let logits = row(DType::F32, self.n, &self.logit);
        let settings = row(DType::F32, 2, &|r, i| draw(r).settings()[i as usize].into());
        let key = row(DType::I32, 4, &|r, i| draw(r).key()[i as usize].into());
        let out = View::new(DType::I32, &[self.rows], &[0], 1, 0);
        let device = Device::new();
        let all = [&logits, &settings, &key];
        let mut params = all.map(|d| device.put(d, |_| true)).into_iter().collect::<Result<Vec<_>, _>>()?;
        params.extend([device.alloc(&out)?, self.rows, self.n]);
        params.extend(all.iter().flat_map(|d| &d.view.strides).map(|&s| s as u64));
        params.push(1);
        device.run(text, &LibraryKernel::Sample, selection::shape(self.rows.min(2)), &params, seed)?;
        let got = device.get(params[3], &out)?.values;
        let tensor = |d: &Data| {
            let shape: Vec<usize> = d.view.extents.iter().map(|&e| e as usize).collect();
            Tensor::new(Type::new(d.view.dtype, shape), d.values.clone())
        };
        let [logits, settings, key] = all.map(tensor);
        let op = Op::Sample(Sample {});
        let ty = Type::i32([self.rows as usize]);
        let want = op.eval(&[&logits?, &settings?, &key?], &[&ty], At::default())?;
        Ok((got, want[0].data.clone()))
    }

    fn check(&self, text: &str, seed: u64) -> Result<(), String> {
        let (got, want) = self.tokens(text, seed)?;
        if got == want { Ok(()) } else { Err(format!("{got:?} instead of {want:?}")) }
    }
}

const DRAW: Draw = Draw { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 0x9876_5432_1357_9bdf, draw: 5 };
const DRAWS: Draws = Draws { n: 257, rows: 3, logit: spread, draw: DRAW, pad: 0 };

fn draws() -> Vec<Draws> {
    let mut all = vec![];
    let settings =
        [(0.0, 1.0, 0), (1.0, 1.0, 0), (0.5, 0.9, 0), (2.0, 1.0, 7), (1.0, 0.6, 40), (2.0, 0.999, 3)];
    for n in [1, 2, 31, 257, 5000] {
        for (i, (temperature, top_p, top_k)) in settings.into_iter().enumerate() {
            let logit = [spread, ties, impossible, equal, wide][(i + n as usize) % 5];
            let draw = Draw { temperature, top_p, top_k, draw: 7 * i as u32, ..DRAW };
            all.push(Draws { n, logit, draw, pad: (i as i64) % 2 * 3, ..DRAWS });
        }
    }
    for logit in [infinite, no_number, hopeless] {
        all.push(Draws { logit, ..DRAWS });
        all.push(Draws { logit, draw: Draw { temperature: 0.0, ..DRAW }, ..DRAWS });
    }
    // Ties at both bounds, and settings at and beyond their ends.
    for (top_p, top_k) in [
        (0.5, 100),
        (0.3, 0),
        (0.0, 0),
        (-1.0, 9),
        (f32::NAN, 0),
        (1.5, -3),
        (0.7, 256),
        (0.7, 258),
        (1e-9, 0),
    ] {
        for logit in [equal, ties] {
            all.push(Draws { logit, draw: Draw { top_p, top_k, ..DRAW }, ..DRAWS });
        }
    }
    for temperature in [f32::NAN, -1.0, 1e-30, 1e30, f32::INFINITY] {
        all.push(Draws { draw: Draw { temperature, ..DRAW }, ..DRAWS });
    }
    all
}

#[test]
fn tokens_are_the_references() {
    let text = ptx(Arch::Sm80, &LibraryKernel::Sample);
    for draws in draws() {
        draws.check(&text, 1).unwrap_or_else(|e| panic!("{e}\n{draws:?}"));
    }
}

/// Numbers of draws of a few tokens follow the softmax of their logits, and what top-k and top-p leave of it.
#[test]
fn frequencies_follow_the_softmax() {
    const LOGITS: [f64; 4] = [0.0, 2.0, 1.0, 2.0];
    let text = ptx(Arch::Sm80, &LibraryKernel::Sample);
    for (temperature, top_k) in [(0.5f32, 0), (1.0, 3)] {
        let draw = Draw { temperature, top_k, ..DRAW };
        let rows = 800;
        let draws = Draws { n: 4, rows, logit: |_, i| LOGITS[i as usize], draw, pad: 0 };
        let (tokens, _) = draws.tokens(&text, 1).unwrap();
        let mut weights = LOGITS.map(|l| (l / f64::from(temperature)).exp());
        if top_k == 3 {
            weights[0] = 0.0;
        }
        let total: f64 = weights.iter().sum();
        for (token, weight) in (0..).zip(weights) {
            let found = tokens.iter().filter(|&&t| t == f64::from(token)).count() as f64 / rows as f64;
            // Four standard errors.
            assert!((found - weight / total).abs() < 0.071, "{token}: {found}");
            assert!(weight > 0.0 || found == 0.0);
        }
    }
}

/// Changes of the kernels' text that cases notice wherever they are made; of many places some are tried.
const NOTICED: [(&str, &str); 2] = [("bar.sync \t0;", ""), (", 31, -1;", ", 31, 65535;")];
/// Changes that are noticed in some of the places tried: in others they change what is never reached by these cases, or is equal.
const OFTEN: [(&str, &str); 5] = [
    ("atom.shared.add.u32", "atom.shared.max.u32"),
    (", 1, 31, -1;", ", 2, 31, -1;"),
    ("setp.nan.f32", "setp.num.f32"),
    ("setp.le.u64", "setp.lt.u64"),
    ("shl.b32", "shr.u32"),
];

/// Places of one change that are tried.
const PLACES: usize = 5;

/// The texts in which one place is changed.
fn mutants(text: &str, (from, to): (&str, &str)) -> Vec<String> {
    let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
    let apart = places.len().div_ceil(PLACES).max(1);
    let change = |&at: &usize| [&text[..at], to, &text[at + from.len()..]].concat();
    places.iter().step_by(apart).map(change).collect()
}

#[test]
fn mutants_of_selections_are_noticed() {
    let top = Top { n: 1100, k: 40, logit: no_number, rows: [1, 2, 2], ..TOP };
    let tops =
        [top, Top { n: 9000, k: 40, logit: ties, rows: [1, 1, 1], ..TOP }, Top { n: 511, k: 40, ..top }];
    let draw = Draw { top_p: 0.7, top_k: 900, ..DRAW };
    let draws: [(u64, Logit); 3] = [(9000, ties), (1100, spread), (90, no_number)];
    let draws = draws.map(|(n, logit)| Draws { n, logit, draw, ..DRAWS });
    let [top_k, sample] = [tops[0].kernel(), LibraryKernel::Sample].map(|kernel| ptx(Arch::Sm80, &kernel));
    let fault = |text: &str, of_sample: bool| match of_sample {
        true => draws.iter().rev().find_map(|d| d.check(text, 1).err()),
        false => tops.iter().find_map(|t| t.check(text, 1).err()),
    };
    for (text, of_sample) in [(&top_k, false), (&sample, true)] {
        assert_eq!(fault(text, of_sample), None);
        let unnoticed = |change: (&str, &str)| -> (usize, Vec<usize>) {
            let all = mutants(text, change);
            (all.len(), (0..all.len()).filter(|&i| fault(&all[i], of_sample).is_none()).collect())
        };
        for change in NOTICED {
            let (count, missed) = unnoticed(change);
            assert!(count >= 3 && missed.is_empty(), "sample {of_sample}, {change:?}: {missed:?} of {count}");
        }
        for change in OFTEN {
            let (count, missed) = unnoticed(change);
            assert!(missed.len() < count, "sample {of_sample}, {change:?}: none of {count} is noticed");
        }
    }
}
