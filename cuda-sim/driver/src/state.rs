//! The whole state of the simulated machine, and the lock around it.

use crate::clock::{Clock, Lane};
use crate::code::Code;
use crate::comm::Comms;
use crate::config::Config;
use crate::graph::{Capture, Event, Exec, Graph, Joined};
use crate::handle::Table;
use crate::race::History;
use crate::threads::{self, Threads};
use crate::work::{Pending, Ticket};
use pcc_cuda_sim::memory::Memory;
use pcc_cuda_sim::ptx::{Kernel, Module};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// A context.
#[derive(Debug)]
pub struct Context {
    pub device: u32,
    pub primary: bool,
    /// The stream 0.
    pub legacy: u64,
    /// Stream 2 of each thread that used it.
    pub per_thread: BTreeMap<u64, u64>,
    /// What went wrong for good.
    pub fault: Option<(Code, String)>,
}

/// A queue of work.
#[derive(Debug)]
pub struct Stream {
    pub context: u64,
    pub lane: Lane,
    /// The last work.
    pub tail: Ticket,
    /// Whether it and stream 0 wait for each other.
    pub blocking: bool,
    pub priority: i32,
    pub flags: u32,
    pub capture: Option<Joined>,
}

/// A PTX text, loaded.
pub struct Loaded {
    pub context: u64,
    pub module: Module,
    pub functions: BTreeSet<u64>,
}

/// A kernel, found by name.
#[derive(Debug)]
pub struct Function {
    pub context: u64,
    pub module: u64,
    pub kernel: Kernel,
    /// Most bytes of dynamic shared memory of a launch.
    pub dynamic_shared: u32,
}

/// One of a device's memory pools. All have the device's memory.
#[derive(Debug)]
pub struct Pool {
    pub device: u32,
    /// The device's own, which cannot be destroyed.
    pub default: bool,
    pub release_threshold: u64,
}

#[derive(Debug)]
pub struct Device {
    /// The primary context and how often it is retained.
    pub primary: Option<(u64, u32)>,
    pub pool: u64,
    pub default_pool: u64,
}

/// Memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub context: u64,
    pub device: u32,
    pub bytes: u64,
}

/// A memory that work accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    Devices,
    Host,
}

/// Everything.
pub struct Sim {
    pub config: Config,
    pub initialised: bool,
    pub memory: Arc<Memory>,
    pub devices: Vec<Device>,
    pub contexts: Table<Context>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<Loaded>,
    pub functions: Table<Function>,
    pub pools: Table<Pool>,
    pub graphs: Table<Graph>,
    pub execs: Table<Exec>,
    pub captures: BTreeMap<u64, Capture>,
    pub comms: Comms,
    pub pending: Pending,
    pub histories: BTreeMap<Space, History>,
    /// Memory of devices by first address.
    pub allocations: BTreeMap<u64, Allocation>,
    /// Page-locked memory of the host: first address, bytes, whether it was allocated here.
    pub pinned: BTreeMap<u64, (u64, bool)>,
    /// All that some thread of the host waited for.
    pub host: Clock,
    pub threads: Threads,
    /// When work was last asked for or done.
    pub progress: Instant,
    pub random: Random,
    /// What the last fault or refusal said, to whatever thread.
    pub message: String,
    lanes: u32,
}

/// Numbers for choices: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Whether one of `n` cases, all alike, is the first.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

impl Sim {
    pub fn new(config: Config) -> Self {
        let mut pools = Table::new(8);
        let devices = (0..config.devices as u32).map(|device| {
            let pool = pools.insert(Pool { device, default: true, release_threshold: 0 });
            Device { primary: None, pool, default_pool: pool }
        });
        Self {
            devices: devices.collect(),
            random: Random::new(config.seed),
            config,
            initialised: false,
            memory: Arc::new(Memory::new()),
            contexts: Table::new(1),
            streams: Table::new(2),
            events: Table::new(3),
            modules: Table::new(4),
            functions: Table::new(5),
            pools,
            graphs: Table::new(6),
            execs: Table::new(7),
            captures: BTreeMap::new(),
            comms: Comms::new(),
            pending: Pending::default(),
            histories: BTreeMap::new(),
            allocations: BTreeMap::new(),
            pinned: BTreeMap::new(),
            host: Clock::default(),
            threads: Threads::default(),
            progress: Instant::now(),
            message: String::new(),
            lanes: 0,
        }
    }

    pub fn new_lane(&mut self) -> Lane {
        self.lanes += 1;
        Lane(self.lanes - 1)
    }

    pub fn new_stream(&mut self, context: u64, flags: u32, priority: i32) -> u64 {
        let lane = self.new_lane();
        let (tail, blocking) = (Ticket::done_already(), flags & NON_BLOCKING == 0);
        self.streams.insert(Stream { context, lane, tail, blocking, priority, flags, capture: None })
    }

    pub fn new_context(&mut self, device: u32, primary: bool) -> u64 {
        let per_thread = BTreeMap::new();
        let context = Context { device, primary, legacy: 0, per_thread, fault: None };
        let handle = self.contexts.insert(context);
        let legacy = self.new_stream(handle, 0, 0);
        if let Ok(context) = self.contexts.get_mut(handle) {
            context.legacy = legacy;
        }
        handle
    }

    /// Says why a call is refused.
    pub fn refuse(&mut self, code: Code, why: impl Into<String>) -> Code {
        let why = why.into();
        if self.config.verbose {
            eprintln!("pcc cuda-sim: {why}");
        }
        threads::said(&why);
        self.message = why;
        code
    }

    /// The context of a handle, if it is well.
    pub fn sound_context(&mut self, handle: u64) -> Result<&mut Context, Code> {
        let context = self.contexts.get_mut(handle).map_err(|_| Code::INVALID_CONTEXT)?;
        match &context.fault {
            None => Ok(context),
            Some((code, message)) => {
                threads::said(message);
                Err(*code)
            }
        }
    }
}

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

struct Shared {
    sim: Mutex<Sim>,
    changed: Condvar,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let config = Config::read(|name| std::env::var(name).ok());
        Shared { sim: Mutex::new(Sim::new(config)), changed: Condvar::new() }
    })
}

/// A thread's turn: the state, locked.
pub struct Turn {
    /// None only while [`Turn::alone`] and [`Turn::sleep`] run.
    guard: Option<MutexGuard<'static, Sim>>,
}

impl Deref for Turn {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        // invariant: the two functions that take the guard put it back before they end.
        self.guard.as_ref().expect("the state is locked")
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut Sim {
        // invariant: the two functions that take the guard put it back before they end.
        self.guard.as_mut().expect("the state is locked")
    }
}

impl Turn {
    pub fn take() -> Self {
        // A panic leaves the state as good as any other failed call: nothing relies on several fields changing together but what a call
        // that follows checks again.
        Self { guard: Some(shared().sim.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Runs something long without the lock.
    pub fn alone<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.guard = None;
        let result = f();
        *self = Self::take();
        result
    }

    /// Wakes the threads that sleep.
    pub fn notify(&self) {
        shared().changed.notify_all();
    }

    /// Sleeps until something changes, or for a while.
    pub fn sleep(&mut self, most: std::time::Duration) {
        if let Some(guard) = self.guard.take() {
            let woken = shared().changed.wait_timeout(guard, most);
            self.guard = Some(woken.unwrap_or_else(PoisonError::into_inner).0);
        }
    }
}
