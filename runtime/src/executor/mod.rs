//! Runs a loaded program on virtual devices: a pool of pinned workers, one a core, moves whichever devices are not blocked.
//!
//! Waking a thread costs 25 microseconds and a decode step has hundreds of collectives, so a device is not a thread: it is
//! a counter that a worker moves until it has to wait for its group or a message. The last member to arrive at a collective
//! does the work for all and makes the others runnable.

mod collective;
mod device;
mod link;
mod report;
mod schedule;

use crate::affinity;
use crate::machine::Machine;
use crate::trace::{Clock, Event};
use device::{Counter, Device};
use link::Links;
use pcc_ir::Diagnostic;
use schedule::{Padded, Scheduler, Task};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Looks of an idle worker before it sleeps: about 100 microseconds.
const SPINS: u32 = 4000;

/// Locks, also after a panic elsewhere: the run then ends with an error, and every run resets what locks protect.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// One run of an entry.
pub(crate) struct Run {
    pub(crate) entry: usize,
    /// The micro-batches that have rows, in order.
    pub(crate) micro_batches: Vec<usize>,
    /// Rows over all replicas and micro-batches.
    pub(crate) rows: usize,
    /// Positions of the sequence, if an input has one.
    pub(crate) seq: Option<usize>,
}

/// How to run.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) workers: usize,
    pub(crate) trace: bool,
    pub(crate) cancel: Arc<AtomicBool>,
}

/// State that all workers see.
pub(crate) struct Shared {
    pub(crate) machine: Machine,
    workers: usize,
    devices: Vec<Mutex<Device>>,
    /// Devices of each stage and group that wait at a collective.
    arrivals: Vec<Padded<AtomicU32>>,
    links: Links,
    scheduler: Scheduler,
    cancel: Arc<AtomicBool>,
    stop: AtomicBool,
    failure: Mutex<Option<Diagnostic>>,
    events: Mutex<Vec<Event>>,
    clock: Clock,
    control: Mutex<Control>,
    /// Equals `control.runs`, to be watched without the lock.
    runs: AtomicU64,
    start: Condvar,
    finished: Condvar,
}

#[derive(Default)]
struct Control {
    /// Counts runs.
    runs: u64,
    run: Option<Arc<Run>>,
    /// Workers still inside the run.
    working: usize,
    shutdown: bool,
}

/// What one worker keeps to itself.
struct Worker {
    number: usize,
    clock: Clock,
    events: Vec<Event>,
}

impl Worker {
    /// Notes an instruction that ran from `start` until now, if tracing is on.
    fn record(&mut self, start: Option<u64>, run: &Run, device: usize, at: Counter, instr: u32, waits: bool) {
        if let (Some(start), Some(end)) = (start, self.clock.start()) {
            let micro_batch = run.micro_batches.get(at.turn).copied().unwrap_or_default() as u32;
            let (worker, device, step) = (self.number as u32, device as u32, at.step as u32);
            let entry = run.entry as u32;
            self.events.push(Event { worker, device, entry, micro_batch, step, instr, waits, start, end });
        }
    }
}

/// Most threads of a pool: where the system runs out of them, some start and cannot even report it.
const MAX_WORKERS: usize = 4096;

