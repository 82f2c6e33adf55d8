//! Registers of a warp, and the instructions that use nothing else.

use crate::ptx::code::{Code, LANES, Logic, Op, Poison, Shift, Slot, Values, low, whole};

/// The slots of a warp's code.
pub(super) struct Registers {
    pub(super) values: Vec<Values>,
    pub(super) poison: Vec<Poison>,
}

/// The lanes of a mask, lowest first.
pub(super) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}

/// Poison of whole values where any byte is.
fn spread(poison: &mut Poison, bytes: u8) {
    let all = whole(bytes);
    for p in poison {
        *p = if *p == 0 { 0 } else { all };
    }
}

impl Registers {
    pub(super) fn new(code: &Code) -> Self {
        let mut values = vec![[0; LANES]; code.slots];
        for &(slot, value) in &code.constants {
            values[slot as usize] = [value; LANES];
        }
        Self { values, poison: vec![[0xff; LANES]; code.slots] }
    }

    /// Makes all registers poison but those that are given.
    pub(super) fn reset(&mut self, code: &Code) {
        self.poison.fill([0xff; LANES]);
        for &(slot, _) in &code.constants {
            self.poison[slot as usize] = [0; LANES];
        }
        for &(slot, _) in &code.specials {
            self.poison[slot as usize] = [0; LANES];
        }
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot, lane: usize) -> (u64, u8) {
        (self.values[slot as usize][lane], self.poison[slot as usize][lane])
    }

    #[inline]
    pub(super) fn set(&mut self, slot: Slot, lane: usize, value: u64, poison: u8) {
        self.values[slot as usize][lane] = value;
        self.poison[slot as usize][lane] = poison;
    }

    /// The first of these lanes where a value has poison.
    pub(super) fn poisoned(&self, slot: Slot, active: u32) -> Option<usize> {
        let poison = &self.poison[slot as usize];
        if *poison == [0; LANES] { None } else { lanes(active).find(|&lane| poison[lane] != 0) }
    }

    /// Lanes whose value is not zero.
    pub(super) fn truths(&self, slot: Slot) -> u32 {
        let values = &self.values[slot as usize];
        values.iter().enumerate().fold(0, |mask, (lane, &v)| mask | u32::from(v != 0) << lane)
    }

    #[inline]
    fn put(&mut self, d: Slot, active: u32, values: &Values, poison: &Poison) {
        let d = d as usize;
        if active == u32::MAX {
            self.values[d] = *values;
            self.poison[d] = *poison;
            return;
        }
        for lane in lanes(active) {
            self.values[d][lane] = values[lane];
            self.poison[d][lane] = poison[lane];
        }
    }

    fn joined(&self, slots: &[Slot]) -> Poison {
        let mut poison = [0; LANES];
        for &slot in slots {
            for (p, q) in poison.iter_mut().zip(&self.poison[slot as usize]) {
                *p |= q;
            }
        }
        poison
    }

    /// Runs an instruction that is a function of registers; `false`: it is another.
    #[inline]
    pub(super) fn run(&mut self, op: &Op, active: u32) -> bool {
        let mut out = [0; LANES];
        match *op {
            Op::One { f, d, a, bytes } => {
                f(&mut out, &self.values[a as usize]);
                let mut poison = self.poison[a as usize];
                spread(&mut poison, bytes);
                self.put(d, active, &out, &poison);
            }
            Op::Two { f, d, a, b, bytes } => {
                f(&mut out, &self.values[a as usize], &self.values[b as usize]);
                let mut poison = self.joined(&[a, b]);
                spread(&mut poison, bytes);
                self.put(d, active, &out, &poison);
            }
            Op::Three { f, d, a, b, c, bytes } => {
                f(&mut out, &self.values[a as usize], &self.values[b as usize], &self.values[c as usize]);
                let mut poison = self.joined(&[a, b, c]);
                spread(&mut poison, bytes);
                self.put(d, active, &out, &poison);
            }
            Op::Divide { f, d, a, b, bytes } => {
                f(&mut out, &self.values[a as usize], &self.values[b as usize]);
                let mut poison = self.joined(&[a, b]);
                for (p, &b) in poison.iter_mut().zip(&self.values[b as usize]) {
                    *p |= u8::from(b == 0);
                }
                spread(&mut poison, bytes);
                self.put(d, active, &out, &poison);
            }
            Op::Move { d, a, bytes } => {
                let mut poison = self.poison[a as usize];
                for lane in 0..LANES {
                    out[lane] = low(self.values[a as usize][lane], bytes);
                    poison[lane] &= whole(bytes);
                }
                self.put(d, active, &out, &poison);
            }
            Op::Logic { logic, d, a, b } => self.logic(logic, d, a, b, active),
            Op::Shift { f, shift, d, a, b, bytes } => {
                f(&mut out, &self.values[a as usize], &self.values[b as usize]);
                let mut poison = self.joined(&[a, b]);
                if poison != [0; LANES] {
                    for (lane, p) in poison.iter_mut().enumerate() {
                        *p = self.shifted(shift, a, b, lane, bytes);
                    }
                }
                self.put(d, active, &out, &poison);
            }
            Op::Select { d, a, b, p, bytes } => {
                let mut poison = [0; LANES];
                for lane in 0..LANES {
                    let from = if self.values[p as usize][lane] != 0 { a } else { b };
                    let (value, bad) = self.get(from, lane);
                    out[lane] = value;
                    poison[lane] = if self.poison[p as usize][lane] == 0 { bad } else { whole(bytes) };
                }
                self.put(d, active, &out, &poison);
            }
            Op::Permute { d, a, b, selector } => self.permute(d, a, b, selector, active),
            Op::Lop3 { d, a, b, c, table } => {
                for (lane, out) in out.iter_mut().enumerate() {
                    let [a, b, c] = [a, b, c].map(|s| self.values[s as usize][lane] as u32);
                    *out = lop3(a, b, c, table).into();
                }
                let poison = self.joined(&[a, b, c]);
                self.put(d, active, &out, &poison);
            }
            Op::Pack { d, ref parts, bytes } => {
                let mut poison = [0; LANES];
                for (n, &part) in parts.iter().enumerate() {
                    for lane in 0..LANES {
                        let (value, bad) = self.get(part, lane);
                        out[lane] |= low(value, bytes) << (8 * bytes as usize * n);
                        poison[lane] |= (bad & whole(bytes)) << (bytes as usize * n);
                    }
                }
                self.put(d, active, &out, &poison);
            }
            Op::Unpack { ref parts, a, bytes } => {
                let (from, bad) = (self.values[a as usize], self.poison[a as usize]);
                for (n, part) in parts.iter().enumerate() {
                    let Some(d) = *part else { continue };
                    let mut poison = [0; LANES];
                    for lane in 0..LANES {
                        out[lane] = low(from[lane] >> (8 * bytes as usize * n), bytes);
                        poison[lane] = bad[lane] >> (bytes as usize * n) & whole(bytes);
                    }
                    self.put(d, active, &out, &poison);
                }
            }
            _ => return false,
        }
        true
    }

