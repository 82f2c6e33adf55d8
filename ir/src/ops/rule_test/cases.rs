//! Small operands for every op: extents that nothing divides evenly, every kind and attribute.

use crate::eval::Tensor;
use crate::ops::*;
use crate::types::{DType, ReduceKind, Type};

/// An op and global operands.
pub(super) struct Case {
    pub(super) op: Op,
    pub(super) args: Vec<Tensor>,
}

/// Small pseudo-random numbers of the type: floats in -2..2, integers in -3..=4.
pub(super) fn random(ty: Type, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let dtype = ty.dtype;
    Tensor::from_fn(ty, |_| match dtype {
        DType::Bool => f64::from(u8::from(next() < 0.5)),
        DType::I32 | DType::I64 => (next() * 8.0).floor() - 3.0,
        _ => next() * 4.0 - 2.0,
    })
}

fn case(op: Op, types: &[Type]) -> Case {
    let args = types.iter().enumerate().map(|(i, ty)| random(ty.clone(), i as u64 + 7)).collect();
    Case { op, args }
}

fn f32(shape: &[usize]) -> Type {
    Type::f32(shape)
}

fn bool_(shape: &[usize]) -> Type {
    Type::new(DType::Bool, shape)
}

pub(super) fn cases() -> Vec<Case> {
    [elementwise(), shapes(), contractions(), indexing(), composites(), selections(), structure()]
        .into_iter()
        .flatten()
        .collect()
}

fn elementwise() -> Vec<Case> {
    let mut all = Vec::new();
    for &kind in UnaryKind::ALL {
        let ty = if kind == UnaryKind::Not { bool_(&[3, 5]) } else { f32(&[3, 5]) };
        let mut c = case(Op::Unary(kind), &[ty]);
        if matches!(kind, UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Rsqrt) {
            c.args[0].data.iter_mut().for_each(|x| *x = x.abs() + 0.1);
        }
        all.push(c);
    }
    all.push(case(Op::Unary(UnaryKind::Neg), &[Type::i32([5])]));
    for &kind in BinaryKind::ALL {
        let logic = matches!(kind, BinaryKind::And | BinaryKind::Or);
        let ty = if logic { bool_(&[3, 5]) } else { f32(&[3, 5]) };
        let mut c = case(Op::Binary(kind), &[ty.clone(), ty]);
        if kind == BinaryKind::Pow {
            c.args[0].data.iter_mut().for_each(|x| *x = x.abs() + 0.1);
        }
        all.push(c);
        if !logic && kind != BinaryKind::Pow {
            all.push(case(Op::Binary(kind), &[Type::i32([5]), Type::i32([5])]));
        }
    }
    for &kind in CompareKind::ALL {
        all.push(case(Op::Compare(kind), &[f32(&[3, 5]), f32(&[3, 5])]));
        all.push(case(Op::Compare(kind), &[Type::i32([7]), Type::i32([7])]));
    }
    all.push(case(Op::Select, &[bool_(&[3, 5]), f32(&[3, 5]), f32(&[3, 5])]));
    for to in [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::Bool] {
        all.push(case(Op::Convert(to), &[f32(&[5, 2])]));
        all.push(case(Op::Convert(to), &[Type::i32([5])]));
    }
    all
}

