//! Floating point arithmetic. (PTX ISA 8.7, floating point, half precision and mixed precision instructions.)
//!
//! Approximate instructions give what their exact value rounds to, which is within their error bounds.

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{One, Op, Slot, Three, Two};
use crate::ptx::lanes::{one, three, two, typed};
use crate::ptx::number::{Float, flush, fma_odd};
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{self, BF16, BF16x2, F16, F16x2, F32, F32x2, F64, Pred};
use half::{bf16, f16};

/// A function of elements.
#[derive(Clone, Copy)]
enum Function {
    One(One),
    Two(Two),
    Three(Three),
}

/// What else an instruction does.
#[derive(Clone, Copy, Default)]
struct Also {
    /// Subnormal operands and results count as zero.
    ftz: bool,
    /// The result is clamped to 0 .. 1, NaN to 0.
    sat: bool,
    /// Negative results become 0.
    relu: bool,
}

/// Types whose operations take this type's elements.
fn element(kind: Type) -> Type {
    match kind {
        F16x2 => F16,
        BF16x2 => BF16,
        F32x2 => F32,
        _ => kind,
    }
}

impl Decoder<'_> {
    /// Decodes one of these; `false`: it is none.
    pub(super) fn float(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        match name {
            "add" | "sub" | "mul" | "fma" | "mad" => {
                // There is one rounding; `fma` and `mad` must name it.
                if !m.take("rn") && matches!(name, "fma" | "mad") {
                    return Err("modifier .rn is missing".into());
                }
                let also =
                    Also { ftz: m.take("ftz"), sat: m.take("sat"), relu: name == "fma" && m.take("relu") };
                let kind = m.kind()?;
                if kind == F32 && !also.ftz && !also.relu && matches!(name, "add" | "sub" | "fma") {
                    let half = m.take("f16").then_some(F16).or_else(|| m.take("bf16").then_some(BF16));
                    if let Some(half) = half {
                        return self.mixed(name, half, also, operands).map(|()| true);
                    }
                }
                let f = if name == "fma" || name == "mad" {
                    fused(element(kind))
                } else {
                    sum(name, element(kind))
                };
                if also.relu && matches!(kind, F32 | F64) || name == "mad" && !matches!(kind, F32 | F64) {
                    return Err(format!("type {kind:?} is not known for this opcode"));
                }
                self.apply(f, kind, also, operands)?;
            }
            "min" | "max" => {
                let also = Also { ftz: m.take("ftz"), ..Also::default() };
                let nan = m.take("NaN");
                let kind = m.kind()?;
                if kind == F32 && operands.len() == 4 {
                    return self.extreme_of_three(name, nan, also, operands).map(|()| true);
                }
                self.apply(extreme(name, nan, element(kind)), kind, also, operands)?;
            }
            "abs" | "neg" => {
                let also = Also { ftz: m.take("ftz"), ..Also::default() };
                let kind = m.kind()?;
                let f = match (name, element(kind)) {
                    ("abs", F32) => Some(one!(|a: u32| a & 0x7fff_ffff)),
                    ("abs", F64) => Some(one!(|a: u64| a & 0x7fff_ffff_ffff_ffff)),
                    ("abs", F16 | BF16) => Some(one!(|a: u16| a & 0x7fff)),
                    ("neg", F32) => Some(one!(|a: u32| a ^ 0x8000_0000)),
                    ("neg", F64) => Some(one!(|a: u64| a ^ 0x8000_0000_0000_0000)),
                    ("neg", F16 | BF16) => Some(one!(|a: u16| a ^ 0x8000)),
                    _ => None,
                };
                self.apply(f.map(Function::One), kind, also, operands)?;
            }
            "copysign" => {
                let f = match m.kind_of(&[F32, F64])? {
                    F32 => (F32, two!(|a: u32, b: u32| a & 0x8000_0000 | b & 0x7fff_ffff)),
                    _ => (F64, two!(|a: u64, b: u64| a & 1 << 63 | b & !(1 << 63))),
                };
                self.apply(Some(Function::Two(f.1)), f.0, Also::default(), operands)?;
            }
            "div" => self.quotient(m, operands)?,
            "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => {
                self.unary(name, m, operands)?
            }
            "testp" => {
                let test = m.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
                let test = test.ok_or("unknown test")?;
                let kind = m.kind_of(&[F32, F64])?;
                let f = typed!(kind; F32 => f32, F64 => f64; T, match test {
                    "finite" => one!(|a: T| a.is_finite()),
                    "infinite" => one!(|a: T| a.is_infinite()),
                    "number" => one!(|a: T| !a.is_nan()),
                    "notanumber" => one!(|a: T| a.is_nan()),
                    "normal" => one!(|a: T| a.is_normal()),
                    _ => one!(|a: T| a.is_subnormal()),
                });
                self.one(f.ok_or("unknown type")?, Pred, kind, operands)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A slot with subnormal f32 as zero.
    pub(super) fn flushed(&mut self, a: Slot) -> Slot {
        let d = self.scratch();
        self.push(Op::One { f: one!(|a: f32| flush(a)), d, a, bytes: 4 });
        d
    }

    fn quotient(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let how = m.one_of(&["rn", "approx", "full"]).ok_or("modifier .rn, .approx or .full is missing")?;
        let also = Also { ftz: m.take("ftz"), ..Also::default() };
        let kind = m.kind_of(&[F32, F64])?;
        let f = match (how, kind) {
            ("rn", F64) => two!(|a: f64, b: f64| a / b),
            ("rn" | "full", F32) => two!(|a: f32, b: f32| a / b),
            // Its reciprocal of large divisors is zero.
            ("approx", F32) => two!(|a: f32, b: f32| if b.is_finite() && b.abs() > 2f32.powi(126) {
                a * 0f32.copysign(b)
            } else {
                a / b
            }),
            _ => return Err(format!("type {kind:?} is not known for div.{how}")),
        };
        self.apply(Some(Function::Two(f)), kind, also, operands)
    }

    fn unary(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let rounded = matches!(name, "rcp" | "sqrt") && m.take("rn");
        if !rounded {
            m.want("approx")?;
        }
        let also = Also { ftz: m.take("ftz"), ..Also::default() };
        let kind = m.kind()?;
        let f = match (name, element(kind)) {
            ("rcp", F32) => Some(one!(|a: f32| 1.0 / a)),
            ("rcp", F64) if rounded => Some(one!(|a: f64| 1.0 / a)),
            ("sqrt", F32) => Some(one!(|a: f32| a.sqrt())),
            ("sqrt", F64) if rounded => Some(one!(|a: f64| a.sqrt())),
            ("rsqrt", F32) => Some(one!(|a: f32| f32::near(1.0 / a.wide().sqrt()))),
            ("rsqrt", F64) => Some(one!(|a: f64| 1.0 / a.sqrt())),
            ("ex2", half) => {
                typed!(half; F32 => f32, F16 => f16, BF16 => bf16; T, one!(|a: T| T::near(a.wide().exp2())))
            }
            ("lg2", F32) => Some(one!(|a: f32| f32::near(a.wide().log2()))),
            ("sin", F32) => Some(one!(|a: f32| f32::near(a.wide().sin()))),
            ("cos", F32) => Some(one!(|a: f32| f32::near(a.wide().cos()))),
            ("tanh", half) => {
                typed!(half; F32 => f32, F16 => f16, BF16 => bf16; T, one!(|a: T| T::near(a.wide().tanh())))
            }
            _ => None,
        };
        // `ex2` of bf16 has one form only, which flushes.
        let bf = element(kind) == BF16;
        if name == "ex2" && bf != also.ftz && kind != F32 || name == "tanh" && also.ftz {
            return Err("unknown modifier .ftz, or it is missing".into());
        }
        self.apply(f.map(Function::One), kind, also, operands)
    }

    /// `add`, `sub` and `fma` of f32 whose operands but the last are halves.
    fn mixed(&mut self, name: &str, half: Type, also: Also, operands: &[Operand]) -> Decoded<()> {
        let f = if name == "fma" { fused(F32) } else { sum(name, F32) }.ok_or("unknown type")?;
        let [d, halves @ .., c] = operands else { return Err("no operands".into()) };
        let wide = if half == F16 { one!(|a: f16| a.to_f32()) } else { one!(|a: bf16| a.to_f32()) };
        let mut sources = Vec::new();
        for a in halves {
            let (a, d) = (self.value(a, half)?, self.scratch());
            self.push(Op::One { f: wide, d, a, bytes: 4 });
            sources.push(d);
        }
        sources.push(self.value(c, F32)?);
        let d = self.result(d, F32)?;
        self.element(f, F32, also, d, &sources)
    }

    fn extreme_of_three(&mut self, name: &str, nan: bool, also: Also, operands: &[Operand]) -> Decoded<()> {
        let [d, a, b, c] = self.operands(operands)?;
        let sources = [self.value(a, F32)?, self.value(b, F32)?, self.value(c, F32)?];
        let d = self.result(d, F32)?;
        let f = extreme(name, nan, F32).ok_or("unknown type")?;
        let first = self.scratch();
        self.element(f, F32, also, first, &sources[..2])?;
        self.element(f, F32, also, d, &[first, sources[2]])
    }

    /// Both elements of a pair, or the one there is.
    fn apply(&mut self, f: Option<Function>, kind: Type, also: Also, operands: &[Operand]) -> Decoded<()> {
        let f = f.ok_or_else(|| format!("type {kind:?} is not known for this opcode"))?;
        if kind == F64 && (also.ftz || also.sat) || matches!(element(kind), BF16) && also.sat {
            return Err(format!("unknown modifier for type {kind:?}"));
        }
        let Some((d, sources)) = operands.split_first() else { return Err("no operands".into()) };
        let mut slots = Vec::new();
        for source in sources {
            slots.push(self.value(source, kind)?);
        }
        let d = self.result(d, kind)?;
        let part = element(kind);
        if part == kind {
            return self.element(f, kind, also, d, &slots);
        }
        let bytes = part.bytes();
        let mut halves = [Vec::new(), Vec::new()];
        for a in slots {
            let parts = [self.scratch(), self.scratch()];
            self.push(Op::Unpack { parts: Box::new(parts.map(Some)), a, bytes });
            halves[0].push(parts[0]);
            halves[1].push(parts[1]);
        }
        let results = [self.scratch(), self.scratch()];
        for (result, sources) in results.into_iter().zip(&halves) {
            self.element(f, part, also, result, sources)?;
        }
        self.push(Op::Pack { d, parts: Box::new(results), bytes });
        Ok(())
    }

    fn element(&mut self, f: Function, kind: Type, also: Also, d: Slot, sources: &[Slot]) -> Decoded<()> {
        let bytes = kind.bytes();
        let zero = typed!(kind; F32 => f32, F16 => f16, BF16 => bf16; T, one!(|a: T| without_subnormals(a)));
        let zero = zero.filter(|_| also.ftz);
        let mut inputs = sources.to_vec();
        if let Some(f) = zero {
            for a in &mut inputs {
                let flushed = self.scratch();
                self.push(Op::One { f, d: flushed, a: *a, bytes });
                *a = flushed;
            }
        }
        match (f, &inputs[..]) {
            (Function::One(f), &[a]) => self.push(Op::One { f, d, a, bytes }),
            (Function::Two(f), &[a, b]) => self.push(Op::Two { f, d, a, b, bytes }),
            (Function::Three(f), &[a, b, c]) => self.push(Op::Three { f, d, a, b, c, bytes }),
            _ => return Err(format!("{} operands", inputs.len() + 1)),
        }
        let clamp = typed!(kind; F32 => f32, F16 => f16; T, one!(|a: T| T::near(if a.is_nan() { 0.0 } else { a.wide().clamp(0.0, 1.0) + 0.0 })));
        let relu = typed!(kind; F16 => f16, BF16 => bf16; T, one!(|a: T| if a.wide() < 0.0 { T::near(0.0) } else { a }));
        for f in [zero, clamp.filter(|_| also.sat), relu.filter(|_| also.relu)].into_iter().flatten() {
            self.push(Op::One { f, d, a: d, bytes });
        }
        Ok(())
    }
}

/// A subnormal number as zero of its sign.
fn without_subnormals<T: Float>(a: T) -> T {
    // The smallest normal of f16 is 2^-14; bf16 has the range of f32.
    let least =
        if std::mem::size_of::<T>() == 2 && T::near(65536.0).wide().is_infinite() { -14 } else { -126 };
    if a.wide().abs() < 2f64.powi(least) { T::near(0f64.copysign(a.wide())) } else { a }
}

fn sum(name: &str, kind: Type) -> Option<Function> {
    // Rounding to f64 first changes no sum or product of shorter types: 53 >= 2 * 24 + 2 bits. (Figueroa, 1995.)
    let f = match name {
        "add" if kind == F32 => Some(two!(|a: f32, b: f32| a + b)),
        "sub" if kind == F32 => Some(two!(|a: f32, b: f32| a - b)),
        "mul" if kind == F32 => Some(two!(|a: f32, b: f32| a * b)),
        "add" => {
            typed!(kind; F64 => f64, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| T::near(a.wide() + b.wide())))
        }
        "sub" => {
            typed!(kind; F64 => f64, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| T::near(a.wide() - b.wide())))
        }
        _ => {
            typed!(kind; F64 => f64, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| T::near(a.wide() * b.wide())))
        }
    };
    f.map(Function::Two)
}

