//! Matrix products by cuBLASLt, where it is there and takes the strides: its kernels are tuned for every GPU.
//!
//! It thinks in column-major matrices, in which our row-major `c = a b` is `c' = b' a'`: b comes first, rows and columns change roles.

use super::driver::{Buffer, Stream};
use super::work::Product;
use cudarc::cublaslt::{result, sys};
use pcc_ir::DType;
use pcc_ir::gpu::gemm::GemmPath;
use std::collections::HashMap;
use std::ffi::c_void;

/// Scratch that its kernels may use: what NVIDIA recommends for its largest GPUs.
const WORKSPACE: u64 = 32 << 20;

/// The library on one device.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    /// What was prepared for products of equal form; `None` where the library has nothing.
    prepared: HashMap<Form, Option<Prepared>>,
}

/// All of a product but its addresses.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Form {
    types: [DType; 3],
    /// m, n, k.
    sizes: [u64; 3],
    /// Of a, b and c: whether the matrix is transposed, and its leading dim.
    a: (bool, i64),
    b: (bool, i64),
    c: i64,
    /// Count, and strides of a, b and c.
    batch: [i64; 4],
    /// Bytes that divide every address of a, b and c, at most 256.
    aligned: [u32; 3],
}

/// Descriptors and the kernel chosen.
struct Prepared {
    desc: sys::cublasLtMatmulDesc_t,
    /// Of the first operand (our b), the second (our a), and the result.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulHeuristicResult_t,
}

impl Blas {
    /// The library for the current context, if the machine has it.
    pub(super) fn find() -> Option<Self> {
        // SAFETY: loads the library by its usual names, which runs its initialisers, and unloads it.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let workspace = Buffer::new(WORKSPACE).ok()?;
        let handle = result::create_handle().ok()?;
        Some(Self { handle, workspace, prepared: HashMap::new() })
    }

