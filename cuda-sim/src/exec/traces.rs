//! Who used the cells of an allocation in a launch, and which uses collide.

use super::race::{Races, Thread};
use std::ops::RangeInclusive;

/// Cells of a page of traces.
pub(super) const PAGE: usize = 1024;
/// Flag of a cell that was written by atomics, or read by `ld.global.nc`.
const FLAG: u32 = 1 << 31;
/// Several blocks.
const MANY: u32 = FLAG - 1;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    /// By `ld.global.nc`: no thread may write there during the launch.
    ReadConstant,
    Write,
    Atomic,
}

/// Who accesses: the block's number, and a thread of it.
#[derive(Clone, Copy)]
pub(super) struct User {
    pub(super) block: u32,
    pub(super) thread: Thread,
}

/// Who used an allocation, by page. A cell is as large as the kernel's smallest write, so that a write covers whole cells.
#[derive(Default)]
pub(super) struct Trace {
    writers: Pages<Writer>,
    readers: Pages<Reader>,
}

type Pages<T> = Vec<Option<Box<[T; PAGE]>>>;

#[derive(Clone, Copy, Default)]
struct Writer {
    /// 0 for nobody, else the block's number plus one.
    block: u32,
    /// When, on the clock of the thread's warp.
    time: u32,
    thread: u16,
    /// The PTX line that wrote.
    line: u32,
}

/// Readers since the last write by the same block: one thread, several lanes of its warp, or several warps.
#[derive(Clone, Copy, Default)]
struct Reader {
    /// As of a writer.
    block: u32,
    /// On the clock of the warp; of several warps, how many barriers of the whole block were over.
    time: u32,
    thread: u16,
    spread: Spread,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Spread {
    #[default]
    Thread,
    Warp,
    Block,
}

/// A page, made if there is none.
#[inline]
fn page<T: Copy + Default>(pages: &mut Pages<T>, number: usize) -> &mut [T; PAGE] {
    if pages.len() <= number {
        pages.resize_with(number + 1, || None);
    }
    pages[number].get_or_insert_with(|| Box::new([T::default(); PAGE]))
}

fn cell<T: Copy + Default>(pages: &Pages<T>, cell: usize) -> T {
    pages.get(cell / PAGE).and_then(Option::as_ref).map_or(T::default(), |page| page[cell % PAGE])
}

impl Trace {
    /// Notes a use of some cells. The error says at which it collides, and with what.
    #[inline]
    pub(super) fn note(
        &mut self,
        races: &Races,
        cells: RangeInclusive<usize>,
        user: User,
        how: Use,
    ) -> Result<(), (usize, String)> {
        let (mut n, last) = cells.into_inner();
        while n <= last {
            let number = n / PAGE;
            let end = last.min(number * PAGE + PAGE - 1);
            // Most is only ever read.
            if how == Use::Read && self.writers.get(number).is_none_or(Option::is_none) {
                let readers = page(&mut self.readers, number);
                for reader in &mut readers[n % PAGE..=end % PAGE] {
                    if !reader.covers(races, user) {
                        *reader = reader.joined(races, user, false);
                    }
                }
            } else {
                for n in n..=end {
                    self.note_cell(races, n, user, how).map_err(|what| (n, what))?;
                }
            }
            n = end + 1;
        }
        Ok(())
    }

    fn note_cell(&mut self, races: &Races, n: usize, user: User, how: Use) -> Result<(), String> {
        let me = user.block + 1;
        let (writer, reader) = (cell(&self.writers, n), cell(&self.readers, n));
        let now = races.now(user.thread);
        if let Some(what) = writer.collision(races, user, how).or_else(|| reader.collision(races, user, how))
        {
            return Err(what);
        }
        if matches!(how, Use::Read | Use::ReadConstant) {
            page(&mut self.readers, n / PAGE)[n % PAGE] =
                reader.joined(races, user, how == Use::ReadConstant);
            return Ok(());
        }
        let block = if how == Use::Write { me } else { join(writer.block, me) | FLAG };
        let (thread, line) = (user.thread.number(), races.line);
        page(&mut self.writers, n / PAGE)[n % PAGE] = Writer { block, time: now, thread, line };
        if reader.block != 0 {
            // What comes after this write comes after what its block read before.
            page(&mut self.readers, n / PAGE)[n % PAGE] =
                Reader { time: 0, spread: Spread::Thread, ..reader };
        }
        Ok(())
    }

