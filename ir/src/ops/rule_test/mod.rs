//! Executes what ops claim about themselves: every factor split of every sharding rule, with every way to fill
//! the padding that the rule allows; every partial rule; every decomposition. A wrong rule would mislead the
//! solver, the partitioner and the checker alike, so nothing else could find it.

mod cases;

use super::*;
use crate::eval::{eval_func, shard, unshard};
use crate::graph::Module;
use crate::mesh::Axis;
use crate::rule::FactorKind;
use crate::sharding::Pad as PadFact;
use cases::{Case, cases, random};
use std::collections::BTreeSet;

/// What tests a variant. No wildcard: a new op must say so here, and then needs a case.
fn has_rule(op: &Op) -> bool {
    match op {
        Op::Constant(_) | Op::Iota(_) | Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select => true,
        Op::Convert(_) | Op::Broadcast(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) => true,
        Op::Concat(_) | Op::Pad(_) | Op::DotGeneral(_) | Op::Reduce(_) | Op::Gather(_) => true,
        Op::Update(_) | Op::Softmax(_) | Op::RmsNorm(_) | Op::LayerNorm(_) | Op::Rope(_) => true,
        Op::Attention(_) | Op::TopK(_) | Op::Sample(_) => true,
        Op::Call(_) | Op::Reshard(_) | Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_) => false,
        Op::Send { .. } | Op::Recv { .. } => false,
    }
}

fn types(tensors: &[Tensor]) -> Vec<&Type> {
    tensors.iter().map(|t| &t.ty).collect()
}

/// Result types and values on one device.
fn whole(case: &Case) -> (Vec<Type>, Vec<Tensor>) {
    let types = case.op.infer(&types(&case.args)).unwrap();
    let args: Vec<_> = case.args.iter().collect();
    let values = case.op.eval(&args, &types.iter().collect::<Vec<_>>(), At::default()).unwrap();
    (types, values)
}

#[test]
fn every_variant_has_a_case() {
    // Serde names all variants when it meets an unknown one.
    let message = serde_json::from_str::<Op>("\"?\"").unwrap_err().to_string();
    let variants: BTreeSet<_> = message.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    let tag = |op: &Op| match serde_json::to_value(op).unwrap() {
        serde_json::Value::String(tag) => tag,
        value => value.as_object().unwrap().keys().next().unwrap().clone(),
    };
    let covered: BTreeSet<_> = cases().iter().map(|c| tag(&c.op)).collect();
    assert!(variants.len() > 20, "{message}");
    assert_eq!(variants, covered);
}

#[test]
fn rules_describe_the_dims() {
    for case in cases() {
        let args = types(&case.args);
        let results = match &case.op {
            Op::Call(_) => vec![case.args[0].ty.clone()],
            op => op.infer(&args).unwrap(),
        };
        let results: Vec<_> = results.iter().collect();
        let rule = case.op.rule(&args, &results);
        for (dims, ty) in rule.operands.iter().chain(&rule.results).zip(args.iter().chain(&results)) {
            let extents = dims.iter().map(|fs| fs.iter().map(|&f| rule.factors[f].size).product::<usize>());
            assert!(extents.eq(ty.shape.iter().copied()), "{:?}: {rule:?}", case.op);
        }
        assert_eq!((rule.operands.len(), rule.results.len()), (args.len(), results.len()), "{:?}", case.op);
        for f in 0..rule.factors.len() {
            let in_results = rule.results.iter().flatten().flatten().any(|&g| g == f);
            match rule.factors[f].kind {
                FactorKind::Reduce(_) => assert!(!in_results, "{:?}: factor {f}", case.op),
                FactorKind::Pass => assert!(in_results, "{:?}: factor {f}", case.op),
                FactorKind::Replicate => assert!(f < rule.factors.len()),
            }
        }
        let split_allowed = rule.factors.iter().any(|f| f.kind != FactorKind::Replicate);
        assert!(has_rule(&case.op) || !split_allowed, "{:?}", case.op);
    }
}

