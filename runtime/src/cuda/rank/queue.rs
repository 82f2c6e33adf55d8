//! What a run puts into the streams of a rank.

use super::super::control::Stopped;
use super::super::driver::{Event, Failure, Stream};
use super::super::nccl::Communicator;
use super::super::peers::{Circle, Meeting, Offer, Seat, gather};
use super::super::plan::Call;
use super::super::ranges::{self, Span};
use super::super::room::{MESSAGES, Message};
use super::super::work::{Among, Move, Product, Work};
use super::{Rank, Run, SYNC_VARIABLE};
use cranelift_entity::EntityRef;
use pcc_ir::Sizes;
use pcc_ir::gpu::{LibraryKernel, Shape};
use pcc_ir::program::{InstrKind, Slot, Step};
use std::collections::HashMap;
use std::sync::Arc;

/// Messages of a run so far: their number, and for each buffer the event after which it may be used again.
struct Mail {
    /// The start of the run: what a stream of messages waits for before it uses a buffer for the first time.
    start: Event,
    counts: HashMap<Message, u64>,
    free: HashMap<(Message, u64), Event>,
}

impl Rank<'_> {
    /// Queues all work of a run.
    pub(super) fn queue(&mut self, run: &Run) -> Result<(), Stopped> {
        let plan = self.station.plan.clone();
        let steps = &plan.program.entries[run.entry].stages[self.stage].steps;
        let mut mail = self.open_mail().map_err(self.failed("starting a run"))?;
        for &micro_batch in run.micro_batches.iter() {
            let sizes = Sizes { batch: plan.program.batch, rows: run.rows, micro_batch, seq: run.seq };
            for step in steps {
                self.station.control.go_on()?;
                match step {
                    Step::Call { func, slots, layer } => {
                        let call = Call {
                            plan: &plan,
                            entry: run.entry,
                            device: self.station.device,
                            sizes,
                            index: *func as usize,
                            slots,
                            base: self.memory.address,
                            scratch: self.room.scratch.map(|at| self.extra.address + at),
                        };
                        self.call(&call, *layer)?;
                        self.mark()?;
                    }
                    Step::Send { to, tag, slot, bytes } => {
                        self.meet(|_| true).map_err(self.failed("sending"))?;
                        let message =
                            Message { entry: run.entry, from: self.stage, to: *to as usize, tag: *tag };
                        self.send(&message, micro_batch, *slot, *bytes, &mut mail)?;
                    }
                    Step::Recv { from, tag, slot, bytes } => {
                        self.meet(|_| true).map_err(self.failed("receiving"))?;
                        let message =
                            Message { entry: run.entry, from: *from as usize, to: self.stage, tag: *tag };
                        self.receive(&message, micro_batch, *slot, *bytes, &mut mail)?;
                    }
                }
            }
        }
        self.pending.clear();
        self.join_streams()
    }

    fn open_mail(&self) -> Result<Mail, Failure> {
        let start = Event::new()?;
        self.compute.record(&start)?;
        Ok(Mail { start, counts: HashMap::new(), free: HashMap::new() })
    }

    /// Notes a point that compute will pass.
    fn mark(&mut self) -> Result<(), Stopped> {
        self.station.control.note_progress();
        if !self.recording {
            let event = Event::new().map_err(self.failed("marking a point"))?;
            self.compute.record(&event).map_err(self.failed("marking a point"))?;
            self.marks.push_back(event);
        }
        Ok(())
    }

    /// Whatever was queued on other streams is done before what is queued for compute from now on.
    fn join_streams(&self) -> Result<(), Stopped> {
        let failed = self.failed("ending a run");
        for stream in std::iter::once(&self.exchange).chain(self.links.values()) {
            let event = Event::new().map_err(&failed)?;
            // A stream that has not been drawn into a recording must stay out of it.
            self.after(&self.compute, stream).map_err(&failed)?;
            stream.record(&event).map_err(&failed)?;
            self.compute.wait(&event).map_err(&failed)?;
        }
        Ok(())
    }

    /// Lets a stream wait for what another has queued.
    fn after(&self, first: &Stream, then: &Stream) -> Result<(), Failure> {
        let event = Event::new()?;
        first.record(&event)?;
        then.wait(&event)
    }

    fn call(&mut self, call: &Call<'_>, layer: Option<u32>) -> Result<(), Stopped> {
        let func = call.func();
        let sync = !self.recording && std::env::var_os(SYNC_VARIABLE).is_some();
        let mut done = false;
        for (at, instr) in func.instrs.iter().enumerate() {
            if std::mem::take(&mut done) {
                continue;
            }
            let work = call.work(at);
            if work == Work::Nothing {
                continue;
            }
            let spans = call.spans(at);
            let what = &func.notes[instr.note as usize].what;
            let doing = || match layer {
                Some(layer) => format!("`{what}` of layer {layer}"),
                None => format!("`{what}`"),
            };
            if !matches!(work, Work::Exchange(_)) {
                self.meet(|pending| ranges::meet(pending, &spans))
                    .map_err(|e| self.station.failed(&e, &doing()))?;
            }
            match &work {
                Work::Nothing => {}
                Work::Fused { kernel, shape, params } => {
                    let function = self.fused[kernel.index()];
                    self.compute
                        .launch(function, shape, params)
                        .map_err(|e| self.station.failed(&e, &doing()))?;
                }
                Work::Library(launches) => {
                    for (kernel, shape, params) in launches {
                        self.library_launch(&self.compute, kernel, shape, params, &doing)?;
                    }
                }
                Work::Product(product) => done = self.product(call, at, product, &doing)?,
                Work::Exchange(moves) => {
                    let InstrKind::Collective(_) = instr.kind else { continue };
                    let number = call.plan.groups.find(call.index, at, self.station.position()).0;
                    self.exchange(Circle::Group { stage: self.stage, number }, moves, spans, &doing)?;
                }
            }
            if sync {
                self.settle(&doing())?;
            }
        }
        Ok(())
    }

    /// Queues the product that is instruction `at`. Whether the next instruction is done with it.
    fn product(
        &mut self,
        call: &Call<'_>,
        at: usize,
        product: &Product,
        doing: &dyn Fn() -> String,
    ) -> Result<bool, Stopped> {
        let station = self.station;
        let failed = |e: Failure| station.failed(&e, &doing());
        let refused = |why: String| station.broken(&why, &doing());
        if let (Some(fused), Some(_)) = (&product.fused, &self.blas) {
            let spans = call.spans(at + 1);
            self.meet(|pending| ranges::meet(pending, &spans)).map_err(failed)?;
            let blas = self.blas.as_mut();
            let taken = blas.map(|blas| blas.fused(product, fused, &self.compute)).transpose();
            if taken.map_err(refused)? == Some(true) {
                return Ok(true);
            }
        }
        let taken = self.blas.as_mut().map(|blas| blas.product(product, &self.compute)).transpose();
        if taken.map_err(refused)? == Some(true) {
            return Ok(false);
        }
        let inside = product.kernel.epilogue.is_some();
        if inside {
            let spans = call.spans(at + 1);
            self.meet(|pending| ranges::meet(pending, &spans)).map_err(failed)?;
        }
        self.launch(&LibraryKernel::Gemm(product.kernel), &product.launches(), doing)?;
        Ok(inside)
    }

    fn launch(
        &self,
        kernel: &LibraryKernel,
        launches: &[(Shape, Vec<u64>)],
        doing: &dyn Fn() -> String,
    ) -> Result<(), Stopped> {
        launches
            .iter()
            .try_for_each(|(shape, params)| self.library_launch(&self.compute, kernel, shape, params, doing))
    }

    fn library_launch(
        &self,
        stream: &Stream,
        kernel: &LibraryKernel,
        shape: &Shape,
        params: &[u64],
        doing: &dyn Fn() -> String,
    ) -> Result<(), Stopped> {
        let Some(&function) = self.library.get(kernel) else {
            return Err(self.station.broken("the artifact lacks a kernel of the library", &doing()));
        };
        stream.launch(function, shape, params).map_err(|e| self.station.failed(&e, &doing()))
    }

    /// Lets compute wait for the last of the pending collectives that `meets` is true of, and so for all before it.
    fn meet(&mut self, meets: impl Fn(&[Span]) -> bool) -> Result<(), Failure> {
        let Some(last) = self.pending.iter().rposition(|p| meets(&p.0)) else { return Ok(()) };
        self.compute.wait(&self.pending[last].1)?;
        self.pending.drain(..=last);
        Ok(())
    }

    /// Queues a collective on the stream of exchanges, behind everything that compute was given so far. Compute goes on, up to what meets it.
    fn exchange(
        &mut self,
        circle: Circle,
        moves: &[Move],
        spans: Vec<Span>,
        doing: &dyn Fn() -> String,
    ) -> Result<(), Stopped> {
        if moves.is_empty() {
            return Ok(());
        }
        let failed = |e: Failure| self.station.failed(&e, &doing());
        self.after(&self.compute, &self.exchange).map_err(failed)?;
        let Some(seat) = self.seats.get(&circle) else {
            return Err(self.station.broken("the rank has no seat in the group", &doing()));
        };
        moves.iter().try_for_each(|m| self.one_move(seat, m, doing))?;
        let done = Event::new().map_err(failed)?;
        self.exchange.record(&done).map_err(failed)?;
        self.pending.push((spans, done));
        Ok(())
    }

    fn one_move(&self, seat: &Seat, one: &Move, doing: &dyn Fn() -> String) -> Result<(), Stopped> {
        let failed = |e: Failure| self.station.failed(&e, &doing());
        let stream = &self.exchange;
        match one {
            Move::Copy { to, from, bytes } => stream.copy(*to, *from, *bytes).map_err(failed),
            Move::Zero { at, bytes } => stream.zero(*at, *bytes).map_err(failed),
            Move::Launch { kernel, shape, params } => {
                self.library_launch(stream, kernel, shape, params, doing)
            }
            Move::Among(among) if seat.members == 1 => {
                let bytes = among.count * among.dtype.bytes() as u64;
                if among.from == among.to {
                    Ok(())
                } else {
                    stream.copy(among.to, among.from, bytes).map_err(failed)
                }
            }
            Move::Among(among) => self.among(seat, among, doing),
        }
    }

    fn among(&self, seat: &Seat, among: &Among, doing: &dyn Fn() -> String) -> Result<(), Stopped> {
        if let Some(communicator) = &seat.communicator {
            let queued = communicator.among(among, self.exchange.raw());
            return queued.map_err(|why| self.station.broken(&why, &doing()));
        }
        let Meeting::Local { boards, .. } = &*self.station.meeting else {
            return Err(self.station.broken("the group has no communicator", &doing()));
        };
        let Some(board) = boards.get(&seat.circle) else {
            return Err(self.station.broken("the group has no place to meet", &doing()));
        };
        let late = || self.station.late(&doing());
        let failed = |e: Failure| self.station.failed(&e, &doing());
        let buffer = self.extra.address + self.room.gather;
        let control = &self.station.control;
        let gathered = gather(among, seat, board, buffer, &self.exchange, control, &late, &failed)?;
        gathered.iter().try_for_each(|m| self.one_move(seat, m, doing))
    }

    /// Offset of a slot in the rank's memory.
    fn slot(&self, message: &Message, micro_batch: usize, slot: Slot) -> u64 {
        let layout = &self.station.plan.layout;
        self.memory.address + layout.slot(message.entry, self.station.device, micro_batch, slot) as u64
    }

    fn link(&self, message: &Message) -> Circle {
        let (devices, position) = (self.station.plan.layout.stage_devices(), self.station.position());
        Circle::Link { from: message.from * devices + position, to: message.to * devices + position }
    }

    /// Copies a value aside, so that compute may overwrite it, and sends it from there.
    fn send(
        &self,
        message: &Message,
        micro_batch: usize,
        slot: Slot,
        bytes: u64,
        mail: &mut Mail,
    ) -> Result<(), Stopped> {
        let doing = || format!("sending to stage {}", message.to);
        let failed = |e: Failure| self.station.failed(&e, &doing());
        let late = || self.station.late(&doing());
        let circle = self.link(message);
        let count = mail.next(message);
        let buffer = self.extra.address + self.room.message(message, count);
        let local = match &*self.station.meeting {
            Meeting::Local { links, .. } => links.get(&circle),
            Meeting::Nccl { .. } => None,
        };
        if count >= MESSAGES {
            match (local, mail.free.get(&(*message, count % MESSAGES))) {
                (Some(link), _) => {
                    let taken = link.wait_taken(message.tag, &self.station.control, &late)?;
                    self.compute.wait(&taken).map_err(failed)?;
                }
                (None, Some(sent)) => self.compute.wait(sent).map_err(failed)?,
                (None, None) => {}
            }
        }
        self.compute.copy(buffer, self.slot(message, micro_batch, slot), bytes).map_err(failed)?;
        let ready = Event::new().map_err(failed)?;
        self.compute.record(&ready).map_err(failed)?;
        if let Some(link) = local {
            link.send(message.tag, Offer { address: buffer, event: Arc::new(ready) });
            return Ok(());
        }
        let (stream, communicator) = self.channel(circle, &doing)?;
        stream.wait(&ready).map_err(failed)?;
        communicator
            .send(buffer, bytes, 1, stream.raw())
            .map_err(|why| self.station.broken(&why, &doing()))?;
        let sent = Event::new().map_err(failed)?;
        stream.record(&sent).map_err(failed)?;
        mail.free.insert((*message, count % MESSAGES), sent);
        Ok(())
    }

    fn receive(
        &self,
        message: &Message,
        micro_batch: usize,
        slot: Slot,
        bytes: u64,
        mail: &mut Mail,
    ) -> Result<(), Stopped> {
        let doing = || format!("receiving from stage {}", message.from);
        let failed = |e: Failure| self.station.failed(&e, &doing());
        let circle = self.link(message);
        let count = mail.next(message);
        let target = self.slot(message, micro_batch, slot);
        if let Meeting::Local { links, .. } = &*self.station.meeting
            && let Some(link) = links.get(&circle)
        {
            let late = || self.station.late(&doing());
            let offer = link.receive(message.tag, &self.station.control, &late)?;
            self.compute.wait(&offer.event).map_err(failed)?;
            self.compute.copy(target, offer.address, bytes).map_err(failed)?;
            let taken = Event::new().map_err(failed)?;
            self.compute.record(&taken).map_err(failed)?;
            link.acknowledge(message.tag, Arc::new(taken));
            return Ok(());
        }
        let (stream, communicator) = self.channel(circle, &doing)?;
        let buffer = self.extra.address + self.room.message(message, count);
        match mail.free.get(&(*message, count % MESSAGES)) {
            Some(emptied) => stream.wait(emptied).map_err(failed)?,
            // Nothing of the run has touched the buffer: the message may come while compute is at the ones before.
            None => stream.wait(&mail.start).map_err(failed)?,
        }
        communicator
            .recv(buffer, bytes, 0, stream.raw())
            .map_err(|why| self.station.broken(&why, &doing()))?;
        self.after(stream, &self.compute).map_err(failed)?;
        self.compute.copy(target, buffer, bytes).map_err(failed)?;
        let emptied = Event::new().map_err(failed)?;
        self.compute.record(&emptied).map_err(failed)?;
        mail.free.insert((*message, count % MESSAGES), emptied);
        Ok(())
    }

    fn channel(
        &self,
        circle: Circle,
        doing: &dyn Fn() -> String,
    ) -> Result<(&Stream, &Communicator), Stopped> {
        let seat = self.seats.get(&circle).and_then(|s| s.communicator.as_ref());
        match (self.links.get(&circle), seat) {
            (Some(stream), Some(communicator)) => Ok((stream, communicator)),
            _ => Err(self.station.broken("the link has no communicator", &doing())),
        }
    }
}

impl Mail {
    /// Number of this message among those like it in the run.
    fn next(&mut self, message: &Message) -> u64 {
        let count = self.counts.entry(*message).or_default();
        *count += 1;
        *count - 1
    }
}
