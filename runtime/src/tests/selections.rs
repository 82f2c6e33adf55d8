//! Top-k and sampling of edited programs: each fault is refused with its reason, and what is accepted runs.

use super::fixture::*;
use crate::{HostData, HostTensor, Interpreter, NoWeights, Options, Session};
use pcc_ir::program::*;
use pcc_ir::{DType, Sharding, Type};
use std::collections::BTreeMap;

fn view(loc: Loc, dtype: DType, strides: &[i64]) -> Strided {
    Strided { loc, dtype, strides: strides.to_vec() }
}

/// Two rows of four: the two largest of each, and a token of each.
pub(super) fn model() -> Program {
    let mesh = mesh(1, 1, 1);
    let top = TopKCall {
        rows: vec![2.into()],
        n: 4,
        k: 2,
        x: view(slot(0), DType::F32, &[4, 1]),
        values: view(frame(0), DType::F32, &[2, 1]),
        indices: view(slot(3), DType::I32, &[2, 1]),
    };
    let sample = SampleCall {
        rows: 2.into(),
        tokens: 4,
        logits: view(slot(0), DType::F32, &[4, 1]),
        settings: view(slot(1), DType::F32, &[2, 1]),
        key: view(slot(2), DType::I32, &[4, 1]),
        out: view(slot(4), DType::I32, &[1]),
    };
    let instrs = vec![InstrKind::TopK(Box::new(top)), InstrKind::Sample(Box::new(sample))];
    let mut p = program(mesh, vec![], vec![], vec![], vec![]);
    p.funcs = vec![func("head", &[32, 16, 32], &[16, 8], 64, instrs)];
    p.batch = BatchPlan { batch: 2, replicas: 1, micro_batches: 1 };
    let spec = |name: &str, ty: Type| IoSpec {
        name: name.into(),
        sharding: Sharding::replicated(ty.rank()),
        ty,
        batch_dim: Some(0),
        seq_dim: None,
    };
    let slots = [Slot::Input(0), Slot::Input(1), Slot::Input(2), Slot::Output(0), Slot::Output(1)];
    p.entries = vec![EntryProgram {
        name: "forward".into(),
        inputs: vec![
            spec("x", Type::f32([2, 4])),
            spec("settings", Type::f32([2, 2])),
            spec("key", Type::i32([2, 4])),
        ],
        outputs: vec![spec("indices", Type::i32([2, 2])), spec("token", Type::i32([2]))],
        stages: vec![StageProgram { arena_bytes: 0, shared_bytes: 0, steps: vec![call(0, &slots)] }],
    }];
    p
}

/// The likeliest token of the first row; of the second one of the two likeliest.
pub(super) fn inputs() -> BTreeMap<String, HostTensor> {
    let tensors = [
        ("x", HostTensor::f32([2, 4], vec![1.0, 3.0, 2.0, 3.0, f32::NAN, 0.5, 7.0, -1.0])),
        ("settings", HostTensor::f32([2, 2], vec![0.0, 1.0, 1.0, 1.0])),
        ("key", HostTensor::i32([2, 4], vec![0, 5, 0, 1, 2, 5, 0, 1])),
    ];
    tensors.map(|(name, t)| (name.to_owned(), t)).into()
}

#[test]
fn rows_are_selected_from() {
    for workers in [1, 3] {
        let p = model();
        let kernels = Box::new(Interpreter::new(p.kernels.values()));
        let options = Options { workers, ..Options::default() };
        let mut session = Session::new(p, kernels, &NoWeights, &options, &|_, _| {}).unwrap();
        let mut given = inputs();
        let out = session.run("forward", &given, 2).unwrap();
        // Of equal elements the first comes first, NaN before all; a row with NaN has no token.
        assert_eq!(out["indices"].data, HostData::I32(vec![1, 3, 0, 2]));
        assert_eq!(out["token"].data, HostData::I32(vec![1, -1]));
        // One row: the other is not looked at.
        given.insert("x".to_owned(), HostTensor::f32([1, 4], vec![0.0, -1.0, 5.0, 4.0]));
        given.insert("settings".to_owned(), HostTensor::f32([1, 2], vec![1.0, 0.5]));
        given.insert("key".to_owned(), HostTensor::i32([1, 4], vec![0, 1, 2, 3]));
        let out = session.run("forward", &given, 1).unwrap();
        assert_eq!(out["token"].data, HostData::I32(vec![2]));
    }
}

fn top(p: &mut Program) -> &mut TopKCall {
    match &mut p.funcs[0].instrs[0].kind {
        InstrKind::TopK(t) => t,
        other => panic!("{other:?}"),
    }
}

