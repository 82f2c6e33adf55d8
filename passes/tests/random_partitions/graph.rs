//! Random functions: which ops, on which values.

use super::rng::Rng;
use super::selection::select;
use super::sharded::Builder;
use pcc_ir::ops::*;
use pcc_ir::{DType, Mesh, Op, ReduceKind, Sharding, Type, ValueId};

/// Elements of the largest value.
const LARGEST: usize = 500;

/// Adds `count` random ops to a function that has at least one f32 value of rank 1 or more.
pub fn grow(b: &mut Builder, count: usize) {
    let mut live: Vec<ValueId> = b.f.args.clone();
    live.retain(|&v| b.f.ty(v).dtype == DType::F32);
    for _ in 0..count {
        let x = b.rng.pick(&live);
        let v = step(b, x, &live);
        if b.f.ty(v).elements() <= LARGEST {
            live.push(v);
        }
    }
    select(b, &live);
}

/// A new function with random arguments.
pub fn random(rng: Rng, mesh: Mesh, name: &str, count: usize) -> Builder {
    let mut b = Builder::new(rng, mesh, name);
    for _ in 0..2 {
        let shape = shape(&mut b.rng, 2, 3);
        b.arg(Type::f32(shape));
    }
    grow(&mut b, count);
    b
}

/// A function of sums of products: partials are reduced, scaled, moved, added and split, so that reductions can be merged.
pub fn linear(rng: Rng, mesh: Mesh, name: &str, count: usize) -> Builder {
    let mut b = Builder::new(rng, mesh, name);
    let shape = shape(&mut b.rng, 2, 2);
    b.steady = 97;
    let axis = b.any_axis();
    let mut live = vec![b.arg(Type::f32(shape.clone()))];
    for _ in 0..count {
        let (x, y) = (b.rng.pick(&live), b.rng.pick(&live));
        let v = match b.rng.below(8) {
            0..=2 => {
                let v = b.product(shape[0], 6, shape[1], axis);
                let reduced = if b.rng.chance(70) { Sharding::replicated(2) } else { b.any_sharding(2) };
                if b.rng.chance(80) { b.reshard(v, reduced) } else { v }
            }
            3..=4 => b.op(Op::Binary(BinaryKind::Add), &[x, y]),
            5 => b.op(Op::Binary(BinaryKind::Sub), &[x, y]),
            6 => {
                let kind = b.rng.pick(&[BinaryKind::Mul, BinaryKind::Div]);
                let by = b.op(
                    Op::Constant(Constant { ty: Type::f32(shape.clone()), value: Literal::Splat(2.0) }),
                    &[],
                );
                b.op(Op::Binary(kind), &[x, by])
            }
            _ => b.op(Op::Unary(UnaryKind::Neg), &[x]),
        };
        live.push(v);
    }
    let last: Vec<_> = live.iter().rev().take(4).copied().collect();
    let sum = last.into_iter().reduce(|x, y| b.op(Op::Binary(BinaryKind::Add), &[x, y]));
    if let Some(sum) = sum {
        b.op(Op::Unary(UnaryKind::Tanh), &[sum]);
    }
    b
}

pub fn shape(rng: &mut Rng, low: usize, high: usize) -> Vec<usize> {
    let rank = rng.within(low, high);
    (0..rank).map(|_| rng.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 10])).collect()
}

fn step(b: &mut Builder, x: ValueId, live: &[ValueId]) -> ValueId {
    let shape = b.f.ty(x).shape.clone();
    match b.rng.below(20) {
        0 => unary(b, x),
        1..=3 => binary(b, x, live),
        4..=6 => dot(b, x),
        7..=8 => reduce(b, x),
        9 => moved(b, x),
        10 => cut(b, x),
        11 => joined(b, x, live),
        12 => table(b, x),
        13 => update(b),
        14..=15 if !shape.is_empty() => norm(b, x),
        16 => attention(b),
        17 => rope(b),
        18 => counted(b, x),
        _ => constant(b, x),
    }
}

