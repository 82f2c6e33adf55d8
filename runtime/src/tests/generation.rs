//! Generation with a model whose next token is a closed form of the whole text.

use super::fixture::*;
use crate::{Generation, NoWeights, Options, Sampling, Session, generate};
use pcc_ir::program::*;
use pcc_ir::{Axis, DType, Type};

const VOCAB: usize = 13;
const SEQ: usize = 12;

/// The likeliest next token of a text, and the other logits fall off from it.
fn logit(text: &[u32], token: usize) -> f64 {
    let sum: usize = text.iter().enumerate().map(|(i, &t)| (i + 1) * (t as usize + 1)).sum();
    -(((token + VOCAB - sum % VOCAB) % VOCAB) as f64)
}

/// Tokens of `text` in the state of row `row`, at f32.
fn stored(state: &crate::Operand<'_>, row: i64, len: i64) -> Vec<u32> {
    (0..len).map(|i| state.load(DType::F32, row * SEQ as i64 + i).unwrap() as u32).collect()
}

/// `prefill` and `decode` on a mesh with dp: rows over replicas, and micro-batches. Each is one kernel per row of the batch.
fn model(dp: usize, micro_batches: usize, batch: usize, workers: usize) -> Session {
    let plan = BatchPlan { batch, replicas: dp, micro_batches };
    let (all, rows) = (dp * plan.rows(), plan.rows() as i64);
    let mesh = mesh(1, dp as u32, 1);
    let spec = |name: &str, dtype, dims: &[usize]| IoSpec {
        name: name.into(),
        ty: Type::new(dtype, [&[all], dims].concat()),
        sharding: split(dims.len() + 1, 0, &[mesh.whole(Axis::Dp)]),
        batch_dim: Some(0),
        seq_dim: (dims.len() == 1 && name == "tokens").then_some(1),
    };
    let entry = |name: &str, seq: usize, second: &str, func: u32| EntryProgram {
        name: name.into(),
        inputs: vec![spec("tokens", DType::I32, &[seq]), spec(second, DType::I32, &[])],
        outputs: vec![spec("logits", DType::F32, &[VOCAB])],
        stages: vec![StageProgram {
            arena_bytes: 0,
            shared_bytes: 0,
            steps: vec![call(
                func,
                &[Slot::Input(0), Slot::Input(1), Slot::State(0), Slot::State(0), Slot::Output(0)],
            )],
        }],
    };
    let mut p = program(mesh, vec![], vec![], vec![], vec![]);
    p.entries = vec![entry("prefill", SEQ, "lengths", 0), entry("decode", 1, "positions", 1)];
    p.batch = plan;
    (p.model.vocab, p.model.seq) = (VOCAB, SEQ);
    let cache = split(2, 0, &[mesh.whole(Axis::Dp)]);
    p.states =
        vec![LocalState { name: "text".into(), ty: Type::f32([all, SEQ]), sharding: cache, stack: None }];
    for (name, seq) in [("prefill", SEQ), ("decode", 1)] {
        let kernel = text_kernel(&mut p, name, rows, seq as i64);
        let state = (rows as u64) * SEQ as u64 * 4;
        let args = [rows as u64 * seq as u64 * 4, rows as u64 * 4, state];
        let mut f = func(name, &args, &[state, rows as u64 * VOCAB as u64 * 4], 0, vec![kernel]);
        f.in_place = vec![(2, 3)];
        p.funcs.push(f);
    }
    let options = Options { workers, ..Options::default() };
    let kernels = Functions(vec![step(SEQ as i64, true), step(1, false)]);
    Session::new(p, Box::new(kernels), &NoWeights, &options, &|_, _| {}).unwrap()
}

/// Accesses: tokens, lengths or positions, text (written), logits (written). Its Rust form is [`step`].
fn text_kernel(p: &mut Program, name: &str, rows: i64, seq: i64) -> InstrKind {
    use pcc_ir::kernel::{Access, Kernel, Lane, Node, Store};
    let access = |dtype, write| Access { dtype, lane: Lane::Broadcast, write };
    let kernel = p.kernels.push(Kernel {
        name: name.into(),
        rank: 2,
        accesses: vec![
            access(DType::I32, false),
            access(DType::I32, false),
            access(DType::F32, true),
            access(DType::F32, true),
        ],
        scalars: 0,
        nodes: vec![Node::Const { dtype: DType::F32, bits: 0 }],
        stores: vec![Store { access: 2, node: 0, at: None }, Store { access: 3, node: 0, at: None }],
    });
    InstrKind::Kernel(Launch {
        kernel,
        ptrs: vec![slot(0), slot(1), slot(3), slot(4)],
        extents: vec![(rows as u64).into(), 1.into()],
        strides: vec![seq, 0, 1, 0, SEQ as i64, 0, VOCAB as i64, 0],
        scalars: vec![],
    })
}

