//! GPUs: the same program, on devices with a memory and a queue each.
//!
//! One thread a rank ([`rank`]). It queues kernels, products and attention on a stream for compute and collectives on one for communication, with
//! events between them, and waits only at the end of a run. What it queues is worked out from the validated program ([`plan`]); calls of the driver
//! are in [`driver`], those of NCCL in [`nccl`].
//!
//! A run that comes a second time with the same sizes, as a step of decoding does, is recorded as a graph and launched as one from then on.
//!
//! Several ranks may share a GPU ([`GpuOptions::ranks_per_device`]): their collectives are then copies and reductions on devices of this process
//! ([`peers`]), which lets a plan for many GPUs be checked on one.

mod blaslt;
mod block;
mod control;
mod driver;
mod exchange;
mod load;
mod mirror;
mod nccl;
mod peers;
mod plan;
mod probe;
mod ranges;
mod rank;
mod room;
mod shared;
mod signatures;
mod weights;
mod work;
mod world;

pub use load::Gpus;
pub use probe::{DenseProduct, Probe};

use crate::distribute::{self, HostSide};
use crate::layout::{Apart, Layout, ParamSlice};
use crate::params::Progress;
use control::{Control, Stopped};
use mirror::Mirror;
use nccl::Nccl;
use pcc_ir::gpu::{Arch, REDUCE_MEMBERS};
use pcc_ir::program::{FuncProgram, InstrKind, Program, Storage};
use pcc_ir::source::ReadParams;
use pcc_ir::{DType, Diagnostic};
use peers::Meeting;
use plan::Plan;
use rank::{Command, Run, Station};
use shared::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use world::{Assembly, World};

/// How to run on GPUs.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    pub gpus: Gpus,
    /// Ranks that share a GPU. More than one: collectives are copies on devices of this process, and NCCL is not used.
    pub ranks_per_device: usize,
    /// How long ranks wait for one another before the run fails.
    pub patience: Duration,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { gpus: Gpus::Real, ranks_per_device: 1, patience: Duration::from_secs(300) }
    }
}

/// The ranks of a program, loaded.
pub(crate) struct Cluster {
    plan: Arc<Plan>,
    mirror: Arc<Mirror>,
    meeting: Arc<Meeting>,
    control: Arc<Control>,
    /// The ranks of this process.
    ranks: Vec<Worker>,
    /// The other processes, if a launcher started several: each has one rank.
    assembly: Option<Assembly>,
}

/// A rank's thread, and how to talk with it.
struct Worker {
    device: usize,
    commands: Option<SyncSender<Command>>,
    replies: Receiver<Result<(), Stopped>>,
    thread: Option<JoinHandle<()>>,
}

/// Commands that wait in a rank's queue: pieces of weights, so that reading and uploading overlap.
const WAITING: usize = 2;

/// How long to listen to one rank before looking at the others.
const LISTEN: Duration = Duration::from_millis(20);
/// How long ranks may take to notice that another has failed, before their communicators are ended for them.
const GRACE: Duration = Duration::from_secs(3);

