//! From the residual stream to logits.

use super::func::FuncBuilder;
use super::{Head, Kind, Transformer, embedding};
use pcc_ir::ops::{BinaryKind, DotGeneral, Gather, Op};
use pcc_ir::{Diagnostic, Type, ValueId};

impl Head {
    /// `x [.., h] -> logits [.., vocab]`; weights `head.norm` and `head` (or the token embedding), `[vocab, h]`.
    pub(super) fn build(
        &self,
        f: &mut FuncBuilder,
        model: &Transformer,
        x: ValueId,
    ) -> Result<ValueId, Diagnostic> {
        let x = match self.norm {
            Some(norm) => norm.build(f, x, "head.norm")?,
            None => x,
        };
        let role = if self.tied { embedding::TOKENS } else { "head" };
        let table = f.weight(&format!("{role}.weight"), &[model.vocab, model.hidden], Kind::Table)?;
        let last = f.shape(x).len().saturating_sub(1);
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![last],
            rhs_contract: vec![1],
        };
        let loc = f.loc("head");
        f.op(Op::DotGeneral(dot), &[x, table], &loc)
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
