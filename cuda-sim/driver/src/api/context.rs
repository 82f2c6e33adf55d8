//! Contexts.

use super::{Handle, Ignored, Out, call};
use crate::code::Code;
use crate::state::Turn;
use crate::threads::{self, contexts};
use std::ffi::{c_int, c_uint};

impl Turn {
    /// Waits for all that a context was asked for, in all its streams.
    fn drain(&mut self, context: u64) {
        let streams: Vec<_> = self.streams.iter().filter(|(_, s)| s.context == context).collect();
        let tails: Vec<_> = streams.into_iter().map(|(_, s)| s.tail.clone()).collect();
        for tail in tails {
            self.wait_for(&tail, "waits for all work of a context");
        }
    }

    /// Ends a context and all that is in it.
    fn destroy_context(&mut self, context: u64) -> Result<(), Code> {
        self.drain(context);
        let of = self.contexts.remove(context).map_err(|_| Code::INVALID_CONTEXT)?;
        let mine = |all: Vec<(u64, u64)>| all.into_iter().filter(|(_, c)| *c == context).map(|(h, _)| h);
        for stream in mine(self.streams.iter().map(|(h, s)| (h, s.context)).collect()) {
            self.streams.remove(stream)?;
        }
        for event in mine(self.events.iter().map(|(h, e)| (h, e.context)).collect()) {
            self.events.remove(event)?;
        }
        for module in mine(self.modules.iter().map(|(h, m)| (h, m.context)).collect()) {
            self.modules.remove(module)?;
        }
        for function in mine(self.functions.iter().map(|(h, f)| (h, f.context)).collect()) {
            self.functions.remove(function)?;
        }
        debug_assert!((of.device as usize) < self.devices.len());
        self.free_all(context);
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        let (handle, count) = match turn.devices[device as usize].primary {
            Some((handle, count)) => (handle, count + 1),
            None => (turn.new_context(device, true), 1),
        };
        turn.devices[device as usize].primary = Some((handle, count));
        context.set(handle)
    })
}

fn release(device: c_int, all: bool) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        let Some((handle, count)) = turn.devices[device as usize].primary else {
            return if all { Ok(()) } else { Err(Code::INVALID_CONTEXT) };
        };
        if count > 1 && !all {
            turn.devices[device as usize].primary = Some((handle, count - 1));
            return Ok(());
        }
        turn.devices[device as usize].primary = None;
        turn.destroy_context(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    release(device, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code {
    release(device, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        flags.set(0)?;
        active.set(turn.devices[device as usize].primary.is_some().into())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Code {
    call(|turn| turn.device(device).map(|_| ()))
}

fn create(context: Out<Handle>, device: c_int) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        let handle = turn.new_context(device, false);
        contexts(|all| all.push(handle));
        context.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v2(context: Out<Handle>, _flags: c_uint, device: c_int) -> Code {
    create(context, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v3(
    context: Out<Handle>,
    _affinity: Ignored,
    _affinities: c_int,
    _flags: c_uint,
    device: c_int,
) -> Code {
    create(context, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v4(
    context: Out<Handle>,
    _params: Ignored,
    _flags: c_uint,
    device: c_int,
) -> Code {
    create(context, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: Handle) -> Code {
    call(|turn| {
        if turn.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?.primary {
            return Err(turn.refuse(Code::INVALID_CONTEXT, "a primary context is released, not destroyed"));
        }
        contexts(|all| {
            if all.last() == Some(&context) {
                all.pop();
            }
        });
        turn.destroy_context(context)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> Code {
    call(|_| context.set(threads::current().unwrap_or(0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    call(|turn| {
        if context != 0 {
            turn.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        }
        contexts(|all| {
            all.pop();
            if context != 0 {
                all.push(context);
            }
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> Code {
    call(|turn| {
        turn.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        contexts(|all| all.push(context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPopCurrent_v2(context: Out<Handle>) -> Code {
    call(|_| {
        let old = contexts(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_wanted(old);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> Code {
    call(|turn| {
        let context = threads::current().ok_or(Code::INVALID_CONTEXT)?;
        let of = turn.contexts.get(context).map_err(|_| Code::CONTEXT_IS_DESTROYED)?.device;
        device.set(of as c_int)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    call(|turn| {
        let context = turn.context()?;
        turn.refuse_while_capturing("synchronisation of a context")?;
        turn.drain(context);
        turn.context().map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetApiVersion(context: Handle, version: Out<c_uint>) -> Code {
    call(|turn| {
        if context != 0 {
            turn.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        }
        version.set(3020)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> Code {
    call(|turn| {
        turn.context()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(super::stream::GREATEST);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    call(|turn| turn.context().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(_limit: c_uint, _value: usize) -> Code {
    call(|turn| turn.context().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) -> Code {
    call(|turn| {
        turn.context()?;
        // The defaults of the stack of a thread, the buffer of `printf` and the heap of kernels.
        let limits = [1024, 1 << 20, 8 << 20];
        let found = limits.get(limit as usize).copied();
        value.set(found.ok_or(Code::INVALID_VALUE)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(_config: c_uint) -> Code {
    call(|turn| turn.context().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCacheConfig(config: Out<c_uint>) -> Code {
    call(|turn| {
        turn.context()?;
        config.set(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: Handle, _flags: c_uint) -> Code {
    call(|turn| {
        turn.context()?;
        turn.contexts.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        let why = "kernels that use another device's memory are not simulated";
        Err(turn.refuse(Code::PEER_ACCESS_UNSUPPORTED, why))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDisablePeerAccess(peer: Handle) -> Code {
    call(|turn| {
        turn.context()?;
        turn.contexts.get(peer).map_err(|_| Code::INVALID_CONTEXT)?;
        Err(Code::PEER_ACCESS_NOT_ENABLED)
    })
}
