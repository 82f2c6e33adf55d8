//! Integer arithmetic. (PTX ISA 8.7, integer arithmetic instructions.)

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{Op, Three, Two};
use crate::ptx::lanes::{one, three, two, typed};
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{self, B, S, U};

fn unknown<T>(found: Option<T>, name: &str, kind: Type) -> Decoded<T> {
    found.ok_or_else(|| format!("type {kind:?} is not known for {name}"))
}

impl Decoder<'_> {
    /// Decodes one of these; `false`: it is none.
    pub(super) fn arith(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        match name {
            "add" | "sub" | "min" | "max" | "abs" | "neg" if self.floats(m) => return Ok(false),
            "add" | "sub" | "min" | "max" => self.plain(name, m, operands)?,
            "abs" | "neg" => {
                let kind = m.kind()?;
                let f = match name {
                    "abs" => {
                        typed!(kind; S(2) => i16, S(4) => i32, S(8) => i64; T, one!(|a: T| a.wrapping_abs()))
                    }
                    _ => {
                        typed!(kind; S(2) => i16, S(4) => i32, S(8) => i64; T, one!(|a: T| a.wrapping_neg()))
                    }
                };
                let f = unknown(f, name, kind)?;
                self.one(f, kind, kind, operands)?;
            }
            "mul" | "mad" | "fma" if self.floats(m) => return Ok(false),
            "mul" | "mad" => self.multiply(name, m, operands)?,
            "div" | "rem" if self.floats(m) => return Ok(false),
            "div" | "rem" => self.divide(name, m, operands)?,
            "popc" | "clz" | "brev" | "not" | "cnot" => self.bits(name, m, operands)?,
            "bfind" => {
                let kind = m.kind()?;
                let f = match kind {
                    U(4) => one!(|a: u32| 31u32.wrapping_sub(a.leading_zeros())),
                    S(4) => one!(|a: i32| 31u32.wrapping_sub((a ^ a >> 31).leading_zeros())),
                    U(8) => one!(|a: u64| 63u32.wrapping_sub(a.leading_zeros())),
                    _ => return Err(format!("type {kind:?} is not known for bfind")),
                };
                self.one(f, U(4), kind, operands)?;
            }
            "bfe" | "bfi" => self.fields(name, m, operands)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the last of the modifiers is a float type.
    fn floats(&self, m: &Modifiers) -> bool {
        m.last().and_then(Type::parse).is_some_and(Type::is_float)
    }

    pub(super) fn one(
        &mut self,
        f: crate::ptx::code::One,
        to: Type,
        from: Type,
        operands: &[Operand],
    ) -> Decoded<()> {
        let [d, a] = self.operands(operands)?;
        let a = self.value(a, from)?;
        let d = self.result(d, to)?;
        self.push(Op::One { f, d, a, bytes: to.bytes() });
        Ok(())
    }

    pub(super) fn two(&mut self, f: Two, kind: Type, operands: &[Operand]) -> Decoded<()> {
        let [d, a, b] = self.operands(operands)?;
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let d = self.result(d, kind)?;
        self.push(Op::Two { f, d, a, b, bytes: kind.bytes() });
        Ok(())
    }

    fn three(&mut self, f: Three, to: Type, from: Type, operands: &[Operand]) -> Decoded<()> {
        let [d, a, b, c] = self.operands(operands)?;
        let (a, b) = (self.value(a, from)?, self.value(b, from)?);
        let c = self.value(c, to)?;
        let d = self.result(d, to)?;
        self.push(Op::Three { f, d, a, b, c, bytes: to.bytes() });
        Ok(())
    }

    fn plain(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let saturates = matches!(name, "add" | "sub") && m.take("sat");
        let kind = m.kind()?;
        if saturates {
            let f = match (name, kind) {
                ("add", S(4)) => two!(|a: i32, b: i32| a.saturating_add(b)),
                ("sub", S(4)) => two!(|a: i32, b: i32| a.saturating_sub(b)),
                _ => return Err(format!("type {kind:?} is not known for {name}.sat")),
            };
            return self.two(f, kind, operands);
        }
        if matches!(kind, Type::U16x2 | Type::S16x2) {
            return self.two(pairs(name, kind)?, kind, operands);
        }
        let f = match name {
            "add" => {
                typed!(kind; U(2) | S(2) => u16, U(4) | S(4) => u32, U(8) | S(8) => u64; T, two!(|a: T, b: T| a.wrapping_add(b)))
            }
            "sub" => {
                typed!(kind; U(2) | S(2) => u16, U(4) | S(4) => u32, U(8) | S(8) => u64; T, two!(|a: T, b: T| a.wrapping_sub(b)))
            }
            "min" => {
                typed!(kind; U(2) => u16, U(4) => u32, U(8) => u64, S(2) => i16, S(4) => i32, S(8) => i64; T, two!(|a: T, b: T| a.min(b)))
            }
            _ => {
                typed!(kind; U(2) => u16, U(4) => u32, U(8) => u64, S(2) => i16, S(4) => i32, S(8) => i64; T, two!(|a: T, b: T| a.max(b)))
            }
        };
        let f = unknown(f, name, kind)?;
        self.two(f, kind, operands)
    }

    fn multiply(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let half = m.one_of(&["lo", "hi", "wide"]).ok_or("modifier .lo, .hi or .wide is missing")?;
        let kind = m.kind()?;
        let product = match half {
            "lo" => {
                typed!(kind; U(2) | S(2) => u16, U(4) | S(4) => u32, U(8) | S(8) => u64; T, two!(|a: T, b: T| a.wrapping_mul(b)))
            }
            "hi" => match kind {
                U(2) => Some(two!(|a: u16, b: u16| ((u32::from(a) * u32::from(b)) >> 16) as u16)),
                S(2) => Some(two!(|a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16)),
                U(4) => Some(two!(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32)),
                S(4) => Some(two!(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32)),
                U(8) => Some(two!(|a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64)),
                S(8) => Some(two!(|a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64)),
                _ => None,
            },
            _ => match kind {
                U(2) => Some(two!(|a: u16, b: u16| u32::from(a) * u32::from(b))),
                S(2) => Some(two!(|a: i16, b: i16| i32::from(a) * i32::from(b))),
                U(4) => Some(two!(|a: u32, b: u32| u64::from(a) * u64::from(b))),
                S(4) => Some(two!(|a: i32, b: i32| i64::from(a) * i64::from(b))),
                _ => None,
            },
        };
        let f = unknown(product, name, kind)?;
        let to = match (half, kind) {
            ("wide", U(n)) => U(2 * n),
            ("wide", S(n)) => S(2 * n),
            _ => kind,
        };
        if name == "mul" {
            let [d, a, b] = self.operands(operands)?;
            let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
            let d = self.result(d, to)?;
            self.push(Op::Two { f, d, a, b, bytes: to.bytes() });
            return Ok(());
        }
        let [d, a, b, c] = self.operands(operands)?;
        let (a, b, c) = (self.value(a, kind)?, self.value(b, kind)?, self.value(c, to)?);
        let d = self.result(d, to)?;
        let product = self.scratch();
        self.push(Op::Two { f, d: product, a, b, bytes: to.bytes() });
        let sum = typed!(to; U(2) | S(2) => u16, U(4) | S(4) => u32, U(8) | S(8) => u64; T, two!(|a: T, b: T| a.wrapping_add(b)));
        let f = unknown(sum, name, to)?;
        self.push(Op::Two { f, d, a: product, b: c, bytes: to.bytes() });
        Ok(())
    }

    /// What zero divides is left open, so poison: here any value does.
    fn divide(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let kind = m.kind()?;
        let f = match name {
            "div" => {
                typed!(kind; U(2) => u16, U(4) => u32, U(8) => u64, S(2) => i16, S(4) => i32, S(8) => i64; T,
                    two!(|a: T, b: T| if b == 0 { 0 } else { a.wrapping_div(b) }))
            }
            _ => {
                typed!(kind; U(2) => u16, U(4) => u32, U(8) => u64, S(2) => i16, S(4) => i32, S(8) => i64; T,
                    two!(|a: T, b: T| if b == 0 { 0 } else { a.wrapping_rem(b) }))
            }
        };
        let f = unknown(f, name, kind)?;
        let [d, a, b] = self.operands(operands)?;
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let d = self.result(d, kind)?;
        self.push(Op::Divide { f, d, a, b, bytes: kind.bytes() });
        Ok(())
    }

    fn bits(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let kind = m.kind()?;
        let f = match (name, kind) {
            ("popc", B(4)) => one!(|a: u32| a.count_ones()),
            ("popc", B(8)) => one!(|a: u64| a.count_ones()),
            ("clz", B(4)) => one!(|a: u32| a.leading_zeros()),
            ("clz", B(8)) => one!(|a: u64| a.leading_zeros()),
            ("brev", B(4)) => one!(|a: u32| a.reverse_bits()),
            ("brev", B(8)) => one!(|a: u64| a.reverse_bits()),
            ("not", Type::Pred) => one!(|a: bool| !a),
            ("not", B(2)) => one!(|a: u16| !a),
            ("not", B(4)) => one!(|a: u32| !a),
            ("not", B(8)) => one!(|a: u64| !a),
            ("cnot", B(2)) => one!(|a: u16| u16::from(a == 0)),
            ("cnot", B(4)) => one!(|a: u32| u32::from(a == 0)),
            ("cnot", B(8)) => one!(|a: u64| u64::from(a == 0)),
            _ => return Err(format!("type {kind:?} is not known for {name}")),
        };
        if name == "not" {
            // Byte by byte, as `xor` with ones: poison stays where it is.
            let [d, a] = self.operands(operands)?;
            let a = self.value(a, kind)?;
            let d = self.result(d, kind)?;
            let ones = if kind == Type::Pred { 1 } else { crate::ptx::code::low(u64::MAX, kind.bytes()) };
            let b = self.constant(ones);
            self.push(Op::Logic { logic: crate::ptx::code::Logic::Xor, d, a, b });
            return Ok(());
        }
        let to = if matches!(name, "popc" | "clz") { U(4) } else { kind };
        self.one(f, to, kind, operands)
    }

    fn fields(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let kind = m.kind()?;
        if name == "bfe" {
            let f: Three = match kind {
                U(4) => three!(|a: u32, b: u8, c: u8| extract(a.into(), b, c, 32, false) as u32),
                S(4) => three!(|a: i32, b: u8, c: u8| extract(i64::from(a) as u64, b, c, 32, true) as u32),
                U(8) => three!(|a: u64, b: u8, c: u8| extract(a, b, c, 64, false)),
                S(8) => three!(|a: u64, b: u8, c: u8| extract(a, b, c, 64, true)),
                _ => return Err(format!("type {kind:?} is not known for bfe")),
            };
            let [d, a, b, c] = self.operands(operands)?;
            let (a, b, c) = (self.value(a, kind)?, self.value(b, U(4))?, self.value(c, U(4))?);
            let d = self.result(d, kind)?;
            self.push(Op::Three { f, d, a, b, c, bytes: kind.bytes() });
            return Ok(());
        }
        // Position and length travel as one value, for there are but three operands.
        let f: Three = match kind {
            B(4) => three!(|a: u32, b: u32, c: u16| insert(a.into(), b.into(), c, 32) as u32),
            B(8) => three!(|a: u64, b: u64, c: u16| insert(a, b, c, 64)),
            _ => return Err(format!("type {kind:?} is not known for bfi")),
        };
        let [d, a, b, position, length] = self.operands(operands)?;
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let (position, length) = (self.value(position, U(4))?, self.value(length, U(4))?);
        let d = self.result(d, kind)?;
        let c = self.scratch();
        let join = two!(|a: u8, b: u8| u16::from(a) | u16::from(b) << 8);
        self.push(Op::Two { f: join, d: c, a: position, b: length, bytes: 2 });
        self.push(Op::Three { f, d, a, b, c, bytes: kind.bytes() });
        Ok(())
    }

    /// `f` with all operands and the result of one type.
    pub(super) fn same(&mut self, f: Three, kind: Type, operands: &[Operand]) -> Decoded<()> {
        self.three(f, kind, kind, operands)
    }
}

/// An operation on the halves of 32 bits.
fn pairs(name: &str, kind: Type) -> Decoded<Two> {
    Ok(match (name, kind) {
        ("add", _) => two!(|a: u32, b: u32| halves(a, b, u16::wrapping_add)),
        ("min", Type::U16x2) => two!(|a: u32, b: u32| halves(a, b, |a, b| a.min(b))),
        ("max", Type::U16x2) => two!(|a: u32, b: u32| halves(a, b, |a, b| a.max(b))),
        ("min", Type::S16x2) => two!(|a: u32, b: u32| halves(a, b, |a, b| (a as i16).min(b as i16) as u16)),
        ("max", Type::S16x2) => two!(|a: u32, b: u32| halves(a, b, |a, b| (a as i16).max(b as i16) as u16)),
        _ => return Err(format!("type {kind:?} is not known for {name}")),
    })
}

#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16 | u32::from(f(a as u16, b as u16))
}

/// Bit field extract. A signed field is filled with its top bit, or with the operand's where it reaches beyond.
fn extract(a: u64, position: u8, length: u8, bits: u32, signed: bool) -> u64 {
    let (position, length) = (u32::from(position), u32::from(length));
    if length == 0 {
        return 0;
    }
    let top = (position + length - 1).min(bits - 1);
    let sign = signed && a >> top & 1 == 1;
    let fill = if sign { u64::MAX } else { 0 };
    let a = if bits == 64 { a } else { a & u64::from(u32::MAX) };
    if position >= bits {
        return fill;
    }
    let have = length.min(bits - position);
    let mask = if have >= 64 { u64::MAX } else { (1 << have) - 1 };
    a >> position & mask | fill & !mask
}

/// Bit field insert of the low bits of `a` into `b`.
fn insert(a: u64, b: u64, c: u16, bits: u32) -> u64 {
    let (position, length) = (u32::from(c & 0xff), u32::from(c >> 8));
    if position >= bits || length == 0 {
        return b;
    }
    let have = length.min(bits - position);
    let mask = (if have >= 64 { u64::MAX } else { (1 << have) - 1 }) << position;
    b & !mask | a << position & mask
}