/// Meshes and the ways to use their axes: on one factor, and on two factors.
fn placements() -> Vec<(Mesh, Vec<AxisRef>, Vec<AxisRef>)> {
    let tp = |n| Mesh { tp: n, ..Mesh::default() };
    let part = |m: Mesh, pre, size| m.part(Axis::Tp, pre, size).unwrap();
    let mut all: Vec<_> = [2, 3, 4, 7].map(|n| (tp(n), vec![part(tp(n), 1, n)], vec![])).into();
    let four = tp(4);
    let (a, b) = (part(four, 1, 2), part(four, 2, 2));
    // Nested in both orders, one sub-axis with replicas over the other, and one sub-axis for each of two factors.
    all.extend([(four, vec![a, b], vec![]), (four, vec![b, a], vec![]), (four, vec![b], vec![])]);
    all.extend([(four, vec![a], vec![b]), (four, vec![b], vec![a])]);
    let six = tp(6);
    all.push((six, vec![part(six, 1, 3), part(six, 3, 2)], vec![]));
    let both = Mesh { dp: 2, tp: 3, ..Mesh::default() };
    all.push((both, vec![both.whole(Axis::Dp)], vec![both.whole(Axis::Tp)]));
    let deep = Mesh { dp: 2, tp: 4, ..Mesh::default() };
    let (a, b) = (part(deep, 1, 2), part(deep, 2, 2));
    all.push((deep, vec![deep.whole(Axis::Dp), b], vec![a]));
    all
}

/// Every assignment of every placement to factors, whether the rule allows it or not.
fn splits(factors: usize) -> Vec<(Mesh, Split)> {
    let mut all = vec![(Mesh::default(), vec![Vec::new(); factors])];
    for (mesh, first, second) in placements() {
        for f in 0..factors {
            let mut split = vec![Vec::new(); factors];
            split[f] = first.clone();
            if second.is_empty() {
                all.push((mesh, split));
                continue;
            }
            for g in (0..factors).filter(|&g| g != f) {
                let mut pair = split.clone();
                pair[g] = second.clone();
                all.push((mesh, pair));
            }
        }
    }
    all
}

#[test]
fn every_factor_split_gives_the_same_function() {
    let mut runs = 0;
    for case in cases().iter().filter(|c| has_rule(&c.op)) {
        let (result_types, _) = whole(case);
        let rule = case.op.rule(&types(&case.args), &result_types.iter().collect::<Vec<_>>());
        let mut split_factors = BTreeSet::new();
        for (mesh, split) in splits(rule.factors.len()) {
            if !rule.allows(&split) {
                continue;
            }
            split_factors.extend((0..split.len()).filter(|&f| !split[f].is_empty()));
            for filling in 0..6 {
                execute(case, &rule, &mesh, &split, filling);
                runs += 1;
            }
        }
        let splittable = (0..rule.factors.len()).filter(|&f| rule.factors[f].kind != FactorKind::Replicate);
        assert!(splittable.eq(split_factors), "{:?}: a factor was never split", case.op);
    }
    assert!(runs > 10_000, "{runs} runs");
}

