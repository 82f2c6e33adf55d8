//! Logic, shifts, comparison and selection. (PTX ISA 8.7, logic and shift, comparison and selection instructions.)

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{Logic, Op, Shift, Slot, Two};
use crate::ptx::lanes::{one, three, two, typed};
use crate::ptx::number::Float;
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{self, B, BF16, F16, F32, F64, Pred, S, U};
use half::{bf16, f16};

const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan",
];

impl Decoder<'_> {
    /// Decodes one of these; `false`: it is none.
    pub(super) fn logic(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        match name {
            "and" | "or" | "xor" => {
                let kind = m.kind_of(&[Pred, B(2), B(4), B(8)])?;
                let [d, a, b] = self.operands(operands)?;
                let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
                let d = self.result(d, kind)?;
                let ones = if kind == Pred { 1 } else { 0xff };
                let logic = match name {
                    "and" => Logic::And,
                    "or" => Logic::Or(ones),
                    _ => Logic::Xor,
                };
                self.push(Op::Logic { logic, d, a, b });
            }
            "shl" | "shr" => self.shift(name, m, operands)?,
            "shf" => self.funnel(m, operands)?,
            "prmt" => {
                m.want("b32")?;
                let [d, a, b, c] = self.operands(operands)?;
                let (a, b, selector) = (self.value(a, B(4))?, self.value(b, B(4))?, self.value(c, B(4))?);
                let d = self.result(d, B(4))?;
                self.push(Op::Permute { d, a, b, selector });
            }
            "lop3" => {
                m.want("b32")?;
                let [d, a, b, c, Operand::Int(table @ 0..=255)] = self.operands(operands)? else {
                    return Err("the table of lop3 is a number of 8 bits".into());
                };
                let (a, b, c) = (self.value(a, B(4))?, self.value(b, B(4))?, self.value(c, B(4))?);
                let d = self.result(d, B(4))?;
                self.push(Op::Lop3 { d, a, b, c, table: *table as u8 });
            }
            "setp" | "set" => self.compare(name == "setp", m, operands)?,
            "selp" => {
                let known = [B(2), B(4), B(8), U(2), U(4), U(8), S(2), S(4), S(8), F32, F64];
                let kind = m.kind_of(&known)?;
                let [d, a, b, p] = self.operands(operands)?;
                let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
                let p = self.value(p, Pred)?;
                let d = self.result(d, kind)?;
                self.push(Op::Select { d, a, b, p, bytes: kind.bytes() });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The amount is a u32, of which amounts beyond the width count as the width.
    fn shift(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let kind = m.kind_of(&[B(2), B(4), B(8), U(2), U(4), U(8), S(2), S(4), S(8)])?;
        let left = name == "shl";
        if left && !matches!(kind, B(_)) {
            return Err("shl has an untyped type".into());
        }
        let (f, shift) = if left {
            (
                typed!(kind; B(2) => u16, B(4) => u32, B(8) => u64; T, two!(|a: T, b: u32| a.checked_shl(b).unwrap_or(0))),
                Shift::Left,
            )
        } else if kind.is_signed() {
            let f = typed!(kind; S(2) => i16, S(4) => i32, S(8) => i64; T, two!(|a: T, b: u32| a >> b.min(T::BITS - 1)));
            (f, Shift::Signed)
        } else {
            let f = typed!(kind; B(2) | U(2) => u16, B(4) | U(4) => u32, B(8) | U(8) => u64; T,
                two!(|a: T, b: u32| a.checked_shr(b).unwrap_or(0)));
            (f, Shift::Right)
        };
        let f: Two = f.ok_or("unknown type of a shift")?;
        let [d, a, b] = self.operands(operands)?;
        let (a, b) = (self.value(a, kind)?, self.value(b, U(4))?);
        let d = self.result(d, kind)?;
        self.push(Op::Shift { f, shift, d, a, b, bytes: kind.bytes() });
        Ok(())
    }

    /// `shf`: 32 bits out of 64 bits `b:a`.
    fn funnel(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let side = m.one_of(&["l", "r"]).ok_or("modifier .l or .r is missing")?;
        let mode = m.one_of(&["wrap", "clamp"]).ok_or("modifier .wrap or .clamp is missing")?;
        m.want("b32")?;
        let f = match (side, mode) {
            ("l", "wrap") => three!(|a: u32, b: u32, c: u32| (joined(a, b) << (c & 31) >> 32) as u32),
            ("l", _) => three!(|a: u32, b: u32, c: u32| (joined(a, b) << c.min(32) >> 32) as u32),
            ("r", "wrap") => three!(|a: u32, b: u32, c: u32| (joined(a, b) >> (c & 31)) as u32),
            _ => three!(|a: u32, b: u32, c: u32| (joined(a, b) >> c.min(32)) as u32),
        };
        self.same(f, B(4), operands)
    }

    /// `setp` and `set`, with a predicate joined by `and`, `or` or `xor` where there is one.
    fn compare(&mut self, predicate: bool, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let comparison = m.one_of(&COMPARISONS).ok_or("unknown comparison")?;
        let join = m.one_of(&["and", "or", "xor"]);
        let ftz = m.take("ftz");
        let to = if predicate { Pred } else { m.kind_of(&[U(4), S(4), F32])? };
        let kind = m.kind()?;
        if predicate && !ftz && matches!(kind, Type::F16x2 | Type::BF16x2) {
            return self.compare_pairs(comparison, kind, operands);
        }
        if ftz && kind != F32 {
            return Err("unknown modifier .ftz".into());
        }
        let f = comparison_of(comparison, kind)
            .ok_or_else(|| format!("comparison .{comparison} is not known for type {kind:?}"))?;
        let (first, a, b, c) = match (operands, join) {
            ([d, a, b], None) => (d, a, b, None),
            ([d, a, b, c], Some(join)) => (d, a, b, Some((c, join))),
            _ => return Err(format!("{} operands", operands.len())),
        };
        let (mut a, mut b) = (self.value(a, kind)?, self.value(b, kind)?);
        if ftz {
            a = self.flushed(a);
            b = self.flushed(b);
        }
        let (d, second) = match first {
            Operand::Pair(d, q) if predicate => {
                (Operand::Name(d.clone()), Some(self.result(&Operand::Name(q.clone()), Pred)?))
            }
            _ => (first.clone(), None),
        };
        let d = self.result(&d, to)?;
        if second.is_some() && (second == Some(d) || self.guard.is_some()) {
            return Err("two results under a predicate or in one register are not known".into());
        }
        let truth = self.scratch();
        self.push(Op::Two { f, d: truth, a, b, bytes: 1 });
        let joined = self.join(truth, c)?;
        if let Some(q) = second {
            let ones = self.constant(1);
            let negated = self.scratch();
            self.push(Op::Logic { logic: Logic::Xor, d: negated, a: truth, b: ones });
            let other = self.join(negated, c)?;
            self.push(Op::Move { d: q, a: other, bytes: 1 });
        }
        match to {
            Pred => self.push(Op::Move { d, a: joined, bytes: 1 }),
            F32 => {
                self.push(Op::One { f: one!(|a: bool| if a { 1f32 } else { 0f32 }), d, a: joined, bytes: 4 })
            }
            _ => {
                self.push(Op::One { f: one!(|a: bool| if a { u32::MAX } else { 0 }), d, a: joined, bytes: 4 })
            }
        }
        Ok(())
    }

    /// `setp` of two halves each: the first predicate is of the low ones, the second of the high ones.
    fn compare_pairs(&mut self, comparison: &str, kind: Type, operands: &[Operand]) -> Decoded<()> {
        let [Operand::Pair(low, high), a, b] = self.operands(operands)? else {
            return Err("a comparison of pairs has two results".into());
        };
        let half = if kind == Type::F16x2 { F16 } else { BF16 };
        let f = comparison_of(comparison, half)
            .ok_or_else(|| format!("comparison .{comparison} is not known"))?;
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let mut halves = [[0; 2]; 2];
        for (halves, a) in halves.iter_mut().zip([a, b]) {
            *halves = [self.scratch(), self.scratch()];
            self.push(Op::Unpack { parts: Box::new(halves.map(Some)), a, bytes: 2 });
        }
        for (n, name) in [low, high].into_iter().enumerate() {
            let d = self.result(&Operand::Name(name.clone()), Pred)?;
            if self.guard.is_some_and(|(p, _)| p == d) {
                return Err("a result that is the instruction's own predicate".into());
            }
            self.push(Op::Two { f, d, a: halves[0][n], b: halves[1][n], bytes: 1 });
        }
        Ok(())
    }

    fn join(&mut self, truth: Slot, other: Option<(&Operand, &str)>) -> Decoded<Slot> {
        let Some((other, join)) = other else { return Ok(truth) };
        let mut c = match other {
            Operand::Not(name) => self.value(&Operand::Name(name.clone()), Pred)?,
            _ => self.value(other, Pred)?,
        };
        if matches!(other, Operand::Not(_)) {
            let (negated, ones) = (self.scratch(), self.constant(1));
            self.push(Op::Logic { logic: Logic::Xor, d: negated, a: c, b: ones });
            c = negated;
        }
        let logic = match join {
            "and" => Logic::And,
            "or" => Logic::Or(1),
            _ => Logic::Xor,
        };
        let d = self.scratch();
        self.push(Op::Logic { logic, d, a: truth, b: c });
        Ok(d)
    }
}

fn joined(a: u32, b: u32) -> u64 {
    u64::from(b) << 32 | u64::from(a)
}

/// The comparison of two values of a type. (PTX ISA, tables of comparison operators.)
fn comparison_of(name: &str, kind: Type) -> Option<Two> {
    if kind.is_float() {
        return float_comparison(name, kind);
    }
    if matches!(kind, B(_)) {
        let untyped = |f: Two, g: Two| match name {
            "eq" => Some(f),
            "ne" => Some(g),
            _ => None,
        };
        let f = typed!(kind; B(2) => u16, B(4) => u32, B(8) => u64; T, (two!(|a: T, b: T| a == b), two!(|a: T, b: T| a != b)));
        return f.and_then(|(f, g)| untyped(f, g));
    }
    // Of unsigned values, `lo`, `ls`, `hi`, `hs` are other names.
    let name = match (name, kind) {
        ("lo", U(_)) => "lt",
        ("ls", U(_)) => "le",
        ("hi", U(_)) => "gt",
        ("hs", U(_)) => "ge",
        _ => name,
    };
    typed!(kind; U(2) => u16, U(4) => u32, U(8) => u64, S(2) => i16, S(4) => i32, S(8) => i64; T, match name {
        "eq" => two!(|a: T, b: T| a == b),
        "ne" => two!(|a: T, b: T| a != b),
        "lt" => two!(|a: T, b: T| a < b),
        "le" => two!(|a: T, b: T| a <= b),
        "gt" => two!(|a: T, b: T| a > b),
        "ge" => two!(|a: T, b: T| a >= b),
        _ => return None,
    })
}

/// Comparisons whose name ends in `u` are true where an operand is NaN.
fn float_comparison(name: &str, kind: Type) -> Option<Two> {
    typed!(kind; F32 => f32, F64 => f64, F16 => f16, BF16 => bf16; T, match name {
        "eq" => two!(|a: T, b: T| a.wide() == b.wide()),
        "ne" => two!(|a: T, b: T| a.wide() < b.wide() || a.wide() > b.wide()),
        "lt" => two!(|a: T, b: T| a.wide() < b.wide()),
        "le" => two!(|a: T, b: T| a.wide() <= b.wide()),
        "gt" => two!(|a: T, b: T| a.wide() > b.wide()),
        "ge" => two!(|a: T, b: T| a.wide() >= b.wide()),
        "equ" => two!(|a: T, b: T| a.is_nan() || b.is_nan() || a.wide() == b.wide()),
        "neu" => two!(|a: T, b: T| a.wide() != b.wide()),
        "ltu" => two!(|a: T, b: T| a.is_nan() || b.is_nan() || a.wide() < b.wide()),
        "leu" => two!(|a: T, b: T| a.is_nan() || b.is_nan() || a.wide() <= b.wide()),
        "gtu" => two!(|a: T, b: T| a.is_nan() || b.is_nan() || a.wide() > b.wide()),
        "geu" => two!(|a: T, b: T| a.is_nan() || b.is_nan() || a.wide() >= b.wide()),
        "num" => two!(|a: T, b: T| !(a.is_nan() || b.is_nan())),
        "nan" => two!(|a: T, b: T| a.is_nan() || b.is_nan()),
        _ => return None,
    })
}
