//! What a selection may give when what it selects among is right but for rounding: a token, or an index, is right or wrong by one ulp of a
//! logit.

use pcc_ir::ops::{BinaryKind, CompareKind, Constant, Literal, Op, UnaryKind};
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

/// The module with noise on what its selections select among: at most `tolerance` of the row's largest magnitude, drawn by `number`.
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

/// Magnitudes from which on a number is no score but a mask, which hides an element.
const MASK: f64 = 1e3;

/// Adds noise to the scores of each row, by the largest of the row's. Masks stay as they are, and make no noise.
fn add_noise(f: &mut Func, x: ValueId, tolerance: f64, number: u64) -> Result<ValueId, Diagnostic> {
    let ty = f.ty(x).clone();
    let noise = Random { seed: number, name: "selection".to_owned(), scale: 1.0 };
    let share = |i| tolerance * f64::from(noise.value(i as u64)).clamp(-1.0, 1.0);
    let data = (0..ty.elements()).map(share).collect();
    let noise = f.one(Op::Constant(Constant { ty: ty.clone(), value: Literal::Dense(data) }), &[])?;
    let magnitude = f.unary(UnaryKind::Abs, x)?;
    let (mask, zero) = (f.splat_like(x, MASK)?, f.splat_like(x, 0.0)?);
    // False for NaN, too.
    let is_score = f.one(Op::Compare(CompareKind::Lt), &[magnitude, mask])?;
    let scores = f.one(Op::Select, &[is_score, magnitude, zero])?;
    let largest = f.reduce_keep(ReduceKind::Max, scores, ty.rank().saturating_sub(1))?;
    let noise = f.binary(BinaryKind::Mul, noise, largest)?;
    let noisy = f.binary(BinaryKind::Add, x, noise)?;
    f.one(Op::Select, &[is_score, noisy, x])
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Type;
    use pcc_ir::eval::{Tensor, eval_func};
    use pcc_ir::ops::TopK;

    /// The indices that some rounding of the rows gives, for each place.
    fn indices(rows: &[[f64; 4]], tolerance: f64) -> Vec<Vec<usize>> {
        let mut module = Module::default();
        let mut f = Func::new("f");
        let x = f.arg(Type::f32([rows.len(), 4]), "x");
        f.results = f.apply(Op::TopK(TopK { k: 1 }), &[x], "").unwrap();
        let func = module.funcs.push(f);
        let x = Tensor::new(Type::f32([rows.len(), 4]), rows.concat()).unwrap();
        let mut found = vec![vec![]; rows.len()];
        for number in 0..TRIES {
            let noisy = disturbed(&module, tolerance, number).unwrap();
            let out = eval_func(&noisy, func, std::slice::from_ref(&x)).unwrap();
            for (found, &index) in found.iter_mut().zip(&out[1].data) {
                found.push(index as usize);
            }
        }
        found.iter_mut().for_each(|f| {
            f.sort_unstable();
            f.dedup();
        });
        found
    }

    #[test]
    fn near_scores_are_taken_for_each_other_and_others_are_not() {
        assert_eq!(indices(&[[1.0, 0.9995, 0.5, 0.2]], 1e-2), [[0, 1]]);
        assert_eq!(indices(&[[1.0, 0.9, 0.5, 0.2]], 1e-2), [[0]]);
    }

    #[test]
    fn masks_and_other_rows_excuse_nothing() {
        for mask in [f64::NEG_INFINITY, -1e30, -1e9, -10_000.0] {
            assert_eq!(indices(&[[0.3, 1.0, mask, 0.9]], 1e-2), [[1]], "{mask}");
        }
        assert_eq!(indices(&[[0.3, 1.0, 0.5, 0.9], [900.0, 1.0, 2.0, 3.0]], 1e-2), [[1], [0]]);
    }
}
