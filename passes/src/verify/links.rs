//! Messages between stages cannot block for ever.
//!
//! The steps of all stages run for several micro-batches over links of bounded capacity: a send is posted while its link has room for
//! its tag and waits otherwise, a recv waits for its message. The least capacity, one message a tag, is the hardest case: what ends
//! with it ends with any.

use pcc_ir::Diagnostic;
use pcc_ir::program::{EntryProgram, Step};
use std::collections::HashMap;

/// Enough for the pipeline to fill and for every wait on a slot to happen.
const MICRO_BATCHES: usize = 3;

/// Where one stage stands.
struct Cursor {
    micro_batch: usize,
    step: usize,
}

/// Runs the messages of an entry. `name` says what a tag stands for.
pub(super) fn check(entry: &EntryProgram, name: impl Fn(u32) -> String) -> Result<(), Diagnostic> {
    let mut waiting: HashMap<(usize, usize, u32), usize> = HashMap::new();
    let mut at: Vec<Cursor> = entry.stages.iter().map(|_| Cursor { micro_batch: 0, step: 0 }).collect();
    loop {
        let mut moved = false;
        for (stage, cursor) in at.iter_mut().enumerate() {
            let steps = &entry.stages[stage].steps;
            while cursor.micro_batch < MICRO_BATCHES {
                let Some(step) = steps.get(cursor.step) else {
                    (cursor.micro_batch, cursor.step, moved) = (cursor.micro_batch + 1, 0, true);
                    continue;
                };
                let box_ = match *step {
                    Step::Call { .. } => None,
                    Step::Send { to, tag, .. } => Some(((stage, to as usize, tag), 0)),
                    Step::Recv { from, tag, .. } => Some(((from as usize, stage, tag), 1)),
                };
                if let Some((key, ready)) = box_ {
                    let held = waiting.entry(key).or_insert(0);
                    if *held != ready {
                        break;
                    }
                    *held = 1 - ready;
                }
                cursor.step += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let stuck = at.iter().enumerate().find(|(_, c)| c.micro_batch < MICRO_BATCHES);
    let Some((stage, step)) = stuck.and_then(|(s, c)| Some((s, entry.stages[s].steps.get(c.step)?))) else {
        return Ok(());
    };
    let what = match step {
        Step::Send { to, tag, .. } => format!("stage {stage} can never send {} to stage {to}", name(*tag)),
        Step::Recv { from, tag, .. } => {
            format!("stage {stage} waits for ever for {} from stage {from}", name(*tag))
        }
        Step::Call { .. } => format!("stage {stage} never ends"),
    };
    Err(Diagnostic::check(format!("{what}: the pipeline of entry `{}` deadlocks", entry.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::program::{Slot, StageProgram};

    fn send(to: u32, tag: u32) -> Step {
        Step::Send { to, tag, slot: Slot::Value(0), bytes: 4 }
    }

    fn recv(from: u32, tag: u32) -> Step {
        Step::Recv { from, tag, slot: Slot::Value(0), bytes: 4 }
    }

    fn run(stages: Vec<Vec<Step>>) -> Result<(), Diagnostic> {
        let stages = stages
            .into_iter()
            .map(|steps| StageProgram { arena_bytes: 64, shared_bytes: 0, steps })
            .collect();
        let entry = EntryProgram { name: "forward".into(), inputs: vec![], outputs: vec![], stages };
        check(&entry, |tag| format!("value v{tag}"))
    }

    #[test]
    fn chains_end_and_cycles_do_not() {
        let skip =
            vec![vec![send(1, 1), send(2, 2)], vec![recv(0, 1), send(2, 3)], vec![recv(0, 2), recv(1, 3)]];
        run(skip).unwrap();
        // Both send first: posted sends do not wait.
        run(vec![vec![send(1, 1), recv(1, 2)], vec![send(0, 2), recv(0, 1)]]).unwrap();
        // Both receive first.
        let e = run(vec![vec![recv(1, 2), send(1, 1)], vec![recv(0, 1), send(0, 2)]]).unwrap_err();
        assert!(e.to_string().contains("stage 0 waits for ever for value v2 from stage 1"), "{e}");
        // The second message of a tag has no room: its receiver waits for another.
        let e = run(vec![vec![send(1, 1), send(1, 1), send(1, 2)], vec![recv(0, 2), recv(0, 1), recv(0, 1)]]);
        assert!(e.unwrap_err().to_string().contains("stage 0 can never send value v1"));
    }
}
