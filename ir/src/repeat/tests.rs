use super::names::{Template, element, place, repeated};
use super::{Bound, Chain, Numbering};
use crate::eval::{Tensor, eval_entry};
use crate::graph::Module;
use crate::source::ParamSource;
use crate::text::parse;
use crate::types::Type;
use crate::verifier::verify;
use std::collections::BTreeMap;

/// Layers of two kinds by turns: 1 + 3 repetitions of two, then one more of the first kind. `a` adds to its state, `b` scales by
/// a weight that all share.
const FOLDED: &str = r#"module "m" mesh()
param %0 "l.0.w" : f32[2] = {"shape":[2],"values":{"random":{"seed":1,"name":"l.0.w","scale":1.0}}}
param %1 "shared" : f32[2] = {"shape":[2],"values":{"random":{"seed":1,"name":"shared","scale":1.0}}}
param %2 "l.1.w" : f32[2] = {"shape":[2],"values":{"random":{"seed":1,"name":"l.1.w","scale":1.0}}}
param %3 "l.{2+2}.w" : f32[2] stack 3 = {"shape":[2],"values":{"random":{"seed":1,"name":"l.{2+2}.w","scale":1.0}}}
param %4 "l.{3+2}.w" : f32[2] stack 3 = {"shape":[2],"values":{"random":{"seed":1,"name":"l.{3+2}.w","scale":1.0}}}
param %5 "l.8.w" : f32[2] = {"shape":[2],"values":{"random":{"seed":1,"name":"l.8.w","scale":1.0}}}
state %0 "s.0" : f32[2]
state %1 "s.{2+2}" : f32[2] stack 3
state %2 "s.8" : f32[2]
fn %0 "a" (%0: f32[2], %1: f32[2], %2: f32[2]) -> (%4, %3) {
  %3: f32[2] = binary(%2, %0) "add"
  %4: f32[2] = binary(%3, %1) "add"
}
fn %1 "b" (%0: f32[2], %1: f32[2], %2: f32[2]) -> (%4) {
  %3: f32[2] = binary(%0, %1) "mul"
  %4: f32[2] = binary(%3, %2) "add"
}
fn %2 "main" (%0: f32[2] "x", %1: f32[2], %2: f32[2], %3: f32[2], %4: f32[2] "l.{2+2}.w", %5: f32[2] "l.{3+2}.w", %6: f32[2], %7: f32[2], %8: f32[2], %9: f32[2]) -> (%16, %11, %14, %17) {
  %10: f32[2], %11: f32[2] = call(%0, %1, %7) fn %0 loc "l.0"
  %12: f32[2] = call(%10, %2, %3) fn %1 loc "l.1"
  %13: f32[2], %14: f32[2] = call(%12, %4, %8) fn %0 loc "l.{2+2}"
  %15: f32[2] = call(%13, %2, %5) fn %1 loc "l.{3+2}"
  %16: f32[2], %17: f32[2] = call(%15, %6, %9) fn %0 loc "l.8"
}
entry "forward" fn %2 (input "x", param %0, param %1, param %2, param %3, param %4, param %5, state %0, state %1, state %2) -> ("y", "s.0", "s.{2+2}", "s.8") alias [(7, 1), (8, 2), (9, 3)] weight 1 repeat [(2, 2, 3)]
"#;

fn module(text: &str) -> Module {
    let module = parse(text).unwrap_or_else(|d| panic!("{d}"));
    verify(&module).unwrap_or_else(|d| panic!("{d}"));
    module
}

fn vector(data: &[f64]) -> Tensor {
    Tensor::new(Type::f32([data.len()]), data.to_vec()).unwrap()
}

#[test]
fn an_unfolded_module_is_the_layers_one_by_one() {
    let folded = module(FOLDED);
    assert_eq!(folded.to_string(), FOLDED.replace("mesh()", "mesh(pp=1, dp=1, cp=1, ep=1, tp=1)"));
    let flat = folded.expanded().unwrap().into_owned();
    verify(&flat).unwrap();
    assert!(!flat.is_folded());
    let names: Vec<&str> = flat.params.values().map(|p| p.name.as_str()).collect();
    let layers = ["l.2.w", "l.3.w", "l.4.w", "l.5.w", "l.6.w", "l.7.w"];
    assert_eq!(names, [&["l.0.w", "shared", "l.1.w"][..], &layers, &["l.8.w"]].concat());
    assert!(flat.params.values().all(|p| p.source.name() == Some(&*p.name)));
    let states: Vec<&str> = flat.states.values().map(|s| s.name.as_str()).collect();
    assert_eq!(states, ["s.0", "s.2", "s.4", "s.6", "s.8"]);
    assert_eq!((flat.parameters(), folded.parameters()), (20, 20));
    let locs: Vec<&str> = flat.funcs.values().last().unwrap().insts.iter().map(|i| i.loc.as_str()).collect();
    assert_eq!(locs, ["l.0", "l.1", "l.2", "l.3", "l.4", "l.5", "l.6", "l.7", "l.8"]);

    // The same by hand: state += x, x = state + w; then x = x * shared + w.
    let mut params = Vec::new();
    for p in flat.params.values() {
        let mut values = [0.0f32; 2];
        p.source.fill(std::slice::from_ref(&(0..2)), &mut values).unwrap();
        params.push(vector(&values.map(f64::from)));
    }
    let mut states: Vec<Tensor> = (0..5).map(|i| vector(&[i as f64, 0.5])).collect();
    let inputs = BTreeMap::from([("x".to_owned(), vector(&[0.25, -1.0]))]);
    let outputs = eval_entry(&flat, &flat.entries[0], &inputs, &params, &mut states).unwrap();
    let by_name = |name: &str| &params[names.iter().position(|n| *n == name).unwrap()].data;
    for d in 0..2 {
        let mut x = inputs["x"].data[d];
        for layer in 0..9 {
            let w = by_name(&format!("l.{layer}.w"))[d];
            if layer % 2 == 0 {
                let state = [(layer / 2) as f64, 0.5][d] + x;
                assert!((states[layer / 2].data[d] - state).abs() < 1e-12, "state of layer {layer}");
                x = state + w;
            } else {
                x = x * by_name("shared")[d] + w;
            }
        }
        assert!((outputs["y"].data[d] - x).abs() < 1e-12);
    }
    let refused = eval_entry(&folded, &folded.entries[0], &inputs, &params, &mut states).unwrap_err();
    assert!(refused.contains("unfold"), "{refused}");
}

