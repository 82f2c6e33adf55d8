//! Work that a team does once: the same instruction on the same operands, so that what it makes is what every device would have made.
//!
//! What a team shares is written by such instructions and by collectives that give all members the same, so it is equal to itself by
//! induction over the list; arguments are equal on all devices if no axis of the team splits them or leaves them partial.

use super::super::structure::check_axes;
use super::Run;
use pcc_ir::program::{Base, Instr, InstrKind, Loc};
use pcc_ir::{Diagnostic, ValueId};

impl Run<'_> {
    pub(super) fn team(&self, at: usize, instr: &Instr) -> Result<(), Diagnostic> {
        let team = &self.program.team;
        check_axes(self.mesh(), team).map_err(|why| self.wrong(at, why))?;
        if instr.once && (team.is_empty() || !instr.kind.is_alike(team)) {
            return Err(self.wrong(at, "runs once for all devices, but is not the same work on each"));
        }
        let equal = matches!(&instr.kind, InstrKind::Collective(c) if c.is_equal_over(team));
        for (loc, write) in instr.kind.touched(&self.program.kernels) {
            let shared = self.code.is_shared(&loc);
            if instr.once && write && !shared {
                return Err(self.wrong(at, "runs once for all devices, but writes what each has for itself"));
            }
            if instr.once && !write && !shared && !self.is_equal(&loc) {
                return Err(
                    self.wrong(at, "runs once for all devices, but reads what differs from one to another")
                );
            }
            if !instr.once && write && shared && !equal {
                return Err(self.wrong(at, "runs on every device, but writes what they share"));
            }
        }
        Ok(())
    }

    /// Whether a buffer that a device has for itself holds the same on all devices of a team: constants do, and arguments that no axis
    /// of the team splits or leaves partial, before they are updated in place and behind.
    fn is_equal(&self, loc: &Loc) -> bool {
        let Base::Slot(slot) = loc.base else { return false };
        let func = self.func;
        let equal = |v: ValueId| {
            let claim = func.values[v].claim.as_ref();
            claim.is_some_and(|c| !c.sharding.axes().any(|a| self.program.team.iter().any(|t| t.overlaps(a))))
        };
        let result = |r: u32| func.results.get((r as usize).wrapping_sub(func.args.len()));
        let mut updates = self.code.in_place.iter().filter(|p| p.0 == slot);
        match func.args.get(slot as usize) {
            Some(&v) => equal(v) && updates.all(|p| result(p.1).is_some_and(|&r| equal(r))),
            None => slot as usize >= func.args.len() + func.results.len(),
        }
    }
}
