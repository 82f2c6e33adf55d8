//! Moves and conversions. (PTX ISA 8.7, data movement and conversion instructions: mov, cvt, cvta, isspacep.)

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{LOCAL_WINDOW, One, Op, SHARED_WINDOW, Slot, WINDOW};
use crate::ptx::lanes::{one, two, typed};
use crate::ptx::number::{Float, flush, narrow, odd_of};
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{self, B, BF16, BF16x2, F16, F16x2, F32, F64, Pred, S, U};
use half::{bf16, f16};

impl Decoder<'_> {
    /// Decodes one of these; `false`: it is none.
    pub(super) fn convert(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        match name {
            "mov" => self.mov(m, operands)?,
            "cvt" => self.cvt(m, operands)?,
            "cvta" => {
                let to = m.take("to");
                let space = m.one_of(&["global", "shared", "local"]).ok_or("unknown state space")?;
                m.kind_of(&[U(8)])?;
                let [d, a] = self.operands(operands)?;
                let a = match a {
                    Operand::Name(name)
                        if self.names.variable(name).is_some_and(|(s, _)| s == space && !to) =>
                    {
                        let at = self.names.variable(name).map_or(0, |(_, at)| at);
                        self.constant(at)
                    }
                    _ => self.value(a, U(8))?,
                };
                let d = self.result(d, U(8))?;
                let window = match space {
                    "shared" => SHARED_WINDOW,
                    "local" => LOCAL_WINDOW,
                    _ => 0,
                };
                let b = self.constant(window);
                let f = if to {
                    two!(|a: u64, b: u64| a.wrapping_sub(b))
                } else {
                    two!(|a: u64, b: u64| a.wrapping_add(b))
                };
                self.push(Op::Two { f, d, a, b, bytes: 8 });
            }
            "isspacep" => {
                let space = m.one_of(&["global", "shared", "local"]).ok_or("unknown state space")?;
                let [p, a] = self.operands(operands)?;
                let a = self.value(a, B(8))?;
                let d = self.result(p, Pred)?;
                let f = match space {
                    "shared" => one!(|a: u64| a & !(WINDOW - 1) == SHARED_WINDOW),
                    "local" => one!(|a: u64| a & !(WINDOW - 1) == LOCAL_WINDOW),
                    _ => {
                        one!(|a: u64| a & !(WINDOW - 1) != SHARED_WINDOW && a & !(WINDOW - 1) != LOCAL_WINDOW)
                    }
                };
                self.push(Op::One { f, d, a, bytes: 1 });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mov(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let known = [Pred, B(2), B(4), B(8), U(2), U(4), U(8), S(2), S(4), S(8), F32, F64];
        let kind = m.kind_of(&known)?;
        let bytes = kind.bytes();
        let [d, a] = self.operands(operands)?;
        let part = |n: usize| {
            let width = usize::from(bytes) / n;
            let whole = matches!(kind, B(_)) && width * n == usize::from(bytes) && matches!(width, 2 | 4);
            whole.then_some(width as u8).ok_or_else(|| format!("{n} parts of {kind:?}"))
        };
        match (d, a) {
            (Operand::Vector(parts), a) => {
                let width = part(parts.len())?;
                let a = self.value(a, kind)?;
                let mut slots = Vec::new();
                for name in parts {
                    let sink = *name == Operand::Name("_".into());
                    slots.push(if sink { None } else { Some(self.result(name, B(width))?) });
                }
                self.push(Op::Unpack { parts: slots.into(), a, bytes: width });
            }
            (d, Operand::Vector(parts)) => {
                let width = part(parts.len())?;
                let mut slots = Vec::new();
                for value in parts {
                    slots.push(self.value(value, B(width))?);
                }
                let d = self.result(d, kind)?;
                self.push(Op::Pack { d, parts: slots.into(), bytes: width });
            }
            (d, a) => {
                let variable = match a {
                    Operand::Name(name) => self.names.variable(name),
                    _ => None,
                };
                let a = match variable {
                    Some((space, at)) if bytes == 8 || bytes == 4 && space != "data" => self.constant(at),
                    _ => self.value(a, kind)?,
                };
                let d = self.result(d, kind)?;
                self.push(Op::Move { d, a, bytes });
            }
        }
        Ok(())
    }

    fn cvt(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let round = m.one_of(&["rn", "rz", "rni", "rzi", "rmi", "rpi"]);
        let relu = m.take("relu");
        let ftz = m.take("ftz");
        let sat = m.take("sat");
        let to = m.kind()?;
        if matches!(to, F16x2 | BF16x2) {
            return self.cvt_pair(round, relu, ftz || sat, to, m, operands);
        }
        let from = m.kind()?;
        if matches!(to, Pred | Type::F32x2) || matches!(from, Pred | F16x2 | BF16x2 | Type::F32x2) {
            return Err(format!("conversion of {from:?} to {to:?} is not known"));
        }
        if relu && !(matches!(to, F16 | BF16) && from == F32) || ftz && to != F32 && from != F32 {
            return Err("unknown modifier .relu or .ftz".into());
        }
        let [d, a] = self.operands(operands)?;
        let mut a = self.wide_value(a, from)?;
        let width = self.names.width(d)?;
        let Operand::Name(name) = d else { return Err("a result is a register".into()) };
        let d = self.names.register(name, to, true)?;
        if ftz && from == F32 {
            a = self.flushed(a);
        }
        match (from.is_float(), to.is_float()) {
            (false, false) if round.is_none() => self.cvt_int(d, a, to, from, sat, width),
            (false, true) => self.cvt_to_float(d, a, to, from, round, sat),
            (true, false) => self.cvt_to_int(d, a, to, from, round, width),
            (true, true) => self.cvt_float(d, a, to, from, round, sat, relu, ftz),
            _ => Err("a conversion of integers does not round".into()),
        }
    }

    /// Two f32, the first to the high half.
    fn cvt_pair(
        &mut self,
        round: Option<&str>,
        relu: bool,
        unknown: bool,
        to: Type,
        m: &mut Modifiers,
        operands: &[Operand],
    ) -> Decoded<()> {
        m.want("f32")?;
        if unknown {
            return Err("unknown modifier .ftz or .sat".into());
        }
        let [d, high, low] = self.operands(operands)?;
        let (high, low) = (self.value(high, F32)?, self.value(low, F32)?);
        let d = self.result(d, to)?;
        let half = if to == F16x2 { F16 } else { BF16 };
        let parts = [self.scratch(), self.scratch()];
        for (part, a) in parts.into_iter().zip([low, high]) {
            self.cvt_float(part, a, half, F32, round, false, relu, false)?;
        }
        self.push(Op::Pack { d, parts: Box::new(parts), bytes: 2 });
        Ok(())
    }

    /// Extends what has `from` bytes to `width` bytes, by its sign or by zeros.
    fn extend(&mut self, d: Slot, a: Slot, from: u8, signed: bool, width: u8) {
        if !signed || from >= width {
            self.push(Op::Move { d, a, bytes: from.min(width) });
            return;
        }
        let f = match (from, width) {
            (1, 2) => one!(|a: i8| i16::from(a)),
            (1, 4) => one!(|a: i8| i32::from(a)),
            (1, _) => one!(|a: i8| i64::from(a)),
            (2, 4) => one!(|a: i16| i32::from(a)),
            (2, _) => one!(|a: i16| i64::from(a)),
            _ => one!(|a: i32| i64::from(a)),
        };
        self.push(Op::One { f, d, a, bytes: width });
    }

    fn cvt_int(&mut self, d: Slot, a: Slot, to: Type, from: Type, sat: bool, width: u8) -> Decoded<()> {
        let (B(_) | U(_) | S(_), U(_) | S(_)) = (from, to) else {
            return Err(format!("conversion to {to:?}"));
        };
        if matches!(from, B(_)) {
            return Err(format!("conversion of {from:?}"));
        }
        let mid = self.scratch();
        if sat {
            // All 64 bits, seen as i128 in effect: only u64 above i64 needs care.
            let wide = self.scratch();
            self.extend(wide, a, from.bytes(), from.is_signed(), 8);
            let f = if from == U(8) { clamp_unsigned(to) } else { clamp_signed(to) };
            self.push(Op::One { f, d: mid, a: wide, bytes: to.bytes() });
        } else {
            self.extend(mid, a, from.bytes(), from.is_signed(), to.bytes());
        }
        self.extend(d, mid, to.bytes(), to.is_signed(), width);
        Ok(())
    }

    fn cvt_to_float(
        &mut self,
        d: Slot,
        a: Slot,
        to: Type,
        from: Type,
        round: Option<&str>,
        sat: bool,
    ) -> Decoded<()> {
        if round != Some("rn") {
            return Err("a conversion of an integer to a float rounds by .rn here".into());
        }
        let f = typed!(from; U(1) => u8, U(2) => u16, U(4) => u32, U(8) => u64, S(1) => i8, S(2) => i16, S(4) => i32, S(8) => i64; T,
            one!(|a: T| odd_of(i128::from(a))));
        let f: One = f.ok_or_else(|| format!("conversion of {from:?}"))?;
        let wide = self.scratch();
        self.push(Op::One { f, d: wide, a, bytes: 8 });
        // An f64 takes the nearest itself.
        if to == F64 {
            let f = match from {
                U(8) => Some(one!(|a: u64| a as f64)),
                S(8) => Some(one!(|a: i64| a as f64)),
                _ => None,
            };
            if let Some(f) = f {
                self.push(Op::One { f, d: wide, a, bytes: 8 });
            }
        }
        self.narrowed(d, wide, to, false, sat)
    }

    fn cvt_to_int(
        &mut self,
        d: Slot,
        a: Slot,
        to: Type,
        from: Type,
        round: Option<&str>,
        width: u8,
    ) -> Decoded<()> {
        let round = round.filter(|r| r.len() == 3).ok_or("a conversion to an integer says how it rounds")?;
        let wide = self.widened(a, from);
        self.round(wide, round);
        // `as` saturates and makes 0 of NaN, as cvt does.
        let f = typed!(to; U(1) => u8, U(2) => u16, U(4) => u32, U(8) => u64, S(1) => i8, S(2) => i16, S(4) => i32, S(8) => i64; T,
            one!(|a: f64| a as T));
        let f = f.ok_or_else(|| format!("conversion to {to:?}"))?;
        let mid = self.scratch();
        self.push(Op::One { f, d: mid, a: wide, bytes: to.bytes() });
        self.extend(d, mid, to.bytes(), to.is_signed(), width);
        Ok(())
    }

    fn cvt_float(
        &mut self,
        d: Slot,
        a: Slot,
        to: Type,
        from: Type,
        round: Option<&str>,
        sat: bool,
        relu: bool,
        ftz: bool,
    ) -> Decoded<()> {
        let narrower = to.bytes() < from.bytes() || to.bytes() == from.bytes() && to != from;
        let to_zero = round == Some("rz");
        match round {
            Some("rn" | "rz") if narrower && (!to_zero || to.bytes() == 2) => {}
            Some(r) if r.len() == 3 && to == from => {}
            None if !narrower => {}
            _ => return Err(format!("rounding of a conversion of {from:?} to {to:?}")),
        }
        let wide = self.widened(a, from);
        if let Some(round) = round.filter(|r| r.len() == 3) {
            self.round(wide, round);
        }
        if relu {
            let f = one!(|a: f64| if a < 0.0 { 0.0 } else { a });
            self.push(Op::One { f, d: wide, a: wide, bytes: 8 });
        }
        self.narrowed(d, wide, to, to_zero, sat)?;
        if ftz && to == F32 {
            self.push(Op::One { f: one!(|a: f32| flush(a)), d, a: d, bytes: 4 });
        }
        Ok(())
    }

    /// A float as f64, exactly.
    fn widened(&mut self, a: Slot, from: Type) -> Slot {
        let f = match from {
            F16 => one!(|a: f16| a.wide()),
            BF16 => one!(|a: bf16| a.wide()),
            F32 => one!(|a: f32| a.wide()),
            _ => one!(|a: f64| a),
        };
        let d = self.scratch();
        self.push(Op::One { f, d, a, bytes: 8 });
        d
    }

    /// To an integer, in place.
    fn round(&mut self, a: Slot, round: &str) {
        let f = match round {
            "rni" => one!(|a: f64| a.round_ties_even()),
            "rzi" => one!(|a: f64| a.trunc()),
            "rmi" => one!(|a: f64| a.floor()),
            _ => one!(|a: f64| a.ceil()),
        };
        self.push(Op::One { f, d: a, a, bytes: 8 });
    }

    fn narrowed(&mut self, d: Slot, a: Slot, to: Type, to_zero: bool, sat: bool) -> Decoded<()> {
        if sat {
            let f = one!(|a: f64| if a.is_nan() { 0.0 } else { a.clamp(0.0, 1.0) + 0.0 });
            self.push(Op::One { f, d: a, a, bytes: 8 });
        }
        let f = match (to, to_zero) {
            (F16, false) => one!(|a: f64| f16::near(a)),
            (F16, true) => one!(|a: f64| f16::from_bits(narrow::<5, 10>(a, true))),
            (BF16, false) => one!(|a: f64| bf16::near(a)),
            (BF16, true) => one!(|a: f64| bf16::from_bits(narrow::<8, 7>(a, true))),
            (F32, _) => one!(|a: f64| f32::near(a)),
            (F64, _) => one!(|a: f64| a),
            _ => return Err(format!("conversion to {to:?}")),
        };
        self.push(Op::One { f, d, a, bytes: to.bytes() });
        Ok(())
    }
}

/// Clamps an i64 to a type.
fn clamp_signed(to: Type) -> One {
    match to {
        U(1) => one!(|a: i64| a.clamp(0, u8::MAX.into()) as u8),
        U(2) => one!(|a: i64| a.clamp(0, u16::MAX.into()) as u16),
        U(4) => one!(|a: i64| a.clamp(0, u32::MAX.into()) as u32),
        U(_) => one!(|a: i64| a.max(0)),
        S(1) => one!(|a: i64| a.clamp(i8::MIN.into(), i8::MAX.into()) as i8),
        S(2) => one!(|a: i64| a.clamp(i16::MIN.into(), i16::MAX.into()) as i16),
        S(4) => one!(|a: i64| a.clamp(i32::MIN.into(), i32::MAX.into()) as i32),
        _ => one!(|a: i64| a),
    }
}

/// Clamps a u64 to a type.
fn clamp_unsigned(to: Type) -> One {
    match to {
        U(1) => one!(|a: u64| a.min(u8::MAX.into()) as u8),
        U(2) => one!(|a: u64| a.min(u16::MAX.into()) as u16),
        U(4) => one!(|a: u64| a.min(u32::MAX.into()) as u32),
        S(1) => one!(|a: u64| a.min(i8::MAX as u64) as u8),
        S(2) => one!(|a: u64| a.min(i16::MAX as u64) as u16),
        S(4) => one!(|a: u64| a.min(i32::MAX as u64) as u32),
        S(_) => one!(|a: u64| a.min(i64::MAX as u64)),
        _ => one!(|a: u64| a),
    }
}
