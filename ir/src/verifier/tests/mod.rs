//! Every rule of the module's documentation, broken by the smallest change of a module that is well formed.

mod changes;

use super::verify;
use crate::diagnostic::{Diagnostic, Fault};
use crate::graph::{Func, FuncId, Module, ParamId, Role, StateId, ValueId};
use crate::ops::Op;
use crate::sharding::{Claim, Sharding, Term};
use crate::text::parse;
use crate::types::{DType, Type};
use changes::CHANGES;

const GRAPH: &str = r#"module "m" mesh(dp=2, tp=4)
param %0 "w" : f32[6,8] = {"shape":[6,8],"values":{"constant":1.0}}
state %0 "cache" : f32[4,5]
fn %0 "layer" (%0: f32[4,6] "x" labels (batch, _), %1: f32[6,8] "w") -> (%2) {
  %2: f32[4,8] "y" = dot_general(%0, %1) {"lhs_batch":[],"rhs_batch":[],"lhs_contract":[1],"rhs_contract":[0]} loc "fc"
}
fn %1 "main" (%0: f32[4,6], %1: f32[6,8], %2: f32[4,5]) -> (%3, %4) {
  %3: f32[4,8] = call(%0, %1) fn %0
  %4: f32[4,5] = unary(%2) "neg"
}
entry "forward" fn %1 (input "x", param %0, state %0) -> ("y", "cache") alias [(2, 1)] weight 1
"#;

const SHARDED: &str = r#"module "m" mesh(dp=2, tp=4)
param %0 "w" : f32[6,8] sharding [{tp}, {}] = {"shape":[6,8],"values":{"constant":1.0}}
state %0 "cache" : f32[4,5] sharding [{dp}, {tp:(1)2}]
fn %0 "layer" (%0: f32[4,6] "x" sharding [{dp}, {tp}], %1: f32[6,8] "w" sharding [{tp}, {}]) -> (%3) {
  %2: f32[4,8] "y" sharding [{dp}, {}] partial {tp sum} = dot_general(%0, %1) {"lhs_batch":[],"rhs_batch":[],"lhs_contract":[1],"rhs_contract":[0]} loc "fc"
  %3: f32[4,8] "y" sharding [{dp}, {}] = reshard(%2) sharding [{dp}, {}]
}
fn %1 "main" (%0: f32[4,6] sharding [{dp}, {tp}], %1: f32[6,8] sharding [{tp}, {}], %2: f32[4,5] sharding [{dp}, {tp:(1)2}]) -> (%3, %4) {
  %3: f32[4,8] sharding [{dp}, {}] = call(%0, %1) fn %0
  %4: f32[4,5] sharding [{dp}, {tp:(1)2}] = unary(%2) "neg"
}
entry "forward" fn %1 (input "x", param %0, state %0) -> ("y", "cache") alias [(2, 1)] weight 1
"#;

/// 6 by 4 is 2, 2, 2 and nothing; 5 by 2 is 3 and 2.
const LOCAL: &str = r#"module "m" mesh(pp=2, dp=2, tp=4)
param %0 "w" : f32[6,8] sharding [{tp}, {}] = {"shape":[6,8],"values":{"constant":1.0}}
state %0 "cache" : f32[4,5] sharding [{dp}, {tp:(1)2}]
fn %0 "layer" (%0: f32[2,2] "x" claim %0 sharding [{dp}, {tp}] pad (zero, zero), %1: f32[2,8] "w" claim %1 sharding [{tp}, {}] pad (zero, zero)) -> (%3) {
  %2: f32[2,8] "y" claim %2 sharding [{dp}, {}] partial {tp sum} pad (zero, zero) = dot_general(%0, %1) {"lhs_batch":[],"rhs_batch":[],"lhs_contract":[1],"rhs_contract":[0]} loc "fc"
  %3: f32[2,8] "y" claim %3 sharding [{dp}, {}] pad (zero, zero) = collective(%2) {"all_reduce":{"axes":["tp:(1)4"],"kind":"sum"}}
}
fn %1 "main" (%0: f32[2,2] claim %0 sharding [{dp}, {tp}] pad (zero, zero), %1: f32[2,8] claim %1 sharding [{tp}, {}] pad (zero, zero), %2: f32[2,3] claim %2 sharding [{dp}, {tp:(1)2}] pad (zero, zero)) -> (%3, %4) {
  %3: f32[2,8] claim %3 sharding [{dp}, {}] pad (zero, zero) = call(%0, %1) fn %0
  %4: f32[2,3] claim sum(%4, sum(%2)) sharding [{dp}, {tp:(1)2}] pad (zero, zero) = mask_tail(%2) {"axes":["tp:(1)2"],"dim":1,"global":5,"value":0.0}
}
fn %2 "stage" (%0: i32[3] claim %0 sharding [{}] pad (zero)) -> () {
  %1: f32[2,8] claim %1 sharding [{tp}, {}] pad (zero, any) = recv() {"stage":0,"tag":1,"ty":{"dtype":"f32","shape":[2,8]}}
  %2: f32[3,8] claim %2 sharding [{}, {}] partial {tp sum} pad (zero, zero) = gather(%1, %0) {"batch":0,"base":{"global":6,"axes":["tp:(1)4"]}}
  %3: f32[1,8] claim %3 sharding [{tp}, {}] partial {} pad (any, any) = collective(%2) {"reduce_scatter":{"axes":["tp:(1)4"],"dim":0,"kind":"sum","global":3}}
  %4: f32[3,8] claim %4 sharding [{}, {}] pad (any, any) = collective(%3) {"all_gather":{"axes":["tp:(1)4"],"dim":0,"global":3}}
  %5: f32[3,2] claim %5 sharding [{}, {tp}] pad (any, any) = shard_slice(%4) {"axes":["tp:(1)4"],"dim":1,"global":8}
  send(%5) {"stage":0,"tag":1}
}
entry "forward" fn %1 (input "x", param %0, state %0) -> ("y", "cache") alias [(2, 1)] weight 1
"#;

