//! Who runs what: a queue of runnable devices for each worker, instructions offered to idle workers, and sleep.
//!
//! A device is in at most one queue, and in none while it runs or is blocked. `active` counts the devices that are queued
//! or running; when it reaches zero while some have not finished, nothing can ever run again: a deadlock.

use super::{lock, wait};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

/// A value on cache lines of its own, so that workers do not take each other's lines.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// An instruction of a device, cut into parts that any worker may run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) device: usize,
    pub(super) micro_batch: usize,
    pub(super) step: usize,
    pub(super) instr: usize,
    pub(super) parts: usize,
    next: usize,
}

impl Job {
    pub(super) fn new(device: usize, micro_batch: usize, step: usize, instr: usize, parts: usize) -> Self {
        Self { device, micro_batch, step, instr, parts, next: 0 }
    }
}

/// What a worker does next.
pub(super) enum Task {
    Device(usize),
    /// A part of an instruction that the worker `owner` offers.
    Part {
        owner: usize,
        job: Job,
        part: usize,
    },
}

#[derive(Default)]
struct Offer {
    job: Mutex<Option<Job>>,
    /// Parts done.
    done: AtomicUsize,
}

pub(super) struct Scheduler {
    queues: Vec<Padded<Mutex<VecDeque<u32>>>>,
    offers: Vec<Padded<Offer>>,
    /// Queued devices and parts that no one has taken: a hint for idle workers.
    available: Padded<AtomicUsize>,
    active: Padded<AtomicUsize>,
    unfinished: AtomicUsize,
    /// Workers that look for something to do.
    idle: Padded<AtomicUsize>,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    over: AtomicBool,
    /// Looks before an idle worker sleeps.
    spins: u32,
    /// Worker that each device is queued at.
    homes: Vec<u32>,
}

impl Scheduler {
    /// For `workers` workers. Each stage's devices are spread over all workers, so that one stage alone keeps them busy.
    pub(super) fn new(workers: usize, stages: usize, stage_devices: usize, spins: u32) -> Self {
        let home = |d: usize| {
            let (stage, position) = (d / stage_devices, d % stage_devices);
            ((stage + position * workers / stage_devices) % workers) as u32
        };
        Self {
            queues: (0..workers).map(|_| Padded::default()).collect(),
            offers: (0..workers).map(|_| Padded::default()).collect(),
            available: Padded::default(),
            active: Padded::default(),
            unfinished: AtomicUsize::new(0),
            idle: Padded::default(),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            over: AtomicBool::new(true),
            spins,
            homes: (0..stages * stage_devices).map(home).collect(),
        }
    }

    /// Makes all devices runnable. No worker is at work.
    pub(super) fn reset(&self) {
        for (queue, offer) in self.queues.iter().zip(&self.offers) {
            lock(&queue.0).clear();
            *lock(&offer.0.job) = None;
        }
        for (device, &home) in self.homes.iter().enumerate() {
            lock(&self.queues[home as usize].0).push_back(device as u32);
        }
        let devices = self.homes.len();
        self.available.0.store(devices, SeqCst);
        self.active.0.store(devices, SeqCst);
        self.unfinished.store(devices, SeqCst);
        self.idle.0.store(0, SeqCst);
        self.over.store(devices == 0, SeqCst);
    }

