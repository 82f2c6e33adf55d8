//! Memory, copies, streams and events.

use crate::machine::{code, device, isolated, last_fault, seeded};
use cudarc::driver::sys::{CUdevice_attribute, CUevent_flags, CUresult};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, result, sys};

/// Values that differ everywhere.
fn values(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ salt).collect()
}

#[test]
fn the_machine_is_as_the_environment_says() {
    let environment =
        [("PCC_SIM_DEVICES", "3"), ("PCC_SIM_MEMORY", "1048576"), ("PCC_SIM_CAPABILITY", "8.0")];
    isolated("streams::the_machine_is_as_the_environment_says", &environment, || {
        // SAFETY: looking for a library has no demands.
        assert!(unsafe { sys::is_culib_present() && cudarc::nccl::sys::is_culib_present() });
        assert_eq!(CudaContext::device_count().unwrap(), 3);
        let context = CudaContext::new(2).unwrap();
        assert_eq!(context.compute_capability().unwrap(), (8, 0));
        assert_eq!(context.total_mem().unwrap(), 1 << 20);
        assert_eq!(context.mem_get_info().unwrap(), (1 << 20, 1 << 20));
        let optin = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        assert_eq!(context.attribute(optin).unwrap(), 163 * 1024);
        assert!(context.name().unwrap().contains("sm_80"));
        assert_eq!(code(CudaContext::new(3)), CUresult::CUDA_ERROR_INVALID_DEVICE);
        let stream = context.new_stream().unwrap();
        let half: CudaSlice<u8> = stream.alloc_zeros(1 << 19).unwrap();
        assert_eq!(context.mem_get_info().unwrap(), (1 << 19, 1 << 20));
        let more = stream.alloc_zeros::<u8>((1 << 19) + 1);
        assert_eq!(code(more), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(last_fault().contains("524288 in use; 524289 more"), "{}", last_fault());
        // A free that waits in the stream is run when its memory is needed.
        drop(half);
        stream.alloc_zeros::<u8>(1 << 20).unwrap();
    });
}

#[test]
fn copies_arrive_in_every_order() {
    seeded("streams::copies_arrive_in_every_order", || {
        let context = CudaContext::new(0).unwrap();
        let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let data = values(1000, 1);
        let a = first.clone_htod(&data).unwrap();
        // cudarc's own events order the streams.
        let mut b = second.alloc_zeros::<u32>(1000).unwrap();
        second.memcpy_dtod(&a.slice(10..), &mut b.slice_mut(..990)).unwrap();
        let c = first.clone_dtod(&b).unwrap();
        let found = first.clone_dtoh(&c).unwrap();
        assert_eq!(found[..990], data[10..]);
        assert_eq!(found[990..], [0; 10]);
        context.synchronize().unwrap();
    });
}

#[test]
fn page_locked_memory_is_read_when_the_copy_runs() {
    seeded("streams::page_locked_memory_is_read_when_the_copy_runs", || {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: all of it is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned::<u32>(256) }.unwrap();
        let mut on_device = stream.alloc_zeros::<u32>(256).unwrap();
        for round in 0..4 {
            pinned.as_mut_slice().unwrap().copy_from_slice(&values(256, round));
            stream.memcpy_htod(&pinned, &mut on_device).unwrap();
            pinned.as_mut_slice().unwrap().fill(0);
            stream.memcpy_dtoh(&on_device, &mut pinned).unwrap();
            assert_eq!(pinned.as_slice().unwrap(), values(256, round));
        }
    });
}

/// Two streams: one writes, after much else; the other reads. Answers what it read.
fn read_across(with_event: bool) -> Result<Vec<u8>, cudarc::driver::DriverError> {
    let (context, writer) = device(0);
    let reader = context.new_stream()?;
    let mut shared = writer.alloc_zeros::<u8>(64)?;
    let mut copy = reader.alloc_zeros::<u8>(64)?;
    writer.synchronize()?;
    reader.synchronize()?;
    let pointer = shared.device_ptr(&writer).0;
    // SAFETY: the range is the slice's.
    unsafe { result::memset_d8_async(pointer, 7, 64, writer.cu_stream()) }?;
    if with_event {
        reader.join(&writer)?;
    }
    reader.memcpy_dtod(&shared, &mut copy)?;
    let found = reader.clone_dtoh(&copy)?;
    writer.synchronize()?;
    writer.memset_zeros(&mut shared)?;
    context.synchronize()?;
    Ok(found)
}

