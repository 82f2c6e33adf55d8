//! Hand-built modules for tests: llama-like, gpt2-like and plain perceptrons, in the form frontends produce.

use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::ops::{
    Attention, BinaryKind, Gather, Iota, LayerNorm, Literal, RmsNorm, Rope, UnaryKind, Update,
};
use pcc_ir::ops::{Constant, DotGeneral};
use pcc_ir::{Func, FuncId, Module, Op, Param, ParamSource, State, Type, ValueId};

/// Sizes of a decoder.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub batch: usize,
    pub seq: usize,
    pub hidden: usize,
    pub kv: usize,
    pub group: usize,
    pub head: usize,
    pub ffn: usize,
    pub vocab: usize,
    pub layers: usize,
}

pub const LLAMA_7B: Sizes = Sizes {
    batch: 2,
    seq: 2048,
    hidden: 4096,
    kv: 32,
    group: 1,
    head: 128,
    ffn: 11008,
    vocab: 32000,
    layers: 3,
};

pub const GPT2: Sizes =
    Sizes { batch: 2, seq: 512, hidden: 768, kv: 12, group: 1, head: 64, ffn: 3072, vocab: 50257, layers: 3 };

pub const SMOLLM: Sizes =
    Sizes { batch: 2, seq: 512, hidden: 576, kv: 3, group: 3, head: 64, ffn: 1536, vocab: 49152, layers: 3 };

/// Adds an instruction and returns its result.
pub fn op(f: &mut Func, op: Op, args: &[ValueId], loc: &str) -> ValueId {
    f.apply(op, args, loc).unwrap()[0]
}

/// Contracts the last `n` dims of `x` with the first `n` of `w`.
pub fn dot(f: &mut Func, x: ValueId, w: ValueId, n: usize, loc: &str) -> ValueId {
    let rank = f.ty(x).rank();
    let d = DotGeneral {
        lhs_contract: (rank - n..rank).collect(),
        rhs_contract: (0..n).collect(),
        lhs_batch: vec![],
        rhs_batch: vec![],
        result: None,
    };
    op(f, Op::DotGeneral(d), &[x, w], loc)
}

fn rms(f: &mut Func, x: ValueId, w: ValueId, loc: &str) -> ValueId {
    op(f, Op::RmsNorm(RmsNorm { eps: 1e-5 }), &[x, w], loc)
}

fn add(f: &mut Func, a: ValueId, b: ValueId) -> ValueId {
    op(f, Op::Binary(BinaryKind::Add), &[a, b], "add")
}

/// Builds a module: functions, then entries whose arguments appear as calls ask for them.
pub struct Builder {
    pub module: Module,
}

impl Builder {
    pub fn new(name: &str) -> Self {
        Self { module: Module { name: name.into(), ..Module::default() } }
    }

    pub fn param(&mut self, name: &str, shape: &[usize]) -> Role {
        let p = self.module.params.push(Param {
            name: name.into(),
            ty: Type::f32(shape),
            source: ParamSource::zeros(shape),
            sharding: None,
            stack: None,
        });
        Role::Param(p)
    }

    pub fn state(&mut self, name: &str, shape: &[usize]) -> Role {
        let ty = Type::f32(shape);
        Role::State(self.module.states.push(State { name: name.into(), ty, sharding: None, stack: None }))
    }
}

/// An entry under construction.
pub struct EntryBuilder<'a> {
    pub b: &'a mut Builder,
    pub func: Func,
    roles: Vec<Role>,
}

impl<'a> EntryBuilder<'a> {
    pub fn new(b: &'a mut Builder, name: &str) -> Self {
        Self { b, func: Func::new(name), roles: Vec::new() }
    }

    pub fn input(&mut self, name: &str, ty: Type, labels: &[Option<Label>]) -> ValueId {
        let v = self.func.arg(ty, name);
        self.func.values[v].labels = labels.to_vec();
        self.roles.push(Role::Input(name.into()));
        v
    }

