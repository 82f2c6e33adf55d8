//! What the stand-in for cuBLASLt asks of the stand-in for the driver, which runs it as work of a stream. Both libraries have this file.

/// A matrix, column-major. (cuBLAS documentation, `cublasLtMatrixLayout_t`.)
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Address of the first element.
    pub at: u64,
    /// `cudaDataType`, one of `REAL_*`.
    pub dtype: u32,
    pub rows: u64,
    pub cols: u64,
    /// Elements from a column to the next one.
    pub leading: u64,
    /// Elements from a matrix of the batch to the next one.
    pub stride: i64,
}

/// `D = f(alpha op(A) op(B) + beta C + bias)` for each matrix of a batch, op transposing where it says so.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    pub transposed_a: bool,
    pub transposed_b: bool,
    pub count: u32,
    pub alpha: f32,
    pub beta: f32,
    /// `cublasLtEpilogue_t`, one of `EPILOGUE_*`.
    pub epilogue: u32,
    /// Address of an element of D's type for each of D's rows, if the epilogue has a bias.
    pub bias: u64,
    /// `cudaStream_t`.
    pub stream: u64,
}

pub const REAL_F32: u32 = 0;
pub const REAL_F16: u32 = 2;
pub const REAL_BF16: u32 = 14;

pub const EPILOGUE_DEFAULT: u32 = 1;
/// Parts of an epilogue.
pub const EPILOGUE_RELU: u32 = 2;
pub const EPILOGUE_BIAS: u32 = 4;
pub const EPILOGUE_GELU: u32 = 32;

/// Bytes of an element; `None` of a type that is not known.
pub fn bytes(dtype: u32) -> Option<u64> {
    match dtype {
        REAL_F32 => Some(4),
        REAL_F16 | REAL_BF16 => Some(2),
        _ => None,
    }
}
