//! A warp: lanes in step, and what happens where they part.

use super::Trap;
use super::block::Shares;
use super::copies::Copies;
use super::local::Local;
use super::registers::{Registers, lanes};
use super::wgmma::Products;
use crate::ptx::code::{Code, Instruction, LANES, Op, Special};

/// Lanes at one instruction.
#[derive(Clone, Copy)]
struct Group {
    pc: u32,
    lanes: u32,
    /// Waits for other lanes to come here.
    parked: bool,
}

/// How far a warp has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ready,
    /// At a barrier of this number, which so many threads pass if it says so.
    Waiting(u32, Option<u32>),
    Done,
}

/// What follows an instruction.
enum Flow {
    Next,
    /// These lanes go elsewhere, to one place or to several.
    Jump(u32, u32),
    Spread(Vec<(u32, u32)>),
    Exit(u32),
    /// The lanes wait for others of their warp.
    Park,
    /// The whole warp is at a barrier.
    Barrier {
        id: u32,
        threads: Option<u32>,
        waits: bool,
    },
}

pub(super) struct Warp {
    pub(super) index: usize,
    pub(super) registers: Registers,
    pub(super) local: Local,
    pub(super) copies: Copies,
    pub(super) products: Products,
    groups: Vec<Group>,
    /// Lanes that have a thread.
    threads: u32,
    exited: u32,
    /// Warp instructions run in this block.
    spent: u64,
    /// Thread instructions run in this block.
    pub(super) instructions: u64,
    pub(super) status: Status,
}

/// What is wrong at an instruction.
pub(super) struct Stop {
    pub(super) pc: u32,
    pub(super) trap: Trap,
}

impl Warp {
    pub(super) fn new(index: usize, code: &Code, threads: u32) -> Self {
        Self {
            index,
            registers: Registers::new(code),
            local: Local::new(code),
            copies: Copies::default(),
            products: Products::default(),
            groups: Vec::new(),
            threads,
            exited: 0,
            spent: 0,
            instructions: 0,
            status: Status::Done,
        }
    }

    /// Starts a block: all lanes at the first instruction, nothing known.
    pub(super) fn start(&mut self, code: &Code, special: impl Fn(Special, usize) -> u32) {
        self.registers.reset(code);
        for &(slot, which) in &code.specials {
            for lane in 0..LANES {
                self.registers.values[slot as usize][lane] = special(which, lane).into();
            }
        }
        self.local.reset();
        self.copies.reset();
        self.products = Products::default();
        self.groups.clear();
        self.groups.push(Group { pc: 0, lanes: self.threads, parked: false });
        (self.exited, self.spent, self.instructions) = (0, 0, 0);
        self.status = Status::Ready;
    }

    /// Lanes whose threads still run.
    pub(super) fn alive(&self) -> u32 {
        self.threads & !self.exited
    }

    /// The instruction before the one to go on with.
    pub(super) fn at(&self) -> u32 {
        self.groups.first().map_or(0, |g| g.pc.saturating_sub(1))
    }

    /// Takes out the lanes to go on with: those furthest behind. The flag: all wait for others, which cannot come.
    fn pick(&mut self) -> Option<(Group, bool)> {
        self.groups.sort_unstable_by_key(|g| g.pc);
        self.groups.dedup_by(|later, first| {
            let meet = later.pc == first.pc;
            if meet {
                first.lanes |= later.lanes;
                // Whoever comes lets the waiting ones look again.
                first.parked = false;
            }
            meet
        });
        if self.groups.is_empty() {
            return None;
        }
        let ready = self.groups.iter().position(|g| !g.parked);
        Some((self.groups.remove(ready.unwrap_or(0)), ready.is_none()))
    }

