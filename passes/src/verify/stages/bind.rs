//! One call: the function that is next in the chain, its slots the values it takes and gives.

use super::super::fault;
use super::super::instrs::Given;
use super::{Held, Number, Place, Proofs, Walk, overlap};
use pcc_ir::program::{FuncProgram, IoSpec, Program, Slot, Storage};
use pcc_ir::repeat::ChainCall;
use pcc_ir::{Diagnostic, Type};

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
        let made = proof.as_ref().map_or(&[][..], |p| &p.results);
        self.leaves_out(call, made);
        self.check_layer(place, call, layer)?;
        self.next_call += 1;
        let args = code.args as usize;
        for (i, (&v, &slot)) in self.chain.args_of(call).iter().zip(slots).enumerate() {
            if !self.holds(place, held, slot, v) {
                return Err(self.misbound(place, held, call, (i, v, slot)));
            }
            let row = self.row(slot);
            if !proofs.is_held_as_taken((id, index), i, row) {
                let callee = &self.local.funcs[id];
                let (name, bound) = (fault::value(callee, callee.args[i]), self.describe(slot));
                return Err(place.wrong(format!(
                    "binds {name} of `{}` to {bound}, which is held in another form",
                    callee.name
                )));
            }
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
        self.results(place, held, proofs, (index, code), (call, slots))
    }

    /// The row of a parameter in the program's table.
    fn row(&self, slot: Slot) -> Option<u32> {
        let Slot::Param(number) = slot else { return None };
        self.tables.params.origin(number).map(|(row, _)| row)
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
        if let Some(by) = self.lost.get(v, place.stage as u32) {
            d = d.why(format!("{name} was overwritten by {}", self.name(by)));
        }
        d
    }

    /// Binds results: in-place ones stay where they are, others go to places that the call does not read.
    fn results(
        &mut self,
        place: &Place<'_>,
        held: &mut Held,
        proofs: &Proofs<'a>,
        (index, code): (u32, &FuncProgram),
        (call, slots): (&ChainCall, &[Slot]),
    ) -> Result<(), Diagnostic> {
        let args = code.args as usize;
        let all_apart = slots.len() > FEW && all_apart(slots, code);
        for (r, (&v, &slot)) in self.chain.results_of(call).iter().zip(slots.iter().skip(args)).enumerate() {
            let name = || self.name(v);
            let partner = proofs.partner(index, r).and_then(|a| slots.get(a));
            if let Some(&partner) = partner {
                let state = matches!(slot, Slot::State(_));
                let shared = !all_apart && slots.iter().filter(|&&s| s == slot).count() > 2;
                if slot != partner || !state || shared {
                    let (a, b) = (self.describe(partner), self.describe(slot));
                    return Err(place.wrong(format!(
                        "updates {} in place, but takes it from {a} and puts it into {b}",
                        name()
                    )));
                }
                self.hold(place, held, slot, v);
                continue;
            }
            let bytes = self.bytes[v as usize];
            let mut others = slots.iter().zip(&code.slot_bytes).enumerate().filter(|(i, _)| *i != args + r);
            let over = |(_, (s, b)): &(usize, (&Slot, &u64))| overlap((slot, bytes), (**s, **b));
            if !all_apart && let Some((i, _)) = others.find(over) {
                let what = if i < args { "an argument" } else { "another result" };
                return Err(place.wrong(format!("puts {} over {what} of the same call", name())));
            }
            let shared = proofs.is_shared(index, r);
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
                    self.hold(place, held, slot, v);
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
        &mut self,
        place: &Place<'_>,
        held: &mut Held,
        proofs: &mut Proofs<'a>,
        (index, code, from, to): (u32, &FuncProgram, Slot, Slot),
    ) -> Result<(), Diagnostic> {
        let value = self.content(place, held, from, &|| format!("a copy where {}", self.next_made()))?;
        let name = || self.name(value);
        let ty = self.func.ty(self.chain.origins[value as usize]);
        let param = self.row(from).and_then(|row| self.program.params.get(row as usize));
        if param.is_some_and(|p| p.storage != Storage::Dense) {
            let name = name();
            return Err(place.wrong(format!("copies {name}, which is held in panels, as if it were dense")));
        }
        if !proofs.is_copy(index, code, ty) {
            let next = self.chain.calls.get(self.next_call).map(|c| c.func);
            if let Some(id) = next.filter(|&id| self.local.funcs[id].name == code.name)
                && let Err(why) = proofs.call(id, index, code, &Given::new())
            {
                return Err(why.clone());
            }
            let (name, next) = (name(), self.next_made());
            return Err(place.wrong(format!("calls `{}` on {name}, which is no copy; {next}", code.name)));
        }
        if !code.shared.is_empty() {
            let name = name();
            return Err(place.wrong(format!("copies {name} once for all devices of a team, not on each")));
        }
        if self.room(to) != Some(ty.bytes() as u64) || from == to {
            return Err(place.wrong(format!("copies {} into {}", name(), self.describe(to))));
        }
        self.hold(place, held, to, value);
        Ok(())
    }
}

