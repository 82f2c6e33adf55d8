//! Collectives of several ranks, each a thread with a device.

use crate::machine::{code, device, isolated, last_fault, seeded};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use cudarc::nccl::sys::ncclDataType_t::ncclFloat32;
use cudarc::nccl::sys::{
    ncclAllReduce, ncclComm_t, ncclCommAbort, ncclCommDestroy, ncclCommFinalize, ncclCommGetAsyncError,
    ncclCommInitRankConfig, ncclConfig_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use cudarc::nccl::{Comm, Id, ReduceOp, result as nccl};
use std::sync::Arc;

/// Runs ranks as threads, and answers what each does.
fn ranks<T: Send>(
    n: usize,
    body: impl Fn(usize, Arc<CudaContext>, Arc<CudaStream>, Comm) -> T + Sync,
) -> Vec<T> {
    let id = Id::new().unwrap();
    std::thread::scope(|scope| {
        let start = |rank| {
            let body = &body;
            let run = move || {
                let (context, stream) = device(rank);
                let comm = Comm::from_rank(stream.clone(), rank, n, id).unwrap();
                body(rank, context, stream, comm)
            };
            std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run).unwrap()
        };
        let threads: Vec<_> = (0..n).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// What a rank has: small whole numbers, so that sums are exact in any order.
fn values(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((rank + 1) * (i % 13 + 1)) as f32).collect()
}

#[test]
fn collectives_are_what_they_say() {
    seeded("comms::collectives_are_what_they_say", || {
        const N: usize = 60;
        // The sum of rank + 1 over four ranks is 10, so that their values' is ten times rank 0's.
        let sum: Vec<f32> = values(0, N).iter().map(|x| x * 10.0).collect();
        let sum = &sum;
        ranks(4, |rank, _context, stream, comm| {
            assert_eq!((comm.rank(), comm.world_size()), (rank, 4));
            let mine = stream.clone_htod(&values(rank, N)).unwrap();
            let mut whole = stream.alloc_zeros::<f32>(N).unwrap();
            comm.all_reduce(&mine, &mut whole, &ReduceOp::Sum).unwrap();
            assert_eq!(&stream.clone_dtoh(&whole).unwrap(), sum);
            let mut largest = stream.alloc_zeros::<f32>(N).unwrap();
            comm.all_reduce(&mine, &mut largest, &ReduceOp::Max).unwrap();
            assert_eq!(stream.clone_dtoh(&largest).unwrap(), values(3, N));
            let mut all = stream.alloc_zeros::<f32>(4 * N).unwrap();
            comm.all_gather(&mine, &mut all).unwrap();
            let gathered: Vec<f32> = (0..4).flat_map(|r| values(r, N)).collect();
            assert_eq!(stream.clone_dtoh(&all).unwrap(), gathered);
            let mut part = stream.alloc_zeros::<f32>(N / 4).unwrap();
            comm.reduce_scatter(&mine, &mut part, &ReduceOp::Sum).unwrap();
            assert_eq!(stream.clone_dtoh(&part).unwrap(), sum[rank * N / 4..][..N / 4]);
            let mut root = stream.alloc_zeros::<f32>(N).unwrap();
            comm.broadcast(Some(&mine), &mut root, 2).unwrap();
            assert_eq!(stream.clone_dtoh(&root).unwrap(), values(2, N));
            let mut in_place = mine;
            comm.all_reduce_in_place(&mut in_place, &ReduceOp::Avg).unwrap();
            let mean: Vec<f32> = sum.iter().map(|x| x / 4.0).collect();
            assert_eq!(stream.clone_dtoh(&in_place).unwrap(), mean);
        });
    });
}

#[test]
fn ranks_send_round_in_a_group() {
    seeded("comms::ranks_send_round_in_a_group", || {
        ranks(3, |rank, _context, stream, comm| {
            let mine = stream.clone_htod(&values(rank, 20)).unwrap();
            let mut theirs = stream.alloc_zeros::<f32>(20).unwrap();
            nccl::group_start().unwrap();
            comm.send(&mine, ((rank + 1) % 3) as i32).unwrap();
            comm.recv(&mut theirs, ((rank + 2) % 3) as i32).unwrap();
            nccl::group_end().unwrap();
            assert_eq!(stream.clone_dtoh(&theirs).unwrap(), values((rank + 2) % 3, 20));
        });
    });
}

#[test]
fn all_to_all_is_a_group_and_not_in_place() {
    seeded("comms::all_to_all_is_a_group_and_not_in_place", || {
        const N: usize = 8;
        ranks(3, |rank, _context, stream, comm| {
            // Block `to` of rank `from` has the values of rank `3 from + to`.
            let block = |from: usize, to: usize| values(3 * from + to, N);
            let mine: Vec<f32> = (0..3).flat_map(|to| block(rank, to)).collect();
            let mine = stream.clone_htod(&mine).unwrap();
            let mut theirs = stream.alloc_zeros::<f32>(3 * N).unwrap();
            nccl::group_start().unwrap();
            for peer in 0..3 {
                let part = peer * N..(peer + 1) * N;
                comm.send(&mine.slice(part.clone()), peer as i32).unwrap();
                comm.recv(&mut theirs.slice_mut(part), peer as i32).unwrap();
            }
            nccl::group_end().unwrap();
            let expected: Vec<f32> = (0..3).flat_map(|from| block(from, rank)).collect();
            assert_eq!(stream.clone_dtoh(&theirs).unwrap(), expected);
            nccl::group_start().unwrap();
            comm.send(&theirs.slice(..N), 0).unwrap();
            comm.recv(&mut theirs.slice_mut(N / 2..N), 0).unwrap();
            assert!(nccl::group_end().is_err());
            assert!(last_fault().contains("in one group call"), "{}", last_fault());
        });
    });
}

#[test]
fn one_thread_may_have_all_ranks() {
    seeded("comms::one_thread_may_have_all_ranks", || {
        let devices: Vec<_> = (0..4).map(device).collect();
        let streams: Vec<_> = devices.iter().map(|(_, stream)| stream.clone()).collect();
        let comms = Comm::from_devices(streams.clone()).unwrap();
        let mut data: Vec<_> = (0..4).map(|r| streams[r].clone_htod(&values(r, 8)).unwrap()).collect();
        nccl::group_start().unwrap();
        for (comm, data) in comms.iter().zip(&mut data) {
            comm.all_reduce_in_place(data, &ReduceOp::Sum).unwrap();
        }
        nccl::group_end().unwrap();
        for (stream, data) in streams.iter().zip(&data) {
            let sum: Vec<f32> = values(0, 8).iter().map(|x| x * 10.0).collect();
            assert_eq!(stream.clone_dtoh(data).unwrap(), sum);
        }
    });
}

#[test]
fn counts_that_differ_end_all_ranks() {
    seeded("comms::counts_that_differ_end_all_ranks", || {
        let found = ranks(4, |rank, _context, stream, comm| {
            let mut data = stream.clone_htod(&values(rank, 64)).unwrap();
            let count = if rank == 2 { 63 } else { 64 };
            let posted = comm.all_reduce_in_place(&mut data.slice_mut(..count), &ReduceOp::Sum);
            let outcome = code(stream.synchronize());
            (posted.is_err() || outcome == CUresult::CUDA_ERROR_LAUNCH_FAILED, last_fault())
        });
        for (failed, message) in found {
            assert!(failed);
            assert!(message.contains("count 6") && message.contains("on rank 2"), "{message}");
            assert!(message.contains("64") && message.contains("63"), "{message}");
        }
    });
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let environment = [("PCC_SIM_TIMEOUT_MS", "300")];
    isolated("comms::a_rank_that_never_comes_is_named", &environment, || {
        let found = ranks(4, |rank, _context, stream, comm| {
            let mut data = stream.clone_htod(&values(rank, 64)).unwrap();
            if rank == 1 {
                // Its end would be an abort.
                std::mem::forget(comm);
                return None;
            }
            let posted = comm.all_reduce_in_place(&mut data, &ReduceOp::Sum);
            let outcome = code(stream.synchronize());
            Some((posted.is_err() || outcome == CUresult::CUDA_ERROR_LAUNCH_FAILED, last_fault()))
        });
        for (failed, message) in found.into_iter().flatten() {
            assert!(failed && message.contains("deadlock: nothing has happened for 300ms"), "{message}");
            assert!(message.contains("missing rank 1 (device 1"), "{message}");
            assert!(message.contains("`rank 1`: has ended"), "{message}");
        }
    });
}

#[test]
fn a_communicator_that_is_never_complete_times_out() {
    let environment = [("PCC_SIM_TIMEOUT_MS", "300")];
    isolated("comms::a_communicator_that_is_never_complete_times_out", &environment, || {
        let (_context, stream) = device(0);
        assert!(Comm::from_rank(stream, 0, 2, Id::new().unwrap()).is_err());
        assert!(last_fault().contains("missing rank 1 (never initialised)"), "{}", last_fault());
    });
}

#[test]
fn ranks_that_wait_for_each_other_are_found() {
    let name = "comms::ranks_that_wait_for_each_other_are_found";
    seeded(name, || {
        let found = ranks(2, |rank, _context, stream, comm| {
            let data = stream.clone_htod(&values(rank, 4)).unwrap();
            let mut other = stream.alloc_zeros::<f32>(4).unwrap();
            // Both send first.
            let sent = comm.send(&data, 1 - rank as i32).is_ok();
            let received = comm.recv(&mut other, 1 - rank as i32).is_ok();
            (sent && received && stream.synchronize().is_ok(), last_fault())
        });
        assert!(found.iter().all(|(fine, message)| !fine && message.contains("deadlock")), "{found:?}");
        assert!(found[0].1.contains("Send of 4 F32 to rank 1"), "{}", found[0].1);
    });
}

#[test]
fn a_rank_that_is_busy_elsewhere_times_out() {
    let environment = [("PCC_SIM_TIMEOUT_MS", "300")];
    isolated("comms::a_rank_that_is_busy_elsewhere_times_out", &environment, || {
        let found = ranks(2, |rank, _context, stream, comm| {
            let mut data = stream.clone_htod(&values(rank, 4)).unwrap();
            if rank == 1 {
                std::thread::sleep(std::time::Duration::from_secs(2));
                return String::new();
            }
            comm.all_reduce_in_place(&mut data, &ReduceOp::Sum).unwrap();
            assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
            last_fault()
        });
        assert!(found[0].contains("nothing has happened for 300ms"), "{}", found[0]);
        assert!(found[0].contains("`rank 1`: is busy elsewhere"), "{}", found[0]);
    });
}

#[test]
fn a_rank_that_aborts_ends_the_others() {
    seeded("comms::a_rank_that_aborts_ends_the_others", || {
        let found = ranks(3, |rank, _context, stream, comm| {
            let mut data = stream.clone_htod(&values(rank, 4)).unwrap();
            comm.all_reduce_in_place(&mut data, &ReduceOp::Sum).unwrap();
            stream.synchronize().unwrap();
            if rank == 2 {
                drop(comm);
                return None;
            }
            let posted = comm.all_reduce_in_place(&mut data, &ReduceOp::Sum);
            let fine = posted.is_ok() && stream.synchronize().is_ok();
            Some((fine, last_fault()))
        });
        for (fine, message) in found.into_iter().flatten() {
            assert!(!fine && message.contains("rank 2 of the communicator has aborted"), "{message}");
        }
    });
}

#[test]
fn a_fault_on_one_rank_ends_all() {
    seeded("comms::a_fault_on_one_rank_ends_all", || {
        let found = ranks(3, |rank, _context, stream, comm| {
            let mut data = stream.clone_htod(&values(rank, 4)).unwrap();
            if rank == 0 {
                // SAFETY: that nobody wrote it is what the simulator finds.
                let unwritten = unsafe { stream.alloc::<u8>(4) }.unwrap();
                assert!(stream.clone_dtoh(&unwritten).is_err());
                // Without a call more, and without an abort.
                std::mem::forget(comm);
                return (false, last_fault());
            }
            let posted = comm.all_reduce_in_place(&mut data, &ReduceOp::Sum);
            (posted.is_ok() && stream.synchronize().is_ok(), last_fault())
        });
        assert!(found.iter().all(|(fine, _)| !fine), "{found:?}");
        assert!(found[0].1.contains("never written"), "{}", found[0].1);
        for (_, message) in &found[1..] {
            assert!(message.contains("rank 0 of the communicator failed: device 0"), "{message}");
        }
    });
}

#[test]
fn wrong_buffers_and_devices_are_refused() {
    isolated("comms::wrong_buffers_and_devices_are_refused", &[], || {
        let (_context, stream) = device(0);
        let data = stream.clone_htod(&values(0, 16)).unwrap();
        let far = device(1).1.clone_htod(&values(1, 16)).unwrap();
        let pointer = |of: &cudarc::driver::CudaSlice<f32>| of.device_ptr(of.stream()).0;
        let (data, far) = (pointer(&data), pointer(&far));
        stream.context().bind_to_thread().unwrap();
        // SAFETY: the pointers are looked at by the simulator alone, which refuses what is wrong.
        let refused = unsafe {
            let mut raw = std::ptr::null_mut();
            nccl::comm_init_rank(&mut raw, 1, nccl::get_uniqueid().unwrap(), 0).unwrap();
            let stream = stream.cu_stream().cast();
            let gather = |send, recv, count| {
                let gathered = nccl::all_gather(send as _, recv as _, count, ncclFloat32, raw, stream);
                gathered.map(drop).map_err(|error| (error.0, last_fault()))
            };
            [
                gather(data, data + 32, 16),
                gather(data, far, 16),
                gather(data, data + 4, 8),
                gather(data, data, 16),
            ]
        };
        for (refused, why) in refused[..3].iter().zip(["receive buffer", "receive buffer", "overlap"]) {
            let (code, message) = refused.as_ref().unwrap_err();
            assert!(*code == ncclResult_t::ncclInvalidArgument && message.contains(why), "{message}");
        }
        assert!(refused[3].is_ok());
        // Two ranks on one device.
        let (_context, stream) = device(5);
        let id = Id::new().unwrap();
        std::thread::scope(|scope| {
            let other = stream.clone();
            let thread = scope.spawn(move || {
                other.context().bind_to_thread().unwrap();
                Comm::from_rank(other, 1, 2, id).is_err()
            });
            assert!(Comm::from_rank(stream.clone(), 0, 2, id).is_err());
            assert!(thread.join().unwrap());
        });
        assert!(last_fault().contains("duplicate GPU"), "{}", last_fault());
    });
}

#[test]
fn collectives_are_captured_into_graphs() {
    seeded("comms::collectives_are_captured_into_graphs", || {
        ranks(2, |rank, context, stream, comm| {
            let side = context.new_stream().unwrap();
            let mine = stream.clone_htod(&values(rank, 32)).unwrap();
            let mut sum = stream.clone_htod(&vec![0f32; 32]).unwrap();
            let mut copy = stream.clone_htod(&vec![0f32; 32]).unwrap();
            stream.synchronize().unwrap();
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            comm.all_reduce(&mine, &mut sum, &ReduceOp::Sum).unwrap();
            side.join(&stream).unwrap();
            side.memcpy_dtod(&sum, &mut copy).unwrap();
            stream.join(&side).unwrap();
            comm.all_reduce_in_place(&mut copy, &ReduceOp::Sum).unwrap();
            let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
            for _ in 0..3 {
                stream.memset_zeros(&mut sum).unwrap();
                graph.launch().unwrap();
                // (1 + 2) times rank 0's, and that twice.
                let six: Vec<f32> = values(0, 32).iter().map(|x| x * 6.0).collect();
                assert_eq!(stream.clone_dtoh(&copy).unwrap(), six);
            }
        });
    });
}

#[test]
fn a_collective_that_does_not_wait_for_its_input_is_found() {
    seeded("comms::a_collective_that_does_not_wait_for_its_input_is_found", || {
        let found = ranks(2, |rank, context, stream, comm| {
            let compute = context.new_stream().unwrap();
            let mut data = compute.clone_htod(&values(rank, 64)).unwrap();
            compute.synchronize().unwrap();
            compute.memset_zeros(&mut data).unwrap();
            // The communicator's stream never learns of that.
            let posted = comm.all_reduce_in_place(&mut data, &ReduceOp::Sum);
            let fine = posted.is_ok() && stream.synchronize().is_ok() && compute.synchronize().is_ok();
            (fine, last_fault())
        });
        assert!(found.iter().all(|(fine, _)| !fine), "{found:?}");
        assert!(found.iter().any(|(_, message)| message.contains("race")), "{found:?}");
    });
}

#[test]
fn communicators_in_different_orders_are_found() {
    seeded("comms::communicators_in_different_orders_are_found", || {
        let id = Id::new().unwrap();
        let found = ranks(2, |rank, context, stream, comm| {
            let other = context.new_stream().unwrap();
            let second = Comm::from_rank(other.clone(), rank, 2, id).unwrap();
            let mut a = stream.clone_htod(&values(rank, 4)).unwrap();
            let mut b = other.clone_htod(&values(rank, 4)).unwrap();
            // On streams of their own, so that here nobody waits for ever; a GPU may be too small for both.
            let mut first = || comm.all_reduce_in_place(&mut a, &ReduceOp::Sum).is_ok();
            let mut second = || second.all_reduce_in_place(&mut b, &ReduceOp::Sum).is_ok();
            let mut posts: [&mut dyn FnMut() -> bool; 2] = [&mut first, &mut second];
            posts.rotate_left(rank);
            let posted = posts.iter_mut().all(|post| post());
            (posted && stream.synchronize().is_ok() && other.synchronize().is_ok(), last_fault())
        });
        assert!(
            found.iter().any(|(fine, message)| !fine && message.contains("different orders")),
            "{found:?}"
        );
    });
}

#[test]
fn communicators_are_finalized_and_destroyed() {
    seeded("comms::communicators_are_finalized_and_destroyed", || {
        let id = nccl::get_uniqueid().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    let (_context, stream) = device(rank);
                    let data = stream.clone_htod(&values(rank, 8)).unwrap();
                    let pointer = data.device_ptr(&stream).0;
                    // SAFETY: handles and the pointer are valid where they are used; a destroyed communicator is refused.
                    unsafe {
                        let mut comm = std::ptr::null_mut();
                        nccl::comm_init_rank(&mut comm, 2, id, rank as i32).unwrap();
                        assert_eq!(nccl::comm_count(comm).unwrap(), 2);
                        assert_eq!(nccl::comm_user_rank(comm).unwrap(), rank as i32);
                        assert_eq!(nccl::comm_cu_device(comm).unwrap(), rank as i32);
                        let raw = stream.cu_stream().cast();
                        let (buffer, sum) = (pointer as *mut std::ffi::c_void, ncclRedOp_t::ncclSum);
                        nccl::all_reduce(buffer, buffer, 8, ncclFloat32, sum, comm, raw).unwrap();
                        nccl::comm_finalize(comm).unwrap();
                        let late = nccl::all_reduce(buffer, buffer, 8, ncclFloat32, sum, comm, raw);
                        assert_eq!(late.err().unwrap().0, ncclResult_t::ncclInvalidUsage);
                        nccl::comm_destroy(comm).unwrap();
                        assert!(nccl::comm_count(comm).is_err());
                    }
                    let three: Vec<f32> = values(0, 8).iter().map(|x| x * 3.0).collect();
                    assert_eq!(stream.clone_dtoh(&data).unwrap(), three);
                });
            }
        });
    });
}