#[test]
fn a_chain_lists_every_call_with_its_own_values() {
    let folded = module(FOLDED);
    let chain = Chain::of(&folded, &folded.entries[0]).unwrap();
    let calls: Vec<(u32, u32)> = chain.calls.iter().map(|c| (c.inst, c.repetition)).collect();
    assert_eq!(calls, [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2), (4, 0)]);
    // Every call takes what the call before it gave first.
    for pair in chain.calls.windows(2) {
        assert_eq!(chain.args_of(&pair[1])[0], chain.results_of(&pair[0])[0]);
    }
    let bound = |v: u32| chain.args.iter().find(|a| a.0 == v).unwrap().1;
    let weights: Vec<Bound> = chain.calls.iter().map(|c| bound(*chain.args_of(c).last().unwrap())).collect();
    let (p, s) = (Bound::Param, Bound::State);
    assert_eq!(weights, [s(0), p(2), s(1), p(4), s(2), p(6), s(3), p(8), s(4)]);
    let states: Vec<Option<u32>> = chain.results.iter().map(|r| r.state).collect();
    assert_eq!(states, [None, Some(0), Some(1), Some(2), Some(3), Some(4)]);
}

#[test]
fn tables_are_numbered_layer_by_layer() {
    let stacks = [None, Some(3), Some(3), None, Some(2)];
    let n = Numbering::new(stacks.into_iter()).unwrap();
    assert_eq!(n.len(), 1 + 6 + 1 + 2);
    let order: Vec<(u32, u32)> = (0..n.len()).map(|i| n.origin(i).unwrap()).collect();
    let expected = [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 0), (4, 0), (4, 1)];
    assert_eq!(order, expected);
    assert!(order.iter().zip(0..).all(|(&(row, k), i)| n.number(row, k) == i));
    assert_eq!(n.origin(n.len()), None);
    for wrong in [&[Some(0)][..], &[Some(u32::MAX)], &[Some(1 << 20), None]] {
        assert!(Numbering::new(wrong.iter().copied()).is_err(), "{wrong:?}");
    }
}

#[test]
fn names_with_open_numbers() {
    let name = format!("layers.{}.w", place(2, 3));
    assert_eq!(name, "layers.{2+3}.w");
    assert_eq!((element(&name, 0), element(&name, 4)), ("layers.2.w".into(), "layers.14.w".into()));
    for plain in ["w", "w{2}", "{1+1}{1+1}", "{01+1}", "{+1+1}", "{1+1", "{-1+1}", "{1+4294967296}"] {
        assert_eq!(element(plain, 7), plain);
    }
    assert_eq!(Template::parse("{4294967295+1}").unwrap().number(1), None);
    let twice = |names: &[(&'static str, Option<u32>)]| repeated(names.iter().copied());
    assert_eq!(twice(&[("a.{0+2}", Some(3)), ("a.{1+2}", Some(3)), ("a.6", None), ("b.0", None)]), None);
    assert_eq!(twice(&[("a.{0+2}", Some(3)), ("a.4", None)]), Some("a.4"));
    assert_eq!(twice(&[("a.{0+2}", Some(3)), ("a.{4+2}", Some(1))]), Some("a.{4+2}"));
    assert_eq!(twice(&[("a.{0+2}", Some(3)), ("a.{1+3}", Some(2))]), Some("a.{1+3}"));
    assert_eq!(twice(&[("a.{0+0}", Some(3)), ("a.1", None)]), None);
    assert_eq!(twice(&[("a", None), ("a", None)]), Some("a"));
}

#[test]
fn a_source_is_every_element_s_own() {
    let source = ParamSource::random([2], 3, "w.{5+1}", 0.5);
    assert_eq!(source.element(2), ParamSource::random([2], 3, "w.7", 0.5));
    assert_eq!(ParamSource::ones([2]).element(2), ParamSource::ones([2]));
}
