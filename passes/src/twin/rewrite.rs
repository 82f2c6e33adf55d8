//! A module with other extents: types, the attributes that hold shapes, and listed constants cut to size.

use super::dims::Sizes;
use pcc_ir::ops::{Constant, Literal};
use pcc_ir::{Module, Op, Type};

/// The module with new extents.
pub(super) fn resize(module: &Module, sizes: &Sizes) -> Module {
    let mut out = module.clone();
    for (id, f) in &module.funcs {
        let g = &mut out.funcs[id];
        for (v, value) in &f.values {
            g.values[v].ty = sizes.value(id, v, &value.ty);
        }
        for i in 0..g.insts.len() {
            let arg = g.insts[i].args.first().map(|&v| (f.ty(v).clone(), g.values[v].ty.clone()));
            // Attention's keys, for its window.
            let keys = g.insts[i].args.get(1).map(|&v| (f.ty(v).clone(), g.values[v].ty.clone()));
            let result = g.insts[i].results.first().map(|&v| g.values[v].ty.clone());
            if let Some(result) = result {
                attributes(&mut g.insts[i].op, arg, keys, &result);
            }
        }
    }
    for (id, p) in &module.params {
        let ty = sizes.param(id, &p.ty);
        out.params[id].source = pcc_ir::ParamSource::zeros(ty.shape.clone());
        out.params[id].ty = ty;
    }
    for (id, s) in &module.states {
        out.states[id].ty = sizes.state(id, &s.ty);
    }
    out
}

/// Rewrites what an op says of its shapes. `arg` and `keys` are operands 0 and 1, before and after.
fn attributes(op: &mut Op, arg: Option<(Type, Type)>, keys: Option<(Type, Type)>, result: &Type) {
    match op {
        Op::Constant(c) => *c = cut(c, result),
        Op::Iota(iota) => iota.ty = result.clone(),
        Op::Broadcast(b) => b.shape = result.shape.clone(),
        Op::Reshape(shape) => shape.clone_from(&result.shape),
        Op::Slice(s) => {
            let Some((old, new)) = arg else { return };
            // Dims that are cut keep their extent.
            for (d, limit) in s.limit.iter_mut().enumerate() {
                if s.start[d] == 0 && *limit == old.shape[d] {
                    *limit = new.shape[d];
                }
            }
        }
        Op::Attention(a) => {
            let (Some(window), Some((old, new))) = (a.window, keys) else { return };
            let (Some(&old), Some(&new)) = (old.shape.get(1), new.shape.get(1)) else { return };
            a.window = Some((window.saturating_mul(new) / old).max(1));
        }
        _ => {}
    }
}

/// A constant of a smaller type: of listed elements the first of each dim.
fn cut(c: &Constant, ty: &Type) -> Constant {
    let value = match &c.value {
        Literal::Splat(x) => Literal::Splat(*x),
        Literal::Dense(data) => {
            let element = |mut i: usize| {
                let (mut at, mut step) = (0, 1);
                for (&new, &old) in ty.shape.iter().zip(&c.ty.shape).rev() {
                    at += i % new * step;
                    i /= new;
                    step *= old;
                }
                data.get(at).copied().unwrap_or(0.0)
            };
            Literal::Dense((0..ty.elements()).map(element).collect())
        }
    };
    Constant { ty: ty.clone(), value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_constants_keep_their_first_elements() {
        let data = (0..12).map(f64::from).collect();
        let c = Constant { ty: Type::f32([3, 4]), value: Literal::Dense(data) };
        let Literal::Dense(small) = cut(&c, &Type::f32([2, 3])).value else { unreachable!() };
        assert_eq!(small, [0.0, 1.0, 2.0, 4.0, 5.0, 6.0]);
    }
}
