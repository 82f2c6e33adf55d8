//! NCCL, found when it is needed: its functions in a table, and communicators that are ended when dropped.
//!
//! The library is looked for by its own names (a table rather than a binding's loader): wheels and distributions ship `libnccl.so.2`, without the
//! plain `libnccl.so` of a development package.
//!
//! Communicators are nonblocking: a call returns at once, and whoever made it asks until it is done, or until the run ends for another reason. A
//! blocking one would wait for ever for a rank that does not come. (NCCL user guide, "Fault Tolerance".)

use super::control::{Control, Look, Stopped, lock};
use super::work::{Among, AmongKind};
use cudarc::driver::sys::CUstream;
use libloading::Library;
use pcc_ir::{DType, Diagnostic, ReduceKind};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Where NCCL is, when it is at no usual place.
const VARIABLE: &str = "PCC_NCCL";
const LAUNCH_ORDER: &str = "NCCL_LAUNCH_ORDER_IMPLICIT";
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

type Comm = *mut c_void;
type Code = c_int;

/// What the first rank of a communicator tells the others.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId([c_char; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;

    /// As it is sent to other processes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|&b| b as u8).collect()
    }

    /// From what another process sent; `None` of another length.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        Some(Self(bytes.map(|b| b as c_char)))
    }
}

/// The beginning of `ncclConfig_t` as NCCL 2.14 has it; newer versions take what they added since as not given.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    unused: c_int,
}

impl Config {
    const NONBLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: 21_400,
        blocking: 0,
        unused: c_int::MIN,
    };
}

