//! Small models of the usual families, built op by op: uneven widths, grouped heads that tp does not divide, caches, tied tables.

use pcc_ir::graph::{Entry, Label, Role};
use pcc_ir::ops::{
    Attention, BinaryKind, Constant, Gather, Iota, LayerNorm, Literal, Op, RmsNorm, Rope, UnaryKind, Update,
};
use pcc_ir::program::{BatchPlan, ModelInfo};
use pcc_ir::repeat::Repeat;
use pcc_ir::{DType, Diagnostic, Func, FuncId, Mesh, Module, Param, ParamSource, State, Type, ValueId};
use pcc_passes::driver::{Compiled, Options, compile};
use std::collections::HashMap;

const ROWS: Label = Label::Batch;
const SEQ: Label = Label::Seq;

/// Compiles a module for a mesh; the checker runs as part of it.
pub fn compiled(module: Module, mesh: Mesh, rows: usize, sp: bool) -> Compiled {
    let options = Options {
        mesh,
        sp,
        batch: BatchPlan { batch: rows, replicas: mesh.dp as usize, micro_batches: 1 },
        dtype: DType::F32,
        device: Default::default(),
        memory: None,
        info: ModelInfo::default(),
        weights: None,
        print_after: None,
        plan: None,
    };
    compile(module, &options).unwrap_or_else(|d| panic!("{d}"))
}

/// A module under construction.
#[derive(Default)]
struct Net {
    module: Module,
    params: HashMap<String, pcc_ir::ParamId>,
    states: HashMap<String, pcc_ir::StateId>,
}

/// An entry under construction.
struct Chain {
    name: String,
    func: Func,
    roles: Vec<(ValueId, Role)>,
    news: Vec<(ValueId, ValueId, String)>,
}

fn arg(f: &mut Func, ty: Type, name: &str, labels: &[Option<Label>]) -> ValueId {
    let v = f.arg(ty, name);
    f.values[v].labels = labels.to_vec();
    v
}

fn at(f: &mut Func, loc: &str, op: Op, args: &[ValueId]) -> ValueId {
    f.apply(op, args, loc).unwrap_or_else(|d| panic!("{d}"))[0]
}

fn ok<T>(r: Result<T, Diagnostic>) -> T {
    r.unwrap_or_else(|d| panic!("{d}"))
}

impl Chain {
    fn new(name: &str) -> Self {
        Self { name: name.into(), func: Func::new(name), roles: vec![], news: vec![] }
    }

    fn input(&mut self, ty: Type, name: &str, labels: &[Option<Label>]) -> ValueId {
        let v = arg(&mut self.func, ty, name, labels);
        self.roles.push((v, Role::Input(name.into())));
        v
    }

    fn held(&mut self, role: Role, ty: Type, name: &str) -> ValueId {
        if let Some((v, _)) = self.roles.iter().find(|(_, r)| *r == role) {
            return *v;
        }
        let v = self.func.arg(ty, name);
        self.roles.push((v, role));
        v
    }

    /// Calls with inputs, then weights, then states; the new states are the last results.
    fn call(
        &mut self,
        net: &mut Net,
        id: FuncId,
        inputs: &[ValueId],
        weights: &[String],
        states: &[String],
    ) -> Vec<ValueId> {
        let callee = net.module.funcs[id].clone();
        let mut args = inputs.to_vec();
        let mut olds = vec![];
        for name in weights.iter().chain(states) {
            let ty = callee.ty(callee.args[args.len()]).clone();
            let is_state = states.contains(name);
            let v = if is_state {
                let s = net.state(name, &ty);
                let v = self.held(Role::State(s), ty, name);
                self.func.values[v].labels = vec![Some(ROWS), None, None, None];
                olds.push((v, name.clone()));
                v
            } else {
                let p = net.param(name, &ty);
                self.held(Role::Param(p), ty, name)
            };
            args.push(v);
        }
        let loc = weights.last().map_or("", |w| w.as_str()).to_owned();
        let mut results = ok(self.func.call(id, &callee, &args, &loc));
        let news = results.split_off(results.len() - olds.len());
        self.news.extend(olds.into_iter().zip(news).map(|((old, name), new)| (old, new, name)));
        results
    }

