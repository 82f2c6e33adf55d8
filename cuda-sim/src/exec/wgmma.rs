//! Products of warpgroups. (PTX ISA 8.7, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"; sections are named by their titles.)
//!
//! A product is made when a warp begins it, each warp making its 16 rows. That cannot be told from one that is made later: until the warp has
//! waited, whoever names the registers of its sums or writes what it reads is at fault.

use super::Trap;
use super::block::Shares;
use super::warp::Warp;
use crate::ptx::code::{Half, LANES, Op, Slot, Wgmma};
use crate::ptx::slots;
use half::{bf16, f16};
use std::collections::{HashMap, HashSet, VecDeque};

/// Warps of a warpgroup, rows of its products, and their depth.
const WARPS: usize = 4;
const ROWS: u64 = 64;
const DEPTH: u64 = 16;
/// Elements of 16 bytes.
const CHUNK: u64 = 8;

/// Products of a warp that it has not waited for.
#[derive(Default)]
pub(super) struct Products {
    /// Begun, in no group yet.
    open: Vec<Product>,
    /// Groups that were closed, the oldest first.
    groups: VecDeque<Vec<Product>>,
    /// Whether there was a fence.
    fenced: bool,
    /// Registers of sums that were used since the last fence, other than by products.
    touched: HashSet<Slot>,
    /// Of those of products under way: how many, and their columns.
    busy: HashMap<Slot, (u32, u32)>,
}

struct Product {
    /// Where in shared memory it reads 16 bytes.
    chunks: Vec<u32>,
    d: Box<[Slot]>,
}

impl Products {
    /// The warp's threads end.
    pub(super) fn check_end(&self, active: u32) -> Result<(), Trap> {
        if self.open.is_empty() && self.groups.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let lane = active.trailing_zeros() as usize;
        Err(Trap { lane, what: "it ends before it has waited for its wgmma.mma_async".into() })
    }
}

/// What the warps of each warpgroup have run of these instructions: all must run the same ones.
pub(super) struct Groups {
    groups: Vec<Sequence>,
    warps: usize,
}

/// Instructions of a warpgroup that not all of its warps have run.
#[derive(Default)]
struct Sequence {
    left: VecDeque<Step>,
    /// Instructions before those.
    over: usize,
    /// How many each warp has run.
    run: [usize; WARPS],
}

/// Where, and the descriptors and predicate of a product.
type Step = (u32, [u64; 3]);

impl Groups {
    pub(super) fn new(warps: usize) -> Self {
        Self { groups: (0..warps.div_ceil(WARPS)).map(|_| Sequence::default()).collect(), warps }
    }

    fn run(&mut self, warp: usize, step: Step) -> Result<(), String> {
        let (group, member) = (warp / WARPS, warp % WARPS);
        if (group + 1) * WARPS > self.warps {
            return Err(format!("its warpgroup has only {} warps", self.warps - group * WARPS));
        }
        let sequence = &mut self.groups[group];
        let at = sequence.run[member] - sequence.over;
        match sequence.left.get(at) {
            Some(other) if *other != step => {
                let what = if other.0 == step.0 { "with other operands" } else { "at another place" };
                return Err(format!("another warp of its warpgroup runs its wgmma {what}"));
            }
            Some(_) => {}
            None => sequence.left.push_back(step),
        }
        sequence.run[member] += 1;
        while sequence.run.iter().all(|&n| n > sequence.over) {
            sequence.left.pop_front();
            sequence.over += 1;
        }
        Ok(())
    }

    /// All warps have ended. The error names one.
    pub(super) fn check_end(&self) -> Result<(), (usize, String)> {
        for (group, sequence) in self.groups.iter().enumerate() {
            if let Some(member) = sequence.run.iter().position(|&n| n < sequence.over + sequence.left.len()) {
                let what = "it ends without a wgmma that another warp of its warpgroup has run".to_owned();
                return Err((group * WARPS + member, what));
            }
        }
        Ok(())
    }
}

/// A matrix in shared memory. ("Matrix Descriptor Format".)
struct Matrix {
    start: u64,
    /// Offsets in bytes, of the leading dimension and of the stride dimension.
    leading: u64,
    stride: u64,
    /// Bits that are swizzled: 3 of 128-byte swizzle, 2 of 64, 1 of 32, 0 without.
    swizzled: u32,
}

