//! From tokens to the residual stream.

use super::func::FuncBuilder;
use super::{Embedding, Kind, Transformer};
use pcc_ir::ops::{Gather, Op};
use pcc_ir::{Diagnostic, Type, ValueId};

/// Roles of the tables.
pub(super) const TOKENS: &str = "embed.tokens";

impl Embedding {
    /// Whether the function needs to know positions.
    pub(super) fn needs_positions(&self) -> bool {
        self.positions.is_some()
    }

    /// `tokens`, `positions`, `token_types` i32 `[b, s] -> [b, s, h]`.
    pub(super) fn build(
        &self,
        f: &mut FuncBuilder,
        model: &Transformer,
        tokens: ValueId,
        positions: Option<ValueId>,
        token_types: Option<ValueId>,
    ) -> Result<ValueId, Diagnostic> {
        let loc = f.loc(TOKENS);
        let mut x = look_up(f, TOKENS, [model.vocab, self.width.unwrap_or(model.hidden)], tokens)?;
        if let Some(scale) = self.scale {
            x = f.scaled(x, scale, &loc)?;
        }
        if let Some(width) = self.width {
            x = f.linear(x, "embed.project", &[width, model.hidden], 1, false)?;
        }
        if let (Some(rows), Some(types)) = (self.token_types, token_types) {
            let y = look_up(f, "embed.token_types", [rows, model.hidden], types)?;
            x = f.add(x, y, &loc)?;
        }
        if let (Some(table), Some(mut positions)) = (self.positions, positions) {
            if table.offset > 0 {
                let offset = f.splat(Type::i32(f.shape(positions)), table.offset as f64, &loc)?;
                positions = f.add(positions, offset, &loc)?;
            }
            let y = look_up(f, "embed.positions", [table.rows, model.hidden], positions)?;
            x = f.add(x, y, &loc)?;
        }
        match self.norm {
            Some(norm) => norm.build(f, x, "embed.norm"),
            None => Ok(x),
        }
    }
}

fn look_up(f: &mut FuncBuilder, role: &str, shape: [usize; 2], rows: ValueId) -> Result<ValueId, Diagnostic> {
    let loc = f.loc(role);
    let table = f.weight(&format!("{role}.weight"), &shape, Kind::Table)?;
    f.op(Op::Gather(Gather { batch: 0, base: None }), &[table, rows], &loc)
}
