//! Streams.

use super::{Handle, Out, call};
use crate::code::Code;
use crate::mutant::Kind;
use crate::state::NON_BLOCKING;
use std::ffi::{c_int, c_uint};

/// The highest priority; 0 is the lowest.
pub(super) const GREATEST: c_int = -5;

fn create(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Code {
    call(|turn| {
        let context = turn.context()?;
        if flags & !NON_BLOCKING != 0 || stream.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = turn.new_stream(context, flags, priority.clamp(GREATEST, 0));
        stream.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) -> Code {
    create(stream, flags, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Code {
    create(stream, flags, priority)
}

/// What was put into the stream goes on.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    call(|turn| {
        if stream <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        turn.refuse_captured(stream, "destruction")?;
        turn.streams.remove(stream)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        turn.refuse_captured(stream, "synchronisation")?;
        let context = turn.streams.get(stream)?.context;
        let ticket = turn.ticket_of(stream)?;
        turn.finish(&ticket, context, "waits for a stream")
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        turn.refuse_captured(stream, "query")?;
        let context = turn.streams.get(stream)?.context;
        let ticket = turn.ticket_of(stream)?;
        let done = turn.query(&ticket);
        turn.sound_context(context)?;
        if done { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        if turn.is_mutant(Kind::SkipWait, stream) {
            return Ok(());
        }
        turn.wait_event(stream, event)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        flags.set(turn.streams.get(stream)?.flags)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        priority.set(turn.streams.get(stream)?.priority)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        context.set(turn.streams.get(stream)?.context)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        turn.begin_capture(stream, mode)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        match turn.end_capture(stream) {
            Ok(handle) => graph.set(handle),
            Err(code) => {
                graph.set_if_wanted(0);
                Err(code)
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        status.set(turn.capture_status(stream)?.0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_uint>, id: Out<u64>) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        let (state, number) = turn.capture_status(stream)?;
        id.set_if_wanted(number);
        status.set(state)
    })
}
