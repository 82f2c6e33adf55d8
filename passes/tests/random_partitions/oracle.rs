//! What is right: every local value must be what its claim says of the global function's values, with NaN in all
//! padding that is not claimed to be zero.

use super::rng::Rng;
use super::sharded::Builder;
use pcc_ir::eval::{Tensor, eval_func, eval_spmd, shard, unshard};
use pcc_ir::ops::{MaskTail, Op};
use pcc_ir::{Claim, DType, Func, FuncId, Inst, Module, Pad, Term, Type, Value, ValueId};
use std::collections::HashMap;

/// Random arguments of a function.
pub fn arguments(b: &Builder, rng: &mut Rng) -> Vec<Tensor> {
    let one = |&v: &ValueId| {
        let ty = b.f.ty(v).clone();
        match b.ranges.iter().find(|r| r.0 == v) {
            Some(&(_, low, high)) => {
                Tensor::from_fn(ty, |_| low as f64 + rng.below((high - low + 1) as usize) as f64)
            }
            None => Tensor::from_fn(ty, |_| rng.number()),
        }
    };
    b.f.args.iter().map(one).collect()
}

/// Checks every claim of function `id` of `local` by running it.
pub fn check_claims(sharded: &Module, local: &Module, id: FuncId, args: &[Tensor]) -> Result<(), String> {
    let mut global = sharded.clone();
    let f = &mut global.funcs[id];
    f.results =
        f.args.iter().copied().chain(f.insts.iter().flat_map(|i| i.results.iter().copied())).collect();
    let shown = f.results.clone();
    let values = eval_func(&global, id, args)?;
    let values: HashMap<ValueId, Tensor> = shown.into_iter().zip(values).collect();

    let mut poisoned = local.clone();
    let f = &local.funcs[id];
    let (with_poison, shown) = poison(f, &sharded.funcs[id]);
    poisoned.funcs[id] = with_poison;
    let mesh = local.mesh;
    let pieces: Vec<Vec<Tensor>> = (0..mesh.stage_devices())
        .map(|d| {
            let piece = |(v, t): (&ValueId, &Tensor)| shard(t, &claim(f, *v).sharding, &mesh, d, 0.0);
            f.args.iter().zip(args).map(piece).collect()
        })
        .collect();
    let results = eval_spmd(&poisoned, id, &pieces)?;
    for (i, &v) in shown.iter().enumerate() {
        let on_devices: Vec<Tensor> = results.iter().map(|r| r[i].clone()).collect();
        let want = term(&claim(f, v).term, &values);
        check_value(local, claim(f, v), &on_devices, &want).map_err(|e| {
            let made = f.insts.iter().find(|i| i.results.contains(&v));
            let operands =
                made.map(|i| i.args.iter().map(|&a| (f.ty(a).to_string(), claim(f, a))).collect::<Vec<_>>());
            format!(
                "{e} in local {v} {} {:?} = {:?} of {operands:?}",
                f.ty(v),
                claim(f, v),
                made.map(|i| &i.op)
            )
        })?;
    }
    Ok(())
}

fn claim(f: &Func, v: ValueId) -> &Claim {
    f.values[v].claim.as_ref().unwrap_or_else(|| panic!("{v} has no claim"))
}

fn term(t: &Term, values: &HashMap<ValueId, Tensor>) -> Tensor {
    match t {
        Term::Value(v) => values[v].clone(),
        Term::Sum(ts) => {
            let mut parts = ts.iter().map(|t| term(t, values));
            let first = parts.next().expect("a sum has terms");
            parts.fold(first, |mut sum, part| {
                sum.data.iter_mut().zip(&part.data).for_each(|(a, b)| *a += b);
                sum
            })
        }
    }
}

fn check_value(module: &Module, claim: &Claim, pieces: &[Tensor], want: &Tensor) -> Result<(), String> {
    let mesh = &module.mesh;
    let got = unshard(pieces, &claim.sharding, mesh, &want.ty)?;
    compare(&got, want).map_err(|e| format!("{e}, placed {}", claim.sharding.text(mesh)))?;
    for (device, piece) in pieces.iter().enumerate() {
        for (d, &n) in want.ty.shape.iter().enumerate() {
            if claim.pad[d] == Pad::Unspecified {
                continue;
            }
            let held = claim.sharding.span(mesh, device, d, n).len;
            let inner: usize = piece.ty.shape[d + 1..].iter().product();
            let padding = |i: usize| i / inner % piece.ty.shape[d] >= held;
            if let Some(i) = (0..piece.data.len()).find(|&i| padding(i) && piece.data[i] != 0.0) {
                return Err(format!("padding of dim {d} on device {device} holds {}", piece.data[i]));
            }
        }
    }
    Ok(())
}

/// Equal but for the order of sums.
pub fn compare(got: &Tensor, want: &Tensor) -> Result<(), String> {
    if got.ty != want.ty {
        return Err(format!("{} instead of {}", got.ty, want.ty));
    }
    let scale = want.data.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    let wrong =
        |(a, b): &(&f64, &f64)| !(a.is_nan() && b.is_nan() || a == b || (*a - *b).abs() <= 1e-7 * scale);
    match got.data.iter().zip(&want.data).enumerate().find(|(_, pair)| wrong(pair)) {
        Some((i, (a, b))) => Err(format!("element {i} is {a}, not {b}")),
        None => Ok(()),
    }
}

/// The function giving every value, each computed from operands with NaN in all padding that is not claimed to be zero;
/// and the values in the order given.
fn poison(f: &Func, global: &Func) -> (Func, Vec<ValueId>) {
    let mut out = Func { insts: Vec::new(), ..f.clone() };
    let mut now: HashMap<ValueId, ValueId> = HashMap::new();
    let mut shown = f.args.clone();
    for &v in &f.args {
        now.insert(v, poisoned(v, f, global, &mut out));
    }
    for inst in &f.insts {
        let args = inst.args.iter().map(|v| now[v]).collect();
        out.insts.push(Inst { args, ..inst.clone() });
        // What a mask writes other than zero is known from the mask, not from its claim.
        let mask = matches!(&inst.op, Op::MaskTail(m) if m.value != 0.0);
        for &v in &inst.results {
            let next = if mask { v } else { poisoned(v, f, global, &mut out) };
            now.insert(v, next);
            shown.push(v);
        }
    }
    out.results = shown.clone();
    (out, shown)
}

fn poisoned(v: ValueId, f: &Func, global: &Func, out: &mut Func) -> ValueId {
    let claim = claim(f, v);
    let mut term = &claim.term;
    while let Term::Sum(ts) = term {
        term = &ts[0];
    }
    let Term::Value(g) = term else { unreachable!("a term that is no sum is a value") };
    let shape = &global.ty(*g).shape;
    let ty: &Type = f.ty(v);
    let garbage = match ty.dtype {
        DType::I32 | DType::I64 => 77_777.0,
        DType::Bool => 1.0,
        _ => f64::NAN,
    };
    let mut at = v;
    // Zero is said of all elements in the padding of a dim, whatever the other dims: it goes in last.
    for pad in [Pad::Unspecified, Pad::Zero] {
        for (dim, &global) in shape.iter().enumerate() {
            if claim.pad[dim] == pad && claim.sharding.pads(dim, global) {
                let value = if pad == Pad::Zero { 0.0 } else { garbage };
                let op =
                    Op::MaskTail(MaskTail { axes: claim.sharding.dims[dim].clone(), dim, global, value });
                let next = out.values.push(Value::new(ty.clone()));
                out.insts.push(Inst { op, args: vec![at], results: vec![next], loc: String::new() });
                at = next;
            }
        }
    }
    at
}
