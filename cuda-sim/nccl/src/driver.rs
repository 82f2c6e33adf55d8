//! The functions of the stand-in for libcuda.

use crate::abi::{self, ID_BYTES, Info, Op};
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// `ncclResult_t`.
pub type Outcome = i32;

/// A function of the libcuda that is in this process already, whoever loaded it and for whom to see.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the names are C strings; nothing is loaded by this, and looking a symbol up has no other demands.
    let found = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() { return None } else { libc::dlsym(library, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// What `pcc-sim-cuda` exports that this library uses.
        pub struct Driver {
            $(pub $field: extern "C" fn($($argument),*) -> $result,)*
        }

        fn find() -> Option<Driver> {
            Some(Driver {
                $($field: {
                    type Function = extern "C" fn($($argument),*) -> $result;
                    let found = symbol($name)?;
                    // SAFETY: the symbol is a function that `pcc-sim-cuda` exports with just this type: the real driver lacks the first of
                    // these names, and the types and the structures in `abi.rs` are of one repository and built together.
                    unsafe { std::mem::transmute::<*mut c_void, Function>(found) }
                },)*
            })
        }
    };
}

functions! {
    comm_id = c"pcc_sim_comm_id": fn(*mut [u8; ID_BYTES]) -> Outcome;
    comm_join = c"pcc_sim_comm_join": fn(*const [u8; ID_BYTES], i32, i32, i32, *mut u64) -> Outcome;
    comm_wait = c"pcc_sim_comm_wait": fn(u64) -> Outcome;
    comm_submit = c"pcc_sim_comm_submit": fn(*const Op, usize) -> Outcome;
    comm_leave = c"pcc_sim_comm_leave": fn(u64, u32) -> Outcome;
    comm_info = c"pcc_sim_comm_info": fn(u64, *mut Info) -> Outcome;
    comm_error = c"pcc_sim_comm_error": fn(u64, *mut Outcome) -> Outcome;
    last_fault = c"pcc_sim_last_fault": fn(*mut c_char, usize) -> usize;
    get_context = c"cuCtxGetCurrent": fn(*mut u64) -> u32;
    set_context = c"cuCtxSetCurrent": fn(u64) -> u32;
    retain_primary = c"cuDevicePrimaryCtxRetain": fn(*mut u64, i32) -> u32;
}

/// The stand-in for libcuda that is loaded in this process.
///
/// # Errors
/// None is.
pub fn driver() -> Result<&'static Driver, Outcome> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(find).as_ref().ok_or(abi::UNHANDLED_CUDA_ERROR)
}

/// A result as the functions of the stand-in answer it.
pub fn check(outcome: Outcome) -> Result<(), Outcome> {
    if outcome == abi::OK { Ok(()) } else { Err(outcome) }
}
