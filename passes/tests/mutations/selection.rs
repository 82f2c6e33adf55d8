//! Mutations of top-k and sampling, and a model that has both.

use super::instrs::{each, func_names};
use super::{Kind, Mutant};
use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::ops::{BinaryKind, Gather, Op, Sample, Softmax, TopK};
use pcc_ir::program::{InstrKind, SampleCall, Strided, TopKCall};
use pcc_ir::{Diagnostic, Func, Module, Param, ParamSource, Type, ValueId};
use pcc_passes::driver::Compiled;

pub const KINDS: &[Kind] = &[
    ("top-k of fewer", |c| {
        top_ks(c, |t| {
            t.k -= 1;
            t.k > 0
        })
    }),
    ("top-k among fewer", |c| {
        top_ks(c, |t| {
            t.n -= 1;
            t.n >= t.k
        })
    }),
    ("top-k of fewer rows", |c| {
        top_ks(c, |t| {
            t.rows[0].full -= 1;
            t.rows[0].full > 0
        })
    }),
    ("top-k of rows of another dim", |c| top_ks(c, |t| exchanged(&mut t.x, t.n == t.rows[0].full))),
    ("top-k of the first row for all", |c| top_ks(c, |t| repeated(&mut t.x))),
    ("top-k shifted by one", |c| {
        top_ks(c, |t| {
            t.x.loc.offset += t.x.dtype.bytes() as u64;
            true
        })
    }),
    ("values where indices belong", |c| {
        top_ks(c, |t| {
            std::mem::swap(&mut t.values.loc, &mut t.indices.loc);
            true
        })
    }),
    ("values over what they are chosen from", |c| {
        top_ks(c, |t| {
            t.values.loc = t.x.loc;
            true
        })
    }),
    ("indices over values", |c| {
        top_ks(c, |t| {
            t.indices.loc = t.values.loc;
            true
        })
    }),
    ("indices of another type", |c| {
        top_ks(c, |t| {
            t.indices.dtype = t.x.dtype;
            true
        })
    }),
    ("selection made twice", |c| {
        each(c, |f, i| {
            let again = f.instrs[i].clone();
            f.instrs.insert(i + 1, again.clone());
            matches!(again.kind, InstrKind::TopK(_) | InstrKind::Sample(_))
        })
    }),
    ("sample of another draw's logits", |c| pairs(c, |a, b| std::mem::swap(&mut a.logits, &mut b.logits))),
    ("sample by another draw's settings", |c| {
        pairs(c, |a, b| std::mem::swap(&mut a.settings, &mut b.settings))
    }),
    ("sample by another draw's key", |c| pairs(c, |a, b| std::mem::swap(&mut a.key, &mut b.key))),
    ("samples in each other's place", |c| pairs(c, |a, b| std::mem::swap(&mut a.out, &mut b.out))),
    ("sample by logits for settings", |c| {
        samples(c, |s| {
            s.settings.loc = s.logits.loc;
            true
        })
    }),
    ("sample among fewer tokens", |c| {
        samples(c, |s| {
            s.tokens -= 1;
            true
        })
    }),
    ("sample for fewer rows", |c| {
        samples(c, |s| {
            s.rows.full -= 1;
            s.rows.full > 0
        })
    }),
    ("sample of the first row for all", |c| samples(c, |s| repeated(&mut s.logits))),
    ("sample by the first row's key", |c| samples(c, |s| repeated(&mut s.key))),
    ("sample of the next row", |c| {
        samples(c, |s| {
            s.logits.loc.offset += (s.logits.strides[0] * 4) as u64;
            true
        })
    }),
    ("token over its key", |c| {
        samples(c, |s| {
            s.out.loc = s.key.loc;
            true
        })
    }),
    ("top-k for a sample", |c| {
        each(c, |f, i| match &f.instrs[i].kind {
            InstrKind::Sample(s) => {
                let (rows, x, values) = (vec![s.rows.clone()], s.logits.clone(), s.logits.clone());
                let indices = Strided { strides: vec![1, 1], ..s.out.clone() };
                let top = TopKCall { rows, n: s.tokens, k: 1, x, values, indices };
                f.instrs[i].kind = InstrKind::TopK(Box::new(top));
                true
            }
            _ => false,
        })
    }),
];

/// Every row is the first; where there are several.
fn repeated(view: &mut Strided) -> bool {
    view.strides[0] = 0;
    true
}

/// Rows read along the other dim.
fn exchanged(view: &mut Strided, square: bool) -> bool {
    let last = view.strides.len() - 1;
    view.strides.swap(0, last);
    !square && view.strides[0] != view.strides[last]
}

fn top_ks(c: &Compiled, change: impl Fn(&mut TopKCall) -> bool) -> Vec<Mutant> {
    each(c, |f, i| match &mut f.instrs[i].kind {
        InstrKind::TopK(t) => change(t),
        _ => false,
    })
}

fn samples(c: &Compiled, change: impl Fn(&mut SampleCall) -> bool) -> Vec<Mutant> {
    each(c, |f, i| match &mut f.instrs[i].kind {
        InstrKind::Sample(s) => change(s),
        _ => false,
    })
}

