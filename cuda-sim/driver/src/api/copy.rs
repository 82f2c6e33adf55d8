//! Copies and settings of memory.
//!
//! A copy between a device and page-locked memory of the host is made when its turn comes in the stream. Of pageable memory the bytes are taken
//! when a copy to a device is asked for, and a copy to it is waited for: that is what the driver promises (CUDA Driver API, "API synchronization
//! behavior").

use super::{Handle, call};
use crate::code::Code;
use crate::host;
use crate::mutant::Kind;
use crate::state::Turn;
use crate::work::{Source, Work};
use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

impl Turn {
    /// Whether a range of the host is page-locked; part of it must not be.
    fn is_pinned(&mut self, what: &str, addr: u64, len: u64) -> Result<bool, Code> {
        if addr == 0 {
            return Err(self.refuse(Code::INVALID_VALUE, format!("{what} at the null address of the host")));
        }
        match self.pinned_at(addr) {
            None => Ok(false),
            Some((start, bytes)) if len <= start + bytes - addr => Ok(true),
            Some((start, bytes)) => {
                let why = format!(
                    "{what} of {len} bytes at offset {} of the {bytes} bytes of page-locked memory at {start:#x}",
                    addr - start
                );
                Err(self.refuse(Code::INVALID_VALUE, why))
            }
        }
    }

    fn copy_in(&mut self, dst: u64, src: u64, len: u64, stream: u64, waits: bool) -> Result<(), Code> {
        if len == 0 {
            return Ok(());
        }
        self.check_range("copy to the device", dst, len)?;
        let pinned = self.is_pinned("copy from the host", src, len)?;
        let src = if pinned {
            Source::Pinned { addr: src, digest: None }
        } else {
            Source::Bytes(host::read(src, len).into())
        };
        let what = format!("copy of {len} bytes from the host to {dst:#x}");
        let ticket = self.submit(stream, Work::HostToDevice { dst, src, len }, what)?;
        if waits {
            let context = self.streams.get(stream)?.context;
            return self.finish(&ticket, context, "waits for a copy to the device");
        }
        self.run_some();
        Ok(())
    }

    fn copy_out(&mut self, dst: u64, src: u64, len: u64, stream: u64, waits: bool) -> Result<(), Code> {
        if len == 0 {
            return Ok(());
        }
        self.check_range("copy from the device", src, len)?;
        let pinned = self.is_pinned("copy to the host", dst, len)?;
        if !pinned {
            self.refuse_captured(stream, "a copy to pageable memory")?;
        }
        let what = format!("copy of {len} bytes from {src:#x} to the host");
        let ticket = self.submit(stream, Work::DeviceToHost { dst, src, len }, what)?;
        if waits || !pinned {
            let context = self.streams.get(stream)?.context;
            return self.finish(&ticket, context, "waits for a copy from the device");
        }
        self.run_some();
        Ok(())
    }

    fn copy_within(&mut self, dst: u64, src: u64, len: u64, stream: u64) -> Result<(), Code> {
        if len == 0 {
            return Ok(());
        }
        self.check_range("copy from the device", src, len)?;
        self.check_range("copy to the device", dst, len)?;
        let what = format!("copy of {len} bytes from {src:#x} to {dst:#x}");
        self.submit(stream, Work::DeviceToDevice { dst, src, len }, what)?;
        self.run_some();
        Ok(())
    }

    fn set_memory(
        &mut self,
        dst: u64,
        value: u32,
        width: u64,
        count: usize,
        stream: u64,
    ) -> Result<(), Code> {
        let count = count as u64;
        let len = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
        if len == 0 {
            return Ok(());
        }
        self.check_range("setting", dst, len)?;
        if !dst.is_multiple_of(width) {
            return Err(self.refuse(Code::INVALID_VALUE, format!("setting at {dst:#x}, misaligned")));
        }
        let what = format!("setting of {len} bytes at {dst:#x}");
        self.submit(stream, Work::Set { dst, value, width, count }, what)?;
        self.run_some();
        Ok(())
    }

