//! Streams captured into graphs.

use crate::machine::{code, device, isolated, last_fault, seeded};
use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, DevicePtr, result};

const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Whether the streams of a capture are joined by events.
#[derive(Clone, Copy, PartialEq)]
enum Joins {
    All,
    NoFork,
    NoJoin,
}

/// Captures on two streams: sets `a`, then copies it to `b` on the other stream, then `b` to `c` on the first. Launches it twice, and answers
/// `c` each time; `a` is set to something else in between.
fn capture(joins: Joins) -> Result<[Vec<u8>; 2], cudarc::driver::DriverError> {
    let (context, first) = device(0);
    let second = context.new_stream()?;
    let [mut a, mut b, mut c]: [CudaSlice<u8>; 3] = [0; 3].map(|_| first.alloc_zeros(1 << 12).unwrap());
    first.synchronize()?;
    first.begin_capture(MODE)?;
    let pointer = a.device_ptr(&first).0;
    // SAFETY: the range is the slice's.
    unsafe { result::memset_d8_async(pointer, 9, 1 << 12, first.cu_stream()) }?;
    if joins != Joins::NoFork {
        second.join(&first)?;
    }
    second.memcpy_dtod(&a, &mut b)?;
    if joins == Joins::All {
        first.join(&second)?;
    }
    first.memcpy_dtod(&b, &mut c)?;
    let graph = first.end_capture(Flags(0))?.unwrap();
    let mut found = [Vec::new(), Vec::new()];
    for found in &mut found {
        first.memset_zeros(&mut a)?;
        first.memset_zeros(&mut b)?;
        graph.launch()?;
        *found = first.clone_dtoh(&c)?;
    }
    context.synchronize()?;
    Ok(found)
}

#[test]
fn a_captured_fork_and_join_is_launched_again_and_again() {
    seeded("graphs::a_captured_fork_and_join_is_launched_again_and_again", || {
        for _ in 0..10 {
            assert!(capture(Joins::All).unwrap().iter().all(|c| c == &[9; 1 << 12]));
        }
    });
}

#[test]
fn work_that_the_first_stream_never_waits_for_is_refused() {
    isolated("graphs::work_that_the_first_stream_never_waits_for_is_refused", &[], || {
        let error = code(capture(Joins::NoJoin));
        assert_eq!(error, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        assert!(last_fault().contains("copy of 4096 bytes"), "{}", last_fault());
    });
}

#[test]
fn a_fork_without_an_event_depends_on_the_outside() {
    isolated("graphs::a_fork_without_an_event_depends_on_the_outside", &[], || {
        // The second stream is not captured then: its copy is no part of the graph, and nothing orders them.
        assert_eq!(code(capture(Joins::NoFork)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(last_fault().contains("race"), "{}", last_fault());
        let (context, first) = device(1);
        let second = context.new_stream().unwrap();
        let event = second.record_event(None).unwrap();
        first.begin_capture(MODE).unwrap();
        assert_eq!(code(first.wait(&event)), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        let ended = first.end_capture(Flags(0)).map(|_| ());
        assert_eq!(code(ended), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    });
}

#[test]
fn what_waits_is_refused_in_a_capture() {
    isolated("graphs::what_waits_is_refused_in_a_capture", &[], || {
        let (_context, stream) = device(0);
        let data = stream.alloc_zeros::<u8>(8).unwrap();
        stream.synchronize().unwrap();
        stream.begin_capture(MODE).unwrap();
        assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        let ended = stream.end_capture(Flags(0)).map(|_| ());
        assert_eq!(code(ended), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        stream.begin_capture(MODE).unwrap();
        let read = stream.clone_dtoh(&data).map(|_| ());
        assert_eq!(code(read), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert!(stream.end_capture(Flags(0)).is_err());
        // Nothing of it stays.
        stream.begin_capture(MODE).unwrap();
        let graph = stream.end_capture(Flags(0)).unwrap().unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&data).unwrap(), [0; 8]);
    });
}
