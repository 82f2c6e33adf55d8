//! How steps are stored: runs of equal steps folded, so that a program's file does not grow with depth.
//!
//! A run of repetitions whose parameters and states advance by fixed strides is stored once:
//!
//! ```text
//! call 2 [param 9, state 4, value 0, value 64], layer 3       repeat 10
//! call 2 [param 18, state 6, value 64, value 0], layer 4        call 2 [param 9 + 18, state 4 + 4, value 0, value 64], layer 3 + 2
//! call 2 [param 27, state 8, value 0, value 64], layer 5   =    call 2 [param 18 + 18, state 6 + 4, value 64, value 0], layer 4 + 2
//! ...
//! ```
//!
//! In memory all steps are there, so that who executes or checks them knows nothing of this.

use super::{EntryProgram, IoSpec, Slot, StageProgram, Step};
use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Most steps of a repetition.
const LONGEST: usize = 32;
/// Most steps, and most slots of them, of a program's entries together.
const MOST_STEPS: usize = 1 << 20;
const MOST_SLOTS: usize = 1 << 23;

#[derive(Serialize, Deserialize)]
struct StoredEntry<'a> {
    name: Cow<'a, str>,
    inputs: Cow<'a, [IoSpec]>,
    outputs: Cow<'a, [IoSpec]>,
    stages: Vec<StoredStage>,
}

#[derive(Serialize, Deserialize)]
struct StoredStage {
    arena_bytes: u64,
    #[serde(default, skip_serializing_if = "super::is_zero")]
    shared_bytes: u64,
    steps: Vec<Stored>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored {
    Call { func: u32, slots: Vec<At>, layer: Option<u32> },
    Send { to: u32, tag: u32, slot: Slot, bytes: u64 },
    Recv { from: u32, tag: u32, slot: Slot, bytes: u64 },
    Repeat { count: u32, calls: Vec<Body> },
}

/// A call of a repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Body {
    func: u32,
    slots: Vec<At>,
    /// In the first repetition, and how far it advances.
    layer: Option<(u32, u32)>,
}

/// A slot, with its stride where it advances.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum At {
    Param(u32),
    State(u32),
    Input(u32),
    Output(u32),
    Const(u32),
    Value(u64),
    /// First parameter, and how far it advances.
    Params(u32, u32),
    /// First state, and how far it advances.
    States(u32, u32),
}

impl From<Slot> for At {
    fn from(slot: Slot) -> Self {
        match slot {
            Slot::Param(i) => At::Param(i),
            Slot::State(i) => At::State(i),
            Slot::Input(i) => At::Input(i),
            Slot::Output(i) => At::Output(i),
            Slot::Const(i) => At::Const(i),
            Slot::Value(o) => At::Value(o),
        }
    }
}

impl At {
    /// The slot in a repetition.
    fn slot(self, k: u32) -> Option<Slot> {
        Some(match self {
            At::Param(i) => Slot::Param(i),
            At::State(i) => Slot::State(i),
            At::Input(i) => Slot::Input(i),
            At::Output(i) => Slot::Output(i),
            At::Const(i) => Slot::Const(i),
            At::Value(o) => Slot::Value(o),
            At::Params(first, step) => Slot::Param(advance(first, step, k)?),
            At::States(first, step) => Slot::State(advance(first, step, k)?),
        })
    }
}

fn advance(first: u32, step: u32, k: u32) -> Option<u32> {
    first.checked_add(step.checked_mul(k)?)
}

/// How far a number advances, if it does not go back.
fn stride(a: u32, b: u32) -> Option<u32> {
    b.checked_sub(a)
}

pub(super) fn serialize<S: Serializer>(entries: &[EntryProgram], to: S) -> Result<S::Ok, S::Error> {
    let stage = |s: &StageProgram| StoredStage {
        arena_bytes: s.arena_bytes,
        shared_bytes: s.shared_bytes,
        steps: fold(&s.steps),
    };
    let stored = |e: &EntryProgram| {
        // Cloned lists are short; steps are not.
        let stages = e.stages.iter().map(stage).collect();
        StoredEntry {
            name: e.name.clone().into(),
            inputs: e.inputs.clone().into(),
            outputs: e.outputs.clone().into(),
            stages,
        }
    };
    to.collect_seq(entries.iter().map(stored))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<EntryProgram>, D::Error> {
    let stored = Vec::<StoredEntry<'static>>::deserialize(from)?;
    let (mut steps, mut slots) = (MOST_STEPS, MOST_SLOTS);
    let mut stage = |s: StoredStage| {
        let steps = unfold(s.steps, &mut steps, &mut slots).map_err(D::Error::custom)?;
        Ok(StageProgram { arena_bytes: s.arena_bytes, shared_bytes: s.shared_bytes, steps })
    };
    let mut entry = |e: StoredEntry<'_>| {
        let stages = e.stages.into_iter().map(&mut stage).collect::<Result<_, D::Error>>()?;
        let (name, inputs, outputs) = (e.name.into_owned(), e.inputs.into_owned(), e.outputs.into_owned());
        Ok(EntryProgram { name, inputs, outputs, stages })
    };
    stored.into_iter().map(&mut entry).collect()
}

