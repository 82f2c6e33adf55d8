//! Noise for the parameters of a numeric check, scaled so that values keep their size from layer to layer.

use pcc_ir::graph::Role;
use pcc_ir::{FuncId, Module, Op, ParamId, ParamSource, ValueId};
use std::collections::BTreeMap;

/// Replaces the values of every parameter by noise: of standard deviation 1, and 1 / sqrt(n) where n products of it are added.
pub fn randomise(module: &mut Module, seed: u64) {
    let fan_in = fan_in(module);
    for (id, p) in module.params.iter_mut() {
        let scale = fan_in.get(&id).map_or(1.0, |&n| 1.0 / (n as f32).sqrt());
        p.source = ParamSource::random(p.ty.shape.clone(), seed, p.name.clone(), scale);
    }
}

/// How many products a matrix product adds, for parameters that are operands of one.
fn fan_in(module: &Module) -> BTreeMap<ParamId, usize> {
    let mut found = BTreeMap::new();
    for entry in &module.entries {
        let f = &module.funcs[entry.func];
        let held: BTreeMap<ValueId, ParamId> = f
            .args
            .iter()
            .zip(&entry.args)
            .filter_map(|(&v, role)| if let Role::Param(p) = role { Some((v, *p)) } else { None })
            .collect();
        collect(module, entry.func, &held, &mut found);
        for inst in &f.insts {
            let Op::Call(callee) = inst.op else { continue };
            let inner = module.funcs[callee].args.iter().zip(&inst.args);
            let held = inner.filter_map(|(&v, a)| Some((v, *held.get(a)?))).collect();
            collect(module, callee, &held, &mut found);
        }
    }
    found
}

fn collect(
    module: &Module,
    func: FuncId,
    held: &BTreeMap<ValueId, ParamId>,
    found: &mut BTreeMap<ParamId, usize>,
) {
    let f = &module.funcs[func];
    for inst in &f.insts {
        let Op::DotGeneral(d) = &inst.op else { continue };
        for (&v, contract) in inst.args.iter().zip([&d.lhs_contract, &d.rhs_contract]) {
            if let Some(&p) = held.get(&v) {
                let n: usize = contract.iter().map(|&i| f.ty(v).shape[i]).product();
                found.insert(p, n.max(1));
            }
        }
    }
}