/// Runs one split on every device and compares; filling says how the padding is filled.
fn execute(case: &Case, rule: &Rule, mesh: &Mesh, split: &Split, filling: u64) {
    let place = || format!("{:?} split {split:?} filling {filling}", case.op);
    let (result_types, want) = whole(case);
    let shardings: Vec<_> = (0..case.args.len()).map(|i| rule.operand_sharding(i, split)).collect();
    let outs: Vec<_> = (0..want.len()).map(|i| rule.result_sharding(i, split)).collect();
    let implied = rule.split_from(&shardings.iter().collect::<Vec<_>>(), &outs.iter().collect::<Vec<_>>());
    assert_eq!(implied.as_ref(), Some(split), "{}", place());

    let facts: Vec<Vec<PadFact>> =
        shardings.iter().enumerate().map(|(i, s)| facts(case, rule, s, i, filling)).collect();
    let claimed = case.op.result_pads(rule, &facts);
    let local_types: Vec<_> = result_types.iter().zip(&outs).map(|(t, s)| s.local_type(t)).collect();
    let local_types: Vec<_> = local_types.iter().collect();
    let mut pieces = vec![Vec::new(); want.len()];
    for device in 0..mesh.devices() {
        let locals: Vec<_> = (0..case.args.len())
            .map(|i| fill(case, rule, &shardings[i], mesh, device, i, &facts[i], filling))
            .collect();
        let op = case.op.localize(rule, split, &types(&locals), &local_types);
        let at = At { mesh: *mesh, device };
        let results = op.eval(&locals.iter().collect::<Vec<_>>(), &local_types, at);
        for (i, result) in results.unwrap_or_else(|e| panic!("{e}: {}", place())).into_iter().enumerate() {
            check_pads(&result, &result_types[i], &outs[i], mesh, device, &claimed[i], &place);
            pieces[i].push(result);
        }
    }
    for (i, want) in want.iter().enumerate() {
        let got =
            unshard(&pieces[i], &outs[i], mesh, &want.ty).unwrap_or_else(|e| panic!("{e}: {}", place()));
        assert!(got.max_abs_diff(want) < 1e-9, "{}: {got:?} is not {want:?}", place());
    }
}

/// Which padding of operand i is zero in this filling: none that need not be, all, or a mixture.
fn facts(case: &Case, rule: &Rule, sharding: &Sharding, i: usize, filling: u64) -> Vec<PadFact> {
    let dim = |d: usize| {
        let padded = sharding.pads(d, case.args[i].ty.shape[d]);
        let mixed = (filling.wrapping_mul(37) >> ((2 * i + d) % 5)) & 1 == 1;
        match rule.reduce_need(i, d) {
            _ if !padded => PadFact::Zero,
            Some(ReduceKind::Sum) => PadFact::Zero,
            Some(_) => PadFact::Unspecified,
            None if filling == 1 || filling > 2 && mixed => PadFact::Zero,
            None => PadFact::Unspecified,
        }
    };
    (0..sharding.dims.len()).map(dim).collect()
}

/// The device's piece of operand i. Padding that the facts call zero is zero, reduced padding the identity, and the
/// rest is the worst that can be: NaN, huge numbers, or numbers that look valid.
fn fill(
    case: &Case,
    rule: &Rule,
    sharding: &Sharding,
    mesh: &Mesh,
    device: usize,
    i: usize,
    facts: &[PadFact],
    filling: u64,
) -> Tensor {
    let global = &case.args[i].ty;
    let mut local = shard(&case.args[i], sharding, mesh, device, 0.0);
    let looks_valid = random(local.ty.clone(), 99 + filling);
    let lens: Vec<_> =
        (0..global.rank()).map(|d| sharding.span(mesh, device, d, global.shape[d]).len).collect();
    let shape = local.ty.shape.clone();
    for at in 0..local.data.len() {
        let index = unravel(at, &shape);
        let padded: Vec<_> = (0..shape.len()).filter(|&d| index[d] >= lens[d]).collect();
        let garbage = match (global.dtype, filling % 3) {
            (_, 2) | (DType::Bool, _) => looks_valid.data[at],
            (DType::I32 | DType::I64, _) => f64::from(i32::MAX),
            (_, 0) => f64::NAN,
            _ => 1e30,
        };
        if padded.iter().any(|&d| facts[d] == PadFact::Zero) {
            local.data[at] = 0.0;
        } else if let Some(kind) = padded.iter().find_map(|&d| rule.reduce_need(i, d)) {
            local.data[at] = kind.identity();
        } else if !padded.is_empty() {
            local.data[at] = garbage;
        }
    }
    local
}

