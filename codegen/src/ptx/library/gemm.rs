//! Matrix products: what their paths have in common, which is the parameters and the walk over tiles of c.

use super::epilogue::Follows;
use super::value::{Code, Num};
use super::{gemm_few, gemm_mma, gemm_simt, gemm_wgmma};
use crate::ptx::entry::Special;
use pcc_ir::gpu::gemm::{BATCH, GemmKernel, GemmPath};
use pcc_ir::types::DType;

/// Rows of tiles that blocks go down together.
const TOGETHER: u32 = 8;

/// Builds the body of the kernel.
pub(super) fn emit(code: Code<'_, '_>, kernel: &GemmKernel, follows: Option<Follows<'_>>) {
    let product = Product::of(code, kernel, follows);
    match kernel.path {
        GemmPath::Simt => gemm_simt::emit(&product),
        GemmPath::Mma => gemm_mma::emit(&product),
        GemmPath::Wgmma => gemm_wgmma::emit(&product),
        GemmPath::Few => gemm_few::emit(&product),
    }
}

/// A matrix: its elements' type, its first element, and strides in elements along its two dims (i64).
#[derive(Clone, Copy)]
pub(super) struct Matrix<'e, 'c> {
    pub dtype: DType,
    pub first: Num<'e, 'c>,
    /// Along m of a and c, k of b.
    pub row: Num<'e, 'c>,
    /// Along k of a, n of b and c.
    pub col: Num<'e, 'c>,
}

impl<'e, 'c> Matrix<'e, 'c> {
    /// The matrix that begins at an element of this one.
    pub fn from(self, row: Num<'e, 'c>, col: Num<'e, 'c>) -> Self {
        Matrix { first: self.at(row, col), ..self }
    }

    /// The address of an element.
    pub fn at(self, row: Num<'e, 'c>, col: Num<'e, 'c>) -> Num<'e, 'c> {
        self.first.elements(self.dtype, row.long() * self.row + col.long() * self.col)
    }
}

/// The parameters of a kernel, [`GemmKernel::PARAMS`].
pub(super) struct Product<'e, 'c, 'k> {
    pub code: Code<'e, 'c>,
    pub kernel: &'k GemmKernel,
    pub follows: Option<Follows<'k>>,
    a: Matrix<'e, 'c>,
    b: Matrix<'e, 'c>,
    c: Matrix<'e, 'c>,
    pub m: Num<'e, 'c>,
    pub n: Num<'e, 'c>,
    pub k: Num<'e, 'c>,
    pub alpha: Num<'e, 'c>,
    /// Extent, strides in a, b and c.
    batch: [[Num<'e, 'c>; 4]; BATCH],
}

/// A tile of c, and what it is the product of.
#[derive(Clone, Copy)]
pub(super) struct Place<'e, 'c> {
    /// Begins at the tile's first row.
    pub a: Matrix<'e, 'c>,
    /// Begins at the tile's first column.
    pub b: Matrix<'e, 'c>,
    /// Begins at the tile's first element.
    pub c: Matrix<'e, 'c>,
    /// Rows and columns from there to the ends of c, or the tile's where that is less; i32.
    pub rows: Num<'e, 'c>,
    pub cols: Num<'e, 'c>,
    /// The number in the batch; i64.
    pub member: Num<'e, 'c>,
    /// The tile's first row and column in c; i64.
    pub row: Num<'e, 'c>,
    pub col: Num<'e, 'c>,
}

impl<'e, 'c, 'k> Product<'e, 'c, 'k> {
    fn of(code: Code<'e, 'c>, kernel: &'k GemmKernel, follows: Option<Follows<'k>>) -> Self {
        let long = |i: usize| code.param(i);
        let matrix = |i: usize, dtype| Matrix {
            dtype,
            first: code.param_global(i),
            row: long(6 + 2 * i),
            col: long(7 + 2 * i),
        };
        Product {
            code,
            kernel,
            follows,
            a: matrix(0, kernel.a),
            b: matrix(1, kernel.b),
            c: matrix(2, kernel.c),
            m: long(3),
            n: long(4),
            k: long(5),
            alpha: code.param_float(12),
            batch: std::array::from_fn(|dim| std::array::from_fn(|i| long(13 + 4 * dim + i))),
        }
    }

    /// The matrices at a number of the batch.
    fn member(&self, number: Num<'e, 'c>) -> [Matrix<'e, 'c>; 3] {
        let mut matrices = [self.a, self.b, self.c];
        let mut rest = number;
        for [extent, strides @ ..] in self.batch.iter().rev() {
            let index = rest.remainder(*extent);
            rest = rest.quotient(*extent);
            for (matrix, stride) in matrices.iter_mut().zip(strides) {
                matrix.first = matrix.first.elements(matrix.dtype, index * *stride);
            }
        }
        matrices
    }

    /// The tile that a block begins with: column and row. Blocks that run at a time, which are neighbours in x, shall need few of b's columns
    /// as well as few of a's rows: they go down [`TOGETHER`] rows, then on to the next column.
    fn begin(&self) -> [Num<'e, 'c>; 2] {
        let code = self.code;
        let [x, y, across, down] =
            [Special::BlockX, Special::BlockY, Special::BlocksX, Special::BlocksY].map(|s| code.special(s));
        if !matches!(self.kernel.path, GemmPath::Mma | GemmPath::Wgmma) {
            return [x, y];
        }
        let inside = y & (TOGETHER - 1);
        let top = y - inside;
        let rows = (down - top).min(i64::from(TOGETHER));
        let number = inside * across + x;
        [number.quotient(rows), top + number.remainder(rows)]
    }

    /// Runs `body` for the tiles of this block: its column, rows y, `y + gridDim.y`, .., the batch z, `z + gridDim.z`, ...
    pub fn tiles(&self, rows: u32, cols: u32, body: impl FnOnce(Place<'e, 'c>)) {
        let code = self.code;
        let special = |which| code.special(which).long();
        let [x, y] = self.begin().map(Num::long);
        let col = x * cols;
        let members = self.batch[1..].iter().fold(self.batch[0][0], |n, dim| n * dim[0]);
        code.each((special(Special::BlockZ), members), special(Special::BlocksZ), |z| {
            let [a, b, c] = self.member(z);
            code.each((y, self.m.tiles(rows)), special(Special::BlocksY), |y| {
                let row = y * rows;
                let zero = code.i64(0);
                body(Place {
                    a: a.from(row, zero),
                    b: b.from(zero, col),
                    c: c.from(row, col),
                    rows: (self.m - row).min(i64::from(rows)).int(),
                    cols: (self.n - col).min(i64::from(cols)).int(),
                    member: z,
                    row,
                    col,
                });
            });
        });
    }
}
