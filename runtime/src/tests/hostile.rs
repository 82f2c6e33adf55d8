//! Edited programs: every number and every list of a rich program is changed in turn. Each result is refused, or runs without
//! leaving its buffers: kernels are run by their definition, which checks every element.

use super::clipped;
use super::fixture::*;
use super::panels::tied;
use super::selections;
use crate::{HostTensor, Interpreter, NoWeights, Options, Session};
use pcc_ir::kernel::{Access, At, Kernel, Lane, Node, Store};
use pcc_ir::program::*;
use pcc_ir::source::ReadParams;
use pcc_ir::{Axis, DType, Fault, ReduceKind, Sharding, Type};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// An edit whose run takes longer hangs, on the slowest machine.
const LONGEST: Duration = Duration::from_secs(120);

/// 2 stages, tp 2: an embedding with a vocabulary split over tp, a product of a constant, a collective of each kind, a cache.
fn rich() -> Program {
    let mesh = mesh(2, 1, 2);
    let rows = 2u64;
    let mut p = program(mesh, vec![], vec![], vec![], vec![]);
    let f = |lane, write| Access { dtype: DType::F32, lane, write };
    let lookup = p.kernels.push(Kernel {
        name: "lookup".into(),
        rank: 2,
        accesses: vec![
            Access { dtype: DType::I32, lane: Lane::Broadcast, write: false },
            f(Lane::Unit, false),
            f(Lane::Unit, true),
        ],
        scalars: 3,
        nodes: vec![
            Node::Load(0),
            Node::Scalar(2),
            Node::Binary(pcc_ir::ops::BinaryKind::Sub, 0, 1),
            Node::LoadAt { access: 1, index: 2, stride: 0, limit: 1 },
        ],
        stores: vec![Store { access: 2, node: 3, at: None }],
    });
    let put = p.kernels.push(Kernel {
        name: "put".into(),
        rank: 2,
        accesses: vec![f(Lane::Unit, false), f(Lane::Unit, true)],
        scalars: 2,
        nodes: vec![
            Node::Load(0),
            Node::Index(0),
            Node::RowReduce(ReduceKind::Max, 0),
            Node::Binary(pcc_ir::ops::BinaryKind::Add, 0, 2),
        ],
        stores: vec![Store { access: 1, node: 3, at: Some(At { index: 1, stride: 0, limit: 1 }) }],
    });
    let vocab = vec![mesh.whole(Axis::Tp)];
    let embed = InstrKind::Kernel(Launch {
        kernel: lookup,
        ptrs: vec![slot(0), slot(1), frame(0)],
        extents: vec![2.into(), 4.into()],
        strides: vec![1, 0, 0, 1, 4, 1],
        scalars: vec![
            Scalar::Const(4),
            Scalar::Valid { global: 5, axes: vocab.clone() },
            Scalar::Base { global: 5, axes: vocab.clone() },
        ],
    });
    let all = |kind, shapes, dims, at| {
        InstrKind::Collective(collective(kind, &[mesh.whole(Axis::Tp)], shapes, dims, at))
    };
    let (whole, half): (&[u64], &[u64]) = (&[2, 4], &[2, 2]);
    let first = vec![
        embed,
        all(CollectiveKind::AllReduce, [whole, whole], [0, 0], [frame(0), slot(2)]),
        attention(2, 2, 4),
        attention(1, 600, 1),
    ];
    let cache = InstrKind::Kernel(Launch {
        kernel: put,
        ptrs: vec![slot(0), slot(3)],
        extents: vec![2.into(), 4.into()],
        strides: vec![4, 1, 0, 1],
        scalars: vec![Scalar::Const(4), Scalar::Const(3)],
    });
    let second = vec![
        cache,
        all(CollectiveKind::ReduceScatter, [whole, half], [1, 0], [slot(3), frame(64)]),
        all(CollectiveKind::AllGather, [half, whole], [0, 1], [frame(64), frame(0)]),
        all(CollectiveKind::AllToAll, [whole, &[1, 8]], [0, 1], [frame(0), frame(128)]),
        all(CollectiveKind::Broadcast, [half, half], [0, 0], [frame(64), frame(192)]),
        gemm(2, 3, 4, frame(0), slot(2), slot(4)),
    ];
    let mut last = func("last", &[32, 48, 48], &[48, 24], 256, second);
    last.slot_bytes[4] = 24;
    last.in_place = vec![(1, 3)];
    p.funcs = vec![func("first", &[8, 48], &[32], 4096, first), last];
    p.params = vec![param("embedding", &[5, 4], split(2, 0, &vocab))];
    p.states = vec![LocalState {
        name: "cache".into(),
        ty: Type::f32([3, 4]),
        sharding: Sharding::replicated(2),
        stack: None,
    }];
    p.constants = vec![ConstantData {
        ty: Type::f32([4, 3]),
        data: numbers(12, 3).iter().map(|&v| v.into()).collect(),
    }];
    p.batch = BatchPlan { batch: 2, replicas: 1, micro_batches: 1 };
    let spec = |name: &str, ty| IoSpec {
        name: name.into(),
        ty,
        sharding: Sharding::replicated(1),
        batch_dim: Some(0),
        seq_dim: None,
    };
    let logits = IoSpec { sharding: Sharding::replicated(2), ..spec("y", Type::f32([rows as usize, 3])) };
    let stage = |steps| StageProgram { arena_bytes: 64, shared_bytes: 0, steps };
    let value = Slot::Value(0);
    p.entries = vec![EntryProgram {
        name: "forward".into(),
        inputs: vec![spec("tokens", Type::i32([rows as usize]))],
        outputs: vec![logits],
        stages: vec![
            stage(vec![
                call(0, &[Slot::Input(0), Slot::Param(0), value]),
                Step::Send { to: 1, tag: 0, slot: value, bytes: 32 },
            ]),
            stage(vec![
                Step::Recv { from: 0, tag: 0, slot: value, bytes: 32 },
                call(1, &[value, Slot::State(0), Slot::Const(0), Slot::State(0), Slot::Output(0)]),
            ]),
        ],
    }];
    p
}