    fn logic(&mut self, logic: Logic, d: Slot, a: Slot, b: Slot, active: u32) {
        let (x, y) = (&self.values[a as usize], &self.values[b as usize]);
        let mut out = [0; LANES];
        for lane in 0..LANES {
            out[lane] = match logic {
                Logic::And => x[lane] & y[lane],
                Logic::Or(_) => x[lane] | y[lane],
                Logic::Xor => x[lane] ^ y[lane],
            };
        }
        let (p, q) = (&self.poison[a as usize], &self.poison[b as usize]);
        let mut poison = self.joined(&[a, b]);
        if poison != [0; LANES] {
            for lane in 0..LANES {
                let hides = |value: u64, bad: u8| match logic {
                    Logic::And => bytes_equal(value, 0) & !bad,
                    Logic::Or(ones) => bytes_equal(value, ones) & !bad,
                    Logic::Xor => 0,
                };
                poison[lane] &= !(hides(x[lane], p[lane]) | hides(y[lane], q[lane]));
            }
        }
        self.put(d, active, &out, &poison);
    }

    /// Poison of a shift by whole bytes moves along; otherwise all is poison.
    fn shifted(&self, shift: Shift, a: Slot, b: Slot, lane: usize, bytes: u8) -> u8 {
        let ((_, bad), (amount, unknown)) = (self.get(a, lane), self.get(b, lane));
        if bad | unknown == 0 {
            return 0;
        }
        let exact = unknown == 0 && amount % 8 == 0 && shift != Shift::Signed;
        if !exact {
            return whole(bytes);
        }
        let by = (amount / 8).min(8) as u32;
        let moved = if shift == Shift::Left { u16::from(bad) << by } else { u16::from(bad) >> by };
        moved as u8 & whole(bytes)
    }

    /// `prmt`: each half byte of the selector names a byte of `b:a`, and whether its sign bit is to be spread.
    fn permute(&mut self, d: Slot, a: Slot, b: Slot, selector: Slot, active: u32) {
        let (mut out, mut poison) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            let ((x, p), (y, q), (s, unknown)) =
                (self.get(a, lane), self.get(b, lane), self.get(selector, lane));
            let (all, bad) = (y << 32 | x, q << 4 | p & 0xf);
            for n in 0..4 {
                let choice = s >> (4 * n) & 0xf;
                let byte = all >> (8 * (choice & 7)) & 0xff;
                let byte = if choice & 8 == 0 { byte } else { (byte >> 7) * 0xff };
                out[lane] |= byte << (8 * n);
                poison[lane] |= (bad >> (choice & 7) & 1) << n;
            }
            if unknown != 0 {
                poison[lane] = 0xf;
            }
        }
        self.put(d, active, &out, &poison);
    }
}

/// Bit i is set if byte i has this value.
fn bytes_equal(value: u64, byte: u8) -> u8 {
    value.to_le_bytes().iter().enumerate().fold(0, |mask, (n, &b)| mask | u8::from(b == byte) << n)
}

/// Bit i of the table is the result where the bits of a, b, c spell i.
fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    (0..8).filter(|n| table >> n & 1 == 1).fold(0, |out, n| {
        let pick = |x: u32, bit: u32| if n >> bit & 1 == 1 { x } else { !x };
        out | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}
