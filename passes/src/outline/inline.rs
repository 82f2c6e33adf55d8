//! Inlines calls, so that a called function has none of its own.

use pcc_ir::{Diagnostic, Func, FuncId, Inst, Module, Op, Value, ValueId};
use std::collections::BTreeMap;

/// Deepest nesting of calls, and most instructions of an inlined function.
const DEPTH: usize = 64;
const INSTRUCTIONS: usize = 1 << 20;

/// The function with all calls inlined.
///
/// Errors: it calls itself, or grows past a million instructions.
pub fn flat(module: &Module, id: FuncId) -> Result<Func, Diagnostic> {
    let f = &module.funcs[id];
    if !f.insts.iter().any(|i| matches!(i.op, Op::Call(_))) {
        return Ok(f.clone());
    }
    let mut out = Func { name: f.name.clone(), ..Func::default() };
    let mut args = Vec::new();
    for &v in &f.args {
        args.push(out.values.push(f.values[v].clone()));
    }
    out.args = args.clone();
    out.results = splice(module, f, &args, "", &mut out, DEPTH)?;
    Ok(out)
}

/// Adds the instructions of `f` with the given arguments to `out`; returns what its results became.
fn splice(
    module: &Module,
    f: &Func,
    args: &[ValueId],
    place: &str,
    out: &mut Func,
    depth: usize,
) -> Result<Vec<ValueId>, Diagnostic> {
    let too_deep = || {
        Diagnostic::input("calls are nested too deeply")
            .at(f.name.clone())
            .why(format!("a function calls itself, or calls nest more than {DEPTH} deep"))
    };
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let mut map: BTreeMap<ValueId, ValueId> = f.args.iter().copied().zip(args.iter().copied()).collect();
    let broken = || Diagnostic::internal("a value is used before it is made").at(f.name.clone());
    let all = |map: &BTreeMap<ValueId, ValueId>, vs: &[ValueId]| {
        vs.iter().map(|v| map.get(v).copied().ok_or_else(broken)).collect::<Result<Vec<_>, _>>()
    };
    for inst in &f.insts {
        let args = all(&map, &inst.args)?;
        let loc = if place.is_empty() { inst.loc.clone() } else { format!("{place}.{}", inst.loc) };
        let results = match inst.op {
            Op::Call(callee) => splice(module, &module.funcs[callee], &args, &loc, out, depth)?,
            _ => {
                if out.insts.len() >= INSTRUCTIONS {
                    return Err(Diagnostic::input(
                        "the model is too large once its nested calls are inlined",
                    )
                    .at(f.name.clone())
                    .why(format!("it would pass {INSTRUCTIONS} instructions"))
                    .help("call repeated layers from the entry function, not from inside other functions"));
                }
                let values: Vec<Value> = inst.results.iter().map(|&v| f.values[v].clone()).collect();
                let results: Vec<ValueId> = values.into_iter().map(|v| out.values.push(v)).collect();
                out.insts.push(Inst { op: inst.op.clone(), args, results: results.clone(), loc });
                results
            }
        };
        map.extend(inst.results.iter().copied().zip(results));
    }
    all(&map, &f.results)
}
