//! Events.

use super::{Handle, Out, call};
use crate::code::Code;
use crate::graph::{Event, Recorded};
use crate::mutant::Kind;
use crate::state::Turn;
use crate::work::Ticket;
use std::ffi::c_uint;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_EVENT_BLOCKING_SYNC`, `_DISABLE_TIMING`, `_INTERPROCESS`.
const FLAGS: u32 = 7;

impl Turn {
    /// The work an event stands for; none if it was never recorded.
    fn event_ticket(&mut self, event: u64) -> Result<Option<Ticket>, Code> {
        let of = self.events.get(event)?;
        let (context, recorded) = (of.context, of.recorded.clone());
        self.sound_context(context)?;
        match recorded {
            Recorded::Never => Ok(None),
            Recorded::Work(ticket) => Ok(Some(ticket)),
            Recorded::Captured { .. } => {
                Err(self.refuse(Code::CAPTURED_EVENT, "the event was recorded in a stream that is captured"))
            }
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<Handle>, flags: c_uint) -> Code {
    call(|turn| {
        let context = turn.context()?;
        if flags & !FLAGS != 0 || event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = turn.events.insert(Event { context, flags, recorded: Recorded::Never });
        event.set(handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call(|turn| turn.events.remove(event).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    call(|turn| {
        let stream = turn.current_stream(stream)?;
        if turn.is_mutant(Kind::SkipRecord, stream) {
            return Ok(());
        }
        turn.record(event, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) -> Code {
    if flags != 0 {
        return call(|turn| Err(turn.refuse(Code::NOT_SUPPORTED, "flags of cuEventRecordWithFlags")));
    }
    cuEventRecord(event, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> Code {
    call(|turn| {
        let Some(ticket) = turn.event_ticket(event)? else { return Ok(()) };
        let done = turn.query(&ticket);
        turn.event_ticket(event)?;
        if done { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    call(|turn| {
        let Some(ticket) = turn.event_ticket(event)? else { return Ok(()) };
        let context = turn.events.get(event)?.context;
        turn.finish(&ticket, context, "waits for an event")
    })
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Code {
    call(|turn| {
        let (a, b) = (turn.event_ticket(start)?, turn.event_ticket(end)?);
        let timed = |turn: &Turn, e| turn.events.get(e).is_ok_and(|e| e.flags & NO_TIMING == 0);
        let (Some(a), Some(b)) = (a, b) else { return Err(Code::INVALID_HANDLE) };
        if !timed(turn, start) || !timed(turn, end) {
            return Err(turn.refuse(Code::INVALID_HANDLE, "an event was made without timing"));
        }
        let (Some(a), Some(b)) = (a.finished_at(), b.finished_at()) else { return Err(Code::NOT_READY) };
        // Of the simulator, not of any GPU.
        let between = if b >= a { (b - a).as_secs_f32() } else { -(a - b).as_secs_f32() };
        milliseconds.set(between * 1000.0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) -> Code {
    elapsed(milliseconds, start, end)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) -> Code {
    elapsed(milliseconds, start, end)
}
