//! What teams share: written by instructions that run once, or by collectives that give all the same, and by nothing else. So no two
//! devices write one place.

use super::{check_axes, damaged, require};
use crate::memory::ALIGN;
use pcc_ir::Diagnostic;
use pcc_ir::program::{FuncProgram, Instr, InstrKind, Program, Slot, StageProgram};
use std::collections::HashSet;

pub(super) fn check_program(program: &Program) -> Result<(), Diagnostic> {
    check_axes(&program.mesh, &program.team).map_err(|why| damaged("team", why))
}

pub(super) fn check_func(program: &Program, func: &FuncProgram, place: &str) -> Result<(), Diagnostic> {
    require(own(func.frame_bytes, func.shared_bytes).is_some(), place, || {
        format!("of {} bytes of its frame a team shares {}", func.frame_bytes, func.shared_bytes)
    })?;
    let results = func.args..func.args.saturating_add(func.results);
    let mut seen = HashSet::new();
    for &slot in &func.shared {
        let own = !func.in_place.iter().any(|p| p.1 == slot);
        require(results.contains(&slot) && own && seen.insert(slot), place, || {
            format!("a team cannot share slot {slot}")
        })?;
    }
    for (i, instr) in func.instrs.iter().enumerate() {
        check_instr(program, func, instr).map_err(|why| damaged(&format!("{place}, instrs[{i}]"), why))?;
    }
    Ok(())
}

fn check_instr(program: &Program, func: &FuncProgram, instr: &Instr) -> Result<(), String> {
    let args = func.args as usize;
    let constant = |s: u32| s as usize >= args + func.results as usize;
    let equal = matches!(&instr.kind, InstrKind::Collective(c) if c.is_equal_over(&program.team));
    if instr.once && (program.team.is_empty() || !instr.kind.is_alike(&program.team)) {
        return Err("it runs once for a team, but is not the same work on each of its devices".to_owned());
    }
    for (loc, write) in instr.kind.touched(&program.kernels) {
        let shared = func.is_shared(&loc);
        let given = match loc.base {
            pcc_ir::program::Base::Slot(s) => (s as usize) < args || constant(s),
            pcc_ir::program::Base::Frame => false,
        };
        match (instr.once, write) {
            (true, true) if !shared => return Err("it runs once, but writes what each device has".to_owned()),
            (true, false) if !shared && !given => {
                return Err("it runs once, but reads what each device has".to_owned());
            }
            (false, true) if shared && !equal => {
                return Err("each device writes what a team shares".to_owned());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Of `all` bytes those that each device has: what is shared begins behind them, where a buffer may.
fn own(all: u64, shared: u64) -> Option<u64> {
    all.checked_sub(shared).filter(|n| shared == 0 || n.is_multiple_of(ALIGN))
}

/// Where in a stage's arena what a team shares begins.
pub(super) fn private(stage: &StageProgram) -> Option<u64> {
    own(stage.arena_bytes, stage.shared_bytes)
}

/// Whether a buffer of the arena is shared.
fn is_shared(stage: &StageProgram, slot: Slot) -> bool {
    matches!((slot, private(stage)), (Slot::Value(at), Some(private)) if at >= private)
}

/// Shared results of a call lie in what the team shares, and nothing else that is written does.
pub(super) fn check_call(stage: &StageProgram, func: &FuncProgram, slots: &[Slot]) -> Result<(), String> {
    for (&slot, r) in slots.iter().skip(func.args as usize).zip(func.args..).take(func.results as usize) {
        if func.shared.contains(&r) != is_shared(stage, slot) {
            return Err(format!("{slot:?} is not shared as result {r} of {} is", func.name));
        }
    }
    Ok(())
}

pub(super) fn check_received(stage: &StageProgram, slot: Slot) -> Result<(), String> {
    match is_shared(stage, slot) {
        true => Err("a message is each device's own, and cannot go to what a team shares".to_owned()),
        false => Ok(()),
    }
}
