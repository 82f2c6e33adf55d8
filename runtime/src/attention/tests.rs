//! The fused attention on every path against the op's evaluator in f64.

use super::*;
use crate::memory::{Mapping, Window};
use pcc_ir::eval::{At, Tensor};
use pcc_ir::program::{Base, DeviceKind, Loc};
use pcc_ir::{DType, Op, Type, ops};

/// One problem: extents, what masks, types, and where operands lie.
#[derive(Clone)]
struct Case {
    dims: [usize; 7],
    op: ops::Attention,
    types: [DType; 4],
    q_pos: Vec<i32>,
    k_pos: Vec<i32>,
    slopes: bool,
    /// Elements between neighbours along the last dim of q, k, v and out.
    gap: usize,
}

impl Case {
    /// `[b, s, t, g, r, d, e]`, causal, with positions counted from 0.
    fn new(dims: [usize; 7]) -> Self {
        let [b, s, t, ..] = dims;
        let op = ops::Attention { scale: 0.3, causal: true, window: None, softcap: None, bf16_bias: false };
        let count = |n: usize| (0..b).flat_map(|_| 0..n as i32).collect::<Vec<_>>();
        Self { dims, op, types: [DType::F32; 4], q_pos: count(s), k_pos: count(t), slopes: false, gap: 1 }
    }
}

fn value(seed: usize, i: usize) -> f64 {
    let x = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ (seed as u64) << 17) >> 40;
    x as f64 / f64::from(1 << 23) - 1.0
}

fn tensor(seed: usize, dtype: DType, shape: Vec<usize>) -> Tensor {
    let values = Tensor::from_fn(Type::new(dtype, shape), |i| value(seed, i));
    let data = values.data.iter().map(|&x| pcc_ir::eval::round_to(dtype, x)).collect();
    Tensor { data, ..values }
}

fn ints(data: &[i32], shape: [usize; 2]) -> Tensor {
    Tensor { ty: Type::i32(shape), data: data.iter().map(|&x| x.into()).collect() }
}

/// Row-major strides, times a gap.
fn strides(shape: &[usize], gap: usize) -> Vec<i64> {
    let mut out = vec![gap as i64; shape.len()];
    for d in (1..shape.len()).rev() {
        out[d - 1] = out[d] * shape[d] as i64;
    }
    out
}

/// Buffers, and how they are placed one behind another.
struct Buffers {
    mapping: Mapping,
    used: usize,
}

impl Buffers {
    fn new() -> Self {
        Self { mapping: Mapping::new(1 << 26).unwrap(), used: 0 }
    }

    fn room(&mut self, bytes: usize) -> usize {
        let at = self.used;
        self.used = (at + bytes).next_multiple_of(64);
        at
    }

    /// Writes a tensor with a gap between elements.
    fn place(&mut self, t: &Tensor, gap: usize) -> (Strided, usize) {
        let at = self.room(t.data.len() * gap * t.ty.dtype.bytes());
        let window = self.mapping.window(at, self.used - at);
        t.data.iter().enumerate().for_each(|(i, &x)| window.store(t.ty.dtype, i * gap, x).unwrap());
        let loc = Loc { base: Base::Frame, offset: 0 };
        (Strided { loc, dtype: t.ty.dtype, strides: strides(&t.ty.shape, gap) }, at)
    }

    fn operand(&self, at: usize) -> Operand<'_> {
        Operand { window: self.mapping.window(at, self.used - at), offset: 0 }
    }
}

/// Tensors of a case; `spoil` changes them before they are used.
fn tensors(c: &Case) -> [Tensor; 3] {
    let [b, s, t, g, r, d, e] = c.dims;
    [
        tensor(1, c.types[0], vec![b, s, g, r, d]),
        tensor(2, c.types[1], vec![b, t, g, d]),
        tensor(3, c.types[2], vec![b, t, g, e]),
    ]
}

