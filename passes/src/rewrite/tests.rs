//! Each rule on the smallest function that shows it: which collectives are left, and that the function is the same.

use super::rewrite_collectives;
use crate::partition::partition;
use pcc_ir::eval::{Tensor, eval_func, eval_spmd, shard, unshard};
use pcc_ir::ops::{BinaryKind, Constant, DotGeneral, Literal, Op, UnaryKind};
use pcc_ir::{Axis, AxisRef, Func, Mesh, Module, ReduceKind, Sharding, Term, Type, ValueId};

const MESH: Mesh = Mesh { pp: 1, dp: 1, cp: 1, ep: 1, tp: 4 };

fn tp() -> AxisRef {
    MESH.whole(Axis::Tp)
}

fn whole() -> Sharding {
    Sharding::replicated(2)
}

/// Rows, or columns, split over tp.
fn split(dim: usize) -> Sharding {
    let mut s = whole();
    s.dims[dim] = vec![tp()];
    s
}

fn partial() -> Sharding {
    Sharding { partial: vec![(tp(), ReduceKind::Sum)], ..whole() }
}

struct Build(Func);

impl Build {
    fn arg(&mut self, shape: [usize; 2], s: Sharding) -> ValueId {
        let v = self.0.arg(Type::f32(shape), "");
        self.0.values[v].sharding = Some(s);
        v
    }

    fn op(&mut self, op: Op, args: &[ValueId], s: Sharding) -> ValueId {
        let v = self.0.apply(op, args, "").unwrap()[0];
        self.0.values[v].sharding = Some(s);
        v
    }

    /// A product that is left unreduced over tp.
    fn product(&mut self) -> ValueId {
        let (a, w) = (self.arg([6, 10], split(1)), self.arg([10, 8], split(0)));
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![1],
            rhs_contract: vec![0],
            result: None,
        };
        self.op(Op::DotGeneral(dot), &[a, w], partial())
    }

    fn reshard(&mut self, v: ValueId, s: Sharding) -> ValueId {
        self.op(Op::Reshard(s.clone()), &[v], s)
    }

    fn reduced(&mut self) -> ValueId {
        let p = self.product();
        self.reshard(p, whole())
    }

    fn add(&mut self, a: ValueId, b: ValueId, s: Sharding) -> ValueId {
        self.op(Op::Binary(BinaryKind::Add), &[a, b], s)
    }
}

/// Partitions and rewrites a function, checks its results, and gives the collectives and slices left.
fn rewritten(build: impl FnOnce(&mut Build) -> Vec<ValueId>) -> (Vec<&'static str>, Func) {
    let mut b = Build(Func::new("f"));
    b.0.results = build(&mut b);
    let f = b.0;
    let mut sharded = Module { mesh: MESH, ..Module::default() };
    let id = sharded.funcs.push(f.clone());
    let mut local = partition(&sharded).unwrap();
    let reports = rewrite_collectives(&mut local, &sharded).unwrap();
    for r in &reports {
        assert!(r.stop == "Saturated" && r.gap == 0.0 && r.after <= r.before, "{r:?}");
    }
    let args: Vec<Tensor> =
        f.args.iter().map(|&v| Tensor::from_fn(f.ty(v).clone(), |i| ((i * 7) % 11) as f64 - 5.0)).collect();
    let placed = |v: ValueId| f.values[v].sharding.as_ref().unwrap();
    let piece = |d| f.args.iter().zip(&args).map(|(&v, t)| shard(t, placed(v), &MESH, d, 0.0)).collect();
    let pieces: Vec<Vec<Tensor>> = (0..MESH.devices()).map(piece).collect();
    let got = eval_spmd(&local, id, &pieces).unwrap();
    for (i, want) in eval_func(&sharded, id, &args).unwrap().iter().enumerate() {
        let pieces: Vec<_> = got.iter().map(|r| r[i].clone()).collect();
        let whole = unshard(&pieces, placed(f.results[i]), &MESH, &want.ty).unwrap();
        assert!(whole.max_abs_diff(want) < 1e-9, "result {i}");
    }
    let made = local.funcs[id].clone();
    let moves = |op: &Op| matches!(op, Op::Collective(_) | Op::ShardSlice(_));
    (made.insts.iter().filter(|i| moves(&i.op)).map(|i| i.op.name()).collect(), made)
}