    fn finish(mut self, net: &mut Net, outputs: &[(&str, ValueId)]) {
        let rank = |r: &Role| match r {
            Role::Input(_) => 0,
            Role::Param(_) => 1,
            Role::State(_) => 2,
        };
        self.roles.sort_by_key(|(_, r)| rank(r));
        self.func.args = self.roles.iter().map(|r| r.0).collect();
        self.func.results = outputs.iter().map(|o| o.1).chain(self.news.iter().map(|n| n.1)).collect();
        let position = |v| self.func.args.iter().position(|&a| a == v).expect("an argument");
        let aliases = self.news.iter().enumerate().map(|(i, n)| (position(n.0), outputs.len() + i)).collect();
        let results = outputs.iter().map(|o| o.0.to_owned()).chain(self.news.iter().map(|n| n.2.clone()));
        net.module.entries.push(Entry {
            name: self.name,
            args: self.roles.iter().map(|r| r.1.clone()).collect(),
            results: results.collect(),
            aliases,
            weight: 1.0,
            repeats: Vec::new(),
            func: net.module.funcs.push(self.func),
        });
    }
}

impl Net {
    fn param(&mut self, name: &str, ty: &Type) -> pcc_ir::ParamId {
        let params = &mut self.module.params;
        *self.params.entry(name.to_owned()).or_insert_with(|| {
            let source = ParamSource::random(ty.shape.clone(), 1, name, 0.1);
            params.push(Param { name: name.to_owned(), ty: ty.clone(), source, sharding: None, stack: None })
        })
    }

    fn state(&mut self, name: &str, ty: &Type) -> pcc_ir::StateId {
        let states = &mut self.module.states;
        *self.states.entry(name.to_owned()).or_insert_with(|| {
            states.push(State { name: name.to_owned(), ty: ty.clone(), sharding: None, stack: None })
        })
    }
}

fn names(prefix: &str, roles: &[&str]) -> Vec<String> {
    roles.iter().map(|r| format!("{prefix}{r}")).collect()
}

/// Several layers of `relu(x w + b)` and their sum.
pub fn mlp(rows: usize) -> Module {
    let mut net = Net { module: Module { name: "mlp".into(), ..Module::default() }, ..Net::default() };
    let widths = [6, 10];
    let mut f = Func::new("layer");
    let x = arg(&mut f, Type::f32([rows, widths[0]]), "x", &[Some(ROWS), None]);
    let up = f.arg(Type::f32(widths), "up");
    let bias = f.arg(Type::f32([widths[1]]), "up.bias");
    let down = f.arg(Type::f32([widths[1], widths[0]]), "down");
    let down_bias = f.arg(Type::f32([widths[0]]), "down.bias");
    let h = ok(f.linear(x, up, 1));
    let h = ok(f.add_bias(h, bias));
    let h = at(&mut f, "act", Op::Unary(UnaryKind::Sigmoid), &[h]);
    let y = ok(f.linear(h, down, 1));
    let y = ok(f.add_bias(y, down_bias));
    let y = at(&mut f, "residual", Op::Binary(BinaryKind::Sub), &[x, y]);
    f.results = vec![y];
    let layer = net.module.funcs.push(f);
    let mut chain = Chain::new("forward");
    let mut x = chain.input(Type::f32([rows, widths[0]]), "x", &[Some(ROWS), None]);
    for i in 0..4 {
        let weights = names(&format!("layers.{i}."), &["up", "up_bias", "down", "down_bias"]);
        x = chain.call(&mut net, layer, &[x], &weights, &[])[0];
    }
    chain.finish(&mut net, &[("y", x)]);
    net.module
}

const HIDDEN: usize = 12;
const KV: usize = 2;
const GROUP: usize = 2;
const DIM: usize = 4;
const FFN: usize = 10;
const VOCAB: usize = 21;
const LAYERS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    Prefill,
    Decode,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Forward => "forward",
            Mode::Prefill => "prefill",
            Mode::Decode => "decode",
        }
    }
}

fn positions(f: &mut Func, rows: usize, len: usize) -> ValueId {
    at(f, "positions", Op::Iota(Iota { ty: Type::i32([rows, len]), dim: 1, base: None }), &[])
}

fn angles(f: &mut Func, pos: ValueId) -> (ValueId, ValueId) {
    let shape = f.ty(pos).shape.clone();
    let table = Constant { ty: Type::f32([DIM / 2]), value: Literal::Dense(vec![1.0, 0.01]) };
    let table = at(f, "rope", Op::Constant(table), &[]);
    let as_float = ok(f.convert(pos, DType::F32));
    let full = ok(f.splat(Type::f32([shape[0], shape[1], DIM / 2]), 0.0));
    let table = ok(f.broadcast_like(table, &[2], full));
    let pos = ok(f.broadcast_like(as_float, &[0, 1], full));
    let angle = ok(f.mul(pos, table));
    (ok(f.unary(UnaryKind::Cos, angle)), ok(f.unary(UnaryKind::Sin, angle)))
}