fn shapes() -> Vec<Case> {
    let splat = |value| Op::Constant(Constant { ty: Type::f32([3, 5]), value: Literal::Splat(value) });
    let dense = Literal::Dense((0..10).map(f64::from).collect());
    let iota = |dim| Op::Iota(Iota { ty: Type::i32([7, 5]), dim, base: None });
    let broadcast = |shape: &[usize], dims: &[usize]| {
        Op::Broadcast(Broadcast { shape: shape.to_vec(), dims: dims.to_vec() })
    };
    let reshape = |from: &[usize], to: &[usize]| case(Op::Reshape(to.to_vec()), &[f32(from)]);
    let slice =
        |start: &[usize], limit: &[usize]| Op::Slice(Slice { start: start.to_vec(), limit: limit.to_vec() });
    let pad = |value| Op::Pad(Pad { low: vec![1, 0, 0], high: vec![2, 0, 1], value });
    vec![
        case(splat(0.0), &[]),
        case(splat(2.5), &[]),
        case(Op::Constant(Constant { ty: Type::f32([2, 5]), value: dense }), &[]),
        case(iota(0), &[]),
        case(iota(1), &[]),
        case(broadcast(&[3, 5, 2], &[1]), &[f32(&[5])]),
        case(broadcast(&[3, 5], &[0, 1]), &[f32(&[3, 5])]),
        case(broadcast(&[5], &[]), &[f32(&[])]),
        reshape(&[3, 5], &[3, 5]),
        reshape(&[12, 5], &[3, 4, 5]),
        reshape(&[4, 6, 5], &[24, 5]),
        reshape(&[2, 12, 3], &[6, 4, 3]),
        reshape(&[5, 6, 4], &[5, 4, 6]),
        reshape(&[6, 4, 2], &[4, 6, 2]),
        reshape(&[5, 1, 3, 1], &[1, 5, 3]),
        reshape(&[3, 4], &[2, 6]),
        reshape(&[1], &[]),
        case(Op::Transpose(vec![2, 0, 1]), &[f32(&[3, 5, 4])]),
        case(slice(&[0, 1, 0], &[5, 3, 3]), &[f32(&[5, 4, 3])]),
        case(Op::Concat(1), &[f32(&[3, 2, 5]), f32(&[3, 1, 5]), f32(&[3, 4, 5])]),
        case(Op::Concat(0), &[f32(&[5, 3])]),
        case(pad(0.0), &[f32(&[2, 5, 3])]),
        case(pad(1.5), &[f32(&[2, 5, 3])]),
    ]
}

fn contractions() -> Vec<Case> {
    let dot = |lhs_batch: &[usize], rhs_batch: &[usize], lhs: &[usize], rhs: &[usize]| {
        Op::DotGeneral(DotGeneral {
            lhs_batch: lhs_batch.to_vec(),
            rhs_batch: rhs_batch.to_vec(),
            lhs_contract: lhs.to_vec(),
            rhs_contract: rhs.to_vec(),
            result: None,
        })
    };
    let reduce = |kind, dims: &[usize], ty| case(Op::Reduce(Reduce { kind, dims: dims.to_vec() }), &[ty]);
    vec![
        case(dot(&[], &[], &[1], &[0]), &[f32(&[3, 5]), f32(&[5, 4])]),
        // o_proj: kv, group and head_dim contracted.
        case(dot(&[], &[], &[1, 2], &[0, 1]), &[f32(&[2, 3, 5]), f32(&[3, 5, 4])]),
        case(dot(&[0, 2], &[0, 2], &[3], &[3]), &[f32(&[2, 3, 3, 5]), f32(&[2, 4, 3, 5])]),
        case(dot(&[1], &[0], &[0], &[2]), &[f32(&[5, 3]), f32(&[3, 4, 5])]),
        case(dot(&[], &[], &[], &[]), &[f32(&[3]), f32(&[5])]),
        reduce(ReduceKind::Sum, &[1], f32(&[3, 5, 2])),
        reduce(ReduceKind::Max, &[0, 2], f32(&[3, 5, 3])),
        reduce(ReduceKind::Min, &[0], f32(&[5])),
        reduce(ReduceKind::Sum, &[0], Type::i32([5, 3])),
    ]
}