fn step(seq: i64, prefill: bool) -> Function {
    Box::new(move |call, rows| {
        let [tokens, second, state, logits] = [0, 1, 2, 3].map(|i| &call.operands[i]);
        for row in rows {
            let n = second.load(DType::I32, row).unwrap() as i64;
            let (count, at) = if prefill { (seq, 0) } else { (1, n) };
            for i in 0..count {
                let token = tokens.load(DType::I32, row * seq + i).unwrap();
                state.store(DType::F32, row * SEQ as i64 + at + i, token).unwrap();
            }
            let text = stored(state, row, if prefill { n } else { n + 1 });
            for v in 0..VOCAB {
                logits.store(DType::F32, row * VOCAB as i64 + v as i64, logit(&text, v)).unwrap();
            }
        }
    })
}

/// What greedy generation gives, by the closed form.
fn expected(prompt: &[u32], max_tokens: usize, stop: &[u32]) -> Vec<u32> {
    let (mut text, mut made) = (prompt.to_vec(), Vec::new());
    while made.len() < max_tokens && text.len() <= SEQ {
        let best = (0..VOCAB as u32).find(|&v| logit(&text, v as usize) == 0.0).unwrap();
        made.push(best);
        text.push(best);
        if stop.contains(&best) {
            break;
        }
    }
    made
}

fn run(
    session: &mut Session,
    prompts: &[Vec<u32>],
    sampling: Sampling,
    max: usize,
    stop: &[u32],
) -> Vec<Vec<u32>> {
    let mut rows = vec![Vec::new(); prompts.len()];
    let generation = Generation { prompts, max_tokens: max, sampling, stop_tokens: stop };
    generate(session, &generation, &mut |row, token| {
        rows[row].push(token);
        Ok(true)
    })
    .unwrap();
    rows
}

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![3], vec![1, 2, 3, 4, 5], vec![7, 7], (0..11).collect()]
}

#[test]
fn a_batch_equals_single_runs_and_the_closed_form() {
    for (dp, micro_batches, workers) in [(1, 1, 1), (2, 1, 2), (1, 3, 2), (2, 2, 3)] {
        let mut session = model(dp, micro_batches, 5, workers);
        for stop in [&[][..], &[4, 9]] {
            let together = run(&mut session, &prompts(), Sampling::default(), 8, stop);
            for (prompt, tokens) in prompts().into_iter().zip(&together) {
                assert_eq!(*tokens, expected(&prompt, 8, stop));
                let alone = run(&mut session, std::slice::from_ref(&prompt), Sampling::default(), 8, stop);
                assert_eq!(alone, std::slice::from_ref(tokens));
            }
        }
    }
}

#[test]
fn sampling_repeats_and_does_not_depend_on_the_batch() {
    let mut session = model(2, 2, 4, 2);
    let sampling = Sampling { temperature: 2.0, top_p: 0.9, top_k: 0, seed: 11 };
    let together = run(&mut session, &prompts(), sampling, 6, &[]);
    assert_eq!(together, run(&mut session, &prompts(), sampling, 6, &[]));
    for (prompt, tokens) in prompts().into_iter().zip(&together) {
        assert_eq!(run(&mut session, &[prompt], sampling, 6, &[]), std::slice::from_ref(tokens));
    }
    let other = run(&mut session, &prompts(), Sampling { seed: 12, ..sampling }, 6, &[]);
    assert_ne!(together, other);
}

#[test]
fn the_caller_can_end_a_row() {
    let mut session = model(1, 1, 2, 1);
    let prompts = [vec![3], vec![5, 6]];
    let generation =
        Generation { prompts: &prompts, max_tokens: 5, sampling: Sampling::default(), stop_tokens: &[] };
    let mut counts = [0; 2];
    generate(&mut session, &generation, &mut |row, _| {
        counts[row] += 1;
        Ok(row == 1 || counts[0] < 2)
    })
    .unwrap();
    assert_eq!(counts, [2, 5]);
}

#[test]
fn requests_that_cannot_work_are_refused() {
    let mut session = model(1, 1, 2, 1);
    let mut refused = |prompts: &[Vec<u32>]| {
        let generation =
            Generation { prompts, max_tokens: 2, sampling: Sampling::default(), stop_tokens: &[] };
        generate(&mut session, &generation, &mut |_, _| Ok(true)).unwrap_err().to_string()
    };
    assert!(refused(&[]).contains("0 prompts"));
    assert!(refused(&[vec![1], vec![1], vec![1]]).contains("1 to 2"));
    assert!(refused(&[vec![1], vec![]]).contains("prompt 1"));
    assert!(refused(&[vec![1; 13]]).contains("13 tokens"));
    assert!(refused(&[vec![13]]).contains("token 13"));
}
