//! The call of the fused attention of the runtime's library.

use super::{DeviceKind, Loc};
use crate::extent::Extent;
use crate::gpu::attention::{FEW_ROWS, RANGE_KEYS};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// [`crate::ops::Attention`] in one pass over the keys: no score leaves the processor. Extents and the order of each operand's strides
/// are those of the op: q [b,s,g,r,d], k [b,t,g,d], v [b,t,g,e], out [b,s,g,r,e], q_pos i32 [b,s], k_pos i32 [b,t], slopes f32 [g,r].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionCall {
    pub b: Extent,
    pub s: Extent,
    pub t: Extent,
    pub g: Extent,
    pub r: Extent,
    pub d: Extent,
    pub e: Extent,
    pub scale: f64,
    pub causal: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f64>,
    /// As [`crate::ops::Attention::bf16_bias`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bf16_bias: bool,
    pub q: Strided,
    pub k: Strided,
    pub v: Strided,
    /// Absent when no query needs to know where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub q_pos: Option<Strided>,
    pub k_pos: Strided,
    /// What a score gains for each position of its key, by head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slopes: Option<Strided>,
    pub out: Strided,
    /// Where a call with few queries leaves what each range of keys gives, until all ranges are done: [`AttentionCall::scratch_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<Loc>,
}

/// Elements of a buffer: index (i, j, ..) lies `i * strides[0] + j * strides[1] + ..` elements from `loc`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strided {
    pub loc: Loc,
    pub dtype: DType,
    pub strides: Vec<i64>,
}

impl AttentionCall {
    /// Queries of one kv head up to which CPUs read keys row by row, at the speed of memory, rather than in tiles.
    pub const FEW: u64 = 8;
    /// Keys of one range on CPUs, when the keys of few queries are shared out among workers.
    pub const RANGE: u64 = 512;

    /// Whether one kv head has so few queries and so many keys that ranges of keys are computed apart.
    pub fn splits_keys(device: DeviceKind, s: u64, r: u64, t: u64) -> bool {
        let few = match device {
            DeviceKind::Cpu => Self::FEW,
            DeviceKind::Gpu => FEW_ROWS.into(),
        };
        s.saturating_mul(r) <= few && t > Self::RANGE
    }

    /// Whether they may be on some device.
    pub fn may_split_keys(s: u64, r: u64, t: u64) -> bool {
        [DeviceKind::Cpu, DeviceKind::Gpu].into_iter().any(|device| Self::splits_keys(device, s, r, t))
    }

    /// b, s, t, g, r, d, e.
    pub fn extents(&self) -> [&Extent; 7] {
        [&self.b, &self.s, &self.t, &self.g, &self.r, &self.d, &self.e]
    }

    /// The whole of every extent.
    fn whole(&self) -> [u64; 7] {
        self.extents().map(|e| e.full)
    }

    /// Bytes of scratch: for every query of each head and range of keys, an f32 maximum, a sum, and e weighted values; ranges are the shortest of any
    /// device. `None` on overflow.
    pub fn scratch_bytes(&self) -> Option<u64> {
        let [b, s, t, g, r, _, e] = self.whole();
        let sizes = [b, g, t.div_ceil(Self::RANGE.min(RANGE_KEYS.into())), s, r, 4];
        sizes.iter().try_fold(e.checked_add(2)?, |n, &d| n.checked_mul(d))
    }

    /// Every operand that is read, with its extents in the order of its strides.
    pub fn reads(&self) -> Vec<(&'static str, &Strided, Vec<&Extent>)> {
        let [b, s, t, g, r, d, e] = self.extents();
        let mut all = vec![
            ("q", &self.q, vec![b, s, g, r, d]),
            ("k", &self.k, vec![b, t, g, d]),
            ("v", &self.v, vec![b, t, g, e]),
            ("k_pos", &self.k_pos, vec![b, t]),
        ];
        all.extend(self.q_pos.iter().map(|p| ("q_pos", p, vec![b, s])));
        all.extend(self.slopes.iter().map(|p| ("slopes", p, vec![g, r])));
        all
    }

    /// Every location.
    pub fn locs_mut(&mut self) -> Vec<&mut Loc> {
        let fixed = [&mut self.q, &mut self.k, &mut self.v, &mut self.k_pos, &mut self.out];
        let all = fixed.into_iter().chain(&mut self.q_pos).chain(&mut self.slopes);
        all.map(|view| &mut view.loc).chain(&mut self.scratch).collect()
    }

    /// Every address.
    pub fn locs(&self) -> Vec<Loc> {
        let fixed = [&self.q, &self.k, &self.v, &self.k_pos, &self.out];
        let all = fixed.into_iter().chain(&self.q_pos).chain(&self.slopes);
        all.map(|view| view.loc).chain(self.scratch).collect()
    }

    /// The extents of what is written.
    pub fn made(&self) -> Vec<&Extent> {
        let [b, s, _, g, r, _, e] = self.extents();
        vec![b, s, g, r, e]
    }

    /// Floating-point operations of the two products, masked pairs counted.
    pub fn flops(&self) -> u64 {
        let [b, s, t, g, r, d, e] = self.whole();
        [b, g, r, s, t].iter().fold(d.saturating_add(e).saturating_mul(2), |n, &d| n.saturating_mul(d))
    }
}
