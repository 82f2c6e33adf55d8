//! Mutations of what a team of devices does and keeps once.

use super::instrs::{addresses, each, func_names, funcs};
use super::{Kind, Mutant};
use pcc_ir::Axis;
use pcc_ir::program::{Base, FuncProgram, Program, StageProgram};
use pcc_passes::driver::Compiled;
use std::collections::BTreeSet;

pub const KINDS: &[Kind] = &[
    ("work of each device done once", |c| each(c, |f, i| !std::mem::replace(&mut f.instrs[i].once, true))),
    ("work of a team done by each device", |c| {
        each(c, |f, i| std::mem::replace(&mut f.instrs[i].once, false))
    }),
    ("what each device makes made once and shared", share),
    ("frame that is shared further", |c| funcs(c, |f| grow(&mut f.shared_bytes))),
    ("frame that is shared less far", |c| funcs(c, |f| shrink(&mut f.shared_bytes))),
    ("result that is not shared any more", |c| funcs(c, |f| f.shared.pop().is_some())),
    ("result of each device that is shared", |c| {
        let most = c.program.funcs.iter().map(|f| f.results).max().unwrap_or(0);
        let share = |r| {
            funcs(c, |f| {
                let slot = f.args + r;
                let can = r < f.results && !f.shared.contains(&slot);
                f.shared.push(slot);
                can
            })
        };
        (0..most).flat_map(share).collect()
    }),
    ("arena that is shared further", |c| stages(c, |s| grow(&mut s.shared_bytes))),
    ("arena that is shared less far", |c| stages(c, |s| shrink(&mut s.shared_bytes))),
    ("no team", |c| whole(c, |p| p.team.clear())),
    ("team over other axes", |c| whole(c, |p| p.team = vec![p.mesh.whole(Axis::Dp)])),
    ("team of some of its devices", |c| {
        let half = c.program.mesh.part(Axis::Tp, 1, 2).filter(|_| c.program.mesh.tp > 2);
        half.map_or_else(Vec::new, |half| whole(c, |p| p.team = vec![half]))
    }),
];

/// A buffer that each device has in its frame is put where the team shares, and made once: all is well, but that it differs.
fn share(c: &Compiled) -> Vec<Mutant> {
    let own = |f: &FuncProgram| f.frame_bytes - f.shared_bytes;
    let offsets: BTreeSet<u64> =
        c.program.funcs.iter().flat_map(|f| (0..own(f)).step_by(ALIGN as usize)).collect();
    let p = &c.program;
    let move_buffer = |from: u64| {
        funcs(c, |f| {
            let (to, end) = (f.frame_bytes, own(f));
            let mut moved = false;
            for instr in &mut f.instrs {
                for (loc, write) in addresses(&mut instr.kind, p) {
                    if loc.base == Base::Frame && loc.offset == from && from < end {
                        loc.offset = to;
                        instr.once |= write;
                        moved |= write;
                    }
                }
            }
            f.frame_bytes += end;
            f.shared_bytes += end;
            moved
        })
    };
    offsets.into_iter().flat_map(move_buffer).collect()
}

/// Buffers begin at multiples of this many bytes.
const ALIGN: u64 = 64;

fn grow(bytes: &mut u64) -> bool {
    *bytes += ALIGN;
    *bytes > ALIGN
}

fn shrink(bytes: &mut u64) -> bool {
    let some = *bytes > 0;
    *bytes = bytes.saturating_sub(ALIGN);
    some
}

/// A mutant for each stage of each entry that is changed.
fn stages(c: &Compiled, change: impl Fn(&mut StageProgram) -> bool) -> Vec<Mutant> {
    let mut mutants = vec![];
    for (e, entry) in c.program.entries.iter().enumerate() {
        for s in 0..entry.stages.len() {
            let mut compiled = c.clone();
            if change(&mut compiled.program.entries[e].stages[s]) {
                mutants.push(Mutant { compiled, names: all_names(c) });
            }
        }
    }
    mutants
}

fn whole(c: &Compiled, change: impl Fn(&mut Program)) -> Vec<Mutant> {
    let mut compiled = c.clone();
    change(&mut compiled.program);
    vec![Mutant { compiled, names: all_names(c) }]
}

fn all_names(c: &Compiled) -> Vec<String> {
    (0..c.program.funcs.len()).flat_map(|f| func_names(c, f)).collect()
}