    /// Runs so many instructions, or up to a barrier or the end.
    pub(super) fn run(&mut self, shares: &mut Shares, mut turns: u64) -> Result<(), Stop> {
        while let Some((mut group, last)) = self.pick() {
            let stop = self.groups.iter().map(|g| g.pc).find(|&pc| pc > group.pc).unwrap_or(u32::MAX);
            loop {
                if turns == 0 || group.pc == stop {
                    group.parked = false;
                    self.groups.push(group);
                    if turns == 0 {
                        return Ok(());
                    }
                    break;
                }
                turns -= 1;
                let pc = group.pc;
                match self.step(shares, group, last).map_err(|trap| Stop { pc, trap })? {
                    Flow::Next => group.pc += 1,
                    Flow::Jump(taken, to) => {
                        let rest = group.lanes & !taken;
                        if rest == 0 && self.groups.is_empty() {
                            group.pc = to;
                            continue;
                        }
                        self.groups.push(Group { pc: to, lanes: taken, parked: false });
                        if rest != 0 {
                            self.groups.push(Group { pc: pc + 1, lanes: rest, parked: false });
                        }
                        break;
                    }
                    Flow::Spread(ways) => {
                        let ways = ways.into_iter().map(|(pc, lanes)| Group { pc, lanes, parked: false });
                        self.groups.extend(ways);
                        break;
                    }
                    Flow::Exit(gone) => {
                        self.exited |= gone;
                        group.lanes &= !gone;
                        group.pc += 1;
                        if group.lanes == 0 {
                            break;
                        }
                    }
                    Flow::Park => {
                        let here = self.active(shares.code, group).map_err(|trap| Stop { pc, trap })?;
                        self.groups.push(Group { pc, lanes: here, parked: true });
                        if group.lanes != here {
                            self.groups.push(Group { pc: pc + 1, lanes: group.lanes & !here, parked: false });
                        }
                        break;
                    }
                    Flow::Barrier { id, threads, waits } => {
                        let lane = group.lanes.trailing_zeros() as usize;
                        let arrived = shares.arrive(self.index, id, threads, waits);
                        arrived.map_err(|what| Stop { pc, trap: Trap { lane, what } })?;
                        group.pc += 1;
                        if waits {
                            self.groups.push(group);
                            self.status = Status::Waiting(id, threads);
                            return Ok(());
                        }
                    }
                }
            }
        }
        self.status = Status::Done;
        Ok(())
    }

    /// Lanes of a group whose predicate lets them take part.
    fn active(&self, code: &Code, group: Group) -> Result<u32, Trap> {
        let Some((slot, wanted)) = code.instructions[group.pc as usize].guard else { return Ok(group.lanes) };
        if let Some(lane) = self.registers.poisoned(slot, group.lanes) {
            return Err(Trap { lane, what: "a predicate that depends on an uninitialised value".into() });
        }
        let truths = self.registers.truths(slot);
        Ok(group.lanes & if wanted { truths } else { !truths })
    }

    fn step(&mut self, shares: &mut Shares, group: Group, last: bool) -> Result<Flow, Trap> {
        let code = shares.code;
        let instruction = &code.instructions[group.pc as usize];
        let active = self.active(code, group)?;
        self.spent += 1;
        if self.spent > shares.budget {
            let lane = group.lanes.trailing_zeros() as usize;
            return Err(Trap {
                lane,
                what: format!("it has run {} instructions: an endless loop", shares.budget),
            });
        }
        self.instructions += u64::from(active.count_ones()) * u64::from(instruction.counts);
        if active != 0 && instruction.names_sums {
            self.touch_sums(&instruction.op, active)?;
        }
        if active == 0 || self.registers.run(&instruction.op, active) {
            return Ok(Flow::Next);
        }
        let flow = self.other(shares, instruction, group, active, last)?;
        if matches!(flow, Flow::Park) {
            // It will run again.
            self.instructions -= u64::from(active.count_ones()) * u64::from(instruction.counts);
        }
        Ok(flow)
    }

