//! Memory pools. Memory from any pool of a device is the device's memory; a pool only remembers its settings.

use super::{Handle, Out, array, call};
use crate::code::Code;
use crate::state::Pool;
use std::ffi::{c_int, c_uint};

/// The beginning of `CUmemPoolProps`: type of allocation, of handles; type and number of the place.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    allocation: c_uint,
    handles: c_uint,
    place: c_uint,
    device: c_int,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(pool: Out<Handle>, properties: *const Properties) -> Code {
    call(|turn| {
        let Properties { place, device, .. } = *array(properties, 1)?.first().ok_or(Code::INVALID_VALUE)?;
        let device = turn.device(device)?;
        // `CU_MEM_LOCATION_TYPE_DEVICE`.
        if place != 1 || pool.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = turn.pools.insert(Pool { device, default: false, release_threshold: 0 });
        pool.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: Handle) -> Code {
    call(|turn| {
        let Pool { device, default, .. } = *turn.pools.get(pool)?;
        if default {
            return Err(Code::INVALID_VALUE);
        }
        turn.pools.remove(pool)?;
        let of = &mut turn.devices[device as usize];
        if of.pool == pool {
            of.pool = of.default_pool;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) -> Code {
    call(|turn| turn.pools.get(pool).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) -> Code {
    call(|turn| {
        let of = turn.pools.get(pool)?;
        let (device, threshold) = (of.device, of.release_threshold);
        match attribute {
            // Settings of reuse, ints: all on, as by default.
            1..=3 => Out(value.0.cast::<c_int>()).set(1),
            4 => value.set(threshold),
            5..=8 => value.set(turn.used(device)),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: *const u64) -> Code {
    call(|turn| {
        let of = turn.pools.get_mut(pool)?;
        match attribute {
            1..=3 => Ok(()),
            4 => {
                of.release_threshold = *array(value, 1)?.first().ok_or(Code::INVALID_VALUE)?;
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        pool.set(turn.devices[device as usize].default_pool)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        pool.set(turn.devices[device as usize].pool)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceSetMemPool(device: c_int, pool: Handle) -> Code {
    call(|turn| {
        let device = turn.device(device)?;
        if turn.pools.get(pool)?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        turn.devices[device as usize].pool = pool;
        Ok(())
    })
}
