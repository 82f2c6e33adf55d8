//! Loads, stores, atomics, asynchronous copies. (PTX ISA 8.7, data movement and parallel synchronisation instructions.)

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{Op, Slot, Space};
use crate::ptx::number::Float;
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{self, B, BF16, BF16x2, F16, F16x2, F32, F64, S, U};
use half::{bf16, f16};

const ELEMENTS: [Type; 14] =
    [B(1), B(2), B(4), B(8), U(1), U(2), U(4), U(8), S(1), S(2), S(4), S(8), F32, F64];

impl Decoder<'_> {
    /// Decodes one of these; `false`: it is none.
    pub(super) fn memory(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        match name {
            "ld" => self.load(m, operands)?,
            "st" => self.store(m, operands)?,
            "atom" | "red" => self.atomic(name == "atom", m, operands)?,
            "cp" => self.copy_async(m, operands)?,
            "ldmatrix" => {
                for word in ["sync", "aligned", "m8n8"] {
                    m.want(word)?;
                }
                let count = m.one_of(&["x1", "x2", "x4"]).ok_or("modifier .x1, .x2 or .x4 is missing")?;
                let transposed = m.take("trans");
                self.shared_word(m)?;
                m.want("b16")?;
                let [d, at] = self.operands(operands)?;
                let at = self.address(at, &["shared"])?;
                let d = self.results(d, B(4))?;
                if d.len() != usize::from(count.as_bytes()[1] - b'0') {
                    return Err(format!("{} results of ldmatrix .{count}", d.len()));
                }
                self.push(Op::LoadMatrix { d: d.into(), at, transposed });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn shared_word(&mut self, m: &mut Modifiers) -> Decoded<()> {
        m.one_of(&["shared", "shared::cta"]).map(|_| ()).ok_or_else(|| "modifier .shared is missing".into())
    }

    /// Registers of one type: a vector, or one.
    pub(super) fn results(&mut self, operand: &Operand, kind: Type) -> Decoded<Vec<Slot>> {
        let parts = match operand {
            Operand::Vector(parts) => &parts[..],
            one => std::slice::from_ref(one),
        };
        parts.iter().map(|p| self.result(p, kind)).collect()
    }

    /// Values of one type: a vector, or one.
    pub(super) fn values(&mut self, operand: &Operand, kind: Type) -> Decoded<Vec<Slot>> {
        let parts = match operand {
            Operand::Vector(parts) => &parts[..],
            one => std::slice::from_ref(one),
        };
        parts.iter().map(|p| self.value(p, kind)).collect()
    }

    /// Orders that one thread's accesses keep here anyway.
    fn order(m: &mut Modifiers, words: &[&'static str]) {
        if let Some(order) = m.one_of(words)
            && !matches!(order, "weak" | "volatile")
        {
            m.one_of(&["cta", "cluster", "gpu", "sys"]);
        }
    }

    fn space(m: &mut Modifiers) -> (Space, &'static [&'static str]) {
        match m.one_of(&["global", "shared::cta", "shared", "local", "const", "param"]) {
            Some("global") => (Space::Global, &["data"]),
            Some("shared" | "shared::cta") => (Space::Shared, &["shared"]),
            Some("local") => (Space::Local, &["local"]),
            Some("const") => (Space::Data, &["data"]),
            // Only `ld` has parameters, and takes them before.
            Some(_) | None => (Space::Generic, &[]),
        }
    }

    fn hints(m: &mut Modifiers) {
        m.one_of(&[
            "L1::evict_normal",
            "L1::evict_unchanged",
            "L1::evict_first",
            "L1::evict_last",
            "L1::no_allocate",
        ]);
        m.one_of(&["L2::64B", "L2::128B", "L2::256B"]);
    }

    fn vector(m: &mut Modifiers) -> usize {
        match m.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    /// Notes a write's bytes, all parts together, to know how fine races are to be tracked: it is aligned to its size.
    fn grain(&mut self, space: Space, bytes: u8) {
        if matches!(space, Space::Shared | Space::Generic) {
            self.shared_grain = self.shared_grain.min(bytes);
        }
        if matches!(space, Space::Global | Space::Generic) {
            self.global_grain = self.global_grain.min(bytes);
        }
    }

    fn load(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let [d, at] = self.operands(operands)?;
        let parameter = m.take("param");
        let mut space = (Space::Generic, &[][..]);
        let mut constant = false;
        if !parameter {
            Self::order(m, &["weak", "volatile", "relaxed", "acquire"]);
            space = Self::space(m);
            let cache = m.one_of(&["ca", "cg", "cs", "lu", "cv"]);
            constant = space.0 == Space::Global && cache != Some("cv") && m.take("nc");
            Self::hints(m);
        }
        let count = Self::vector(m);
        let kind = m.kind_of(&ELEMENTS)?;
        let bytes = kind.bytes();
        if usize::from(bytes) * count > 32 || count == 8 && bytes != 4 {
            return Err("unknown size of a load".into());
        }
        let parts = match d {
            Operand::Vector(parts) => &parts[..],
            one => std::slice::from_ref(one),
        };
        if parts.len() != count || (count > 1) != matches!(d, Operand::Vector(_)) {
            return Err(format!("{} results of a load of {count}", parts.len()));
        }
        let at_slot = if parameter { None } else { Some(self.address(at, space.1)?) };
        let mut results = Vec::new();
        for part in parts {
            let Operand::Name(name) = part else { return Err("a result is a register".into()) };
            if name == "_" {
                results.push((None, bytes));
            } else {
                results.push((Some(self.names.register(name, kind, true)?), self.names.width(part)?));
            }
        }
        let (d, signed) = (results.into_boxed_slice(), kind.is_signed());
        let Some(at) = at_slot else {
            let Operand::Address(Some(name), offset) = at else { return Err("a parameter is wanted".into()) };
            let param = self.names.param(name).ok_or_else(|| format!("no parameter {name}"))?;
            let end = offset.checked_add(u64::from(bytes) * count as u64);
            if end.is_none_or(|end| end > param.bytes) || offset % (u64::from(bytes) * count as u64) != 0 {
                return Err(format!("offset {offset} of parameter {name} of {} bytes", param.bytes));
            }
            let offset = param.start + offset;
            self.push(Op::Param { d, offset, bytes, signed });
            return Ok(());
        };
        self.push(Op::Load { space: space.0, d, at, bytes, signed, constant });
        Ok(())
    }

    fn store(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let [at, s] = self.operands(operands)?;
        Self::order(m, &["weak", "volatile", "relaxed", "release"]);
        let (space, names) = Self::space(m);
        if space == Space::Data {
            return Err("unknown modifier .const".into());
        }
        m.one_of(&["wb", "cg", "cs", "wt"]);
        Self::hints(m);
        let count = Self::vector(m);
        let kind = m.kind_of(&ELEMENTS)?;
        let bytes = kind.bytes();
        if usize::from(bytes) * count > 32 || count == 8 && bytes != 4 {
            return Err("unknown size of a store".into());
        }
        let parts = match s {
            Operand::Vector(parts) => &parts[..],
            one => std::slice::from_ref(one),
        };
        if parts.len() != count || (count > 1) != matches!(s, Operand::Vector(_)) {
            return Err(format!("{} values of a store of {count}", parts.len()));
        }
        let mut slots = Vec::new();
        for part in parts {
            slots.push(self.wide_value(part, kind)?);
        }
        let at = self.address(at, names)?;
        self.grain(space, bytes * count as u8);
        self.push(Op::Store { space, s: slots.into(), at, bytes });
        Ok(())
    }

    fn atomic(&mut self, answers: bool, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        m.one_of(&["relaxed", "acquire", "release", "acq_rel"]);
        m.one_of(&["cta", "cluster", "gpu", "sys"]);
        let (space, names) = Self::space(m);
        if !matches!(space, Space::Global | Space::Shared | Space::Generic) {
            return Err("unknown state space of an atomic".into());
        }
        let known = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let op = m.one_of(&known).ok_or("unknown atomic operation")?;
        let noftz = m.take("noftz");
        let kind = m.kind()?;
        let half = matches!(kind, F16 | BF16 | F16x2 | BF16x2);
        if half != noftz || !answers && matches!(op, "exch" | "cas") {
            return Err(format!("atomic .{op} on {kind:?}"));
        }
        let f = atomic_of(op, kind).ok_or_else(|| format!("atomic .{op} on {kind:?} is not known"))?;
        let (d, rest) = if answers {
            let Some((d, rest)) = operands.split_first() else { return Err("no operands".into()) };
            let sink = *d == Operand::Name("_".into());
            (if sink { None } else { Some(self.result(d, kind)?) }, rest)
        } else {
            (None, operands)
        };
        let (at, a, b) = match (rest, op) {
            ([at, a, b], "cas") => (at, self.value(a, kind)?, self.value(b, kind)?),
            ([at, a], _) if op != "cas" => {
                let a = self.value(a, kind)?;
                (at, a, a)
            }
            _ => return Err(format!("{} operands", operands.len())),
        };
        let at = self.address(at, names)?;
        self.grain(space, kind.bytes());
        self.push(Op::Atomic { space, d, at, a, b, bytes: kind.bytes(), f });
        Ok(())
    }

    fn copy_async(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        m.want("async")?;
        if m.take("commit_group") {
            let [] = self.operands(operands)?;
            self.push(Op::Commit);
            return Ok(());
        }
        if m.take("wait_all") {
            let [] = self.operands(operands)?;
            self.push(Op::Commit);
            self.push(Op::Wait { groups: 0 });
            return Ok(());
        }
        if m.take("wait_group") {
            let [Operand::Int(groups)] = self.operands(operands)? else {
                return Err("a number is wanted".into());
            };
            self.push(Op::Wait { groups: u32::try_from(*groups).map_err(|_| "too many groups".to_owned())? });
            return Ok(());
        }
        let cache = m.one_of(&["ca", "cg"]).ok_or("modifier .ca or .cg is missing")?;
        self.shared_word(m)?;
        m.want("global")?;
        m.one_of(&["L2::64B", "L2::128B", "L2::256B"]);
        let (to, from, bytes, have) = match operands {
            [to, from, Operand::Int(bytes)] => (to, from, bytes, None),
            [to, from, Operand::Int(bytes), have] => (to, from, bytes, Some(self.value(have, U(4))?)),
            _ => return Err("the bytes of cp.async are a number".into()),
        };
        let bytes = match (cache, bytes) {
            (_, 16) => 16,
            ("ca", 4) => 4,
            ("ca", 8) => 8,
            _ => return Err(format!("cp.async.{cache} of {bytes} bytes")),
        };
        let (to, from) = (self.address(to, &["shared"])?, self.address(from, &["data"])?);
        self.grain(Space::Shared, bytes);
        self.push(Op::CopyAsync { to, from, bytes, have });
        Ok(())
    }
}

type Atomic = fn(u64, u64, u64) -> u64;

/// What an atomic makes of the old value and its operands.
fn atomic_of(op: &str, kind: Type) -> Option<Atomic> {
    fn add<T: Float>(a: u64, b: u64) -> u64 {
        T::near(T::of(a).wide() + T::of(b).wide()).bits()
    }
    fn pair<T: Float>(a: u64, b: u64) -> u64 {
        add::<T>(a & 0xffff, b & 0xffff) | add::<T>(a >> 16, b >> 16) << 16
    }
    Some(match (op, kind) {
        ("add", U(4) | S(4)) => |a, b, _| (a as u32).wrapping_add(b as u32).into(),
        ("add", U(8)) => |a, b, _| a.wrapping_add(b),
        ("add", F32) => |a, b, _| add::<f32>(a, b),
        ("add", F64) => |a, b, _| add::<f64>(a, b),
        ("add", F16) => |a, b, _| add::<f16>(a, b),
        ("add", BF16) => |a, b, _| add::<bf16>(a, b),
        ("add", F16x2) => |a, b, _| pair::<f16>(a, b),
        ("add", BF16x2) => |a, b, _| pair::<bf16>(a, b),
        ("min", U(4) | U(8)) => |a, b, _| a.min(b),
        ("max", U(4) | U(8)) => |a, b, _| a.max(b),
        ("min", S(4)) => |a, b, _| (a as i32).min(b as i32) as u32 as u64,
        ("max", S(4)) => |a, b, _| (a as i32).max(b as i32) as u32 as u64,
        ("min", S(8)) => |a, b, _| (a as i64).min(b as i64) as u64,
        ("max", S(8)) => |a, b, _| (a as i64).max(b as i64) as u64,
        ("and", B(4) | B(8)) => |a, b, _| a & b,
        ("or", B(4) | B(8)) => |a, b, _| a | b,
        ("xor", B(4) | B(8)) => |a, b, _| a ^ b,
        ("exch", B(4) | B(8)) => |_, b, _| b,
        ("cas", B(2) | B(4) | B(8)) => |a, b, c| if a == b { c } else { a },
        ("inc", U(4)) => |a, b, _| if a >= b { 0 } else { a + 1 },
        ("dec", U(4)) => |a, b, _| if a == 0 || a > b { b } else { a - 1 },
        _ => return None,
    })
}