/// The pool.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Executor {
    pub(crate) fn new(machine: Machine, settings: Settings) -> Result<Self, Diagnostic> {
        let cores = affinity::allowed_cores();
        let workers = if settings.workers == 0 { cores.len().max(1) } else { settings.workers };
        if workers > MAX_WORKERS {
            return Err(Diagnostic::usage(format!("{workers} workers"))
                .why(format!("the most is {MAX_WORKERS}"))
                .help("leave --workers out: one a core is the fastest"));
        }
        // With more workers than cores an idle one that spins keeps a busy one from its core.
        let spins = if workers <= cores.len() { SPINS } else { 0 };
        let (stages, stage_devices) = (machine.layout.stages.len(), machine.layout.stage_devices());
        let shared = Arc::new(Shared {
            workers,
            devices: (0..stages * stage_devices).map(|_| Mutex::default()).collect(),
            arrivals: (0..stages * machine.groups.count).map(|_| Padded::default()).collect(),
            links: Links::new(&machine),
            scheduler: Scheduler::new(workers, stages, stage_devices, spins),
            machine,
            cancel: settings.cancel,
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            events: Mutex::new(Vec::new()),
            clock: Clock::new(Instant::now(), settings.trace),
            control: Mutex::default(),
            runs: AtomicU64::new(0),
            start: Condvar::new(),
            finished: Condvar::new(),
        });
        let mut executor = Self { shared, threads: Vec::new() };
        for number in 0..workers {
            let shared = executor.shared.clone();
            let core = (workers <= cores.len()).then(|| cores[number]);
            let thread = std::thread::Builder::new().name(format!("pcc-worker-{number}"));
            let spawned = thread.spawn(move || {
                if let Some(core) = core {
                    affinity::pin(core);
                }
                shared.serve(number, spins);
            });
            executor.threads.push(spawned.map_err(|e| {
                Diagnostic::run(format!("worker {number} of {workers} cannot be started")).why(e.to_string())
            })?);
        }
        Ok(executor)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Runs the entry on all devices.
    ///
    /// # Errors
    /// Cancelled, a worker panicked, or the devices wait for each other.
    pub(crate) fn run(&mut self, run: Run) -> Result<(), Diagnostic> {
        let shared = &self.shared;
        shared.reset();
        let mut control = lock(&shared.control);
        control.run = Some(Arc::new(run));
        control.working = self.threads.len();
        control.runs += 1;
        shared.runs.store(control.runs, Ordering::Release);
        shared.start.notify_all();
        while control.working > 0 {
            control = wait(&shared.finished, control);
        }
        control.run = None;
        drop(control);
        match lock(&shared.failure).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Takes the events recorded so far.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.shared.events))
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        lock(&self.shared.control).shutdown = true;
        self.shared.runs.fetch_add(1, Ordering::Release);
        self.shared.start.notify_all();
        for thread in self.threads.drain(..) {
            // A worker catches panics of what it runs; if one died all the same, there is nothing left to free.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// No worker is at work.
    fn reset(&self) {
        self.devices.iter().for_each(|d| *lock(d) = Device::default());
        self.arrivals.iter().for_each(|a| a.0.store(0, Ordering::Relaxed));
        self.links.reset();
        self.stop.store(false, Ordering::Relaxed);
        *lock(&self.failure) = None;
        self.scheduler.reset();
    }

    /// A worker's life: waits for a run, works in it, waits for the next.
    fn serve(&self, number: usize, spins: u32) {
        let mut worker = Worker { number, clock: self.clock, events: Vec::new() };
        let mut seen = 0;
        loop {
            for _ in 0..spins {
                if self.runs.load(Ordering::Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut control = lock(&self.control);
            while control.runs == seen && !control.shutdown {
                control = wait(&self.start, control);
            }
            if control.shutdown {
                return;
            }
            seen = control.runs;
            let run = control.run.clone();
            drop(control);
            if let Some(run) = run {
                self.work(&run, &mut worker);
            }
            if !worker.events.is_empty() {
                lock(&self.events).append(&mut worker.events);
            }
            let mut control = lock(&self.control);
            control.working -= 1;
            if control.working == 0 {
                self.finished.notify_all();
            }
        }
    }

    fn work(&self, run: &Run, worker: &mut Worker) {
        while let Some(task) = self.scheduler.next(worker.number) {
            match task {
                Task::Device(device) => {
                    let result = catch_unwind(AssertUnwindSafe(|| self.advance(run, device, worker)));
                    if let Err(panic) = result {
                        self.report_panic(run, device, panic.as_ref());
                    }
                }
                Task::Part { owner, job, part } => {
                    let result = catch_unwind(AssertUnwindSafe(|| self.run_offered(run, &job, part)));
                    if let Err(panic) = result {
                        self.report_panic_at(run, &job, panic.as_ref());
                    }
                    self.scheduler.part_done(owner);
                }
            }
        }
    }

    /// Whether the run has to end: failed elsewhere, or cancelled.
    fn stopped(&self) -> bool {
        if self.cancel.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            self.fail(Diagnostic::run("the run was cancelled"));
        }
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the run with an error; the first one counts.
    fn fail(&self, diagnostic: Diagnostic) {
        lock(&self.failure).get_or_insert(diagnostic);
        self.stop.store(true, Ordering::Relaxed);
        self.scheduler.end();
    }
}
