//! Attention instructions: the same attention as the local function's, over the same values.

use super::super::expect::Attends;
use super::super::fault;
use super::super::memory::Roots;
use super::{Reach, Run};
use pcc_ir::program::{AttentionCall, Loc, Strided};
use pcc_ir::{DType, Diagnostic, Extent, Type};

impl Run<'_> {
    pub(super) fn attention(&mut self, at: usize, call: &AttentionCall) -> Result<(), Diagnostic> {
        let Some(wanted) = self.expected.attentions.get(self.attentions).cloned() else {
            return Err(self.wrong(at, "is an attention that the function does not have"));
        };
        self.attentions += 1;
        let value = fault::value(self.func, wanted.value);
        if let Err(why) = same_attention(call, &wanted, self.func.ty(wanted.value)) {
            return Err(self.wrong(at, format!("should make {value}, but is another attention")).why(why));
        }
        let keys = call.t.clip.as_deref();
        let promised = || self.is_masked() && wanted.keys.as_ref() == keys;
        let heads = call.d.clip.is_some();
        if keys.is_some() && !promised() || heads {
            return Err(self.wrong(at, format!("should make {value}, but leaves out keys or parts of heads")));
        }
        let out = self.strided(at, call, &call.out, call.made())?;
        let scratch = call.scratch.map(|loc| self.scratch(at, call, loc)).transpose()?;
        let mut written: Vec<&Reach> = vec![&out];
        written.extend(&scratch);
        let clash = |x: &Reach, y: &Reach| x.buffer == y.buffer && x.at.meets(&y.at);
        if scratch.as_ref().is_some_and(|s| clash(s, &out)) {
            return Err(self.wrong(at, "writes its result over what it is made of"));
        }
        for (name, view, extents) in call.reads() {
            let reach = self.strided(at, call, view, extents)?;
            if written.iter().any(|w| clash(w, &reach)) {
                return Err(self.wrong(at, format!("writes over its {name}")));
            }
            let held = self.read(at, &reach)?;
            let Some((roots, _)) = wanted.operands.get(position(name)) else { continue };
            if !roots.met_by(&held) {
                let why = self.difference(name, &held, roots);
                let message = format!("should make {value}, but attends over other values");
                return Err(self.wrong(at, message).why(why));
            }
        }
        let made = Roots::one(wanted.result);
        if let Some(scratch) = &scratch {
            // Read again before the instruction ends.
            self.write(at, scratch, &made, None)?;
            self.read(at, scratch)?;
        }
        self.write(at, &out, &made, None)
    }

    fn strided(
        &self,
        at: usize,
        call: &AttentionCall,
        view: &Strided,
        extents: Vec<&Extent>,
    ) -> Result<Reach, Diagnostic> {
        if view.strides.len() != extents.len() {
            return Err(self.wrong(at, "has an operand of another rank"));
        }
        let steps: Vec<(Extent, i64)> =
            extents.into_iter().cloned().zip(view.strides.iter().copied()).collect();
        self.reach(at, view.loc, view.dtype.bytes(), &steps, &call.extents())
    }

    fn scratch(&self, at: usize, call: &AttentionCall, loc: Loc) -> Result<Reach, Diagnostic> {
        let floats = call.scratch_bytes().and_then(|n| i64::try_from(n / 4).ok());
        let floats = floats.ok_or_else(|| self.wrong(at, "has scratch too large"))?;
        self.reach(at, loc, DType::F32.bytes(), &[(Extent::full(floats as u64), 1)], &call.extents())
    }
}

/// Which operand of the op a name stands for.
fn position(name: &str) -> usize {
    ["q", "k", "v", "q_pos", "k_pos", "slopes"].iter().position(|n| *n == name).unwrap_or(usize::MAX)
}

fn whole(extents: &[&Extent]) -> Vec<u64> {
    extents.iter().map(|e| e.full).collect()
}

fn same_attention(call: &AttentionCall, wanted: &Attends<'_>, out: &Type) -> Result<(), String> {
    let op = wanted.op;
    let attributes = (call.scale, call.causal, call.window, call.softcap, call.bf16_bias);
    let expected = (op.scale, op.causal, op.window.map(|w| w as u64), op.softcap, op.bf16_bias);
    if attributes != expected {
        return Err(format!(
            "scale, causal, window, softcap and bf16_bias are {attributes:?} instead of {expected:?}"
        ));
    }
    if call.q_pos.is_some() != wanted.looks || call.slopes.is_some() != (wanted.operands.len() > 5) {
        return Err("it has an operand too many or too few".to_owned());
    }
    let is = |view: &Strided, extents: &[&Extent], ty: &Type| {
        view.dtype == ty.dtype && extents.iter().map(|n| n.full as usize).eq(ty.shape.iter().copied())
    };
    for (name, view, extents) in call.reads() {
        match wanted.operands.get(position(name)) {
            Some((_, ty)) if is(view, &extents, ty) => {}
            _ => return Err(format!("{name} is {}{:?}", view.dtype, whole(&extents))),
        }
    }
    match is(&call.out, &call.made(), out) {
        true => Ok(()),
        false => Err(format!("its result is {}{:?}", call.out.dtype, whole(&call.made()))),
    }
}
