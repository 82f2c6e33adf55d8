//! Checks of instruction lists, each made once.
//!
//! Everything that is asked for every call is answered from here, and depends on the function called, the instruction list, the row of
//! the parameter's table and what arguments leave out alone, never on the layer. So the answers of one call are those of all calls
//! that are alike, and a call of yet another layer costs some comparisons of numbers.

use super::super::instrs::{self, Given, Proof, Reading};
use pcc_ir::program::{FuncProgram, PackedMatrix, Program};
use pcc_ir::{DType, Diagnostic, Func, FuncId, Module, Type};
use std::collections::HashMap;

/// What each argument leaves out, and what follows.
type Known = (Given, Result<Proof, Diagnostic>);

/// Which instruction lists have been checked against which functions.
pub(super) struct Proofs<'a> {
    sharded: &'a Module,
    pub(super) local: &'a Module,
    pub(super) program: &'a Program,
    /// By instruction list.
    codes: Vec<Code>,
    /// How each function reads each of its arguments.
    readings: HashMap<FuncId, Vec<Reading>>,
}

/// What is known of an instruction list.
struct Code {
    /// How each argument is taken, if in panels.
    packed: Vec<Option<(PackedMatrix, DType)>>,
    /// The argument that each result is updated in place of.
    partners: Vec<Option<usize>>,
    /// Whether a team shares each result.
    shared: Vec<bool>,
    copies: Option<bool>,
    /// Functions that it was called for: nearly always one.
    pairs: Vec<Pair>,
}

/// An instruction list and a function that it was called for.
struct Pair {
    func: FuncId,
    /// What holds for arguments that leave this out.
    known: Vec<Known>,
    /// For each constant: the last one that was bound, and whether it is the one that the list wants.
    constants: Vec<Option<(u32, bool)>>,
    /// For each argument: the row of the last parameter bound to it, and whether that is held as it is taken.
    forms: Vec<Option<(u32, bool)>>,
}

impl Code {
    fn of(code: &FuncProgram) -> Self {
        // No more than there are slots, whatever the counts say.
        let count = |n: u32| (n as usize).min(code.slot_bytes.len());
        let mut packed = vec![None; count(code.args)];
        for (i, form) in code.packed().unwrap_or_default() {
            if let Some(place) = packed.get_mut(i as usize) {
                *place = Some(form);
            }
        }
        let mut partners = vec![None; count(code.results)];
        // Of several the first counts, as it does where instructions are followed.
        for &(a, r) in code.in_place.iter().rev() {
            let result = (r as usize).checked_sub(code.args as usize);
            if let Some(place) = result.and_then(|r| partners.get_mut(r)) {
                *place = Some(a as usize);
            }
        }
        let mut shared = vec![false; partners.len()];
        for &slot in &code.shared {
            let result = slot.checked_sub(code.args).map(|r| r as usize);
            if let Some(place) = result.and_then(|r| shared.get_mut(r)) {
                *place = true;
            }
        }
        Self { packed, partners, shared, copies: None, pairs: Vec::new() }
    }

    fn pair(&mut self, func: FuncId) -> &mut Pair {
        let at = self.pairs.iter().position(|p| p.func == func).unwrap_or_else(|| {
            self.pairs.push(Pair { func, known: Vec::new(), constants: Vec::new(), forms: Vec::new() });
            self.pairs.len() - 1
        });
        &mut self.pairs[at]
    }
}

/// The last answer to a question, if it was asked with the same number.
fn last(of: &mut Vec<Option<(u32, bool)>>, at: usize, number: u32, answer: impl FnOnce() -> bool) -> bool {
    if of.len() <= at {
        of.resize(at + 1, None);
    }
    match of[at] {
        Some((asked, known)) if asked == number => known,
        _ => of[at].insert((number, answer())).1,
    }
}

impl<'a> Proofs<'a> {
    pub(super) fn new(sharded: &'a Module, local: &'a Module, program: &'a Program) -> Self {
        let codes = program.funcs.iter().map(Code::of).collect();
        Self { sharded, local, program, codes, readings: HashMap::new() }
    }

    pub(super) fn call(
        &mut self,
        id: FuncId,
        index: u32,
        code: &FuncProgram,
        args: &Given,
    ) -> &Result<Proof, Diagnostic> {
        let known = &mut self.codes[index as usize].pair(id).known;
        let at = known.iter().position(|k| k.0 == *args).unwrap_or_else(|| {
            let (global, local) = (self.sharded.funcs.get(id), &self.local.funcs[id]);
            known.push((args.to_vec(), instrs::check(self.program, global, local, code, args)));
            known.len() - 1
        });
        &known[at].1
    }

    /// The argument that result `r` is updated in place of.
    pub(super) fn partner(&self, index: u32, r: usize) -> Option<usize> {
        self.codes.get(index as usize)?.partners.get(r).copied().flatten()
    }

    /// Whether a team shares result `r`.
    pub(super) fn is_shared(&self, index: u32, r: usize) -> bool {
        self.codes.get(index as usize).and_then(|code| code.shared.get(r)) == Some(&true)
    }

    /// Whether a parameter (its row in the program's table; none for what is no parameter) is held in the form in which argument `i` of
    /// a call is taken, and that is the one that the function's ops read.
    pub(super) fn is_held_as_taken(
        &mut self,
        (id, index): (FuncId, u32),
        i: usize,
        row: Option<u32>,
    ) -> bool {
        let (local, program, readings) = (self.local, self.program, &mut self.readings);
        let code = &mut self.codes[index as usize];
        let taken = code.packed.get(i).copied().flatten();
        let Some(row) = row else { return taken.is_none() };
        last(&mut code.pair(id).forms, i, row, || {
            let callee = &local.funcs[id];
            let (Some(&arg), Some(param)) = (callee.args.get(i), program.params.get(row as usize)) else {
                return false;
            };
            let ty = callee.ty(arg);
            let held = param.storage.matrix(&ty.shape).map(|matrix| (matrix, ty.dtype));
            let reading = readings.entry(id).or_insert_with(|| instrs::readings(callee));
            held == taken
                && param.storage.check(&param.ty, &param.source, &ty.shape).is_ok()
                && reading.get(i).is_some_and(|r| r.is_of(&param.storage))
        })
    }

    /// Whether a function of the program only copies its argument, of this type.
    pub(super) fn is_copy(&mut self, index: u32, code: &FuncProgram, ty: &Type) -> bool {
        if code.args != 1 || code.results != 1 {
            return false;
        }
        let program = self.program;
        let known = *self.codes[index as usize].copies.get_or_insert_with(|| {
            let mut identity = Func::new(code.name.clone());
            let v = identity.arg(ty.clone(), "copied");
            identity.results.push(v);
            instrs::check(program, None, &identity, code, &Given::new()).is_ok()
        });
        known && code.slot_bytes.iter().all(|&b| b == ty.bytes() as u64)
    }

    /// Whether a constant of the program is the one that an instruction list, called for a function, wants as its `k`th.
    pub(super) fn constant(&mut self, (id, index): (FuncId, u32), k: usize, slot: u32) -> bool {
        let program = self.program;
        let Pair { known, constants, .. } = self.codes[index as usize].pair(id);
        last(constants, k, slot, || {
            let proof = known.iter().find_map(|k| k.1.as_ref().ok());
            let wanted = proof.and_then(|proof| proof.constants.get(k));
            wanted.is_some() && wanted == program.constants.get(slot as usize)
        })
    }
}