    /// Queues a product. Whether it was taken: if not, our own kernel has to do it.
    ///
    /// # Errors
    /// The library refuses at the last moment.
    pub(super) fn product(&mut self, product: &Product, stream: &Stream) -> Result<bool, String> {
        // Few rows are a matter of reading b once, which our kernel does.
        let Some(form) = form(product).filter(|_| product.kernel.path != GemmPath::Few) else {
            return Ok(false);
        };
        if !self.prepared.contains_key(&form) {
            let prepared = prepare(self.handle, &form);
            self.prepared.insert(form.clone(), prepared);
        }
        let Some(Some(prepared)) = self.prepared.get(&form) else { return Ok(false) };
        let (alpha, beta) = (product.alpha, 0f32);
        let c = product.c.0 as *mut c_void;
        let [first, second, out] = prepared.layouts;
        // SAFETY: descriptors live as long as `self`; addresses are those of matrices with these strides in buffers of the rank (validated
        // program); scalars are read before the call returns.
        let queued = unsafe {
            result::matmul(
                self.handle,
                prepared.desc,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                product.b.0 as *const c_void,
                first,
                product.a.0 as *const c_void,
                second,
                c.cast_const(),
                out,
                c,
                out,
                &raw const prepared.algorithm.algo,
                self.workspace.address as *mut c_void,
                WORKSPACE as usize,
                stream.raw().cast(),
            )
        };
        match queued {
            Ok(()) => Ok(true),
            Err(e) if e.0 == sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED => {
                Err(format!("cublasLtMatmul: {:?}", e.0))
            }
            // It thought that it had a kernel, and has none: ours takes everything.
            Err(_) => {
                self.prepared.insert(form, None);
                Ok(false)
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.prepared.values_mut().filter_map(Option::take).for_each(drop);
        // SAFETY: created by `find`, destroyed once; errors have no one to go to.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: created by `prepare`, destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.desc);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

/// A matrix as the library has it: whether rows are what is adjacent, and the stride between those; `None` where neither dim has stride 1.
fn layout(rows: u64, cols: u64, row: i64, col: i64) -> Option<(bool, i64)> {
    let (rows, cols) = (rows as i64, cols as i64);
    if (col == 1 || cols == 1) && (row >= cols || rows == 1) {
        return Some((false, row.max(cols)));
    }
    ((row == 1 || rows == 1) && (col >= rows || cols == 1)).then(|| (true, col.max(rows)))
}

fn form(p: &Product) -> Option<Form> {
    let (a, b) = (layout(p.m, p.k, p.a.1, p.a.2)?, layout(p.k, p.n, p.b.1, p.b.2)?);
    let (false, c) = layout(p.m, p.n, p.c.1, p.c.2)? else { return None };
    let types = [p.kernel.a, p.kernel.b, p.kernel.c];
    let same = types[0] == types[1] && (types[2] == types[0] || types[2] == DType::F32);
    if !same || p.k == 0 || data_type(types[0]).is_none() || data_type(types[2]).is_none() {
        return None;
    }
    let batch: Vec<[i64; 4]> = p.batch.iter().copied().filter(|d| d[0] != 1).collect();
    let batch = match batch[..] {
        [] => [1, 0, 0, 0],
        [one] => one,
        // Two dims that are one: the outer strides go on where the inner ones end.
        [outer, inner] if (1..4).all(|i| outer[i] == inner[i] * inner[0]) => {
            [outer[0] * inner[0], inner[1], inner[2], inner[3]]
        }
        _ => return None,
    };
    let aligned = |address: u64, stride: i64, dtype: DType| {
        let bytes = stride.unsigned_abs() * dtype.bytes() as u64;
        1 << (address | bytes | 256).trailing_zeros()
    };
    let addresses = [p.a.0, p.b.0, p.c.0];
    let aligned = [0, 1, 2].map(|i: usize| aligned(addresses[i], batch[i + 1], types[i]));
    let form = Form { types, sizes: [p.m, p.n, p.k], a, b, c, batch, aligned };
    (batch[0] <= i64::from(i32::MAX)).then_some(form)
}

fn data_type(dtype: DType) -> Option<sys::cudaDataType> {
    match dtype {
        DType::F32 => Some(sys::cudaDataType::CUDA_R_32F),
        DType::BF16 => Some(sys::cudaDataType::CUDA_R_16BF),
        DType::F16 => Some(sys::cudaDataType::CUDA_R_16F),
        DType::F64 | DType::I32 | DType::I64 | DType::Bool => None,
    }
}

/// Descriptors of a product and the kernel the library chooses; `None` if it has none.
fn prepare(handle: sys::cublasLtHandle_t, form: &Form) -> Option<Prepared> {
    let [m, n, k] = form.sizes;
    let desc = result::create_matmul_desc(
        sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        sys::cudaDataType::CUDA_R_32F,
    )
    .ok()?;
    // Row-major with adjacent columns is what it calls untransposed, of the transposed matrix.
    let matrix = |dtype, rows: u64, cols: u64, (transposed, leading): (bool, i64)| {
        let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
        result::create_matrix_layout(data_type(dtype)?, rows, cols, leading).ok()
    };
    let first = matrix(form.types[1], n, k, form.b);
    let second = matrix(form.types[0], k, m, form.a);
    let out = matrix(form.types[2], n, m, (false, form.c));
    let (Some(first), Some(second), Some(out)) = (first, second, out) else {
        // SAFETY: created above, destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(desc);
            for layout in [first, second, out].into_iter().flatten() {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
        return None;
    };
    let zeroed = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
    // SAFETY: numbers and enums of which 0 is a value; replaced before use.
    let algorithm = unsafe { zeroed.assume_init() };
    let mut prepared = Prepared { desc, layouts: [first, second, out], algorithm };
    configure(&prepared, form)?;
    prepared.algorithm = choose(handle, &prepared, form)?;
    Some(prepared)
}

fn configure(prepared: &Prepared, form: &Form) -> Option<()> {
    use sys::cublasLtMatmulDescAttributes_t as D;
    use sys::cublasLtMatrixLayoutAttribute_t as L;
    let operands = [(D::CUBLASLT_MATMUL_DESC_TRANSA, form.b.0), (D::CUBLASLT_MATMUL_DESC_TRANSB, form.a.0)];
    for (attribute, transposed) in operands {
        let operation = i32::from(transposed);
        // SAFETY: the descriptor lives; the value is a cublasOperation_t, an int, which is copied.
        let set = unsafe {
            result::set_matmul_desc_attribute(prepared.desc, attribute, (&raw const operation).cast(), 4)
        };
        set.ok()?;
    }
    let [count, a, b, c] = form.batch;
    for (&layout, stride) in prepared.layouts.iter().zip([b, a, c]) {
        let count = count as i32;
        // SAFETY: the layout lives; count is an int32 and the stride an int64, both copied.
        let set = unsafe {
            result::set_matrix_layout_attribute(
                layout,
                L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                (&raw const count).cast(),
                4,
            )
            .and_then(|()| {
                result::set_matrix_layout_attribute(
                    layout,
                    L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                    (&raw const stride).cast(),
                    8,
                )
            })
        };
        set.ok()?;
    }
    Some(())
}

fn choose(
    handle: sys::cublasLtHandle_t,
    prepared: &Prepared,
    form: &Form,
) -> Option<sys::cublasLtMatmulHeuristicResult_t> {
    let (preference, workspace) = (result::create_matmul_pref().ok()?, WORKSPACE as usize);
    let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    let [first, second, out] = prepared.layouts;
    let [a, b, c] = form.aligned;
    use sys::cublasLtMatmulPreferenceAttributes_t as P;
    let alignments = [
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
    ];
    let align = |(attribute, bytes): (P, u32)| {
        // SAFETY: the preference lives; the alignment is a uint32, which is copied.
        unsafe { result::set_matmul_pref_attribute(preference, attribute, (&raw const bytes).cast(), 4) }
    };
    // SAFETY: descriptors live; the workspace's size is a size_t, which is copied; the preference is destroyed once.
    unsafe {
        let set = result::set_matmul_pref_attribute(preference, attribute, (&raw const workspace).cast(), 8);
        let aligned = set.and_then(|()| alignments.into_iter().try_for_each(align));
        let found = aligned.and_then(|()| {
            result::get_matmul_algo_heuristic(handle, prepared.desc, first, second, out, out, preference)
        });
        let _ = result::destroy_matmul_pref(preference);
        found.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::gpu::gemm::GemmKernel;

    fn product(a: (i64, i64), b: (i64, i64), batch: Vec<[i64; 4]>) -> Product {
        let dtype = DType::BF16;
        let kernel = GemmKernel {
            path: GemmPath::Mma,
            a: dtype,
            b: dtype,
            c: DType::F32,
            a_by_k: true,
            b_by_k: true,
            rows: 8,
            epilogue: None,
        };
        let (a, b, c) = ((0, a.0, a.1), (0, b.0, b.1), (0, 50, 1));
        Product { kernel, m: 30, n: 50, k: 70, alpha: 1.0, a, b, c, batch, epilogue: vec![] }
    }

    #[test]
    fn strides_become_transposes_and_leading_dims() {
        let plain = form(&product((70, 1), (50, 1), vec![])).unwrap();
        assert_eq!((plain.a, plain.b, plain.c), ((false, 70), (false, 50), 50));
        let turned = form(&product((1, 32), (1, 72), vec![])).unwrap();
        assert_eq!((turned.a, turned.b), ((true, 32), (true, 72)));
        assert!(form(&product((140, 2), (50, 1), vec![])).is_none());
    }

    #[test]
    fn batch_dims_that_are_one_are_merged() {
        let of = |batch| form(&product((70, 1), (50, 1), batch)).map(|f| f.batch);
        assert_eq!(of(vec![[3, 4000, 0, 1500]]), Some([3, 4000, 0, 1500]));
        assert_eq!(of(vec![[2, 12000, 0, 4500], [3, 4000, 0, 1500]]), Some([6, 4000, 0, 1500]));
        assert_eq!(of(vec![[2, 1, 0, 4500], [3, 4000, 0, 1500]]), None);
    }
}
