//! The functions of the library, as C calls them.

mod comm;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod occupancy;
mod pool;
mod product;
mod stream;

use crate::code::Code;
use crate::state::Turn;
use crate::threads;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Where a function stores a result; the caller of the C function promises that it is null or writable.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Stores the result, and refuses null.
    fn set(&self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller of the C function that this came from promised that it is valid for a write of a `T`; C has no
        // stricter alignment to promise than that of the type.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Stores the result where the caller wants it at all.
    fn set_if_wanted(&self, value: T) {
        if !self.0.is_null() {
            // It is not null, so this does not fail.
            let _ = self.set(value);
        }
    }
}

/// A handle.
pub type Handle = u64;

/// Reads `count` values that a caller's pointer leads to.
fn array<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>, Code> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if from.is_null() || !from.is_aligned() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null and aligned; the caller of the C function that this came from promised that many values there.
    Ok(unsafe { std::slice::from_raw_parts(from, count) }.to_vec())
}

/// Reads a C string.
fn text(from: *const c_char) -> Result<String, Code> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null; the caller of the C function that this came from promised a string that ends in a zero byte.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
}

/// Writes text and a zero byte into a buffer, cut off where it does not fit.
fn fill(buffer: *mut c_char, length: usize, text: &str) {
    if buffer.is_null() || length == 0 {
        return;
    }
    let mut bytes = text.as_bytes()[..text.len().min(length - 1)].to_vec();
    bytes.push(0);
    // SAFETY: the caller of the C function that this came from promised `length` bytes, and no more than those are written.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
}

/// Runs a function of the library on the locked state. Nothing unwinds into C.
fn call(f: impl FnOnce(&mut Turn) -> Result<(), Code>) -> Code {
    if threads::in_host_call() {
        return Code::NOT_PERMITTED;
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut turn = Turn::take();
        turn.threads.here();
        if !turn.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        f(&mut turn)
    }));
    match result {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    }
}

impl Turn {
    /// The current context, if it is well.
    fn context(&mut self) -> Result<u64, Code> {
        let context = threads::current().ok_or(Code::INVALID_CONTEXT)?;
        self.sound_context(context)?;
        Ok(context)
    }

    /// The device of the current context.
    fn current_device(&mut self) -> Result<u32, Code> {
        let context = self.context()?;
        Ok(self.sound_context(context)?.device)
    }

    /// The stream that a caller means: 0 and 1 are the legacy stream of a context, 2 is the calling thread's own there.
    pub fn stream(&mut self, handle: Handle, context: u64) -> Result<u64, Code> {
        match handle {
            0 | 1 => Ok(self.sound_context(context)?.legacy),
            2 => {
                let here = self.threads.here();
                if let Some(&stream) = self.sound_context(context)?.per_thread.get(&here) {
                    return Ok(stream);
                }
                let stream = self.new_stream(context, 0, 0);
                self.sound_context(context)?.per_thread.insert(here, stream);
                Ok(stream)
            }
            _ => {
                let context = self.streams.get(handle)?.context;
                self.sound_context(context)?;
                Ok(handle)
            }
        }
    }

    /// The stream that a caller means, in the current context.
    fn current_stream(&mut self, handle: Handle) -> Result<u64, Code> {
        let context = if handle <= 2 { self.context()? } else { 0 };
        self.stream(handle, context)
    }

    /// Waits for work of a context, and answers what became of the context.
    fn finish(&mut self, ticket: &crate::work::Ticket, context: u64, what: &str) -> Result<(), Code> {
        self.wait_for(ticket, what);
        self.sound_context(context).map(|_| ())
    }
}

/// What the fault of the current context said, else the last fault or refusal that the calling thread met, else the last of all. Answers its bytes,
/// without the zero behind them, of which as many are stored as fit.
#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_last_fault(buffer: *mut c_char, length: usize) -> usize {
    let message = {
        let turn = Turn::take();
        let current = threads::current().and_then(|c| turn.contexts.get(c).ok());
        let fault = current.and_then(|c| c.fault.as_ref()).map(|(_, message)| message.clone());
        let met = Some(threads::message()).filter(|message| !message.is_empty());
        fault.or(met).unwrap_or_else(|| turn.message.clone())
    };
    fill(buffer, length, &message);
    message.len()
}

/// The machine gets at least so many devices of this compute capability, if the environment does not say otherwise. To be called before anything else.
#[unsafe(no_mangle)]
pub extern "C" fn pcc_sim_want(devices: u64, major: u32, minor: u32) {
    crate::config::want(devices, (major, minor));
}

/// Functions that the simulator does not have.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            /// Not supported here.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> Code {
                call(|turn| Err(turn.refuse(Code::NOT_SUPPORTED, concat!(stringify!($name), " is not simulated"))))
            }
        )*
    };
}

unsupported! {
    cuMemAllocManaged cuMemAdvise_v2 cuMemPrefetchAsync_v2 cuStreamAttachMemAsync
    cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer
    cuModuleGetGlobal_v2 cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize
    cuMemHostGetDevicePointer_v2 cuGraphExecUpdate_v2
}

/// The argument of functions that the simulator need not look at.
type Ignored = *const c_void;
