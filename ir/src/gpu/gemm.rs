//! Matrix products of the library.

use super::{Arch, Epilogue, Shape};
use crate::extent::Extent;
use crate::program::{Gemm, Matrix};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// `c = alpha * a b` over up to [`BATCH`] batch dims. What is decided when the code is made:
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GemmKernel {
    pub path: GemmPath,
    pub a: DType,
    pub b: DType,
    pub c: DType,
    /// Rows of c that a block makes. [`GemmPath::Simt`]: 64; [`GemmPath::Mma`]: 64 or 128; [`GemmPath::Wgmma`]: 128; [`GemmPath::Few`]: 1, 2,
    /// 4 or 8.
    pub rows: u32,
    /// Which dim of a has stride 1, of [`GemmPath::Mma`] and [`GemmPath::Wgmma`]: k if true, m if false. Of [`GemmPath::Few`]: whether k has, a being aligned as for
    /// `Mma`. Else false.
    pub a_by_k: bool,
    /// Likewise of b for [`GemmPath::Mma`], [`GemmPath::Wgmma`] and [`GemmPath::Few`]: k if true, n if false.
    pub b_by_k: bool,
    /// The elementwise kernel that runs on each element of c as soon as that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<Epilogue>,
}

/// How a product is computed. Sums are f32 on every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GemmPath {
    /// Any types and any strides: tiles of [`SIMT_TILE`] in shared memory, multiplied in f32.
    Simt,
    /// Tensor cores, `mma.sync.m16n8k16`: a and b both bf16 or both f16; one stride of each is 1, and its other stride, its batch strides
    /// and its offset are multiples of 16 bytes. c is any float type, with any strides.
    Mma,
    /// As `Mma`, by the tensor-core instructions of sm_90a for four warps together, `wgmma.mma_async`: those alone reach a Hopper GPU's full rate.
    Wgmma,
    /// At most [`FEW`] rows: reads b once, as fast as memory gives it. Of b one stride is 1; alignment as for `Mma`.
    Few,
}

/// Batch dims a kernel takes; the runtime loops over more.
pub const BATCH: usize = 3;
/// Rows up to which [`GemmPath::Few`] is chosen.
pub const FEW: u64 = 8;
/// Rows and columns of c that a block of [`GemmPath::Simt`] makes.
pub const SIMT_TILE: u32 = 64;
/// Depth of its tiles; their lines, one for each k, are padded to `SIMT_LINE` elements.
pub const SIMT_DEPTH: u32 = 16;
pub const SIMT_LINE: u32 = SIMT_TILE + 4;
pub const SIMT_THREADS: u32 = 256;
/// Threads of a block of [`GemmPath::Few`].
pub const FEW_THREADS: u32 = 256;

/// What a block of [`GemmPath::Mma`] works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaTile {
    /// Of c.
    pub rows: u32,
    pub cols: u32,
    /// Of c that a warp makes.
    pub warp_rows: u32,
    pub warp_cols: u32,
    /// Of k that a stage has.
    pub depth: u32,
    /// Tiles of a and b in shared memory at a time.
    pub stages: u32,
}

impl MmaTile {
    pub fn threads(self) -> u32 {
        (self.rows / self.warp_rows) * (self.cols / self.warp_cols) * super::WARP
    }

    /// Bytes of one stage's tiles, of 16-bit elements.
    pub fn stage_bytes(self) -> u32 {
        (self.rows + self.cols) * self.depth * 2
    }
}

/// What a block of [`GemmPath::Wgmma`] works on: of c, [`WgmmaTile::GROUP_ROWS`] whole rows a warpgroup. Its tiles of a and b in shared memory have rows
/// of 128 bytes, of which the instructions read eight at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaTile {
    /// Of c.
    pub rows: u32,
    pub cols: u32,
    /// Of k that a stage has.
    pub depth: u32,
    /// Tiles of a and b in shared memory at a time.
    pub stages: u32,
}

impl WgmmaTile {
    /// Rows of c that a warpgroup makes.
    pub const GROUP_ROWS: u32 = 64;
    /// Warps of a warpgroup.
    pub const GROUP_WARPS: u32 = 4;

    pub fn threads(self) -> u32 {
        self.rows / Self::GROUP_ROWS * Self::GROUP_WARPS * super::WARP
    }

    /// Bytes of one stage's tiles, of 16-bit elements.
    pub fn stage_bytes(self) -> u32 {
        (self.rows + self.cols) * self.depth * 2
    }
}

