//! The functions of the library, as C calls them. (cuBLAS documentation, "cuBLASLt API reference".)

use crate::driver::driver;
use crate::objects::{Choice, Desc, Layout, Misuse, Object, Preference, objects};
use crate::product::{Call, is_supported, product};
use std::ffi::c_int;

/// `cublasStatus_t`.
pub type Status = u32;

const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// `CUBLAS_COMPUTE_32F`, and f32 as the type of alpha and beta.
const COMPUTE: (u32, u32) = (68, 0);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Heuristic {
    /// Opaque: the number of the choice comes first.
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// Where a function stores a result; the caller of the C function promises that it is null or writable.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    fn set(&self, value: T) -> Result<(), Misuse> {
        if self.0.is_null() {
            return Err("a result is to be stored nowhere".to_owned());
        }
        // SAFETY: not null, so the caller of the C function that this came from promised that it is valid for a write of a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// What a caller's pointer leads to.
fn value<T: Copy>(at: *const T) -> Result<T, Misuse> {
    if at.is_null() {
        return Err("a value is nowhere".to_owned());
    }
    // SAFETY: not null, so the caller of the C function that this came from promised a `T` there.
    Ok(unsafe { at.read_unaligned() })
}

/// Runs a function of the library; misuse ends the context.
fn call(f: impl FnOnce() -> Result<Status, Misuse>) -> Status {
    match f() {
        Ok(status) => status,
        Err(why) => {
            if let Some(driver) = driver() {
                driver.end(&why);
            }
            INVALID_VALUE
        }
    }
}

fn add(to: &Out<u64>, object: Object) -> Result<Status, Misuse> {
    to.set(objects().add(object))?;
    Ok(SUCCESS)
}

fn remove(number: u64) -> Status {
    call(|| objects().remove(number).map(|()| SUCCESS))
}

fn set(number: u64, attribute: u32, at: *const u8, bytes: usize) -> Status {
    call(|| {
        if at.is_null() || bytes > 64 {
            return Err(format!("attribute {attribute} of {bytes} bytes"));
        }
        // SAFETY: not null, so the caller of the C function that this came from promised as many bytes.
        let value = unsafe { std::slice::from_raw_parts(at, bytes) };
        objects().set(number, attribute, value).map(|()| SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtCreate(handle: Out<u64>) -> Status {
    let Some(driver) = driver() else { return NOT_INITIALIZED };
    match driver.context() {
        0 => NOT_INITIALIZED,
        context => call(|| add(&handle, Object::Handle(context))),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtDestroy(handle: u64) -> Status {
    remove(handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutCreate(
    layout: Out<u64>,
    dtype: u32,
    rows: u64,
    cols: u64,
    leading: i64,
) -> Status {
    call(|| add(&layout, Object::Layout(Layout::new(dtype, rows, cols, leading)?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: u64,
    attribute: u32,
    at: *const u8,
    bytes: usize,
) -> Status {
    set(layout, attribute, at, bytes)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(layout: u64) -> Status {
    remove(layout)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescCreate(desc: Out<u64>, compute: u32, scale: u32) -> Status {
    call(|| match (compute, scale) {
        COMPUTE => add(&desc, Object::Desc(Desc::PLAIN)),
        other => Err(format!("compute and scale types {other:?}")),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescSetAttribute(
    desc: u64,
    attribute: u32,
    at: *const u8,
    bytes: usize,
) -> Status {
    set(desc, attribute, at, bytes)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(desc: u64) -> Status {
    remove(desc)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceCreate(preference: Out<u64>) -> Status {
    call(|| add(&preference, Object::Preference(Preference::DEFAULT)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: u64,
    attribute: u32,
    at: *const u8,
    bytes: usize,
) -> Status {
    set(preference, attribute, at, bytes)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(preference: u64) -> Status {
    remove(preference)
}

/// Chooses a kernel. It needs all the workspace that it may have.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: u64,
    desc: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    preference: u64,
    wanted: c_int,
    results: Out<Heuristic>,
    found: Out<c_int>,
) -> Status {
    call(|| {
        let mut objects = objects();
        let Some(Object::Preference(preference)) = objects.get(preference) else {
            return Err("something in place of a preference".to_owned());
        };
        if !matches!(objects.get(handle), Some(Object::Handle(_))) || wanted < 1 {
            return Err(format!("{wanted} kernels for a handle {handle:#x}"));
        }
        let desc = objects.desc(desc)?;
        let layouts = [objects.layout(a)?, objects.layout(b)?, objects.layout(c)?, objects.layout(d)?];
        if !is_supported(&desc, &layouts)? {
            found.set(0)?;
            return Ok(NOT_SUPPORTED);
        }
        let choice = objects.add(Object::Choice(Choice { desc, layouts, preference }));
        let mut algorithm = [0; 8];
        algorithm[0] = choice;
        let workspace = preference.workspace as usize;
        results.set(Heuristic { algorithm, workspace, state: SUCCESS, waves: 1.0, reserved: [0; 4] })?;
        found.set(1)?;
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmul(
    handle: u64,
    desc: u64,
    alpha: *const f32,
    a: u64,
    a_layout: u64,
    b: u64,
    b_layout: u64,
    beta: *const f32,
    c: u64,
    c_layout: u64,
    d: u64,
    d_layout: u64,
    algorithm: *const [u64; 8],
    workspace: u64,
    workspace_bytes: usize,
    stream: u64,
) -> Status {
    let Some(driver) = driver() else { return NOT_INITIALIZED };
    call(|| {
        let made = {
            let objects = objects();
            let own = matches!(objects.get(handle), Some(Object::Handle(c)) if c == driver.context());
            if !own || workspace == 0 {
                return Err("a handle of another context, or no workspace".to_owned());
            }
            let Some(Object::Choice(choice)) = objects.get(value(algorithm)?[0]) else {
                return Err("a kernel that was not chosen here".to_owned());
            };
            let layouts = [a_layout, b_layout, c_layout, d_layout].map(|layout| objects.layout(layout));
            let [la, lb, lc, ld] = layouts;
            let (alpha, beta) = (value(alpha)?, value(beta)?);
            let call = Call { at: [a, b, c, d], alpha, beta, workspace: workspace_bytes as u64, stream };
            product(&choice, objects.desc(desc)?, [la?, lb?, lc?, ld?], &call)?
        };
        Ok(if driver.queue(&made) { SUCCESS } else { EXECUTION_FAILED })
    })
}
