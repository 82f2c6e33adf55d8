//! What cannot be asked of a model, said before anything is solved, in the model's terms.

use super::Options;
use super::structure::{SlotKind, Structure};
use pcc_ir::graph::{Label, Role};
use pcc_ir::{Diagnostic, FactorKind, FuncId, Mesh, Module, Sharding, Type, ValueId};
use std::collections::HashMap;

/// Refuses meshes the model cannot use.
pub fn check(module: &Module, s: &mut Structure, options: &Options) -> Result<(), Diagnostic> {
    let mesh = &options.mesh;
    for axis in pcc_ir::Axis::ALL {
        if mesh.size(axis) == 0 {
            return Err(Diagnostic::usage(format!("--{axis} is 0")).help("every axis has at least 1 device"));
        }
    }
    if mesh.dp > 1 {
        data_parallel(module, s, mesh.dp as usize)?;
    }
    if mesh.tp > 1 {
        tensor_parallel(module, s, mesh.tp as usize)?;
        if options.sp {
            sequence_parallel(module, s)?;
        }
    }
    Ok(())
}

/// Every entry needs an input with a batch dim that dp divides.
fn data_parallel(module: &Module, s: &mut Structure, dp: usize) -> Result<(), Diagnostic> {
    for entry in &module.entries {
        let f = &module.funcs[entry.func];
        let mut found = false;
        for (&v, role) in f.args.iter().zip(&entry.args) {
            let Role::Input(name) = role else { continue };
            for (d, &n) in f.ty(v).shape.iter().enumerate() {
                let class = s.dim(entry.func, v, d);
                if s.label(class) != Some(Label::Batch) {
                    continue;
                }
                found = true;
                if n % dp != 0 {
                    return Err(Diagnostic::input(format!(
                        "a batch of {n} rows does not divide over --dp {dp}"
                    ))
                    .at(format!("input `{name}` of entry `{}`", entry.name))
                    .why("each replica runs the same number of rows, short ones padded")
                    .help(format!("build the model for a batch of {} rows", n.next_multiple_of(dp))));
                }
            }
        }
        if !found {
            return Err(Diagnostic::input(format!("--dp {dp} has no batch to split"))
                .at(format!("entry `{}`", entry.name))
                .why("no dim of its inputs is labelled as the batch")
                .help("label the batch dim of an input (\"batch\"), or use --dp 1"));
        }
    }
    Ok(())
}

/// What one weight dim offers to tp.
struct Reach {
    most: usize,
    what: String,
}

/// In each function with weights, some weight must have a dim (or two dims, with tp cut between them) of at least tp
/// elements that rules let tp split; the function that reaches least decides.
fn tensor_parallel(module: &Module, s: &mut Structure, tp: usize) -> Result<(), Diagnostic> {
    let mut least: Option<Reach> = None;
    for func in s.leaves.keys().copied().collect::<Vec<_>>() {
        let Some(reach) = reach(module, s, func) else { continue };
        if least.as_ref().is_none_or(|l| reach.most < l.most) {
            least = Some(reach);
        }
    }
    match least {
        Some(reach) if reach.most < tp => Err(Diagnostic::input(format!(
            "--tp {tp} is more than the model can use: the most is {}",
            reach.most
        ))
        .at(reach.what)
        .why("no dim of its weights that may be split has that many elements; the other devices would hold nothing")
        .help(format!("use --tp {} or less", reach.most))),
        Some(_) => Ok(()),
        None => Err(Diagnostic::input(format!("--tp {tp} has no weight to split"))
            .why("no parameter of the model is contracted or looked up")
            .help("use --tp 1")),
    }
}

/// The most devices that some weight of a function can occupy.
fn reach(module: &Module, s: &mut Structure, func: FuncId) -> Option<Reach> {
    let f = &module.funcs[func];
    let position: HashMap<ValueId, usize> = f.args.iter().zip(0..).map(|(&v, i)| (v, i)).collect();
    let mut best: Option<Reach> = None;
    for (at, inst) in f.insts.iter().enumerate() {
        let rule = s.rules[&func][at].clone();
        for (i, &v) in inst.args.iter().enumerate() {
            let Some(&arg) = position.get(&v) else { continue };
            let slot = s.arg_slot(func, arg);
            let reduces = |f: &usize| matches!(rule.factors[*f].kind, FactorKind::Reduce(_));
            if s.kind(slot) != SlotKind::Param || !rule.operands[i].iter().flatten().any(reduces) {
                continue;
            }
            let (mut whole, mut passed) = (1, 1usize);
            for (d, factors) in rule.operands[i].iter().enumerate() {
                let [factor] = factors[..] else { continue };
                let class = s.dim(func, v, d);
                match rule.factors[factor].kind {
                    FactorKind::Replicate => continue,
                    FactorKind::Pass if s.is_stream(class) => continue,
                    FactorKind::Pass => passed = passed.saturating_mul(rule.factors[factor].size),
                    FactorKind::Reduce(_) => {}
                }
                whole = whole.max(rule.factors[factor].size);
            }
            let most = whole.max(passed);
            if best.as_ref().is_none_or(|b| most > b.most) {
                let name = if inst.loc.is_empty() { &f.values[v].name } else { &inst.loc };
                best = Some(Reach { most, what: format!("`{name}` of `{}`", f.name) });
            }
        }
    }
    best
}

fn sequence_parallel(module: &Module, s: &mut Structure) -> Result<(), Diagnostic> {
    for entry in &module.entries {
        let f = &module.funcs[entry.func];
        for (&v, role) in f.args.iter().zip(&entry.args) {
            for d in 0..f.ty(v).rank() {
                let class = s.dim(entry.func, v, d);
                if matches!(role, Role::Input(_)) && s.label(class) == Some(Label::Seq) {
                    return Ok(());
                }
            }
        }
    }
    Err(Diagnostic::input("--sp has no sequence to split")
        .why("no dim of the model's inputs is labelled as the sequence")
        .help("label the sequence dim of an input (\"seq\"), or leave out --sp"))
}

/// Whether a sharding can be of a value of this type on this mesh: rank, axes of the mesh, each used once.
pub fn fits(mesh: &Mesh, ty: &Type, s: &Sharding) -> Result<(), String> {
    if s.dims.len() != ty.rank() {
        return Err(format!("it splits {} dims, the tensor has {}", s.dims.len(), ty.rank()));
    }
    let axes: Vec<_> = s.axes().collect();
    for (i, &a) in axes.iter().enumerate() {
        if a.size < 2 || mesh.part(a.axis, a.pre, a.size) != Some(a) {
            return Err(format!("`{}:({}){}` is no part of the mesh", a.axis, a.pre, a.size));
        }
        if let Some(b) = axes[..i].iter().find(|b| b.overlaps(a)) {
            return Err(format!("`{}` and `{}` share devices", mesh.axis_text(*b), mesh.axis_text(a)));
        }
    }
    Ok(())
}