    pub fn stored(&mut self, role: &Role) -> ValueId {
        if let Some(i) = self.roles.iter().position(|r| r == role) {
            return self.func.args[i];
        }
        let ty = match role {
            Role::Param(p) => self.b.module.params[*p].ty.clone(),
            Role::State(s) => self.b.module.states[*s].ty.clone(),
            Role::Input(_) => unreachable!("inputs are added by name"),
        };
        self.roles.push(role.clone());
        self.func.arg(ty, "")
    }

    pub fn call(&mut self, f: FuncId, args: &[ValueId]) -> Vec<ValueId> {
        let callee = self.b.module.funcs[f].clone();
        self.func.call(f, &callee, args, &callee.name).unwrap()
    }

    pub fn finish(mut self, results: &[(ValueId, &str)], states: &[(Role, ValueId)]) {
        let name = self.func.name.clone();
        let mut entry = Entry {
            name: name.clone(),
            func: FuncId::from_u32(0),
            args: Vec::new(),
            results: results.iter().map(|r| r.1.to_owned()).collect(),
            aliases: Vec::new(),
            weight: 1.0,
            repeats: Vec::new(),
        };
        self.func.results = results.iter().map(|r| r.0).collect();
        for (role, v) in states {
            let arg = self.roles.iter().position(|r| r == role).unwrap();
            entry.aliases.push((arg, self.func.results.len()));
            entry.results.push(format!("state{arg}"));
            self.func.results.push(*v);
        }
        entry.args = self.roles;
        entry.func = self.b.module.funcs.push(self.func);
        self.b.module.entries.push(entry);
    }
}

const BATCH_SEQ: [Option<Label>; 2] = [Some(Label::Batch), Some(Label::Seq)];

/// Vocab lookup.
fn embed(z: &Sizes, s: usize) -> Func {
    let mut f = Func::new(format!("embed{s}"));
    let tokens = f.arg(Type::i32([z.batch, s]), "tokens");
    let w = f.arg(Type::f32([z.vocab, z.hidden]), "embed");
    let x = op(&mut f, Op::Gather(Gather { batch: 0, base: None }), &[w, tokens], "embed_tokens");
    f.results = vec![x];
    f
}

/// Norm and head; with `last`, only the last position of each row.
fn head(z: &Sizes, s: usize, last: bool) -> Func {
    let mut f = Func::new(format!("head{s}{last}"));
    let mut x = f.arg(Type::f32([z.batch, s, z.hidden]), "x");
    let lengths = last.then(|| f.arg(Type::i32([z.batch]), "lengths"));
    let norm = f.arg(Type::f32([z.hidden]), "norm");
    let w = f.arg(Type::f32([z.vocab, z.hidden]), "lm_head");
    if let Some(lengths) = lengths {
        x = op(&mut f, Op::Gather(Gather { batch: 1, base: None }), &[x, lengths], "last");
    }
    let x = rms(&mut f, x, norm, "norm");
    let rank = f.ty(x).rank();
    let d = DotGeneral {
        lhs_contract: vec![rank - 1],
        rhs_contract: vec![1],
        lhs_batch: vec![],
        rhs_batch: vec![],
        result: None,
    };
    let logits = op(&mut f, Op::DotGeneral(d), &[x, w], "lm_head");
    f.results = vec![logits];
    f
}

