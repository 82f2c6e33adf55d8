//! Calls of the runtime's library that select elements of rows.

use super::{Loc, Strided};
use crate::extent::Extent;
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// [`crate::ops::TopK`]: x [rows.., n], values [rows.., k] of x's type, indices i32 [rows.., k].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopKCall {
    pub rows: Vec<Extent>,
    /// All of it is always there.
    pub n: u64,
    pub k: u64,
    pub x: Strided,
    pub values: Strided,
    pub indices: Strided,
}

/// [`crate::ops::Sample`]: logits f32 [rows, tokens], settings f32 [rows, 2], key i32 [rows, 4], out i32 [rows].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleCall {
    pub rows: Extent,
    /// All of them are always there.
    pub tokens: u64,
    pub logits: Strided,
    pub settings: Strided,
    pub key: Strided,
    pub out: Strided,
}

/// An operand: its name, what it is, its whole extents, and whether it is written.
pub struct View<'a> {
    pub name: &'static str,
    pub strided: &'a Strided,
    pub dtype: DType,
    pub extents: Vec<Extent>,
    pub write: bool,
}

impl TopKCall {
    /// Every operand, with the type and the extents that it must have.
    pub fn views(&self) -> [View<'_>; 3] {
        let extents = |last: u64| self.rows.iter().cloned().chain([Extent::full(last)]).collect();
        let view =
            |name, strided, dtype, last, write| View { name, strided, dtype, extents: extents(last), write };
        let dtype = self.x.dtype;
        [
            view("x", &self.x, dtype, self.n, false),
            view("values", &self.values, dtype, self.k, true),
            view("indices", &self.indices, DType::I32, self.k, true),
        ]
    }

    /// Every location.
    pub fn locs_mut(&mut self) -> [&mut Loc; 3] {
        [&mut self.x.loc, &mut self.values.loc, &mut self.indices.loc]
    }
}

impl SampleCall {
    /// Every operand, with the type and the extents that it must have.
    pub fn views(&self) -> [View<'_>; 4] {
        let view = |name, strided, dtype, last: Option<u64>, write| {
            let extents = std::iter::once(self.rows.clone()).chain(last.map(Extent::full)).collect();
            View { name, strided, dtype, extents, write }
        };
        [
            view("logits", &self.logits, DType::F32, Some(self.tokens), false),
            view("settings", &self.settings, DType::F32, Some(2), false),
            view("key", &self.key, DType::I32, Some(4), false),
            view("out", &self.out, DType::I32, None, true),
        ]
    }

    /// Every location.
    pub fn locs_mut(&mut self) -> [&mut Loc; 4] {
        [&mut self.logits.loc, &mut self.settings.loc, &mut self.key.loc, &mut self.out.loc]
    }
}
