//! Random models through the whole driver: blocks of random kinds and uneven sizes, in layers that are called several times, with
//! tensor, sequence and data parallelism, stages and micro-batches, batches that do not divide; the solver chooses the shardings.
//! What comes out is run (with interpreted kernels) against the reference evaluator. `RANDOM_MODEL_SEEDS=0..20000` draws more.

use super::compare;
use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::ops::*;
use pcc_ir::program::{BatchPlan, ModelInfo};
use pcc_ir::{DType, Fault, Func, FuncId, Mesh, Module, Op, Param, ParamSource, ReduceKind, Type, ValueId};
use pcc_passes::driver::{self, Compiled};
use pcc_runtime::{Interpreter, NoWeights, Options, Session};
use rng::Rng;

#[path = "../../passes/tests/random_partitions/rng.rs"]
#[allow(dead_code)] // the other generators use all of it
mod rng;

/// Sizes of a model.
struct Sizes {
    rows: usize,
    seq: usize,
    hidden: usize,
    words: usize,
}

/// A function being built; its parameters are its last arguments.
struct Block<'a> {
    rng: &'a mut Rng,
    sizes: &'a Sizes,
    f: Func,
    weights: Vec<Type>,
}

impl Block<'_> {
    fn op(&mut self, op: Op, args: &[ValueId]) -> ValueId {
        self.f.apply(op, args, "").expect("the op fits")[0]
    }

    fn weight(&mut self, shape: &[usize]) -> ValueId {
        let ty = Type::f32(shape);
        self.weights.push(ty.clone());
        self.f.arg(ty, format!("w{}", self.weights.len()))
    }

    /// A product with a new weight: the last `contract` dims of `x` become `free`.
    fn linear(&mut self, x: ValueId, contract: usize, free: &[usize]) -> ValueId {
        let shape = self.f.ty(x).shape.clone();
        let kept = shape.len() - contract;
        let w = self.weight(&[&shape[kept..], free].concat());
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: (kept..shape.len()).collect(),
            rhs_contract: (0..contract).collect(),
            result: None,
        };
        self.op(Op::DotGeneral(dot), &[x, w])
    }

    fn unary(&mut self, kind: UnaryKind, x: ValueId) -> ValueId {
        self.op(Op::Unary(kind), &[x])
    }

    fn binary(&mut self, kind: BinaryKind, x: ValueId, y: ValueId) -> ValueId {
        self.op(Op::Binary(kind), &[x, y])
    }

    fn norm(&mut self, x: ValueId) -> ValueId {
        let h = self.sizes.hidden;
        if self.rng.chance(50) {
            let w = self.weight(&[h]);
            return self.op(Op::RmsNorm(RmsNorm { eps: 1e-2 }), &[x, w]);
        }
        let (w, b) = (self.weight(&[h]), self.weight(&[h]));
        self.op(Op::LayerNorm(LayerNorm { eps: 1e-2 }), &[x, w, b])
    }

    fn mlp(&mut self, x: ValueId) -> ValueId {
        let inner = self.rng.within(1, 11);
        let up = self.linear(x, 1, &[inner]);
        let kind = self.rng.pick(&[UnaryKind::Gelu, UnaryKind::Relu, UnaryKind::Silu, UnaryKind::Tanh]);
        let mut y = self.unary(kind, up);
        if self.rng.chance(40) {
            let gate = self.linear(x, 1, &[inner]);
            y = self.binary(BinaryKind::Mul, y, gate);
        }
        let h = self.sizes.hidden;
        let y = self.linear(y, 1, &[h]);
        if self.rng.chance(40) { self.bias(y) } else { y }
    }

    fn bias(&mut self, x: ValueId) -> ValueId {
        let shape = self.f.ty(x).shape.clone();
        let b = self.weight(&shape[2..]);
        let spread = Broadcast { dims: (2..shape.len()).collect(), shape };
        let b = self.op(Op::Broadcast(spread), &[b]);
        self.binary(BinaryKind::Add, x, b)
    }

    fn positions(&mut self) -> ValueId {
        let ty = Type::i32([self.sizes.rows, self.sizes.seq]);
        self.op(Op::Iota(Iota { ty, dim: 1, base: None }), &[])
    }

    /// Cosines and sines of positions, for `half` frequencies.
    fn rotate(&mut self, x: ValueId, positions: ValueId, half: usize) -> ValueId {
        let shape = vec![self.sizes.rows, self.sizes.seq, half];
        let p = self.op(Op::Convert(DType::F32), &[positions]);
        let p = self.op(Op::Broadcast(Broadcast { shape: shape.clone(), dims: vec![0, 1] }), &[p]);
        let frequencies = (0..shape.iter().product()).map(|i| 1.0 / (1.0 + (i % half) as f64)).collect();
        let ty = Type::f32(shape);
        let f = self.op(Op::Constant(Constant { ty, value: Literal::Dense(frequencies) }), &[]);
        let angle = self.binary(BinaryKind::Mul, p, f);
        let (cos, sin) = (self.unary(UnaryKind::Cos, angle), self.unary(UnaryKind::Sin, angle));
        let interleaved = self.rng.chance(50);
        self.op(Op::Rope(Rope { interleaved }), &[x, cos, sin])
    }

    fn attention(&mut self, x: ValueId) -> ValueId {
        let (g, r, d, e) =
            (self.rng.within(1, 3), self.rng.within(1, 3), 2 * self.rng.within(1, 2), self.rng.within(1, 3));
        let (mut q, mut k) = (self.linear(x, 1, &[g, r, d]), self.linear(x, 1, &[g, d]));
        let v = self.linear(x, 1, &[g, e]);
        let positions = self.positions();
        if self.rng.chance(40) {
            k = self.rotate(k, positions, d / 2);
            // Heads of a query in one dim, as the op wants them.
            let (rows, seq) = (self.sizes.rows, self.sizes.seq);
            let flat = self.op(Op::Reshape(vec![rows, seq, g * r, d]), &[q]);
            let turned = self.rotate(flat, positions, d / 2);
            q = self.op(Op::Reshape(vec![rows, seq, g, r, d]), &[turned]);
        }
        let slopes = self.rng.chance(20).then(|| self.weight(&[g, r]));
        let op = Attention {
            scale: 0.5,
            causal: self.rng.chance(60),
            window: self.rng.chance(30).then_some(2),
            softcap: self.rng.chance(20).then_some(2.0),
            bf16_bias: slopes.is_some() && self.rng.chance(50),
        };
        let mut args = vec![q, k, v, positions, positions];
        args.extend(slopes);
        let y = self.op(Op::Attention(op), &args);
        let h = self.sizes.hidden;
        self.linear(y, 3, &[h])
    }

    /// Each row less its mean, or by its largest or smallest element.
    fn reduced(&mut self, x: ValueId) -> ValueId {
        let shape = self.f.ty(x).shape.clone();
        let kind = self.rng.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
        let r = self.op(Op::Reduce(Reduce { kind, dims: vec![2] }), &[x]);
        let r = self.op(Op::Broadcast(Broadcast { shape, dims: vec![0, 1] }), &[r]);
        self.binary(BinaryKind::Sub, x, r)
    }

    /// The last dim cut into two and joined the other way round.
    fn swapped(&mut self, x: ValueId) -> ValueId {
        let shape = self.f.ty(x).shape.clone();
        if shape[2] < 2 {
            return self.unary(UnaryKind::Abs, x);
        }
        let at = self.rng.within(1, shape[2] - 1);
        let cut = |from: usize, to: usize| {
            Op::Slice(Slice { start: vec![0, 0, from], limit: vec![shape[0], shape[1], to] })
        };
        let (low, high) = (self.op(cut(0, at), &[x]), self.op(cut(at, shape[2]), &[x]));
        self.op(Op::Concat(2), &[high, low])
    }

    /// Padded and cut, or moved around and back.
    fn moved(&mut self, x: ValueId) -> ValueId {
        let shape = self.f.ty(x).shape.clone();
        if self.rng.chance(50) {
            let pad = Pad { low: vec![0, 0, 1], high: vec![0, 0, 2], value: 0.5 };
            let wide = self.op(Op::Pad(pad), &[x]);
            let limit = vec![shape[0], shape[1], shape[2] + 1];
            return self.op(Op::Slice(Slice { start: vec![0, 0, 1], limit }), &[wide]);
        }
        let turned = self.op(Op::Transpose(vec![2, 0, 1]), &[x]);
        let kind = self.rng.pick(&[UnaryKind::Sigmoid, UnaryKind::Neg]);
        let turned = self.unary(kind, turned);
        self.op(Op::Transpose(vec![1, 2, 0]), &[turned])
    }

    /// What a layer adds to the values that go through it.
    fn part(&mut self, x: ValueId) -> ValueId {
        match self.rng.below(10) {
            0..=2 => self.mlp(x),
            3..=5 => self.attention(x),
            6 => self.reduced(x),
            7 => self.swapped(x),
            8 => self.moved(x),
            _ => self.op(Op::Softmax(Softmax { dim: 2 }), &[x]),
        }
    }
}

