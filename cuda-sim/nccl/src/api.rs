//! The functions of the library, as C calls them. (NCCL user guide, API; version 2.27.)

use crate::abi::{self, ID_BYTES, Info, Op};
use crate::driver::{Driver, Outcome, check, driver};
use crate::group;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// NCCL 2.27.3, as `ncclGetVersion` writes it.
const VERSION: c_int = 22_703;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; ID_BYTES]);

/// The beginning of `ncclConfig_t`, the same in all versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// Where a function stores its result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    fn set(&self, value: T) -> Result<(), Outcome> {
        if self.0.is_null() {
            return Err(abi::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller of the C function that this came from promised that it is valid for a write of a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// Runs a function of the library; its error is the group's too.
fn call(f: impl FnOnce(&Driver) -> Result<(), Outcome>) -> Outcome {
    group::note(driver().and_then(f).err().unwrap_or(abi::OK))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: Out<c_int>) -> Outcome {
    version.set(VERSION).err().unwrap_or(abi::OK)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: Out<UniqueId>) -> Outcome {
    call(|driver| {
        let mut bytes = [0; ID_BYTES];
        check((driver.comm_id)(&mut bytes))?;
        id.set(UniqueId(bytes))
    })
}

/// Joins and, if it blocks, waits.
fn init(comm: &Out<u64>, size: c_int, id: UniqueId, rank: c_int, blocks: bool) -> Outcome {
    let mut handle = 0;
    let joined = call(|driver| {
        check((driver.comm_join)(&id.0, size, rank, i32::from(!blocks), &mut handle))?;
        comm.set(handle)
    });
    match (joined, blocks) {
        (abi::OK, true) => group::wait(handle),
        (abi::OK, false) => abi::IN_PROGRESS,
        (error, _) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(comm: Out<u64>, size: c_int, id: UniqueId, rank: c_int) -> Outcome {
    init(&comm, size, id, rank, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    comm: Out<u64>,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Outcome {
    let blocks = if config.is_null() {
        true
    } else {
        // SAFETY: not null, so the caller promised an `ncclConfig_t`, which begins like this in every version.
        let config = unsafe { config.read() };
        if config.magic != 0xcafe_beef || config.version < 21_400 || config.size < size_of::<Config>() {
            return group::note(abi::INVALID_ARGUMENT);
        }
        config.blocking != 0
    };
    init(&comm, size, id, rank, blocks)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(comms: *mut u64, count: c_int, devices: *const c_int) -> Outcome {
    call(|driver| {
        let count = usize::try_from(count).ok().filter(|&n| n > 0).ok_or(abi::INVALID_ARGUMENT)?;
        if comms.is_null() {
            return Err(abi::INVALID_ARGUMENT);
        }
        let devices: Vec<c_int> = if devices.is_null() {
            (0..count as c_int).collect()
        } else {
            // SAFETY: not null, so the caller promised the numbers of `count` devices.
            unsafe { std::slice::from_raw_parts(devices, count) }.to_vec()
        };
        let mut id = [0; ID_BYTES];
        check((driver.comm_id)(&mut id))?;
        let (mut before, mut all) = (0, vec![0; count]);
        (driver.get_context)(&mut before);
        let joined = devices.iter().zip(&mut all).enumerate().try_for_each(|(rank, (&device, comm))| {
            let mut context = 0;
            if (driver.retain_primary)(&mut context, device) != 0 || (driver.set_context)(context) != 0 {
                return Err(abi::UNHANDLED_CUDA_ERROR);
            }
            check((driver.comm_join)(&id, count as c_int, rank as c_int, 0, comm))
        });
        (driver.set_context)(before);
        joined?;
        // SAFETY: not null, so the caller promised room for `count` communicators; the vector has as many.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), comms, count) };
        Ok(())
    })
}

fn leave(comm: u64, how: u32) -> Outcome {
    // Null is a communicator that never was.
    if comm == 0 { abi::OK } else { call(|driver| check((driver.comm_leave)(comm, how))) }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: u64) -> Outcome {
    leave(comm, abi::LEAVE_FINALIZE)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: u64) -> Outcome {
    leave(comm, abi::LEAVE_DESTROY)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: u64) -> Outcome {
    leave(comm, abi::LEAVE_ABORT)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(comm: u64, error: Out<Outcome>) -> Outcome {
    call(|driver| {
        let mut found = abi::OK;
        check((driver.comm_error)(comm, &mut found))?;
        error.set(found)
    })
}

fn info(comm: u64, out: Out<c_int>, field: fn(Info) -> c_int) -> Outcome {
    call(|driver| {
        let mut found = Info::default();
        check((driver.comm_info)(comm, &mut found))?;
        out.set(field(found))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(comm: u64, count: Out<c_int>) -> Outcome {
    info(comm, count, |info| info.size)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCuDevice(comm: u64, device: Out<c_int>) -> Outcome {
    info(comm, device, |info| info.device)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(comm: u64, rank: Out<c_int>) -> Outcome {
    info(comm, rank, |info| info.rank)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Outcome {
    group::start()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Outcome {
    group::end()
}

/// Communicators cannot be split here.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    _comm: u64,
    _color: c_int,
    _key: c_int,
    _new: Out<u64>,
    _config: *const Config,
) -> Outcome {
    abi::INVALID_USAGE
}

/// Reductions of one's own are not known here.
#[unsafe(no_mangle)]
pub extern "C" fn ncclRedOpCreatePreMulSum(
    _op: Out<u32>,
    _scalar: *mut c_void,
    _dtype: u32,
    _residence: u32,
    _comm: u64,
) -> Outcome {
    abi::INVALID_USAGE
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRedOpDestroy(_op: u32, _comm: u64) -> Outcome {
    abi::INVALID_ARGUMENT
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    send: u64,
    recv: u64,
    count: usize,
    dtype: u32,
    reduction: u32,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_ALL_REDUCE);
    group::submit(Op { comm, kind, dtype, send, recv, count, reduction, peer: 0, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    send: u64,
    recv: u64,
    count: usize,
    dtype: u32,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_ALL_GATHER);
    group::submit(Op { comm, kind, dtype, send, recv, count, reduction: 0, peer: 0, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    send: u64,
    recv: u64,
    count: usize,
    dtype: u32,
    reduction: u32,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_REDUCE_SCATTER);
    group::submit(Op { comm, kind, dtype, send, recv, count, reduction, peer: 0, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    send: u64,
    recv: u64,
    count: usize,
    dtype: u32,
    root: c_int,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_BROADCAST);
    group::submit(Op { comm, kind, dtype, send, recv, count, reduction: 0, peer: root, stream })
}

/// In place.
#[unsafe(no_mangle)]
pub extern "C" fn ncclBcast(
    buffer: u64,
    count: usize,
    dtype: u32,
    root: c_int,
    comm: u64,
    stream: u64,
) -> Outcome {
    ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduce(
    send: u64,
    recv: u64,
    count: usize,
    dtype: u32,
    reduction: u32,
    root: c_int,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_REDUCE);
    group::submit(Op { comm, kind, dtype, send, recv, count, reduction, peer: root, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    send: u64,
    count: usize,
    dtype: u32,
    peer: c_int,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_SEND);
    group::submit(Op { comm, kind, dtype, send, recv: 0, count, reduction: 0, peer, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    recv: u64,
    count: usize,
    dtype: u32,
    peer: c_int,
    comm: u64,
    stream: u64,
) -> Outcome {
    let (count, kind) = (count as u64, abi::KIND_RECV);
    group::submit(Op { comm, kind, dtype, send: 0, recv, count, reduction: 0, peer, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(outcome: Outcome) -> *const c_char {
    let text: &CStr = match outcome {
        abi::OK => c"no error",
        abi::UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        2 => c"unhandled system error",
        abi::INTERNAL_ERROR => c"internal error",
        abi::INVALID_ARGUMENT => c"invalid argument",
        abi::INVALID_USAGE => c"invalid usage",
        abi::REMOTE_ERROR => c"remote process exited or there was a network error",
        abi::IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// What the simulator said last. The text stays valid for good: one copy is kept of each that was asked for.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: u64) -> *const c_char {
    static SAID: OnceLock<std::sync::Mutex<std::collections::BTreeSet<std::ffi::CString>>> = OnceLock::new();
    let Ok(driver) = driver() else { return c"the simulated libcuda is not loaded".as_ptr() };
    let mut bytes = vec![0u8; 4096];
    let length = (driver.last_fault)(bytes.as_mut_ptr().cast(), bytes.len());
    bytes.truncate(length.min(bytes.len() - 1));
    let text = std::ffi::CString::new(bytes).unwrap_or_default();
    let said = SAID.get_or_init(Default::default);
    let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    said.insert(text.clone());
    // The string's bytes are on the heap, where they stay when the set moves its entries; entries are never removed.
    said.get(&text).map_or(c"".as_ptr(), |kept| kept.as_ptr())
}
