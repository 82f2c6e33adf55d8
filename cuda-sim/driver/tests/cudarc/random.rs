//! Random programs on several streams: accesses that nothing orders are found, just those, and what is ordered gives what it should.

use crate::machine::seeded;
use cudarc::driver::sys::{CUevent_flags, CUevent_wait_flags};
use cudarc::driver::{result, sys};
use std::ops::Range;

const STREAMS: usize = 3;
const BYTES: usize = 96;

struct Random(u64);

impl Random {
    /// Knuth's MMIX generator; the high bits are good enough here.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// What an operation of a stream does to one buffer.
#[derive(Debug)]
enum Action {
    Set { to: Range<usize>, value: u8 },
    Copy { to: Range<usize>, from: usize },
}

#[derive(Debug)]
struct Operation {
    stream: usize,
    /// Earlier operations for whose events the stream waits before.
    waits: Vec<usize>,
    /// Operations that the host has waited for before it asks for this one.
    synchronised: Vec<usize>,
    action: Action,
}

impl Operation {
    fn writes(&self) -> Range<usize> {
        match &self.action {
            Action::Set { to, .. } | Action::Copy { to, .. } => to.clone(),
        }
    }

    fn reads(&self) -> Range<usize> {
        match &self.action {
            Action::Set { .. } => 0..0,
            Action::Copy { to, from } => *from..from + to.len(),
        }
    }

    fn conflicts(&self, other: &Self) -> bool {
        let meet = |a: Range<usize>, b: Range<usize>| a.start < b.end && b.start < a.end;
        meet(self.writes(), other.writes())
            || meet(self.writes(), other.reads())
            || meet(self.reads(), other.writes())
    }
}

fn program(random: &mut Random) -> Vec<Operation> {
    let mut all: Vec<Operation> = Vec::new();
    let mut synchronised = Vec::new();
    for n in 0..3 + random.below(12) {
        let stream = random.below(STREAMS);
        let waits = (0..random.below(3)).filter(|_| n > 0).map(|_| random.below(n.max(1))).collect();
        if n > 0 && random.below(8) == 0 {
            let of = random.below(STREAMS);
            synchronised.extend((0..n).filter(|&o| all[o].stream == of));
        }
        let length = 1 + random.below(24);
        let to = random.below(BYTES - length);
        let to = to..to + length;
        // Either apart or the same: a copy within a buffer may not overlap itself.
        let from = random.below(BYTES - length);
        let apart = from + length <= to.start || to.end <= from;
        let value = random.below(256) as u8;
        let action = if apart { Action::Copy { to, from } } else { Action::Set { to, value } };
        all.push(Operation { stream, waits, synchronised: synchronised.clone(), action });
    }
    all
}

/// Whether some two operations that conflict are not ordered: by streams, events, the host, and what follows from these.
fn races(all: &[Operation]) -> bool {
    let n = all.len();
    let mut before = vec![vec![false; n]; n];
    for (later, operation) in all.iter().enumerate() {
        let same = (0..later).filter(|&e| all[e].stream == operation.stream);
        let direct: Vec<usize> = same
            .chain(operation.waits.iter().copied())
            .chain(operation.synchronised.iter().copied())
            .collect();
        for earlier in direct {
            before[earlier][later] = true;
            for row in before.iter_mut() {
                row[later] |= row[earlier];
            }
        }
    }
    let mut pairs = (0..n).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
    pairs.any(|(a, b)| !before[a][b] && all[a].conflicts(&all[b]))
}

/// The buffer after the operations, one after another.
fn reference(all: &[Operation]) -> Vec<u8> {
    let mut buffer = vec![0; BYTES];
    for operation in all {
        match &operation.action {
            Action::Set { to, value } => buffer[to.clone()].fill(*value),
            Action::Copy { to, from } => buffer.copy_within(*from..from + to.len(), to.start),
        }
    }
    buffer
}

/// Runs a program. The error is what the driver answers in the end.
fn run(all: &[Operation]) -> Result<Vec<u8>, cudarc::driver::DriverError> {
    let device = result::device::get(0)?;
    // SAFETY: handles are used while they are valid; the context is reset by the caller.
    unsafe {
        result::ctx::set_current(result::primary_ctx::retain(device)?)?;
        let streams = [(); STREAMS].map(|_| result::stream::create(result::stream::StreamKind::NonBlocking));
        let buffer = result::malloc_sync(BYTES)? as usize;
        result::memset_d8_sync(buffer as u64, 0, BYTES)?;
        result::ctx::synchronize()?;
        let (mut events, mut known) = (Vec::new(), 0);
        for Operation { stream, waits, synchronised, action } in all {
            let stream = streams[*stream]?;
            for &operation in &synchronised[known..] {
                result::event::synchronize(events[operation])?;
            }
            known = synchronised.len();
            for &operation in waits {
                result::stream::wait_event(
                    stream,
                    events[operation],
                    CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
                )?;
            }
            match action {
                Action::Set { to, value } => {
                    result::memset_d8_async((buffer + to.start) as u64, *value, to.len(), stream)?;
                }
                Action::Copy { to, from } => {
                    let (to, from, bytes) = (buffer + to.start, buffer + from, to.len());
                    result::memcpy_dtod_async(to as u64, from as u64, bytes, stream)?;
                }
            }
            let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            result::event::record(event, stream)?;
            events.push(event);
        }
        result::ctx::synchronize()?;
        let mut found = vec![0; BYTES];
        result::memcpy_dtoh_sync(&mut found, buffer as u64)?;
        Ok(found)
    }
}

#[test]
fn races_are_found_where_they_are_and_nowhere_else() {
    seeded("random::races_are_found_where_they_are_and_nowhere_else", || {
        result::init().unwrap();
        let seed: u64 = std::env::var("PCC_SIM_SEED").unwrap().parse().unwrap();
        let mut kinds = [0; 2];
        for number in 0..400 {
            let program = program(&mut Random(seed << 32 | number));
            let expected = races(&program);
            let found = run(&program);
            match &found {
                Ok(buffer) => assert_eq!((false, &reference(&program)), (expected, buffer), "{program:?}"),
                Err(error) => {
                    assert!(expected, "{error} {}: {program:?}", crate::machine::last_fault());
                    assert!(crate::machine::last_fault().contains("race"));
                }
            }
            kinds[usize::from(expected)] += 1;
            // SAFETY: nothing of the context is used any more.
            let reset = unsafe { sys::cuDevicePrimaryCtxReset_v2(0) };
            assert_eq!(reset, sys::CUresult::CUDA_SUCCESS);
        }
        assert!(kinds.iter().all(|&n| n > 50), "{kinds:?}");
    });
}