fn fused(kind: Type) -> Option<Function> {
    let f = match kind {
        F64 => Some(three!(|a: f64, b: f64, c: f64| a.mul_add(b, c))),
        _ => {
            typed!(kind; F32 => f32, F16 => f16, BF16 => bf16; T,
                three!(|a: T, b: T, c: T| T::near(fma_odd(a.wide(), b.wide(), c.wide()))))
        }
    };
    f.map(Function::Three)
}

/// Minimum or maximum: of NaN and a number the number, or NaN with `nan`; -0 is less than 0.
fn extreme(name: &str, nan: bool, kind: Type) -> Option<Function> {
    let f = match (name, nan) {
        ("max", false) => {
            typed!(kind; F32 => f32, F64 => f64, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| larger(a, b, false, false)))
        }
        ("max", true) => {
            typed!(kind; F32 => f32, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| larger(a, b, false, true)))
        }
        (_, false) => {
            typed!(kind; F32 => f32, F64 => f64, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| larger(a, b, true, false)))
        }
        (_, true) => {
            typed!(kind; F32 => f32, F16 => f16, BF16 => bf16; T, two!(|a: T, b: T| larger(a, b, true, true)))
        }
    };
    f.map(Function::Two)
}

#[inline(always)]
fn larger<T: Float>(a: T, b: T, smaller: bool, nan: bool) -> T {
    let (x, y) = (a.wide(), b.wide());
    if x.is_nan() {
        return if nan { a } else { b };
    }
    if y.is_nan() {
        return if nan { b } else { a };
    }
    let first = if x == y { y.is_sign_negative() } else { x > y };
    if first != smaller { a } else { b }
}
