//! Control flow, barriers, exchange between lanes, matrix products. (PTX ISA 8.7.)

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{Half, Op, ShuffleMode, Slot, VoteMode};
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{B, F32, Pred, S, U};

impl Decoder<'_> {
    /// Decodes one of these; `false`: it is none.
    pub(super) fn control(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        match name {
            "bra" => {
                let uniform = m.take("uni");
                let [Operand::Name(label)] = self.operands(operands)? else {
                    return Err("a label is wanted".into());
                };
                let to = self.names.target(label);
                self.push(Op::Branch { to, uniform });
            }
            "brx" => {
                m.want("idx")?;
                m.take("uni");
                let [index, Operand::Name(list)] = self.operands(operands)? else {
                    return Err("a list is wanted".into());
                };
                let index = self.value(index, U(4))?;
                let to = self.names.list(list)?.iter().map(|label| self.names.target(label)).collect();
                self.push(Op::Table { index, to });
            }
            "ret" | "exit" => {
                if name == "ret" {
                    m.take("uni");
                }
                let [] = self.operands(operands)?;
                self.push(Op::Exit);
            }
            "trap" => {
                let [] = self.operands(operands)?;
                self.push(Op::Trap);
            }
            "bar" | "barrier" => self.barrier(name, m, operands)?,
            "membar" => {
                m.one_of(&["cta", "gl", "sys"]).ok_or("unknown scope")?;
                self.push(Op::Fence);
            }
            "fence" => {
                m.one_of(&["sc", "acq_rel", "acquire", "release"]);
                m.one_of(&["cta", "cluster", "gpu", "sys"]).ok_or("unknown scope")?;
                self.push(Op::Fence);
            }
            "shfl" => self.shuffle(m, operands)?,
            "vote" => self.vote(m, operands)?,
            "match" => self.same_value(m, operands)?,
            "redux" => self.reduce(m, operands)?,
            "activemask" => {
                m.want("b32")?;
                let [d] = self.operands(operands)?;
                let d = self.result(d, B(4))?;
                self.push(Op::ActiveMask { d });
            }
            "mma" => self.mma(m, operands)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        if name == "bar" && m.take("warp") {
            m.want("sync")?;
            let [mask] = self.operands(operands)?;
            let mask = self.value(mask, B(4))?;
            self.push(Op::WarpSync { mask });
            return Ok(());
        }
        m.take("cta");
        let waits = match m.one_of(&["sync", "arrive"]) {
            Some(word) => word == "sync",
            None => return Err("modifier .sync or .arrive is missing".into()),
        };
        if name == "barrier" {
            // Without it, threads of a warp might arrive one by one, which no kernel here needs.
            m.want("aligned")?;
        }
        let (id, threads) = match operands {
            [id] if waits => (id, None),
            [id, threads] => (id, Some(self.value(threads, U(4))?)),
            _ => return Err(format!("{} operands", operands.len())),
        };
        let id = self.value(id, U(4))?;
        self.push(Op::Barrier { id, threads, waits });
        Ok(())
    }

    fn shuffle(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        m.want("sync")?;
        let mode = match m.one_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => ShuffleMode::Up,
            Some("down") => ShuffleMode::Down,
            Some("bfly") => ShuffleMode::Butterfly,
            Some(_) => ShuffleMode::Index,
            None => return Err("unknown mode of shfl".into()),
        };
        m.want("b32")?;
        let [d, a, b, c, mask] = self.operands(operands)?;
        let (a, b, c) = (self.value(a, B(4))?, self.value(b, B(4))?, self.value(c, B(4))?);
        let mask = self.value(mask, B(4))?;
        let (d, p) = self.pair(d)?;
        self.push(Op::Shuffle { mode, d, p, a, b, c, mask });
        Ok(())
    }

    /// `d` or `d|p`.
    fn pair(&mut self, operand: &Operand) -> Decoded<(Slot, Option<Slot>)> {
        match operand {
            Operand::Pair(d, p) => {
                let d = self.result(&Operand::Name(d.clone()), B(4))?;
                Ok((d, Some(self.result(&Operand::Name(p.clone()), Pred)?)))
            }
            _ => Ok((self.result(operand, B(4))?, None)),
        }
    }

    fn vote(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        m.want("sync")?;
        let (mode, to) = match m.one_of(&["all", "any", "uni", "ballot"]) {
            Some("all") => (VoteMode::All, Pred),
            Some("any") => (VoteMode::Any, Pred),
            Some("uni") => (VoteMode::Uniform, Pred),
            Some(_) => (VoteMode::Ballot, B(4)),
            None => return Err("unknown mode of vote".into()),
        };
        m.kind_of(&[to])?;
        let [d, p, mask] = self.operands(operands)?;
        let (p, negated) = match p {
            Operand::Not(name) => (self.value(&Operand::Name(name.clone()), Pred)?, true),
            _ => (self.value(p, Pred)?, false),
        };
        let mask = self.value(mask, B(4))?;
        let d = self.result(d, to)?;
        self.push(Op::Vote { mode, d, p, negated, mask });
        Ok(())
    }

    fn same_value(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let all = match m.one_of(&["any", "all"]) {
            Some(word) => word == "all",
            None => return Err("unknown mode of match".into()),
        };
        m.want("sync")?;
        let kind = m.kind_of(&[B(4), B(8)])?;
        let [d, a, mask] = self.operands(operands)?;
        let (a, mask) = (self.value(a, kind)?, self.value(mask, B(4))?);
        let (d, p) = self.pair(d)?;
        if p.is_some() && !all {
            return Err("match.any has one result".into());
        }
        self.push(Op::Match { d, a, all, p, mask });
        Ok(())
    }

    fn reduce(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        m.want("sync")?;
        let op = m.one_of(&["add", "min", "max", "and", "or", "xor"]).ok_or("unknown mode of redux")?;
        let kind = m.kind_of(&[B(4), U(4), S(4)])?;
        let f: fn(u32, u32) -> u32 = match (op, kind) {
            ("add", U(4) | S(4)) => u32::wrapping_add,
            ("min", U(4)) => |a, b| a.min(b),
            ("max", U(4)) => |a, b| a.max(b),
            ("min", S(4)) => |a, b| (a as i32).min(b as i32) as u32,
            ("max", S(4)) => |a, b| (a as i32).max(b as i32) as u32,
            ("and", B(4)) => |a, b| a & b,
            ("or", B(4)) => |a, b| a | b,
            ("xor", B(4)) => |a, b| a ^ b,
            _ => return Err(format!("redux .{op} of {kind:?}")),
        };
        let [d, a, mask] = self.operands(operands)?;
        let (a, mask) = (self.value(a, kind)?, self.value(mask, B(4))?);
        let d = self.result(d, kind)?;
        self.push(Op::Reduce { f, d, a, mask });
        Ok(())
    }

    /// `mma.sync` of bf16 or f16 with f32 sums: m16n8k16 and m16n8k8.
    fn mma(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        m.want("sync")?;
        m.want("aligned")?;
        let k = match m.one_of(&["m16n8k16", "m16n8k8"]) {
            Some("m16n8k16") => 16,
            Some(_) => 8,
            None => return Err("unknown shape of mma".into()),
        };
        for word in ["row", "col", "f32"] {
            m.want(word)?;
        }
        let half = match m.one_of(&["f16", "bf16"]) {
            Some("f16") => Half::F16,
            Some(_) => Half::BF16,
            None => return Err("unknown type of mma".into()),
        };
        m.want(if half == Half::F16 { "f16" } else { "bf16" })?;
        m.want("f32")?;
        let [d, a, b, c] = self.operands(operands)?;
        let (a, b) = (self.values(a, B(4))?, self.values(b, B(4))?);
        let c = self.values(c, F32)?;
        let d = self.results(d, F32)?;
        if a.len() != k / 4 || b.len() != k / 8 {
            return Err(format!("fragments of {} and {} registers", a.len(), b.len()));
        }
        let four = |slots: Vec<Slot>| <[Slot; 4]>::try_from(slots).map_err(|s| format!("{} sums", s.len()));
        self.push(Op::Mma { d: four(d)?, a: a.into(), b: b.into(), c: four(c)?, half });
        Ok(())
    }
}