/// A layer, three more of it, and what follows them.
const FOLDED: &str = r#"module "m" mesh()
param %0 "w.0" : f32[3] = {"shape":[3],"values":{"constant":1.0}}
param %1 "w.{1+1}" : f32[3] stack 3 = {"shape":[3],"values":{"random":{"seed":0,"name":"w.{1+1}","scale":1.0}}}
state %0 "s.0" : f32[3]
state %1 "s.{1+1}" : f32[3] stack 3
fn %0 "layer" (%0: f32[3], %1: f32[3], %2: f32[3]) -> (%3, %4) {
  %3: f32[3] = binary(%0, %1) "add"
  %4: f32[3] = binary(%0, %2) "add"
}
fn %1 "head" (%0: f32[3]) -> (%1) {
  %1: f32[3] = unary(%0) "neg"
}
fn %2 "main" (%0: f32[3], %1: f32[3] "w.0", %2: f32[3] "w", %3: f32[3], %4: f32[3] "s") -> (%9, %6, %8) {
  %5: f32[3], %6: f32[3] = call(%0, %1, %3) fn %0
  %7: f32[3], %8: f32[3] = call(%5, %2, %4) fn %0
  %9: f32[3] = call(%7) fn %1
}
entry "forward" fn %2 (input "x", param %0, param %1, state %0, state %1) -> ("y", "s.0", "s.{1+1}") alias [(3, 1), (4, 2)] weight 1 repeat [(1, 1, 3)]
"#;