/// A llama layer; with a cache, `[b, seq, kv, d]` states are updated and attended.
fn llama_layer(z: &Sizes, s: usize, cached: bool) -> Func {
    let mut f = Func::new(format!("layer{s}{cached}"));
    let x = f.arg(Type::f32([z.batch, s, z.hidden]), "x");
    let start = cached.then(|| f.arg(Type::i32([z.batch]), "start"));
    let n1 = f.arg(Type::f32([z.hidden]), "input_norm");
    let wq = f.arg(Type::f32([z.hidden, z.kv, z.group, z.head]), "q_proj");
    let wk = f.arg(Type::f32([z.hidden, z.kv, z.head]), "k_proj");
    let wv = f.arg(Type::f32([z.hidden, z.kv, z.head]), "v_proj");
    let wo = f.arg(Type::f32([z.kv, z.group, z.head, z.hidden]), "o_proj");
    let n2 = f.arg(Type::f32([z.hidden]), "post_norm");
    let gate = f.arg(Type::f32([z.hidden, z.ffn]), "gate_proj");
    let up = f.arg(Type::f32([z.hidden, z.ffn]), "up_proj");
    let down = f.arg(Type::f32([z.ffn, z.hidden]), "down_proj");
    let caches = start.map(|_| {
        let ty = Type::f32([z.batch, z.seq, z.kv, z.head]);
        (f.arg(ty.clone(), "k_cache"), f.arg(ty, "v_cache"))
    });

    let iota = |f: &mut Func, n: usize| {
        op(f, Op::Iota(Iota { ty: Type::i32([z.batch, n]), dim: 1, base: None }), &[], "positions")
    };
    let mut q_pos = iota(&mut f, s);
    if let Some(start) = start {
        let b = pcc_ir::ops::Broadcast { shape: vec![z.batch, s], dims: vec![0] };
        let start = op(&mut f, Op::Broadcast(b), &[start], "positions");
        q_pos = add(&mut f, q_pos, start);
    }
    let inv = Constant {
        ty: Type::f32([z.head / 2]),
        value: Literal::Dense(
            (0..z.head / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / z.head as f64)).collect(),
        ),
    };
    let inv = op(&mut f, Op::Constant(inv), &[], "inv_freq");
    let shape = vec![z.batch, s, z.head / 2];
    let inv = op(
        &mut f,
        Op::Broadcast(pcc_ir::ops::Broadcast { shape: shape.clone(), dims: vec![2] }),
        &[inv],
        "rope",
    );
    let pos = op(&mut f, Op::Convert(pcc_ir::DType::F32), &[q_pos], "rope");
    let pos = op(&mut f, Op::Broadcast(pcc_ir::ops::Broadcast { shape, dims: vec![0, 1] }), &[pos], "rope");
    let angle = op(&mut f, Op::Binary(BinaryKind::Mul), &[pos, inv], "rope");
    let cos = op(&mut f, Op::Unary(UnaryKind::Cos), &[angle], "rope");
    let sin = op(&mut f, Op::Unary(UnaryKind::Sin), &[angle], "rope");

    let h = rms(&mut f, x, n1, "input_layernorm");
    let q = dot(&mut f, h, wq, 1, "q_proj");
    let k = dot(&mut f, h, wk, 1, "k_proj");
    let v = dot(&mut f, h, wv, 1, "v_proj");
    let rope = Op::Rope(Rope { interleaved: false });
    let q = op(&mut f, rope.clone(), &[q, cos, sin], "rope");
    let k = op(&mut f, rope, &[k, cos, sin], "rope");
    let (mut keys, mut values, mut k_pos) = (k, v, q_pos);
    if let (Some((kc, vc)), Some(start)) = (caches, start) {
        keys = op(&mut f, Op::Update(Update { batch: 1, base: None }), &[kc, k, start], "k_cache");
        values = op(&mut f, Op::Update(Update { batch: 1, base: None }), &[vc, v, start], "v_cache");
        k_pos = iota(&mut f, z.seq);
    }
    let attention = Attention { scale: 0.1, causal: true, window: None, softcap: None, bf16_bias: false };
    let a = op(&mut f, Op::Attention(attention), &[q, keys, values, q_pos, k_pos], "attention");
    let o = dot(&mut f, a, wo, 3, "o_proj");
    let x = add(&mut f, x, o);
    let h = rms(&mut f, x, n2, "post_attention_layernorm");
    let g = dot(&mut f, h, gate, 1, "gate_proj");
    let u = dot(&mut f, h, up, 1, "up_proj");
    let g = op(&mut f, Op::Unary(UnaryKind::Silu), &[g], "act");
    let m = op(&mut f, Op::Binary(BinaryKind::Mul), &[g, u], "act");
    let d = dot(&mut f, m, down, 1, "down_proj");
    let y = add(&mut f, x, d);
    f.results = vec![y];
    if caches.is_some() {
        f.results.extend([keys, values]);
    }
    f
}