    /// A copy of which each end may be on the host or on a device.
    fn copy_any(&mut self, dst: u64, src: u64, len: u64, stream: u64, waits: bool) -> Result<(), Code> {
        let on_device = |turn: &Turn, addr| turn.memory.device_of(addr).is_some();
        match (on_device(self, dst), on_device(self, src)) {
            (true, true) => self.copy_within(dst, src, len, stream),
            (true, false) => self.copy_in(dst, src, len, stream, waits),
            (false, true) => self.copy_out(dst, src, len, stream, waits),
            (false, false) => Err(self.refuse(Code::INVALID_VALUE, "copy between two addresses of the host")),
        }
    }

    /// The stream of calls that name none.
    fn legacy(&mut self) -> Result<u64, Code> {
        self.refuse_while_capturing("a call on stream 0 that may wait")?;
        self.current_stream(0)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        turn.copy_in(dst, src as u64, bytes as u64, stream, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(dst: u64, src: *const c_void, bytes: usize) -> Code {
    call(|turn| {
        let stream = turn.legacy()?;
        turn.copy_in(dst, src as u64, bytes as u64, stream, true)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        turn.copy_out(dst as u64, src, bytes as u64, stream, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(dst: *mut c_void, src: u64, bytes: usize) -> Code {
    call(|turn| {
        let stream = turn.legacy()?;
        turn.copy_out(dst as u64, src, bytes as u64, stream, true)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        if turn.is_mutant(Kind::SkipCopy, stream) {
            return Ok(());
        }
        turn.copy_within(dst, src, bytes as u64, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(dst: u64, src: u64, bytes: usize) -> Code {
    call(|turn| {
        let stream = turn.legacy()?;
        turn.copy_within(dst, src, bytes as u64, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(dst: u64, src: u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        if turn.is_mutant(Kind::SkipCopy, stream) {
            return Ok(());
        }
        turn.copy_any(dst, src, bytes as u64, stream, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy(dst: u64, src: u64, bytes: usize) -> Code {
    call(|turn| {
        let stream = turn.legacy()?;
        turn.copy_any(dst, src, bytes as u64, stream, true)
    })
}

/// Refuses ends of a copy that are not on the devices of their contexts.
fn check_peers(turn: &mut Turn, ends: [(u64, Handle); 2], bytes: usize) -> Result<(), Code> {
    for (addr, context) in ends {
        let device = turn.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?.device;
        if bytes > 0 && turn.memory.device_of(addr) != Some(device) {
            let why = format!("{addr:#x} is not on device {device}, whose context it comes with");
            return Err(turn.refuse(Code::INVALID_VALUE, why));
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    dst: u64,
    dst_context: Handle,
    src: u64,
    src_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        check_peers(turn, [(dst, dst_context), (src, src_context)], bytes)?;
        turn.copy_within(dst, src, bytes as u64, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeer(
    dst: u64,
    dst_context: Handle,
    src: u64,
    src_context: Handle,
    bytes: usize,
) -> Code {
    call(|turn| {
        let stream = turn.legacy()?;
        check_peers(turn, [(dst, dst_context), (src, src_context)], bytes)?;
        turn.copy_within(dst, src, bytes as u64, stream)
    })
}

fn set_async(dst: u64, value: u32, width: u64, count: usize, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        if turn.is_mutant(Kind::SkipZero, stream) {
            return Ok(());
        }
        turn.set_memory(dst, value, width, count, stream)
    })
}

fn set_sync(dst: u64, value: u32, width: u64, count: usize) -> Code {
    call(|turn| {
        let stream = turn.legacy()?;
        turn.set_memory(dst, value, width, count, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(dst: u64, value: c_uchar, count: usize, stream: Handle) -> Code {
    set_async(dst, value.into(), 1, count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(dst: u64, value: c_ushort, count: usize, stream: Handle) -> Code {
    set_async(dst, value.into(), 2, count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(dst: u64, value: c_uint, count: usize, stream: Handle) -> Code {
    set_async(dst, value, 4, count, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(dst: u64, value: c_uchar, count: usize) -> Code {
    set_sync(dst, value.into(), 1, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16_v2(dst: u64, value: c_ushort, count: usize) -> Code {
    set_sync(dst, value.into(), 2, count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(dst: u64, value: c_uint, count: usize) -> Code {
    set_sync(dst, value, 4, count)
}
