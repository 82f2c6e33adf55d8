//! Attention of the library.

use super::Shape;
use crate::program::{AttentionCall, Strided};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// [`AttentionCall`] with online softmax, no score in memory. What is decided when the code is made:
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttentionKernel {
    pub path: AttentionPath,
    /// Whether blocks take [`RANGE_KEYS`] keys each and leave what these give to [`JoinKernel`]; of `Few` and `Simt` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub split: bool,
    /// Of q, k, v and out.
    pub dtype: DType,
    pub d: u32,
    pub e: u32,
    pub causal: bool,
    pub window: bool,
    pub softcap: bool,
    pub slopes: bool,
    pub bf16_bias: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionPath {
    /// Any float type, any d and e, any strides: one warp a query.
    Simt,
    /// Tensor cores: bf16 or f16; d and e are multiples of 16, at most 256; the last stride of q, k, v and out is 1, their other strides and
    /// offsets multiples of 16 bytes. The queries of one kv head, `s * r` of them (position major: row = position * r + head of the
    /// group), are the rows of one problem.
    Mma,
    /// As `Mma`, of heads of at most 128, with twice the rows: keys and values in shared memory are read half as often.
    Wide,
    /// As `Mma`, for at most [`FEW_ROWS`] such rows, as of a decode step: the warps of a block take different keys.
    Few,
}

/// Rows that a block of [`AttentionPath::Few`] has, as each of its warps does.
pub const FEW_ROWS: u32 = 16;

/// Keys of a range: few enough that the ranges of one sequence of a few thousand occupy a GPU.
pub const RANGE_KEYS: u32 = 256;

/// Joins what the ranges of keys of a split [`AttentionKernel`] gave. Parameters: pointers partials, out; b, s, g, r, ranges; strides of out in elements,
/// 5. Partials are f32: of each (b, g, range, s, r), row-major, the largest score (in units of log2(e)) and the sum of weights relative to it; behind
/// all of these, of each likewise, e weighted values. Where the sum of weights is 0 no values are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JoinKernel {
    /// Of out.
    pub dtype: DType,
    pub e: u32,
}

impl JoinKernel {
    pub const PARAMS: usize = 2 + 5 + 5;
    /// Warps of a block, which take the ranges in turns.
    pub const WARPS: u32 = 8;
    /// Columns that a block sums at a time.
    pub const COLUMNS: u32 = 256;

    /// How to launch it: x over queries, `b * g * s * r`; the kernel goes on at `+ gridDim`.
    pub fn shape(&self, queries: u64) -> Shape {
        let columns = self.e.min(Self::COLUMNS);
        Shape {
            grid: [queries.clamp(1, 65535) as u32, 1, 1],
            threads: Self::WARPS * super::WARP,
            // The sums of each warp's ranges, and their sum of weights.
            shared: Self::WARPS * (columns + 1) * 4,
        }
    }
}

impl AttentionKernel {
    /// The kernel for a call: depends on the program alone, not on the run.
    pub fn of(call: &AttentionCall) -> Self {
        let (d, e) = (call.d.full as u32, call.e.full as u32);
        let fits = |view: &Strided| {
            let size = view.dtype.bytes() as i64;
            let whole = |&s: &i64| s.checked_mul(size).is_some_and(|b| b % 16 == 0);
            view.loc.offset.is_multiple_of(16)
                && view.strides.split_last().is_some_and(|(&last, rest)| last == 1 && rest.iter().all(whole))
        };
        let dtype = call.q.dtype;
        let heads = |n: u32| n > 0 && n <= 256 && n.is_multiple_of(16);
        let cores = matches!(dtype, DType::BF16 | DType::F16)
            && heads(d)
            && heads(e)
            && [&call.q, &call.k, &call.v, &call.out].into_iter().all(fits);
        let path = match call.s.full.saturating_mul(call.r.full) {
            _ if !cores => AttentionPath::Simt,
            rows if rows <= FEW_ROWS.into() => AttentionPath::Few,
            // Biases and soft caps need registers, too.
            rows if rows > 64 && d <= 128 && e <= 128 && call.slopes.is_none() && call.softcap.is_none() => {
                AttentionPath::Wide
            }
            _ => AttentionPath::Mma,
        };
        // Whole rows of values are written at a time.
        let scratch = call.scratch.is_some_and(|loc| loc.offset.is_multiple_of(16));
        let split = scratch && matches!(path, AttentionPath::Few | AttentionPath::Simt);
        Self {
            path,
            split,
            dtype,
            d,
            e,
            causal: call.causal,
            window: call.window.is_some(),
            softcap: call.softcap.is_some(),
            slopes: call.slopes.is_some(),
            bf16_bias: call.bf16_bias,
        }
    }

