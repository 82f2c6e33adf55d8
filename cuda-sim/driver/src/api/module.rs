//! PTX texts and their kernels.

use super::{Handle, Out, array, call, fill, text};
use crate::code::Code;
use crate::state::{Function, Loaded, Turn};
use crate::threads;
use pcc_cuda_sim::ptx::Module;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Bytes of shared memory that a block has without asking.
pub(super) const SHARED: u32 = 48 << 10;

impl Turn {
    fn load(&mut self, ptx: &str) -> Result<u64, Code> {
        let context = self.context()?;
        if ptx.starts_with('\u{7f}') || !ptx.contains(".version") {
            return Err(self.refuse(Code::INVALID_IMAGE, "the simulator runs PTX text, and this is none"));
        }
        let module =
            Module::load(ptx).map_err(|fault| self.refuse(Code::INVALID_PTX, format!("PTX: {fault}")))?;
        let (major, minor) = self.config.capability;
        if !runs_on(&module.target, (major, minor)) {
            let why = format!("PTX for {} on devices of compute capability {major}.{minor}", module.target);
            return Err(self.refuse(Code::INVALID_PTX, why));
        }
        Ok(self.modules.insert(Loaded { context, module, functions: BTreeSet::new() }))
    }

    fn find_function(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let of = self.modules.get(module)?;
        let Some(kernel) = of.module.kernel(name).cloned() else {
            let all: Vec<&str> = of.module.kernels().iter().map(|k| k.name.as_str()).collect();
            let why = format!("no kernel {name} in the module, which has {}", all.join(", "));
            return Err(self.refuse(Code::NOT_FOUND, why));
        };
        let (context, known) = (of.context, of.functions.clone());
        self.sound_context(context)?;
        let same = |f: &u64| self.functions.get(*f).is_ok_and(|of| of.kernel.name == name);
        if let Some(handle) = known.into_iter().find(same) {
            return Ok(handle);
        }
        let dynamic_shared = SHARED.saturating_sub(kernel.shared);
        let handle = self.functions.insert(Function { context, module, kernel, dynamic_shared });
        self.modules.get_mut(module)?.functions.insert(handle);
        Ok(handle)
    }
}

/// Whether devices of a compute capability run a PTX of a target: of the same or an older one; with an `a` of the same alone.
fn runs_on(target: &str, capability: (u32, u32)) -> bool {
    let Some(digits) = target.strip_prefix("sm_") else { return false };
    let exact = digits.ends_with(['a', 'f']);
    let Ok(number) = digits.trim_end_matches(['a', 'f']).parse::<u32>() else { return false };
    let target = (number / 10, number % 10);
    if exact { target == capability } else { target <= capability }
}

/// The text of a C string, whatever bytes it has.
fn image_text(image: *const c_void) -> Result<String, Code> {
    text(image.cast()).map_err(|code| {
        if image.is_null() {
            return code;
        }
        Turn::take().refuse(Code::INVALID_IMAGE, "the simulator runs PTX text, and this is none")
    })
}

fn load(module: Out<Handle>, ptx: Result<String, Code>) -> Code {
    call(|turn| {
        let handle = turn.load(&ptx?)?;
        module.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: Out<Handle>, image: *const c_void) -> Code {
    load(module, image_text(image))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoad(module: Out<Handle>, path: *const c_char) -> Code {
    let ptx = text(path).and_then(|path| std::fs::read_to_string(path).map_err(|_| Code::FILE_NOT_FOUND));
    load(module, ptx)
}

/// `CU_JIT_ERROR_LOG_BUFFER` and its `_SIZE_BYTES`.
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

/// Of the options only the buffer for errors matters.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: *const c_void,
    count: c_uint,
    options: *const c_uint,
    values: *const *mut c_void,
) -> Code {
    let count = count as usize;
    let (Ok(options), Ok(values)) = (array(options, count), array(values, count)) else {
        return Code::INVALID_VALUE;
    };
    let code = load(module, image_text(image));
    if code != Code::SUCCESS {
        let of = |option| options.iter().position(|&o| o == option).map(|index| values[index]);
        if let (Some(buffer), Some(bytes)) = (of(ERROR_LOG), of(ERROR_LOG_BYTES)) {
            // An option that is a number is stored in the pointer itself.
            fill(buffer.cast(), bytes as usize, &threads::message());
        }
    }
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> Code {
    call(|turn| {
        let of = turn.modules.remove(module)?;
        for function in of.functions {
            turn.functions.remove(function)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: *const c_char) -> Code {
    call(|turn| {
        let handle = turn.find_function(module, &text(name)?)?;
        function.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunctionCount(count: Out<c_uint>, module: Handle) -> Code {
    call(|turn| count.set(turn.modules.get(module)?.module.kernels().len() as c_uint))
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_uint = 8;

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_uint, function: Handle) -> Code {
    call(|turn| {
        let (major, minor) = turn.config.capability;
        let version = (major * 10 + minor) as c_int;
        let of = turn.functions.get(function)?;
        value.set(match attribute {
            0 => of.kernel.max_threads.unwrap_or(1024) as c_int,
            1 => of.kernel.shared as c_int,
            4 => 32, // registers: a simulator has as many as a kernel wants
            5 | 6 => version,
            MAX_DYNAMIC_SHARED => of.dynamic_shared as c_int,
            9 => -1, // carve-out of shared memory: the driver's choice
            2 | 3 | 7 | 10..=16 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_uint, value: c_int) -> Code {
    call(|turn| {
        let most = super::device::shared_optin(turn.config.capability);
        let of = turn.functions.get_mut(function)?;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let room = most.saturating_sub(of.kernel.shared);
                let Some(bytes) = u32::try_from(value).ok().filter(|&b| b <= room) else {
                    let why = format!(
                        "{value} bytes of dynamic shared memory for {}, where blocks have {most} at most",
                        of.kernel.name
                    );
                    return Err(turn.refuse(Code::INVALID_VALUE, why));
                };
                of.dynamic_shared = bytes;
                Ok(())
            }
            9..=16 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: c_uint) -> Code {
    call(|turn| turn.functions.get(function).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetModule(module: Out<Handle>, function: Handle) -> Code {
    call(|turn| module.set(turn.functions.get(function)?.module))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetParamInfo(
    function: Handle,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Code {
    call(|turn| {
        let params = &turn.functions.get(function)?.kernel.params;
        let bytes = *params.get(index).ok_or(Code::INVALID_VALUE)?;
        // Each parameter is aligned to its size, as all of basic types are.
        let next = |at: u32, size: u32| at.next_multiple_of(size.max(1));
        let before = params[..index].iter().fold(0, |at, &size| next(at, size) + size);
        offset.set(next(before, bytes) as usize)?;
        size.set_if_wanted(bytes as usize);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_devices_run_older_targets_unless_they_promise_nothing() {
        assert!(runs_on("sm_80", (9, 0)) && runs_on("sm_90", (9, 0)) && runs_on("sm_90a", (9, 0)));
        assert!(!runs_on("sm_90a", (10, 0)) && !runs_on("sm_100a", (9, 0)) && !runs_on("sm_90", (8, 0)));
        assert!(runs_on("sm_90", (10, 0)) && !runs_on("compute", (9, 0)));
    }
}
