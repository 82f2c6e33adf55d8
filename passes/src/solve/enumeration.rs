//! The solver against enumeration: every choice of strategies and stored shardings of a small function, costed here by the
//! definition and not through tables.

use super::models::{Builder as Models, EntryBuilder, dot, op};
use super::network::{Cost, INFINITE, add};
use super::problem::{Builder, Problem, ReshardCosts, reshard_cost};
use super::strategy::{Context, Interner, ShardId};
use super::structure::{SlotKind, Structure};
use super::*;
use crate::cost::{Step, reshard_steps};
use pcc_ir::graph::Label;
use pcc_ir::ops::{BinaryKind, UnaryKind};
use pcc_ir::{Func, Op, Type, ValueId};
use std::collections::HashMap;

/// A residual block `x + (relu(x w1) [* x w3]) w2` over `[4, hidden]`, called twice.
fn block(hidden: usize, ffn: usize, gated: bool) -> Module {
    let mut b = Models::new("block");
    let mut f = Func::new("block");
    let x = f.arg(Type::f32([4, hidden]), "x");
    let w1 = f.arg(Type::f32([hidden, ffn]), "w1");
    let w2 = f.arg(Type::f32([ffn, hidden]), "w2");
    let w3 = gated.then(|| f.arg(Type::f32([hidden, ffn]), "w3"));
    let h = dot(&mut f, x, w1, 1, "w1");
    let h = match w3 {
        Some(w3) => {
            let g = dot(&mut f, x, w3, 1, "w3");
            op(&mut f, Op::Binary(BinaryKind::Mul), &[h, g], "mul")
        }
        None => op(&mut f, Op::Unary(UnaryKind::Relu), &[h], "relu"),
    };
    let y = dot(&mut f, h, w2, 1, "w2");
    let y = op(&mut f, Op::Binary(BinaryKind::Add), &[x, y], "add");
    f.results = vec![y];
    let shapes: Vec<Vec<usize>> = f.args[1..].iter().map(|&v| f.ty(v).shape.clone()).collect();
    let func = b.module.funcs.push(f);
    let params: Vec<_> = (0..2)
        .flat_map(|l| shapes.iter().map(move |s| (l, s)))
        .map(|(l, s)| b.param(&format!("{l}{s:?}"), s))
        .collect();
    let mut e = EntryBuilder::new(&mut b, "forward");
    let mut x = e.input("x", Type::f32([4, hidden]), &[Some(Label::Batch), None]);
    for p in params.chunks(shapes.len()) {
        let p: Vec<ValueId> = p.iter().map(|r| e.stored(r)).collect();
        x = e.call(func, &[&[x], &p[..]].concat())[0];
    }
    e.finish(&[(x, "y")], &[]);
    b.module
}

/// What one assignment costs, by the definition in the documentation of the problem.
struct Definition<'a> {
    f: &'a Func,
    cx: Context<'a>,
    interner: &'a Interner,
    boundary: ShardId,
    unsplit: Cost,
    memo: HashMap<(Type, ShardId, ShardId), Cost>,
}

