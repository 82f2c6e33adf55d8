//! NCCL, found when it is needed: its functions in a table, and communicators that are ended when dropped.
//!
//! The library is looked for by its own names (a table rather than a binding's loader): wheels and distributions ship `libnccl.so.2`, without the
//! plain `libnccl.so` of a development package.

use super::control::lock;
use super::work::{Among, AmongKind};
use cudarc::driver::sys::CUstream;
use libloading::Library;
use pcc_ir::{DType, Diagnostic, ReduceKind};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

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
    init = b"ncclCommInitRank\0": fn(*mut Comm, c_int, UniqueId, c_int) -> Code;
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

/// A communicator of NCCL, which is ended once.
struct Handle {
    comm: Comm,
    ended: AtomicBool,
}

// SAFETY: NCCL allows a communicator to be aborted by another thread than the one that uses it.
unsafe impl Send for Handle {}
// SAFETY: as above; all else is done by the thread that joined.
unsafe impl Sync for Handle {}

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
                    // SAFETY: the functions have these signatures in every version that has them all (2.13 and newer).
                    let table = unsafe { Table::of(&library) };
                    let table = table.map_err(|e| {
                        Diagnostic::run("this NCCL is too old")
                            .at(candidate.display().to_string())
                            .why(e.to_string())
                            .help("pcc needs NCCL 2.13 or newer")
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

    /// Joins a communicator of `members` as number `own`; returns when all have. The device's context must be current.
    pub(super) fn join(
        self: &Arc<Self>,
        id: UniqueId,
        members: usize,
        own: usize,
    ) -> Result<Communicator, String> {
        let mut comm: Comm = std::ptr::null_mut();
        // SAFETY: writes the communicator; the id is one of `unique_id`.
        let code = unsafe { (self.table.init)(&mut comm, members as c_int, id, own as c_int) };
        self.check("ncclCommInitRank", code, std::ptr::null_mut())?;
        let handle = Arc::new(Handle { comm, ended: AtomicBool::new(false) });
        lock(&self.joined).push(handle.clone());
        Ok(Communicator { nccl: self.clone(), handle, members })
    }

    /// Ends every communicator of the process.
    pub(super) fn abort_all(&self) {
        lock(&self.joined).iter().for_each(|handle| self.abort(handle));
    }

    fn abort(&self, handle: &Handle) {
        if !handle.ended.swap(true, Ordering::AcqRel) {
            // SAFETY: ended once, here or in `Communicator::drop`.
            unsafe { (self.table.abort)(handle.comm) };
        }
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
    /// NCCL's name of it.
    ///
    /// # Errors
    /// It was ended.
    fn comm(&self) -> Result<Comm, String> {
        match self.handle.ended.load(Ordering::Acquire) {
            false => Ok(self.handle.comm),
            true => Err("the communicator was ended".to_owned()),
        }
    }

    /// Queues a collective.
    pub(super) fn among(&self, a: &Among, stream: CUstream) -> Result<(), String> {
        let (from, to, count) = (a.from as *const c_void, a.to as *mut c_void, a.count as usize);
        let (kind, t, comm) = (dtype(a.dtype)?, &self.nccl.table, self.comm()?);
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
        let (t, comm, bytes) = (&self.nccl.table, self.comm()?, a.count * a.dtype.bytes() as u64);
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
        let comm = self.comm()?;
        let from = from as *const c_void;
        // SAFETY: as in `among`.
        let code = unsafe { (self.nccl.table.send)(from, bytes as usize, 1, peer as c_int, comm, stream) };
        self.nccl.check("ncclSend", code, comm)
    }

    /// Queues the receipt of bytes from the other member of two.
    pub(super) fn recv(&self, to: u64, bytes: u64, peer: usize, stream: CUstream) -> Result<(), String> {
        let comm = self.comm()?;
        let to = to as *mut c_void;
        // SAFETY: as in `among`.
        let code = unsafe { (self.nccl.table.recv)(to, bytes as usize, 1, peer as c_int, comm, stream) };
        self.nccl.check("ncclRecv", code, comm)
    }

    /// Whether the communicator is still whole.
    ///
    /// # Errors
    /// What happened to it: a rank is gone, or the network.
    pub(super) fn health(&self) -> Result<(), String> {
        let (comm, mut state) = (self.comm()?, SUCCESS);
        // SAFETY: writes the state; the communicator lives.
        let code = unsafe { (self.nccl.table.async_error)(comm, &mut state) };
        self.nccl.check("ncclCommGetAsyncError", code, comm)?;
        self.nccl.check("communicator", state, comm)
    }

    /// Ends what is queued here and on the other members.
    pub(super) fn abort(&self) {
        self.nccl.abort(&self.handle);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.handle.ended.swap(true, Ordering::AcqRel) {
            // SAFETY: ended once; all its work is done, and no recording of it is left.
            unsafe { (self.nccl.table.destroy)(self.handle.comm) };
        }
    }
}