impl Cluster {
    /// Checks the machine's GPUs, allocates, and loads kernels and weights. The program is validated.
    ///
    /// # Errors
    /// No driver, or too old a one, too few or other GPUs, too little memory, NCCL missing, a parameter cannot be read.
    pub(crate) fn new(
        program: Program,
        ptx: String,
        weights: &dyn ReadParams,
        options: &GpuOptions,
        cancel: Arc<AtomicBool>,
        progress: Progress<'_>,
    ) -> Result<Self, Diagnostic> {
        let arch = Arch::parse(&program.target.name).ok_or_else(|| {
            Diagnostic::input(format!("the artifact is for {}, not for a GPU", program.target.name))
                .help("compile it with --target sm_90, for instance")
        })?;
        check_form(&program)?;
        let gpus = program.mesh.devices().div_ceil(options.ranks_per_device.max(1));
        let nccl = load::prepare(&options.gpus, arch, gpus)?;
        let present = load::check_driver(arch)?;
        let Apart { layout, slices, bytes } = Layout::apart(&program)?;
        let plan = Arc::new(Plan::new(program, layout));
        let local = options.ranks_per_device > 1;
        let world = World::find(|name| std::env::var(name).ok())?;
        plan.check_world(world.as_ref(), options)?;
        let ordinals = weights::place(&plan, options, world.as_ref(), present)?;
        plan.check_messages()?;
        signatures::check(&plan.program, &ptx)?;
        weights::check_devices(&plan, arch, &ordinals, &bytes, options)?;
        let control = Arc::new(Control::new(cancel, options.patience));
        let assembly = world.as_ref().map(|world| {
            Assembly::meet(world, &plan.program.target.object_digest, options.patience, &control)
        });
        let assembly = assembly.transpose()?;
        let circles = plan.circles();
        if let Some(members) = circles.values().find(|&&m| local && m > REDUCE_MEMBERS as usize) {
            return Err(Diagnostic::run(format!("{members} ranks of one group share GPUs"))
                .why(format!("at most {REDUCE_MEMBERS} can"))
                .help("run it without --ranks-per-device, or compile it for a smaller --tp or --dp"));
        }
        let meeting = if local || circles.values().all(|&members| members <= 1) {
            Meeting::local(&circles)
        } else {
            let names = |own: &[u8]| assembly.as_ref().map_or_else(|| Ok(own.to_vec()), |a| a.share(own));
            Meeting::nccl(Nccl::load(nccl)?, &circles, &names)?
        };
        let mirror = Arc::new(Mirror::new(plan.clone())?);
        let meeting = Arc::new(meeting);
        let mut cluster = Self { plan, mirror, meeting, control, ranks: Vec::new(), assembly };
        let (ptx, libraries): (Arc<str>, _) = (ptx.into(), load::has_libraries(&options.gpus));
        let mut shared = BTreeMap::new();
        for (&device, &ordinal) in &ordinals {
            let new = || Arc::new(Shared::new(ordinal, ptx.clone()));
            let of = shared.entry(ordinal).or_insert_with(new).clone();
            cluster.start(device, ordinal, bytes[device], of, libraries)?;
        }
        drop(shared);
        // Nobody joins others before all, in every process, have what they need: a rank that fails while others wait to be joined would leave them there.
        cluster.await_all()?;
        if let Some(assembly) = &cluster.assembly {
            assembly.gather(Vec::new())?;
        }
        cluster.tell_all(|| Command::Join)?;
        cluster.load(&slices, weights, progress)?;
        Ok(cluster)
    }

    fn start(
        &mut self,
        device: usize,
        ordinal: usize,
        bytes: u64,
        shared: Arc<Shared>,
        libraries: bool,
    ) -> Result<(), Diagnostic> {
        let station = Station {
            device,
            ordinal,
            bytes,
            plan: self.plan.clone(),
            shared,
            meeting: self.meeting.clone(),
            mirror: self.mirror.clone(),
            control: self.control.clone(),
            libraries,
        };
        let (commands, orders) = sync_channel(WAITING);
        let (answers, replies): (Sender<_>, _) = channel();
        let thread = std::thread::Builder::new().name(format!("pcc-rank-{device}"));
        let thread = thread.spawn(move || station.serve(&orders, &answers)).map_err(|e| {
            Diagnostic::run(format!("a thread for rank {device} cannot be started")).why(e.to_string())
        })?;
        self.ranks.push(Worker { device, commands: Some(commands), replies, thread: Some(thread) });
        Ok(())
    }

