//! Group calls: what a thread asks for between `ncclGroupStart` and `ncclGroupEnd` happens at the end, as one.

use crate::abi::{self, Op};
use crate::driver::{Outcome, check, driver};
use std::cell::RefCell;

#[derive(Default)]
struct Group {
    depth: u32,
    ops: Vec<Op>,
    /// Communicators that this thread joined and that are not complete.
    joined: Vec<u64>,
    /// What went wrong within the group; its end answers it.
    error: Option<Outcome>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub fn start() -> Outcome {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    abi::OK
}

pub fn end() -> Outcome {
    let done = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(abi::INVALID_USAGE),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    });
    match done {
        Ok(Some(Group { ops, joined, error, .. })) => {
            error.map_or_else(|| run(&ops, &joined), Err).err().unwrap_or(abi::OK)
        }
        Ok(None) => abi::OK,
        Err(code) => code,
    }
}

fn run(ops: &[Op], joined: &[u64]) -> Result<(), Outcome> {
    let driver = driver()?;
    for &comm in joined {
        check((driver.comm_wait)(comm))?;
    }
    if ops.is_empty() { Ok(()) } else { check((driver.comm_submit)(ops.as_ptr(), ops.len())) }
}

/// An operation: now, or with the group that the thread is in.
pub fn submit(op: Op) -> Outcome {
    let later = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.ops.push(op);
        }
        group.depth > 0
    });
    if later { abi::OK } else { run(&[op], &[]).err().unwrap_or(abi::OK) }
}

/// A communicator that was joined: waits for the other ranks, now or at the group's end.
pub fn wait(comm: u64) -> Outcome {
    let later = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.joined.push(comm);
        }
        group.depth > 0
    });
    if later { abi::OK } else { run(&[], &[comm]).err().unwrap_or(abi::OK) }
}

/// Notes an error of the group that the thread is in.
pub fn note(outcome: Outcome) -> Outcome {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && outcome != abi::OK && outcome != abi::IN_PROGRESS {
            group.error.get_or_insert(outcome);
        }
    });
    outcome
}