/// `s` queries out of slot 2 over `t` keys out of the frame, `step` elements apart; many keys are split into ranges.
fn attention(s: u64, t: u64, step: i64) -> InstrKind {
    let of = |loc, dtype, strides: &[i64]| Strided { loc, dtype, strides: strides.to_vec() };
    let split = AttentionCall::splits_keys(DeviceKind::Cpu, s, 1, t);
    InstrKind::Attention(Box::new(AttentionCall {
        b: 1.into(),
        s: s.into(),
        t: t.into(),
        g: 1.into(),
        r: 1.into(),
        d: 4.into(),
        e: 4.into(),
        scale: 0.5,
        causal: true,
        window: Some(2),
        softcap: Some(3.0),
        bf16_bias: true,
        q: of(slot(2), DType::F32, &[0, 4, 0, 0, 1]),
        k: of(frame(0), DType::F32, &[0, step, 0, 1]),
        v: of(frame(16), DType::F32, &[0, step, 0, 1]),
        q_pos: Some(of(slot(0), DType::I32, &[0, 1])),
        k_pos: of(slot(0), DType::I32, &[0, if split { 0 } else { 1 }]),
        slopes: Some(of(frame(64), DType::F32, &[0, 0])),
        out: of(frame(3072), DType::F32, &[0, 4, 0, 0, 1]),
        scratch: split.then_some(frame(3200)),
    }))
}

/// A program to edit, and what it is run with.
struct Subject {
    program: Program,
    weights: &'static (dyn ReadParams + Sync),
    /// Inputs, and how many rows they have.
    runs: Vec<(BTreeMap<String, HostTensor>, usize)>,
}