fn llama_params(b: &mut Builder, z: &Sizes, layer: usize) -> Vec<Role> {
    let p = |b: &mut Builder, n: &str, shape: &[usize]| b.param(&format!("layers.{layer}.{n}"), shape);
    vec![
        p(b, "input_norm", &[z.hidden]),
        p(b, "q_proj", &[z.hidden, z.kv, z.group, z.head]),
        p(b, "k_proj", &[z.hidden, z.kv, z.head]),
        p(b, "v_proj", &[z.hidden, z.kv, z.head]),
        p(b, "o_proj", &[z.kv, z.group, z.head, z.hidden]),
        p(b, "post_norm", &[z.hidden]),
        p(b, "gate_proj", &[z.hidden, z.ffn]),
        p(b, "up_proj", &[z.hidden, z.ffn]),
        p(b, "down_proj", &[z.ffn, z.hidden]),
    ]
}

/// A llama with entry `forward`, and with `cached` also `prefill` and `decode`; `tied` shares embedding and head.
pub fn llama(z: &Sizes, cached: bool, tied: bool) -> Module {
    let mut b = Builder::new("llama");
    let table = b.param("embed", &[z.vocab, z.hidden]);
    let norm = b.param("norm", &[z.hidden]);
    let lm_head = if tied { table.clone() } else { b.param("lm_head", &[z.vocab, z.hidden]) };
    let layers: Vec<Vec<Role>> = (0..z.layers).map(|i| llama_params(&mut b, z, i)).collect();
    let caches: Vec<(Role, Role)> = (0..if cached { z.layers } else { 0 })
        .map(|i| {
            let shape = [z.batch, z.seq, z.kv, z.head];
            (b.state(&format!("k{i}"), &shape), b.state(&format!("v{i}"), &shape))
        })
        .collect();
    let kinds: &[(&str, usize, bool)] = if cached {
        &[("forward", 0, false), ("prefill", 0, true), ("decode", 1, true)]
    } else {
        &[("forward", 0, false)]
    };
    for &(name, s, state) in kinds {
        let s = if s == 0 { z.seq } else { s };
        let embed = b.module.funcs.push(embed(z, s));
        let layer = b.module.funcs.push(llama_layer(z, s, state));
        let head = b.module.funcs.push(head(z, s, state));
        let mut e = EntryBuilder::new(&mut b, name);
        let tokens = e.input("tokens", Type::i32([z.batch, s]), &BATCH_SEQ);
        let rows = state.then(|| e.input("rows", Type::i32([z.batch]), &[Some(Label::Batch)]));
        let w = e.stored(&table);
        let mut x = e.call(embed, &[tokens, w])[0];
        let mut new = Vec::new();
        for (i, params) in layers.iter().enumerate() {
            let mut args = vec![x];
            args.extend(rows);
            args.extend(params.iter().map(|p| e.stored(p)));
            if state {
                args.push(e.stored(&caches[i].0));
                args.push(e.stored(&caches[i].1));
            }
            let out = e.call(layer, &args);
            x = out[0];
            if state {
                new.push((caches[i].0.clone(), out[1]));
                new.push((caches[i].1.clone(), out[2]));
            }
        }
        let mut args = vec![x];
        args.extend(rows);
        args.push(e.stored(&norm));
        args.push(e.stored(&lm_head));
        let logits = e.call(head, &args)[0];
        e.finish(&[(logits, "logits")], &new);
    }
    b.module
}