    /// Pages of which cells were used.
    pub(super) fn pages(&self) -> impl Iterator<Item = usize> + '_ {
        let used = |n: usize| {
            self.writers.get(n).is_some_and(Option::is_some)
                || self.readers.get(n).is_some_and(Option::is_some)
        };
        (0..self.writers.len().max(self.readers.len())).filter(move |&n| used(n))
    }

    /// Whether a cell was read, and whether it was written. Atomics do both.
    pub(super) fn touched(&self, n: usize) -> [bool; 2] {
        let (writer, reader) = (cell(&self.writers, n).block, cell(&self.readers, n).block);
        [reader != 0 || writer & FLAG != 0, writer != 0]
    }
}

fn join(old: u32, me: u32) -> u32 {
    if old & !FLAG == 0 || old & !FLAG == me { me } else { MANY }
}

fn name(block: u32) -> String {
    if block == MANY { "several blocks".to_owned() } else { format!("block {}", block - 1) }
}

impl Writer {
    fn collision(self, races: &Races, user: User, how: Use) -> Option<String> {
        let (block, atomic) = (self.block & !FLAG, self.block & FLAG != 0);
        if block == 0 || atomic && how == Use::Atomic {
            return None;
        }
        if how == Use::ReadConstant {
            return Some(format!("ld.global.nc of what {} wrote in line {}", name(block), self.line));
        }
        let verb = if how == Use::Read { "reads" } else { "writes" };
        let line = self.line;
        if block != user.block + 1 {
            return Some(format!("race between blocks: it {verb} what {} wrote in line {line}", name(block)));
        }
        let other = Thread::of(self.thread);
        let ordered = races.ordered(user.thread, other, self.time);
        let message = || {
            format!(
                "race: it {verb} what warp {} lane {} wrote in line {line}, with no barrier between",
                other.warp, other.lane
            )
        };
        (!ordered).then(message)
    }
}

impl Reader {
    /// Whether another read by this thread would change nothing.
    #[inline]
    fn covers(self, races: &Races, user: User) -> bool {
        if self.block & !FLAG == MANY {
            return true;
        }
        let other = Thread::of(self.thread);
        let since = match self.spread {
            Spread::Thread => self.thread == user.thread.number() && self.time == races.now(user.thread),
            Spread::Warp => other.warp == user.thread.warp && self.time == races.now(user.thread),
            Spread::Block => self.time == races.barriers(),
        };
        self.block & !FLAG == user.block + 1 && since
    }

    /// Whether all its reads happened before what this thread does now. It is of the same block.
    fn ordered(self, races: &Races, by: Thread) -> bool {
        let other = Thread::of(self.thread);
        match self.spread {
            Spread::Thread => races.ordered(by, other, self.time),
            Spread::Warp => races.warp_ordered(by, other.warp, self.time),
            Spread::Block => self.time < races.barriers(),
        }
    }

    fn joined(self, races: &Races, user: User, constant: bool) -> Self {
        let me = user.block + 1;
        let flag = self.block & FLAG | if constant { FLAG } else { 0 };
        let alone = Self {
            block: join(self.block, me) | flag,
            time: races.now(user.thread),
            thread: user.thread.number(),
            spread: Spread::Thread,
        };
        let same = self.block & !FLAG == me;
        if !same || self.ordered(races, user.thread) {
            return alone;
        }
        if self.spread != Spread::Block && Thread::of(self.thread).warp == user.thread.warp {
            let one = self.spread == Spread::Thread && self.thread == alone.thread;
            return Self { spread: if one { Spread::Thread } else { Spread::Warp }, ..alone };
        }
        Self { time: races.barriers(), spread: Spread::Block, ..alone }
    }

    /// What a write does to those who read.
    fn collision(self, races: &Races, user: User, how: Use) -> Option<String> {
        let (block, constant) = (self.block & !FLAG, self.block & FLAG != 0);
        if block == 0 || !matches!(how, Use::Write | Use::Atomic) {
            return None;
        }
        if constant {
            return Some(format!("it writes what {} read by ld.global.nc in this launch", name(block)));
        }
        if block != user.block + 1 {
            return Some(format!("race between blocks: it writes what {} read in this launch", name(block)));
        }
        let other = Thread::of(self.thread);
        let message = || match self.spread {
            Spread::Block => "race: it writes what several warps read, with no barrier between".to_owned(),
            _ => format!(
                "race: it writes what warp {} lane {} read, with no barrier between",
                other.warp, other.lane
            ),
        };
        (!self.ordered(races, user.thread)).then(message)
    }
}
