//! Outlined modules compute what the flat ones did, in few functions.

use super::*;
use crate::solve::models::{Builder, EntryBuilder, SMOLLM, dot, llama, mlp, op};
use pcc_ir::eval::{Tensor, eval_func};
use pcc_ir::graph::Label;
use pcc_ir::ops::{BinaryKind, UnaryKind};
use pcc_ir::{Type, ValueId};

fn relu(f: &mut Func, x: ValueId) -> ValueId {
    op(f, Op::Unary(UnaryKind::Relu), &[x], "relu")
}

fn add(f: &mut Func, a: ValueId, b: ValueId) -> ValueId {
    op(f, Op::Binary(BinaryKind::Add), &[a, b], "add")
}

/// Both modules' first entries on the same arbitrary inputs.
fn same(a: &Module, b: &Module) {
    let f = &a.funcs[a.entries[0].func];
    assert_eq!(a.entries[0].args, b.entries[0].args);
    let args: Vec<Tensor> = f
        .args
        .iter()
        .enumerate()
        .map(|(i, &v)| {
            let ty = f.ty(v).clone();
            let data = (0..ty.elements()).map(|k| ((k * 7 + i * 13) % 11) as f64 / 8.0 - 0.6).collect();
            Tensor { ty, data }
        })
        .collect();
    let run = |m: &Module| eval_func(m, m.entries[0].func, &args).unwrap();
    let (x, y) = (run(a), run(b));
    assert_eq!(x.len(), y.len());
    for (x, y) in x.iter().zip(&y) {
        assert_eq!(x.data, y.data);
    }
}

/// Names of the functions called, in order.
fn calls(m: &Module) -> Vec<String> {
    let f = &m.funcs[m.entries[0].func];
    f.insts
        .iter()
        .map(|i| match i.op {
            Op::Call(c) => m.funcs[c].name.clone(),
            _ => i.op.name().to_owned(),
        })
        .collect()
}

#[test]
fn residual_layers_become_one_function() {
    let flat = mlp(4, 8, 12, 5, true);
    let m = outline(&flat, 1).unwrap();
    assert_eq!(calls(&m), vec!["part0"; 5]);
    assert_eq!(m.funcs.len(), 2);
    same(&flat, &m);
}

/// A plain perceptron: square layers pair up, so that each function can be column then row parallel.
fn plain(widths: &[usize]) -> Module {
    let mut b = Builder::new("plain");
    let params: Vec<Role> =
        widths.windows(2).enumerate().map(|(i, w)| b.param(&format!("w{i}"), &[w[0], w[1]])).collect();
    let mut e = EntryBuilder::new(&mut b, "forward");
    let mut x = e.input("x", Type::f32([3, widths[0]]), &[Some(Label::Batch), None]);
    for p in &params {
        let w = e.stored(p);
        x = dot(&mut e.func, x, w, 1, "dot");
        x = relu(&mut e.func, x);
    }
    e.finish(&[(x, "y")], &[]);
    b.module
}

#[test]
fn weights_pair_up() {
    let square = plain(&[8; 7]);
    let m = outline(&square, 1).unwrap();
    assert_eq!(calls(&m), ["part0", "part0", "part0"]);
    same(&square, &m);
    let uneven = plain(&[8, 12, 6, 10]);
    let m = outline(&uneven, 1).unwrap();
    assert_eq!(calls(&m), ["part0", "part1"]);
    same(&uneven, &m);
    // A pipeline of three needs three calls.
    let m = outline(&uneven, 3).unwrap();
    assert_eq!(calls(&m), ["part0", "part1", "part2"]);
    same(&uneven, &m);
}