fn unary(b: &mut Builder, x: ValueId) -> ValueId {
    use UnaryKind::*;
    let kind = b.rng.pick(&[Neg, Neg, Abs, Tanh, Sigmoid, Silu, Gelu, Relu, Cos]);
    b.op(Op::Unary(kind), &[x])
}

fn binary(b: &mut Builder, x: ValueId, live: &[ValueId]) -> ValueId {
    use BinaryKind::*;
    let alike: Vec<_> = live.iter().copied().filter(|&v| b.f.ty(v) == b.f.ty(x)).collect();
    let y = b.rng.pick(&alike);
    let kind = b.rng.pick(&[Add, Add, Add, Sub, Mul, Max, Min]);
    b.op(Op::Binary(kind), &[x, y])
}

/// A product with a new weight, or of a value with itself.
fn dot(b: &mut Builder, x: ValueId) -> ValueId {
    let x_shape = b.f.ty(x).shape.clone();
    let rank = x_shape.len();
    if b.rng.chance(75) {
        let contract = b.rng.within(usize::from(rank > 0), rank.min(2));
        let free = shape(&mut b.rng, 1, 2);
        let kept = &x_shape[rank - contract..];
        let w = b.arg(Type::f32([kept, &free].concat()));
        let dims = (0..contract).collect();
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: (rank - contract..rank).collect(),
            rhs_contract: dims,
            result: None,
        };
        let small = x_shape[..rank - contract].iter().chain(&free).product::<usize>() <= LARGEST;
        return if small { b.op(Op::DotGeneral(dot), &[x, w]) } else { unary(b, x) };
    }
    let (mut batch, mut contract) = (vec![], vec![]);
    let mut free = 1;
    for (d, &n) in x_shape.iter().enumerate() {
        match b.rng.below(3) {
            0 => batch.push(d),
            1 => contract.push(d),
            _ => free *= n * n,
        }
    }
    if free > 100 {
        return unary(b, x);
    }
    let dot = DotGeneral {
        lhs_batch: batch.clone(),
        rhs_batch: batch,
        lhs_contract: contract.clone(),
        rhs_contract: contract,
        result: None,
    };
    b.op(Op::DotGeneral(dot), &[x, x])
}

