//! Models whose equal layers are folded compile to what the same models compile to layer by layer.

use pcc_frontend::{LoadOptions, load};
use pcc_ir::program::{BatchPlan, Program, Step};
use pcc_ir::{Mesh, Module};
use pcc_passes::driver::{self, Compiled, Options};
use pcc_passes::plan::Plan;
use pcc_passes::verify;
use serde_json::{Value, json};

/// gemma2 has a window in every other layer.
fn config(family: &str, layers: usize) -> Value {
    json!({
        "model_type": family, "hidden_size": 48, "num_hidden_layers": layers, "num_attention_heads": 6,
        "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 80, "vocab_size": 50, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "hidden_act": if family == "gemma2" { Value::Null } else { "silu".into() },
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "sliding_window": 16,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    })
}

fn module(family: &str, layers: usize) -> Module {
    let mut config = config(family, layers);
    let fields = config.as_object_mut().unwrap();
    if family != "gemma2" {
        fields.retain(|k, _| {
            !k.contains("softcapping") && !k.starts_with("query") && !k.starts_with("sliding")
        });
        fields.remove("hidden_activation");
    }
    fields.retain(|_, v| !v.is_null());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let options = LoadOptions { batch_rows: 2, seq: Some(24), weights: None, seed: 0 };
    load(&path, &options).unwrap_or_else(|d| panic!("{d}")).module
}

fn compile(module: &Module, mesh: Mesh, sp: bool, plan: Option<Plan>) -> Compiled {
    let options = Options {
        mesh,
        sp,
        dtype: pcc_ir::DType::F32,
        batch: BatchPlan { batch: 2, replicas: 1, micro_batches: 1 },
        device: Default::default(),
        memory: None,
        plan,
        info: Default::default(),
        weights: None,
        print_after: None,
    };
    driver::compile(module.clone(), &options).unwrap_or_else(|d| panic!("{d}"))
}

/// The program with every parameter by itself, and without the numbers of messages, which are the numbers of values.
fn plain(program: &Program) -> Program {
    let mut program = program.clone().expanded().unwrap();
    let stages = program.entries.iter_mut().flat_map(|e| &mut e.stages);
    for step in stages.flat_map(|s| &mut s.steps) {
        if let Step::Send { tag, .. } | Step::Recv { tag, .. } = step {
            *tag = 0;
        }
    }
    program
}

#[test]
fn folded_models_compile_as_layer_by_layer() {
    for (family, layers, mesh, sp) in [
        ("llama", 9, Mesh { tp: 2, ..Mesh::default() }, false),
        ("llama", 8, Mesh { tp: 4, pp: 3, ..Mesh::default() }, true),
        ("gemma2", 9, Mesh { tp: 2, pp: 4, ..Mesh::default() }, false),
        ("gemma2", 12, Mesh { tp: 3, pp: 5, ..Mesh::default() }, false),
    ] {
        let folded = module(family, layers);
        assert!(folded.is_folded());
        let flat = folded.expanded().unwrap().into_owned();
        let (a, b) = (compile(&folded, mesh, sp, None), compile(&flat, mesh, sp, None));
        assert!(b.program.params.len() > a.program.params.len() && !b.graph.is_folded());
        let (x, y) = (plain(&a.program), plain(&b.program));
        assert_eq!((&x.params, &x.states), (&y.params, &y.states), "{family} {layers}");
        assert_eq!(x.entries, y.entries, "{family} {layers}");
        assert!(x == y);
        assert_eq!(a.report.stages, b.report.stages);
        assert_eq!(a.plan.stages, b.plan.stages);

        // A plan for one is a plan for the other.
        let replayed = compile(&folded, mesh, sp, Some(b.plan.clone()));
        assert_eq!((&replayed.program, &replayed.plan), (&a.program, &a.plan));
        let own = Plan::from_json(&a.plan.to_json().unwrap()).unwrap();
        assert_eq!(compile(&folded, mesh, sp, Some(own)).program, a.program);
    }
}

#[test]
fn files_do_not_grow_with_depth() {
    let mesh = Mesh { tp: 2, pp: 2, ..Mesh::default() };
    let sizes = |layers: usize| {
        let c = compile(&module("gemma2", layers), mesh, false, None);
        let program = serde_json::to_string(&c.program).unwrap();
        let again: Program = serde_json::from_str(&program).unwrap();
        assert!(again == c.program);
        verify::check_program(&c.sharded, &c.local, &again).unwrap();
        let levels = [&c.graph, &c.sharded, &c.local].map(|m| serde_json::to_string(m).unwrap().len());
        (program.len(), levels, c.plan.to_json().unwrap().len())
    };
    let (shallow, deep) = (sizes(12), sizes(120));
    let close = |a: usize, b: usize| b < a + a / 20;
    assert!(close(shallow.0, deep.0) && close(shallow.2, deep.2), "{shallow:?} {deep:?}");
    assert!(shallow.1.iter().zip(&deep.1).all(|(&a, &b)| close(a, b)), "{shallow:?} {deep:?}");
}