const LABELS: [Option<Label>; 3] = [Some(Label::Batch), Some(Label::Seq), None];

/// A function of values with rows and positions, and the types of its weights.
fn function(
    rng: &mut Rng,
    sizes: &Sizes,
    name: &str,
    input: Type,
    build: impl FnOnce(&mut Block<'_>, ValueId) -> ValueId,
) -> (Func, Vec<Type>) {
    let mut block = Block { rng, sizes, f: Func::new(name), weights: Vec::new() };
    let rank = input.rank();
    let x = block.f.arg(input, "x");
    block.f.values[x].labels = LABELS[..rank].to_vec();
    let y = build(&mut block, x);
    block.f.results = vec![y];
    // Arguments: the value, then weights, in the order they were made.
    (block.f, block.weights)
}

/// An embedding, layers of one or two kinds, a head.
fn module(rng: &mut Rng, rows: usize) -> Module {
    let sizes = Sizes { rows, seq: rng.within(1, 6), hidden: rng.within(1, 9), words: rng.within(2, 11) };
    let hidden = Type::f32([rows, sizes.seq, sizes.hidden]);
    let tokens = Type::i32([rows, sizes.seq]);
    let mut m = Module { name: "random".into(), ..Module::default() };
    let mut funcs: Vec<(FuncId, Vec<Type>, Type)> = Vec::new();
    let mut add = |m: &mut Module, (f, weights): (Func, Vec<Type>)| {
        let result = f.ty(f.results[0]).clone();
        funcs.push((m.funcs.push(f), weights, result));
        funcs.len() - 1
    };
    let words = sizes.words;
    let embed = function(rng, &sizes, "embed", tokens.clone(), |b, x| {
        let table = b.weight(&[words, b.sizes.hidden]);
        b.op(Op::Gather(Gather { batch: 0, base: None }), &[table, x])
    });
    let mut calls = vec![add(&mut m, embed)];
    let kinds: Vec<usize> = (0..rng.within(1, 2))
        .map(|i| {
            let layer = function(rng, &sizes, &format!("layer{i}"), hidden.clone(), |b, mut x| {
                for _ in 0..b.rng.within(1, 2) {
                    let normed = if b.rng.chance(60) { b.norm(x) } else { x };
                    let y = b.part(normed);
                    x = if b.rng.chance(80) { b.binary(BinaryKind::Add, x, y) } else { y };
                }
                x
            });
            add(&mut m, layer)
        })
        .collect();
    let layers = rng.within(1, 4);
    calls.extend((0..layers).map(|i| kinds[i % kinds.len()]));
    let head = function(rng, &sizes, "head", hidden, |b, x| {
        let x = b.norm(x);
        b.linear(x, 1, &[words])
    });
    calls.push(add(&mut m, head));
    entry(&mut m, tokens, &calls, &funcs);
    m
}

/// Calls one after another, each with parameters of its own.
fn entry(m: &mut Module, tokens: Type, calls: &[usize], funcs: &[(FuncId, Vec<Type>, Type)]) {
    let mut main = Func::new("main");
    let mut chain = main.arg(tokens, "tokens");
    main.values[chain].labels = LABELS[..2].to_vec();
    let mut roles = vec![Role::Input("tokens".into())];
    for (i, &call) in calls.iter().enumerate() {
        let (id, weights, result) = &funcs[call];
        let mut args = vec![chain];
        for (w, ty) in weights.iter().enumerate() {
            let name = format!("part{i}.w{w}");
            let scale = 1.0 / (ty.shape[0] as f32).sqrt();
            let source = ParamSource::random(ty.shape.clone(), 3, name.clone(), scale);
            let param = Param { name: name.clone(), ty: ty.clone(), source, sharding: None, stack: None };
            roles.push(Role::Param(m.params.push(param)));
            args.push(main.arg(ty.clone(), name));
        }
        chain = main.push(Op::Call(*id), args, vec![result.clone()], &format!("part{i}"))[0];
        main.values[chain].labels = LABELS.to_vec();
    }
    main.results = vec![chain];
    let func = m.funcs.push(main);
    let results = vec!["logits".into()];
    m.entries.push(Entry {
        name: "forward".into(),
        func,
        args: roles,
        results,
        aliases: vec![],
        weight: 1.0,
        repeats: vec![],
    });
}

/// What became of a seed.
enum Outcome {
    Compared,
    /// The mesh does not fit the model, and pcc says so.
    Refused,
}

/// Compiles and runs one seed.
fn one(seed: u64) -> Result<Outcome, String> {
    let rng = &mut Rng::new(seed ^ 0x0de1);
    let mesh = Mesh {
        tp: rng.pick(&[1, 2, 2, 3, 4, 5, 6, 8]),
        pp: rng.pick(&[1, 1, 2, 3]),
        dp: rng.pick(&[1, 1, 2, 3]),
        ..Mesh::default()
    };
    let sp = mesh.tp > 1 && rng.chance(40);
    let (replicas, micro_batches) = (mesh.dp as usize, rng.within(1, 3));
    let cells = replicas * micro_batches;
    let batch = BatchPlan { batch: rng.within(cells, cells * 3), replicas, micro_batches };
    let module = module(rng, batch.rows() * replicas);
    let info = ModelInfo { name: "random".into(), ..ModelInfo::default() };
    let options = driver::Options {
        mesh,
        sp,
        batch,
        // Some in bf16; from the seed, so that it draws nothing and models stay what they were.
        dtype: if seed % 3 == 2 { DType::BF16 } else { DType::F32 },
        device: Default::default(),
        memory: None,
        plan: None,
        info,
        weights: None,
        print_after: None,
    };
    let shown = format!("{mesh:?} sp {sp} {batch:?}");
    let compiled = match driver::compile(module, &options) {
        Ok(compiled) => compiled,
        Err(d) if matches!(d.fault, Fault::Input | Fault::Usage) => return Ok(Outcome::Refused),
        Err(d) => return Err(format!("{shown}: compile: {d}")),
    };
    run(compiled, seed).map_err(|e| format!("{shown}: {e}"))?;
    Ok(Outcome::Compared)
}

fn run(compiled: Compiled, seed: u64) -> Result<(), String> {
    let Compiled { graph, program, .. } = compiled;
    let kernels = Box::new(Interpreter::new(program.kernels.values()));
    let options = Options { workers: 1, ..Options::default() };
    let session = Session::new(program, kernels, &NoWeights, &options, &|_, _| {});
    let mut session = session.map_err(|d| format!("session: {d}"))?;
    compare(&mut session, &graph, seed).map_err(|d| d.to_string())?;
    Ok(())
}

const SEEDS: std::ops::Range<u64> = 0..200;

#[test]
fn random_models_equal_the_reference() {
    let (mut failures, mut compared, mut refused) = (Vec::new(), 0, 0);
    for seed in rng::seeds("RANDOM_MODEL_SEEDS", SEEDS) {
        match std::panic::catch_unwind(|| one(seed)) {
            Ok(Ok(Outcome::Compared)) => compared += 1,
            Ok(Ok(Outcome::Refused)) => refused += 1,
            Ok(Err(e)) => failures.push(format!("seed {seed}: {e}")),
            Err(_) => failures.push(format!("seed {seed}: panicked")),
        }
    }
    println!("{compared} compared, {refused} refused");
    assert!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures.join("\n"));
    assert!(compared > refused);
}