#[test]
fn partials_are_added_before_they_are_reduced() {
    let (left, _) = rewritten(|b| {
        let (x, y) = (b.reduced(), b.reduced());
        vec![b.add(x, y, whole())]
    });
    assert_eq!(left, ["all_reduce"]);
}

#[test]
fn the_two_reductions_of_a_parallel_block_become_one() {
    let (left, f) = rewritten(|b| {
        let x = b.arg([6, 8], whole());
        let (attention, mlp) = (b.reduced(), b.reduced());
        let y = b.add(x, attention, whole());
        vec![b.add(y, mlp, whole())]
    });
    assert_eq!(left, ["all_reduce"]);
    let sums = f.values.values().filter_map(|v| v.claim.as_ref()).filter(|c| matches!(c.term, Term::Sum(_)));
    assert!(sums.count() > 0, "a sum that is no value of the global function is claimed as one");
}

#[test]
fn a_reduction_that_others_need_stays() {
    let (left, _) = rewritten(|b| {
        let (x, y) = (b.reduced(), b.reduced());
        let shown = b.op(Op::Unary(UnaryKind::Tanh), &[x], whole());
        vec![shown, b.add(x, y, whole())]
    });
    assert_eq!(left, ["all_reduce", "all_reduce"]);
}

#[test]
fn linear_ops_wait_for_the_reduction() {
    let (left, _) = rewritten(|b| {
        let (x, y) = (b.reduced(), b.reduced());
        let x = b.op(Op::Unary(UnaryKind::Neg), &[x], whole());
        let by = Op::Constant(Constant { ty: Type::f32([6, 8]), value: Literal::Splat(0.5) });
        let by = b.op(by, &[], whole());
        let y = b.op(Op::Binary(BinaryKind::Mul), &[by, y], whole());
        vec![b.add(x, y, whole())]
    });
    assert_eq!(left, ["all_reduce"]);
}

#[test]
fn who_keeps_a_piece_of_a_sum_gets_a_piece() {
    let (left, _) = rewritten(|b| {
        let x = b.reduced();
        vec![b.reshard(x, split(0))]
    });
    assert_eq!(left, ["reduce_scatter"]);
    // Also when something is added in between.
    let (left, _) = rewritten(|b| {
        let (x, y) = (b.arg([6, 8], whole()), b.reduced());
        let sum = b.add(x, y, whole());
        vec![b.reshard(sum, split(0))]
    });
    assert_eq!(left.iter().filter(|n| **n != "shard_slice").collect::<Vec<_>>(), [&"reduce_scatter"]);
}

#[test]
fn gathers_of_slices_cancel_also_of_uneven_dims() {
    let (left, _) = rewritten(|b| {
        let x = b.arg([6, 8], whole());
        let piece = b.reshard(x, split(0));
        let piece = b.reshard(piece, whole());
        let y = b.reduced();
        vec![b.add(piece, y, whole())]
    });
    assert_eq!(left, ["all_reduce"]);
}

#[test]
fn a_sum_of_gathers_is_gathered_once() {
    let (left, _) = rewritten(|b| {
        let (x, y) = (b.arg([6, 8], split(0)), b.arg([6, 8], split(0)));
        let (x, y) = (b.reshard(x, whole()), b.reshard(y, whole()));
        vec![b.add(x, y, whole())]
    });
    assert_eq!(left, ["all_gather"]);
}

#[test]
fn a_gather_and_a_reduction_that_meet_become_a_scatter_and_a_gather() {
    let (left, _) = rewritten(|b| {
        let x = b.arg([6, 8], split(0));
        let (x, y) = (b.reshard(x, whole()), b.reduced());
        vec![b.add(x, y, whole())]
    });
    assert_eq!(left, ["reduce_scatter", "all_gather"]);
}