/// The evaluator's answer in f64. Slopes are one more element of each head, times the position of the key, unless they are rounded.
fn expected(c: &Case, [q, k, v]: &[Tensor; 3], slopes: &Tensor) -> Tensor {
    let [b, s, t, g, r, d, e] = c.dims;
    let wide = |x: &Tensor, extra: &dyn Fn(usize) -> f64| {
        let rows = x.data.chunks(d).enumerate();
        rows.flat_map(|(i, row)| row.iter().copied().chain([extra(i)])).collect::<Vec<f64>>()
    };
    let f64s = |shape: Vec<usize>, data: Vec<f64>| Tensor { ty: Type::new(DType::F64, shape), data };
    if c.op.bf16_bias {
        let (q_pos, k_pos) = (ints(&c.q_pos, [b, s]), ints(&c.k_pos, [b, t]));
        let [q, k, v, slopes] = [q, k, v, slopes].map(|x| f64s(x.ty.shape.clone(), x.data.clone()));
        let out = Type::new(DType::F64, [b, s, g, r, e]);
        let op = Op::Attention(c.op.clone());
        return op.eval(&[&q, &k, &v, &q_pos, &k_pos, &slopes], &[&out], At::default()).unwrap().remove(0);
    }
    let slope = |i: usize| if c.slopes { slopes.data[i % (g * r)] / c.op.scale } else { 0.0 };
    let position = |i: usize| if c.slopes { f64::from(c.k_pos[i / g]) } else { 0.0 };
    let args = [
        f64s(vec![b, s, g, r, d + 1], wide(q, &slope)),
        f64s(vec![b, t, g, d + 1], wide(k, &position)),
        f64s(vec![b, t, g, e], v.data.clone()),
        ints(&c.q_pos, [b, s]),
        ints(&c.k_pos, [b, t]),
    ];
    let op = Op::Attention(c.op.clone());
    let out = Type::new(DType::F64, [b, s, g, r, e]);
    let at = At::default();
    op.eval(&args.each_ref(), &[&out], at).unwrap().remove(0)
}

/// Runs a case on a path, parts in the given order; gives the result's elements.
fn run(c: &Case, args: &[Tensor; 3], slopes: &Tensor, path: Path, backwards: bool) -> Vec<f64> {
    let [b, s, t, g, r, d, e] = c.dims;
    let mut m = Buffers::new();
    let [q, k, v] = args.each_ref().map(|x| m.place(x, c.gap));
    let out = Tensor::splat(Type::new(c.types[3], [b, s, g, r, e]), 7.0);
    let out = m.place(&out, c.gap);
    let q_pos = m.place(&ints(&c.q_pos, [b, s]), 1);
    let k_pos = m.place(&ints(&c.k_pos, [b, t]), 1);
    let slope = m.place(slopes, 1);
    let looks = c.op.causal || c.op.window.is_some();
    let n = |x: usize| pcc_ir::Extent::full(x as u64);
    let mut call = AttentionCall {
        b: n(b),
        s: n(s),
        t: n(t),
        g: n(g),
        r: n(r),
        d: n(d),
        e: n(e),
        scale: c.op.scale,
        causal: c.op.causal,
        window: c.op.window.map(|w| w as u64),
        softcap: c.op.softcap,
        bf16_bias: c.op.bf16_bias,
        q: q.0,
        k: k.0,
        v: v.0,
        q_pos: looks.then_some(q_pos.0),
        k_pos: k_pos.0,
        slopes: c.slopes.then_some(slope.0),
        out: out.0,
        scratch: None,
    };
    let mut scratch = None;
    if AttentionCall::splits_keys(DeviceKind::Cpu, s as u64, r as u64, t as u64) {
        call.scratch = Some(Loc { base: Base::Frame, offset: 0 });
        scratch = Some(m.room(call.scratch_bytes().unwrap() as usize));
    }
    let a = Attention {
        call: &call,
        q: m.operand(q.1),
        k: m.operand(k.1),
        v: m.operand(v.1),
        q_pos: looks.then(|| m.operand(q_pos.1)),
        k_pos: m.operand(k_pos.1),
        slopes: c.slopes.then(|| m.operand(slope.1)),
        out: m.operand(out.1),
        scratch: scratch.map(|at| m.operand(at)),
        dims: Dims::of(&call, |e| e.full),
        path,
    };
    let parts = a.parts();
    (0..parts).for_each(|p| a.run_part(if backwards { parts - 1 - p } else { p }));
    a.finish();
    let window: Window<'_> = a.out.window;
    (0..b * s * g * r * e).map(|i| window.load(c.types[3], i * c.gap).unwrap()).collect()
}

fn paths() -> Vec<Path> {
    let all = [Path::Avx512Bf16, Path::Avx512, Path::Avx2, Path::Portable];
    // The best one comes first; the machine has all that follow it.
    all.into_iter().skip_while(|&p| p != Path::best()).collect()
}

fn slopes(c: &Case) -> Tensor {
    let [.., g, r, _, _] = c.dims;
    // Those that are rounded: of no power of two.
    let base: f64 = if c.op.bf16_bias { 0.7 } else { 0.5 };
    Tensor::from_fn(Type::f32([g, r]), |i| base.powi(i as i32 + 1))
}

