//! Products of a warpgroup. (PTX ISA 8.7, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".)

use super::{Decoded, Decoder, Modifiers};
use crate::ptx::code::{Half, Op, Wgmma};
use crate::ptx::syntax::Operand;
use crate::ptx::types::Type::{B, F32, Pred};

impl Decoder<'_> {
    /// Decodes one of these, or the fence that shared memory needs before them; `false`: it is none.
    pub(super) fn wgmma(&mut self, name: &str, m: &mut Modifiers, operands: &[Operand]) -> Decoded<bool> {
        if name == "fence" && m.take("proxy") {
            m.want("async")?;
            m.want("shared::cta")?;
            if matches!(self.target, "sm_70" | "sm_75" | "sm_80" | "sm_86" | "sm_87" | "sm_89") {
                return Err(format!("{} has no asynchronous proxy", self.target));
            }
            let [] = self.operands(operands)?;
            self.push(Op::ProxyFence);
            return Ok(true);
        }
        if name != "wgmma" {
            return Ok(false);
        }
        if self.target != "sm_90a" {
            return Err(format!("{} has no wgmma, only sm_90a has", self.target));
        }
        let which = m.one_of(&["fence", "commit_group", "wait_group", "mma_async"]);
        let which = which.ok_or("unknown instruction of wgmma")?;
        m.want("sync")?;
        m.want("aligned")?;
        match which {
            "fence" => {
                let [] = self.operands(operands)?;
                self.push(Op::WgmmaFence);
            }
            "commit_group" => {
                let [] = self.operands(operands)?;
                self.push(Op::WgmmaCommit);
            }
            "wait_group" => {
                let [Operand::Int(groups)] = self.operands(operands)? else {
                    return Err("a number is wanted".into());
                };
                let groups = u32::try_from(*groups).map_err(|_| "too many groups".to_owned())?;
                self.push(Op::WgmmaWait { groups });
            }
            _ => self.product_async(m, operands)?,
        }
        Ok(true)
    }

    /// `.m64nNk16.f32.T.T d, a-desc, b-desc, scale-d, imm-scale-a, imm-scale-b, imm-trans-a, imm-trans-b` of 16-bit floats.
    fn product_async(&mut self, m: &mut Modifiers, operands: &[Operand]) -> Decoded<()> {
        let shape = m.beginning("m64n").ok_or("unknown shape of wgmma")?;
        let n = shape.strip_prefix("m64n").and_then(|s| s.strip_suffix("k16")).and_then(|n| n.parse().ok());
        let n = n
            .filter(|n: &u32| (8..=256).contains(n) && n.is_multiple_of(8))
            .ok_or("unknown shape of wgmma")?;
        m.want("f32")?;
        let half = match m.one_of(&["f16", "bf16"]) {
            Some("f16") => Half::F16,
            Some(_) => Half::BF16,
            None => return Err("unknown type of wgmma".into()),
        };
        m.want(if half == Half::F16 { "f16" } else { "bf16" })?;
        let [d, a, b, adds, rest @ ..] = operands else { return Err("too few operands".into()) };
        let [negative_a, negative_b, transposed_a, transposed_b] = self.operands(rest)?;
        let negative = |operand: &Operand| match operand {
            Operand::Int(1) => Ok(false),
            Operand::Int(u64::MAX) => Ok(true),
            _ => Err("a factor is 1 or -1"),
        };
        let transposed = |operand: &Operand| match operand {
            Operand::Int(0) => Ok(false),
            Operand::Int(1) => Ok(true),
            _ => Err("an order is 0 or 1"),
        };
        let wgmma = Wgmma {
            n,
            half,
            d: self.results(d, F32)?.into(),
            descriptors: [self.register_of(a)?, self.register_of(b)?],
            adds: self.value(adds, Pred)?,
            negative: [negative(negative_a)?, negative(negative_b)?],
            transposed: [transposed(transposed_a)?, transposed(transposed_b)?],
        };
        if wgmma.d.len() as u32 != n / 2 {
            return Err(format!("{} sums of wgmma with n = {n}", wgmma.d.len()));
        }
        if (1..wgmma.d.len()).any(|i| wgmma.d[..i].contains(&wgmma.d[i])) {
            return Err("two sums in one register".into());
        }
        self.push(Op::Wgmma(Box::new(wgmma)));
        Ok(())
    }

    fn register_of(&mut self, operand: &Operand) -> Decoded<u32> {
        match operand {
            Operand::Name(_) => self.value(operand, B(8)),
            _ => Err("a descriptor is a register".into()),
        }
    }
}
