//! Functions: on one device, on all devices of a stage in lockstep, and as entries with parameters and states.

use super::collective::eval_collective;
use super::tensor::{At, Tensor};
use crate::graph::{Entry, Func, FuncId, Inst, Module, Role, ValueId};
use crate::ops::Op;
use cranelift_entity::EntityRef;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Calls nest no deeper; deeper means a cycle.
const MAX_DEPTH: usize = 64;

/// Evaluates a function over global tensors (graph or sharded level: a reshard is the identity).
///
/// # Errors
/// Wrong arguments, an ill-typed or undefined value, a recursive call, an integer beyond the exact range. The message
/// names function and instruction.
pub fn eval_func(module: &Module, func: FuncId, args: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let args: Vec<_> = args.iter().collect();
    let mut results = run(module, func, &[args], 0)?;
    Ok(results.pop().unwrap_or_default())
}

/// Evaluates a local function on all devices of one stage in lockstep, `args[d]` being device d's arguments, in the
/// numbering of the first stage. Runs collectives; does not look at claims.
///
/// # Errors
/// As [`eval_func`]; and sends and receives, which cross stages.
pub fn eval_spmd(module: &Module, func: FuncId, args: &[Vec<Tensor>]) -> Result<Vec<Vec<Tensor>>, String> {
    if args.len() != module.mesh.stage_devices() {
        return Err(format!("arguments for {} of {} devices", args.len(), module.mesh.stage_devices()));
    }
    let args: Vec<Vec<_>> = args.iter().map(|a| a.iter().collect()).collect();
    run(module, func, &args, 0)
}

/// Evaluates an entry of a graph or sharded module: `inputs` by name, `params` and `states` in the order of the
/// module's tables. New states replace the old ones. Gives the results that are no states, by name.
///
/// # Errors
/// As [`eval_func`]; a missing input, parameter or state; an entry with repeats ([`Module::expanded`] unfolds them).
pub fn eval_entry(
    module: &Module,
    entry: &Entry,
    inputs: &BTreeMap<String, Tensor>,
    params: &[Tensor],
    states: &mut [Tensor],
) -> Result<BTreeMap<String, Tensor>, String> {
    if !entry.repeats.is_empty() {
        return Err("only entries without repeats are evaluated: unfold the module first".into());
    }
    let find = |role: &Role| match role {
        Role::Input(name) => inputs.get(name).ok_or_else(|| format!("input `{name}` is missing")),
        Role::Param(id) => params.get(id.index()).ok_or_else(|| format!("{id} is missing")),
        Role::State(id) => states.get(id.index()).ok_or_else(|| format!("{id} is missing")),
    };
    let args = entry.args.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let results = run(module, entry.func, &[args], 0)?.pop().unwrap_or_default();
    let mut outputs = BTreeMap::new();
    for (i, result) in results.into_iter().enumerate() {
        let alias = entry.aliases.iter().find(|a| a.1 == i).and_then(|a| entry.args.get(a.0));
        match (alias, entry.results.get(i)) {
            (Some(Role::State(id)), _) => states[id.index()] = result,
            (_, Some(name)) => drop(outputs.insert(name.clone(), result)),
            (_, None) => return Err(format!("result {i} has no name")),
        }
    }
    Ok(outputs)
}

/// One device's values while a function runs.
type Values<'a> = Vec<Option<Cow<'a, Tensor>>>;

fn run(module: &Module, id: FuncId, args: &[Vec<&Tensor>], depth: usize) -> Result<Vec<Vec<Tensor>>, String> {
    let func = module.funcs.get(id).ok_or_else(|| format!("there is no function {id}"))?;
    if depth > MAX_DEPTH {
        return Err(format!("calls nest deeper than {MAX_DEPTH} in function `{}`", func.name));
    }
    let mut devices = Vec::with_capacity(args.len());
    for args in args {
        devices.push(bind(func, args)?);
    }
    for inst in &func.insts {
        step(module, func, inst, &mut devices, depth).map_err(|e| {
            let place = if inst.loc.is_empty() { inst.op.name() } else { &inst.loc };
            format!("{e} (at {place} in function `{}`)", func.name)
        })?;
    }
    let finish = |values: Values| {
        func.results.iter().map(|&v| get(&values, v).cloned()).collect::<Result<Vec<_>, _>>()
    };
    devices.into_iter().map(finish).collect()
}