fn check(c: &Case) {
    check_with(c, tensors(c), |_| {});
}

/// Compares the result over `args`, spoilt where nothing looks, with the evaluator's over what they were.
fn check_with(c: &Case, args: [Tensor; 3], spoil: impl Fn(&mut [Tensor; 3])) {
    let slopes = slopes(c);
    let wanted = expected(c, &args, &slopes);
    let mut args = args;
    spoil(&mut args);
    let tolerance = match c.types[3] {
        // Scores of hundreds, rounded.
        DType::F32 if c.slopes && !c.op.causal => 1e-4,
        DType::F32 => 2e-6,
        DType::BF16 => 1.0 / 256.0,
        _ => 1.0 / 2048.0,
    };
    for path in paths() {
        let found = run(c, &args, &slopes, path, false);
        for (i, (x, y)) in found.iter().zip(&wanted.data).enumerate() {
            assert!(
                (x - y).abs() <= tolerance * y.abs().max(1.0),
                "{path:?} {:?} at {i}: {x} for {y}",
                c.dims
            );
        }
        let again = run(c, &args, &slopes, path, true);
        assert!(found.iter().zip(&again).all(|(x, y)| x.to_bits() == y.to_bits()), "parts in another order");
    }
}

/// `[b, s, t, g, r, d, e]` with few and many rows, and sizes that no register, tile or range divides.
const SIZES: [[usize; 7]; 9] = [
    [1, 1, 1, 1, 1, 1, 1],
    [2, 1, 70, 3, 1, 16, 16],
    [1, 2, 700, 2, 4, 64, 64],
    [1, 1, 1100, 1, 7, 20, 5],
    [2, 3, 40, 1, 3, 5, 9],
    [1, 20, 20, 2, 3, 16, 32],
    [1, 130, 130, 1, 1, 64, 24],
    [2, 30, 90, 2, 2, 7, 11],
    [1, 65, 200, 1, 5, 80, 8],
];

/// A case with queries at the last positions, and every kind of mask, cap and bias.
fn variants(dims: [usize; 7]) -> Vec<Case> {
    let [_, s, t, ..] = dims;
    let mut c = Case::new(dims);
    c.q_pos.iter_mut().for_each(|p| *p += (t - s) as i32);
    let mut all = vec![c.clone()];
    c.op.window = Some(t / 3 + 1);
    all.push(c.clone());
    c.op.causal = false;
    all.push(c.clone());
    (c.op.window, c.op.softcap) = (None, Some(0.75));
    all.push(c.clone());
    (c.op.softcap, c.slopes) = (None, true);
    all.push(c.clone());
    c.op.causal = true;
    all.push(c.clone());
    // Positions that bf16 rounds.
    c.op.bf16_bias = true;
    c.q_pos.iter_mut().for_each(|p| *p += 300);
    c.k_pos.iter_mut().for_each(|p| *p += 300);
    all.push(c);
    all
}

#[test]
fn every_path_equals_the_evaluator() {
    SIZES.into_iter().flat_map(variants).for_each(|c| check(&c));
}

#[test]
fn every_path_equals_the_evaluator_for_bf16() {
    let many = [[1, 65, 200, 1, 5, 80, 33], [2, 30, 90, 2, 2, 7, 11]];
    // Every number of rows that registers are shared out by.
    let few = [
        [1, 1, 70, 2, 1, 64, 32],
        [2, 1, 70, 3, 2, 32, 64],
        [1, 2, 70, 2, 2, 96, 48],
        [1, 2, 90, 2, 4, 64, 64],
    ];
    for dims in many.into_iter().chain(few) {
        for c in variants(dims) {
            check(&Case { types: [DType::BF16; 4], ..c });
        }
    }
}

#[test]
fn operands_of_sixteen_bits_and_any_strides() {
    use DType::{BF16, F16, F32};
    for dims in SIZES {
        for types in [[BF16; 4], [F16; 4], [F32, BF16, BF16, F32], [F32, BF16, F32, BF16]] {
            for gap in [1, 3] {
                let c = Case { types, gap, ..Case::new(dims) };
                check(&c);
            }
        }
        check(&Case { gap: 2, ..Case::new(dims) });
    }
}