impl Definition<'_> {
    fn reshard(&mut self, v: ValueId, from: ShardId, to: ShardId) -> Cost {
        let (cx, interner) = (&self.cx, self.interner);
        let ty = self.f.ty(v);
        *self.memo.entry((ty.clone(), from, to)).or_insert_with(|| {
            let once = reshard_cost(cx, ty, interner.get(from), interner.get(to));
            if once >= INFINITE { INFINITE } else { once * cx.weight as Cost }
        })
    }

    /// The cheapest way to give every user of `v` what it needs, with at most one shared reshard.
    fn value(&mut self, v: ValueId, made: ShardId, needs: &[ShardId], stored: bool) -> Cost {
        if stored {
            let mut sum = 0;
            for &need in needs {
                let steps = reshard_steps(self.cx.mesh, self.interner.get(made), self.interner.get(need));
                let sliced = steps.is_some_and(|s| s.iter().all(|s| matches!(s, Step::Slice { .. })));
                sum = add(sum, if sliced { self.reshard(v, made, need) } else { INFINITE });
            }
            return sum;
        }
        let mut best = INFINITE;
        for shared in std::iter::once(made).chain(needs.iter().copied()) {
            let mut sum = self.reshard(v, made, shared);
            for &need in needs {
                let from_shared = if need == made { 0 } else { self.reshard(v, shared, need) };
                sum = add(sum, from_shared.min(self.reshard(v, made, need)));
            }
            best = best.min(sum);
        }
        best
    }

    fn total(&mut self, problem: &Problem, choice: &[usize], stored: &[ShardId]) -> Cost {
        let fv = &problem.funcs[0];
        let mut made: HashMap<ValueId, (ShardId, bool)> = HashMap::new();
        made.insert(self.f.args[0], (self.boundary, false));
        let mut sum: Cost = 0;
        for (&v, &id) in self.f.args[1..].iter().zip(stored) {
            made.insert(v, (id, true));
            if self.interner.get(id).is_replicated() {
                sum = add(sum, self.unsplit);
            }
        }
        let mut needs: HashMap<ValueId, Vec<ShardId>> = HashMap::new();
        for (at, inst) in self.f.insts.iter().enumerate() {
            let st = &fv.strategies[at][choice[at]];
            sum = add(sum, st.cost);
            made.insert(inst.results[0], (st.gives[0], false));
            for (&v, &need) in inst.args.iter().zip(&st.needs) {
                needs.entry(v).or_default().push(need);
            }
        }
        needs.entry(self.f.results[0]).or_default().push(self.boundary);
        for (v, needs) in needs {
            let (id, stored) = made[&v];
            sum = add(sum, self.value(v, id, &needs, stored));
        }
        sum
    }
}

fn check(module: &Module, tp: u32, dp: u32) {
    let options = Options::new(Mesh { tp, dp, ..Mesh::default() });
    let mut structure = Structure::of(module).unwrap();
    let func = module.func_named("block").unwrap();
    let f = &module.funcs[func];
    let (mut interner, mut reshards, pins) = (Interner::default(), ReshardCosts::default(), BTreeMap::new());
    let unsplit = 1_000_000_000_000;
    let mut builder = Builder {
        module,
        structure: &mut structure,
        interner: &mut interner,
        reshards: &mut reshards,
        mesh: &options.mesh,
        cluster: &options.cluster,
        sp: false,
        pins: &pins,
        unsplit,
    };
    let problem = builder.build(&[func]);
    let found = eliminate::minimise(&problem.net, TABLE_LIMIT);
    let slot = builder.structure.arg_slot(func, 0);
    assert_eq!(builder.structure.kind(slot), SlotKind::Chain);
    let boundary = builder.boundary(slot, f.ty(f.args[0]), (func, f.args[0]));
    let slots: Vec<usize> = (1..f.args.len()).map(|i| builder.structure.arg_slot(func, i)).collect();
    let choices: Vec<&Vec<ShardId>> = slots.iter().map(|s| &problem.slots[s].choices).collect();
    let cx = Context { mesh: &options.mesh, cluster: &options.cluster, sp: false, weight: 2.0 };
    let mut d = Definition { f, cx, interner: &interner, boundary, unsplit, memo: HashMap::new() };
    let sizes: Vec<usize> =
        problem.funcs[0].strategies.iter().map(Vec::len).chain(choices.iter().map(|c| c.len())).collect();
    let mut at = vec![0; sizes.len()];
    let mut best = INFINITE;
    loop {
        let (strategies, stored) = at.split_at(f.insts.len());
        let stored: Vec<ShardId> = stored.iter().zip(&choices).map(|(&i, c)| c[i]).collect();
        best = best.min(d.total(&problem, strategies, &stored));
        let Some(i) = (0..at.len()).rev().find(|&i| at[i] + 1 < sizes[i]) else { break };
        at[i] += 1;
        at[i + 1..].fill(0);
    }
    assert_eq!((found.cost, found.bound), (best, best), "tp {tp} dp {dp}, domains {sizes:?}");
}

#[test]
fn the_solver_equals_enumeration() {
    check(&block(64, 256, false), 4, 1);
    check(&block(64, 256, false), 2, 2);
    check(&block(64, 6, false), 4, 2);
    check(&block(16384, 32768, true), 2, 1);
    check(&block(64, 256, true), 3, 1);
}