impl Subject {
    /// A program of the two tokens that a run has.
    fn of_tokens(program: Program) -> Self {
        let tokens = ("tokens".to_owned(), HostTensor::i32([2], vec![1, 4]));
        Self { program, weights: &NoWeights, runs: vec![([tokens].into(), 2)] }
    }

    /// A program of rows `x` of floats.
    fn of_rows(program: Program) -> Self {
        let shape = program.entries[0].inputs[0].ty.shape.clone();
        let x = ("x".to_owned(), HostTensor::f32(shape.clone(), numbers(shape.iter().product(), 2)));
        Self { program, weights: &NoWeights, runs: vec![([x].into(), shape[0])] }
    }

    fn clipped() -> Self {
        let runs = [(4, 3), (1, 2)].map(|(rows, seq)| (clipped::inputs(rows, seq), rows));
        Self { program: clipped::program(), weights: &clipped::Anything, runs: runs.into() }
    }
}

/// Runs a program if it is accepted. Only what an accepted program may do is allowed: finish, or fail with an error that is no fault
/// of pcc.
fn attempt(program: Program, subject: &Subject, what: &str) -> bool {
    let checked = program.expanded().and_then(|p| crate::validate::check(&p).map(|()| p));
    let program = match checked {
        Ok(program) => program,
        Err(e) => {
            assert_eq!(e.fault, Fault::Input, "{what}");
            return false;
        }
    };
    if program.mesh.devices() > 64 || program.batch.batch > 64 || program.batch.micro_batches > 64 {
        return true;
    }
    let kernels = Box::new(Interpreter::new(program.kernels.values()));
    let options = Options { workers: 1, ..Options::default() };
    let mut session = match Session::new(program, kernels, subject.weights, &options, &|_, _| {}) {
        Ok(session) => session,
        Err(e) => {
            assert!(e.fault != Fault::Internal, "{what}: {e}");
            return true;
        }
    };
    if session.memory_bytes() > 1 << 26 {
        // The interpreter copies whole buffers.
        return true;
    }
    for (inputs, rows) in &subject.runs {
        if let Err(e) = session.run("forward", inputs, *rows) {
            assert!(e.fault != Fault::Internal, "{what}: {e}");
        }
    }
    true
}

/// Every place in a JSON value, as a path of keys and indices.
fn places(value: &Value, path: String, out: &mut Vec<String>) {
    out.push(path.clone());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| places(v, format!("{path}/{i}"), out));
        }
        Value::Object(map) => map.iter().for_each(|(k, v)| places(v, format!("{path}/{k}"), out)),
        _ => {}
    }
}

/// Other values for a place.
fn edits(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(n) => {
            let n = n.as_i64().unwrap_or(0);
            let near = [n + 1, n - 1, n * 2 + 3, -n, 0, 1, 4, 64];
            let far = [i64::MAX, i64::MIN, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 57];
            near.iter().chain(&far).filter(|&&v| v != n).map(|&v| v.into()).chain([u64::MAX.into()]).collect()
        }
        Value::Array(items) => {
            let mut out = vec![Value::Array(vec![])];
            if let Some((last, rest)) = items.split_last() {
                out.push(Value::Array(rest.to_vec()));
                out.push(Value::Array([items.as_slice(), std::slice::from_ref(last)].concat()));
                out.push(Value::Array(items.iter().rev().cloned().collect()));
            }
            out
        }
        Value::String(s) => {
            ["", "tp", "pp", "f64", "bool", "max", "strided", "broadcast", "unit", "frame", "x\0y"]
                .iter()
                .filter(|e| *e != s)
                .map(|&e| e.into())
                .collect()
        }
        Value::Bool(b) => vec![(!b).into()],
        Value::Null => vec![0.into(), 1.into(), 7.into()],
        Value::Object(_) => vec![],
    }
}