/// A rank of a nonblocking communicator, not yet complete, with a stream and a buffer of a value.
fn nonblocking(rank: usize, id: Id) -> (Arc<CudaStream>, cudarc::driver::CudaSlice<f32>, ncclComm_t) {
    let (_, stream) = device(rank);
    let buffer = stream.clone_htod(&[rank as f32 + 1.0]).unwrap();
    let mut config = ncclConfig_t { blocking: 0, ..empty_config() };
    let mut comm = std::ptr::null_mut();
    let ids = ncclUniqueId { internal: *id.internal() };
    // SAFETY: the id is one of NCCL's, and the configuration says its size and version.
    let code = unsafe { ncclCommInitRankConfig(&mut comm, 2, ids, rank as i32, &mut config) };
    assert_eq!(code, ncclResult_t::ncclInProgress);
    (stream, buffer, comm)
}

fn empty_config() -> ncclConfig_t {
    // SAFETY: numbers and pointers, for which 0 is a value.
    let zero: ncclConfig_t = unsafe { std::mem::zeroed() };
    ncclConfig_t { size: size_of::<ncclConfig_t>(), magic: 0xcafe_beef, version: 21_400, ..zero }
}

/// Asks until the communicator's call is done; how often it was not.
fn settled(comm: ncclComm_t) -> usize {
    let mut asked = 0;
    loop {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator lives.
        assert_eq!(unsafe { ncclCommGetAsyncError(comm, &mut state) }, ncclResult_t::ncclSuccess);
        match state {
            ncclResult_t::ncclSuccess => return asked,
            ncclResult_t::ncclInProgress => asked += 1,
            other => panic!("{other:?}: {}", last_fault()),
        }
        std::thread::yield_now();
    }
}

