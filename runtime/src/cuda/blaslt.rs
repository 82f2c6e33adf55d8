//! Matrix products by cuBLASLt, where it is there and takes the strides: its kernels are tuned for every GPU. What stands behind a product goes
//! with it where the library has that ([`pcc_ir::gpu::BlasEpilogue`]).

mod request;

use super::driver::{Buffer, Stream};
use super::work::{Fused, Product};
use cudarc::cublaslt::{result, sys};
use pcc_ir::DType;
use pcc_ir::gpu::Activation;
use pcc_ir::gpu::gemm::{FEW, GemmPath};
use request::{Form, Request, request};
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

/// Descriptors and the kernel chosen.
struct Prepared {
    desc: sys::cublasLtMatmulDesc_t,
    /// Of the first operand (our b), the second (our a), C and D.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
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
        self.queue(product, None, stream)
    }

    /// Queues a product with the kernel behind it. Whether it was taken.
    ///
    /// # Errors
    /// As [`Blas::product`].
    pub(super) fn fused(&mut self, product: &Product, with: &Fused, stream: &Stream) -> Result<bool, String> {
        self.queue(product, Some(with), stream)
    }

    fn queue(&mut self, product: &Product, with: Option<&Fused>, stream: &Stream) -> Result<bool, String> {
        // Few rows are a matter of reading b once, which our kernel does.
        let few = product.kernel.path == GemmPath::Few && product.m <= FEW;
        let Some(request) = request(product, with).filter(|_| !few) else {
            return Ok(false);
        };
        if !self.prepared.contains_key(&request.form) {
            let prepared = prepare(self.handle, &request);
            self.prepared.insert(request.form.clone(), prepared);
        }
        let Some(Some(prepared)) = self.prepared.get(&request.form) else { return Ok(false) };
        match self.matmul(prepared, &request, product.alpha, stream) {
            Ok(()) => Ok(true),
            Err(e) if e.0 == sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED => {
                Err(format!("cublasLtMatmul: {:?}", e.0))
            }
            // It thought that it had a kernel, and has none: ours takes everything.
            Err(_) => {
                self.prepared.insert(request.form, None);
                Ok(false)
            }
        }
    }

    fn matmul(
        &self,
        prepared: &Prepared,
        request: &Request,
        alpha: f32,
        stream: &Stream,
    ) -> Result<(), result::CublasError> {
        let [first, second, c, d] = prepared.layouts;
        if let Some(bias) = request.bias {
            prepared.set_bias(bias)?;
        }
        // SAFETY: descriptors live as long as `self`; addresses are those of matrices with these strides in buffers of the rank (validated
        // program); scalars are read before the call returns.
        unsafe {
            result::matmul(
                self.handle,
                prepared.desc,
                (&raw const alpha).cast(),
                (&raw const request.beta).cast(),
                request.b as *const c_void,
                first,
                request.a as *const c_void,
                second,
                request.c as *const c_void,
                c,
                request.d as *mut c_void,
                d,
                &raw const prepared.algorithm.algo,
                self.workspace.address as *mut c_void,
                WORKSPACE as usize,
                stream.raw().cast(),
            )
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

impl Prepared {
    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), result::CublasError> {
        // SAFETY: the descriptor lives; the value is of the attribute's type, as the callers say, and copied.
        unsafe {
            result::set_matmul_desc_attribute(self.desc, attribute, (&raw const value).cast(), size_of::<T>())
        }
    }

    /// Where the bias of the next product is: a device pointer.
    fn set_bias(&self, address: u64) -> Result<(), result::CublasError> {
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, address)
    }
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
fn prepare(handle: sys::cublasLtHandle_t, request: &Request) -> Option<Prepared> {
    let form = &request.form;
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
    let c = matrix(form.types[2], n, m, (false, form.c));
    let d = matrix(form.types[2], n, m, (false, form.d));
    let (Some(first), Some(second), Some(c), Some(d)) = (first, second, c, d) else {
        // SAFETY: created above, destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(desc);
            for layout in [first, second, c, d].into_iter().flatten() {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
        return None;
    };
    let zeroed = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
    // SAFETY: numbers and enums of which 0 is a value; replaced before use.
    let algorithm = unsafe { zeroed.assume_init() };
    let mut prepared = Prepared { desc, layouts: [first, second, c, d], algorithm };
    configure(&prepared, request)?;
    prepared.algorithm = choose(handle, &prepared, form)?;
    Some(prepared)
}

fn epilogue(activation: Activation, bias: bool) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t as E;
    match (activation, bias) {
        (Activation::None, false) => E::CUBLASLT_EPILOGUE_DEFAULT,
        (Activation::None, true) => E::CUBLASLT_EPILOGUE_BIAS,
        (Activation::Relu, false) => E::CUBLASLT_EPILOGUE_RELU,
        (Activation::Relu, true) => E::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Activation::GeluTanh, false) => E::CUBLASLT_EPILOGUE_GELU,
        (Activation::GeluTanh, true) => E::CUBLASLT_EPILOGUE_GELU_BIAS,
    }
}

fn configure(prepared: &Prepared, request: &Request) -> Option<()> {
    use sys::cublasLtMatmulDescAttributes_t as D;
    use sys::cublasLtMatrixLayoutAttribute_t as L;
    let form = &request.form;
    // A cublasOperation_t is an int, an epilogue a uint32.
    prepared.set(D::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(form.b.0)).ok()?;
    prepared.set(D::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(form.a.0)).ok()?;
    if form.activation != Activation::None || form.bias {
        prepared.set(D::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(form.activation, form.bias) as u32).ok()?;
    }
    if let Some(bias) = request.bias {
        prepared.set_bias(bias).ok()?;
    }
    let [count, a, b, c, d] = form.batch;
    for (&layout, stride) in prepared.layouts.iter().zip([b, a, c, d]) {
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
    let [first, second, out_c, out_d] = prepared.layouts;
    let [a, b, c, d] = form.aligned;
    use sys::cublasLtMatmulPreferenceAttributes_t as P;
    let alignments = [
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
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
            result::get_matmul_algo_heuristic(handle, prepared.desc, first, second, out_c, out_d, preference)
        });
        let _ = result::destroy_matmul_pref(preference);
        found.ok()
    }
}
