//! The forms that other tools get wrong, each by name; `tests/random_partitions` runs the rest.

use super::{partition, plan};
use crate::cost::Cluster;
use pcc_ir::eval::{Tensor, eval_func, eval_spmd, shard, unshard};
use pcc_ir::graph::{Entry, Role, State};
use pcc_ir::ops::{Attention, BinaryKind, Collective, DotGeneral, Gather, Op, Reduce, UnaryKind, Update};
use pcc_ir::{Axis, AxisRef, Func, FuncId, Mesh, Module, Pad, ReduceKind, Sharding, Type, ValueId};

fn mesh(tp: u32) -> Mesh {
    Mesh { tp, ..Mesh::default() }
}

fn sub(pre: u32, size: u32) -> AxisRef {
    AxisRef { axis: Axis::Tp, pre, size }
}

/// `dims[i]` splits dim i.
fn split(dims: &[&[AxisRef]]) -> Sharding {
    Sharding { dims: dims.iter().map(|d| d.to_vec()).collect(), partial: vec![] }
}

fn summed(dims: &[&[AxisRef]], over: &[AxisRef]) -> Sharding {
    Sharding { partial: over.iter().map(|&a| (a, ReduceKind::Sum)).collect(), ..split(dims) }
}

struct Build(Func);

impl Build {
    fn arg(&mut self, ty: Type, s: Sharding) -> ValueId {
        let v = self.0.arg(ty, "");
        self.0.values[v].sharding = Some(s);
        v
    }

    fn op(&mut self, op: Op, args: &[ValueId], s: Sharding) -> ValueId {
        let v = self.0.apply(op, args, "").unwrap()[0];
        self.0.values[v].sharding = Some(s);
        v
    }

    fn reshard(&mut self, v: ValueId, s: Sharding) -> ValueId {
        self.op(Op::Reshard(s.clone()), &[v], s)
    }
}

fn dot(lhs: &[usize], rhs: &[usize]) -> Op {
    let (lhs_contract, rhs_contract) = (lhs.to_vec(), rhs.to_vec());
    Op::DotGeneral(DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract,
        rhs_contract,
        result: None,
    })
}

fn module(mesh: Mesh, build: impl FnOnce(&mut Build) -> Vec<ValueId>) -> (Module, FuncId) {
    let mut b = Build(Func::new("f"));
    b.0.results = build(&mut b);
    let mut module = Module { mesh, ..Module::default() };
    let id = module.funcs.push(b.0);
    (module, id)
}

/// Runs the local form on all devices and compares with the reference. `pad` is what padding of the arguments holds.
fn agrees(sharded: &Module, local: &Module, id: FuncId, args: &[Tensor], pad: f64) {
    let f = &sharded.funcs[id];
    let placed = |v: ValueId| f.values[v].sharding.as_ref().unwrap();
    let mesh = sharded.mesh;
    let piece = |d| f.args.iter().zip(args).map(|(&v, t)| shard(t, placed(v), &mesh, d, pad)).collect();
    let pieces: Vec<Vec<Tensor>> = (0..mesh.devices()).map(piece).collect();
    let got = eval_spmd(local, id, &pieces).unwrap();
    for (i, want) in eval_func(sharded, id, args).unwrap().iter().enumerate() {
        let pieces: Vec<_> = got.iter().map(|r| r[i].clone()).collect();
        let whole = unshard(&pieces, placed(f.results[i]), &mesh, &want.ty).unwrap();
        assert!(whole.max_abs_diff(want) < 1e-9, "result {i}: {:?} is not {:?}", whole.data, want.data);
    }
}

fn numbers(ty: Type) -> Tensor {
    Tensor::from_fn(ty, |i| ((i * 7) % 13) as f64 - 6.0)
}

/// Names of the collectives, slices and masks of a function, in order.
fn moves(local: &Module, id: FuncId) -> Vec<&'static str> {
    let shown = |op: &Op| matches!(op, Op::Collective(_) | Op::ShardSlice(_) | Op::MaskTail(_));
    local.funcs[id].insts.iter().filter(|i| shown(&i.op)).map(|i| i.op.name()).collect()
}

#[test]
fn a_vocabulary_that_does_not_divide_is_looked_up_in_pieces() {
    // 11 rows over 4 devices: 3, 3, 3, 2. Rows beyond the table give zeros, as without a split.
    let mesh = mesh(4);
    let tp = mesh.whole(Axis::Tp);
    let (sharded, id) = module(mesh, |b| {
        let table = b.arg(Type::f32([11, 5]), split(&[&[tp], &[]]));
        let ids = b.arg(Type::i32([2, 4]), Sharding::replicated(2));
        let x =
            b.op(Op::Gather(Gather { batch: 0, base: None }), &[table, ids], summed(&[&[], &[], &[]], &[tp]));
        vec![b.reshard(x, Sharding::replicated(3))]
    });
    let local = partition(&sharded).unwrap();
    assert_eq!(moves(&local, id), ["all_reduce"]);
    let ids = Tensor::new(Type::i32([2, 4]), vec![0.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0, -1.0]).unwrap();
    agrees(&sharded, &local, id, &[numbers(Type::f32([11, 5])), ids], f64::NAN);
}