fn sum(buffer: &mut cudarc::driver::CudaSlice<f32>, comm: ncclComm_t, stream: &CudaStream) -> ncclResult_t {
    let at = buffer.device_ptr(stream).0 as *mut std::ffi::c_void;
    // SAFETY: one element in place, in a buffer of one.
    unsafe { ncclAllReduce(at, at, 1, ncclFloat32, ncclRedOp_t::ncclSum, comm, stream.cu_stream().cast()) }
}

/// Ranks that wait for each call to be done sum, and finalize.
#[test]
fn nonblocking_calls_are_done_when_they_say_so() {
    seeded("comms::nonblocking_calls_are_done_when_they_say_so", || {
        let id = Id::new().unwrap();
        let asked = std::thread::scope(|scope| {
            let run = |rank| {
                move || {
                    let (stream, mut buffer, comm) = nonblocking(rank, id);
                    let mut asked = settled(comm);
                    let mut want = rank as f32 + 1.0;
                    for round in 0..20 {
                        let code = sum(&mut buffer, comm, &stream);
                        assert!(matches!(code, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress));
                        asked += settled(comm);
                        want = if round == 0 { 3.0 } else { 2.0 * want };
                        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [want]);
                    }
                    // SAFETY: the communicator lives.
                    assert_eq!(unsafe { ncclCommFinalize(comm) }, ncclResult_t::ncclInProgress);
                    settled(comm);
                    // SAFETY: the communicator lives, for the last time.
                    assert_eq!(unsafe { ncclCommDestroy(comm) }, ncclResult_t::ncclSuccess);
                    asked
                }
            };
            let threads = [0, 1].map(|rank| scope.spawn(run(rank)));
            threads.map(|t| t.join().unwrap())
        });
        assert!(asked.iter().all(|&n| n > 10), "{asked:?}");
    });
}

/// A communicator that another rank is still to join, or whose last call is not done, must not be used; and its members can give it up.
#[test]
fn nonblocking_communicators_are_not_used_too_early() {
    isolated("comms::nonblocking_communicators_are_not_used_too_early", &[], || {
        let (stream, mut buffer, comm) = nonblocking(0, Id::new().unwrap());
        assert_eq!(sum(&mut buffer, comm, &stream), ncclResult_t::ncclInvalidUsage);
        assert!(last_fault().contains("still in progress"), "{}", last_fault());
        // SAFETY: the communicator lives, for the last time.
        assert_eq!(unsafe { ncclCommAbort(comm) }, ncclResult_t::ncclSuccess);
    });
}