#[test]
fn an_event_orders_streams() {
    seeded("streams::an_event_orders_streams", || {
        for _ in 0..20 {
            assert_eq!(read_across(true).unwrap(), [7; 64]);
        }
    });
}

#[test]
fn a_missing_event_is_found() {
    seeded("streams::a_missing_event_is_found", || {
        let error = code(read_across(false));
        assert_eq!(error, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let message = last_fault();
        assert!(message.contains("race") && message.contains("64 bytes"), "{message}");
    });
}

#[test]
fn a_missing_event_shows_in_values_too() {
    let environment = [("PCC_SIM_RACES", "off"), ("PCC_SIM_SEED", "5")];
    isolated("streams::a_missing_event_shows_in_values_too", &environment, || {
        let found: Vec<Vec<u8>> = (0..20).map(|_| read_across(false).unwrap()).collect();
        let (early, late) = (found.iter().any(|f| f == &[0; 64]), found.iter().any(|f| f == &[7; 64]));
        assert!(early && late, "{found:?}");
    });
}

#[test]
fn wrong_handles_and_ranges_are_refused() {
    isolated("streams::wrong_handles_and_ranges_are_refused", &[], || {
        let (context, stream) = device(0);
        let (other, foreign) = device(1);
        let data = stream.alloc_zeros::<u8>(100).unwrap();
        stream.synchronize().unwrap();
        let (pointer, _guard) = data.device_ptr(&stream);
        let mut host = [0u8; 101];
        // SAFETY: what is wrong here is refused before it is used.
        unsafe {
            let bad = result::memcpy_dtoh_sync(&mut host, pointer);
            assert_eq!(code(bad), CUresult::CUDA_ERROR_INVALID_VALUE);
            assert!(last_fault().contains("100 bytes"), "{}", last_fault());
            let bad = sys::cuStreamSynchronize(0x1234 as sys::CUstream);
            assert_eq!(bad, CUresult::CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(sys::cuMemAlloc_v2(std::ptr::null_mut(), 8), CUresult::CUDA_ERROR_INVALID_VALUE);
            // A stream as an event, and an event after its end.
            let wrong_kind = sys::cuEventSynchronize(stream.cu_stream().cast());
            assert_eq!(wrong_kind, CUresult::CUDA_ERROR_INVALID_HANDLE);
            let event = result::event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap();
            result::event::destroy(event).unwrap();
            assert_eq!(code(result::event::synchronize(event)), CUresult::CUDA_ERROR_INVALID_HANDLE);
            // An event of one context in a stream of another; freeing twice.
            context.bind_to_thread().unwrap();
            let event = result::event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap();
            let bad = result::event::record(event, foreign.cu_stream());
            assert_eq!(code(bad), CUresult::CUDA_ERROR_INVALID_HANDLE);
            let memory = result::malloc_sync(16).unwrap();
            result::free_sync(memory).unwrap();
            assert_eq!(code(result::free_sync(memory)), CUresult::CUDA_ERROR_INVALID_VALUE);
            // No context at all.
            sys::cuCtxSetCurrent(std::ptr::null_mut()).result().unwrap();
            assert_eq!(code(result::malloc_sync(16)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        other.bind_to_thread().unwrap();
        assert_eq!(format!("{:?}", sys::CUresult::CUDA_ERROR_NOT_READY.result().unwrap_err()), {
            r#"DriverError(CUDA_ERROR_NOT_READY, "device not ready")"#
        });
    });
}

#[test]
fn a_fault_stays() {
    isolated("streams::a_fault_stays", &[], || {
        let (context, stream) = device(0);
        // SAFETY: nobody reads it but the simulator, which finds that nobody wrote it.
        let unwritten = unsafe { stream.alloc::<u8>(32) }.unwrap();
        let read = stream.clone_dtoh(&unwritten).map(drop);
        assert_eq!(code(read), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(last_fault().contains("never written"), "{}", last_fault());
        assert_eq!(code(stream.alloc_zeros::<u8>(8).map(drop)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(code(context.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        // Other devices go on.
        let (_, other) = device(1);
        assert_eq!(other.clone_dtoh(&other.clone_htod(&[1u8, 2]).unwrap()).unwrap(), [1, 2]);
    });
}

#[test]
fn copies_between_devices_and_queries_end() {
    seeded("streams::copies_between_devices_and_queries_end", || {
        let (_first, a) = device(0);
        let (_second, b) = device(1);
        let data = values(100, 3);
        let here = a.clone_htod(&data).unwrap();
        let mut there = b.alloc_zeros::<u32>(100).unwrap();
        b.memcpy_dtod(&here, &mut there).unwrap();
        let event = b.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
        let mut asked = 0;
        while !event.try_is_complete().unwrap() {
            asked += 1;
            assert!(asked < 100);
        }
        assert_eq!(b.clone_dtoh(&there).unwrap(), data);
        let later = b.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
        assert!(event.elapsed_ms(&later).unwrap() >= 0.0);
    });
}

extern "C" fn double(value: *mut std::ffi::c_void) {
    // SAFETY: the test passes page-locked memory of a u32, which only the stream's work uses meanwhile.
    unsafe { *value.cast::<u32>() *= 2 };
    // A function of a stream may not call the driver.
    assert_eq!(code(CudaContext::device_count()), CUresult::CUDA_ERROR_NOT_PERMITTED);
}

#[test]
fn functions_of_the_host_run_in_their_place() {
    seeded("streams::functions_of_the_host_run_in_their_place", || {
        let (context, stream) = device(0);
        // SAFETY: written before it is read; the pointer is used while the memory is there.
        unsafe {
            let mut value = context.alloc_pinned::<u32>(1).unwrap();
            let on_device = stream.clone_htod(&[21u32]).unwrap();
            stream.memcpy_dtoh(&on_device, &mut value).unwrap();
            let pointer = value.as_mut_ptr().unwrap().cast();
            for _ in 0..3 {
                result::stream::launch_host_function(stream.cu_stream(), double, pointer).unwrap();
            }
            stream.synchronize().unwrap();
            assert_eq!(value.as_slice().unwrap(), [168]);
        }
    });
}

#[test]
fn page_locked_memory_stays_while_a_copy_needs_it() {
    isolated("streams::page_locked_memory_stays_while_a_copy_needs_it", &[("PCC_SIM_SEED", "2")], || {
        let (context, stream) = device(0);
        let data = stream.clone_htod(&[1u8; 64]).unwrap();
        let mut freed_early = 0;
        for _ in 0..2 {
            // SAFETY: the memory is freed before the copy is known to be done, which the simulator finds before it would be used.
            unsafe {
                let host = result::malloc_host(64, 0).unwrap();
                let slice = std::slice::from_raw_parts_mut(host.cast::<u8>(), 64);
                result::memcpy_dtoh_async(slice, data.device_ptr(&stream).0, stream.cu_stream()).unwrap();
                let freed = result::free_host(host);
                freed_early += u32::from(code(freed) == CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            }
            if freed_early > 0 {
                assert!(last_fault().contains("still uses it: copy of 64 bytes"), "{}", last_fault());
                assert_eq!(code(context.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
                return;
            }
        }
        panic!("both copies were run at once");
    });
}

#[test]
fn the_host_may_not_touch_what_a_copy_waits_for() {
    seeded("streams::the_host_may_not_touch_what_a_copy_waits_for", || {
        let (context, stream) = device(0);
        let data = stream.clone_htod(&[3u8; 64]).unwrap();
        stream.synchronize().unwrap();
        let on_device = data.device_ptr(&stream).0;
        // SAFETY: the memory stays to the end of the process; that it is touched too early is what the simulator finds.
        let early = unsafe {
            let target = std::slice::from_raw_parts_mut(result::malloc_host(64, 0).unwrap().cast::<u8>(), 64);
            target.fill(1);
            result::memcpy_dtoh_async(target, on_device, stream.cu_stream()).unwrap();
            let early = target.to_vec();
            stream.synchronize().unwrap();
            assert_eq!(target, [3; 64]);
            early
        };
        // Never what was there before, which might look right.
        assert!(early == [3; 64] || early == [0xa5; 64], "{early:?}");
        let mut failed = false;
        for round in 0..20 {
            // SAFETY: as above.
            let source = unsafe {
                std::slice::from_raw_parts_mut(result::malloc_host(64, 0).unwrap().cast::<u8>(), 64)
            };
            source.fill(round);
            // SAFETY: as above.
            unsafe { result::memcpy_htod_async(on_device, source, stream.cu_stream()) }.unwrap();
            source.fill(100);
            failed = stream.synchronize().is_err();
            if failed {
                break;
            }
            // It was run at once, then.
            assert_eq!(stream.clone_dtoh(&data).unwrap(), [round; 64]);
        }
        assert!(failed && last_fault().contains("the host changed"), "{}", last_fault());
        assert_eq!(code(context.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    });
}