/// Padding that the op claims to be zero is zero.
fn check_pads(
    result: &Tensor,
    global: &Type,
    sharding: &Sharding,
    mesh: &Mesh,
    device: usize,
    claimed: &[PadFact],
    place: &dyn Fn() -> String,
) {
    for (at, &x) in result.data.iter().enumerate() {
        let index = unravel(at, &result.ty.shape);
        for d in (0..index.len()).filter(|&d| claimed[d] == PadFact::Zero) {
            let len = sharding.span(mesh, device, d, global.shape[d]).len;
            assert!(index[d] < len || x == 0.0, "{}: padding {index:?} holds {x}", place());
        }
    }
}

fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        (index[d], at) = (at % shape[d], at / shape[d]);
    }
    index
}

/// The executor itself finds wrong rules.
#[test]
fn a_wrong_rule_is_caught() {
    let mesh = Mesh { tp: 2, ..Mesh::default() };
    for case in cases().iter().filter(|c| has_rule(&c.op)) {
        let (result_types, _) = whole(case);
        let right = case.op.rule(&types(&case.args), &result_types.iter().collect::<Vec<_>>());
        for f in 0..right.factors.len() {
            let mut rule = right.clone();
            let mut split = vec![Vec::new(); right.factors.len()];
            split[f] = vec![mesh.whole(Axis::Tp)];
            match right.factors[f].kind {
                FactorKind::Reduce(ReduceKind::Sum) => {
                    rule.factors[f].kind = FactorKind::Reduce(ReduceKind::Max)
                }
                FactorKind::Reduce(_) => rule.factors[f].kind = FactorKind::Reduce(ReduceKind::Sum),
                FactorKind::Replicate => rule.factors[f].kind = FactorKind::Pass,
                FactorKind::Pass => continue,
            }
            let run = || execute(case, &rule, &mesh, &split, 0);
            assert!(std::panic::catch_unwind(run).is_err(), "{:?}: factor {f} may be anything", case.op);
        }
    }
}

#[test]
fn partial_operands_give_the_partial_results_claimed() {
    const KINDS: [Option<ReduceKind>; 4] =
        [None, Some(ReduceKind::Sum), Some(ReduceKind::Max), Some(ReduceKind::Min)];
    let mut runs = 0;
    for case in cases().iter().filter(|c| has_rule(&c.op) && !c.args.is_empty()) {
        let n = case.args.len();
        assert_eq!(case.op.partial_rule(&vec![None; n]), Some(None));
        for code in 1..4usize.pow(n as u32) {
            let kinds: Vec<_> = (0..n).map(|i| KINDS[code / 4usize.pow(i as u32) % 4]).collect();
            // Bools cannot be summed, and max of bools is not claimed by anyone.
            let bools = kinds.iter().zip(&case.args).any(|(k, t)| k.is_some() && t.ty.dtype == DType::Bool);
            if let Some(Some(kind)) = case.op.partial_rule(&kinds)
                && !bools
            {
                check_partial(case, &kinds, kind);
                runs += 1;
            }
        }
    }
    assert!(runs > 100, "{runs} runs");
}

/// Runs the op on contributions of three devices and reduces.
fn check_partial(case: &Case, kinds: &[Option<ReduceKind>], kind: ReduceKind) {
    let (result_types, want) = whole(case);
    let result_types: Vec<_> = result_types.iter().collect();
    let parts: Vec<Vec<Tensor>> =
        case.args.iter().zip(kinds).enumerate().map(|(i, (t, k))| contributions(t, *k, i as u64)).collect();
    let mut sum: Option<Vec<Tensor>> = None;
    for device in 0..3 {
        let args: Vec<_> = parts.iter().map(|p| &p[device]).collect();
        let results = case.op.eval(&args, &result_types, At::default()).unwrap();
        sum = Some(match sum {
            None => results,
            Some(mut sum) => {
                for (a, b) in sum.iter_mut().zip(&results) {
                    a.data.iter_mut().zip(&b.data).for_each(|(a, &b)| *a = kind.apply(*a, b));
                }
                sum
            }
        });
    }
    for (got, want) in sum.unwrap().iter().zip(&want) {
        assert!(got.max_abs_diff(want) < 1e-9, "{:?} on {kinds:?}: {got:?} is not {want:?}", case.op);
    }
}

