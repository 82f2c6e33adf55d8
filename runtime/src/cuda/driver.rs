//! The driver: contexts, memory, streams, events, modules and graphs, each freed when dropped. All unsafe calls of CUDA's driver are here;
//! everything else of the runtime works with addresses it has worked out from the validated program.

use cudarc::driver::{result, sys};
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;

/// What CUDA said, with the call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: sys::CUresult,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = result::DriverError(self.code).error_name().map(|n| n.to_string_lossy().into_owned());
        let text = result::DriverError(self.code).error_string().map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|_| format!("error {}", self.code as u32));
        write!(f, "{}: {name} ({})", self.call, text.unwrap_or_else(|_| "no text".to_owned()))
    }
}

pub(super) type Outcome<T> = Result<T, Failure>;

fn checked<T>(call: &'static str, result: Result<T, result::DriverError>) -> Outcome<T> {
    result.map_err(|e| Failure { call, code: e.0 })
}

/// Initialises the driver; the number of devices.
pub(super) fn devices() -> Outcome<usize> {
    checked("cuInit", result::init())?;
    checked("cuDeviceGetCount", result::device::get_count()).map(|n| n.max(0) as usize)
}

/// The version of CUDA that the driver supports: 12040 is 12.4.
pub(super) fn version() -> Outcome<i32> {
    let mut version = 0;
    // SAFETY: the call writes one int to a live one.
    checked("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) }.result())?;
    Ok(version)
}

/// The primary context of a device.
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: a primary context may be used by any thread; each makes it current for itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(ordinal: usize) -> Outcome<Self> {
        let device = checked("cuDeviceGet", result::device::get(ordinal as i32))?;
        // SAFETY: `device` is a device of the driver.
        let handle = checked("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        let context = Self { device, handle };
        context.bind()?;
        Ok(context)
    }

    /// Makes it the calling thread's.
    pub(super) fn bind(&self) -> Outcome<()> {
        // SAFETY: the context is retained until drop.
        checked("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.handle) })
    }

    pub(super) fn name(&self) -> String {
        result::device::get_name(self.device).unwrap_or_else(|_| "unknown device".to_owned())
    }

    /// Compute capability: major, minor.
    pub(super) fn capability(&self) -> Outcome<(u32, u32)> {
        use sys::CUdevice_attribute as A;
        let of = |a: A| {
            // SAFETY: the device is one of the driver's.
            checked("cuDeviceGetAttribute", unsafe { result::device::get_attribute(self.device, a) })
        };
        let major = of(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = of(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major.max(0) as u32, minor.max(0) as u32))
    }

    /// Bytes of shared memory that a block may ask for.
    pub(super) fn shared(&self) -> Outcome<u32> {
        let a = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the device is one of the driver's.
        let found = unsafe { result::device::get_attribute(self.device, a) };
        checked("cuDeviceGetAttribute", found).map(|n| n.max(0) as u32)
    }

    /// Bytes free, and in all. The context must be current.
    pub(super) fn memory(&self) -> Outcome<(u64, u64)> {
        checked("cuMemGetInfo", result::mem_get_info()).map(|(f, t)| (f as u64, t as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `new`; an error has no one to go to.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory of the device that was current when it was made.
pub(super) struct Buffer {
    pub(super) address: u64,
}

impl Buffer {
    pub(super) fn new(bytes: u64) -> Outcome<Self> {
        // SAFETY: an allocation touches nothing else; the memory is not read before it is written.
        let address = checked("cuMemAlloc", unsafe { result::malloc_sync(bytes.max(1) as usize) })?;
        Ok(Self { address })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` and freed once; work that used it has ended, since streams are synchronised before.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Memory of the host that devices read directly.
pub(super) struct Pinned {
    start: *mut u8,
    bytes: usize,
}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Outcome<Self> {
        // SAFETY: an allocation touches nothing else.
        let start = checked("cuMemHostAlloc", unsafe { result::malloc_host(bytes.max(1), 0) })?.cast::<u8>();
        // SAFETY: the range was just allocated; zeroed, so that it may be seen as bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { start, bytes })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is this value's, and initialised.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// A queue of work.
pub(super) struct Stream(sys::CUstream);

impl Stream {
    /// One that does not wait for the default stream. The context must be current.
    pub(super) fn new() -> Outcome<Self> {
        checked("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking)).map(Self)
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Whether all its work is done.
    pub(super) fn is_done(&self) -> Outcome<bool> {
        // SAFETY: the stream lives until drop.
        match unsafe { sys::cuStreamQuery(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(Failure { call: "cuStreamQuery", code }),
        }
    }

    /// Work queued from now on waits for the event.
    pub(super) fn wait(&self, event: &Event) -> Outcome<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event live; the driver keeps what it needs of the event.
        checked("cuStreamWaitEvent", unsafe { result::stream::wait_event(self.0, event.0, flags) })
    }

    pub(super) fn record(&self, event: &Event) -> Outcome<()> {
        // SAFETY: stream and event live.
        checked("cuEventRecord", unsafe { result::event::record(event.0, self.0) })
    }

    pub(super) fn zero(&self, address: u64, bytes: u64) -> Outcome<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range lies in a buffer of the rank (validated program, planned layout).
        checked("cuMemsetD8Async", unsafe { result::memset_d8_async(address, 0, bytes as usize, self.0) })
    }

    /// Queues a copy, perhaps from another device: addresses say where.
    pub(super) fn copy(&self, to: u64, from: u64, bytes: u64) -> Outcome<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie in buffers of ranks of this process (validated program, planned layout).
        let code = unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, self.0) };
        checked("cuMemcpyAsync", code.result())
    }

    /// Queues a copy from the host. The caller keeps `from` as it is until the stream has done it.
    pub(super) fn upload(&self, to: u64, from: &[u8]) -> Outcome<()> {
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the target lies in a buffer of the rank; the caller keeps the source.
        checked("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to, from, self.0) })
    }

    /// Queues a copy to the host. The caller keeps `to` alive and does not look at it until the stream has done it.
    pub(super) fn download(&self, to: &mut [u8], from: u64) -> Outcome<()> {
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the source lies in a buffer of the rank; the caller keeps the target.
        checked("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(to, from, self.0) })
    }

    /// Queues a kernel; every parameter is 8 bytes (see `pcc_ir::gpu`).
    pub(super) fn launch(
        &self,
        function: Function<'_>,
        shape: &pcc_ir::gpu::Shape,
        params: &[u64],
    ) -> Outcome<()> {
        let mut pointers: Vec<*mut c_void> =
            params.iter().map(|p| std::ptr::from_ref(p).cast_mut().cast()).collect();
        let [x, y, z] = shape.grid;
        // SAFETY: the function's module lives; it takes these parameters, of 8 bytes each, which the driver copies before it returns; the addresses
        // among them lie in buffers of the rank, for all elements the kernel reaches (validated program).
        let done = unsafe {
            result::launch_kernel(
                function.handle,
                (x, y, z),
                (shape.threads, 1, 1),
                shape.shared,
                self.0,
                &mut pointers,
            )
        };
        checked("cuLaunchKernel", done)
    }

    /// Starts to record what is queued here, and on streams that wait for its events, instead of running it.
    pub(super) fn begin_capture(&self) -> Outcome<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        checked("cuStreamBeginCapture", unsafe { result::stream::begin_capture(self.0, mode) })
    }

    /// Ends the recording, as something that can be launched.
    pub(super) fn end_capture(&self) -> Outcome<Graph> {
        // SAFETY: the stream lives and records.
        let graph = checked("cuStreamEndCapture", unsafe { result::stream::end_capture(self.0) })?;
        // SAFETY: the graph was just made; the executable keeps what it needs, so that the graph can go.
        let made = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: made above, destroyed once.
        let _ = unsafe { result::graph::destroy(graph) };
        checked("cuGraphInstantiate", made).map(Graph)
    }

    pub(super) fn launch_graph(&self, graph: &Graph) -> Outcome<()> {
        // SAFETY: both live.
        checked("cuGraphLaunch", unsafe { result::graph::launch(graph.0, self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once; the driver finishes its work first.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// A point in a stream.
pub(super) struct Event(sys::CUevent);

// SAFETY: events may be used by any thread of the process.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Without a time. The context must be current.
    pub(super) fn new() -> Outcome<Self> {
        let made = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        checked("cuEventCreate", made).map(Self)
    }

    /// Whether it has come to pass.
    pub(super) fn is_done(&self) -> Outcome<bool> {
        // SAFETY: the event lives until drop.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(Failure { call: "cuEventQuery", code }),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once; the driver keeps what waiting streams need.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Two points in a stream, and the time between them.
pub(super) struct Timer([Event; 2]);

impl Timer {
    /// Starts behind what the stream has been given so far.
    pub(super) fn start(stream: &Stream) -> Outcome<Self> {
        let timed = || {
            let made = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
            checked("cuEventCreate", made).map(Event)
        };
        let timer = Self([timed()?, timed()?]);
        stream.record(&timer.0[0])?;
        Ok(timer)
    }

    /// Seconds until all that the stream has been given is done; `settle` waits for the stream.
    pub(super) fn stop<E>(
        self,
        stream: &Stream,
        settle: &dyn Fn() -> Result<(), E>,
    ) -> Result<Outcome<f64>, E> {
        if let Err(failure) = stream.record(&self.0[1]) {
            return Ok(Err(failure));
        }
        settle()?;
        // SAFETY: both events live and have come to pass.
        let elapsed = unsafe { result::event::elapsed(self.0[0].0, self.0[1].0) };
        Ok(checked("cuEventElapsedTime", elapsed).map(|milliseconds| f64::from(milliseconds) / 1e3))
    }
}

/// Recorded work.
pub(super) struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `end_capture`, destroyed once. After a failure a launch of it may be under way: the driver then frees it when that ends
        // (driver API, cuGraphExecDestroy).
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// Loaded PTX, in one context.
pub(super) struct Module(sys::CUmodule);

// SAFETY: a module may be used by any thread whose current context is the module's.
unsafe impl Send for Module {}
// SAFETY: as above; the driver orders calls of several threads.
unsafe impl Sync for Module {}

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(super) struct Function<'m> {
    handle: sys::CUfunction,
    module: PhantomData<&'m Module>,
}

/// What became of PTX that cannot be loaded: the failure, and what the driver's compiler wrote.
pub(super) struct Refused {
    pub(super) failure: Failure,
    pub(super) log: String,
}

/// Most bytes kept of what the driver's compiler writes.
const LOG: usize = 4096;

impl Module {
    /// Compiles PTX for the current context.
    pub(super) fn load(ptx: &str) -> Result<Self, Refused> {
        let refused = |code, log| Refused { failure: Failure { call: "cuModuleLoadDataEx", code }, log };
        let Ok(text) = CString::new(ptx) else {
            return Err(refused(sys::CUresult::CUDA_ERROR_INVALID_PTX, "the PTX has a zero byte".to_owned()));
        };
        let mut log = vec![0u8; LOG];
        let (mut module, mut options) = (
            std::ptr::null_mut(),
            [
                sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
                sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            ],
        );
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG as *mut c_void];
        // SAFETY: the text ends with a zero, and the log and its size live for the call.
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == sys::CUresult::CUDA_SUCCESS {
            return Ok(Self(module));
        }
        let said = CStr::from_bytes_until_nul(&log).map(|s| s.to_string_lossy().trim().to_owned());
        Err(refused(code, said.unwrap_or_default()))
    }

    /// The kernel of this name, which may use `shared` bytes of dynamic shared memory.
    pub(super) fn function(&self, name: &str, shared: u32) -> Outcome<Function<'_>> {
        let Ok(text) = CString::new(name) else {
            return Err(Failure { call: "cuModuleGetFunction", code: sys::CUresult::CUDA_ERROR_NOT_FOUND });
        };
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_function(self.0, text) };
        let handle = checked("cuModuleGetFunction", found)?;
        if shared > pcc_ir::gpu::SHARED_BYTES {
            use sys::CUfunction_attribute_enum as A;
            let a = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is one of a loaded module.
            let set = unsafe { result::function::set_function_attribute(handle, a, shared as i32) };
            checked("cuFuncSetAttribute", set)?;
        }
        Ok(Function { handle, module: PhantomData })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded once; functions borrow it.
        let _ = unsafe { result::module::unload(self.0) };
    }
}
