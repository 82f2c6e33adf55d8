//! One rank: a thread that queues a device's work.

mod queue;

use super::blaslt::Blas;
use super::control::{Control, Look, Stopped};
use super::driver::{Buffer, Event, Failure, Function, Graph, Module, Pinned, Stream};
use super::mirror::Mirror;
use super::nccl::Communicator;
use super::peers::{Circle, Meeting, Seat};
use super::plan::Plan;
use super::ranges::Span;
use super::room::Room;
use super::shared::Shared;
use pcc_ir::Diagnostic;
use pcc_ir::gpu::{LibraryKernel, library};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// What a rank is told to do; each is answered once.
pub(super) enum Command {
    /// Joins the other ranks: all have what they need to run.
    Join,
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
    /// The GPU's context and kernels.
    pub(super) shared: Arc<Shared>,
    pub(super) meeting: Arc<Meeting>,
    pub(super) mirror: Arc<Mirror>,
    pub(super) control: Arc<Control>,
    /// Whether to use NVIDIA's libraries of kernels where the machine has them.
    pub(super) libraries: bool,
}

/// What NCCL and the simulator say on ranks that only notice another's failure.
const ECHOES: [&str; 3] = ["remote process exited", "of the communicator failed", super::nccl::ENDED];

/// Bytes of a piece that is uploaded at a time.
pub(super) const PIECE: usize = 16 << 20;
/// `off`: no run is recorded.
const GRAPHS_VARIABLE: &str = "PCC_CUDA_GRAPHS";
/// Set: every instruction is waited for, so that a fault shows at the one that made it.
pub(super) const SYNC_VARIABLE: &str = "PCC_CUDA_SYNC";
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
    /// Points that a run passes, so that a wait knows whether it goes on.
    marks: VecDeque<Event>,
    /// Whether what is queued is recorded.
    recording: bool,
    /// Runs by their sizes: how often seen, and the recording.
    graphs: HashMap<Key, (u32, Option<Graph>)>,
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
        } else if why.contains("LAUNCH_FAILED") || why.contains("ILLEGAL") || why.contains("MISALIGNED") {
            let found = "kernels fail some time after they were queued";
            diagnostic = diagnostic.help(format!("{found}: {SYNC_VARIABLE}=1 shows at which one"));
        } else if echo {
            diagnostic = diagnostic
                .help("another rank has failed or was ended; its own message, if it gave one, says more");
        }
        self.control.fail_by(diagnostic, echo)
    }

    /// Runs until no command comes any more. Every command is answered, the first answer says that the rank is ready.
    pub(super) fn serve(self, commands: &Receiver<Command>, replies: &Sender<Result<(), Stopped>>) {
        let entered = self.shared.enter().map_err(|e| self.broken(&e.why, e.doing));
        let mut rank = match entered.and_then(|module| self.load(module)) {
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
        let mut rank = Rank {
            station: self,
            stage,
            memory,
            room,
            extra,
            compute: Stream::new().map_err(failed)?,
            exchange: Stream::new().map_err(failed)?,
            links: HashMap::new(),
            fused,
            library,
            seats: HashMap::new(),
            blas: self.libraries.then(Blas::find).flatten(),
            pinned: [Pinned::new(PIECE).map_err(failed)?, Pinned::new(PIECE).map_err(failed)?],
            uploaded: [Event::new().map_err(failed)?, Event::new().map_err(failed)?],
            uploads: 0,
            pending: Vec::new(),
            marks: VecDeque::new(),
            recording: false,
            graphs: HashMap::new(),
        };
        rank.clear()?;
        Ok(rank)
    }

    /// Its seats in all circles of the program, in the order that all ranks take them; returns when all members have theirs.
    fn seats(&self, doing: &str) -> Result<HashMap<Circle, Seat>, Stopped> {
        let mut circles: Vec<(Circle, usize, usize)> = self.plan.circles_of(self.device);
        circles.sort_unstable();
        let seat = |(circle, members, own)| {
            let seat = Seat::take(&self.meeting, circle, members, own);
            let seat = seat.map_err(|why| self.broken(&why, doing))?;
            if let Some(communicator) = &seat.communicator {
                self.ready(communicator, &|| doing.to_owned())?;
            }
            Ok((circle, seat))
        };
        circles.into_iter().map(seat).collect()
    }

    /// Waits until NCCL has done the last call of a communicator: for other ranks too, but only as long as none has failed.
    fn ready(&self, communicator: &Communicator, doing: &dyn Fn() -> String) -> Result<(), Stopped> {
        let late = || self.late(&doing());
        self.control.wait_for(&late, || match communicator.is_ready() {
            Ok(ready) => Ok(ready.then_some(()).into()),
            Err(why) => Err(self.broken(&why, &doing())),
        })
    }
}

