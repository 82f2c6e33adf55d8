//! Operations are checked and put into streams.

use super::{CommWork, Op, Refusal, Seat};
use crate::abi;
use crate::code::Code;
use crate::state::Turn;
use crate::work::Work;
use std::collections::BTreeMap;
use std::ops::Range;

/// The operations of one communicator's rank in a group call.
struct Batch {
    seat: Seat,
    ops: Vec<Op>,
    streams: Vec<u64>,
}

impl Turn {
    /// Puts the operations of a group call (or one operation) into their streams: those of a communicator's rank are one piece of work, behind
    /// all that is in any of their streams.
    pub fn comm_submit(&mut self, ops: &[abi::Op]) -> Result<(), Refusal> {
        let ops: Vec<abi::Op> = ops.iter().filter_map(|op| self.mutated(*op)).collect();
        for seat in ops.iter().map(|op| op.comm) {
            let seat = self.seat(seat)?;
            self.comm_sound(seat.group)?;
            self.comm_idle(seat)?;
        }
        if self.comm_defer(&ops)? { Err(abi::IN_PROGRESS) } else { self.comm_post(&ops) }
    }

    /// Puts operations, of which nothing is deferred, into their streams.
    pub(super) fn comm_post(&mut self, ops: &[abi::Op]) -> Result<(), Refusal> {
        let mut batches: BTreeMap<u64, Batch> = BTreeMap::new();
        let mut order = Vec::new();
        for raw in ops {
            let seat = self.seat(raw.comm)?;
            self.comm_sound(seat.group)?;
            let (op, stream) = self.comm_check(seat, raw)?;
            let batch = batches.entry(raw.comm).or_insert_with(|| {
                order.push(raw.comm);
                Batch { seat, ops: Vec::new(), streams: Vec::new() }
            });
            batch.ops.push(op);
            if !batch.streams.contains(&stream) {
                batch.streams.push(stream);
            }
        }
        for batch in batches.values() {
            self.comm_check_apart(batch)?;
        }
        for comm in order {
            let Some(Batch { seat: Seat { group, rank }, ops, streams }) = batches.remove(&comm) else {
                continue;
            };
            let what: Vec<String> = ops.iter().map(Op::to_string).collect();
            let what = format!("{} (rank {rank} of a communicator)", what.join(", "));
            let work = Work::Communicate(CommWork { group, rank, ops });
            self.submit_over(&streams, work, what).map_err(|_| abi::UNHANDLED_CUDA_ERROR)?;
        }
        self.run_some();
        Ok(())
    }

    /// Refuses operations of one group call that write what another of them uses: nothing orders them.
    fn comm_check_apart(&mut self, batch: &Batch) -> Result<(), Refusal> {
        let Seat { group, rank } = batch.seat;
        let size = self.comms.groups.get(&group).map_or(0, |of| of.size);
        let meet = |a: Range<u64>, b: Range<u64>| a.start.max(b.start) < a.end.min(b.end);
        for (n, a) in batch.ops.iter().enumerate() {
            for b in &batch.ops[n + 1..] {
                let (written, others) = (a.writes(rank, size), b.writes(rank, size));
                if meet(written.clone(), others.clone())
                    || meet(written, b.reads(rank, size))
                    || meet(others, a.reads(rank, size))
                {
                    let why = format!(
                        "rank {rank}, in one group call: {a} and {b}, of which one writes what the other uses"
                    );
                    self.refuse(Code::INVALID_VALUE, why);
                    return Err(abi::INVALID_ARGUMENT);
                }
            }
        }
        Ok(())
    }

    /// Checks an operation against its communicator, stream and memory.
    fn comm_check(&mut self, seat: Seat, raw: &abi::Op) -> Result<(Op, u64), Refusal> {
        let Seat { group, rank } = seat;
        let of = self.comms.groups.get(&group).ok_or(abi::INVALID_ARGUMENT)?;
        let (size, complete) = (of.size, of.complete.is_done());
        let member = of.members.get(&rank).ok_or(abi::INVALID_ARGUMENT)?;
        let (context, device, gone) = (member.context, member.device, member.gone);
        let refuse = |turn: &mut Turn, code: Refusal, why: String| {
            turn.refuse(
                Code::INVALID_VALUE,
                format!("rank {rank} of a communicator, device {device}: {why}"),
            );
            Err(code)
        };
        if let Some(how) = gone {
            return refuse(self, abi::INVALID_USAGE, format!("it {how}"));
        }
        if !complete {
            let why = "an operation before all ranks are in the communicator".to_owned();
            return refuse(self, abi::INVALID_USAGE, why);
        }
        let op = match Op::parse(raw, size) {
            Ok(op) => op,
            Err(why) => return refuse(self, abi::INVALID_ARGUMENT, why),
        };
        let stream = match self.stream(raw.stream, context) {
            Ok(stream) => stream,
            Err(code) => return refuse(self, abi::INVALID_ARGUMENT, format!("{op}: its stream: {code:?}")),
        };
        let own = self.streams.get(stream).ok().map(|s| s.context);
        let stream_device = own.and_then(|c| self.contexts.get(c).ok()).map(|c| c.device);
        if stream_device != Some(device) {
            let why = format!("{op}: its stream is on device {}", stream_device.unwrap_or(u32::MAX));
            return refuse(self, abi::INVALID_ARGUMENT, why);
        }
        for (name, range) in [("send", op.reads(rank, size)), ("receive", op.writes(rank, size))] {
            if range.is_empty() {
                continue;
            }
            let found = self.memory.range_of(range.start).filter(|(s, n)| range.end <= s + n);
            if found.is_none() || self.memory.device_of(range.start) != Some(device) {
                let why =
                    format!("{op}: its {name} buffer {range:#x?} is not in one allocation of the device");
                return refuse(self, abi::INVALID_ARGUMENT, why);
            }
        }
        if op.overlaps_wrongly(rank, size) {
            let why = format!("{op}: send and receive buffers overlap, but not as in-place has it");
            return refuse(self, abi::INVALID_ARGUMENT, why);
        }
        Ok((op, stream))
    }
}