#[test]
fn a_row_parallel_bias_is_added_once() {
    let mesh = mesh(3);
    let tp = mesh.whole(Axis::Tp);
    let (sharded, id) = module(mesh, |b| {
        let x = b.arg(Type::f32([2, 7]), split(&[&[], &[tp]]));
        let w = b.arg(Type::f32([7, 4]), split(&[&[tp], &[]]));
        let bias = b.arg(Type::f32([2, 4]), Sharding::replicated(2));
        let y = b.op(dot(&[1], &[0]), &[x, w], summed(&[&[], &[]], &[tp]));
        let y = b.reshard(y, Sharding::replicated(2));
        vec![b.op(Op::Binary(BinaryKind::Add), &[y, bias], Sharding::replicated(2))]
    });
    let local = partition(&sharded).unwrap();
    assert_eq!(moves(&local, id), ["all_reduce"]);
    agrees(&sharded, &local, id, &[[2, 7], [7, 4], [2, 4]].map(|s| numbers(Type::f32(s))), 0.0);

    // Added to the partial it would count three times: that is no legal sharding.
    let (wrong, _) = module(mesh, |b| {
        let y = b.arg(Type::f32([2, 4]), summed(&[&[], &[]], &[tp]));
        let bias = b.arg(Type::f32([2, 4]), Sharding::replicated(2));
        vec![b.op(Op::Binary(BinaryKind::Add), &[y, bias], summed(&[&[], &[]], &[tp]))]
    });
    let error = partition(&wrong).unwrap_err();
    assert!(error.to_string().contains("add is not linear in its partial over tp"), "{error}");
    assert!(error.to_string().contains("v2 of f"), "{error}");
}

/// Reshards of a [10, 6] value from one sharding to another, checked by execution; gives the steps' names.
fn resharded(mesh: Mesh, from: Sharding, to: Sharding) -> Vec<&'static str> {
    let ty = Type::f32([10, 6]);
    let (sharded, id) = module(mesh, |b| {
        let x = b.arg(ty.clone(), from);
        vec![b.reshard(x, to)]
    });
    let local = partition(&sharded).unwrap();
    agrees(&sharded, &local, id, &[numbers(ty)], f64::NAN);
    moves(&local, id)
}

#[test]
fn nested_axes_are_gathered_minor_first() {
    // 10 over 4 and then 2 has padding inside the dim: pieces 2,1 2,1 2,1 1,0.
    let (a, b) = (sub(1, 4), sub(4, 2));
    let nested = split(&[&[a, b], &[]]);
    assert_eq!(resharded(mesh(8), nested.clone(), Sharding::replicated(2)), ["all_gather"]);
    assert_eq!(resharded(mesh(8), nested.clone(), split(&[&[a], &[]])), ["all_gather"]);
    // The major axis alone cannot go: what is left would not be adjacent.
    assert_eq!(resharded(mesh(8), nested, split(&[&[b], &[]])), ["all_gather", "shard_slice"]);
    // One axis of 8 splits 10 otherwise than 4 and 2 do.
    let whole = split(&[&[sub(1, 8)], &[]]);
    assert_eq!(resharded(mesh(8), whole, split(&[&[a, b], &[]])), ["all_gather", "shard_slice"]);
}

#[test]
fn uneven_dims_lose_their_padding_on_the_way() {
    let tp = sub(1, 4);
    assert_eq!(resharded(mesh(4), split(&[&[tp], &[]]), Sharding::replicated(2)), ["all_gather"]);
    assert_eq!(resharded(mesh(4), split(&[&[tp], &[]]), split(&[&[], &[tp]])), ["all_to_all"]);
    assert_eq!(resharded(mesh(4), split(&[&[], &[tp]]), split(&[&[tp], &[]])), ["all_to_all"]);
    // The minor axis moves, the major one stays.
    let (a, b) = (sub(1, 2), sub(2, 2));
    assert_eq!(resharded(mesh(4), split(&[&[a, b], &[]]), split(&[&[a], &[b]])), ["all_to_all"]);
}