    fn other(
        &mut self,
        shares: &mut Shares,
        instruction: &Instruction,
        group: Group,
        active: u32,
        last: bool,
    ) -> Result<Flow, Trap> {
        let op = &instruction.op;
        shares.shared.races.line = instruction.line;
        match *op {
            Op::Param { ref d, offset, bytes, signed } => {
                self.param(&shares.params, d, offset, bytes, signed, active)
            }
            Op::Load { .. } => self.load(shares, op, active)?,
            Op::Store { .. } => self.store(shares, op, active)?,
            Op::Atomic { .. } => self.atomic(shares, op, active)?,
            Op::CopyAsync { .. } => self.copy_async(shares, op, active)?,
            Op::Commit => self.commit(active),
            Op::Wait { groups } => self.wait(shares, groups, active),
            Op::Branch { to, uniform } => {
                if uniform && active != group.lanes {
                    let lane = (group.lanes & !active).trailing_zeros() as usize;
                    return Err(Trap { lane, what: "lanes part at a bra.uni".into() });
                }
                return Ok(Flow::Jump(active, to));
            }
            Op::Table { index, ref to } => return self.table(index, to, group, active),
            Op::Exit => {
                self.products.check_end(active)?;
                return Ok(Flow::Exit(active));
            }
            Op::Trap => {
                let lane = active.trailing_zeros() as usize;
                return Err(Trap { lane, what: "the kernel traps".into() });
            }
            Op::Barrier { id, threads, waits } => return self.barrier(id, threads, waits, active, last),
            Op::LoadMatrix { .. } | Op::Mma { .. } => {
                if !self.together(active, last)? {
                    return Ok(Flow::Park);
                }
                match op {
                    Op::Mma { .. } => self.product(op),
                    _ => self.load_matrix(shares, op)?,
                }
            }
            Op::Wgmma(_) | Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait { .. } => {
                if !self.together(active, last)? {
                    return Ok(Flow::Park);
                }
                self.warpgroup(shares, op, group.pc)?;
            }
            Op::ProxyFence => shares.shared.races.publish(self.index, lanes(active)),
            Op::WarpSync { mask } => {
                if !self.gathered(mask, active, last)? {
                    return Ok(Flow::Park);
                }
                for lane in lanes(active) {
                    let members = self.registers.get(mask, lane).0 as u32;
                    // Once a set of lanes.
                    if members.trailing_zeros() as usize == lane {
                        shares.shared.races.sync_warp(self.index, members, self.alive());
                    }
                }
            }
            Op::Shuffle { mask, .. } => {
                if !self.gathered(mask, active, last)? {
                    return Ok(Flow::Park);
                }
                self.shuffle(op, active)?;
            }
            Op::Vote { mask, .. } | Op::Reduce { mask, .. } | Op::Match { mask, .. } => {
                if !self.gathered(mask, active, last)? {
                    return Ok(Flow::Park);
                }
                self.collect(op, active);
            }
            Op::ActiveMask { d } => {
                for lane in lanes(active) {
                    self.registers.set(d, lane, active.into(), 0);
                }
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    /// Whether the warp is whole, as `.aligned` instructions need it.
    fn together(&self, active: u32, last: bool) -> Result<bool, Trap> {
        let lane = active.trailing_zeros() as usize;
        if self.alive() != u32::MAX {
            return Err(Trap {
                lane,
                what: format!("its warp is not whole: only lanes {:#x} run", self.alive()),
            });
        }
        if active == u32::MAX {
            return Ok(true);
        }
        if last {
            return Err(Trap { lane, what: format!("only lanes {active:#x} of its warp come here") });
        }
        Ok(false)
    }

    fn barrier(
        &mut self,
        id: u32,
        threads: Option<u32>,
        waits: bool,
        active: u32,
        last: bool,
    ) -> Result<Flow, Trap> {
        let lane = active.trailing_zeros() as usize;
        if self.exited != 0 && threads.is_none() {
            let what = format!("barrier divergence: lanes {:#x} of its warp have exited", self.exited);
            return Err(Trap { lane, what });
        }
        if active != self.alive() {
            if last {
                let what =
                    format!("barrier divergence: only lanes {active:#x} of {:#x} come here", self.alive());
                return Err(Trap { lane, what });
            }
            return Ok(Flow::Park);
        }
        let uniform = |slot: u32, what: &str| {
            let (value, _) = self.registers.get(slot, lane);
            match self.registers.poisoned(slot, active) {
                Some(lane) => Err(Trap { lane, what: format!("an uninitialised {what}") }),
                None if lanes(active).any(|l| self.registers.get(slot, l).0 != value) => {
                    Err(Trap { lane, what: format!("lanes have several {what}s") })
                }
                None => Ok(value as u32),
            }
        };
        let id = uniform(id, "barrier number")?;
        if id > 15 {
            return Err(Trap { lane, what: format!("barrier number {id}") });
        }
        let threads = threads.map(|slot| uniform(slot, "number of threads")).transpose()?;
        if threads.is_some_and(|n| n == 0 || n % 32 != 0) {
            return Err(Trap { lane, what: format!("a barrier for {} threads", threads.unwrap_or(0)) });
        }
        Ok(Flow::Barrier { id, threads, waits })
    }

    fn table(&self, index: u32, to: &[u32], group: Group, active: u32) -> Result<Flow, Trap> {
        let mut ways: Vec<(u32, u32)> = Vec::new();
        let skipped = group.lanes & !active;
        if skipped != 0 {
            ways.push((group.pc + 1, skipped));
        }
        for lane in lanes(active) {
            let (value, poison) = self.registers.get(index, lane);
            let known = (poison == 0).then(|| to.get(value as usize)).flatten();
            let known =
                known.ok_or_else(|| Trap { lane, what: format!("index {value} of {} targets", to.len()) })?;
            match ways.iter_mut().find(|w| w.0 == *known) {
                Some(way) => way.1 |= 1 << lane,
                None => ways.push((*known, 1 << lane)),
            }
        }
        Ok(Flow::Spread(ways))
    }
}
