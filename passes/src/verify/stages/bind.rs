//! One call: the function that is next in the chain, its slots the values it takes and gives.

use super::super::fault;
use super::super::instrs::{Given, reads};
use super::{Held, Number, Place, Proofs, Walk, overlap};
use pcc_ir::program::{FuncProgram, IoSpec, LocalParam, PackedMatrix, Program, Slot, Storage};
use pcc_ir::repeat::ChainCall;
use pcc_ir::{DType, Diagnostic, FuncId, Type};

impl<'a> Walk<'a> {
    pub(super) fn call(
        &mut self,
        place: &Place<'_>,
        held: &mut Held,
        proofs: &mut Proofs<'a>,
        (index, slots, layer): (u32, &[Slot], Option<u32>),
    ) -> Result<(), Diagnostic> {
        let program: &'a Program = self.program;
        let Some(code) = program.funcs.get(index as usize) else {
            let next = self.next_made();
            return Err(
                place.wrong(format!("calls function {index} of the program, which does not exist; {next}"))
            );
        };
        if slots.len() != code.slot_bytes.len() {
            let (have, want, next) = (slots.len(), code.slot_bytes.len(), self.next_made());
            return Err(
                place.wrong(format!("binds {have} slots of `{}`, which has {want}; {next}", code.name))
            );
        }
        let wanted = self.chain.calls.get(self.next_call);
        let given = wanted.map_or_else(Given::new, |c| self.given(c));
        if layer.is_none()
            && let (Some(&from), Some(&to)) = (slots.first(), slots.get(1))
            && code.args == 1
            && code.results == 1
            && wanted.is_none_or(|c| proofs.call(c.func, index, code, &given).is_err())
        {
            return self.copy(place, held, proofs, (index, code, from, to));
        }
        let Some(call) = wanted else {
            return Err(place.wrong(format!("calls `{}`, but {}", code.name, self.next_made())));
        };
        let id = call.func;
        let proof = proofs.call(id, index, code, &given);
        if let Err(why) = proof {
            let callee = &self.local.funcs[id].name;
            if code.name == *callee {
                return Err(why.clone());
            }
            let name = self.made_by(call);
            let what = format!("calls `{}` where `{callee}` is to make {name}", code.name);
            return Err(place.wrong(what).why(why.what.clone()));
        }
        let made = proof.as_ref().map_or_else(|_| Vec::new(), |p| p.results.clone());
        self.leaves_out(call, made);
        self.check_layer(place, call, layer)?;
        self.next_call += 1;
        let args = code.args as usize;
        for (i, (&v, &slot)) in self.chain.args_of(call).iter().zip(slots).enumerate() {
            if !self.holds(held, slot, v) {
                return Err(self.misbound(place, held, call, (i, v, slot)));
            }
            let taken = proofs.packed(index, code, i);
            self.check_form(place, id, (i, slot), taken)?;
        }
        for (k, &slot) in slots.iter().skip(args + code.results as usize).enumerate() {
            let right = matches!(slot, Slot::Const(c) if proofs.constant((id, index), k, c));
            if !right {
                let made = self.made_by(call);
                let what =
                    format!("binds another constant than `{}` lists as its {k}th to make {made}", code.name);
                return Err(place.wrong(what));
            }
        }
        self.results(place, held, code, (call, slots))
    }