#[test]
fn partials_are_reduced_into_the_split_that_is_wanted() {
    let tp = sub(1, 4);
    let (a, b) = (sub(1, 2), sub(2, 2));
    assert_eq!(resharded(mesh(4), summed(&[&[], &[]], &[tp]), split(&[&[tp], &[]])), ["reduce_scatter"]);
    // Parts of an axis: one reduction over both, though 10 is no multiple of 4.
    assert_eq!(resharded(mesh(4), summed(&[&[], &[]], &[a, b]), split(&[&[tp], &[]])), ["reduce_scatter"]);
    assert_eq!(resharded(mesh(4), summed(&[&[], &[]], &[a, b]), Sharding::replicated(2)), ["all_reduce"]);
    // The smaller buffer is reduced after the scatter.
    let steps = resharded(mesh(4), summed(&[&[], &[]], &[a, b]), split(&[&[a], &[]]));
    assert_eq!(steps, ["reduce_scatter", "all_reduce"]);
    assert_eq!(resharded(mesh(4), summed(&[&[], &[]], &[a, b]), summed(&[&[], &[]], &[b])), ["all_reduce"]);
}

#[test]
fn one_collective_names_the_whole_axis() {
    let (from, to) = (summed(&[&[]], &[sub(1, 2), sub(2, 2)]), Sharding::replicated(1));
    let steps = plan(&Cluster::a100(), &mesh(4), &Type::f32([8]), &from, &to).unwrap();
    let reduce = Collective::AllReduce { axes: vec![sub(1, 4)], kind: ReduceKind::Sum };
    assert_eq!(steps.iter().map(|s| s.op.clone()).collect::<Vec<_>>(), [Op::Collective(reduce)]);
    // Also over a group that spans nodes of the cluster, where two rounds would be modelled as faster.
    let (from, to) = (summed(&[&[]], &[sub(1, 3), sub(3, 3)]), Sharding::replicated(1));
    assert_eq!(plan(&Cluster::a100(), &mesh(9), &Type::f32([8]), &from, &to).unwrap().len(), 1);
    let (from, to) = (split(&[&[sub(1, 3), sub(3, 3)]]), Sharding::replicated(1));
    assert_eq!(plan(&Cluster::a100(), &mesh(9), &Type::f32([8]), &from, &to).unwrap().len(), 1);
    let (from, to) = (summed(&[&[]], &[sub(1, 2), sub(2, 2)]), Sharding::replicated(1));
    // Nothing makes a whole value a partial one.
    assert!(plan(&Cluster::a100(), &mesh(4), &Type::f32([8]), &to, &from).is_err());
}

#[test]
fn padding_is_the_identity_of_the_reduction_that_reads_it() {
    let tp = sub(1, 4);
    for (kind, masks) in [(ReduceKind::Sum, 0), (ReduceKind::Max, 1), (ReduceKind::Min, 1)] {
        let (sharded, id) = module(mesh(4), |b| {
            let x = b.arg(Type::f32([6, 3]), split(&[&[tp], &[]]));
            let r = Op::Reduce(Reduce { kind, dims: vec![0] });
            let s = Sharding { dims: vec![vec![]], partial: vec![(tp, kind)] };
            let y = b.op(r, &[x], s);
            vec![b.reshard(y, Sharding::replicated(1))]
        });
        let local = partition(&sharded).unwrap();
        // An argument comes with zeros: right for sums, and in need of a mask otherwise. All numbers are on one side of zero.
        assert_eq!(moves(&local, id).iter().filter(|m| **m == "mask_tail").count(), masks);
        for sign in [1.0, -1.0] {
            let x = Tensor::from_fn(Type::f32([6, 3]), |i| sign * (i as f64 + 1.0));
            agrees(&sharded, &local, id, &[x], 0.0);
        }
    }
    // What an exponential makes of zeros is no zero.
    let (sharded, id) = module(mesh(4), |b| {
        let x = b.arg(Type::f32([6]), split(&[&[tp]]));
        let e = b.op(Op::Unary(UnaryKind::Exp), &[x], split(&[&[tp]]));
        let y = b.op(Op::Reduce(Reduce { kind: ReduceKind::Sum, dims: vec![0] }), &[e], summed(&[], &[tp]));
        vec![b.reshard(y, Sharding::replicated(0))]
    });
    let local = partition(&sharded).unwrap();
    assert_eq!(moves(&local, id), ["mask_tail", "all_reduce"]);
    agrees(&sharded, &local, id, &[numbers(Type::f32([6]))], 0.0);
}