impl Drop for Rank<'_> {
    fn drop(&mut self) {
        // NCCL waits for the recordings of its work to go before it lets a communicator go; both need memory and streams, which go last.
        self.graphs.clear();
        if self.station.control.failure().is_some() {
            self.abandon();
        }
        let mut seats: Vec<&Seat> = self.seats.values().collect();
        seats.sort_unstable_by_key(|seat| seat.circle);
        let communicators = seats.into_iter().filter_map(|seat| seat.communicator.as_ref());
        communicators.for_each(|c| c.finish(&self.station.control));
        self.seats.clear();
    }
}

impl<'m> Rank<'m> {
    fn failed(&self, doing: &str) -> impl Fn(Failure) -> Stopped + '_ {
        let doing = doing.to_owned();
        move |e| self.station.failed(&e, &doing)
    }

    fn obey(&mut self, command: Command) -> Result<(), Stopped> {
        self.station.control.go_on()?;
        match command {
            Command::Join => self.join(),
            Command::Upload { at, bytes } => self.upload(at, &bytes),
            Command::Settle => self.settle("uploading weights"),
            Command::Run(run) => self.run(&run),
            Command::Reset => {
                self.zero_states()?;
                self.settle("resetting states")
            }
        }
    }

    /// Takes its seats; with NCCL this returns when all members have theirs.
    fn join(&mut self) -> Result<(), Stopped> {
        let doing = "joining the other ranks";
        self.seats = self.station.seats(doing)?;
        for circle in self.seats.keys().filter(|c| matches!(c, Circle::Link { .. })) {
            self.links.insert(*circle, Stream::new().map_err(self.failed(doing))?);
        }
        Ok(())
    }

    /// After a failure: ends what other ranks may wait for.
    fn abandon(&mut self) {
        self.graphs.clear();
        for seat in self.seats.values() {
            seat.communicator.iter().for_each(|c| c.abort());
        }
    }

    /// Zeroes what must not be left as it is: states, inputs and outputs, whose padding the host copies.
    fn clear(&mut self) -> Result<(), Stopped> {
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
            Ok(done) => Ok(done.then_some(()).into()),
            Err(e) => Err(failed(e)),
        })
    }

    /// Waits for all streams.
    fn settle(&mut self, doing: &str) -> Result<(), Stopped> {
        let station = self.station;
        let late = || station.late(doing);
        let failed = |e: Failure| station.failed(&e, doing);
        let mut marks = std::mem::take(&mut self.marks);
        let streams = [&self.compute, &self.exchange].into_iter().chain(self.links.values());
        for stream in streams {
            station.control.wait_for(&late, || {
                if let Some(why) = self.seats.values().find_map(|s| s.communicator.as_ref()?.is_ready().err())
                {
                    return Err(station.broken(&why, doing));
                }
                if stream.is_done().map_err(failed)? {
                    return Ok(Look::Found(()));
                }
                match marks.front().map(Event::is_done).transpose().map_err(failed)? {
                    Some(true) => {
                        marks.pop_front();
                        Ok(Look::Moved)
                    }
                    _ => Ok(Look::Still),
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
            let graph = self.record(run, &doing)?;
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

    /// Records what a run queues.
    fn record(&mut self, run: &Run, doing: &str) -> Result<Graph, Stopped> {
        self.compute.begin_capture().map_err(self.failed(doing))?;
        self.recording = true;
        let queued = self.queue(run);
        self.recording = false;
        // Also what could not be recorded to its end: streams must not go on recording.
        let graph = self.compute.end_capture();
        queued?;
        graph.map_err(self.failed(doing))
    }

    /// Whether this run should be recorded: it comes a second time, and ranks meet on devices alone.
    fn records(&mut self, key: Key) -> bool {
        let seen = self.graphs.entry(key).or_default();
        seen.0 = seen.0.saturating_add(1);
        let alone = self.seats.values().all(|s| s.members == 1);
        let wanted = std::env::var_os(GRAPHS_VARIABLE).is_none_or(|v| v != "off");
        seen.0 >= 2 && wanted && (alone || !self.station.meeting.is_local())
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

    fn copy_outputs(&mut self, run: &Run) -> Result<(), Stopped> {
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
}

impl Station {
    /// A wait for other ranks that took too long.
    fn late(&self, doing: &str) -> Diagnostic {
        Diagnostic::run(format!("rank {} on GPU {} waits for other ranks in vain", self.device, self.ordinal))
            .at(doing.to_owned())
            .help("a rank has died or hangs; its own message, if it gave one, says more")
    }
}
