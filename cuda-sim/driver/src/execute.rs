//! Runs a piece of work.

use crate::clock::Clock;
use crate::code::Code;
use crate::host;
use crate::race::Accessor;
use crate::staging;
use crate::state::{Space, Turn};
use crate::threads;
use crate::work::{Launch, Source, Work};
use pcc_cuda_sim::{Fault, exec};
use std::ops::Range;
use std::sync::Arc;

/// Bytes from which on a copy lets others work meanwhile.
const MANY: u64 = 64 << 10;

impl Turn {
    /// Runs a node that may start, to its end; a communicator's only to its start if other ranks are missing.
    pub fn perform(&mut self, id: u64) {
        let Some(node) = self.pending.get(id) else { return };
        let (context, work, what) = (node.context, node.work.clone(), node.what.clone());
        let alone = !matches!(work, Work::Nothing | Work::Communicate(_));
        self.pending.start(id, alone);
        if self.contexts.get(context).is_ok_and(|of| of.fault.is_some()) {
            return self.done(id);
        }
        if let Work::Communicate(work) = &work {
            self.comm_start(id, work);
            self.notify();
            return;
        }
        if let Work::HostCall { function, argument } = work {
            // On a thread of its own, as by the driver: the caller may hold what the function waits for.
            let thread = std::thread::Builder::new().spawn(move || {
                threads::host_call(|| function(argument as *mut std::ffi::c_void));
                Turn::take().done(id);
            });
            if let Err(error) = thread {
                self.fault(context, Code::LAUNCH_FAILED, &format!("{what}: no thread for it: {error}"));
                self.done(id);
            }
            return;
        }
        if let Err(why) = self.run_work(id, &work) {
            self.fault(context, Code::LAUNCH_FAILED, &format!("{what}: {why}"));
        }
        self.done(id);
    }

    fn done(&mut self, id: u64) {
        self.pending.finish(id);
        self.progress = std::time::Instant::now();
        self.notify();
    }

    fn run_work(&mut self, id: u64, work: &Work) -> Result<(), String> {
        let memory = self.memory.clone();
        match *work {
            Work::Nothing => Ok(()),
            Work::HostToDevice { dst, ref src, len } => {
                self.note(id, Space::Devices, dst..dst + len, true)?;
                match src {
                    Source::Bytes(bytes) => self.moved(len, || memory.write(dst, bytes)),
                    &Source::Pinned { addr, digest } => {
                        self.note(id, Space::Host, addr..addr + len, false)?;
                        self.moved(len, || {
                            let bytes = host::read(addr, len);
                            if digest.is_some_and(|old| staging::digest(&bytes) != old) {
                                let why =
                                    "the host changed the page-locked memory it reads before it had run";
                                return Err(Fault { what: why.to_owned(), at: String::new() });
                            }
                            memory.write(dst, &bytes)
                        })
                    }
                }
            }
            Work::DeviceToHost { dst, src, len } => {
                self.note(id, Space::Devices, src..src + len, false)?;
                self.note(id, Space::Host, dst..dst + len, true)?;
                self.moved(len, || memory.read(src, len).map(|bytes| host::write(dst, &bytes)))
            }
            Work::DeviceToDevice { dst, src, len } => {
                self.note(id, Space::Devices, src..src + len, false)?;
                self.note(id, Space::Devices, dst..dst + len, true)?;
                self.moved(len, || memory.copy(dst, src, len))
            }
            Work::Set { dst, value, width, count } => {
                self.note(id, Space::Devices, dst..dst + width * count, true)?;
                if width == 1 {
                    return self.moved(count, || memory.set(dst, value as u8, count));
                }
                let one = &value.to_le_bytes()[..width as usize];
                self.moved(width * count, || memory.write(dst, &one.repeat(count as usize)))
            }
            Work::Alloc { addr, len } => self.note(id, Space::Devices, addr..addr + len, true),
            Work::Free { addr, len } => {
                self.note(id, Space::Devices, addr..addr + len, true)?;
                self.free_now(addr)
            }
            Work::Launch(ref launch) => self.run_kernel(id, launch),
            Work::Product(ref product) => self.run_product(id, product),
            // Both are run elsewhere.
            Work::HostCall { .. } | Work::Communicate(_) => Ok(()),
        }
    }

    /// Moves bytes, many of them without the lock.
    fn moved(&mut self, len: u64, f: impl FnOnce() -> Result<(), Fault>) -> Result<(), String> {
        let result = if len < MANY { f() } else { self.alone(f) };
        result.map_err(|fault| fault.to_string())
    }

    fn run_kernel(&mut self, id: u64, launch: &Arc<Launch>) -> Result<(), String> {
        let (memory, launch, seed) = (self.memory.clone(), launch.clone(), self.random.next());
        let budget = self.config.budget;
        let result = self.alone(|| {
            let Launch { kernel, device, grid, block, shared, params } = &*launch;
            let (device, grid, block, shared) = (*device, *grid, *block, *shared);
            let launch = exec::Launch { kernel, device, grid, block, shared, params, seed };
            let run = || exec::run_within(&memory, &launch, budget);
            // Others wait for this work: it has to end, whatever happens.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
        });
        match result {
            Ok(Ok(stats)) => {
                let reads = stats.reads.into_iter().map(|range| (range, false));
                let writes = stats.writes.into_iter().map(|range| (range, true));
                reads.chain(writes).try_for_each(|(r, writes)| self.note(id, Space::Devices, r, writes))
            }
            Ok(Err(fault)) if fault.what.contains("endless loop") => {
                Err(format!("{fault} (PCC_SIM_BUDGET allows a warp more instructions)"))
            }
            Ok(Err(fault)) => Err(fault.to_string()),
            Err(_) => Err("the simulator itself failed on this kernel".to_owned()),
        }
    }

    /// Ends a context: all its later calls answer `code`. The communicators of its ranks end too, as nobody can count on them.
    pub fn fault(&mut self, context: u64, code: Code, why: &str) {
        let Ok(of) = self.contexts.get_mut(context) else { return };
        if of.fault.is_some() {
            return;
        }
        let message = format!("device {}: {why}", of.device);
        of.fault = Some((code, message.clone()));
        self.refuse(code, message.clone());
        self.comm_fail_all(context, &message);
    }

    /// Notes an access of started work. The error says what it races with.
    pub fn note(&mut self, id: u64, space: Space, range: Range<u64>, writes: bool) -> Result<(), String> {
        let sim = &mut **self;
        if !sim.config.races {
            return Ok(());
        }
        let Some(node) = sim.pending.get(id) else { return Ok(()) };
        let Some((at, clock)) = &node.started else { return Ok(()) };
        let who = Accessor { at: *at, clock, what: &node.what };
        match sim.histories.entry(space).or_default().access(range, writes, &who) {
            Some(race) => Err(race.to_string()),
            None => Ok(()),
        }
    }

    /// What started work is ordered behind.
    pub fn clock_of(&self, id: u64) -> Clock {
        let started = self.pending.get(id).and_then(|node| node.started.as_ref());
        started.map(|(_, clock)| clock.clone()).unwrap_or_default()
    }
}