#[test]
fn every_edit_of_a_rich_program_is_refused_or_harmless() {
    assert!(edit_everything(Subject::of_tokens(rich())) > 2000);
    let batch = BatchPlan { batch: 2, replicas: 1, micro_batches: 1 };
    let team = super::teams::model(mesh(2, 1, 2), batch, true);
    assert!(edit_everything(Subject::of_rows(team)) > 500);
    assert!(edit_everything(Subject::of_tokens(tied(mesh(1, 1, 2), 5, 4, 2))) > 500);
    let runs = vec![(selections::inputs(), 2)];
    let selecting = Subject { program: selections::model(), weights: &NoWeights, runs };
    assert!(edit_everything(selecting) > 500);
}

#[test]
fn every_edit_of_a_clipped_program_is_refused_or_harmless() {
    assert!(edit_everything(Subject::clipped()) > 2000);
}

/// How many edits were refused. Fails when one makes a run that does not end.
fn edit_everything(subject: Subject) -> usize {
    let (tell, told) = mpsc::channel();
    let work = std::thread::spawn(move || edit_each(&subject, &tell));
    let mut last = String::new();
    loop {
        match told.recv_timeout(LONGEST) {
            Ok(what) => last = what,
            Err(RecvTimeoutError::Timeout) => panic!("{last}: no end after {LONGEST:?}"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Tries every edit, and tells of each before.
fn edit_each(subject: &Subject, tell: &mpsc::Sender<String>) -> usize {
    let whole = serde_json::to_value(&subject.program).unwrap();
    assert!(attempt(serde_json::from_value(whole.clone()).unwrap(), subject, "unchanged"));
    let mut all = Vec::new();
    places(&whole, String::new(), &mut all);
    let mut refused = 0;
    let mut edited = whole.clone();
    for place in &all {
        let before = whole.pointer(place).unwrap();
        for edit in edits(before) {
            let what = format!("{place} = {edit}");
            tell.send(what.clone()).unwrap();
            *edited.pointer_mut(place).unwrap() = edit;
            let accepted = Program::deserialize(&edited).is_ok_and(|p| attempt(p, subject, &what));
            refused += usize::from(!accepted);
            *edited.pointer_mut(place).unwrap() = before.clone();
        }
    }
    refused
}

#[test]
fn faults_are_named_with_their_place() {
    type Break = fn(&mut Program);
    let cases: &[(Break, &str, &str)] = &[
        (|p| p.version = 3, "version 3", ""),
        (|p| p.mesh.tp = 0, "devices", "mesh"),
        (|p| p.funcs[0].instrs[0].note = 9, "note 9", "funcs[0] `first`, instrs[0]"),
        (|p| p.funcs[1].frame_bytes = 200, "leave a buffer of 200", "funcs[1] `last`"),
        (|p| p.params[0].ty.shape[0] = 6, "source has shape", "params[0] `embedding`"),
        (|p| p.entries[0].stages[0].arena_bytes = 0, "holds 0 bytes", "stage 0, steps[0]"),
        (|p| p.entries[0].stages[1].steps.truncate(1), "no step writes output `y`", "entry `forward`"),
        (|p| drop(p.entries[0].stages[1].steps.remove(0)), "not sent and received", "entry `forward`"),
        (|p| p.entries[0].inputs[0].ty.shape[0] = 3, "batch dim", "input `tokens`"),
        (|p| p.batch.micro_batches = 0, "no batch", "batch"),
    ];
    for (change, why, place) in cases {
        let mut p = rich();
        change(&mut p);
        let e = crate::validate::check(&p).unwrap_err();
        assert!(e.to_string().contains(why), "{e}");
        assert!(e.place.unwrap_or_default().contains(place), "{why}");
    }
}

#[test]
fn more_memory_than_the_machine_has_is_refused_with_the_need() {
    let mut p = rich();
    p.entries[0].stages[0].arena_bytes = 1 << 50;
    let kernels = Box::new(Interpreter::new(p.kernels.values()));
    let e = Session::new(p, kernels, &NoWeights, &Options::default(), &|_, _| {}).err().unwrap();
    assert_eq!(e.fault, Fault::Run);
    assert!(e.what.contains("needs 2097152.00 GiB"), "{e}");
}
