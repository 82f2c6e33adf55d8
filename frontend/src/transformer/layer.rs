//! One layer: attention and feed-forward with residual connections.

use super::attention::{Attended, Mode};
use super::func::FuncBuilder;
use super::{Arrangement, Layer};
use pcc_ir::{Diagnostic, ValueId};

impl Layer {
    /// `x [b, s, h] -> [b, s, h]` and the new caches, if the mode has any. Norms `attn.norm` and `mlp.norm`.
    pub(super) fn build(
        &self,
        f: &mut FuncBuilder,
        x: ValueId,
        mode: Mode,
        seq: usize,
    ) -> Result<Attended, Diagnostic> {
        let (attn, mlp) = (f.loc("attn"), f.loc("mlp"));
        match self.arrangement {
            Arrangement::PreNorm => {
                let normed = self.norm.build(f, x, "attn.norm")?;
                let attended = self.attention.build(f, normed, mode, seq)?;
                let x = f.add(x, attended.out, &attn)?;
                let normed = self.norm.build(f, x, "mlp.norm")?;
                let y = self.mlp.build(f, normed)?;
                let out = f.add(x, y, &mlp)?;
                Ok(Attended { out, ..attended })
            }
            Arrangement::PostNorm => {
                let attended = self.attention.build(f, x, mode, seq)?;
                let x = f.add(x, attended.out, &attn)?;
                let x = self.norm.build(f, x, "attn.norm")?;
                let y = self.mlp.build(f, x)?;
                let out = f.add(x, y, &mlp)?;
                let out = self.norm.build(f, out, "mlp.norm")?;
                Ok(Attended { out, ..attended })
            }
        }
    }
}