    /// Waits for an answer of every rank. Once one has failed, those that do not answer are freed from what they wait for.
    fn await_all(&self) -> Result<(), Diagnostic> {
        let (mut ended, mut since) = (false, None);
        let mut left: Vec<&Worker> = self.ranks.iter().collect();
        while let Some(first) = left.first() {
            let mut answer = first.replies.recv_timeout(LISTEN);
            left.retain(|rank| {
                let said = match std::mem::replace(&mut answer, Err(RecvTimeoutError::Timeout)) {
                    Err(RecvTimeoutError::Timeout) => rank.replies.try_recv(),
                    Ok(said) => Ok(said),
                    Err(RecvTimeoutError::Disconnected) => Err(TryRecvError::Disconnected),
                };
                match said {
                    Ok(said) => ended |= said.is_err(),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => {
                        ended = true;
                        let why = format!("rank {} ended without a word", rank.device);
                        self.control.fail(Diagnostic::internal(why));
                    }
                }
                false
            });
            if self.control.go_on().is_err() && since.get_or_insert_with(Instant::now).elapsed() > GRACE {
                self.meeting.abort();
                since = Some(Instant::now());
            }
        }
        if !ended {
            return Ok(());
        }
        let unknown = || Diagnostic::internal("a rank stopped without a reason");
        let failure = self.control.failure().unwrap_or_else(unknown);
        if let Some(assembly) = &self.assembly {
            assembly.tell_failure(&failure);
        }
        Err(failure)
    }

    fn gone(&self, rank: &Worker) -> Diagnostic {
        let unknown = || Diagnostic::internal(format!("rank {} is gone", rank.device));
        self.control.failure().unwrap_or_else(unknown)
    }

    /// Tells a rank what to do.
    fn tell(&self, rank: &Worker, command: Command) -> Result<(), Diagnostic> {
        match rank.commands.as_ref().map(|c| c.send(command)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.gone(rank)),
        }
    }

    fn tell_all(&self, command: impl Fn() -> Command) -> Result<(), Diagnostic> {
        self.ranks.iter().try_for_each(|rank| self.tell(rank, command()))?;
        self.await_all()
    }

    /// Whether this process speaks for all: it is the only one, or that of rank 0.
    pub(crate) fn is_first(&self) -> bool {
        self.assembly.is_none() || self.ranks.first().is_some_and(|r| r.device == 0)
    }

    fn load(
        &self,
        slices: &[Vec<ParamSlice>],
        weights: &dyn ReadParams,
        progress: Progress<'_>,
    ) -> Result<(), Diagnostic> {
        let uploads = std::cell::RefCell::new(vec![0usize; self.ranks.len()]);
        let upload = |number: usize, at: u64, bytes: Arc<Vec<u8>>| {
            uploads.borrow_mut()[number] += 1;
            self.tell(&self.ranks[number], Command::Upload { at, bytes })
        };
        let own: Vec<&[ParamSlice]> = self.ranks.iter().map(|r| &slices[r.device][..]).collect();
        weights::load(&self.plan, &own, weights, progress, &upload)?;
        // Every upload was answered, and nobody has listened yet.
        for (rank, &count) in self.ranks.iter().zip(uploads.borrow().iter()) {
            for _ in 0..count {
                if !matches!(rank.replies.recv(), Ok(Ok(()))) {
                    return Err(self.gone(rank));
                }
            }
        }
        self.tell_all(|| Command::Settle)
    }

    pub(crate) fn host(&self) -> &dyn HostSide {
        &*self.mirror
    }

    /// Runs an entry whose inputs are in the host's copy, where its outputs will be.
    pub(crate) fn run(
        &self,
        entry: usize,
        micro_batches: Vec<usize>,
        sizes: distribute::Sizes,
    ) -> Result<(), Diagnostic> {
        self.meeting.clear();
        let run = Run { entry, micro_batches: Arc::new(micro_batches), rows: sizes.rows, seq: sizes.seq };
        self.tell_all(|| Command::Run(run.clone()))?;
        let Some(assembly) = &self.assembly else { return Ok(()) };
        // All processes get all outputs: what is decided by them, as the next token is, is then decided alike.
        let own = self.ranks.iter().flat_map(|r| self.mirror.packed(r.device, entry, &run.micro_batches));
        let all = assembly.gather(own.collect())?;
        all.iter().try_for_each(|bytes| self.mirror.unpack(bytes))
    }

    /// Sets all states to zero.
    pub(crate) fn reset_states(&self) -> Result<(), Diagnostic> {
        self.tell_all(|| Command::Reset)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.ranks.iter_mut().for_each(|r| r.commands = None);
        for rank in &mut self.ranks {
            if let Some(thread) = rank.thread.take() {
                // A rank that panicked has nothing left to free but what the driver frees at the end.
                let _ = thread.join();
            }
        }
    }
}