impl Matrix {
    fn of(descriptor: u64) -> Result<Self, String> {
        let decoded = |low: u32| (descriptor >> low & 0x3fff) << 4;
        if descriptor & (0x3 << 14 | 0x3 << 30 | 0x7 << 46 | 0x3ff << 52) != 0 {
            return Err(format!("bits of the descriptor {descriptor:#x} that mean nothing"));
        }
        if descriptor >> 49 & 7 != 0 {
            return Err("a pattern that does not start at a multiple of its length is not known here".into());
        }
        let swizzled = [0, 3, 2, 1][(descriptor >> 62) as usize];
        Ok(Self { start: decoded(0), leading: decoded(16), stride: decoded(32), swizzled })
    }

    /// Where an element lies: its row (of b its column) and its depth. ("Canonical Layouts", T being 8 elements of 16 bytes.)
    fn place(&self, outer: u64, depth: u64, transposed: bool) -> u64 {
        // Chunks of a row of an atom.
        let width = 1 << self.swizzled;
        let (row, along) = if transposed { (depth, outer) } else { (outer, depth) };
        let (chunk, element) = (along / CHUNK, along % CHUNK * 2);
        let (below, next) = (row % 8 * 16 * width, row / 8);
        let offset = match (transposed, self.swizzled) {
            // ((8,m),(T,2k)):((1T,SBO),(1,LBO))
            (false, 0) => below + next * self.stride + chunk * self.leading,
            // ((8,m),(T,2k)):((wT,SBO),(1,T))
            (false, _) => below + next * self.stride + chunk * 16,
            // ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
            (true, 0) => below + next * self.leading + chunk * self.stride,
            // ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO))
            (true, _) => below + next * self.stride + chunk % width * 16 + chunk / width * self.leading,
        };
        let at = self.start + offset + element;
        // Swizzle<B,4,3>: B bits from bit 7 on are added to those from bit 4 on, without carry.
        at ^ (at >> 7 & (width - 1)) << 4
    }
}

/// Elements of an operand, its rows (of b its columns) outside, and which rows have poison.
struct Values {
    rows: Vec<[f32; DEPTH as usize]>,
    poison: Vec<bool>,
}

impl Warp {
    /// Runs one of these instructions, of the whole warp.
    pub(super) fn warpgroup(&mut self, shares: &mut Shares, op: &Op, pc: u32) -> Result<(), Trap> {
        let trap = |what: String| Trap { lane: 0, what };
        let operands = match op {
            Op::Wgmma(wgmma) => {
                let [a, b] = wgmma.descriptors;
                [
                    self.same(a, "descriptor")?,
                    self.same(b, "descriptor")?,
                    self.same(wgmma.adds, "predicate")?,
                ]
            }
            _ => [0; 3],
        };
        shares.groups.run(self.index, (pc, operands)).map_err(trap)?;
        match op {
            Op::Wgmma(wgmma) => self.begin_product(shares, wgmma, operands).map_err(trap)?,
            Op::WgmmaFence => {
                self.products.fenced = true;
                self.products.touched.clear();
            }
            Op::WgmmaCommit => {
                let group = std::mem::take(&mut self.products.open);
                self.products.groups.push_back(group);
            }
            Op::WgmmaWait { groups } => self.wait_products(shares, *groups),
            _ => {}
        }
        Ok(())
    }

    /// A value that all lanes have.
    fn same(&self, slot: Slot, what: &str) -> Result<u64, Trap> {
        if let Some(lane) = self.registers.poisoned(slot, u32::MAX) {
            return Err(Trap { lane, what: format!("an uninitialised {what}") });
        }
        let (value, _) = self.registers.get(slot, 0);
        match (1..LANES).find(|&lane| self.registers.get(slot, lane).0 != value) {
            Some(lane) => Err(Trap { lane, what: format!("lanes have several {what}s") }),
            None => Ok(value),
        }
    }

    /// An instruction other than a product names sums.
    pub(super) fn touch_sums(&mut self, op: &Op, active: u32) -> Result<(), Trap> {
        let mut under_way = false;
        slots::each(op, |slot| {
            under_way |= self.products.busy.contains_key(&slot);
            self.products.touched.insert(slot);
        });
        if under_way {
            let what = "it uses a register of sums of a wgmma.mma_async that it has not waited for".into();
            return Err(Trap { lane: active.trailing_zeros() as usize, what });
        }
        Ok(())
    }