    /// Parameters, in order: pointers q, k, v, q_pos, k_pos, slopes, out (null where the call has none); b, s, t, g, r; strides in elements in the
    /// order of the call's: q 5, k 4, v 4, q_pos 2, k_pos 2, slopes 2, out 5; scale (f32), softcap (f32), window (i64). On tensor cores `s * r` and
    /// `b * g` are below 2^31. A split kernel writes partials, whose pointer comes last, and not out.
    pub const PARAMS: usize = 7 + 5 + 24 + 3;

    /// Parameters it takes.
    pub fn params(&self) -> usize {
        Self::PARAMS + usize::from(self.split)
    }

    /// Ranges of keys, over which z goes in the launch: 1 unless the kernel is split.
    pub fn ranges(&self, t: u64) -> u32 {
        let ranges = if self.split { t.div_ceil(RANGE_KEYS.into()) } else { 1 };
        ranges.clamp(1, 65535) as u32
    }

    /// The kernel that has to follow.
    pub fn join(&self) -> Option<JoinKernel> {
        self.split.then_some(JoinKernel { dtype: self.dtype, e: self.e })
    }

    /// How to launch it, but for [`AttentionKernel::ranges`] in z: x over tiles of rows, y over `b * g` (`b * g * r` for Simt, where a row is a
    /// position); the kernel goes on at `+ gridDim` in y and z.
    pub fn shape(&self, b: u64, s: u64, g: u64, r: u64) -> Shape {
        let (rows, heads) = match self.path {
            AttentionPath::Simt => (s, b * g * r),
            AttentionPath::Mma | AttentionPath::Wide | AttentionPath::Few => (s * r, b * g),
        };
        let tile = self.rows();
        let tiles = u32::try_from(rows.div_ceil(tile.into())).unwrap_or(u32::MAX);
        let threads = self.warps() * super::WARP;
        // A tile of keys and one of values, which with `Few` every warp has for itself.
        let tiles_bytes = self.tile_keys() * (self.d + self.e) * 2;
        let queries = if self.queries_shared() { threads * self.d * self.warp_rows() / 16 } else { 0 };
        let notes = if self.notes_shared() { threads * self.warp_rows() * 2 } else { 0 };
        let shared = match self.path {
            AttentionPath::Simt => 0,
            AttentionPath::Mma | AttentionPath::Wide => tiles_bytes + queries + notes,
            AttentionPath::Few => tiles_bytes * self.warps() + queries + notes,
        };
        Shape { grid: [tiles.max(1), heads.clamp(1, 65535) as u32, 1], threads, shared }
    }

    /// Rows of a block.
    pub fn rows(&self) -> u32 {
        match self.path {
            AttentionPath::Few => FEW_ROWS,
            _ => self.warps() * self.warp_rows(),
        }
    }

    /// Rows of a warp.
    pub fn warp_rows(&self) -> u32 {
        match self.path {
            AttentionPath::Simt => 1,
            AttentionPath::Wide => 32,
            AttentionPath::Mma | AttentionPath::Few => 16,
        }
    }

    /// Warps of a block.
    pub fn warps(&self) -> u32 {
        match self.path {
            AttentionPath::Simt | AttentionPath::Mma | AttentionPath::Wide => 4,
            // A range has few tiles, and blocks that fit together hide each other's beginning and end.
            AttentionPath::Few if self.split => 4,
            // As many as have room for tiles of their own in 160 KiB.
            AttentionPath::Few if self.d + self.e <= 256 => 8,
            AttentionPath::Few => 4,
        }
    }

    /// Keys that tensor cores work on at a time: of long values fewer, whose scores need fewer registers.
    pub fn tile_keys(&self) -> u32 {
        let few = match self.path {
            AttentionPath::Few => true,
            AttentionPath::Wide => self.e > 64,
            AttentionPath::Mma | AttentionPath::Simt => self.e > 128,
        };
        if few { 32 } else { 64 }
    }

    /// Whether what threads need to know of their rows now and then lies in shared memory.
    pub fn notes_shared(&self) -> bool {
        match self.path {
            AttentionPath::Wide => true,
            AttentionPath::Few => self.e > 128 && self.d <= 128,
            AttentionPath::Mma | AttentionPath::Simt => false,
        }
    }

    /// Whether queries lie in shared memory: with long heads registers are too few for them besides the results.
    pub fn queries_shared(&self) -> bool {
        self.d * self.warp_rows() > 128 * 16 || self.path == AttentionPath::Wide && self.e > 64
    }
}
