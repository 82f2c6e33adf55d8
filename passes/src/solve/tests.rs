//! The solver rediscovers the known plans: Megatron's column, row and vocab parallel layers, sequence parallelism, and
//! grouped-query attention over more devices than kv heads.

use super::models::{GPT2, LLAMA_7B, SMOLLM, Sizes, gpt2, llama, mlp};
use super::*;
use crate::assign_shardings::assign_shardings;
use crate::cost::{Ring, reshard_steps};
use pcc_ir::{Axis, Op, ValueId};

fn options(tp: u32, dp: u32, sp: bool) -> Options {
    Options { sp, ..Options::new(Mesh { tp, dp, ..Mesh::default() }) }
}

fn sharded(module: &Module, o: &Options) -> Module {
    let solution = solve(module, o).unwrap();
    assert_eq!(solution.gap, 0.0, "solved exactly");
    assign_shardings(module, &solution.assignment, &o.mesh, &o.cluster).unwrap()
}

/// Collectives of a function in order: kind and full bytes (unpadded, over its group).
fn collectives(m: &Module, func: &str) -> Vec<(Ring, usize)> {
    let f = &m.funcs[m.func_named(func).unwrap()];
    let sharding = |v: ValueId| f.values[v].sharding.as_ref().unwrap();
    let mut out = Vec::new();
    for inst in &f.insts {
        let Op::Reshard(to) = &inst.op else { continue };
        for step in reshard_steps(&m.mesh, sharding(inst.args[0]), to).unwrap() {
            if let Some((ring, _)) = step.collective() {
                let dp = m.mesh.dp as usize;
                out.push((ring, f.ty(inst.args[0]).bytes() / dp));
            }
        }
    }
    out
}

/// Text form of a parameter's sharding.
fn stored(m: &Module, param: &str) -> String {
    let p = m.params.values().find(|p| p.name == param).unwrap();
    p.sharding.as_ref().unwrap().text(&m.mesh)
}

/// Every instruction's operand and result shardings follow from its rule, calls agree with their callees, and no entry
/// result is partial.
fn consistent(m: &Module) {
    for f in m.funcs.values() {
        let s = |v: &ValueId| f.values[*v].sharding.as_ref().unwrap();
        for inst in &f.insts {
            let (args, results): (Vec<_>, Vec<_>) =
                (inst.args.iter().map(s).collect(), inst.results.iter().map(s).collect());
            match &inst.op {
                Op::Call(callee) => {
                    let inner = &m.funcs[*callee];
                    for (outer, inner) in
                        args.iter().zip(&inner.args).chain(results.iter().zip(&inner.results))
                    {
                        assert_eq!(Some(*outer), m.funcs[*callee].values[*inner].sharding.as_ref());
                    }
                }
                Op::Reshard(to) => assert_eq!(results, [to]),
                op => {
                    let types = |vs: &[ValueId]| vs.iter().map(|&v| f.ty(v).clone()).collect::<Vec<_>>();
                    let (at, rt) = (types(&inst.args), types(&inst.results));
                    let rule = op.rule(&at.iter().collect::<Vec<_>>(), &rt.iter().collect::<Vec<_>>());
                    assert!(rule.split_from(&args, &results).is_some(), "{} {args:?} {results:?}", op.name());
                }
            }
        }
    }
    for e in &m.entries {
        let f = &m.funcs[e.func];
        for r in &f.results {
            assert!(f.values[*r].sharding.as_ref().unwrap().partial.is_empty());
        }
        for &(a, r) in &e.aliases {
            assert_eq!(f.values[f.args[a]].sharding, f.values[f.results[r]].sharding);
        }
    }
}

#[test]
fn llama_is_megatron() {
    let z = LLAMA_7B;
    let m = sharded(&llama(&z, false, false), &options(8, 1, false));
    consistent(&m);
    let bsh = z.batch * z.seq * z.hidden * 4;
    assert_eq!(collectives(&m, "layer2048false"), [(Ring::AllReduce, bsh); 2]);
    assert_eq!(collectives(&m, "embed2048"), [(Ring::AllReduce, bsh)]);
    assert_eq!(collectives(&m, "head2048false"), []);
    assert_eq!(stored(&m, "layers.1.q_proj"), "[{}, {tp}, {}, {}]");
    assert_eq!(stored(&m, "layers.1.k_proj"), "[{}, {tp}, {}]");
    assert_eq!(stored(&m, "layers.1.o_proj"), "[{tp}, {}, {}, {}]");
    assert_eq!(stored(&m, "layers.2.gate_proj"), "[{}, {tp}]");
    assert_eq!(stored(&m, "layers.2.down_proj"), "[{tp}, {}]");
    assert_eq!(stored(&m, "layers.0.input_norm"), "[{}]");
    assert_eq!(stored(&m, "embed"), "[{tp}, {}]");
    assert_eq!(stored(&m, "lm_head"), "[{tp}, {}]");
    let e = &m.funcs[m.entries[0].func];
    assert_eq!(e.values[e.results[0]].sharding.as_ref().unwrap().text(&m.mesh), "[{}, {}, {tp}]");
}

#[test]
fn sequence_parallel_llama_gathers_and_scatters() {
    let z = LLAMA_7B;
    let m = sharded(&llama(&z, false, false), &options(8, 1, true));
    consistent(&m);
    let bsh = z.batch * z.seq * z.hidden * 4;
    let (ag, rs) = ((Ring::AllGather, bsh), (Ring::ReduceScatter, bsh));
    assert_eq!(collectives(&m, "layer2048false"), [ag, rs, ag, rs]);
    assert_eq!(collectives(&m, "embed2048"), [rs]);
    assert_eq!(collectives(&m, "head2048false"), [ag]);
}

