use super::parse;
use crate::graph::{Entry, Func, Label, Module, Param, Role, State};
use crate::mesh::{Axis, Mesh};
use crate::ops::{BinaryKind, Collective, DotGeneral, MaskTail, Op, ShardBase};
use crate::repeat::Repeat;
use crate::sharding::{Claim, Pad, Sharding, Term};
use crate::source::ParamSource;
use crate::types::{ReduceKind, Type};

/// One of everything the text form can say.
fn module() -> Module {
    let mesh = Mesh { tp: 8, dp: 2, ..Mesh::default() };
    let (tp4, tp2) = (mesh.part(Axis::Tp, 1, 4).unwrap(), mesh.part(Axis::Tp, 4, 2).unwrap());
    let mut m = Module { name: "a \"b\"\n".into(), mesh, ..Module::default() };
    let sharding =
        Sharding { dims: vec![vec![mesh.whole(Axis::Dp)], vec![tp4]], partial: vec![(tp2, ReduceKind::Max)] };
    let mut f = Func::new("layer");
    let x = f.arg(Type::f32([4, 6]), "x");
    let w = f.arg(Type::f32([6, 5]), "");
    f.values[x].labels = vec![Some(Label::Batch), None];
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![1],
        rhs_contract: vec![0],
        result: None,
    };
    let y = f.apply(Op::DotGeneral(dot), &[x, w], "fc.weight").unwrap()[0];
    f.values[y].sharding = Some(sharding.clone());
    let z = f.apply(Op::Binary(BinaryKind::Add), &[y, y], "").unwrap()[0];
    let term = Term::Sum(vec![Term::Value(y), Term::Sum(vec![Term::Value(x), Term::Value(z)])]);
    f.values[z].claim =
        Some(Claim { term, sharding: sharding.clone(), pad: vec![Pad::Zero, Pad::Unspecified] });
    let mask = MaskTail { axes: vec![tp4, tp2], dim: 1, global: 5, value: f64::NEG_INFINITY };
    let z = f.push(Op::MaskTail(mask), vec![z], vec![Type::f32([4, 5])], "")[0];
    let reduce = Collective::AllReduce { axes: vec![tp2], kind: ReduceKind::Min };
    let z = f.push(Op::Collective(reduce), vec![z], vec![Type::f32([4, 5])], "x")[0];
    let z = f.push(Op::Reshard(sharding.clone()), vec![z], vec![Type::f32([4, 5])], "")[0];
    f.value(Type::i32([]));
    f.results.push(z);
    let callee = m.funcs.push(f);
    let mut main = Func::new("main");
    let x = main.arg(Type::f32([4, 6]), "x");
    let w = main.arg(Type::f32([6, 5]), "w");
    let s = main.arg(Type::f32([3]), "s");
    let y = main.call(callee, &m.funcs[callee], &[x, w], "layers.0").unwrap()[0];
    main.push(Op::Send { stage: 1, tag: 7 }, vec![y], vec![], "");
    let base = Some(ShardBase { global: 9, axes: vec![tp4] });
    let iota = crate::ops::Iota { ty: Type::i32([3]), dim: 0, base };
    main.push(Op::Iota(iota), vec![], vec![Type::i32([3])], "");
    main.results = vec![y, s];
    let func = m.funcs.push(main);
    let source = ParamSource::constant([6, 5], 0.1);
    let p = m.params.push(Param {
        name: "w".into(),
        ty: Type::f32([6, 5]),
        source,
        sharding: Some(sharding),
        stack: Some(3),
    });
    let s = m.states.push(State { name: "s".into(), ty: Type::f32([3]), sharding: None, stack: None });
    m.entries.push(Entry {
        name: "forward".into(),
        func,
        args: vec![Role::Input("x".into()), Role::Param(p), Role::State(s)],
        results: vec!["y".into(), "s".into()],
        aliases: vec![(2, 1)],
        weight: 0.1,
        repeats: vec![Repeat { first: 2, calls: 1, count: 79 }],
    });
    m
}

#[test]
fn text_and_json_round_trip() {
    let m = module();
    let text = m.to_string();
    let back = parse(&text).unwrap_or_else(|d| panic!("{d}\n{text}"));
    assert_eq!(back, m, "{text}");
    assert_eq!(back.to_string(), text);
    let json = serde_json::to_string(&m).unwrap();
    assert_eq!(serde_json::from_str::<Module>(&json).unwrap(), m);
}

/// Every prefix, and the text with any one line dropped or any one byte replaced, is either a module or a diagnostic.
#[test]
fn damaged_text_is_a_diagnostic() {
    let text = module().to_string();
    for end in 0..text.len() {
        let _ = parse(&text[..end]);
        for c in ["%", "9", "}", "\"", "-"] {
            let mut damaged = text.clone();
            damaged.replace_range(end..=end, c);
            let _ = parse(&damaged);
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    for skip in 0..lines.len() {
        let rest: Vec<&str> = lines.iter().enumerate().filter(|(i, _)| *i != skip).map(|(_, l)| *l).collect();
        let _ = parse(&rest.join("\n"));
    }
    let deep = format!("module \"\" mesh() fn %0 \"\" (%0: f32[] claim {}", "sum(".repeat(100_000));
    assert!(parse(&deep).is_err());
    let json = "[".repeat(1_000_000);
    let deep = format!("module \"\" mesh() fn %0 \"\" () -> () {{ %0: f32[] = constant() {json}");
    assert!(parse(&deep).is_err());
}

#[test]
fn errors_say_where() {
    let e = parse("module \"m\" mesh(tp=2)\nfn %0 \"f\" (%0: f32[0]) -> () {}").unwrap_err();
    assert_eq!(e.place.as_deref(), Some("line 2, column 19"));
    assert!(parse("module \"m\" mesh(tp=0)").is_err());
    let e = parse("module \"m\" mesh() fn %0 \"f\" () -> (%4) {}").unwrap_err();
    assert!(e.what.contains("%4"), "{e}");
}