fn bind<'a>(func: &Func, args: &[&'a Tensor]) -> Result<Values<'a>, String> {
    if args.len() != func.args.len() {
        return Err(format!(
            "function `{}` takes {} arguments, got {}",
            func.name,
            func.args.len(),
            args.len()
        ));
    }
    let mut values: Values = vec![None; func.values.len()];
    for (&v, &arg) in func.args.iter().zip(args) {
        let ty = &func.values.get(v).ok_or_else(|| format!("{v} is not a value"))?.ty;
        if arg.ty != *ty || arg.data.len() != ty.elements() {
            return Err(format!("argument {v} of function `{}` is {}, not {ty}", func.name, arg.ty));
        }
        values[v.index()] = Some(Cow::Borrowed(arg));
    }
    Ok(values)
}

fn get<'v>(values: &'v Values, v: ValueId) -> Result<&'v Tensor, String> {
    values
        .get(v.index())
        .and_then(Option::as_deref)
        .ok_or_else(|| format!("{v} is used before it is defined"))
}

fn step(
    module: &Module,
    func: &Func,
    inst: &Inst,
    devices: &mut [Values],
    depth: usize,
) -> Result<(), String> {
    let mut types = Vec::with_capacity(inst.results.len());
    for &v in &inst.results {
        types.push(&func.values.get(v).ok_or_else(|| format!("{v} is not a value"))?.ty);
    }
    let mut args = Vec::with_capacity(devices.len());
    for values in devices.iter() {
        args.push(inst.args.iter().map(|&v| get(values, v)).collect::<Result<Vec<_>, _>>()?);
    }
    let results: Vec<Vec<Tensor>> = match &inst.op {
        Op::Call(callee) => run(module, *callee, &args, depth + 1)?,
        Op::Collective(op) => {
            inst.op.check(&args[0].iter().map(|t| &t.ty).collect::<Vec<_>>(), &types)?;
            inst.op.check_axes(&module.mesh)?;
            if devices.len() != module.mesh.stage_devices() {
                return Err("a collective needs every device of the stage".into());
            }
            let pieces: Vec<_> = args.iter().map(|a| a[0]).collect();
            eval_collective(op, &pieces, types[0], &module.mesh).into_iter().map(|t| vec![t]).collect()
        }
        op => {
            let at = |device| At { mesh: module.mesh, device };
            args.iter().enumerate().map(|(d, a)| op.eval(a, &types, at(d))).collect::<Result<_, _>>()?
        }
    };
    for (values, results) in devices.iter_mut().zip(results) {
        if results.len() != inst.results.len() {
            return Err(format!("{} results for {} values", results.len(), inst.results.len()));
        }
        for ((&v, result), ty) in inst.results.iter().zip(results).zip(&types) {
            if result.ty != **ty {
                return Err(format!("{v} is declared {ty} but is {}", result.ty));
            }
            values[v.index()] = Some(Cow::Owned(result));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{shard, unshard};
    use crate::mesh::{Axis, Mesh};
    use crate::ops::{Collective, UnaryKind, Update};
    use crate::sharding::Sharding;
    use crate::types::{ReduceKind, Type};

    /// `y = silu(x w) v` with hidden extent 5: uneven over 2 devices.
    fn mlp(module: &mut Module, hidden: usize, reduce: bool) -> FuncId {
        let mut f = Func::new("mlp");
        let x = f.arg(Type::f32([2, 3]), "x");
        let w = f.arg(Type::f32([3, hidden]), "w");
        let v = f.arg(Type::f32([hidden, 4]), "v");
        let h = f.linear(x, w, 1).unwrap();
        let h = f.unary(UnaryKind::Silu, h).unwrap();
        let mut y = f.linear(h, v, 1).unwrap();
        if reduce {
            let axes = vec![module.mesh.whole(Axis::Tp)];
            let all_reduce = Collective::AllReduce { axes, kind: ReduceKind::Sum };
            y = f.one(Op::Collective(all_reduce), &[y]).unwrap();
        }
        f.results = vec![y];
        module.funcs.push(f)
    }

    /// Column then row parallel, the textbook case, through a call. Zeros in the padding keep the sum right.
    #[test]
    fn a_tensor_parallel_mlp_equals_the_whole_one() {
        let mesh = Mesh { tp: 2, ..Mesh::default() };
        let tp = mesh.whole(Axis::Tp);
        let wave = |shape: [usize; 2], step: f64| {
            Tensor::from_fn(Type::f32(shape), |i| (step * i as f64 + 0.3).sin())
        };
        let args = [wave([2, 3], 0.7), wave([3, 5], 1.1), wave([5, 4], 1.9)];
        let mut global = Module::default();
        let id = mlp(&mut global, 5, false);
        let want = eval_func(&global, id, &args).unwrap().remove(0);

        let mut local = Module { mesh, ..Module::default() };
        let callee = mlp(&mut local, 3, true);
        let mut main = Func::new("main");
        let types: Vec<_> =
            local.funcs[callee].args.iter().map(|&v| local.funcs[callee].ty(v).clone()).collect();
        let inputs: Vec<_> = types.into_iter().map(|t| main.arg(t, "")).collect();
        main.results = main.call(callee, &local.funcs[callee], &inputs, "layers.0").unwrap();
        let main = local.funcs.push(main);
        let dims = [vec![vec![], vec![]], vec![vec![], vec![tp]], vec![vec![tp], vec![]]];
        let shardings = dims.map(|dims| Sharding { dims, partial: vec![] });
        let pieces = |d| args.iter().zip(&shardings).map(|(t, s)| shard(t, s, &mesh, d, 0.0)).collect();
        let results = eval_spmd(&local, main, &[pieces(0), pieces(1)]).unwrap();
        let results: Vec<_> = results.into_iter().flatten().collect();
        let got = unshard(&results, &Sharding::replicated(2), &mesh, &want.ty).unwrap();
        assert!(got.max_abs_diff(&want) < 1e-12);
    }

    /// A cache of 4 positions, two of them written by two calls.
    #[test]
    fn entries_keep_their_states() {
        let mut f = Func::new("decode");
        let x = f.arg(Type::f32([1]), "x");
        let at = f.arg(Type::i32([]), "at");
        let cache = f.arg(Type::f32([4]), "cache");
        let new = f.one(Op::Update(Update { batch: 0, base: None }), &[cache, x, at]).unwrap();
        let sum = f.reduce(ReduceKind::Sum, new, &[0]).unwrap();
        f.results = vec![sum, new];
        let mut module = Module::default();
        let func = module.funcs.push(f);
        let state = module.states.push(crate::State {
            name: "cache".into(),
            ty: Type::f32([4]),
            sharding: None,
            stack: None,
        });
        let entry = Entry {
            name: "decode".into(),
            func,
            args: vec![Role::Input("x".into()), Role::Input("at".into()), Role::State(state)],
            results: vec!["sum".into(), "cache".into()],
            aliases: vec![(2, 1)],
            weight: 1.0,
            repeats: Vec::new(),
        };
        let mut states = [Tensor::zeros(Type::f32([4]))];
        for (x, at, sum) in [(2.0, 1.0, 2.0), (3.0, 2.0, 5.0)] {
            let (x, at) = (Tensor::splat(Type::f32([1]), x), Tensor::splat(Type::i32([]), at));
            let inputs = BTreeMap::from([("x".into(), x), ("at".into(), at)]);
            let outputs = eval_entry(&module, &entry, &inputs, &[], &mut states).unwrap();
            assert_eq!(outputs.keys().collect::<Vec<_>>(), ["sum"]);
            assert_eq!(outputs["sum"].data, [sum]);
        }
        assert_eq!(states[0].data, [0.0, 2.0, 3.0, 0.0]);
        let error = eval_entry(&module, &entry, &BTreeMap::new(), &[], &mut states).unwrap_err();
        assert_eq!(error, "input `x` is missing");
    }

    #[test]
    fn broken_functions_are_errors() {
        let mut module = Module::default();
        let ty = Type::f32([2]);
        let mut f = Func::new("cycle");
        let x = f.arg(ty.clone(), "x");
        let y = f.push(Op::Call(FuncId::from_u32(0)), vec![x], vec![ty.clone()], "again")[0];
        f.results = vec![y];
        let cycle = module.funcs.push(f);
        let arg = Tensor::zeros(ty.clone());
        assert!(eval_func(&module, cycle, std::slice::from_ref(&arg)).unwrap_err().contains("deeper"));

        let mut f = Func::new("undefined");
        let later = f.value(ty.clone());
        f.results = f.push(Op::Unary(UnaryKind::Neg), vec![later], vec![ty.clone()], "mlp");
        let undefined = module.funcs.push(f);
        let error = eval_func(&module, undefined, &[]).unwrap_err();
        assert!(error.contains("before it is defined (at mlp in function `undefined`)"), "{error}");

        let mut f = Func::new("mistyped");
        let x = f.arg(ty, "x");
        f.results = f.push(Op::Unary(UnaryKind::Neg), vec![x], vec![Type::f32([3])], "");
        let mistyped = module.funcs.push(f);
        assert!(
            eval_func(&module, mistyped, std::slice::from_ref(&arg)).unwrap_err().contains("declared f32[3]")
        );
        assert!(eval_func(&module, mistyped, &[]).unwrap_err().contains("takes 1 arguments"));
        assert!(eval_func(&module, FuncId::from_u32(99), &[]).is_err());
    }
}
