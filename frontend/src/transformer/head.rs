//! From the residual stream to logits.

use super::func::FuncBuilder;
use super::{Head, Kind, Transformer, embedding};
use pcc_ir::ops::{BinaryKind, DotGeneral, Gather, Op, UnaryKind};
use pcc_ir::{Diagnostic, Type, ValueId};

impl Head {
    /// `x [.., h] -> logits [.., vocab]`; weights `head.norm`, `head.project` and `head` (or the token embedding), `[vocab, h]`.
    pub(super) fn build(
        &self,
        f: &mut FuncBuilder,
        model: &Transformer,
        x: ValueId,
    ) -> Result<ValueId, Diagnostic> {
        let mut x = match self.norm {
            Some(norm) => norm.build(f, x, "head.norm")?,
            None => x,
        };
        if let Some(width) = self.width {
            x = f.linear(x, "head.project", &[model.hidden, width], 1, false)?;
        }
        let role = if self.tied { embedding::TOKENS } else { "head" };
        let table = f.weight(
            &format!("{role}.weight"),
            &[model.vocab, self.width.unwrap_or(model.hidden)],
            Kind::Table,
        )?;
        let last = f.shape(x).len().saturating_sub(1);
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![last],
            rhs_contract: vec![1],
            result: None,
        };
        let loc = f.loc("head");
        let logits = f.op(Op::DotGeneral(dot), &[x, table], &loc)?;
        let Some(cap) = self.softcap else { return Ok(logits) };
        let y = f.scaled(logits, 1.0 / cap, &loc)?;
        let y = f.unary(UnaryKind::Tanh, y, &loc)?;
        f.scaled(y, cap, &loc)
    }

    /// The last token of each row: `x [b, s, h]`, `lengths` i32 `[b] -> [b, h]`. A row of length 0 gives zeros.
    pub(super) fn last_token(
        f: &mut FuncBuilder,
        x: ValueId,
        lengths: ValueId,
    ) -> Result<ValueId, Diagnostic> {
        let loc = f.loc("head");
        let rows = f.shape(lengths).first().copied().unwrap_or(1);
        let one = f.splat(Type::i32([rows]), 1.0, &loc)?;
        let last = f.binary(BinaryKind::Sub, lengths, one, &loc)?;
        f.op(Op::Gather(Gather { batch: 1, base: None }), &[x, last], &loc)
    }
}