    fn param(&self, slot: Slot) -> Option<&'a LocalParam> {
        let Slot::Param(number) = slot else { return None };
        let (row, _) = self.tables.params.origin(number)?;
        self.program.params.get(row as usize)
    }

    /// A parameter is held in the form in which the function takes it, and that is what the function's ops read.
    fn check_form(
        &self,
        place: &Place<'_>,
        id: FuncId,
        (i, slot): (usize, Slot),
        taken: Option<(PackedMatrix, DType)>,
    ) -> Result<(), Diagnostic> {
        let callee = &self.local.funcs[id];
        let arg = callee.args[i];
        let param = self.param(slot);
        let ty = callee.ty(arg);
        let held = param.and_then(|p| Some((p.storage.matrix(&ty.shape)?, ty.dtype)));
        let sound = param.is_none_or(|p| {
            p.storage.check(&p.ty, &p.source, &ty.shape).is_ok() && reads(callee, arg, &p.storage)
        });
        if held == taken && sound {
            return Ok(());
        }
        let name = fault::value(callee, arg);
        let bound = self.describe(slot);
        Err(place
            .wrong(format!("binds {name} of `{}` to {bound}, which is held in another form", callee.name)))
    }

    /// Layers are numbered along the chain.
    fn check_layer(
        &mut self,
        place: &Place<'_>,
        call: &ChainCall,
        layer: Option<u32>,
    ) -> Result<(), Diagnostic> {
        match layer {
            None => Ok(()),
            Some(n) if n == self.next_layer => {
                self.next_layer += 1;
                Ok(())
            }
            Some(n) => {
                let name = self.made_by(call);
                Err(place.wrong(format!("makes {name} as layer {n} where layer {} is next", self.next_layer)))
            }
        }
    }

    /// Why an argument's slot is wrong.
    fn misbound(
        &self,
        place: &Place<'_>,
        held: &Held,
        call: &ChainCall,
        (i, v, slot): (usize, Number, Slot),
    ) -> Diagnostic {
        let made = self.made_by(call);
        let name = self.name(v);
        let bound = self.describe(slot);
        let here = match slot {
            Slot::Value(_) | Slot::State(_) | Slot::Output(_) => {
                match self.content(place, held, slot, &|| name.clone()) {
                    Ok(other) if other != v => format!(", which holds {}", self.name(other)),
                    Ok(_) => ", which holds only a part of it".to_owned(),
                    Err(_) => ", which holds no value there".to_owned(),
                }
            }
            _ => String::new(),
        };
        let mut d = place
            .wrong(format!(
                "binds argument {i} of the call that makes {made} to {bound}{here}; it should be {name}"
            ))
            .at(format!("{}, entry `{}`", self.place_of(call), self.entry.name));
        if let Some(&by) = held.lost.get(&v) {
            d = d.why(format!("{name} was overwritten by {}", self.name(by)));
        }
        d
    }

    /// Binds results: in-place ones stay where they are, others go to places that the call does not read.
    fn results(
        &self,
        place: &Place<'_>,
        held: &mut Held,
        code: &FuncProgram,
        (call, slots): (&ChainCall, &[Slot]),
    ) -> Result<(), Diagnostic> {
        let args = code.args as usize;
        for (r, (&v, &slot)) in self.chain.results_of(call).iter().zip(slots.iter().skip(args)).enumerate() {
            let name = || self.name(v);
            let partner =
                code.in_place.iter().find(|p| p.1 as usize == args + r).and_then(|p| slots.get(p.0 as usize));
            if let Some(&partner) = partner {
                let state = matches!(slot, Slot::State(_));
                let shared = slots.iter().filter(|&&s| s == slot).count() > 2;
                if slot != partner || !state || shared {
                    let (a, b) = (self.describe(partner), self.describe(slot));
                    return Err(place.wrong(format!(
                        "updates {} in place, but takes it from {a} and puts it into {b}",
                        name()
                    )));
                }
                held.fixed.insert(slot, v);
                continue;
            }
            let others = slots.iter().zip(&code.slot_bytes).enumerate().filter(|(i, _)| *i != args + r);
            let bytes = self.bytes[v as usize];
            if let Some((i, _)) = others.into_iter().find(|(_, (s, b))| overlap((slot, bytes), (**s, **b))) {
                let what = if i < args { "an argument" } else { "another result" };
                return Err(place.wrong(format!("puts {} over {what} of the same call", name())));
            }
            let shared = code.shared.contains(&((args + r) as u32));
            let among = match slot {
                Slot::Value(offset) => place.is_among(offset, bytes, shared),
                _ => !shared,
            };
            if !among {
                let (name, to) = (name(), self.describe(slot));
                let what = if shared { "made once for all devices of a team" } else { "made by each device" };
                return Err(place.wrong(format!("puts {name}, which is {what}, into {to}")));
            }
            match slot {
                Slot::Value(offset) => self.put(place, held, offset, v)?,
                Slot::Output(_) | Slot::State(_) => {
                    let room = self.room(slot);
                    if room != Some(bytes) {
                        let to = self.describe(slot);
                        return Err(place.wrong(format!("puts {}, of {bytes} bytes, into {to}", name())));
                    }
                    held.fixed.insert(slot, v);
                }
                _ => {
                    return Err(place.wrong(format!("writes {} into {}", name(), self.describe(slot))));
                }
            }
        }
        Ok(())
    }

    /// Bytes of a state or output.
    fn room(&self, slot: Slot) -> Option<u64> {
        let bytes = |ty: &Type, s: &pcc_ir::Sharding| s.local_type(ty).bytes() as u64;
        match slot {
            Slot::Output(o) => {
                self.made.outputs.get(o as usize).map(|IoSpec { ty, sharding, .. }| bytes(ty, sharding))
            }
            Slot::State(s) => self.tables.state(self.program, s).map(|(s, _)| bytes(&s.ty, &s.sharding)),
            _ => None,
        }
    }

    /// A copy of a value into an output or state.
    fn copy(
        &self,
        place: &Place<'_>,
        held: &mut Held,
        proofs: &mut Proofs<'a>,
        (index, code, from, to): (u32, &FuncProgram, Slot, Slot),
    ) -> Result<(), Diagnostic> {
        let value = self.content(place, held, from, &|| format!("a copy where {}", self.next_made()))?;
        let name = self.name(value);
        let ty = self.func.ty(self.chain.origins[value as usize]);
        if self.param(from).is_some_and(|p| p.storage != Storage::Dense) {
            return Err(place.wrong(format!("copies {name}, which is held in panels, as if it were dense")));
        }
        if !proofs.is_copy(index, code, ty) {
            let next = self.chain.calls.get(self.next_call).map(|c| c.func);
            if let Some(id) = next.filter(|&id| self.local.funcs[id].name == code.name)
                && let Err(why) = proofs.call(id, index, code, &Given::new())
            {
                return Err(why.clone());
            }
            let next = self.next_made();
            return Err(place.wrong(format!("calls `{}` on {name}, which is no copy; {next}", code.name)));
        }
        if !code.shared.is_empty() {
            return Err(place.wrong(format!("copies {name} once for all devices of a team, not on each")));
        }
        if self.room(to) != Some(ty.bytes() as u64) || from == to {
            return Err(place.wrong(format!("copies {name} into {}", self.describe(to))));
        }
        held.fixed.insert(to, value);
        Ok(())
    }
}
