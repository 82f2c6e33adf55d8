//! Kernels from PTX text.

use crate::machine::{code, device, isolated, last_fault, seeded};
use cudarc::driver::sys::{
    CUfunction_attribute_enum, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use std::ffi::{CString, c_void};

/// `c[i] = a[i] + b[i]` for `i < n`, of f32; and a kernel that writes where the launch says, whatever that is.
const PTX: &str = r"
.version 7.0
.target sm_80
.address_size 64

.visible .entry add(
    .param .u64 add_param_0,
    .param .u64 add_param_1,
    .param .u64 add_param_2,
    .param .u64 add_param_3
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<12>;
    ld.param.u64 %rd1, [add_param_0];
    ld.param.u64 %rd2, [add_param_1];
    ld.param.u64 %rd3, [add_param_2];
    ld.param.u64 %rd4, [add_param_3];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd5, %r4;
    setp.ge.u64 %p1, %rd5, %rd4;
    @%p1 bra $L__end;
    shl.b64 %rd6, %rd5, 2;
    add.s64 %rd7, %rd1, %rd6;
    add.s64 %rd8, %rd2, %rd6;
    add.s64 %rd9, %rd3, %rd6;
    ld.global.f32 %f1, [%rd7];
    ld.global.f32 %f2, [%rd8];
    add.rn.f32 %f3, %f1, %f2;
    st.global.f32 [%rd9], %f3;
$L__end:
    ret;
}

.visible .entry store(
    .param .u64 store_param_0
)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [store_param_0];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// Loads a kernel of a PTX text.
fn kernel(context: &CudaContext, ptx: &str, name: &str) -> Result<sys::CUfunction, DriverError> {
    context.bind_to_thread()?;
    let ptx = CString::new(ptx).unwrap();
    // SAFETY: the text ends in a zero byte; the module stays loaded to the end of the process.
    unsafe {
        let module = result::module::load_data(ptx.as_ptr().cast())?;
        result::module::get_function(module, CString::new(name).unwrap())
    }
}

/// Launches a kernel whose parameters are all 8 bytes.
fn launch(
    function: sys::CUfunction,
    grid: u32,
    block: u32,
    stream: &CudaStream,
    params: &[u64],
) -> Result<(), DriverError> {
    let mut pointers: Vec<*mut c_void> =
        params.iter().map(|p| std::ptr::from_ref(p) as *mut c_void).collect();
    stream.context().bind_to_thread()?;
    // SAFETY: the pointers lead to the parameters, which the driver reads before it returns.
    unsafe {
        result::launch_kernel(function, (grid, 1, 1), (block, 1, 1), 0, stream.cu_stream(), &mut pointers)
    }
}

fn at(slice: &CudaSlice<f32>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

/// `i / 4 + salt`: exact, and so are the sums of a few.
fn values(n: usize, salt: f32) -> Vec<f32> {
    (0..n).map(|i| i as f32 / 4.0 + salt).collect()
}

#[test]
fn a_kernel_adds() {
    seeded("kernels::a_kernel_adds", || {
        let (context, stream) = device(0);
        let add = kernel(&context, PTX, "add").unwrap();
        // Neither a multiple of the block nor of a warp.
        const N: usize = 1003;
        let a = stream.clone_htod(&values(N, 1.0)).unwrap();
        let b = stream.clone_htod(&values(N, 100.0)).unwrap();
        let c = stream.alloc_zeros::<f32>(N + 1).unwrap();
        launch(add, 8, 128, &stream, &[at(&a), at(&b), at(&c), N as u64]).unwrap();
        let found = stream.clone_dtoh(&c).unwrap();
        let expected: Vec<f32> = (0..N).map(|i| i as f32 / 2.0 + 101.0).collect();
        assert_eq!((&found[..N], found[N]), (&expected[..], 0.0));
    });
}

#[test]
fn what_is_not_there_or_does_not_fit_is_refused() {
    isolated("kernels::what_is_not_there_or_does_not_fit_is_refused", &[], || {
        let (context, stream) = device(0);
        let missing = code(kernel(&context, PTX, "subtract"));
        assert_eq!(missing, CUresult::CUDA_ERROR_NOT_FOUND);
        assert!(last_fault().contains("subtract") && last_fault().contains("add, store"), "{}", last_fault());
        let unknown = PTX.replace("add.rn.f32", "frobnicate.f32");
        assert_eq!(code(kernel(&context, &unknown, "add")), CUresult::CUDA_ERROR_INVALID_PTX);
        assert!(last_fault().contains("frobnicate"), "{}", last_fault());
        let newer = PTX.replace("sm_80", "sm_100a").replace(".version 7.0", ".version 8.6");
        assert_eq!(code(kernel(&context, &newer, "add")), CUresult::CUDA_ERROR_INVALID_PTX);
        assert!(last_fault().contains("sm_100a") && last_fault().contains("9.0"), "{}", last_fault());
        assert_eq!(code(kernel(&context, "\u{7f}ELF", "add")), CUresult::CUDA_ERROR_INVALID_IMAGE);
        let add = kernel(&context, PTX, "add").unwrap();
        let big = launch(add, 1, 2048, &stream, &[0; 4]);
        assert_eq!(code(big), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(last_fault().contains("2048 x 1 x 1 threads"), "{}", last_fault());
        let dynamic = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function's attribute has no demands.
        unsafe {
            result::function::set_function_attribute(add, dynamic, 227 << 10).unwrap();
            let more = result::function::set_function_attribute(add, dynamic, 228 << 10);
            assert_eq!(code(more), CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // A stream of another device.
        let (_other, foreign) = device(1);
        let elsewhere = launch(add, 1, 32, &foreign, &[0; 4]);
        assert_eq!(code(elsewhere), CUresult::CUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn a_fault_of_a_kernel_stays() {
    seeded("kernels::a_fault_of_a_kernel_stays", || {
        let (context, stream) = device(0);
        let store = kernel(&context, PTX, "store").unwrap();
        let data = stream.alloc_zeros::<f32>(16).unwrap();
        stream.synchronize().unwrap();
        launch(store, 1, 1, &stream, &[at(&data) + 64]).unwrap();
        assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let message = last_fault();
        assert!(
            message.contains("kernel store") && message.contains("offset 64 of the 64 bytes"),
            "{message}"
        );
        for _ in 0..2 {
            assert_eq!(code(stream.clone_dtoh(&data)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
            let again = launch(store, 1, 1, &stream, &[at(&data)]);
            assert_eq!(code(again), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        }
        assert_eq!(last_fault(), message);
        // Another device's memory is no better.
        let (other, there) = device(1);
        let far = there.alloc_zeros::<f32>(16).unwrap();
        there.synchronize().unwrap();
        let (_third, stream) = device(2);
        let store = kernel(stream.context(), PTX, "store").unwrap();
        launch(store, 1, 1, &stream, &[at(&far)]).unwrap();
        assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(last_fault().contains("device 1"), "{}", last_fault());
        other.synchronize().unwrap();
    });
}

/// One stream adds, another adds to the result; with an event between, or without.
fn chain(with_event: bool) -> Result<Vec<f32>, DriverError> {
    let (context, first) = device(0);
    let second = context.new_stream()?;
    let add = kernel(&context, PTX, "add")?;
    let [a, b, c, d] = [1.0, 2.0, 0.0, 0.0].map(|salt| first.clone_htod(&values(256, salt)).unwrap());
    first.synchronize()?;
    launch(add, 2, 128, &first, &[at(&a), at(&b), at(&c), 256])?;
    if with_event {
        second.join(&first)?;
    }
    launch(add, 2, 128, &second, &[at(&c), at(&b), at(&d), 256])?;
    let found = second.clone_dtoh(&d)?;
    context.synchronize()?;
    Ok(found)
}

#[test]
fn kernels_of_two_streams_are_ordered_by_an_event() {
    seeded("kernels::kernels_of_two_streams_are_ordered_by_an_event", || {
        let expected: Vec<f32> = (0..256).map(|i| i as f32 * 0.75 + 5.0).collect();
        for _ in 0..10 {
            assert_eq!(chain(true).unwrap(), expected);
        }
    });
}

#[test]
fn kernels_that_no_event_orders_are_found() {
    seeded("kernels::kernels_that_no_event_orders_are_found", || {
        assert_eq!(code(chain(false)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(last_fault().contains("race: kernel add"), "{}", last_fault());
    });
}

#[test]
fn kernels_are_launched_with_their_graph() {
    seeded("kernels::kernels_are_launched_with_their_graph", || {
        let (context, stream) = device(0);
        let add = kernel(&context, PTX, "add").unwrap();
        let one = stream.clone_htod(&[1f32; 100]).unwrap();
        let sum = stream.alloc_zeros::<f32>(100).unwrap();
        stream.synchronize().unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        for _ in 0..3 {
            launch(add, 1, 128, &stream, &[at(&one), at(&sum), at(&sum), 100]).unwrap();
        }
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        for launches in 1..=5 {
            graph.launch().unwrap();
            assert_eq!(stream.clone_dtoh(&sum).unwrap(), [3.0 * launches as f32; 100]);
        }
    });
}

#[test]
fn kernels_that_touch_different_bytes_need_no_event() {
    seeded("kernels::kernels_that_touch_different_bytes_need_no_event", || {
        let (context, first) = device(0);
        let second = context.new_stream().unwrap();
        let add = kernel(&context, PTX, "add").unwrap();
        let one = first.clone_htod(&[1f32; 99]).unwrap();
        let all = first.clone_htod(&values(198, 0.0)).unwrap();
        first.synchronize().unwrap();
        for _ in 0..5 {
            // Both read `one`; each adds it to its own part, and the parts touch.
            launch(add, 1, 128, &first, &[at(&one), at(&all), at(&all), 99]).unwrap();
            launch(add, 1, 128, &second, &[at(&one), at(&all) + 396, at(&all) + 396, 99]).unwrap();
        }
        context.synchronize().unwrap();
        let expected = values(198, 5.0);
        assert_eq!(first.clone_dtoh(&all).unwrap(), expected);
        // One more element is in the other's part.
        launch(add, 1, 128, &first, &[at(&one), at(&all), at(&all), 99]).unwrap();
        launch(add, 1, 128, &second, &[at(&one), at(&all) + 392, at(&all) + 392, 99]).unwrap();
        assert_eq!(code(context.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(last_fault().contains("race: kernel add"), "{}", last_fault());
    });
}