    /// Ends the run for all workers.
    pub(super) fn end(&self) {
        self.over.store(true, SeqCst);
        let _guard = lock(&self.sleep);
        self.wake.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Makes `count` blocked devices runnable.
    pub(super) fn release(&self, count: usize, devices: impl Iterator<Item = usize>) {
        if count == 0 {
            return;
        }
        self.active.0.fetch_add(count, SeqCst);
        let mut devices = devices.peekable();
        while let Some(device) = devices.next() {
            let home = self.homes[device];
            let mut queue = lock(&self.queues[home as usize].0);
            queue.push_back(device as u32);
            // Members of a group mostly live at one worker: keep its lock while they do.
            while let Some(next) = devices.next_if(|&d| self.homes[d] == home) {
                queue.push_back(next as u32);
            }
        }
        self.announce(count);
    }

    /// A device stops running and waits. Returns whether nothing can run any more.
    pub(super) fn block(&self) -> bool {
        self.active.0.fetch_sub(1, SeqCst) == 1 && self.unfinished.load(SeqCst) > 0
    }

    /// A device has nothing left to do. Returns whether nothing can run any more although some device has work left.
    pub(super) fn finish(&self) -> bool {
        if self.unfinished.fetch_sub(1, SeqCst) == 1 {
            self.end();
        }
        self.block()
    }

    /// Whether a worker would take a part of an instruction at once, or nearly.
    pub(super) fn has_idle(&self) -> bool {
        self.idle.0.load(Relaxed) > 0
    }

    /// The next thing for a worker; waits for one. `None` when the run is over.
    pub(super) fn next(&self, worker: usize) -> Option<Task> {
        if self.is_over() {
            return None;
        }
        if let Some(task) = self.take(worker) {
            return Some(task);
        }
        self.idle.0.fetch_add(1, SeqCst);
        let task = self.wait_for_task(worker);
        self.idle.0.fetch_sub(1, SeqCst);
        task
    }

    fn wait_for_task(&self, worker: usize) -> Option<Task> {
        loop {
            for _ in 0..self.spins.max(1) {
                if self.is_over() {
                    return None;
                }
                if self.available.0.load(Relaxed) > 0
                    && let Some(task) = self.take(worker)
                {
                    return Some(task);
                }
                std::hint::spin_loop();
            }
            let guard = lock(&self.sleep);
            self.sleepers.fetch_add(1, SeqCst);
            if self.available.0.load(SeqCst) == 0 && !self.over.load(SeqCst) {
                drop(wait(&self.wake, guard));
            } else {
                drop(guard);
                // Something is there that others are about to take.
                std::thread::yield_now();
            }
            self.sleepers.fetch_sub(1, SeqCst);
        }
    }

    /// A device of the worker's own, another's, or a part of an instruction.
    fn take(&self, worker: usize) -> Option<Task> {
        let count = self.queues.len();
        if self.available.0.load(Relaxed) == 0 {
            return None;
        }
        for i in 0..count {
            let mut queue = lock(&self.queues[(worker + i) % count].0);
            let device = if i == 0 { queue.pop_front() } else { queue.pop_back() };
            drop(queue);
            if let Some(device) = device {
                self.available.0.fetch_sub(1, SeqCst);
                return Some(Task::Device(device as usize));
            }
        }
        (1..count).map(|i| (worker + i) % count).find_map(|owner| self.take_part(owner))
    }

    fn take_part(&self, owner: usize) -> Option<Task> {
        let mut offered = lock(&self.offers[owner].0.job);
        let job = offered.as_mut().filter(|job| job.next < job.parts)?;
        let part = job.next;
        job.next += 1;
        let job = *job;
        drop(offered);
        self.available.0.fetch_sub(1, SeqCst);
        Some(Task::Part { owner, job, part })
    }

    /// A part taken from `owner` is done.
    pub(super) fn part_done(&self, owner: usize) {
        self.offers[owner].0.done.fetch_add(1, SeqCst);
    }

    /// Offers a job to idle workers, runs the parts no one took, and returns when all are done.
    pub(super) fn share(&self, worker: usize, job: Job, run: impl Fn(usize)) {
        let offer = &self.offers[worker].0;
        offer.done.store(0, SeqCst);
        *lock(&offer.job) = Some(job);
        self.announce(job.parts);
        while let Some(Task::Part { part, .. }) = self.take_part(worker) {
            run(part);
            offer.done.fetch_add(1, SeqCst);
        }
        let mut looks = 0u32;
        while offer.done.load(SeqCst) < job.parts {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(self.spins.clamp(1, 1024)) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        *lock(&offer.job) = None;
    }

    fn announce(&self, count: usize) {
        self.available.0.fetch_add(count, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            let _guard = lock(&self.sleep);
            if count == 1 {
                self.wake.notify_one();
            } else {
                self.wake.notify_all();
            }
        }
    }
}
