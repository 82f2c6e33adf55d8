//! Finds shared-memory races of a block.
//!
//! Two accesses of a byte by different threads, one of them a write and not both atomic, need a barrier between them. Warps have vector clocks that
//! barriers join, as in FastTrack (Flanagan and Freund, 2009); within a warp only `bar.warp.sync` and barriers order lanes, for neither running
//! in step nor a shuffle orders memory.

/// Nobody, as a thread or lane.
const NONE: u16 = u16::MAX;
/// Flag of a thread that wrote atomically.
const ATOMIC: u16 = 1 << 15;
/// Several lanes of a warp.
const MANY: u8 = 32;

/// Who does something.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    pub(super) warp: usize,
    pub(super) lane: usize,
}

impl Thread {
    pub(super) fn number(self) -> u16 {
        (self.warp * 32 + self.lane) as u16
    }

    pub(super) fn of(number: u16) -> Self {
        let number = usize::from(number & !ATOMIC);
        Self { warp: number / 32, lane: number % 32 }
    }
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Atomic,
}

pub(super) struct Races {
    /// Bytes of a cell: the smallest write of the kernel, so that a write covers whole cells.
    grain: usize,
    warps: usize,
    cells: Vec<Cell>,
    /// Per cell and warp: when it read last, and the lane or `MANY`.
    reads: Vec<(u32, u8)>,
    /// Per warp: its time, which moves on when it synchronises.
    time: Vec<u32>,
    /// Per warp and other warp: accesses of the other before this time are known to have happened.
    seen: Vec<u32>,
    /// Per warp: accesses of any lane before this time are ordered before those of all lanes.
    synced: Vec<u32>,
    /// Per warp and two lanes, where only part of a warp synchronised.
    pairs: Vec<Option<Box<[[u32; 32]; 32]>>>,
    /// When the current block started: older records are of other blocks.
    start: u32,
    /// Per warp and thread: writes of the thread before this time of its warp are known to be visible to the asynchronous proxy, by which products of
    /// warpgroups read. None as long as nothing was ever made visible.
    published: Vec<u32>,
    /// Per cell: products under way that read it. None as long as there never was one.
    reading: Vec<u16>,
    /// Whether any cell may be marked as being copied to.
    copies: bool,
    /// Barriers of whole blocks, and ends of blocks, that are over.
    barriers: u32,
    /// The PTX line that runs.
    pub(super) line: u32,
}

#[derive(Clone, Copy)]
struct Cell {
    wrote: u32,
    writer: u16,
    /// The PTX line of that write.
    line: u32,
    /// The thread whose asynchronous copy into the cell is under way.
    copying: u16,
}

impl Races {
    pub(super) fn new(bytes: usize, grain: usize, warps: usize) -> Self {
        let cells = bytes.div_ceil(grain);
        Self {
            grain,
            warps,
            cells: vec![Cell { wrote: 0, writer: NONE, line: 0, copying: NONE }; cells],
            reads: vec![(0, MANY); cells * warps],
            time: vec![1; warps],
            seen: vec![1; warps * warps],
            synced: vec![1; warps],
            pairs: (0..warps).map(|_| None).collect(),
            start: 1,
            published: Vec::new(),
            reading: Vec::new(),
            copies: false,
            barriers: 0,
            line: 0,
        }
    }

    /// Forgets all of the last block.
    pub(super) fn reset(&mut self) {
        let last = self.time.iter().copied().max().unwrap_or(1);
        if last > u32::MAX / 2 {
            *self = Self::new(self.cells.len() * self.grain, self.grain, self.warps);
            return;
        }
        self.start = last + 1;
        self.barriers += 1;
        self.time.fill(self.start);
        self.seen.fill(self.start);
        self.synced.fill(self.start);
        self.pairs.fill(None);
        self.published.fill(self.start);
        self.reading.fill(0);
        if std::mem::take(&mut self.copies) {
            for cell in &mut self.cells {
                cell.copying = NONE;
            }
        }
    }

    /// Whether what another thread did at a time of its warp happened before what this thread does now.
    pub(super) fn ordered(&self, by: Thread, other: Thread, time: u32) -> bool {
        if time < self.start {
            return true;
        }
        if by.warp != other.warp {
            return time < self.seen[by.warp * self.warps + other.warp];
        }
        let pair = || self.pairs[by.warp].as_ref().is_some_and(|p| time < p[by.lane][other.lane]);
        by.lane == other.lane || time < self.synced[by.warp] || pair()
    }

    /// The same of all lanes of a warp.
    pub(super) fn warp_ordered(&self, by: Thread, warp: usize, time: u32) -> bool {
        let known = if by.warp == warp { self.synced[warp] } else { self.seen[by.warp * self.warps + warp] };
        time < self.start || time < known
    }

