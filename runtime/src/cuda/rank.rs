//! One rank: a thread that queues a device's work.

use super::blaslt::Blas;
use super::control::{Control, Stopped};
use super::driver::{Buffer, Context, Event, Failure, Function, Graph, Module, Pinned, Stream};
use super::mirror::Mirror;
use super::peers::{Circle, Meeting, Offer, Seat, gather};
use super::plan::{Call, Plan};
use super::ranges::{self, Span};
use super::room::{MESSAGES, Message, Room};
use super::work::{Among, Move, Work};
use cranelift_entity::EntityRef;
use pcc_ir::gpu::{LibraryKernel, Shape, library};
use pcc_ir::program::{InstrKind, Slot, Step};
use pcc_ir::{Diagnostic, Sizes};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// What a rank is told to do; each is answered once.
pub(super) enum Command {
    /// Copies bytes to an offset of its memory.
    Upload {
        at: u64,
        bytes: Arc<Vec<u8>>,
    },
    /// Waits until all uploads are done.
    Settle,
    Run(Run),
    /// Sets all states to zero.
    Reset,
}

/// One run of an entry.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) entry: usize,
    pub(super) micro_batches: Arc<Vec<usize>>,
    pub(super) rows: usize,
    pub(super) seq: Option<usize>,
}

/// Everything a rank needs from the start.
pub(super) struct Station {
    /// The rank's number: its device in the mesh.
    pub(super) device: usize,
    /// The GPU it runs on.
    pub(super) ordinal: usize,
    /// Bytes of its planned memory.
    pub(super) bytes: u64,
    pub(super) plan: Arc<Plan>,
    pub(super) ptx: Arc<str>,
    pub(super) meeting: Arc<Meeting>,
    pub(super) mirror: Arc<Mirror>,
    pub(super) control: Arc<Control>,
    /// Whether to use NVIDIA's libraries of kernels where the machine has them.
    pub(super) libraries: bool,
}

/// What NCCL and the simulator say on ranks that only notice another's failure.
const ECHOES: [&str; 2] = ["remote process exited", "of the communicator failed"];

/// Bytes of a piece that is uploaded at a time.
pub(super) const PIECE: usize = 16 << 20;
/// Recorded runs that are kept.
const GRAPHS: usize = 8;

type Key = (usize, usize, Option<usize>);

/// The loaded rank.
struct Rank<'m> {
    station: &'m Station,
    stage: usize,
    memory: Buffer,
    room: Room,
    extra: Buffer,
    compute: Stream,
    exchange: Stream,
    /// One a link, so that no message waits behind another link's.
    links: HashMap<Circle, Stream>,
    fused: Vec<Function<'m>>,
    library: HashMap<LibraryKernel, Function<'m>>,
    seats: HashMap<Circle, Seat>,
    blas: Option<Blas>,
    pinned: [Pinned; 2],
    uploaded: [Event; 2],
    uploads: usize,
    /// Collectives that compute has not waited for, oldest first: what they touch, and the event after them.
    pending: Vec<(Vec<Span>, Event)>,
    /// Runs by their sizes: how often seen, and the recording.
    graphs: HashMap<Key, (u32, Option<Graph>)>,
}

/// Messages of a run so far: their number, and for each buffer the event after which it may be used again.
#[derive(Default)]
struct Mail {
    counts: HashMap<Message, u64>,
    free: HashMap<(Message, u64), Event>,
}

impl Station {
    fn stage(&self) -> usize {
        self.device / self.plan.layout.stage_devices()
    }

    fn position(&self) -> usize {
        self.device % self.plan.layout.stage_devices()
    }

    /// A failure of CUDA in the rank, with what it was doing.
    fn failed(&self, failure: &Failure, doing: &str) -> Stopped {
        self.broken(&failure.to_string(), doing)
    }

