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
/// As [`eval_func`]; a missing input, parameter or state.
pub fn eval_entry(
    module: &Module,
    entry: &Entry,
    inputs: &BTreeMap<String, Tensor>,
    params: &[Tensor],
    states: &mut [Tensor],
) -> Result<BTreeMap<String, Tensor>, String> {
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