/// Slots that are compared one with another; more are sorted.
const FEW: usize = 48;

/// Whether no two slots of a call share bytes, but for arguments and the results that are these updated in place; no answer for lists
/// that name one of them twice.
fn all_apart(slots: &[Slot], code: &FuncProgram) -> bool {
    let mut in_place = vec![false; slots.len()];
    for place in code.in_place.iter().flat_map(|&(a, r)| [a, r]) {
        if in_place.get_mut(place as usize).is_none_or(|known| std::mem::replace(known, true)) {
            return false;
        }
    }
    code.in_place.iter().for_each(|&(a, _)| in_place[a as usize] = false);
    let mut ends: Vec<(u8, u64, u64)> = slots
        .iter()
        .zip(&code.slot_bytes)
        .zip(in_place)
        .filter(|(_, in_place)| !in_place)
        .map(|((slot, bytes), _)| match *slot {
            Slot::Param(i) => (0, u64::from(i), u64::from(i) + 1),
            Slot::State(i) => (1, u64::from(i), u64::from(i) + 1),
            Slot::Input(i) => (2, u64::from(i), u64::from(i) + 1),
            Slot::Output(i) => (3, u64::from(i), u64::from(i) + 1),
            Slot::Const(i) => (4, u64::from(i), u64::from(i) + 1),
            Slot::Value(offset) => (5, offset, offset.saturating_add(*bytes)),
        })
        .collect();
    ends.sort_unstable();
    ends.windows(2).all(|w| w[0].0 != w[1].0 || w[0].2 <= w[1].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of random slots: whatever is said to be apart is apart by comparing all pairs.
    #[test]
    fn sorted_slots_are_apart_as_compared_ones_are() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let (mut apart, mut not) = (0, 0);
        for _ in 0..20_000 {
            let n = 2 + random(5) as usize;
            let mut slots: Vec<Slot> = (0..n)
                .map(|_| match random(5) {
                    0 => Slot::State(random(3) as u32),
                    1 => Slot::Output(random(9) as u32),
                    _ => Slot::Value(64 * random(20)),
                })
                .collect();
            let mut slot_bytes: Vec<u64> = (0..n).map(|_| 1 + random(200)).collect();
            let args = 1 + random(n as u64 - 1) as u32;
            let pairs = random(3);
            let pair = |_| (random(args.into()) as u32, args + random(n as u64 - u64::from(args)) as u32);
            let in_place: Vec<(u32, u32)> = (0..pairs).map(pair).collect();
            // Others are refused before.
            for &(a, r) in in_place.iter().rev() {
                (slots[r as usize], slot_bytes[r as usize]) = (slots[a as usize], slot_bytes[a as usize]);
            }
            let code = FuncProgram { slot_bytes, args, in_place, ..FuncProgram::default() };
            let of = |i: usize| (slots[i], code.slot_bytes[i]);
            let all = (0..n).flat_map(|j| (0..j).map(move |i| (i, j)));
            let mut shared = all.filter(|&(i, j)| overlap(of(i), of(j)));
            match all_apart(&slots, &code) {
                true => {
                    apart += 1;
                    let pair = |(i, j): (usize, usize)| code.in_place.contains(&(i as u32, j as u32));
                    assert!(shared.all(pair), "{slots:?} {code:?}");
                }
                false => {
                    not += 1;
                    let mut places: Vec<u32> = code.in_place.iter().flat_map(|&(a, r)| [a, r]).collect();
                    places.sort_unstable();
                    let twice = places.windows(2).any(|w| w[0] == w[1]);
                    assert!(twice || shared.next().is_some(), "{slots:?} {code:?}");
                }
            }
        }
        assert!(apart > 1000 && not > 1000);
    }
}