fn reduce(b: &mut Builder, x: ValueId) -> ValueId {
    let rank = b.f.ty(x).rank();
    let dims: Vec<_> = (0..rank).filter(|_| b.rng.chance(50)).collect();
    let kind = b.rng.pick(&[ReduceKind::Sum, ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
    b.op(Op::Reduce(Reduce { kind, dims }), &[x])
}

/// A transpose, a reshape or a broadcast.
fn moved(b: &mut Builder, x: ValueId) -> ValueId {
    let shape = b.f.ty(x).shape.clone();
    let rank = shape.len();
    match b.rng.below(4) {
        0 => {
            let perm = b.rng.shuffled(&(0..rank).collect::<Vec<_>>());
            b.op(Op::Transpose(perm), &[x])
        }
        1 if rank >= 2 => {
            let d = b.rng.below(rank - 1);
            let merged = [&shape[..d], &[shape[d] * shape[d + 1]], &shape[d + 2..]].concat();
            b.op(Op::Reshape(merged), &[x])
        }
        2 if rank >= 1 => {
            let d = b.rng.below(rank);
            let parts: Vec<_> = (1..=shape[d]).filter(|p| shape[d].is_multiple_of(*p)).collect();
            let p = b.rng.pick(&parts);
            b.op(Op::Reshape([&shape[..d], &[p, shape[d] / p], &shape[d + 1..]].concat()), &[x])
        }
        _ => {
            let at = b.rng.within(0, rank);
            let n = b.rng.within(1, 5);
            let dims = (0..rank).map(|d| d + usize::from(d >= at)).collect();
            let shape = [&shape[..at], &[n], &shape[at..]].concat();
            b.op(Op::Broadcast(Broadcast { shape, dims }), &[x])
        }
    }
}

/// A slice or a border.
fn cut(b: &mut Builder, x: ValueId) -> ValueId {
    let shape = b.f.ty(x).shape.clone();
    if b.rng.chance(50) {
        let start: Vec<_> =
            shape.iter().map(|&n| if b.rng.chance(50) { 0 } else { b.rng.below(n) }).collect();
        let limit = shape
            .iter()
            .zip(&start)
            .map(|(&n, &s)| if b.rng.chance(60) { n } else { b.rng.within(s + 1, n) });
        let limit = limit.collect();
        return b.op(Op::Slice(Slice { start, limit }), &[x]);
    }
    let mut border = || shape.iter().map(|_| b.rng.below(6).saturating_sub(3)).collect::<Vec<_>>();
    let (low, high) = (border(), border());
    let value = b.rng.pick(&[0.0, 0.5]);
    b.op(Op::Pad(Pad { low, high, value }), &[x])
}

fn joined(b: &mut Builder, x: ValueId, live: &[ValueId]) -> ValueId {
    let rank = b.f.ty(x).rank();
    if rank == 0 {
        return unary(b, x);
    }
    let dim = b.rng.below(rank);
    let fits = |v: &ValueId| {
        let (a, c) = (&b.f.ty(*v).shape, &b.f.ty(x).shape);
        a.len() == c.len() && (0..rank).all(|d| d == dim || a[d] == c[d])
    };
    let alike: Vec<_> = live.iter().copied().filter(fits).collect();
    let y = b.rng.pick(&alike);
    b.op(Op::Concat(dim), &[x, y])
}

/// Look-up in a new table, or of rows of a value.
fn table(b: &mut Builder, x: ValueId) -> ValueId {
    let x_shape = b.f.ty(x).shape.clone();
    if b.rng.chance(60) || x_shape.len() < 2 {
        let rows = b.rng.within(2, 11);
        let width = b.rng.within(1, 6);
        let t = b.arg(Type::f32([rows, width]));
        let ids = shape(&mut b.rng, 1, 2);
        // Also rows that the table has not: they give zeros.
        let i = b.integers(ids, -1, rows as i64);
        return b.op(Op::Gather(Gather { batch: 0, base: None }), &[t, i]);
    }
    let i = b.integers([x_shape[0]], 0, x_shape[1] as i64 - 1);
    b.op(Op::Gather(Gather { batch: 1, base: None }), &[x, i])
}

fn update(b: &mut Builder) -> ValueId {
    let (batch, rows, news, width) =
        (b.rng.within(1, 5), b.rng.within(2, 9), b.rng.within(1, 3), b.rng.within(1, 5));
    let x = b.arg(Type::f32([batch, rows, width]));
    let new = b.arg(Type::f32([batch, news, width]));
    let start = b.integers([batch], 0, rows as i64 - 1);
    b.op(Op::Update(Update { batch: 1, base: None }), &[x, new, start])
}

fn norm(b: &mut Builder, x: ValueId) -> ValueId {
    let shape = b.f.ty(x).shape.clone();
    let last = shape[shape.len() - 1];
    match b.rng.below(3) {
        0 => {
            let dim = b.rng.below(shape.len());
            b.op(Op::Softmax(Softmax { dim }), &[x])
        }
        1 => {
            let w = b.arg(Type::f32([last]));
            b.op(Op::RmsNorm(RmsNorm { eps: 1e-2 }), &[x, w])
        }
        _ => {
            let (w, bias) = (b.arg(Type::f32([last])), b.arg(Type::f32([last])));
            b.op(Op::LayerNorm(LayerNorm { eps: 1e-2 }), &[x, w, bias])
        }
    }
}

/// Grouped-query attention: kv heads that no axis divides, groups, few keys; projections first, often.
fn attention(b: &mut Builder) -> ValueId {
    let (batch, s, t) = (b.rng.within(1, 3), b.rng.within(1, 4), b.rng.within(1, 5));
    let (g, r, d, e) = (b.rng.within(1, 5), b.rng.within(1, 4), b.rng.within(1, 3), b.rng.within(1, 3));
    let shapes = [vec![batch, s, g, r, d], vec![batch, t, g, d], vec![batch, t, g, e]];
    let [q, k, v] = shapes.map(|shape| {
        if b.rng.chance(50) {
            return b.arg(Type::f32(shape));
        }
        let (x, w) =
            (b.arg(Type::f32([&shape[..2], &[3]].concat())), b.arg(Type::f32([&[3], &shape[2..]].concat())));
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![2],
            rhs_contract: vec![0],
            result: None,
        };
        b.op(Op::DotGeneral(dot), &[x, w])
    });
    let (q_pos, k_pos) = (b.integers([batch, s], 0, 5), b.integers([batch, t], -1, 5));
    let window = b.rng.chance(30).then_some(3);
    let softcap = b.rng.chance(30).then_some(2.0);
    let slopes = b.rng.chance(30).then(|| b.arg(Type::f32([g, r])));
    let bf16_bias = slopes.is_some() && b.rng.chance(50);
    let op = Attention { scale: 0.7, causal: b.rng.chance(60), window, softcap, bf16_bias };
    let args: Vec<ValueId> = [q, k, v, q_pos, k_pos].into_iter().chain(slopes).collect();
    let y = b.op(Op::Attention(op), &args);
    if b.rng.chance(50) {
        return y;
    }
    // The output projection contracts kv heads, groups and head dim.
    let w = b.arg(Type::f32([g, r, e, 4]));
    let contract = (vec![2, 3, 4], vec![0, 1, 2]);
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: contract.0,
        rhs_contract: contract.1,
        result: None,
    };
    b.op(Op::DotGeneral(dot), &[y, w])
}