/// A rule, a text, a change that the text form cannot say, and what the message says.
type Mutation = (&'static str, &'static str, fn(&mut Module), &'static str);

fn func(m: &mut Module, i: u32) -> &mut Func {
    &mut m.funcs[FuncId::from_u32(i)]
}

fn value(i: u32) -> ValueId {
    ValueId::from_u32(i)
}

const MUTATIONS: &[Mutation] = &[
    ("M1", GRAPH, |m| m.mesh.tp = 0, "[1, 2, 1, 1, 0] devices"),
    ("M1", GRAPH, |m| m.mesh.dp = u32::MAX, "the mesh"),
    ("M2", GRAPH, same_parameter, "parameter `w`"),
    (
        "M3",
        GRAPH,
        |m| m.states[StateId::from_u32(0)].ty = Type::f32([4, 0]),
        "f32[4,0] is empty or too large",
    ),
    ("M3", GRAPH, |m| m.params[ParamId::from_u32(0)].ty = Type::f32([1 << 40, 1 << 40]), "too large"),
    ("M5", GRAPH, |m| func(m, 1).insts[0].op = Op::Call(FuncId::from_u32(9)), "calls fn9"),
    ("M6", GRAPH, calls_double, "more than 16777216 instructions"),
    (
        "L2",
        GRAPH,
        |m| m.states[StateId::from_u32(0)].sharding = Some(Sharding::replicated(2)),
        "has no sharding",
    ),
    ("F1", GRAPH, |m| func(m, 0).args.push(value(9)), "function `layer`: it has no value %9"),
    ("F1", GRAPH, |m| func(m, 0).results.push(value(9)), "function `layer`: it has no value %9"),
    ("F1", GRAPH, |m| func(m, 0).insts[0].args[1] = value(9), "%2 = dot_general of fc: it has no value %9"),
    ("F1", GRAPH, |m| func(m, 0).insts[0].results[0] = value(9), "it has no value %9"),
    ("F2", GRAPH, |m| func(m, 0).args[1] = value(0), "value %0 `x`: it is defined twice"),
    ("F2", GRAPH, |m| func(m, 1).insts[1].results[0] = value(3), "value %3: it is defined twice"),
    ("F3", GRAPH, |m| func(m, 0).insts.clear(), "it returns %2, which nothing defines"),
    ("F4", GRAPH, |m| func(m, 1).values[value(0)].ty = Type::f32([0]), "f32[0] is empty or too large"),
    ("F4", GRAPH, |m| func(m, 1).values[value(4)].ty = Type::f32([1 << 60]), "too large"),
    (
        "F4",
        LOCAL,
        |m| func(m, 2).insts[0].op = Op::Recv { stage: 0, tag: 1, ty: Type::f32([0]) },
        "f32[0] is empty",
    ),
    ("F5", GRAPH, |m| func(m, 1).insts[1].results.clear(), "neg: the result is declared  but is f32[4,5]"),
    ("S4", SHARDED, boolean_partial, "a boolean value cannot be partial"),
    ("S7", LOCAL, |m| claim(m).term = Term::Sum(vec![]), "a sum of nothing"),
    (
        "S7",
        LOCAL,
        |m| (0..65).for_each(|_| claim(m).term = Term::Sum(vec![claim(m).term.clone()])),
        "more than 64 deep",
    ),
    ("E1", GRAPH, |m| m.entries[0].func = FuncId::from_u32(9), "its function fn9 does not exist"),
    ("E2", GRAPH, |m| m.entries[0].args[1] = Role::Param(ParamId::from_u32(9)), "param9 does not exist"),
    ("E2", GRAPH, |m| m.entries[0].args[2] = Role::State(StateId::from_u32(9)), "state9 does not exist"),
    ("E7", GRAPH, |m| m.entries[0].weight = f64::NAN, "its weight NaN"),
    ("E8", SHARDED, partial_result, "result `y`: it is still a partial sum over tp:(1)4"),
];

/// 2^25 instructions when calls are carried out.
fn calls_double(m: &mut Module) {
    let mut last = Func::new("f");
    let x = last.arg(Type::f32([1]), "x");
    last.unary(crate::ops::UnaryKind::Neg, x).unwrap();
    for _ in 0..25 {
        let id = m.funcs.push(last);
        last = Func::new("f");
        let x = last.arg(Type::f32([1]), "x");
        for _ in 0..2 {
            last.call(id, &m.funcs[id], &[x], "").unwrap();
        }
    }
    m.funcs.push(last);
}

fn claim(m: &mut Module) -> &mut Claim {
    func(m, 1).values[value(4)].claim.as_mut().unwrap()
}

fn same_parameter(m: &mut Module) {
    let w = m.params[ParamId::from_u32(0)].clone();
    m.params.push(w);
}

fn boolean_partial(m: &mut Module) {
    func(m, 0).values[value(2)].ty.dtype = DType::Bool;
}

/// The layer gives its product before it is reduced, and `main` gives it on.
fn partial_result(m: &mut Module) {
    func(m, 0).results[0] = value(2);
    let sharding = func(m, 0).values[value(2)].sharding.clone();
    func(m, 1).values[value(3)].sharding = sharding;
}

fn module(text: &str) -> Module {
    parse(text).unwrap_or_else(|d| panic!("{d}\n{text}"))
}

#[test]
fn well_formed_modules_pass() {
    for text in [GRAPH, SHARDED, LOCAL, FOLDED] {
        verify(&module(text)).unwrap_or_else(|d| panic!("{d}\n{text}"));
    }
    verify(&Module::default()).unwrap();
}

#[test]
fn each_rule_is_broken_by_a_change() {
    let mut wrong = Vec::new();
    let changed = CHANGES.iter().map(|&(rule, text, from, to, says)| {
        assert!(text.contains(from), "{rule}: nothing to change: {from}");
        (rule, module(&text.replace(from, to)), says)
    });
    let mutated = MUTATIONS.iter().map(|&(rule, text, change, says)| {
        let mut m = module(text);
        change(&mut m);
        (rule, m, says)
    });
    for (rule, m, says) in changed.chain(mutated) {
        match verify(&m) {
            Err(d) if d.fault == Fault::Input && told(&d).contains(says) => {}
            other => wrong.push(format!("{rule}: wanted {says}, got {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where and why.
fn told(d: &Diagnostic) -> String {
    format!("{}: {}", d.place.as_deref().unwrap_or_default(), d.why.as_deref().unwrap_or_default())
}

#[test]
fn every_documented_rule_has_a_change() {
    let tested = |rule: &str| CHANGES.iter().any(|c| c.0 == rule) || MUTATIONS.iter().any(|c| c.0 == rule);
    let rules: Vec<&str> = include_str!("../mod.rs")
        .lines()
        .filter_map(|l| l.strip_prefix("//! - **")?.split_once("**").map(|(rule, _)| rule))
        .collect();
    assert_eq!(rules.len(), 38, "{rules:?}");
    assert_eq!(rules.iter().find(|r| !tested(r)), None);
}
