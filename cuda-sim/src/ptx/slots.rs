//! Which slots an instruction names.

use super::code::{Instruction, Op, Slot};
use std::collections::HashSet;

/// Marks the instructions that name registers with sums of `wgmma`.
pub(super) fn mark_sums(instructions: &mut [Instruction]) {
    let sums: HashSet<Slot> = instructions
        .iter()
        .filter_map(|i| match &i.op {
            Op::Wgmma(wgmma) => Some(wgmma.d.iter().copied()),
            _ => None,
        })
        .flatten()
        .collect();
    if sums.is_empty() {
        return;
    }
    for instruction in instructions.iter_mut().filter(|i| !matches!(i.op, Op::Wgmma(_))) {
        let mut names = false;
        each(&instruction.op, |slot| names |= sums.contains(&slot));
        instruction.names_sums = names;
    }
}

/// The slots that an instruction reads or writes, those of its predicate aside; of `wgmma` those that it uses when it begins.
pub(crate) fn each(op: &Op, mut to: impl FnMut(Slot)) {
    match op {
        Op::One { d, a, .. } | Op::Move { d, a, .. } => [*d, *a].into_iter().for_each(to),
        Op::Two { d, a, b, .. }
        | Op::Divide { d, a, b, .. }
        | Op::Logic { d, a, b, .. }
        | Op::Shift { d, a, b, .. } => [*d, *a, *b].into_iter().for_each(to),
        Op::Three { d, a, b, c, .. } | Op::Lop3 { d, a, b, c, .. } => {
            [*d, *a, *b, *c].into_iter().for_each(to)
        }
        Op::Permute { d, a, b, selector: c } | Op::Select { d, a, b, p: c, .. } => {
            [*d, *a, *b, *c].into_iter().for_each(to)
        }
        Op::Pack { d, parts, .. } => parts.iter().chain([d]).for_each(|&s| to(s)),
        Op::Unpack { parts, a, .. } => parts.iter().flatten().chain([a]).for_each(|&s| to(s)),
        Op::Param { d, .. } => d.iter().filter_map(|d| d.0).for_each(to),
        Op::Load { d, at, .. } => d.iter().filter_map(|d| d.0).chain([at.base]).for_each(to),
        Op::Store { s, at, .. } => s.iter().chain([&at.base]).for_each(|&s| to(s)),
        Op::Atomic { d, at, a, b, .. } => d.iter().chain([&at.base, a, b]).for_each(|&s| to(s)),
        Op::CopyAsync { to: into, from, have, .. } => {
            have.iter().chain([&into.base, &from.base]).for_each(|&s| to(s));
        }
        Op::LoadMatrix { d, at, .. } => d.iter().chain([&at.base]).for_each(|&s| to(s)),
        Op::Mma { d, a, b, c, .. } => d.iter().chain(a.iter()).chain(b.iter()).chain(c).for_each(|&s| to(s)),
        Op::Wgmma(wgmma) => wgmma.descriptors.iter().chain([&wgmma.adds]).for_each(|&s| to(s)),
        Op::Table { index, .. } => to(*index),
        Op::Barrier { id, threads, .. } => threads.iter().chain([id]).for_each(|&s| to(s)),
        Op::WarpSync { mask } => to(*mask),
        Op::Shuffle { d, p, a, b, c, mask, .. } => {
            p.iter().chain([d, a, b, c, mask]).for_each(|&s| to(s));
        }
        Op::Vote { d, p, mask, .. } => [d, p, mask].into_iter().for_each(|&s| to(s)),
        Op::Reduce { d, a, mask, .. } => [d, a, mask].into_iter().for_each(|&s| to(s)),
        Op::Match { d, a, p, mask, .. } => p.iter().chain([d, a, mask]).for_each(|&s| to(s)),
        Op::ActiveMask { d } => to(*d),
        Op::Commit
        | Op::Wait { .. }
        | Op::WgmmaFence
        | Op::WgmmaCommit
        | Op::WgmmaWait { .. }
        | Op::ProxyFence
        | Op::Branch { .. }
        | Op::Exit
        | Op::Trap
        | Op::Fence => {}
    }
}