fn indexing() -> Vec<Case> {
    let gather = |batch| Op::Gather(Gather { batch, base: None });
    let update = |batch| Op::Update(Update { batch, base: None });
    vec![
        // Random indices are -3..=4: some are outside.
        case(gather(0), &[f32(&[5, 3]), Type::i32([2, 5])]),
        case(gather(1), &[f32(&[3, 5, 2]), Type::i32([3])]),
        case(gather(1), &[f32(&[3, 4]), Type::i32([3, 5])]),
        // One row, in range and negative, so that a wrong reduction shows.
        Case { op: gather(0), args: vec![Tensor::splat(f32(&[7]), -1.5), Tensor::splat(Type::i32([]), 4.0)] },
        case(update(1), &[f32(&[3, 5, 2]), f32(&[3, 2, 2]), Type::i32([3])]),
        case(update(0), &[f32(&[7, 3]), f32(&[3, 3]), Type::i32([])]),
        case(update(2), &[f32(&[2, 3, 5]), f32(&[2, 3, 1]), Type::i32([2, 3])]),
    ]
}

fn composites() -> Vec<Case> {
    let mut all = Vec::new();
    for dim in 0..3 {
        all.push(case(Op::Softmax(Softmax { dim }), &[f32(&[3, 5, 2])]));
    }
    all.push(case(Op::RmsNorm(RmsNorm { eps: 1e-5 }), &[f32(&[3, 5, 4]), f32(&[4])]));
    all.push(case(Op::LayerNorm(LayerNorm { eps: 1e-5 }), &[f32(&[3, 5, 4]), f32(&[4]), f32(&[4])]));
    for (interleaved, half) in [(false, 3), (false, 2), (true, 3), (true, 2)] {
        let angles = f32(&[3, 5, half]);
        all.push(case(Op::Rope(Rope { interleaved }), &[f32(&[3, 5, 2, 3, 6]), angles.clone(), angles]));
    }
    for (causal, window, softcap) in
        [(false, None, None), (true, None, None), (true, Some(2), None), (true, Some(3), Some(1.5))]
    {
        let op = Attention { scale: 0.6, causal, window, softcap, bf16_bias: false };
        let (q, k, v) = (f32(&[2, 3, 3, 2, 4]), f32(&[2, 5, 3, 4]), f32(&[2, 5, 3, 3]));
        // Random positions are -3..=4: some keys are hidden, some queries see none.
        let positions = [Type::i32([2, 3]), Type::i32([2, 5])];
        let args = [&[q, k, v], &positions[..]].concat();
        all.push(case(Op::Attention(op.clone()), &args));
        let args = [&args[..], &[f32(&[3, 2])]].concat();
        all.push(case(Op::Attention(op.clone()), &args));
        all.push(case(Op::Attention(Attention { bf16_bias: true, ..op }), &args));
    }
    all
}

fn selections() -> Vec<Case> {
    let sample = case(Op::Sample(sample::Sample {}), &[f32(&[5, 7]), f32(&[5, 2]), Type::i32([5, 4])]);
    vec![
        case(Op::TopK(TopK { k: 2 }), &[f32(&[3, 5])]),
        case(Op::TopK(TopK { k: 4 }), &[f32(&[3, 2, 4])]),
        sample,
    ]
}

/// Ops whose rule allows no split; they are tested where they get their meaning.
fn structure() -> Vec<Case> {
    use crate::mesh::{Axis, AxisRef};
    let axes = vec![AxisRef { axis: Axis::Tp, pre: 1, size: 2 }];
    let x = Type::f32([4, 3]);
    vec![
        case(Op::Call(crate::graph::FuncId::from_u32(0)), std::slice::from_ref(&x)),
        case(Op::Reshard(crate::sharding::Sharding::replicated(2)), std::slice::from_ref(&x)),
        case(
            Op::Collective(Collective::AllReduce { axes: axes.clone(), kind: ReduceKind::Sum }),
            std::slice::from_ref(&x),
        ),
        case(Op::ShardSlice(ShardSlice { axes: axes.clone(), dim: 0, global: 4 }), std::slice::from_ref(&x)),
        case(Op::MaskTail(MaskTail { axes, dim: 0, global: 7, value: 0.0 }), std::slice::from_ref(&x)),
        case(Op::Send { stage: 1, tag: 0 }, std::slice::from_ref(&x)),
        case(Op::Recv { stage: 1, tag: 0, ty: x }, &[]),
    ]
}
