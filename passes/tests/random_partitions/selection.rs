//! Top-k and sampling at the end of a random function.

use super::rng::Rng;
use super::sharded::Builder;
use pcc_ir::ops::*;
use pcc_ir::{DType, Op, Type, ValueId};

/// Selects among some value, in some functions; one result of two may stay unused.
pub fn select(b: &mut Builder, live: &[ValueId]) {
    // A generator of its own: functions that select nothing stay what they were before there were selections.
    let extents = b.f.values.values().flat_map(|v| v.ty.shape.iter());
    let mut rng = Rng::new(extents.fold(7, |h: u64, &n| h.wrapping_mul(31).wrapping_add(n as u64)));
    if !rng.chance(35) {
        return;
    }
    let x = rng.pick(live);
    if b.f.ty(x).rank() == 0 {
        return;
    }
    let x = apart(b, &mut rng, x);
    match b.f.ty(x).shape[..] {
        [rows, _] if rng.chance(40) => sample(b, &mut rng, x, rows),
        _ => top_k(b, &mut rng, x),
    }
}

fn top_k(b: &mut Builder, rng: &mut Rng, x: ValueId) {
    let Some(&n) = b.f.ty(x).shape.last() else { return };
    let k = if rng.chance(30) { n } else { rng.within(1, n) };
    let [values, indices] = b.ops(Op::TopK(TopK { k }), &[x])[..] else { return };
    if rng.chance(60) {
        b.hidden.push(rng.pick(&[values, indices]));
    }
    match rng.below(4) {
        0 => {}
        1 => drop(b.op(Op::Unary(UnaryKind::Neg), &[values])),
        // What a router does: rows of a table, by the indices.
        2 => {
            let table = b.arg(Type::f32([n, rng.within(1, 4)]));
            b.op(Op::Gather(Gather { batch: 0, base: None }), &[table, indices]);
        }
        _ => {
            let float = b.op(Op::Convert(DType::F32), &[indices]);
            b.op(Op::Binary(BinaryKind::Add), &[float, values]);
        }
    }
}

fn sample(b: &mut Builder, rng: &mut Rng, logits: ValueId, rows: usize) {
    // Temperatures and shares that mean something, and some that take the likeliest.
    let settings = b.arg(Type::f32([rows, 2]));
    let key = b.integers([rows, 4], -2, 6);
    let token = b.op(Op::Sample(Sample {}), &[logits, settings, key]);
    if rng.chance(30) {
        b.op(Op::Convert(DType::F32), &[token]);
    }
}

/// The value itself if it is an argument, which both sides know exactly; else with something added that keeps elements of a row apart, which
/// would otherwise be ranked by how sums are rounded.
fn apart(b: &mut Builder, rng: &mut Rng, x: ValueId) -> ValueId {
    if b.f.args.contains(&x) && rng.chance(60) {
        return x;
    }
    let ty = b.f.ty(x).clone();
    let golden = |i: usize| f64::from((3.0 * (i as f64 * 0.618_033_988_749_895).fract()) as f32);
    let value = Literal::Dense((0..ty.elements()).map(golden).collect());
    let c = b.op(Op::Constant(Constant { ty, value }), &[]);
    let y = b.op(Op::Binary(BinaryKind::Add), &[x, c]);
    // Also views: rows that are read along another dim.
    match b.f.ty(y).rank() {
        2.. if rng.chance(40) => {
            let rank = b.f.ty(y).rank();
            b.op(Op::Transpose((0..rank).rev().collect()), &[y])
        }
        rank if rng.chance(25) => {
            let n = rng.within(1, 3);
            let shape = [&[n], &b.f.ty(y).shape[..]].concat();
            b.op(Op::Broadcast(Broadcast { shape, dims: (1..=rank).collect() }), &[y])
        }
        _ => y,
    }
}