fn bias(f: &mut Func, x: ValueId, b: ValueId) -> ValueId {
    f.add_bias(x, b).unwrap()
}

/// A gpt2-like layer: biases everywhere, layer norms, one projection per q, k and v.
fn gpt2_layer(z: &Sizes) -> Func {
    let mut f = Func::new("block");
    let x = f.arg(Type::f32([z.batch, z.seq, z.hidden]), "x");
    let vector = Type::f32([z.hidden]);
    let heads = [z.kv, 1, z.head];
    let names = ["ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"];
    let norms: Vec<ValueId> = names.iter().map(|n| f.arg(vector.clone(), *n)).collect();
    let wq = f.arg(Type::f32([z.hidden, z.kv, 1, z.head]), "q.weight");
    let bq = f.arg(Type::f32(heads), "q.bias");
    let wk = f.arg(Type::f32([z.hidden, z.kv, z.head]), "k.weight");
    let bk = f.arg(Type::f32([z.kv, z.head]), "k.bias");
    let wv = f.arg(Type::f32([z.hidden, z.kv, z.head]), "v.weight");
    let bv = f.arg(Type::f32([z.kv, z.head]), "v.bias");
    let wo = f.arg(Type::f32([z.kv, 1, z.head, z.hidden]), "o.weight");
    let bo = f.arg(vector.clone(), "o.bias");
    let wi = f.arg(Type::f32([z.hidden, z.ffn]), "fc.weight");
    let bi = f.arg(Type::f32([z.ffn]), "fc.bias");
    let wp = f.arg(Type::f32([z.ffn, z.hidden]), "proj.weight");
    let bp = f.arg(vector, "proj.bias");
    let norm = |f: &mut Func, x, i: usize| {
        op(f, Op::LayerNorm(LayerNorm { eps: 1e-5 }), &[x, norms[i], norms[i + 1]], "ln")
    };
    let h = norm(&mut f, x, 0);
    let q = dot(&mut f, h, wq, 1, "q");
    let q = bias(&mut f, q, bq);
    let k = dot(&mut f, h, wk, 1, "k");
    let k = bias(&mut f, k, bk);
    let v = dot(&mut f, h, wv, 1, "v");
    let v = bias(&mut f, v, bv);
    let pos = Op::Iota(Iota { ty: Type::i32([z.batch, z.seq]), dim: 1, base: None });
    let pos = op(&mut f, pos, &[], "positions");
    let attention = Attention { scale: 0.125, causal: true, window: None, softcap: None, bf16_bias: false };
    let a = op(&mut f, Op::Attention(attention), &[q, k, v, pos, pos], "attention");
    let o = dot(&mut f, a, wo, 3, "o");
    let o = bias(&mut f, o, bo);
    let x = add(&mut f, x, o);
    let h = norm(&mut f, x, 2);
    let h = dot(&mut f, h, wi, 1, "fc");
    let h = bias(&mut f, h, bi);
    let h = op(&mut f, Op::Unary(UnaryKind::GeluTanh), &[h], "act");
    let h = dot(&mut f, h, wp, 1, "proj");
    let h = bias(&mut f, h, bp);
    let y = add(&mut f, x, h);
    f.results = vec![y];
    f
}