/// Pre-norm layer with rotary grouped-query attention and a gated MLP.
fn llama_layer(mode: Mode, rows: usize, seq: usize) -> Func {
    let len = if mode == Mode::Decode { 1 } else { seq };
    let label = (mode != Mode::Decode).then_some(SEQ);
    let mut f = Func::new(format!("{}.layer", mode.name()));
    let x = arg(&mut f, Type::f32([rows, len, HIDDEN]), "x", &[Some(ROWS), label, None]);
    let step = (mode == Mode::Decode).then(|| arg(&mut f, Type::i32([rows]), "positions", &[Some(ROWS)]));
    let norm1 = f.arg(Type::f32([HIDDEN]), "attn.norm");
    let wq = f.arg(Type::f32([HIDDEN, KV, GROUP, DIM]), "q");
    let wk = f.arg(Type::f32([HIDDEN, KV, DIM]), "k");
    let wv = f.arg(Type::f32([HIDDEN, KV, DIM]), "v");
    let wo = f.arg(Type::f32([KV, GROUP, DIM, HIDDEN]), "o");
    let norm2 = f.arg(Type::f32([HIDDEN]), "mlp.norm");
    let gate = f.arg(Type::f32([HIDDEN, FFN]), "gate");
    let up = f.arg(Type::f32([HIDDEN, FFN]), "up");
    let down = f.arg(Type::f32([FFN, HIDDEN]), "down");
    let cache = Type::f32([rows, seq, KV, DIM]);
    let caches: Vec<_> = match mode {
        Mode::Forward => vec![],
        _ => ["k_cache", "v_cache"]
            .map(|n| arg(&mut f, cache.clone(), n, &[Some(ROWS), None, None, None]))
            .to_vec(),
    };
    let n = at(&mut f, "attn.norm", Op::RmsNorm(RmsNorm { eps: 1e-5 }), &[x, norm1]);
    let mut q = ok(f.linear(n, wq, 1));
    let mut k = ok(f.linear(n, wk, 1));
    let v = ok(f.linear(n, wv, 1));
    let pos = match step {
        Some(p) => at(&mut f, "positions", Op::Reshape(vec![rows, 1]), &[p]),
        None => positions(&mut f, rows, len),
    };
    let (cos, sin) = angles(&mut f, pos);
    q = at(&mut f, "attn.q_rope", Op::Rope(Rope { interleaved: false }), &[q, cos, sin]);
    k = at(&mut f, "attn.k_rope", Op::Rope(Rope { interleaved: false }), &[k, cos, sin]);
    let mut results = vec![];
    let (mut keys, mut values, mut k_pos) = (k, v, pos);
    if let [k_cache, v_cache] = caches[..] {
        let start = match step {
            Some(p) => p,
            None => ok(f.splat(Type::i32([rows]), 0.0)),
        };
        let update = || Op::Update(Update { batch: 1, base: None });
        let new_k = at(&mut f, "attn.k_cache", update(), &[k_cache, k, start]);
        let new_v = at(&mut f, "attn.v_cache", update(), &[v_cache, v, start]);
        results = vec![new_k, new_v];
        if mode == Mode::Decode {
            (keys, values) = (new_k, new_v);
            k_pos = positions(&mut f, rows, seq);
        }
    }
    let attention = Attention { scale: 0.5, causal: true, window: None, softcap: None, bf16_bias: false };
    let a = at(&mut f, "attn", Op::Attention(attention), &[q, keys, values, pos, k_pos]);
    let a = ok(f.linear(a, wo, 3));
    let x = at(&mut f, "attn.residual", Op::Binary(BinaryKind::Add), &[x, a]);
    let n = at(&mut f, "mlp.norm", Op::RmsNorm(RmsNorm { eps: 1e-5 }), &[x, norm2]);
    let g = ok(f.linear(n, gate, 1));
    let g = at(&mut f, "mlp.act", Op::Unary(UnaryKind::Silu), &[g]);
    let u = ok(f.linear(n, up, 1));
    let h = ok(f.mul(g, u));
    let y = ok(f.linear(h, down, 1));
    let x = at(&mut f, "mlp.residual", Op::Binary(BinaryKind::Add), &[x, y]);
    f.results = [vec![x], results].concat();
    f
}

