//! Memory of devices and of the host.

use super::{Handle, Out, call};
use crate::code::Code;
use crate::work::Work;
use std::ffi::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) -> Code {
    call(|turn| {
        let context = turn.context()?;
        turn.refuse_while_capturing("cuMemAlloc")?;
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let at = turn.alloc(context, bytes as u64)?;
        address.set(at)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call(|turn| {
        let context = turn.context()?;
        if address == 0 {
            return Ok(());
        }
        turn.refuse_while_capturing("cuMemFree")?;
        turn.free(context, address)
    })
}

fn alloc_async(address: Out<u64>, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        let context = turn.streams.get(stream)?.context;
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if bytes == 0 {
            // What the driver answers then is no address of memory.
            return address.set(0);
        }
        let addr = turn.alloc(context, bytes as u64)?;
        let work = Work::Alloc { addr, len: bytes as u64 };
        if let Err(code) = turn.submit(stream, work, format!("allocation of {bytes} bytes")) {
            let _ = turn.free_now(addr);
            return Err(code);
        }
        address.set(addr)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) -> Code {
    alloc_async(address, bytes, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(
    address: Out<u64>,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    match call(|turn| turn.pools.get(pool).map(|_| ())) {
        Code::SUCCESS => alloc_async(address, bytes, stream),
        refused => refused,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        let Some(len) = turn.allocations.get(&address).map(|a| a.bytes) else {
            let why = format!("free of {address:#x}, which is no allocation or was freed already");
            return Err(turn.refuse(Code::INVALID_VALUE, why));
        };
        turn.submit(stream, Work::Free { addr: address, len }, format!("free of {len} bytes"))?;
        turn.run_some();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call(|turn| {
        let device = turn.current_device()?;
        let all = turn.config.memory;
        let used = turn.used(device);
        free.set(all.saturating_sub(used) as usize)?;
        total.set(all as usize)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) -> Code {
    call(|turn| {
        turn.context()?;
        let (start, bytes) = turn.memory.range_of(address).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(start);
        size.set_if_wanted(bytes as usize);
        Ok(())
    })
}

/// `CU_POINTER_ATTRIBUTE_*` that are an int: the type of memory, the device; and whether memory is managed.
#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttribute(value: Out<c_int>, attribute: c_uint, address: u64) -> Code {
    call(|turn| {
        let device = turn.memory.device_of(address);
        let (host, of_device) = (1, 2);
        match (attribute, device) {
            (2, Some(_)) => value.set(of_device),
            (2, None) if turn.pinned_at(address).is_some() => value.set(host),
            (9, Some(device)) => value.set(device as c_int),
            (2 | 9, None) => Err(Code::INVALID_VALUE),
            (8, _) => value.set(0),
            _ => Err(turn.refuse(Code::NOT_SUPPORTED, format!("pointer attribute {attribute}"))),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(address: Out<*mut c_void>, bytes: usize, _flags: c_uint) -> Code {
    call(|turn| {
        turn.context()?;
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let at = turn.alloc_pinned(bytes as u64)?;
        address.set(at as *mut c_void)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(address: Out<*mut c_void>, bytes: usize) -> Code {
    cuMemHostAlloc(address, bytes, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> Code {
    call(|turn| {
        if threads_have_no_context() {
            return Err(Code::INVALID_CONTEXT);
        }
        turn.free_pinned(address as u64, true)
    })
}

/// Memory of the host can be freed with a context that has failed, or it would stay for good; but not with none.
fn threads_have_no_context() -> bool {
    crate::threads::current().is_none()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) -> Code {
    call(|turn| {
        turn.context()?;
        let (at, bytes) = (address as u64, bytes as u64);
        let end = at.checked_add(bytes).filter(|_| at != 0 && bytes != 0).ok_or(Code::INVALID_VALUE)?;
        let overlaps = turn.pinned.range(..end).next_back().is_some_and(|(&s, &(n, _))| s + n > at);
        if overlaps {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        turn.pinned.insert(at, (bytes, false));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> Code {
    call(|turn| {
        if turn.pinned.get(&(address as u64)).is_none_or(|&(_, here)| here) {
            return Err(Code::HOST_MEMORY_NOT_REGISTERED);
        }
        turn.free_pinned(address as u64, false)
    })
}
