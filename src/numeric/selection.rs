//! What a selection may give when what it selects among is right but for rounding: a token, or an index, is right or wrong by one ulp of a
//! logit.

use pcc_ir::ops::{BinaryKind, Constant, Literal, Op, UnaryKind};
use pcc_ir::source::Random;
use pcc_ir::{Diagnostic, Func, Module, ReduceKind, ValueId};

/// How many ways to round are tried.
pub const TRIES: u64 = 64;

/// Whether an op of the module selects.
pub fn selects(module: &Module) -> bool {
    module.funcs.values().any(|f| f.insts.iter().any(|i| is_selection(&i.op)))
}

fn is_selection(op: &Op) -> bool {
    matches!(op, Op::TopK(_) | Op::Sample(_))
}

/// The module with noise on what its selections select among: at most `tolerance` of the largest magnitude, drawn by `number`.
///
/// # Errors
/// The module is not well formed.
pub fn disturbed(module: &Module, tolerance: f64, number: u64) -> Result<Module, Diagnostic> {
    let mut module = module.clone();
    for func in module.funcs.values_mut() {
        for mut inst in std::mem::take(&mut func.insts) {
            if is_selection(&inst.op)
                && let Some(x) = inst.args.first_mut()
            {
                *x = add_noise(func, *x, tolerance, number)?;
            }
            func.insts.push(inst);
        }
    }
    Ok(module)
}

fn add_noise(f: &mut Func, x: ValueId, tolerance: f64, number: u64) -> Result<ValueId, Diagnostic> {
    let ty = f.ty(x).clone();
    let noise = Random { seed: number, name: "selection".to_owned(), scale: 1.0 };
    let share = |i| tolerance * f64::from(noise.value(i as u64)).clamp(-1.0, 1.0);
    let data = (0..ty.elements()).map(share).collect();
    let constant = Op::Constant(Constant { ty: ty.clone(), value: Literal::Dense(data) });
    let noise = f.push(constant, vec![], vec![ty.clone()], "")[0];
    let mut largest = f.unary(UnaryKind::Abs, x)?;
    for dim in 0..ty.rank() {
        largest = f.reduce_keep(ReduceKind::Max, largest, dim)?;
    }
    let noise = f.binary(BinaryKind::Mul, noise, largest)?;
    f.binary(BinaryKind::Add, x, noise)
}