/// All steps, within what is left of the limits.
fn unfold(stored: Vec<Stored>, steps: &mut usize, slots: &mut usize) -> Result<Vec<Step>, String> {
    let mut out = Vec::new();
    let mut take = |n: Option<usize>, of: usize| {
        let left = n.and_then(|n| Some((steps.checked_sub(n)?, slots.checked_sub(of.checked_mul(n)?)?)));
        (*steps, *slots) =
            left.ok_or_else(|| format!("the entries have more than {MOST_STEPS} steps, or too many slots"))?;
        Ok::<_, String>(())
    };
    for step in stored {
        match step {
            Stored::Send { to, tag, slot, bytes } => {
                take(Some(1), 0)?;
                out.push(Step::Send { to, tag, slot, bytes });
            }
            Stored::Recv { from, tag, slot, bytes } => {
                take(Some(1), 0)?;
                out.push(Step::Recv { from, tag, slot, bytes });
            }
            Stored::Call { func, slots, layer } => {
                take(Some(1), slots.len())?;
                let layer = layer.map(|l| (l, 0));
                out.push(call(&Body { func, slots, layer }, 0)?);
            }
            Stored::Repeat { count, calls } => {
                for body in &calls {
                    take(Some(count as usize), body.slots.len())?;
                }
                for k in 0..count {
                    for body in &calls {
                        out.push(call(body, k)?);
                    }
                }
            }
        }
    }
    Ok(out)
}

fn call(body: &Body, k: u32) -> Result<Step, String> {
    let slots = body.slots.iter().map(|at| at.slot(k)).collect::<Option<Vec<Slot>>>();
    let layer = body.layer.map(|(first, step)| advance(first, step, k).ok_or(())).transpose();
    match (slots, layer) {
        (Some(slots), Ok(layer)) => Ok(Step::Call { func: body.func, slots, layer }),
        _ => Err("a repeat of steps counts beyond any parameter or layer".into()),
    }
}

/// Steps with runs of equal calls folded. Greedy: linear in the steps.
fn fold(steps: &[Step]) -> Vec<Stored> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(step) = steps.get(at) {
        if let Some((count, calls)) = run(&steps[at..]) {
            at += calls.len() * count as usize;
            out.push(Stored::Repeat { count, calls });
            continue;
        }
        out.push(match step {
            Step::Send { to, tag, slot, bytes } => {
                Stored::Send { to: *to, tag: *tag, slot: *slot, bytes: *bytes }
            }
            Step::Recv { from, tag, slot, bytes } => {
                Stored::Recv { from: *from, tag: *tag, slot: *slot, bytes: *bytes }
            }
            Step::Call { func, slots, layer } => {
                Stored::Call { func: *func, slots: slots.iter().map(|&s| s.into()).collect(), layer: *layer }
            }
        });
        at += 1;
    }
    out
}

/// The shortest repetition that the steps start with, at least three times.
fn run(steps: &[Step]) -> Option<(u32, Vec<Body>)> {
    for n in 1..=LONGEST.min(steps.len() / 3) {
        let bodies = steps[..n].iter().zip(&steps[n..]).map(|(a, b)| body(a, b)).collect::<Option<Vec<_>>>();
        let Some(bodies) = bodies else { continue };
        let same = |k: usize| {
            let calls = steps.get(k * n..(k + 1) * n);
            calls.is_some_and(|c| c.iter().zip(&bodies).all(|(step, body)| is(step, body, k as u32)))
        };
        let count = (2..u32::MAX as usize).find(|&k| !same(k)).unwrap_or(2);
        if count >= 3 {
            return Some((count as u32, bodies));
        }
    }
    None
}

