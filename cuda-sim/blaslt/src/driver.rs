//! The functions of the stand-in for libcuda.

use crate::blas::Product;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

/// A function of the libcuda that is in this process already, whoever loaded it and for whom to see.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the names are C strings; nothing is loaded by this, and looking a symbol up has no other demands.
    let found = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() { return None } else { libc::dlsym(library, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

/// What `pcc-sim-cuda` exports that this library uses.
pub struct Driver {
    product: extern "C" fn(*const Product) -> u32,
    misuse: extern "C" fn(*const c_char) -> u32,
    context: extern "C" fn(*mut u64) -> u32,
}

fn find() -> Option<Driver> {
    let product = symbol(c"pcc_sim_product")?;
    let misuse = symbol(c"pcc_sim_misuse")?;
    let context = symbol(c"cuCtxGetCurrent")?;
    // SAFETY: the symbols are functions that `pcc-sim-cuda` exports with just these types: the real driver lacks the first two names, and the
    // types and the structures in `blas.rs` are of one repository and built together.
    unsafe {
        Some(Driver {
            product: std::mem::transmute::<*mut c_void, extern "C" fn(*const Product) -> u32>(product),
            misuse: std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> u32>(misuse),
            context: std::mem::transmute::<*mut c_void, extern "C" fn(*mut u64) -> u32>(context),
        })
    }
}

/// The stand-in for libcuda that is loaded in this process, if one is.
pub fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(find).as_ref()
}

impl Driver {
    /// Queues a product; whether the driver takes it.
    pub fn queue(&self, product: &Product) -> bool {
        (self.product)(product) == 0
    }

    /// Ends the current context with the reason.
    pub fn end(&self, why: &str) {
        let why = CString::new(format!("cuBLASLt: {why}")).unwrap_or_default();
        (self.misuse)(why.as_ptr());
    }

    /// The calling thread's context; 0 if it has none.
    pub fn context(&self) -> u64 {
        let mut context = 0;
        (self.context)(&raw mut context);
        context
    }
}
