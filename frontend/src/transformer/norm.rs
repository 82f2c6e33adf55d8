//! Normalisation over the last dim.

use super::func::FuncBuilder;
use super::{Kind, Norm};
use pcc_ir::ops::{LayerNorm, Op, RmsNorm};
use pcc_ir::{Diagnostic, Type, ValueId};

impl Norm {
    /// `x [.., h] -> [.., h]`, with weights `role.weight` and, of the layer kind, `role.bias`, both `[h]`.
    pub(super) fn build(self, f: &mut FuncBuilder, x: ValueId, role: &str) -> Result<ValueId, Diagnostic> {
        let loc = f.loc(role);
        let last = f.shape(x).last().copied().unwrap_or(1);
        let name = format!("{role}.weight");
        match self {
            Norm::Rms { eps } => {
                let weight = f.weight(&name, &[last], Kind::Scale)?;
                f.op(Op::RmsNorm(RmsNorm { eps }), &[x, weight], &loc)
            }
            Norm::RmsPlusOne { eps } => {
                // What is stored is the distance from 1.
                let weight = f.weight(&name, &[last], Kind::Bias)?;
                let one = f.splat(Type::f32([last]), 1.0, &loc)?;
                let weight = f.add(weight, one, &loc)?;
                f.op(Op::RmsNorm(RmsNorm { eps }), &[x, weight], &loc)
            }
            Norm::Layer { eps } => {
                let weight = f.weight(&name, &[last], Kind::Scale)?;
                let bias = f.weight(&format!("{role}.bias"), &[last], Kind::Bias)?;
                f.op(Op::LayerNorm(LayerNorm { eps }), &[x, weight, bias], &loc)
            }
        }
    }
}