/// The body that two steps are the first two repetitions of.
fn body(a: &Step, b: &Step) -> Option<Body> {
    let (Step::Call { func, slots, layer }, Step::Call { func: f, slots: s, layer: l }) = (a, b) else {
        return None;
    };
    if func != f || slots.len() != s.len() {
        return None;
    }
    let layer = match (layer, l) {
        (None, None) => None,
        (Some(a), Some(b)) => Some((*a, stride(*a, *b)?)),
        _ => return None,
    };
    let slot = |(&a, &b): (&Slot, &Slot)| match (a, b) {
        (a, b) if a == b => Some(a.into()),
        (Slot::Param(a), Slot::Param(b)) => Some(At::Params(a, stride(a, b)?)),
        (Slot::State(a), Slot::State(b)) => Some(At::States(a, stride(a, b)?)),
        _ => None,
    };
    let slots = slots.iter().zip(s).map(slot).collect::<Option<Vec<At>>>()?;
    Some(Body { func: *func, slots, layer })
}

/// Whether a step is a repetition of the body.
fn is(step: &Step, body: &Body, k: u32) -> bool {
    let Step::Call { func, slots, layer } = step else { return false };
    *func == body.func
        && *layer == body.layer.and_then(|(first, step)| advance(first, step, k))
        && slots.len() == body.slots.len()
        && slots.iter().zip(&body.slots).all(|(&s, at)| at.slot(k) == Some(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(n: u32, from: u64, to: u64) -> Step {
        let slots =
            vec![Slot::Value(from), Slot::Param(1 + 2 * n), Slot::Param(0), Slot::State(n), Slot::Value(to)];
        Step::Call { func: 1, slots, layer: Some(n) }
    }

    /// An embedding, eleven layers whose values go to and fro, a head, a message.
    fn steps() -> Vec<Step> {
        let mut steps = vec![Step::Call { func: 0, slots: vec![Slot::Value(0)], layer: None }];
        steps.extend((0..11).map(|n| layer(n, u64::from(n % 2) * 64, u64::from(1 - n % 2) * 64)));
        steps.push(Step::Call { func: 2, slots: vec![Slot::Value(64)], layer: None });
        steps.push(Step::Send { to: 1, tag: 3, slot: Slot::Value(64), bytes: 4 });
        steps
    }

    fn unfolded(stored: Vec<Stored>) -> Result<Vec<Step>, String> {
        unfold(stored, &mut 10_000, &mut 100_000)
    }

    #[test]
    fn layers_are_stored_once() {
        let stored = fold(&steps());
        // The embedding, five times two layers, the eleventh, the head, the message.
        assert_eq!(stored.len(), 5, "{stored:?}");
        let Stored::Repeat { count, calls } = &stored[1] else { panic!("{stored:?}") };
        assert_eq!((*count, calls.len()), (5, 2));
        let slots = vec![At::Value(64), At::Params(3, 4), At::Param(0), At::States(1, 2), At::Value(0)];
        assert_eq!(calls[1], Body { func: 1, slots, layer: Some((1, 2)) });
        assert_eq!(unfolded(stored).unwrap(), steps());
    }

    #[test]
    fn irregular_steps_stay_as_they_are() {
        let mut steps: Vec<Step> = [0, 1, 2, 4, 3, 5, 9].map(|n| layer(n, 0, 64)).into();
        steps.insert(2, Step::Recv { from: 0, tag: 1, slot: Slot::Value(0), bytes: 8 });
        let stored = fold(&steps);
        assert!(stored.iter().all(|s| !matches!(s, Stored::Repeat { .. })));
        assert_eq!(unfolded(stored).unwrap(), steps);
    }

    #[test]
    fn hostile_counts_are_refused() {
        let body = |slots: Vec<At>| vec![Body { func: 0, slots, layer: None }];
        let repeat = |count, slots| unfolded(vec![Stored::Repeat { count, calls: body(slots) }]);
        assert_eq!(repeat(10_000, vec![]).unwrap().len(), 10_000);
        assert!(repeat(10_001, vec![]).unwrap_err().contains("more than"));
        assert!(repeat(u32::MAX, vec![At::Value(0); 3]).unwrap_err().contains("more than"));
        assert!(repeat(9_000, vec![At::Value(0); 12]).unwrap_err().contains("too many slots"));
        assert!(repeat(3, vec![At::Params(5, u32::MAX)]).unwrap_err().contains("beyond any parameter"));
        let calls = vec![Body { func: 0, slots: vec![], layer: Some((u32::MAX, 1)) }];
        assert!(unfolded(vec![Stored::Repeat { count: 2, calls }]).unwrap_err().contains("layer"));
    }
}