fn llama_entry(net: &mut Net, mode: Mode, rows: usize, seq: usize, layers: &[&str]) {
    let len = if mode == Mode::Decode { 1 } else { seq };
    let label = (mode != Mode::Decode).then_some(SEQ);
    let mut f = Func::new(format!("{}.embed", mode.name()));
    let tokens = arg(&mut f, Type::i32([rows, len]), "tokens", &[Some(ROWS), label]);
    let table = f.arg(Type::f32([VOCAB, HIDDEN]), "tokens.weight");
    let x = at(&mut f, "embed", Op::Gather(Gather { batch: 0, base: None }), &[table, tokens]);
    f.results = vec![x];
    let embed = net.module.funcs.push(f);
    let layer = net.module.funcs.push(llama_layer(mode, rows, seq));
    let mut f = Func::new(format!("{}.head", mode.name()));
    let x = arg(&mut f, Type::f32([rows, len, HIDDEN]), "x", &[Some(ROWS), label, None]);
    let norm = f.arg(Type::f32([HIDDEN]), "norm");
    let table = f.arg(Type::f32([HIDDEN, VOCAB]), "head");
    let n = at(&mut f, "head.norm", Op::RmsNorm(RmsNorm { eps: 1e-5 }), &[x, norm]);
    let logits = ok(f.linear(n, table, 1));
    f.results = vec![logits];
    let head = net.module.funcs.push(f);

    let mut chain = Chain::new(mode.name());
    let tokens = chain.input(Type::i32([rows, len]), "tokens", &[Some(ROWS), label]);
    let step = (mode == Mode::Decode).then(|| chain.input(Type::i32([rows]), "positions", &[Some(ROWS)]));
    let mut x = chain.call(net, embed, &[tokens], &names("", &["embed.weight"]), &[])[0];
    let roles = ["attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"];
    for number in layers {
        let prefix = format!("layers.{number}.");
        let states = if mode == Mode::Forward { vec![] } else { names(&prefix, &["k_cache", "v_cache"]) };
        let inputs: Vec<_> = [x].into_iter().chain(step).collect();
        x = chain.call(net, layer, &inputs, &names(&prefix, &roles), &states)[0];
    }
    let logits = chain.call(net, head, &[x], &names("", &["norm", "head.weight"]), &[])[0];
    chain.finish(net, &[("logits", logits)]);
}

/// `forward`, or `prefill` and `decode` with caches.
pub fn llama(rows: usize, seq: usize, cached: bool) -> Module {
    let mut net = Net { module: Module { name: "llama".into(), ..Module::default() }, ..Net::default() };
    for mode in if cached { vec![Mode::Prefill, Mode::Decode] } else { vec![Mode::Forward] } {
        llama_entry(&mut net, mode, rows, seq, &["0", "1", "2"]);
    }
    net.module
}

/// A decoder with caches whose layers but the first are folded.
pub fn folded_llama(rows: usize, seq: usize, layers: u32) -> Module {
    let mut net = Net { module: Module { name: "folded".into(), ..Module::default() }, ..Net::default() };
    for mode in [Mode::Prefill, Mode::Decode] {
        llama_entry(&mut net, mode, rows, seq, &["0", "{1+1}"]);
    }
    let mut m = net.module;
    let stack = |name: &str| name.contains('{').then_some(layers - 1);
    m.params.values_mut().for_each(|p| p.stack = stack(&p.name));
    m.states.values_mut().for_each(|s| s.stack = stack(&s.name));
    for entry in &mut m.entries {
        entry.repeats = vec![Repeat { first: 2, calls: 1, count: layers - 1 }];
    }
    m
}