/// Tiles of c from which on [`GemmPath::Wgmma`] is chosen: with fewer, half of an H100's multiprocessors would have nothing to do, and the smaller
/// tiles of [`GemmPath::Mma`] reach more of them. Nor is it chosen where c is no wider or higher than half a tile.
pub const WGMMA_TILES: u64 = 64;

/// The one tile of [`GemmPath::Wgmma`]. An H100 reads its second-level cache at about 40 bytes a clock and multiprocessor, so that a block has to make 2 x 128 x
/// 256 x 64 operations of each 48 KiB that it reads: those take 1024 clocks at the full rate.
pub const WGMMA_TILE: WgmmaTile = WgmmaTile { rows: 128, cols: 256, depth: 64, stages: 4 };

impl GemmKernel {
    /// The kernel for an instruction alone, of a program for this architecture: depends on the program alone, not on the run.
    pub fn of(gemm: &Gemm, arch: Option<Arch>) -> Self {
        let (a, b, c) = (gemm.a.dtype, gemm.b.dtype, gemm.c.dtype);
        let simt = Self {
            path: GemmPath::Simt,
            a,
            b,
            c,
            rows: SIMT_TILE,
            a_by_k: false,
            b_by_k: false,
            epilogue: None,
        };
        // (k stride, other stride)
        let by_k = |m: &Matrix, k: i64, other: i64, batch: &[i64]| -> Option<bool> {
            let size = m.dtype.bytes() as i64;
            let whole = |s: i64| s.checked_mul(size).is_some_and(|b| b % 16 == 0);
            let aligned = m.loc.offset.is_multiple_of(16) && batch.iter().all(|&s| whole(s));
            match (k, other) {
                _ if !aligned => None,
                (1, other) if whole(other) => Some(true),
                (k, 1) if whole(k) => Some(false),
                _ => None,
            }
        };
        let strides = |f: fn(&crate::program::BatchDim) -> i64| gemm.batch.iter().map(f).collect::<Vec<_>>();
        let a_by_k = by_k(&gemm.a, gemm.a.col, gemm.a.row, &strides(|d| d.a));
        let b_by_k = by_k(&gemm.b, gemm.b.row, gemm.b.col, &strides(|d| d.b));
        if gemm.m.full <= FEW
            && let Some(b_by_k) = b_by_k
        {
            let rows = gemm.m.full.max(1).next_power_of_two() as u32;
            return Self { path: GemmPath::Few, rows, a_by_k: a_by_k == Some(true), b_by_k, ..simt };
        }
        match (a_by_k, b_by_k) {
            (Some(a_by_k), Some(b_by_k)) if a == b && matches!(a, DType::BF16 | DType::F16) => {
                let rows = if gemm.m.full <= 64 { 64 } else { 128 };
                let large = rows > 64 && gemm.n.full > 128 && wgmma_tiles(gemm) >= WGMMA_TILES;
                let path = if large && arch == Some(Arch::Sm90a) { GemmPath::Wgmma } else { GemmPath::Mma };
                Self { path, rows, a_by_k, b_by_k, ..simt }
            }
            _ => simt,
        }
    }

    /// Parameters, in order: pointers a, b, c; m, n, k; strides in elements: a along m and k, b along k and n, c along m and n; alpha (f32);
    /// for each of [`BATCH`] batch dims, outermost first: its extent (1 where there is none) and its strides in a, b and c. Those of an epilogue follow.
    pub const PARAMS: usize = 3 + 3 + 6 + 1 + 4 * BATCH;

    /// Parameters with those of the epilogue.
    pub fn params(&self) -> usize {
        Self::PARAMS + self.epilogue.map_or(0, |e| e.params())
    }

    /// The tile of [`GemmPath::Mma`]: of few rows, narrow ones, so that more blocks share the work of reading b.
    pub fn mma_tile(&self) -> MmaTile {
        let side = if self.rows <= 64 { 64 } else { 128 };
        MmaTile { rows: side, cols: side, warp_rows: side / 2, warp_cols: side / 2, depth: 32, stages: 4 }
    }

    /// The rows that a block of [`GemmPath::Few`] makes.
    pub fn few_rows(&self) -> u32 {
        self.rows.clamp(1, FEW as u32)
    }

    /// Columns of c that a block of [`GemmPath::Few`] makes.
    pub fn few_tile(&self) -> u32 {
        if self.b_by_k { 16 } else { 32 }
    }