    /// Barriers of whole blocks so far.
    pub(super) fn barriers(&self) -> u32 {
        self.barriers
    }

    /// A barrier of the whole block is over.
    pub(super) fn pass(&mut self) {
        self.barriers += 1;
    }

    /// The time of a thread's warp.
    pub(super) fn now(&self, by: Thread) -> u32 {
        self.time[by.warp]
    }

    /// Notes an access. The error says with which other it collides.
    #[inline]
    pub(super) fn access(
        &mut self,
        by: Thread,
        at: usize,
        bytes: usize,
        access: Access,
    ) -> Result<(), String> {
        for n in at / self.grain..=(at + bytes - 1) / self.grain {
            if access == Access::Read && self.read_before(n, by) {
                continue;
            }
            let cell = self.cells[n];
            if cell.copying != NONE {
                return Err(copying(Thread::of(cell.copying), by, cell.line));
            }
            let both_atomic = access == Access::Atomic && cell.writer != NONE && cell.writer & ATOMIC != 0;
            if cell.writer != NONE && !both_atomic && !self.ordered(by, Thread::of(cell.writer), cell.wrote) {
                let verb = if access == Access::Read { "reads" } else { "writes" };
                return Err(race(verb, &format!("wrote in line {}", cell.line), Thread::of(cell.writer)));
            }
            if access == Access::Read {
                self.note_read(n, by);
            } else {
                if self.reading.get(n).is_some_and(|&products| products > 0) {
                    return Err("it writes shared memory that a wgmma.mma_async may still be reading".into());
                }
                self.check_reads(n, by)?;
                let atomic = if access == Access::Atomic { ATOMIC } else { 0 };
                let (wrote, line) = (self.time[by.warp], self.line);
                self.cells[n] = Cell { wrote, writer: by.number() | atomic, line, copying: NONE };
            }
        }
        Ok(())
    }

    /// Whether a read would find what an earlier one of the same warp found: neither a write nor a barrier came between.
    #[inline]
    fn read_before(&self, cell: usize, by: Thread) -> bool {
        let (when, lane) = self.reads[cell * self.warps + by.warp];
        when == self.time[by.warp] && (lane == MANY || lane == by.lane as u8)
    }

    fn note_read(&mut self, cell: usize, by: Thread) {
        let now = self.time[by.warp];
        let read = &mut self.reads[cell * self.warps + by.warp];
        let alone = read.0 < self.synced[by.warp] || read.1 == by.lane as u8;
        *read = (now, if alone { by.lane as u8 } else { MANY });
    }

    fn check_reads(&mut self, cell: usize, by: Thread) -> Result<(), String> {
        for warp in 0..self.warps {
            let (when, lane) = self.reads[cell * self.warps + warp];
            if when < self.start {
                continue;
            }
            let many = lane == MANY;
            let reader = Thread { warp, lane: if many { (by.lane + 1) % 32 } else { lane.into() } };
            if !self.ordered(by, reader, when) {
                return Err(race("writes", if many { "and others read" } else { "read" }, reader));
            }
        }
        // What comes after this write comes after all those reads.
        self.reads[cell * self.warps..][..self.warps].fill((0, MANY));
        Ok(())
    }

    /// A copy into these bytes starts: it is a write now, and nobody may touch them until it ends.
    pub(super) fn start_copy(&mut self, by: Thread, at: usize, bytes: usize) -> Result<(), String> {
        self.access(by, at, bytes, Access::Write)?;
        self.copies = true;
        for cell in &mut self.cells[at / self.grain..][..bytes.div_ceil(self.grain)] {
            cell.copying = by.number();
        }
        Ok(())
    }

    /// The thread has waited for its copy: it writes now.
    pub(super) fn end_copy(&mut self, by: Thread, at: usize, bytes: usize) {
        let now = self.time[by.warp];
        for cell in &mut self.cells[at / self.grain..][..bytes.div_ceil(self.grain)] {
            *cell = Cell { wrote: now, writer: by.number(), line: cell.line, copying: NONE };
        }
    }

    /// All lanes of a warp, or those of a mask, wait for each other.
    pub(super) fn sync_warp(&mut self, warp: usize, mask: u32, all: u32) {
        self.time[warp] += 1;
        let now = self.time[warp];
        if mask == all {
            self.synced[warp] = now;
            return;
        }
        let pairs = self.pairs[warp].get_or_insert_with(|| Box::new([[0; 32]; 32]));
        for (a, row) in pairs.iter_mut().enumerate() {
            for (b, time) in row.iter_mut().enumerate() {
                if mask >> a & mask >> b & 1 == 1 {
                    *time = now;
                }
            }
        }
    }

