//! The feed-forward block.

use super::Mlp;
use super::func::FuncBuilder;
use pcc_ir::ops::BinaryKind;
use pcc_ir::{Diagnostic, ValueId};

impl Mlp {
    /// `x [b, s, h] -> [b, s, h]` up to the bias of the output ([`Self::bias`]); weights `mlp.up`, `mlp.down` and, when
    /// gated, `mlp.gate`.
    pub(super) fn build(&self, f: &mut FuncBuilder, x: ValueId) -> Result<ValueId, Diagnostic> {
        let loc = f.loc("mlp");
        let hidden = f.shape(x).last().copied().unwrap_or(1);
        let first = if self.gated { "mlp.gate" } else { "mlp.up" };
        let mut y = f.linear(x, first, &[hidden, self.ffn], 1, self.bias)?;
        y = f.unary(self.act, y, &loc)?;
        if self.gated {
            let up = f.linear(x, "mlp.up", &[hidden, self.ffn], 1, self.bias)?;
            y = f.binary(BinaryKind::Mul, y, up, &loc)?;
        }
        f.product(y, "mlp.down", &[self.ffn, hidden], 1)
    }

    /// Adds the output's bias, if there is one.
    pub(super) fn bias(&self, f: &mut FuncBuilder, out: ValueId) -> Result<ValueId, Diagnostic> {
        f.bias(out, "mlp.down", 1, self.bias)
    }
}