fn rope(b: &mut Builder) -> ValueId {
    let (batch, s, h, d) = (b.rng.within(1, 3), b.rng.within(1, 5), b.rng.within(1, 5), b.rng.within(2, 5));
    let x = b.arg(Type::f32([batch, s, h, d]));
    let half = b.rng.within(1, d / 2);
    let [cos, sin] = [(); 2].map(|()| b.arg(Type::f32([batch, s, half])));
    let interleaved = b.rng.chance(50);
    b.op(Op::Rope(Rope { interleaved }), &[x, cos, sin])
}

/// Positions along a dim decide which of two values is kept.
fn counted(b: &mut Builder, x: ValueId) -> ValueId {
    let shape = b.f.ty(x).shape.clone();
    if shape.is_empty() {
        return unary(b, x);
    }
    let ty = Type::i32(shape.clone());
    let dim = b.rng.below(shape.len());
    let i = b.op(Op::Iota(Iota { ty: ty.clone(), dim, base: None }), &[]);
    let limit = b.op(Op::Constant(Constant { ty, value: Literal::Splat(1.0) }), &[]);
    let keep = b.op(Op::Compare(CompareKind::Le), &[i, limit]);
    let other = b.op(Op::Convert(DType::F32), &[i]);
    b.op(Op::Select, &[keep, x, other])
}

fn constant(b: &mut Builder, x: ValueId) -> ValueId {
    let ty = b.f.ty(x).clone();
    let value = match b.rng.chance(50) {
        true => Literal::Splat(b.rng.number()),
        false => Literal::Dense((0..ty.elements()).map(|_| b.rng.number()).collect()),
    };
    let c = b.op(Op::Constant(Constant { ty, value }), &[]);
    let kind = b.rng.pick(&[BinaryKind::Add, BinaryKind::Mul, BinaryKind::Sub]);
    b.op(Op::Binary(kind), &[x, c])
}