    /// How to launch it: one block a tile, x over columns, y over rows, z over the batch. The kernel goes on at `+ gridDim` in y and z, whose limit
    /// is 65535.
    pub fn shape(&self, m: u64, n: u64, batch: u64) -> Shape {
        let tiles = |n: u64, tile: u32| u32::try_from(n.div_ceil(tile.into())).unwrap_or(u32::MAX);
        let (rows, cols, threads, shared) = match self.path {
            // Two tiles of f32.
            GemmPath::Simt => (SIMT_TILE, SIMT_TILE, SIMT_THREADS, 2 * SIMT_DEPTH * SIMT_LINE * 4),
            GemmPath::Mma => {
                let tile = self.mma_tile();
                (tile.rows, tile.cols, tile.threads(), tile.stages * tile.stage_bytes())
            }
            GemmPath::Wgmma => {
                let tile = WGMMA_TILE;
                (tile.rows, tile.cols, tile.threads(), tile.stages * tile.stage_bytes())
            }
            GemmPath::Few => (self.few_rows(), self.few_tile(), FEW_THREADS, 0),
        };
        let grid = [tiles(n, cols).max(1), tiles(m, rows).clamp(1, 65535), batch.clamp(1, 65535) as u32];
        Shape { grid, threads, shared }
    }
}

/// Tiles of [`WGMMA_TILE`] that a product has.
fn wgmma_tiles(gemm: &Gemm) -> u64 {
    let tiles = |extent: &Extent, tile: u32| extent.full.div_ceil(tile.into());
    let batch = gemm.batch.iter().map(|dim| dim.extent.full);
    let c = tiles(&gemm.m, WGMMA_TILE.rows).saturating_mul(tiles(&gemm.n, WGMMA_TILE.cols));
    batch.fold(c, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Base, BatchDim, Loc};

    fn gemm(dtype: DType, [m, n, k]: [u64; 3]) -> Gemm {
        let matrix = |row: u64, col: u64| {
            let loc = Loc { base: Base::Frame, offset: 0 };
            Matrix { loc, dtype, row: row as i64, col: col as i64 }
        };
        Gemm {
            m: m.into(),
            n: n.into(),
            k: k.into(),
            alpha: 1.0,
            a: matrix(k, 1),
            b: matrix(1, k),
            c: matrix(n, 1),
            batch: vec![],
            accumulate: false,
            packed: None,
        }
    }

    fn path(gemm: &Gemm, arch: Option<Arch>) -> GemmPath {
        GemmKernel::of(gemm, arch).path
    }

    #[test]
    fn warpgroups_are_chosen_where_they_exist_and_have_enough_to_do() {
        // 8 x 8 tiles.
        let size = [8 * 128, 8 * 256, 64];
        let large = gemm(DType::BF16, size);
        for arch in Arch::ALL {
            let want = if arch == Arch::Sm90a { GemmPath::Wgmma } else { GemmPath::Mma };
            assert_eq!(path(&large, Some(arch)), want, "{arch:?}");
        }
        assert_eq!(path(&large, None), GemmPath::Mma);
        let hopper = |gemm: &Gemm| path(gemm, Some(Arch::Sm90a));
        assert_eq!(hopper(&gemm(DType::F16, size)), GemmPath::Wgmma);
        assert_eq!(hopper(&gemm(DType::F32, size)), GemmPath::Simt);
        // One row of tiles fewer; the same over a batch; tiles that are begun count.
        let fewer = gemm(DType::BF16, [7 * 128, 8 * 256, 64]);
        assert_eq!(hopper(&fewer), GemmPath::Mma);
        let dim = BatchDim { extent: 2.into(), a: 8, b: 8, c: 8 };
        assert_eq!(hopper(&Gemm { batch: vec![dim], ..fewer }), GemmPath::Wgmma);
        assert_eq!(hopper(&gemm(DType::BF16, [7 * 128 + 1, 7 * 256 + 1, 64])), GemmPath::Wgmma);
        // Few rows, however many columns, and the other way round; matrices that are not aligned.
        assert_eq!(hopper(&gemm(DType::BF16, [64, 1 << 20, 64])), GemmPath::Mma);
        assert_eq!(hopper(&gemm(DType::BF16, [1 << 20, 128, 64])), GemmPath::Mma);
        assert_eq!(hopper(&gemm(DType::BF16, [1 << 20, 129, 64])), GemmPath::Wgmma);
        assert_eq!(hopper(&gemm(DType::BF16, [8 * 128, 8 * 256, 63])), GemmPath::Simt);
        let kernel = GemmKernel::of(&large, Some(Arch::Sm90a));
        assert_eq!((kernel.rows, kernel.a_by_k, kernel.b_by_k), (128, true, true));
        let shape = kernel.shape(1000, 2000, 3);
        assert_eq!((shape.grid, shape.threads, shape.shared), ([8, 8, 3], 256, 192 << 10));
    }
}