#[test]
fn entries_share_parameters_and_caches() {
    let z = Sizes { batch: 4, ..LLAMA_7B };
    let m = sharded(&llama(&z, true, true), &options(8, 2, false));
    consistent(&m);
    let bsh = |s: usize| z.batch / 2 * s * z.hidden * 4;
    for (s, cached) in [(2048, false), (2048, true), (1, true)] {
        assert_eq!(
            collectives(&m, &format!("layer{s}{cached}")),
            [(Ring::AllReduce, bsh(s)); 2],
            "{s} {cached}"
        );
    }
    assert_eq!(
        m.states.values().next().unwrap().sharding.as_ref().unwrap().text(&m.mesh),
        "[{dp}, {}, {tp}, {}]"
    );
    assert_eq!(stored(&m, "embed"), "[{tp}, {}]");
}

#[test]
fn gpt2_is_megatron_with_uneven_heads_and_vocab() {
    let z = GPT2;
    let m = sharded(&gpt2(&z), &options(8, 1, false));
    consistent(&m);
    let bsh = z.batch * z.seq * z.hidden * 4;
    assert_eq!(collectives(&m, "block"), [(Ring::AllReduce, bsh); 2]);
    assert_eq!(collectives(&m, "embed"), [(Ring::AllReduce, bsh)]);
    let rank = |name: &str| stored(&m, name);
    assert_eq!(rank("wte"), "[{tp}, {}]");
    assert_eq!(rank("wpe"), "[{tp}, {}]");
    // q.weight and q.bias, fc.bias.
    assert_eq!(rank("h.0.4"), "[{}, {tp}, {}, {}]");
    assert_eq!(rank("h.0.5"), "[{tp}, {}, {}]");
    assert_eq!(rank("h.0.13"), "[{tp}]");
    // proj.bias is added once, after the reduction.
    assert_eq!(rank("h.0.15"), "[{}]");
}

#[test]
fn grouped_query_heads_cut_the_axis() {
    let m = sharded(&llama(&SMOLLM, true, true), &options(9, 1, false));
    consistent(&m);
    assert_eq!(stored(&m, "layers.0.q_proj"), "[{}, {tp:(1)3}, {tp:(3)3}, {}]");
    assert_eq!(stored(&m, "layers.0.k_proj"), "[{}, {tp:(1)3}, {}]");
    assert_eq!(stored(&m, "layers.0.o_proj"), "[{tp:(1)3}, {tp:(3)3}, {}, {}]");
    let bsh = SMOLLM.batch * SMOLLM.seq * SMOLLM.hidden * 4;
    assert_eq!(collectives(&m, "layer512false"), [(Ring::AllReduce, bsh); 2]);
    for tp in [2, 3, 4, 8] {
        for sp in [false, true] {
            let m = sharded(&llama(&SMOLLM, true, true), &options(tp, 1, sp));
            consistent(&m);
            let n = collectives(&m, "layer512false").len();
            assert_eq!(n, if sp { 4 } else { 2 }, "tp {tp} sp {sp}: {:?}", collectives(&m, "layer512false"));
        }
    }
}

#[test]
fn perceptrons_pair_column_and_row() {
    for (tp, dp) in [(2, 1), (4, 2), (3, 1)] {
        let m = sharded(&mlp(8, 64, 256, 3, false), &options(tp, dp, false));
        consistent(&m);
        assert_eq!(collectives(&m, "block"), [(Ring::AllReduce, 8 / dp as usize * 64 * 4)]);
        assert_eq!(stored(&m, "w1.0"), "[{}, {tp}]");
        assert_eq!(stored(&m, "w2.0"), "[{tp}, {}]");
        assert_eq!(stored(&m, "b1.2"), "[{tp}]");
    }
}

#[test]
fn work_does_not_grow_with_depth() {
    let deep = Sizes { layers: 40, ..SMOLLM };
    let o = options(8, 1, false);
    let (a, b) =
        (solve(&llama(&SMOLLM, true, true), &o).unwrap(), solve(&llama(&deep, true, true), &o).unwrap());
    assert_eq!((a.variables, a.components), (b.variables, b.components));
}

#[test]
fn a_pin_is_obeyed() {
    let module = mlp(8, 64, 256, 2, false);
    let mut o = options(4, 1, false);
    let tp = o.mesh.whole(Axis::Tp);
    let row = Sharding { dims: vec![vec![tp], vec![]], partial: vec![] };
    o.pins.push(Pin { param: "w1.0".into(), sharding: row });
    let m = sharded(&module, &o);
    consistent(&m);
    assert_eq!(stored(&m, "w1.0"), "[{tp}, {}]");
    // All calls of a function share its shardings.
    assert_eq!(stored(&m, "w1.1"), "[{tp}, {}]");
    o.pins[0].param = "w9".into();
    assert_eq!(solve(&module, &o).unwrap_err().place.as_deref(), Some("w9"));
}

#[test]
fn impossible_meshes_are_refused_in_the_models_terms() {
    let module = mlp(8, 64, 256, 2, false);
    let e = solve(&module, &options(512, 1, false)).unwrap_err();
    assert!(e.what.contains("the most is 256"), "{e}");
    let e = solve(&module, &options(1, 3, false)).unwrap_err();
    assert!(e.what.contains("8 rows") && e.help.unwrap().contains("9 rows"));
    let e = solve(&module, &options(2, 1, true)).unwrap_err();
    assert!(e.what.contains("--sp"));
    let mut unlabelled = module;
    let func = unlabelled.entries[0].func;
    for v in unlabelled.funcs[func].values.values_mut() {
        v.labels.clear();
    }
    let e = solve(&unlabelled, &options(1, 2, false)).unwrap_err();
    assert!(e.what.contains("no batch"), "{e}");
}