    fn broken(&self, why: &str, doing: &str) -> Stopped {
        let why = super::load::explained(why);
        let echo = ECHOES.iter().any(|echo| why.contains(echo));
        let mut diagnostic = Diagnostic::run(format!("rank {} on GPU {} failed", self.device, self.ordinal))
            .at(doing.to_owned())
            .why(why.clone());
        if why.contains("OUT_OF_MEMORY") {
            diagnostic = diagnostic.help("other processes may use the GPU's memory; nvidia-smi shows them");
        } else if echo {
            diagnostic = diagnostic
                .help("another rank has failed or was ended; its own message, if it gave one, says more");
        }
        self.control.fail_by(diagnostic, echo)
    }

    /// Runs until no command comes any more. Every command is answered, the first answer says that the rank is ready.
    pub(super) fn serve(self, commands: &Receiver<Command>, replies: &Sender<Result<(), Stopped>>) {
        let opened = self.open();
        let (context, module) = match opened {
            Ok(opened) => opened,
            Err(stopped) => {
                let _ = replies.send(Err(stopped));
                return;
            }
        };
        let mut rank = match self.load(&module) {
            Ok(rank) => rank,
            Err(stopped) => {
                let _ = replies.send(Err(stopped));
                return;
            }
        };
        let _ = replies.send(Ok(()));
        while let Ok(command) = commands.recv() {
            let done = rank.obey(command);
            if done.is_err() {
                rank.abandon();
            }
            if replies.send(done).is_err() {
                break;
            }
        }
        drop(rank);
        drop(module);
        drop(context);
    }

    /// The device, and the program's code on it.
    fn open(&self) -> Result<(Context, Module), Stopped> {
        let context = Context::new(self.ordinal).map_err(|e| self.failed(&e, "opening the device"))?;
        let module = Module::load(&self.ptx).map_err(|refused| {
            let why = match refused.log.is_empty() {
                true => refused.failure.to_string(),
                false => format!("{}: {}", refused.failure, refused.log),
            };
            self.broken(&why, "loading the kernels")
        })?;
        Ok((context, module))
    }

    fn load<'m>(&'m self, module: &'m Module) -> Result<Rank<'m>, Stopped> {
        let failed = |e: Failure| self.failed(&e, "preparing the device");
        let stage = self.stage();
        let room = Room::new(&self.plan, stage, self.meeting.is_local());
        let memory = Buffer::new(self.bytes).map_err(failed)?;
        let extra = Buffer::new(room.bytes).map_err(failed)?;
        let program = &self.plan.program;
        let fused = program.kernels.values().map(|k| module.function(&k.name, 0));
        let fused = fused.collect::<Result<_, _>>().map_err(failed)?;
        let of = |kernel: LibraryKernel| Ok((kernel, module.function(&kernel.symbol(), kernel.shared())?));
        let library = library(program).into_iter().map(of).collect::<Result<_, _>>().map_err(failed)?;
        let seats = self.seats().map_err(|why| self.broken(&why, "joining the other ranks"))?;
        let links = seats.keys().filter(|c| matches!(c, Circle::Link { .. }));
        let links = links.map(|&c| Ok((c, Stream::new()?))).collect::<Result<_, _>>().map_err(failed)?;
        let rank = Rank {
            station: self,
            stage,
            memory,
            room,
            extra,
            compute: Stream::new().map_err(failed)?,
            exchange: Stream::new().map_err(failed)?,
            links,
            fused,
            library,
            seats,
            blas: self.libraries.then(Blas::find).flatten(),
            pinned: [Pinned::new(PIECE).map_err(failed)?, Pinned::new(PIECE).map_err(failed)?],
            uploaded: [Event::new().map_err(failed)?, Event::new().map_err(failed)?],
            uploads: 0,
            pending: Vec::new(),
            graphs: HashMap::new(),
        };
        rank.clear()?;
        Ok(rank)
    }

    /// Its seats in all circles of the program, in the order that all ranks take them.
    fn seats(&self) -> Result<HashMap<Circle, Seat>, String> {
        let mut circles: Vec<(Circle, usize, usize)> = self.plan.circles_of(self.device);
        circles.sort_unstable();
        let seat = |(circle, members, own)| Ok((circle, Seat::take(&self.meeting, circle, members, own)?));
        circles.into_iter().map(seat).collect()
    }
}