/// Three tensors that reduce to `t`.
fn contributions(t: &Tensor, kind: Option<ReduceKind>, seed: u64) -> Vec<Tensor> {
    let mut parts = vec![t.clone(), random(t.ty.clone(), seed + 40), random(t.ty.clone(), seed + 50)];
    for i in 0..t.data.len() {
        let (a, b) = (parts[1].data[i], parts[2].data[i]);
        match kind {
            None => (1..3).for_each(|p| parts[p].data[i] = t.data[i]),
            Some(ReduceKind::Sum) => parts[0].data[i] = t.data[i] - a - b,
            Some(ReduceKind::Max) => (1..3).for_each(|p| parts[p].data[i] = t.data[i] - a.abs()),
            Some(ReduceKind::Min) => (1..3).for_each(|p| parts[p].data[i] = t.data[i] + b.abs()),
        }
        let turn = i % 3;
        let (first, other) = (parts[0].data[i], parts[turn].data[i]);
        (parts[0].data[i], parts[turn].data[i]) = (other, first);
    }
    parts
}

#[test]
fn what_is_not_linear_refuses_partials() {
    let sum = Some(ReduceKind::Sum);
    // A bias added on every device would count as often as there are devices.
    assert_eq!(Op::Binary(BinaryKind::Add).partial_rule(&[sum, None]), None);
    assert_eq!(Op::Binary(BinaryKind::Mul).partial_rule(&[sum, sum]), None);
    assert_eq!(Op::DotGeneral(DotGeneral::default()).partial_rule(&[sum, sum]), None);
    assert_eq!(Op::Binary(BinaryKind::Add).partial_rule(&[sum, Some(ReduceKind::Max)]), None);
    assert_eq!(Op::Reduce(Reduce { kind: ReduceKind::Max, dims: vec![] }).partial_rule(&[sum]), None);
    for kind in UnaryKind::ALL.iter().filter(|&&k| k != UnaryKind::Neg) {
        assert_eq!(Op::Unary(*kind).partial_rule(&[sum]), None, "{kind:?}");
    }
    assert_eq!(Op::Call(FuncId::from_u32(0)).partial_rule(&[sum]), None);
}

#[test]
fn composites_equal_their_decompositions() {
    let mut composites = BTreeSet::new();
    for mut case in cases().into_iter().filter(|c| has_rule(&c.op)) {
        // In f64 the constants of a decomposition (scale, eps, 1/n) are not rounded.
        let floats = case.args.iter_mut().filter(|t| t.ty.dtype.is_float());
        floats.for_each(|t| t.ty.dtype = DType::F64);
        let mut f = Func::new("decomposed");
        let args: Vec<_> = case.args.iter().map(|t| f.arg(t.ty.clone(), "")).collect();
        let Some(results) = case.op.decompose(&mut f, &args) else { continue };
        f.results = results.unwrap();
        assert!(f.insts.iter().all(|i| i.op.decompose(&mut Func::new("none"), &[]).is_none()));
        composites.insert(case.op.name());
        let mut module = Module::default();
        let id = module.funcs.push(f);
        let got = eval_func(&module, id, &case.args).unwrap();
        let (_, want) = whole(&case);
        for (got, want) in got.iter().zip(&want) {
            assert!(got.max_abs_diff(want) < 1e-9, "{:?}: {got:?} is not {want:?}", case.op);
        }
    }
    assert_eq!(Vec::from_iter(composites), ["attention", "layer_norm", "rms_norm", "rope", "softmax"]);
}