/// Functions with two samples, both changed.
fn pairs(c: &Compiled, change: impl Fn(&mut SampleCall, &mut SampleCall)) -> Vec<Mutant> {
    let mut mutants = vec![];
    for at in 0..c.program.funcs.len() {
        let mut compiled = c.clone();
        let found = compiled.program.funcs[at].instrs.iter_mut().filter_map(|i| match &mut i.kind {
            InstrKind::Sample(s) => Some(s),
            _ => None,
        });
        if let [a, b] = &mut found.collect::<Vec<_>>()[..] {
            change(a, b);
            if compiled.program != c.program {
                mutants.push(Mutant { compiled, names: func_names(c, at) });
            }
        }
    }
    mutants
}

fn ok<T>(r: Result<T, Diagnostic>) -> T {
    r.unwrap_or_else(|d| panic!("{d}"))
}

const HIDDEN: usize = 6;
const EXPERTS: usize = 5;
const TOKENS: usize = 11;

/// A router that adds rows of a table by the weights of its two best experts, and a head that draws twice, by different settings.
pub fn router(rows: usize) -> Module {
    let mut module = Module { name: "router".into(), ..Module::default() };
    let mut roles = Vec::new();
    let mut main = Func::new("forward");
    let mut input = |f: &mut Func, ty: Type, name: &str| {
        let v = f.arg(ty, name);
        f.values[v].labels = vec![Some(Label::Batch), None];
        roles.push(Role::Input(name.into()));
        v
    };
    let x = input(&mut main, Type::f32([rows, HIDDEN]), "x");
    let draws = [1, 2].map(|i| {
        let settings = input(&mut main, Type::f32([rows, 2]), &format!("settings{i}"));
        (settings, input(&mut main, Type::i32([rows, 4]), &format!("key{i}")))
    });
    let mut param = |name: &str, shape: [usize; 2]| {
        let source = ParamSource::random(shape.to_vec(), 1, name, 0.1);
        let param = Param { name: name.into(), ty: Type::f32(shape), source, sharding: None, stack: None };
        roles.push(Role::Param(module.params.push(param)));
        main.arg(Type::f32(shape), name)
    };
    let weights = [
        param("gate", [HIDDEN, EXPERTS]),
        param("experts", [EXPERTS, HIDDEN]),
        param("head1", [HIDDEN, TOKENS]),
        param("head2", [HIDDEN, TOKENS]),
    ];
    let layer = module.funcs.push(layer(rows));
    let head = module.funcs.push(head(rows));
    let draw = module.funcs.push(draw(rows));
    let call = |f: &mut Func, id, args: &[ValueId], ty: Type, n: usize| {
        f.push(Op::Call(id), args.to_vec(), vec![ty; n], "")
    };
    let y = call(&mut main, layer, &[x, weights[0], weights[1]], Type::f32([rows, HIDDEN]), 1)[0];
    let logits = call(&mut main, head, &[y, weights[2], weights[3]], Type::f32([rows, TOKENS]), 2);
    let draws = draws.map(|(settings, key)| [settings, key]).concat();
    let tokens = call(&mut main, draw, &[logits, draws].concat(), Type::i32([rows]), 2);
    main.results = tokens;
    let func = module.funcs.push(main);
    module.entries.push(Entry {
        name: "forward".into(),
        func,
        args: roles,
        results: vec!["first".into(), "second".into()],
        aliases: vec![],
        weight: 1.0,
        repeats: Vec::new(),
    });
    module
}

fn apply(f: &mut Func, op: Op, args: &[ValueId], loc: &str) -> Vec<ValueId> {
    ok(f.apply(op, args, loc))
}

fn layer(rows: usize) -> Func {
    let mut f = Func::new("layer");
    let x = f.arg(Type::f32([rows, HIDDEN]), "x");
    let gate = f.arg(Type::f32([HIDDEN, EXPERTS]), "gate");
    let table = f.arg(Type::f32([EXPERTS, HIDDEN]), "experts");
    let scores = ok(f.linear(x, gate, 1));
    let [values, indices] = apply(&mut f, Op::TopK(TopK { k: 2 }), &[scores], "router")[..] else {
        panic!("two results")
    };
    let weights = apply(&mut f, Op::Softmax(Softmax { dim: 1 }), &[values], "router.weights")[0];
    let chosen = apply(&mut f, Op::Gather(Gather { batch: 0, base: None }), &[table, indices], "experts")[0];
    let weights = ok(f.broadcast_like(weights, &[0, 1], chosen));
    let weighted = ok(f.mul(chosen, weights));
    let sum = ok(f.reduce(pcc_ir::ReduceKind::Sum, weighted, &[1]));
    f.results = apply(&mut f, Op::Binary(BinaryKind::Add), &[x, sum], "residual");
    f
}

fn head(rows: usize) -> Func {
    let mut f = Func::new("head");
    let x = f.arg(Type::f32([rows, HIDDEN]), "x");
    let heads = [1, 2].map(|i| f.arg(Type::f32([HIDDEN, TOKENS]), format!("head{i}")));
    f.results = heads.map(|head| ok(f.linear(x, head, 1))).to_vec();
    f
}

fn draw(rows: usize) -> Func {
    let mut f = Func::new("draw");
    let logits = [1, 2].map(|i| f.arg(Type::f32([rows, TOKENS]), format!("logits{i}")));
    let draws = [1, 2].map(|i| {
        let settings = f.arg(Type::f32([rows, 2]), format!("settings{i}"));
        (settings, f.arg(Type::i32([rows, 4]), format!("key{i}")))
    });
    for (logits, (settings, key)) in logits.into_iter().zip(draws) {
        let token = apply(&mut f, Op::Sample(Sample {}), &[logits, settings, key], "token")[0];
        f.results.push(token);
    }
    f
}