/// GPT-2: token and position embeddings, tied head.
pub fn gpt2(z: &Sizes) -> Module {
    let mut b = Builder::new("gpt2");
    let mut f = Func::new("embed");
    let tokens = f.arg(Type::i32([z.batch, z.seq]), "tokens");
    let wte = f.arg(Type::f32([z.vocab, z.hidden]), "wte");
    let wpe = f.arg(Type::f32([1024, z.hidden]), "wpe");
    let t = op(&mut f, Op::Gather(Gather { batch: 0, base: None }), &[wte, tokens], "wte");
    let pos = Op::Iota(Iota { ty: Type::i32([z.batch, z.seq]), dim: 1, base: None });
    let pos = op(&mut f, pos, &[], "positions");
    let p = op(&mut f, Op::Gather(Gather { batch: 0, base: None }), &[wpe, pos], "wpe");
    let x = add(&mut f, t, p);
    f.results = vec![x];
    let embed = b.module.funcs.push(f);
    let layer = b.module.funcs.push(gpt2_layer(z));
    let head = b.module.funcs.push(head(z, z.seq, false));
    let wte = b.param("wte", &[z.vocab, z.hidden]);
    let wpe = b.param("wpe", &[1024, z.hidden]);
    let ln_f = b.param("ln_f", &[z.hidden]);
    let shapes: Vec<Vec<usize>> = {
        let f = &b.module.funcs[layer];
        f.args[1..].iter().map(|&v| f.ty(v).shape.clone()).collect()
    };
    let layers: Vec<Vec<Role>> = (0..z.layers)
        .map(|l| shapes.iter().enumerate().map(|(i, s)| b.param(&format!("h.{l}.{i}"), s)).collect())
        .collect();
    let mut e = EntryBuilder::new(&mut b, "forward");
    let tokens = e.input("tokens", Type::i32([z.batch, z.seq]), &BATCH_SEQ);
    let (te, pe) = (e.stored(&wte), e.stored(&wpe));
    let mut x = e.call(embed, &[tokens, te, pe])[0];
    for params in &layers {
        let args: Vec<ValueId> =
            std::iter::once(x).chain(params.iter().map(|p| e.stored(p)).collect::<Vec<_>>()).collect();
        x = e.call(layer, &args)[0];
    }
    let (n, w) = (e.stored(&ln_f), e.stored(&wte));
    let logits = e.call(head, &[x, n, w])[0];
    e.finish(&[(logits, "logits")], &[]);
    b.module
}

/// A residual perceptron of `layers` blocks `x + relu(x w1 + b1) w2 + b2`, as one flat entry or as calls.
pub fn mlp(batch: usize, hidden: usize, ffn: usize, layers: usize, flat: bool) -> Module {
    let mut b = Builder::new("mlp");
    let params: Vec<Vec<Role>> = (0..layers)
        .map(|l| {
            vec![
                b.param(&format!("w1.{l}"), &[hidden, ffn]),
                b.param(&format!("b1.{l}"), &[ffn]),
                b.param(&format!("w2.{l}"), &[ffn, hidden]),
                b.param(&format!("b2.{l}"), &[hidden]),
            ]
        })
        .collect();
    let block = |f: &mut Func, x: ValueId, p: &[ValueId]| {
        let h = dot(f, x, p[0], 1, "w1");
        let h = bias(f, h, p[1]);
        let h = op(f, Op::Unary(UnaryKind::Relu), &[h], "relu");
        let h = dot(f, h, p[2], 1, "w2");
        let h = bias(f, h, p[3]);
        add(f, x, h)
    };
    let ty = Type::f32([batch, hidden]);
    let layer = (!flat).then(|| {
        let mut f = Func::new("block");
        let x = f.arg(ty.clone(), "x");
        let shapes: [&[usize]; 4] = [&[hidden, ffn], &[ffn], &[ffn, hidden], &[hidden]];
        let p: Vec<ValueId> = shapes.iter().map(|s| f.arg(Type::f32(*s), "")).collect();
        f.results = vec![block(&mut f, x, &p)];
        b.module.funcs.push(f)
    });
    let mut e = EntryBuilder::new(&mut b, "forward");
    let mut x = e.input("x", ty, &[Some(Label::Batch), None]);
    for p in &params {
        let p: Vec<ValueId> = p.iter().map(|r| e.stored(r)).collect();
        x = match layer {
            Some(layer) => e.call(layer, &[&[x], &p[..]].concat())[0],
            None => block(&mut e.func, x, &p),
        };
    }
    e.finish(&[(x, "y")], &[]);
    b.module
}