/// Learned positions, layer norms with biases, a plain MLP and a head tied to the embedding.
pub fn gpt2(rows: usize, seq: usize) -> Module {
    let mut net = Net { module: Module { name: "gpt2".into(), ..Module::default() }, ..Net::default() };
    let stream = Type::f32([rows, seq, HIDDEN]);
    let labels = [Some(ROWS), Some(SEQ), None];
    let norm =
        |f: &mut Func, loc: &str, x, w, b| at(f, loc, Op::LayerNorm(LayerNorm { eps: 1e-5 }), &[x, w, b]);

    let mut f = Func::new("embed");
    let tokens = arg(&mut f, Type::i32([rows, seq]), "tokens", &labels[..2]);
    let table = f.arg(Type::f32([VOCAB, HIDDEN]), "wte");
    let learned = f.arg(Type::f32([seq + 3, HIDDEN]), "wpe");
    let x = at(&mut f, "wte", Op::Gather(Gather { batch: 0, base: None }), &[table, tokens]);
    let pos = positions(&mut f, rows, seq);
    let p = at(&mut f, "wpe", Op::Gather(Gather { batch: 0, base: None }), &[learned, pos]);
    let x = at(&mut f, "embed", Op::Binary(BinaryKind::Add), &[x, p]);
    f.results = vec![x];
    let embed = net.module.funcs.push(f);

    let mut f = Func::new("layer");
    let x = arg(&mut f, stream.clone(), "x", &labels);
    let heads = KV * GROUP;
    let shapes: [(&str, &[usize]); 12] = [
        ("ln_1.weight", &[HIDDEN]),
        ("ln_1.bias", &[HIDDEN]),
        ("q", &[HIDDEN, heads, 1, DIM]),
        ("q.bias", &[heads, 1, DIM]),
        ("k", &[HIDDEN, heads, DIM]),
        ("v", &[HIDDEN, heads, DIM]),
        ("o", &[heads, 1, DIM, HIDDEN]),
        ("o.bias", &[HIDDEN]),
        ("up", &[HIDDEN, FFN]),
        ("up.bias", &[FFN]),
        ("down", &[FFN, HIDDEN]),
        ("down.bias", &[HIDDEN]),
    ];
    let w: Vec<ValueId> = shapes.iter().map(|(n, s)| f.arg(Type::f32(s.to_vec()), *n)).collect();
    let n = norm(&mut f, "ln_1", x, w[0], w[1]);
    let q = ok(f.linear(n, w[2], 1));
    let q = ok(f.add_bias(q, w[3]));
    let (k, v) = (ok(f.linear(n, w[4], 1)), ok(f.linear(n, w[5], 1)));
    let pos = positions(&mut f, rows, seq);
    let attention = Attention { scale: 0.5, causal: true, window: None, softcap: None, bf16_bias: false };
    let a = at(&mut f, "attn", Op::Attention(attention), &[q, k, v, pos, pos]);
    let a = ok(f.linear(a, w[6], 3));
    let a = ok(f.add_bias(a, w[7]));
    let x = at(&mut f, "attn.residual", Op::Binary(BinaryKind::Add), &[x, a]);
    let n = norm(&mut f, "ln_2", x, w[0], w[1]);
    let h = ok(f.linear(n, w[8], 1));
    let h = ok(f.add_bias(h, w[9]));
    let h = at(&mut f, "mlp.act", Op::Unary(UnaryKind::GeluTanh), &[h]);
    let y = ok(f.linear(h, w[10], 1));
    let y = ok(f.add_bias(y, w[11]));
    let x = at(&mut f, "mlp.residual", Op::Binary(BinaryKind::Add), &[x, y]);
    f.results = vec![x];
    let layer = net.module.funcs.push(f);

    let mut f = Func::new("head");
    let x = arg(&mut f, stream, "x", &labels);
    let (w1, b1) = (f.arg(Type::f32([HIDDEN]), "ln_f.weight"), f.arg(Type::f32([HIDDEN]), "ln_f.bias"));
    let table = f.arg(Type::f32([VOCAB, HIDDEN]), "wte");
    let n = norm(&mut f, "ln_f", x, w1, b1);
    let dot = pcc_ir::ops::DotGeneral { lhs_contract: vec![2], rhs_contract: vec![1], ..Default::default() };
    let logits = at(&mut f, "head", Op::DotGeneral(dot), &[n, table]);
    f.results = vec![logits];
    let head = net.module.funcs.push(f);

    let mut chain = Chain::new("forward");
    let tokens = chain.input(Type::i32([rows, seq]), "tokens", &labels[..2]);
    let mut x = chain.call(&mut net, embed, &[tokens], &names("", &["wte", "wpe"]), &[])[0];
    for i in 0..LAYERS {
        let weights: Vec<String> = shapes.iter().map(|s| format!("h.{i}.{}", s.0)).collect();
        x = chain.call(&mut net, layer, &[x], &weights, &[])[0];
    }
    let weights = names("", &["ln_f.weight", "ln_f.bias", "wte"]);
    let logits = chain.call(&mut net, head, &[x], &weights, &[])[0];
    chain.finish(&mut net, &[("logits", logits)]);
    net.module
}
