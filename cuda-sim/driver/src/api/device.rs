//! `cuInit`, errors and devices.

use super::{Out, call, fill};
use crate::code::Code;
use crate::state::Turn;
use std::ffi::{c_char, c_int, c_uint};

/// CUDA 12.8, the version whose interface this is.
const VERSION: c_int = 12_080;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    let mut turn = Turn::take();
    turn.threads.here();
    if let Some(nonsense) = turn.config.nonsense.clone() {
        return turn.refuse(Code::INVALID_VALUE, nonsense);
    }
    match (flags, turn.devices.len()) {
        (0, 0) => turn.refuse(Code::NO_DEVICE, "PCC_SIM_DEVICES is 0"),
        (0, _) => {
            turn.initialised = true;
            Code::SUCCESS
        }
        _ => Code::INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    version.set(VERSION).err().unwrap_or(Code::SUCCESS)
}

fn word(code: u32, out: Out<*const c_char>, name: bool) -> Code {
    match Code(code).words() {
        Some((of, text)) => {
            let word = if name { of } else { text };
            out.set(word.as_ptr()).err().unwrap_or(Code::SUCCESS)
        }
        None => {
            out.set_if_wanted(std::ptr::null());
            Code::INVALID_VALUE
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> Code {
    word(code, name, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> Code {
    word(code, text, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    call(|turn| count.set(turn.devices.len() as c_int))
}

impl Turn {
    /// A device's index.
    pub(super) fn device(&self, ordinal: c_int) -> Result<u32, Code> {
        let index = u32::try_from(ordinal).ok().filter(|&d| (d as usize) < self.devices.len());
        index.ok_or(Code::INVALID_DEVICE)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> Code {
    call(|turn| {
        turn.device(ordinal)?;
        device.set(ordinal)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Code {
    call(|turn| {
        turn.device(device)?;
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let (major, minor) = turn.config.capability;
        fill(name, usize::try_from(length).unwrap_or(0), &format!("pcc simulated GPU, sm_{major}{minor}"));
        Ok(())
    })
}

/// A `CUuuid`: says what this is and which device.
fn uuid(out: Out<[u8; 16]>, device: c_int) -> Code {
    call(|turn| {
        let index = turn.device(device)?;
        let mut bytes = *b"pcc-cuda-sim\0\0\0\0";
        bytes[12..].copy_from_slice(&index.to_be_bytes());
        out.set(bytes)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: c_int) -> Code {
    uuid(out, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: c_int) -> Code {
    uuid(out, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> Code {
    call(|turn| {
        turn.device(device)?;
        bytes.set(turn.config.memory as usize)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Code {
    call(|turn| {
        let index = turn.device(device)?;
        let found = attribute_of(turn.config.capability, attribute, index);
        value.set(found.ok_or(Code::INVALID_VALUE)?)
    })
}

/// Bytes of shared memory that a block has when it asks: CUDA C++ Programming Guide, table of compute capabilities.
pub(super) fn shared_optin((major, minor): (u32, u32)) -> u32 {
    match (major, minor) {
        (8, 0 | 7) => 163 << 10,
        (8, _) => 99 << 10,
        (9 | 10, _) => 227 << 10,
        (12, _) => 99 << 10,
        _ => 48 << 10,
    }
}

/// Attributes by number. What nobody asks of a simulator is 0; numbers that do not exist have none.
fn attribute_of(capability: (u32, u32), attribute: c_int, device: u32) -> Option<c_int> {
    let optin = shared_optin(capability) as c_int;
    Some(match attribute {
        1..=3 => 1024,   // threads of a block, in x, in y
        4 => 64,         // in z
        5 => c_int::MAX, // blocks in x
        6 | 7 => 65_535,
        8 => 48 << 10, // shared memory of a block that does not ask
        9 => 64 << 10, // constant memory
        10 => 32,      // threads of a warp
        11 => c_int::MAX,
        12 | 82 => 65_536, // registers of a block, of a multiprocessor
        13 => 1_000_000,   // kHz
        14 => 512,
        15 | 31 | 41 | 78 | 79 | 80 | 90 | 95 | 99 | 115 => 1, // overlap, streams, unified addresses, pools and the like
        16 => 4,                                               // multiprocessors
        33 => device as c_int,                                 // PCI bus
        36 => 1_000_000,
        37 => 4096,
        38 => 32 << 20, // L2
        39 => 2048,     // threads of a multiprocessor
        40 => 2,        // copy engines
        75 => capability.0 as c_int,
        76 => capability.1 as c_int,
        81 => optin + 1024, // shared memory of a multiprocessor
        97 => optin,        // of a block that asks
        106 => 32,          // blocks of a multiprocessor
        111 => 1024,        // shared memory kept by the driver
        _ if (1..=145).contains(&attribute) => 0,
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> Code {
    call(|turn| {
        turn.device(device)?;
        turn.device(peer)?;
        // Copies between devices work all the same; that kernels use another device's memory is not simulated.
        can.set(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetP2PAttribute(
    value: Out<c_int>,
    _attribute: c_int,
    from: c_int,
    to: c_int,
) -> Code {
    call(|turn| {
        turn.device(from)?;
        turn.device(to)?;
        value.set(0)
    })
}
