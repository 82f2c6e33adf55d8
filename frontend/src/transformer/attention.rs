//! Grouped-query attention over `[kv, group, head_dim]`, with rotary positions or linear biases, norms of q and k, and a cache.

use super::Attention;
use super::func::FuncBuilder;
use pcc_ir::ops::{self, Constant, Literal, Op, Update};
use pcc_ir::{Diagnostic, Type, ValueId};

/// Names of the two caches of a layer, as arguments of its functions.
pub(super) const CACHES: [&str; 2] = ["k_cache", "v_cache"];

/// Where the keys are, and which positions queries and keys have.
pub(super) enum Mode {
    /// Keys of this call only; positions i32 `[b, s]` of queries and keys (a key at -1 is hidden).
    Whole { positions: ValueId, keys: ValueId },
    /// The same, and the keys are written to the caches from position 0 on.
    Fill { positions: ValueId },
    /// One position a row, i32 `[b]`: written to the caches, then attending to all they hold.
    Step { positions: ValueId },
}

/// What attention or a layer gives, and the new caches.
pub(super) struct Attended {
    pub(super) out: ValueId,
    pub(super) caches: Option<[ValueId; 2]>,
}

impl Attention {
    /// Type of each cache: `[rows, seq, kv, head_dim]`.
    pub(super) fn cache_type(&self, rows: usize, seq: usize) -> Type {
        Type::f32([rows, seq, self.kv, self.head_dim])
    }

    /// `x [b, s, h] -> [b, s, h]` up to the bias of the output ([`Self::bias`]); weights `attn.{q,k,v,o}`, norms `attn.q_norm`,
    /// `attn.k_norm`. Functions with caches get `seq` positions of them as two more arguments.
    pub(super) fn build(
        &self,
        f: &mut FuncBuilder,
        x: ValueId,
        mode: Mode,
        seq: usize,
    ) -> Result<Attended, Diagnostic> {
        let shape = f.shape(x);
        let (rows, hidden) = (shape.first().copied().unwrap_or(1), shape.last().copied().unwrap_or(1));
        let mut q = f.linear(x, "attn.q", &[hidden, self.kv, self.group, self.head_dim], 1, self.qkv_bias)?;
        let mut k = f.linear(x, "attn.k", &[hidden, self.kv, self.head_dim], 1, self.qkv_bias)?;
        let v = f.linear(x, "attn.v", &[hidden, self.kv, self.head_dim], 1, self.qkv_bias)?;
        if let Some(norm) = self.qk_norm {
            q = norm.build(f, q, "attn.q_norm")?;
            k = norm.build(f, k, "attn.k_norm")?;
        }
        let loc = f.loc("attn");
        let q_pos = match mode {
            Mode::Whole { positions, .. } | Mode::Fill { positions } => positions,
            Mode::Step { positions } => f.op(Op::Reshape(vec![rows, 1]), &[positions], &loc)?,
        };
        if let Some(rope) = &self.rope {
            let angles = rope.angles(f, q_pos, seq, &loc)?;
            q = rope.rotate(f, q, angles, &loc)?;
            k = rope.rotate(f, k, angles, &loc)?;
        }
        let (mut keys, mut values, mut k_pos, mut caches) = (k, v, q_pos, None);
        match mode {
            Mode::Whole { keys: positions, .. } => k_pos = positions,
            Mode::Fill { .. } => {
                let start = f.splat(Type::i32([rows]), 0.0, &loc)?;
                caches = Some(self.write(f, [k, v], start, rows, seq, &loc)?);
            }
            Mode::Step { positions } => {
                let written = self.write(f, [k, v], positions, rows, seq, &loc)?;
                [keys, values] = written;
                k_pos = f.iota_positions(rows, seq, &loc)?;
                caches = Some(written);
            }
        }
        // A window no shorter than the sequence hides nothing.
        let window = self.window.filter(|&w| w < seq);
        let attention = ops::Attention {
            scale: self.scale,
            causal: self.causal,
            window,
            softcap: self.softcap,
            bf16_bias: self.bf16_bias,
        };
        let mut operands = vec![q, keys, values, q_pos, k_pos];
        if let Some(slopes) = &self.slopes {
            let ty = Type::f32([self.kv, self.group]);
            let slopes = Constant { ty, value: Literal::Dense(slopes.clone()) };
            operands.push(f.op(Op::Constant(slopes), &[], &loc)?);
        }
        let out = f.op(Op::Attention(attention), &operands, &loc)?;
        let out = f.product(out, "attn.o", &[self.kv, self.group, self.head_dim, hidden], 3)?;
        Ok(Attended { out, caches })
    }

    /// Adds the output's bias, if there is one.
    pub(super) fn bias(&self, f: &mut FuncBuilder, out: ValueId) -> Result<ValueId, Diagnostic> {
        f.bias(out, "attn.o", 1, self.out_bias)
    }

    fn write(
        &self,
        f: &mut FuncBuilder,
        new: [ValueId; 2],
        start: ValueId,
        rows: usize,
        seq: usize,
        loc: &str,
    ) -> Result<[ValueId; 2], Diagnostic> {
        let mut write = |name, new| {
            let cache = f.state(self.cache_type(rows, seq), name)?;
            f.op(Op::Update(Update { batch: 1, base: None }), &[cache, new, start], loc)
        };
        Ok([write(CACHES[0], new[0])?, write(CACHES[1], new[1])?])
    }
}