#[test]
fn skip_connections_and_shared_inputs() {
    let mut b = Builder::new("skip");
    let params: Vec<Role> = (0..6).map(|i| b.param(&format!("w{i}"), &[8, 8])).collect();
    let mut e = EntryBuilder::new(&mut b, "forward");
    let x = e.input("x", Type::f32([3, 8]), &[Some(Label::Batch), None]);
    let scale = e.input("scale", Type::f32([3, 8]), &[Some(Label::Batch), None]);
    let mut h = x;
    let mut early = x;
    // `gate` depends on inputs only: it is recomputed where it is used, not carried.
    let gate = relu(&mut e.func, scale);
    for (i, p) in params.iter().enumerate() {
        let w = e.stored(p);
        h = dot(&mut e.func, h, w, 1, "dot");
        h = op(&mut e.func, Op::Binary(BinaryKind::Mul), &[h, gate], "gate");
        if i == 1 {
            early = h;
        }
        if i == 4 {
            h = add(&mut e.func, h, early);
        }
    }
    e.finish(&[(h, "y"), (early, "early")], &[]);
    for pp in [1, 2, 4, 6, 100] {
        let m = outline(&b.module, pp).unwrap();
        same(&b.module, &m);
        assert!(calls(&m).len() >= pp.min(6), "{pp}: {:?}", calls(&m));
        assert!(calls(&m).iter().all(|c| c.starts_with("part")));
    }
}

#[test]
fn list_order_does_not_hide_equal_layers() {
    let mut b = Builder::new("order");
    let params: Vec<Role> = (0..6).map(|i| b.param(&format!("w{i}"), &[8, 8])).collect();
    let mut e = EntryBuilder::new(&mut b, "forward");
    let mut x = e.input("x", Type::f32([3, 8]), &[Some(Label::Batch), None]);
    for (i, p) in params.chunks(2).enumerate() {
        let (w, v) = (e.stored(&p[0]), e.stored(&p[1]));
        // The branches are listed in another order in every other layer.
        let (l, r) = if i % 2 == 0 {
            let l = dot(&mut e.func, x, w, 1, "l");
            (l, dot(&mut e.func, x, v, 1, "r"))
        } else {
            let r = dot(&mut e.func, x, v, 1, "r");
            (dot(&mut e.func, x, w, 1, "l"), r)
        };
        let r = relu(&mut e.func, r);
        let h = add(&mut e.func, l, r);
        x = add(&mut e.func, x, h);
    }
    e.finish(&[(x, "y")], &[]);
    let m = outline(&b.module, 1).unwrap();
    assert_eq!(calls(&m), ["part0"; 3]);
    same(&b.module, &m);
}

#[test]
fn chains_of_calls_stay_and_nested_calls_are_inlined() {
    let module = llama(&SMOLLM, true, true);
    let m = outline(&module, 4).unwrap();
    assert_eq!(m.entries.len(), module.entries.len());
    assert_eq!(m.funcs.len(), module.funcs.len());
    assert_eq!(calls(&m), calls(&module));

    // A function that calls another, and an entry that mixes calls and instructions.
    let mut nested = mlp(4, 8, 12, 3, false);
    let block = nested.func_named("block").unwrap();
    let inner = nested.funcs[block].clone();
    let mut outer = Func::new("outer");
    let args: Vec<ValueId> = inner.args.iter().map(|&v| outer.arg(inner.ty(v).clone(), "")).collect();
    let y = outer.call(block, &inner, &args, "inner").unwrap()[0];
    outer.results = vec![relu(&mut outer, y)];
    let outer = nested.funcs.push(outer);
    let entry = nested.entries[0].func;
    let f = &mut nested.funcs[entry];
    f.insts[1].op = Op::Call(outer);
    let y = f.results[0];
    f.results = vec![relu(f, y)];
    let m = outline(&nested, 1).unwrap();
    assert_eq!(calls(&m), ["block", "outer", "block", "part0"]);
    same(&nested, &m);
    let leaf = |f: &Func| f.insts.iter().all(|i| !matches!(i.op, Op::Call(_)));
    assert_eq!(m.funcs.values().filter(|f| leaf(f)).count(), 3);
}

#[test]
fn recursion_is_refused() {
    let mut m = mlp(4, 8, 12, 1, false);
    let block = m.func_named("block").unwrap();
    let f = &mut m.funcs[block];
    let (args, results) = (f.args.clone(), f.results.clone());
    f.insts.push(Inst { op: Op::Call(block), args, results, loc: String::new() });
    assert!(outline(&m, 1).unwrap_err().what.contains("nested"));
}

#[test]
fn deep_graphs_are_cut_in_linear_time() {
    let flat = mlp(2, 4, 4, 3000, true);
    let m = outline(&flat, 1).unwrap();
    assert_eq!(m.funcs.len(), 2);
    assert_eq!(calls(&m).len(), 3000);
}
