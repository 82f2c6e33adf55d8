//! Checks of instruction lists, each made once.

use super::super::instrs::{self, Given, Proof};
use pcc_ir::program::{FuncProgram, PackedMatrix, Program};
use pcc_ir::{DType, Diagnostic, Func, FuncId, Module, Type};
use std::collections::{BTreeMap, HashMap};

/// What each argument leaves out, and what follows.
type Known = (Given, Result<Proof, Diagnostic>);

/// Which instruction lists have been checked against which functions.
pub(super) struct Proofs<'a> {
    sharded: &'a Module,
    pub(super) local: &'a Module,
    pub(super) program: &'a Program,
    /// What holds of a pair for arguments that leave this out.
    calls: HashMap<(FuncId, u32), Vec<Known>>,
    copies: HashMap<u32, bool>,
    /// Arguments that each instruction list takes in panels.
    packed: HashMap<u32, BTreeMap<u32, (PackedMatrix, DType)>>,
    /// Whether a constant of the program is the one that a pair's slot wants.
    tables: HashMap<(FuncId, u32, usize, u32), bool>,
}

impl<'a> Proofs<'a> {
    pub(super) fn new(sharded: &'a Module, local: &'a Module, program: &'a Program) -> Self {
        Self {
            sharded,
            local,
            program,
            calls: HashMap::new(),
            copies: HashMap::new(),
            packed: HashMap::new(),
            tables: HashMap::new(),
        }
    }

    pub(super) fn call(
        &mut self,
        id: FuncId,
        index: u32,
        code: &FuncProgram,
        args: &Given,
    ) -> &Result<Proof, Diagnostic> {
        let (global, local) = (self.sharded.funcs.get(id), &self.local.funcs[id]);
        let known = self.calls.entry((id, index)).or_default();
        let at = known.iter().position(|k| k.0 == *args).unwrap_or_else(|| {
            known.push((args.to_vec(), instrs::check(self.program, global, local, code, args)));
            known.len() - 1
        });
        &known[at].1
    }

    /// How argument `i` is taken, if in panels.
    pub(super) fn packed(
        &mut self,
        index: u32,
        code: &FuncProgram,
        i: usize,
    ) -> Option<(PackedMatrix, DType)> {
        let of = self.packed.entry(index).or_insert_with(|| code.packed().unwrap_or_default());
        of.get(&(i as u32)).copied()
    }

    /// Whether a function of the program only copies its argument, of this type.
    pub(super) fn is_copy(&mut self, index: u32, code: &FuncProgram, ty: &Type) -> bool {
        if code.args != 1 || code.results != 1 {
            return false;
        }
        let program = self.program;
        let known = *self.copies.entry(index).or_insert_with(|| {
            let mut identity = Func::new(code.name.clone());
            let v = identity.arg(ty.clone(), "copied");
            identity.results.push(v);
            instrs::check(program, None, &identity, code, &Given::new()).is_ok()
        });
        known && code.slot_bytes.iter().all(|&b| b == ty.bytes() as u64)
    }

    pub(super) fn constant(&mut self, pair: (FuncId, u32), k: usize, slot: u32) -> bool {
        let (calls, program) = (&self.calls, self.program);
        *self.tables.entry((pair.0, pair.1, k, slot)).or_insert_with(|| {
            let wanted = calls
                .get(&pair)
                .and_then(|known| known.iter().find_map(|k| k.1.as_ref().ok()))
                .and_then(|proof| proof.constants.get(k));
            wanted.is_some() && wanted == program.constants.get(slot as usize)
        })
    }
}
