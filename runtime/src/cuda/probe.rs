//! Single kernels on a GPU, timed: what `cargo xtask gpu` checks and measures with.

use super::blaslt::Blas;
use super::driver::{self, Buffer, Context, Module, Stream, Timer};
use super::load::{self, Gpus};
use super::work::Product;
use pcc_ir::Diagnostic;
use pcc_ir::gpu::gemm::GemmKernel;
use pcc_ir::gpu::{Arch, LibraryKernel, Shape};

/// A GPU with kernels loaded.
pub struct Probe {
    // Freed in this order.
    buffers: Vec<Buffer>,
    blas: Option<Blas>,
    stream: Stream,
    module: Module,
    context: Context,
}

/// A product of dense row-major matrices, `a [m,k]`, `b [n,k]` (as weights are stored) and `c [m,n]`, at addresses of a [`Probe`].
#[derive(Clone, Copy, Debug)]
pub struct DenseProduct {
    pub kernel: GemmKernel,
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub a: u64,
    pub b: u64,
    pub c: u64,
}

fn broken(what: &str) -> impl Fn(driver::Failure) -> Diagnostic + '_ {
    move |e| Diagnostic::run(what.to_owned()).why(load::explained(&e.to_string()))
}

impl Probe {
    /// Opens the first GPU and loads PTX.
    ///
    /// # Errors
    /// There is none, or it does not take the PTX.
    pub fn open(gpus: &Gpus, arch: Arch, ptx: &str) -> Result<Self, Diagnostic> {
        load::prepare(gpus, arch, 1)?;
        load::check_driver(arch)?;
        let context = Context::new(0).map_err(broken("GPU 0 cannot be used"))?;
        let module = Module::load(ptx).map_err(|refused| {
            Diagnostic::run("the kernels cannot be loaded")
                .why(format!("{}: {}", refused.failure, refused.log))
        })?;
        let stream = Stream::new().map_err(broken("no stream"))?;
        let blas = load::has_libraries(gpus).then(Blas::find).flatten();
        Ok(Self { buffers: Vec::new(), blas, stream, module, context })
    }

    /// Name and compute capability.
    ///
    /// # Errors
    /// The driver does not answer.
    pub fn device(&self) -> Result<(String, (u32, u32)), Diagnostic> {
        Ok((self.context.name(), self.context.capability().map_err(broken("no capability"))?))
    }

    /// Memory with these bytes: its address. It is freed with the probe.
    ///
    /// # Errors
    /// There is not enough.
    pub fn upload(&mut self, bytes: &[u8]) -> Result<u64, Diagnostic> {
        let buffer = Buffer::new(bytes.len() as u64).map_err(broken("no memory"))?;
        let address = buffer.address;
        self.stream.upload(address, bytes).map_err(broken("a copy to the GPU failed"))?;
        self.settle()?;
        self.buffers.push(buffer);
        Ok(address)
    }

    /// Bytes at an address that [`Probe::upload`] gave.
    ///
    /// # Errors
    /// They are not there, or the copy fails.
    pub fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), Diagnostic> {
        self.stream.download(bytes, address).map_err(broken("a copy from the GPU failed"))?;
        self.settle()
    }

    /// Frees everything uploaded.
    pub fn clear(&mut self) {
        self.buffers.clear();
    }

    fn settle(&self) -> Result<(), Diagnostic> {
        while !self.stream.is_done().map_err(broken("the GPU failed"))? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Launches a kernel of the library `repeats` times, after once to warm up; seconds of one launch.
    ///
    /// # Errors
    /// The PTX lacks it, or it fails.
    pub fn time(
        &self,
        kernel: &LibraryKernel,
        shape: &Shape,
        params: &[u64],
        repeats: u32,
    ) -> Result<f64, Diagnostic> {
        let function = self.module.function(&kernel.symbol(), kernel.shared());
        let function = function.map_err(broken("a kernel is missing"))?;
        self.timed(repeats, &mut || {
            self.stream.launch(function, shape, params).map_err(broken("a kernel failed"))
        })
    }

    /// As [`Probe::time`], of a product by our kernel.
    ///
    /// # Errors
    /// As [`Probe::time`].
    pub fn time_product(&self, p: &DenseProduct, repeats: u32) -> Result<f64, Diagnostic> {
        let product = product(p);
        let launches = product.launches();
        let Some((shape, params)) = launches.first() else {
            return Err(Diagnostic::internal("a product without a launch"));
        };
        self.time(&LibraryKernel::Gemm(p.kernel), shape, params, repeats)
    }

    /// As [`Probe::time_product`], by cuBLASLt; `None` if it is not there, or does not take the product.
    ///
    /// # Errors
    /// It fails.
    pub fn time_library_product(
        &mut self,
        p: &DenseProduct,
        repeats: u32,
    ) -> Result<Option<f64>, Diagnostic> {
        let Some(mut blas) = self.blas.take() else { return Ok(None) };
        let product = product(p);
        let failed = |why| Diagnostic::run("cuBLASLt failed").why(why);
        let taken = blas.product(&product, &self.stream).map_err(failed);
        let timed = match taken {
            Ok(true) => self
                .timed(repeats, &mut || blas.product(&product, &self.stream).map(|_| ()).map_err(failed))
                .map(Some),
            Ok(false) => Ok(None),
            Err(e) => Err(e),
        };
        self.blas = Some(blas);
        timed
    }

    /// Copies `bytes` from one place to another; seconds of one copy.
    ///
    /// # Errors
    /// The ranges are not there.
    pub fn time_copy(&self, to: u64, from: u64, bytes: u64, repeats: u32) -> Result<f64, Diagnostic> {
        self.timed(repeats, &mut || self.stream.copy(to, from, bytes).map_err(broken("a copy failed")))
    }

    fn timed(
        &self,
        repeats: u32,
        queue: &mut dyn FnMut() -> Result<(), Diagnostic>,
    ) -> Result<f64, Diagnostic> {
        queue()?;
        self.settle()?;
        let failed = broken("no timer");
        let timer = Timer::start(&self.stream).map_err(&failed)?;
        (0..repeats.max(1)).try_for_each(|_| queue())?;
        let seconds = timer.stop(&self.stream, &|| self.settle())?.map_err(&failed)?;
        Ok(seconds / f64::from(repeats.max(1)))
    }
}

fn product(p: &DenseProduct) -> Product {
    let k = p.k as i64;
    Product {
        kernel: p.kernel,
        m: p.m,
        n: p.n,
        k: p.k,
        alpha: 1.0,
        a: (p.a, k, 1),
        b: (p.b, 1, k),
        c: (p.c, p.n as i64, 1),
        batch: Vec::new(),
        epilogue: Vec::new(),
        fused: None,
    }
}