/// The machine's GPUs, one a line: name, compute capability, memory.
///
/// # Errors
/// There is no driver, or it does not answer.
pub fn describe_gpus() -> Result<Vec<String>, Diagnostic> {
    load::prepare(&Gpus::Real, Arch::Sm80, 0)?;
    let present = load::check_driver(Arch::Sm80)?;
    let broken = |e: driver::Failure| Diagnostic::run("a GPU cannot be used").why(e.to_string());
    let describe = |ordinal: usize| {
        let context = driver::Context::new(ordinal).map_err(broken)?;
        let (major, minor) = context.capability().map_err(broken)?;
        let (free, total) = context.memory().map_err(broken)?;
        let gib = |n: u64| n as f64 / (1u64 << 30) as f64;
        let (free, total) = (gib(free), gib(total));
        Ok(format!("GPU {ordinal}: {}, sm_{major}{minor}, {free:.1} of {total:.1} GiB free", context.name()))
    };
    (0..present).map(describe).collect()
}

/// A program for GPUs shares nothing and has no weights in panels.
fn check_form(program: &Program) -> Result<(), Diagnostic> {
    let damaged = |why: &str| {
        Err(Diagnostic::input("the artifact is damaged")
            .at("program.json")
            .why(why.to_owned())
            .help("compile the model again"))
    };
    if !program.team.is_empty() || program.funcs.iter().any(|f| f.instrs.iter().any(|i| i.once)) {
        return damaged("it shares work between devices that have no memory in common");
    }
    let shares = |f: &FuncProgram| f.shared_bytes > 0 || !f.shared.is_empty();
    let mut stages = program.entries.iter().flat_map(|e| &e.stages);
    if program.funcs.iter().any(shares) || stages.any(|s| s.shared_bytes > 0) {
        return damaged("it shares memory between devices that have none in common");
    }
    if program.params.iter().any(|p| p.storage != Storage::Dense) {
        return damaged("it keeps weights in panels, which GPUs do not read");
    }
    let unfit = |kind: &InstrKind| match kind {
        InstrKind::Rows(_) => true,
        InstrKind::Gemm(g) => g.packed.is_some() || g.accumulate,
        InstrKind::Attention(a) => {
            let float = |d: DType| matches!(d, DType::F32 | DType::BF16 | DType::F16);
            ![&a.k, &a.v, &a.out].iter().all(|v| v.dtype == a.q.dtype) || !float(a.q.dtype)
        }
        InstrKind::Kernel(_) | InstrKind::Collective(_) => false,
        InstrKind::TopK(_) | InstrKind::Sample(_) => false,
    };
    if program.funcs.iter().any(|f| f.instrs.iter().any(|i| unfit(&i.kind))) {
        return damaged("it has an instruction that GPUs do not run");
    }
    // No tensor is empty; what is checked of others stops at the first extent of 0.
    let empty = |kind: &InstrKind| kind.extents().iter().any(|e| e.full == 0);
    if program.funcs.iter().any(|f| f.instrs.iter().any(|i| empty(&i.kind))) {
        return damaged("it has an instruction over nothing");
    }
    Ok(())
}