    /// Lanes of a warp make what they wrote visible to the asynchronous proxy.
    pub(super) fn publish(&mut self, warp: usize, lanes: impl Iterator<Item = usize>) {
        if self.published.is_empty() {
            self.published = vec![self.start; self.warps * self.warps * 32];
        }
        self.time[warp] += 1;
        let row = self.row(warp);
        for lane in lanes {
            self.published[row.start + Thread { warp, lane }.number() as usize] = self.time[warp];
        }
    }

    /// Where what a warp knows of threads' published writes lies.
    fn row(&self, warp: usize) -> std::ops::Range<usize> {
        if self.published.is_empty() { 0..0 } else { warp * self.warps * 32..(warp + 1) * self.warps * 32 }
    }

    /// A warp begins to read by the asynchronous proxy. All of its lanes must know the writes, and that they were published. (PTX ISA, "Async
    /// Proxy". A fence by the reader behind the barrier would do as well; here the writers must have one before it.)
    pub(super) fn start_read(&mut self, warp: usize, at: usize, bytes: usize) -> Result<(), String> {
        if self.reading.is_empty() {
            self.reading = vec![0; self.cells.len()];
        }
        let by = Thread { warp, lane: 0 };
        for n in at / self.grain..=(at + bytes - 1) / self.grain {
            let cell = self.cells[n];
            if cell.copying != NONE {
                return Err(copying(Thread::of(cell.copying), by, cell.line));
            }
            let writer = Thread::of(cell.writer);
            if cell.writer != NONE && cell.wrote >= self.start {
                if !self.warp_ordered(by, writer.warp, cell.wrote) {
                    return Err(race("reads", &format!("wrote in line {}", cell.line), writer));
                }
                let published = self.published.get(self.row(warp).start + usize::from(writer.number()));
                if published.is_none_or(|&time| cell.wrote >= time) {
                    return Err(format!(
                        "it reads shared memory by the asynchronous proxy that warp {} lane {} wrote in line {}, with no fence.proxy.async behind \
                         the write and before the barrier",
                        writer.warp, writer.lane, cell.line
                    ));
                }
            }
            self.reading[n] += 1;
        }
        Ok(())
    }

    /// The warp has waited for what it read: it reads now.
    pub(super) fn end_read(&mut self, warp: usize, at: usize, bytes: usize) {
        for n in at / self.grain..=(at + bytes - 1) / self.grain {
            self.reading[n] -= 1;
            self.reads[n * self.warps + warp] = (self.time[warp], MANY);
        }
    }

    /// A whole warp arrives at a barrier, and `waits` there or goes on: what it knows, for those who wait.
    pub(super) fn arrive(&mut self, warp: usize, waits: bool) -> Known {
        self.time[warp] += 1;
        if waits {
            self.synced[warp] = self.time[warp];
        }
        let mut seen = self.seen[warp * self.warps..][..self.warps].to_vec();
        seen[warp] = self.time[warp];
        Known { seen, published: self.published[self.row(warp)].to_vec() }
    }

    /// A warp leaves a barrier at which others arrived with this knowledge.
    pub(super) fn leave(&mut self, warp: usize, known: &Known) {
        latest(&mut self.seen[warp * self.warps..][..self.warps], &known.seen);
        let row = self.row(warp);
        latest(&mut self.published[row], &known.published);
    }
}

/// What a warp knows: up to which time of other warps it knows of accesses, and of which threads' published writes.
#[derive(Clone, Default)]
pub(super) struct Known {
    seen: Vec<u32>,
    published: Vec<u32>,
}

impl Known {
    /// What two know.
    pub(super) fn join(&mut self, other: &Known) {
        self.seen.resize(other.seen.len(), 0);
        self.published.resize(other.published.len(), 0);
        latest(&mut self.seen, &other.seen);
        latest(&mut self.published, &other.published);
    }
}

fn latest(mine: &mut [u32], theirs: &[u32]) {
    for (mine, &theirs) in mine.iter_mut().zip(theirs) {
        *mine = theirs.max(*mine);
    }
}

fn race(verb: &str, what: &str, other: Thread) -> String {
    format!(
        "race: it {verb} shared memory that warp {} lane {} {what}, with no barrier between",
        other.warp, other.lane
    )
}

fn copying(other: Thread, by: Thread, line: u32) -> String {
    let whose = if other.number() == by.number() {
        "its own cp.async".to_owned()
    } else {
        format!("the cp.async of warp {} lane {}", other.warp, other.lane)
    };
    format!("it uses shared memory that {whose} in line {line} is still filling")
}
