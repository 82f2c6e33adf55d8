//! Language models with short prompts and few rows: what a program compiled for more positions and rows computes is what one compiled
//! for just these computes, on any mesh, though every buffer holds NaN before each run.

use pcc_ir::Mesh;
use pcc_ir::program::BatchPlan;
use pcc_passes::driver::{self, Compiled};
use pcc_passes::twin::randomise;
use pcc_runtime::{HostTensor, Interpreter, NoWeights, Options, Session};
use std::collections::BTreeMap;

const SEQ: usize = 12;
const VOCAB: usize = 21;

/// Learned positions, heads that no mesh divides.
const GPT2: &str = r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 21, "n_embd": 12,
    "n_head": 3, "n_layer": 2, "n_positions": 16, "n_inner": 10, "layer_norm_epsilon": 1e-5}"#;
/// Rotary positions, fewer kv heads than devices.
const LLAMA: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 21, "hidden_size": 16,
    "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "hidden_act": "silu"}"#;

fn compiled(config: &str, mesh: Mesh, sp: bool, batch: BatchPlan, seq: usize) -> Compiled {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let rows = batch.rows() * batch.replicas;
    let load = pcc_frontend::LoadOptions { batch_rows: rows, seq: Some(seq), weights: None, seed: 0 };
    let model = pcc_frontend::load(folder.path(), &load).unwrap();
    let options = driver::Options {
        mesh,
        sp,
        batch,
        device: Default::default(),
        memory: None,
        plan: None,
        info: model.info,
        weights: None,
        print_after: None,
        dtype: pcc_ir::DType::F32,
    };
    let mut graph = model.module;
    randomise(&mut graph, 7);
    driver::compile(graph, &options).unwrap()
}

fn session(c: &Compiled) -> Session {
    let kernels = Box::new(Interpreter::new(c.program.kernels.values()));
    let options = Options { workers: 2, poison: true, ..Options::default() };
    Session::new(c.program.clone(), kernels, &NoWeights, &options, &|_, _| {}).unwrap()
}

fn token(row: usize, at: usize) -> i32 {
    ((row * 7 + at * 5 + row * at + 3) % VOCAB) as i32
}

fn tokens(rows: usize, from: usize, to: usize) -> HostTensor {
    let all = (0..rows).flat_map(|r| (from..to).map(move |i| token(r, i)));
    HostTensor::i32([rows, to - from], all.collect())
}

fn run(session: &mut Session, entry: &str, rows: usize, inputs: Vec<(&str, HostTensor)>) -> Vec<f32> {
    let inputs: BTreeMap<String, HostTensor> = inputs.into_iter().map(|(n, t)| (n.to_owned(), t)).collect();
    let mut out = session.run(entry, &inputs, rows).unwrap();
    out.remove("logits").unwrap().as_f32().unwrap().to_vec()
}

/// The logits after `n` tokens of each row, by a program of just this size on one device.
fn exact(config: &str, rows: usize, n: usize) -> Vec<f32> {
    let batch = BatchPlan { batch: rows, replicas: 1, micro_batches: 1 };
    let c = compiled(config, Mesh::default(), false, batch, n);
    let lengths = HostTensor::i32([rows], vec![n as i32; rows]);
    run(&mut session(&c), "prefill", rows, vec![("tokens", tokens(rows, 0, n)), ("lengths", lengths)])
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-4 * w.abs().max(1.0), "{what}: element {i} is {g}, not {w}");
    }
}

fn check(config: &str, mesh: Mesh, sp: bool, batch: BatchPlan) {
    let c = compiled(config, mesh, sp, batch, SEQ);
    let mut session = session(&c);
    for (rows, n) in [(batch.batch, 5), (1, 3), (batch.batch.div_ceil(2), 1), (batch.batch, SEQ)] {
        let what = format!("{rows} rows of {n} tokens on {mesh:?}, sp {sp}, {batch:?}");
        session.reset_states().unwrap();
        let lengths = HostTensor::i32([rows], vec![n as i32; rows]);
        let prompt = vec![("tokens", tokens(rows, 0, n)), ("lengths", lengths)];
        assert_close(&run(&mut session, "prefill", rows, prompt), &exact(config, rows, n), &what);
        let whole = run(&mut session, "forward", rows, vec![("tokens", tokens(rows, 0, n))]);
        let last: Vec<f32> =
            whole.chunks(n * VOCAB).flat_map(|row| row[(n - 1) * VOCAB..].to_vec()).collect();
        assert_close(&last, &exact(config, rows, n), &what);
        for at in n..(n + 2).min(SEQ) {
            let positions = HostTensor::i32([rows], vec![at as i32; rows]);
            let step = vec![("tokens", tokens(rows, at, at + 1)), ("positions", positions)];
            let got = run(&mut session, "decode", rows, step);
            assert_close(&got, &exact(config, rows, at + 1), &format!("{what}, decoding token {at}"));
        }
    }
}

#[test]
fn short_prompts_equal_an_exact_compile() {
    let one = BatchPlan { batch: 1, replicas: 1, micro_batches: 1 };
    let tp = |tp| Mesh { tp, ..Mesh::default() };
    for config in [GPT2, LLAMA] {
        check(config, tp(8), false, one);
        check(config, tp(3), true, one);
        check(config, tp(4), true, BatchPlan { batch: 3, ..one });
        let replicated = BatchPlan { batch: 7, replicas: 2, micro_batches: 2 };
        check(config, Mesh { tp: 2, pp: 2, dp: 2, ..Mesh::default() }, false, replicated);
    }
}

/// Five tokens on a program for many more run five tokens' loops.
#[test]
fn short_prompts_cost_what_they_are_long() {
    let one = BatchPlan { batch: 1, replicas: 1, micro_batches: 1 };
    for (mesh, sp) in [
        (Mesh::default(), false),
        (Mesh { tp: 8, ..Mesh::default() }, false),
        (Mesh { tp: 4, ..Mesh::default() }, true),
    ] {
        for config in [GPT2, LLAMA] {
            let whole = work(&compiled(config, mesh, sp, one, 16), 16);
            let short = work(&compiled(config, mesh, sp, one, 16), 4);
            let exact = work(&compiled(config, mesh, sp, one, 4), 4);
            assert!(
                short < whole / 2 && short <= exact + exact / 10,
                "{short} of {whole}, {exact} when exact"
            );
        }
    }
}

/// Loop iterations of all instructions of all devices in a run of `forward` with `n` positions.
fn work(c: &Compiled, n: usize) -> u64 {
    use pcc_ir::Sizes;
    use pcc_ir::program::{InstrKind, Step};
    let p = &c.program;
    let sizes = Sizes { batch: p.batch, rows: p.batch.batch, micro_batch: 0, seq: Some(n) };
    let entry = p.entries.iter().find(|e| e.name == "forward").unwrap();
    let steps: Vec<_> = entry.stages.iter().flat_map(|s| s.steps.iter()).collect();
    let funcs = steps.iter().filter_map(|s| if let Step::Call { func, .. } = s { Some(*func) } else { None });
    let mut total = 0;
    for func in funcs {
        for instr in &p.funcs[func as usize].instrs {
            for device in 0..p.mesh.stage_devices() {
                let counted = match &instr.kind {
                    InstrKind::Collective(c) if c.there.is_empty() => c.dst_shape.iter().product(),
                    kind => kind.extents().iter().map(|e| e.on(&p.mesh, device, &sizes)).product::<u64>(),
                };
                total += counted;
            }
        }
    }
    total
}