    /// ("wgmma.fence": where it is needed.)
    fn check_sums(&self, wgmma: &Wgmma) -> Result<(), String> {
        if !self.products.fenced {
            return Err("no wgmma.fence comes before the warp's first wgmma.mma_async".into());
        }
        for slot in &wgmma.d {
            if self.products.touched.contains(slot) {
                return Err("its sums were used since the last wgmma.fence".into());
            }
            if self.products.busy.get(slot).is_some_and(|&(_, n)| n != wgmma.n) {
                return Err("a product of another shape that has the same sums is under way".into());
            }
        }
        Ok(())
    }

    fn begin_product(
        &mut self,
        shares: &mut Shares,
        wgmma: &Wgmma,
        operands: [u64; 3],
    ) -> Result<(), String> {
        self.check_sums(wgmma)?;
        let [a, b] = [Matrix::of(operands[0])?, Matrix::of(operands[1])?];
        let mut chunks = Vec::new();
        let mut read = |matrix, rows, side: usize| {
            let [transposed, negative] = [wgmma.transposed[side], wgmma.negative[side]];
            self.read(shares, (matrix, rows, transposed), (wgmma.half, negative), &mut chunks)
        };
        let (a, b) = (read(&a, ROWS, 0)?, read(&b, u64::from(wgmma.n), 1)?);
        self.add(wgmma, operands[2] != 0, (&a, &b));
        for &slot in &wgmma.d {
            self.products.busy.entry(slot).or_insert((0, wgmma.n)).0 += 1;
        }
        self.products.open.push(Product { chunks, d: wgmma.d.clone() });
        Ok(())
    }

    /// Begins to read a matrix of so many rows (of b columns).
    fn read(
        &self,
        shares: &mut Shares,
        (matrix, rows, transposed): (&Matrix, u64, bool),
        (half, negative): (Half, bool),
        chunks: &mut Vec<u32>,
    ) -> Result<Values, String> {
        let sign = if negative { -1.0 } else { 1.0 };
        let wide = |bits: u64| match half {
            Half::F16 => sign * f16::from_bits(bits as u16).to_f32(),
            Half::BF16 => sign * bf16::from_bits(bits as u16).to_f32(),
        };
        let mut values = Values { rows: vec![[0.0; 16]; rows as usize], poison: vec![false; rows as usize] };
        let (lines, along) = if transposed { (DEPTH, rows) } else { (rows, DEPTH) };
        for line in 0..lines {
            for begin in (0..along).step_by(CHUNK as usize) {
                let place = |i: u64| if transposed { (begin + i, line) } else { (line, begin + i) };
                let (outer, depth) = place(0);
                let at = shares.shared.check(matrix.place(outer, depth, transposed), 16)?;
                shares.shared.races.start_read(self.index, at, 16)?;
                chunks.push(at as u32);
                for i in 0..CHUNK {
                    let (outer, depth) = place(i);
                    let (bits, poison) = shares.shared.peek(at + 2 * i as usize, 2);
                    values.rows[outer as usize][depth as usize] = wide(bits);
                    values.poison[outer as usize] |= poison != 0;
                }
            }
        }
        Ok(values)
    }

    /// Adds the product of the warp's rows: products are exact, sums are f32, in order of depth. ("Register Fragments", accumulator D.)
    fn add(&mut self, wgmma: &Wgmma, adds: bool, (a, b): (&Values, &Values)) {
        let first = self.index % WARPS * 16;
        for (n, &slot) in wgmma.d.iter().enumerate() {
            for lane in 0..LANES {
                let row = first + lane / 4 + 8 * (n % 4 / 2);
                let column = 8 * (n / 4) + 2 * (lane % 4) + n % 2;
                let (before, poison) = if adds { self.registers.get(slot, lane) } else { (0, 0) };
                let terms = a.rows[row].iter().zip(&b.rows[column]);
                let sum = terms.fold(f32::from_bits(before as u32), |sum, (x, y)| sum + x * y);
                let poison = poison != 0 || a.poison[row] || b.poison[column];
                self.registers.set(slot, lane, sum.to_bits().into(), if poison { 0xf } else { 0 });
            }
        }
    }

    /// Ends the oldest groups until so many are left.
    fn wait_products(&mut self, shares: &mut Shares, left: u32) {
        while self.products.groups.len() > left as usize {
            for product in self.products.groups.pop_front().unwrap_or_default() {
                for at in product.chunks {
                    shares.shared.races.end_read(self.index, at as usize, 16);
                }
                for slot in product.d {
                    if let Some(count) = self.products.busy.get_mut(&slot) {
                        count.0 -= 1;
                        if count.0 == 0 {
                            self.products.busy.remove(&slot);
                        }
                    }
                }
            }
        }
    }
}
