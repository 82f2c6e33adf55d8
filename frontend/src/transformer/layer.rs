//! One layer: attention and feed-forward with residual connections.

use super::attention::{Attended, Mode};
use super::func::FuncBuilder;
use super::{Arrangement, Layer};
use pcc_ir::{Diagnostic, ValueId};

impl Layer {
    /// `x [b, s, h] -> [b, s, h]` and the new caches, if the mode has any. Norms `attn.norm` and `mlp.norm`, and behind the blocks
    /// `attn.post_norm` and `mlp.post_norm`.
    pub(super) fn build(
        &self,
        f: &mut FuncBuilder,
        x: ValueId,
        mode: Mode,
        seq: usize,
    ) -> Result<Attended, Diagnostic> {
        let (before, after) = match self.arrangement {
            Arrangement::PreNorm => (true, None),
            Arrangement::PostNorm => (false, None),
            Arrangement::BothNorms => (true, Some(["attn.post_norm", "mlp.post_norm"])),
            Arrangement::Parallel { one_norm } => return self.parallel(f, x, mode, seq, one_norm),
        };
        let (attn, mlp) = (f.loc("attn"), f.loc("mlp"));
        let normed = if before { self.norm.build(f, x, "attn.norm")? } else { x };
        let attended = self.attention.build(f, normed, mode, seq)?;
        let mut y = self.attention.bias(f, attended.out)?;
        if let Some([role, _]) = after {
            y = self.norm.build(f, y, role)?;
        }
        let mut x = f.add(x, y, &attn)?;
        if !before {
            x = self.norm.build(f, x, "attn.norm")?;
        }
        let normed = if before { self.norm.build(f, x, "mlp.norm")? } else { x };
        let y = self.mlp.build(f, normed)?;
        let mut y = self.mlp.bias(f, y)?;
        if let Some([_, role]) = after {
            y = self.norm.build(f, y, role)?;
        }
        let mut out = f.add(x, y, &mlp)?;
        if !before {
            out = self.norm.build(f, out, "mlp.norm")?;
        }
        Ok(Attended { out, ..attended })
    }

    /// Both blocks read x. Their products are added before anything else, so that one sum over devices serves both.
    fn parallel(
        &self,
        f: &mut FuncBuilder,
        x: ValueId,
        mode: Mode,
        seq: usize,
        one_norm: bool,
    ) -> Result<Attended, Diagnostic> {
        let loc = f.loc("mlp");
        let normed = self.norm.build(f, x, "attn.norm")?;
        let attended = self.attention.build(f, normed, mode, seq)?;
        let normed = if one_norm { normed } else { self.norm.build(f, x, "mlp.norm")? };
        let y = self.mlp.build(f, normed)?;
        let y = f.add(attended.out, y, &loc)?;
        let y = self.attention.bias(f, y)?;
        let y = self.mlp.bias(f, y)?;
        let out = f.add(x, y, &loc)?;
        Ok(Attended { out, ..attended })
    }
}