impl<'m> Rank<'m> {
    fn failed(&self, doing: &str) -> impl Fn(Failure) -> Stopped + '_ {
        let doing = doing.to_owned();
        move |e| self.station.failed(&e, &doing)
    }

    fn obey(&mut self, command: Command) -> Result<(), Stopped> {
        match command {
            Command::Upload { at, bytes } => self.upload(at, &bytes),
            Command::Settle => self.settle("uploading weights"),
            Command::Run(run) => self.run(&run),
            Command::Reset => {
                self.zero_states()?;
                self.settle("resetting states")
            }
        }
    }

    /// After a failure: ends what other ranks may wait for.
    fn abandon(&mut self) {
        self.graphs.clear();
        for seat in self.seats.values_mut() {
            seat.communicator.iter_mut().for_each(|c| c.abort());
        }
    }

    /// Zeroes what must not be left as it is: states, inputs and outputs, whose padding the host copies.
    fn clear(&self) -> Result<(), Stopped> {
        self.zero_states()?;
        let io = self.station.plan.layout.io_of(self.station.device);
        let at = self.memory.address + io.offset as u64;
        self.compute.zero(at, io.len as u64).map_err(self.failed("preparing the device"))?;
        self.settle("preparing the device")
    }

    fn zero_states(&self) -> Result<(), Stopped> {
        let plan = &self.station.plan;
        for extent in plan.layout.states_of(self.station.device, plan.program.batch.micro_batches) {
            let at = self.memory.address + extent.offset as u64;
            self.compute.zero(at, extent.len as u64).map_err(self.failed("resetting states"))?;
        }
        Ok(())
    }

    /// Queues the copy of a piece through pinned memory: the next piece is put in place while this one is copied.
    fn upload(&mut self, at: u64, bytes: &[u8]) -> Result<(), Stopped> {
        for (i, piece) in bytes.chunks(PIECE).enumerate() {
            let turn = self.uploads % 2;
            if self.uploads >= 2 {
                self.wait_event(turn)?;
            }
            self.uploads += 1;
            let to = self.memory.address + at + (i * PIECE) as u64;
            let buffer = &mut self.pinned[turn].bytes()[..piece.len()];
            buffer.copy_from_slice(piece);
            let queued =
                self.compute.upload(to, buffer).and_then(|()| self.compute.record(&self.uploaded[turn]));
            queued.map_err(self.failed("uploading weights"))?;
        }
        Ok(())
    }

    fn wait_event(&self, turn: usize) -> Result<(), Stopped> {
        let (station, failed) = (self.station, self.failed("uploading weights"));
        let late = || station.late("uploading weights");
        station.control.wait_for(&late, || match self.uploaded[turn].is_done() {
            Ok(done) => Ok(done.then_some(())),
            Err(e) => Err(failed(e)),
        })
    }

    /// Waits for all streams.
    fn settle(&self, doing: &str) -> Result<(), Stopped> {
        let station = self.station;
        let late = || station.late(doing);
        let streams = [&self.compute, &self.exchange].into_iter().chain(self.links.values());
        for stream in streams {
            station.control.wait_for(&late, || {
                if let Some(why) = self.seats.values().find_map(|s| s.communicator.as_ref()?.health().err()) {
                    return Err(station.broken(&why, doing));
                }
                match stream.is_done() {
                    Ok(done) => Ok(done.then_some(())),
                    Err(e) => Err(station.failed(&e, doing)),
                }
            })?;
        }
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<(), Stopped> {
        let entry = &self.station.plan.program.entries[run.entry];
        let doing = format!("entry `{}`", entry.name);
        let inputs = self.copy_inputs(run)?;
        let key = (run.entry, run.rows, run.seq);
        let recorded = self.graphs.get(&key).is_some_and(|g| g.1.is_some());
        if recorded {
            if let Some((_, Some(graph))) = self.graphs.get(&key) {
                self.compute.launch_graph(graph).map_err(self.failed(&doing))?;
            }
        } else if self.records(key) {
            self.compute.begin_capture().map_err(self.failed(&doing))?;
            self.queue(run)?;
            let graph = self.compute.end_capture().map_err(self.failed(&doing))?;
            self.compute.launch_graph(&graph).map_err(self.failed(&doing))?;
            if self.graphs.len() >= GRAPHS {
                self.graphs.retain(|k, _| *k == key);
            }
            self.graphs.insert(key, (2, Some(graph)));
        } else {
            self.queue(run)?;
        }
        self.settle(&doing)?;
        drop(inputs);
        self.copy_outputs(run)
    }

    /// Whether this run should be recorded: it comes a second time, and ranks meet on devices alone.
    fn records(&mut self, key: Key) -> bool {
        let seen = self.graphs.entry(key).or_default();
        seen.0 = seen.0.saturating_add(1);
        seen.0 >= 2 && !self.station.meeting.is_local()
    }

    /// Queues the copies of the run's inputs; what they come from, to be kept until they are done.
    fn copy_inputs(&self, run: &Run) -> Result<Vec<Vec<u8>>, Stopped> {
        let mut kept = Vec::new();
        for (at, bytes) in self.station.mirror.inputs(self.station.device, run.entry, &run.micro_batches) {
            self.compute.upload(self.memory.address + at, &bytes).map_err(self.failed("copying inputs"))?;
            kept.push(bytes);
        }
        Ok(kept)
    }

    fn copy_outputs(&self, run: &Run) -> Result<(), Stopped> {
        let mirror = &self.station.mirror;
        let mut kept = Vec::new();
        for (at, len) in mirror.outputs(self.station.device, run.entry, &run.micro_batches) {
            let mut bytes = vec![0; len];
            self.compute
                .download(&mut bytes, self.memory.address + at)
                .map_err(self.failed("copying outputs"))?;
            kept.push((at, bytes));
        }
        self.settle("copying outputs")?;
        kept.iter().for_each(|(at, bytes)| mirror.write(self.station.device, *at, bytes));
        Ok(())
    }

    /// Queues all work of a run.
    fn queue(&mut self, run: &Run) -> Result<(), Stopped> {
        let plan = self.station.plan.clone();
        let steps = &plan.program.entries[run.entry].stages[self.stage].steps;
        let mut mail = Mail::default();
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
        for (at, instr) in func.instrs.iter().enumerate() {
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
                Work::Library { kernel, launches } => self.launch(kernel, launches, &doing)?,
                Work::Product(product) => {
                    let taken = match &mut self.blas {
                        Some(blas) => blas.product(product, &self.compute),
                        None => Ok(false),
                    };
                    if !taken.map_err(|why| self.station.broken(&why, &doing()))? {
                        self.launch(&LibraryKernel::Gemm(product.kernel), &product.launches(), &doing)?;
                    }
                }
                Work::Exchange(moves) => {
                    let InstrKind::Collective(_) = instr.kind else { continue };
                    let number = call.plan.groups.find(call.index, at, self.station.position()).0;
                    self.exchange(Circle::Group { stage: self.stage, number }, moves, spans, &doing)?;
                }
            }
        }
        Ok(())
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
        gathered.after.iter().try_for_each(|m| self.one_move(seat, m, doing))
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
            // The run's first message comes after all that was queued before the run.
            None => self.after(&self.compute, stream).map_err(failed)?,
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
    ) -> Result<(&Stream, &super::nccl::Communicator), Stopped> {
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

impl Station {
    /// A wait for other ranks that took too long.
    fn late(&self, doing: &str) -> Diagnostic {
        Diagnostic::run(format!("rank {} on GPU {} waits for other ranks in vain", self.device, self.ordinal))
            .at(doing.to_owned())
            .help("a rank has died or hangs; its own message, if it gave one, says more")
    }
}