fn draw(p: &mut Program) -> &mut SampleCall {
    match &mut p.funcs[0].instrs[1].kind {
        InstrKind::Sample(s) => s,
        other => panic!("{other:?}"),
    }
}

#[test]
fn faults_are_named() {
    type Break = fn(&mut Program);
    let cases: &[(Break, &str)] = &[
        (|p| top(p).k = 0, "0 of 4 elements"),
        (|p| top(p).k = 5, "5 of 4 elements"),
        (|p| top(p).n = 5, "x: elements 0 to 8"),
        (|p| top(p).n = u64::MAX, "elements in 1 dims"),
        (|p| top(p).n = 1 << 31, "elements in 1 dims"),
        (|p| top(p).rows = vec![1.into(); 17], "in 17 dims"),
        (|p| top(p).rows = vec![], "x has extents"),
        (|p| top(p).rows = vec![0.into()], "x has extents"),
        (|p| top(p).rows = vec![u64::MAX.into()], "x has extents"),
        (|p| top(p).rows = vec![(1 << 40).into()], "x: elements"),
        (|p| top(p).rows = vec![3.into()], "x: elements 0 to 11"),
        (|p| top(p).x.strides = vec![1], "x has extents"),
        (|p| top(p).values.strides = vec![2, 1, 1], "values has extents"),
        (|p| top(p).x.strides[0] = i64::MAX, "x: elements"),
        (|p| top(p).x.strides[0] = i64::MIN, "x: elements"),
        (|p| top(p).x.strides[1] = -1, "x: elements -3"),
        (|p| top(p).x.strides[0] = 0, "strides of x may take two elements to one"),
        (|p| top(p).values.strides[1] = 0, "strides of values may take two elements to one"),
        (|p| top(p).x.dtype = DType::I32, "no top-k of i32"),
        (|p| top(p).x.dtype = DType::F64, "no top-k of f64"),
        (|p| top(p).x.dtype = DType::BF16, "values is f32, not bf16"),
        (|p| top(p).indices.dtype = DType::F32, "indices is f32, not i32"),
        (|p| top(p).x.loc = slot(9), "x: there is no slot 9"),
        (|p| top(p).x.loc.offset = 4, "x: elements 0 to 7 from byte 4"),
        (|p| top(p).values.loc = slot(1), "values: slot 1 is written"),
        (|p| top(p).values.loc = frame(56), "values: elements 0 to 3 from byte 56"),
        (|p| top(p).values.loc = slot(3), "what is written overlaps what is read"),
        (|p| (top(p).x.loc, top(p).values.loc) = (frame(0), frame(16)), "overlaps"),
        (|p| draw(p).tokens = 0, "0 tokens to choose from"),
        (|p| draw(p).tokens = u64::MAX, "tokens to choose from"),
        (|p| draw(p).tokens = (1 << 24) + 1, "16777217 tokens"),
        (|p| draw(p).tokens = 5, "logits: elements 0 to 8"),
        (|p| draw(p).rows = 0.into(), "logits has extents"),
        (|p| draw(p).rows = u64::MAX.into(), "logits has extents"),
        (|p| draw(p).rows = 3.into(), "logits: elements 0 to 11"),
        (|p| draw(p).logits.dtype = DType::BF16, "logits is bf16, not f32"),
        (|p| draw(p).key.dtype = DType::F32, "key is f32, not i32"),
        (|p| draw(p).out.dtype = DType::I64, "out is i64, not i32"),
        (|p| draw(p).settings.loc.offset = 8, "settings: elements 0 to 3 from byte 8"),
        (|p| draw(p).key.strides = vec![0, 1], "strides of key may take two elements to one"),
        (|p| draw(p).out.strides = vec![1, 1], "out has extents"),
        (|p| draw(p).out.strides = vec![], "out has extents"),
        (|p| draw(p).out.loc = slot(0), "out: slot 0 is written"),
        (|p| draw(p).out.loc = slot(3), ""),
        (|p| (draw(p).key.loc, draw(p).out.loc) = (frame(0), frame(28)), "overlaps"),
    ];
    for (i, (change, why)) in cases.iter().enumerate() {
        let mut p = model();
        change(&mut p);
        match crate::validate::check(&p) {
            Err(e) => {
                assert!(!why.is_empty() && e.to_string().contains(why), "{i}: {e} instead of {why}");
                let place = e.place.unwrap_or_default();
                assert!(place.contains("funcs[0] `head`, instrs["), "{i}: {place}");
            }
            Ok(()) => assert!(why.is_empty(), "{i} is accepted: {why}"),
        }
    }
}