macro_rules! table {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The functions used.
        struct Table { $($field: unsafe extern "C" fn($($arg),*) -> $out,)* }

        impl Table {
            /// # Safety
            /// The library must be NCCL, whose functions have these signatures.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: as the caller promises.
                unsafe { Ok(Self { $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

table! {
    unique_id = b"ncclGetUniqueId\0": fn(*mut UniqueId) -> Code;
    init = b"ncclCommInitRankConfig\0": fn(*mut Comm, c_int, UniqueId, c_int, *const Config) -> Code;
    finalize = b"ncclCommFinalize\0": fn(Comm) -> Code;
    abort = b"ncclCommAbort\0": fn(Comm) -> Code;
    destroy = b"ncclCommDestroy\0": fn(Comm) -> Code;
    async_error = b"ncclCommGetAsyncError\0": fn(Comm, *mut Code) -> Code;
    all_reduce = b"ncclAllReduce\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> Code;
    all_gather = b"ncclAllGather\0": fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> Code;
    reduce_scatter = b"ncclReduceScatter\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> Code;
    broadcast = b"ncclBroadcast\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> Code;
    send = b"ncclSend\0": fn(*const c_void, usize, c_int, c_int, Comm, CUstream) -> Code;
    recv = b"ncclRecv\0": fn(*mut c_void, usize, c_int, c_int, Comm, CUstream) -> Code;
    group_start = b"ncclGroupStart\0": fn() -> Code;
    group_end = b"ncclGroupEnd\0": fn() -> Code;
    error_string = b"ncclGetErrorString\0": fn(Code) -> *const c_char;
    last_error = b"ncclGetLastError\0": fn(Comm) -> *const c_char;
}

/// Codes that mean that all is well, so far.
const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;

/// The loaded library. It is never unloaded: threads of its own may run in it for as long as the process does.
pub(super) struct Nccl {
    table: Table,
    _library: ManuallyDrop<Library>,
    /// Every communicator joined.
    joined: Mutex<Vec<Arc<Handle>>>,
}

/// What a rank is told that uses a communicator after that was ended, for another's failure.
pub(super) const ENDED: &str = "the communicator was ended";

/// A communicator of NCCL, which is ended once.
struct Handle {
    comm: Comm,
    /// Whether someone has begun to end it: no call begins after that.
    ended: AtomicBool,
    /// Locked during every call, none of which waits for other ranks.
    calls: Mutex<()>,
}

/// How long a call of a communicator may take before it is ended under its hands: the call is stuck.
const STUCK: Duration = Duration::from_secs(2);

// SAFETY: NCCL allows a communicator to be used by other threads than the one that made it, one at a time, which the lock in it sees to, and
// to be aborted at any time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Locks it, for as long as a call is made.
    ///
    /// # Errors
    /// It was ended.
    fn live(&self) -> Result<MutexGuard<'_, ()>, String> {
        let call = lock(&self.calls);
        match self.ended.load(Ordering::Acquire) {
            true => Err(ENDED.to_owned()),
            false => Ok(call),
        }
    }

    /// Whether the caller is the one to end it.
    fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// Waits for the call under way; `None` where that does not come back.
    fn last(&self) -> Option<MutexGuard<'_, ()>> {
        let since = Instant::now();
        loop {
            match self.calls.try_lock() {
                Ok(call) => return Some(call),
                Err(TryLockError::Poisoned(call)) => return Some(PoisonError::into_inner(call)),
                Err(TryLockError::WouldBlock) if since.elapsed() > STUCK => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Nccl {
    /// Loads the library at `path`, or where it is usually found.
    ///
    /// # Errors
    /// There is none, or it is too old.
    pub(super) fn load(path: Option<PathBuf>) -> Result<Self, Diagnostic> {
        let given = path.or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
        let candidates = match given {
            Some(path) => vec![path],
            None => NAMES.map(PathBuf::from).to_vec(),
        };
        let mut why = Vec::new();
        for candidate in &candidates {
            // SAFETY: loading runs the library's initialisers: those of NCCL, or of what the user names as such.
            match unsafe { Library::new(candidate) } {
                Ok(library) => {
                    // SAFETY: the functions have these signatures in every version that has them all (2.14 and newer).
                    let table = unsafe { Table::of(&library) };
                    let table = table.map_err(|e| {
                        Diagnostic::run("this NCCL is too old")
                            .at(candidate.display().to_string())
                            .why(format!("{}{e}", version(&library)))
                            .help("pcc needs NCCL 2.14 or newer, whose communicators can be given up when a rank does not come")
                    })?;
                    // All ranks queue in one order, which NCCL keeps to between communicators when it is told to (2.26 and newer).
                    if std::env::var_os(LAUNCH_ORDER).is_none() {
                        // SAFETY: before the first thread of a rank; what else runs reads no environment.
                        unsafe { std::env::set_var(LAUNCH_ORDER, "1") };
                    }
                    let joined = Mutex::default();
                    return Ok(Self { table, _library: ManuallyDrop::new(library), joined });
                }
                Err(e) => why.push(format!("{}: {}", candidate.display(), super::load::in_full(&e))),
            }
        }
        Err(Diagnostic::run("NCCL was not found, which GPUs exchange data through")
            .why(why.join("; "))
            .help(format!(
                "install it (a wheel: pip install nvidia-nccl-cu12), and set {VARIABLE} to its libnccl.so.2; or run all ranks on one \
                 GPU with --ranks-per-device, which needs none"
            )))
    }

    fn check(&self, call: &str, code: Code, comm: Comm) -> Result<(), String> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        let text = |p: *const c_char| {
            // SAFETY: NCCL returns a string that ends with a zero and stays as it is until the next call of this thread.
            (!p.is_null()).then(|| unsafe { CStr::from_ptr(p) }.to_string_lossy().trim().to_owned())
        };
        // SAFETY: the code is NCCL's; the communicator is live or null.
        let (name, last) =
            unsafe { (text((self.table.error_string)(code)), text((self.table.last_error)(comm))) };
        let last = last.filter(|l| !l.is_empty()).map(|l| format!(" ({l})")).unwrap_or_default();
        Err(format!("{call}: {}{last}", name.unwrap_or_else(|| format!("error {code}"))))
    }

    /// A name for a communicator to be.
    pub(super) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: writes the id.
        let code = unsafe { (self.table.unique_id)(&mut id) };
        self.check("ncclGetUniqueId", code, std::ptr::null_mut())?;
        Ok(id)
    }

    /// Joins a communicator of `members` as number `own`; it is complete, and may be used, once [`Communicator::is_ready`]. The device's context
    /// must be current.
    pub(super) fn join(
        self: &Arc<Self>,
        id: UniqueId,
        members: usize,
        own: usize,
    ) -> Result<Communicator, String> {
        let (mut comm, config): (Comm, _) = (std::ptr::null_mut(), Config::NONBLOCKING);
        // SAFETY: writes the communicator; the id is one of `unique_id`, the configuration begins as that of every version and says its size.
        let code = unsafe { (self.table.init)(&mut comm, members as c_int, id, own as c_int, &config) };
        self.check("ncclCommInitRankConfig", code, std::ptr::null_mut())?;
        let handle = Arc::new(Handle { comm, ended: AtomicBool::new(false), calls: Mutex::default() });
        lock(&self.joined).push(handle.clone());
        Ok(Communicator { nccl: self.clone(), handle, members })
    }

    /// Ends every communicator of the process, from whatever thread.
    pub(super) fn abort_all(&self) {
        // The list may not be locked meanwhile: ending takes time.
        let joined = lock(&self.joined).clone();
        joined.iter().for_each(|handle| self.abort(handle));
    }

    fn abort(&self, handle: &Handle) {
        if !handle.end() {
            return;
        }
        let _call = handle.last();
        // SAFETY: the communicator is ended once, and no call begins any more: every one asks `Handle::live` first. If one is still stuck, NCCL is asked
        // to give it up, as its guide says to from another thread; not to would leave its rank, and so the process, waiting for ever.
        unsafe { (self.table.abort)(handle.comm) };
    }
}

/// What version a library says that it is; empty if it does not say.
fn version(library: &Library) -> String {
    type Version = unsafe extern "C" fn(*mut c_int) -> Code;
    let mut number = 0;
    // SAFETY: the function has this signature in all versions, and writes the number.
    let said = unsafe { library.get::<Version>(b"ncclGetVersion\0").map(|f| f(&mut number)) };
    match said {
        // 2.8 and older: a thousand for the first number, as `NCCL_VERSION` has it.
        Ok(SUCCESS) if number < 10_000 => format!("it is {}.{}: ", number / 1000, number / 100 % 10),
        Ok(SUCCESS) => format!("it is {}.{}: ", number / 10_000, number / 100 % 100),
        _ => String::new(),
    }
}

/// One rank's part of a communicator.
pub(super) struct Communicator {
    nccl: Arc<Nccl>,
    handle: Arc<Handle>,
    members: usize,
}

fn dtype(d: DType) -> Result<c_int, String> {
    match d {
        DType::I32 => Ok(2),
        DType::I64 => Ok(4),
        DType::F16 => Ok(6),
        DType::F32 => Ok(7),
        DType::F64 => Ok(8),
        DType::BF16 => Ok(9),
        DType::Bool => Ok(1),
    }
}

fn op(reduce: ReduceKind) -> c_int {
    match reduce {
        ReduceKind::Sum => 0,
        ReduceKind::Max => 2,
        ReduceKind::Min => 3,
    }
}

impl Communicator {
    /// Queues a collective.
    pub(super) fn among(&self, a: &Among, stream: CUstream) -> Result<(), String> {
        let (from, to, count) = (a.from as *const c_void, a.to as *mut c_void, a.count as usize);
        let (kind, t, comm) = (dtype(a.dtype)?, &self.nccl.table, self.handle.comm);
        let _live = self.handle.live()?;
        // SAFETY: addresses and counts are those of buffers of the rank (validated program, planned scratch); communicator and stream live.
        let (call, code) = unsafe {
            match a.kind {
                AmongKind::AllReduce => {
                    ("ncclAllReduce", (t.all_reduce)(from, to, count, kind, op(a.reduce), comm, stream))
                }
                AmongKind::AllGather => {
                    ("ncclAllGather", (t.all_gather)(from, to, count, kind, comm, stream))
                }
                AmongKind::ReduceScatter => (
                    "ncclReduceScatter",
                    (t.reduce_scatter)(from, to, count, kind, op(a.reduce), comm, stream),
                ),
                AmongKind::Broadcast => {
                    ("ncclBroadcast", (t.broadcast)(from, to, count, kind, 0, comm, stream))
                }
                AmongKind::AllToAll => return self.all_to_all(a, kind, stream),
            }
        };
        self.nccl.check(call, code, comm)
    }

    fn all_to_all(&self, a: &Among, kind: c_int, stream: CUstream) -> Result<(), String> {
        let (t, comm, bytes) = (&self.nccl.table, self.handle.comm, a.count * a.dtype.bytes() as u64);
        // SAFETY: opens a group of this thread.
        self.nccl.check("ncclGroupStart", unsafe { (t.group_start)() }, comm)?;
        let mut codes = Vec::with_capacity(2 * self.members);
        for peer in 0..self.members {
            let (from, to) = (a.from + peer as u64 * bytes, a.to + peer as u64 * bytes);
            // SAFETY: as in `among`.
            codes.extend(unsafe {
                [
                    (t.send)(from as *const c_void, a.count as usize, kind, peer as c_int, comm, stream),
                    (t.recv)(to as *mut c_void, a.count as usize, kind, peer as c_int, comm, stream),
                ]
            });
        }
        // SAFETY: closes the group opened above, whatever became of what is in it.
        let ended = unsafe { (t.group_end)() };
        codes.iter().try_for_each(|&code| self.nccl.check("ncclSend and ncclRecv", code, comm))?;
        self.nccl.check("ncclGroupEnd", ended, comm)
    }

    /// Queues bytes for the other member of two.
    pub(super) fn send(&self, from: u64, bytes: u64, peer: usize, stream: CUstream) -> Result<(), String> {
        let (comm, _live) = (self.handle.comm, self.handle.live()?);
        let from = from as *const c_void;
        // SAFETY: as in `among`.
        let code = unsafe { (self.nccl.table.send)(from, bytes as usize, 1, peer as c_int, comm, stream) };
        self.nccl.check("ncclSend", code, comm)
    }

    /// Queues the receipt of bytes from the other member of two.
    pub(super) fn recv(&self, to: u64, bytes: u64, peer: usize, stream: CUstream) -> Result<(), String> {
        let (comm, _live) = (self.handle.comm, self.handle.live()?);
        let to = to as *mut c_void;
        // SAFETY: as in `among`.
        let code = unsafe { (self.nccl.table.recv)(to, bytes as usize, 1, peer as c_int, comm, stream) };
        self.nccl.check("ncclRecv", code, comm)
    }

    /// Whether the last call is done: joined, or queued. No other call of the communicator, and none of the stream that is to come after it, may
    /// be made before.
    ///
    /// # Errors
    /// What happened to it: a rank is gone, or the network.
    pub(super) fn is_ready(&self) -> Result<bool, String> {
        let (comm, _live, mut state) = (self.handle.comm, self.handle.live()?, SUCCESS);
        // SAFETY: writes the state; the communicator lives.
        let code = unsafe { (self.nccl.table.async_error)(comm, &mut state) };
        self.nccl.check("ncclCommGetAsyncError", code, comm)?;
        self.nccl.check("communicator", state, comm)?;
        Ok(state != IN_PROGRESS)
    }

    /// Ends what is queued here and on the other members.
    pub(super) fn abort(&self) {
        self.nccl.abort(&self.handle);
    }

    /// Ends it after its work, or at once where that waits in vain. No recording of its work may be left.
    pub(super) fn finish(&self, control: &Control) {
        let finalize = || -> Result<(), String> {
            let _live = self.handle.live()?;
            // SAFETY: the communicator lives, and is used no more but to be asked and ended.
            let code = unsafe { (self.nccl.table.finalize)(self.handle.comm) };
            self.nccl.check("ncclCommFinalize", code, self.handle.comm)
        };
        let late = || Diagnostic::run("a communicator cannot be ended");
        let done = control.go_on().and_then(|()| finalize().map_err(|_| Stopped)).and_then(|()| {
            control.wait_for(&late, || match self.is_ready() {
                Ok(ready) => Ok(Look::from(ready.then_some(()))),
                Err(_) => Err(Stopped),
            })
        });
        let Ok(call) = self.handle.live() else { return };
        if done.is_ok() && self.handle.end() {
            // SAFETY: ended once; all its work is done.
            unsafe { (self.nccl.table.destroy)(self.handle.comm) };
        }
        drop(call);
        self.abort();
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}