/// Keys and values that a query does not see may hold anything: later positions, padding, what a cache held before.
#[test]
fn what_is_not_seen_does_not_matter() {
    for (dims, types) in SIZES.into_iter().flat_map(|d| [(d, [DType::F32; 4]), (d, [DType::BF16; 4])]) {
        let [b, s, t, g, _, d, e] = dims;
        let mut c = Case::new(dims);
        let first = t / 3;
        // Queries stand at `first..`; every fifth key is padding.
        c.q_pos = (0..b).flat_map(|_| (0..s).map(|i| ((first + i).min(t - 1)) as i32)).collect();
        c.k_pos = (0..b * t).map(|j| if t > 1 && j % 5 == 1 { -1 } else { (j % t) as i32 }).collect();
        let last = c.q_pos.iter().copied().max().unwrap();
        let k_pos = c.k_pos.clone();
        c.types = types;
        let spoil = |args: &mut [Tensor; 3]| {
            for (j, &k) in k_pos.iter().enumerate().filter(|&(_, &k)| k < 0 || k > last) {
                args[1].data[j * g * d..(j + 1) * g * d].fill(if k < 0 { f64::NAN } else { f64::INFINITY });
                args[2].data[j * g * e..(j + 1) * g * e].fill(f64::NAN);
            }
        };
        check_with(&c, tensors(&c), spoil);
    }
}

/// A value that is no number reaches the queries that see it, and no other.
#[test]
fn a_bad_value_stays_with_those_who_see_it() {
    let few_and_many = [[1, 60, 60, 1, 1, 8, 8], [1, 4, 60, 1, 2, 16, 16], [1, 60, 60, 1, 1, 32, 32]];
    for (dims, dtype) in few_and_many.into_iter().flat_map(|d| [(d, DType::F32), (d, DType::BF16)]) {
        let [_, s, t, _, r, _, e] = dims;
        let mut c = Case::new(dims);
        c.types = [dtype, dtype, dtype, DType::F32];
        let tolerance = if dtype == DType::F32 { 2e-6 } else { 4e-3 };
        c.q_pos.iter_mut().for_each(|p| *p += (t - s) as i32);
        let mut args = tensors(&c);
        let bad = t - 2;
        args[2].data[bad * e..(bad + 1) * e].fill(f64::NAN);
        let slopes = slopes(&c);
        let wanted = expected(&c, &args, &slopes);
        for path in paths() {
            let found = run(&c, &args, &slopes, path, false);
            for (i, (x, y)) in found.iter().zip(&wanted.data).enumerate() {
                let sees = c.q_pos[i / (r * e)] >= bad as i32;
                assert_eq!(x.is_nan(), sees, "{path:?} at {i}");
                assert!(sees || (x - y).abs() <= tolerance, "{path:?} at {i}: {x} for {y}");
            }
        }
    }
}

#[test]
fn queries_that_see_nothing_give_zeros() {
    for dims in SIZES {
        let mut c = Case::new(dims);
        c.k_pos.fill(-1);
        check(&c);
        // Only the later half of the queries sees something.
        let [_, s, t, ..] = dims;
        let mut c = Case::new(dims);
        c.k_pos.iter_mut().for_each(|k| *k += (s / 2) as i32);
        check(&c);
        // Positions at the ends of their range.
        c.q_pos.fill(i32::MAX);
        c.op.window = Some(t);
        check(&c);
        c.q_pos.fill(i32::MIN);
        check(&c);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    for dims in [[1, 20, 300, 1, 1, 16, 16], [1, 2, 300, 1, 2, 16, 16]] {
        let mut c = Case::new(dims);
        c.op.scale = 40.0;
        c.op.causal = false;
        let slopes = slopes(&c);
        let args = tensors(&c);
        let wanted = expected(&c, &args, &slopes);
        for path in paths() {
            let found = run(&c, &args, &slopes, path, false);
            // Scores of hundreds: what rounding them in f32 leaves.
            assert!(found.iter().zip(&wanted.data).all(|(x, y)| (x - y).abs() < 2e-3));
        }
    }
}

#[test]
fn work_is_cut_by_shape_alone() {
    let dims = |b, s, t, g, r| Dims { b, s, t, g, r, d: 64, e: 64 };
    // A long decode is shared by ranges of keys; a short prefill is one part.
    let decode = cut(&dims(1, 1, 8192, 2, 4), Path::Portable, true);
    assert_eq!((decode.tiles, decode.ranges, decode.heads, decode.units), (1, 16, 1, 32));
    assert!(decode.units.div_ceil(decode.group) >= 16);
    let short = cut(&dims(1, 5, 5, 2, 1), Path::Portable, false);
    assert_eq!((short.heads, short.units, short.group), (2, 1, 1));
    let long = cut(&dims(1, 512, 512, 12, 1), Path::Avx512, false);
    assert_eq!((long.tiles, long.ranges, long.units), (11, 1, 132));
}