#[test]
fn heads_and_groups_share_an_axis() {
    // 2 kv heads, groups of 3, tp 6 cut into 2 and 3; then 3 kv heads over 6 devices, half of them without one.
    for (heads, cut) in [(2, vec![sub(1, 2), sub(2, 3)]), (3, vec![sub(1, 6)])] {
        let (g, r) = (&cut[..1], &cut[1..]);
        let (sharded, id) = module(mesh(6), |b| {
            let q = b.arg(Type::f32([1, 4, heads, 3, 2]), split(&[&[], &[], g, r, &[]]));
            let kv = [2, 2].map(|d| b.arg(Type::f32([1, 4, heads, d]), split(&[&[], &[], g, &[]])));
            let pos = b.arg(Type::i32([1, 4]), Sharding::replicated(2));
            let w = b.arg(Type::f32([heads, 3, 2, 5]), split(&[g, r, &[], &[]]));
            let op = Attention { scale: 0.5, causal: true, window: None, softcap: None, bf16_bias: false };
            let y = b.op(Op::Attention(op), &[q, kv[0], kv[1], pos, pos], split(&[&[], &[], g, r, &[]]));
            let y = b.op(dot(&[2, 3, 4], &[0, 1, 2]), &[y, w], summed(&[&[], &[], &[]], &cut));
            vec![b.reshard(y, Sharding::replicated(3))]
        });
        let local = partition(&sharded).unwrap();
        let reduce = Collective::AllReduce { axes: vec![sub(1, 6)], kind: ReduceKind::Sum };
        assert!(local.funcs[id].insts.iter().any(|i| i.op == Op::Collective(reduce.clone())));
        let types: Vec<Type> =
            sharded.funcs[id].args.iter().map(|&v| sharded.funcs[id].ty(v).clone()).collect();
        let args: Vec<_> = types
            .into_iter()
            .map(|ty| if ty.dtype.is_float() { numbers(ty) } else { Tensor::from_fn(ty, |i| i as f64) })
            .collect();
        agrees(&sharded, &local, id, &args, 0.0);
    }
}

/// `f(x, s) -> (sum(s), update(s, x, 0))` called by an entry for which s is a state: `spoiled` makes what is written have
/// padding that is not zero.
fn stateful(spoiled: bool) -> (Module, FuncId, FuncId) {
    let tp = sub(1, 4);
    let cols = || split(&[&[], &[], &[tp]]);
    let (mut m, inner) = module(mesh(4), |b| {
        let x = b.arg(Type::f32([1, 1, 6]), cols());
        let state = b.arg(Type::f32([1, 3, 6]), cols());
        let start = b.arg(Type::i32([1]), Sharding::replicated(1));
        let kind = if spoiled { UnaryKind::Exp } else { UnaryKind::Tanh };
        let row = b.op(Op::Unary(kind), &[x], cols());
        let sum = Op::Reduce(Reduce { kind: ReduceKind::Sum, dims: vec![2] });
        let y = b.op(sum, &[state], summed(&[&[], &[]], &[tp]));
        let y = b.reshard(y, Sharding::replicated(2));
        let new = b.op(Op::Update(Update { batch: 1, base: None }), &[state, row, start], cols());
        vec![y, new]
    });
    let callee = m.funcs[inner].clone();
    let mut main = Func::new("main");
    for &v in &callee.args {
        let a = main.arg(callee.ty(v).clone(), "");
        main.values[a].sharding = callee.values[v].sharding.clone();
    }
    let args = main.args.clone();
    main.results = main.call(inner, &callee, &args, "layer").unwrap();
    for (&v, &r) in main.results.clone().iter().zip(&callee.results) {
        main.values[v].sharding = callee.values[r].sharding.clone();
    }
    let id = m.funcs.push(main);
    let state = m.states.push(State {
        name: "s".into(),
        ty: Type::f32([1, 3, 6]),
        sharding: Some(cols()),
        stack: None,
    });
    m.entries.push(Entry {
        name: "step".into(),
        func: id,
        args: vec![Role::Input("x".into()), Role::State(state), Role::Input("start".into())],
        results: vec!["sum".into(), "s".into()],
        aliases: vec![(1, 1)],
        weight: 1.0,
        repeats: Vec::new(),
    });
    (m, id, inner)
}

#[test]
fn padding_is_agreed_through_calls_and_from_run_to_run() {
    for spoiled in [false, true] {
        let (sharded, main, inner) = stateful(spoiled);
        let local = partition(&sharded).unwrap();
        let pad = |f: FuncId, v: ValueId| local.funcs[f].values[v].claim.as_ref().unwrap().pad[2];
        let want = if spoiled { Pad::Unspecified } else { Pad::Zero };
        for f in [main, inner] {
            assert_eq!(pad(f, local.funcs[f].args[1]), want, "the state as {f} gets it");
            assert_eq!(pad(f, local.funcs[f].results[1]), want, "the state as {f} gives it");
            assert_eq!(pad(f, local.funcs[f].args[0]), Pad::Zero, "an input");
        }
        // The sum reads the state's padding: masked exactly where that is needed.
        let masks = moves(&local, inner).iter().filter(|m| **m == "mask_tail").count();
        assert_eq!(masks, usize::from(spoiled));
    }
}
