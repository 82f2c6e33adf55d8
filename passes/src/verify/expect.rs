//! What the instructions of a function must do, read off its local form: which roots (arguments, listed constants, products,
//! collectives) every value depends on, and the products and collectives in order.

use super::needs::Needs;
use pcc_ir::ops::{Attention, Collective, Gather, Iota, Literal, ShardBase, Update};
use pcc_ir::program::{ConstantData, Scalar};
use pcc_ir::{AxisRef, Clip, Func, Op, Part, Term, Type, ValueId};
use std::collections::HashSet;

/// A matrix product: the value it makes, and what its operands and its result depend on.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub value: ValueId,
    pub lhs: Needs,
    pub rhs: Needs,
    pub result: usize,
    /// Multiplications.
    pub work: u128,
    pub alpha: f64,
    /// The parts of its sums that they may stop at.
    pub depths: Vec<Clip>,
}

/// An attention: the value it makes, what each operand depends on (in the op's order), and their types.
#[derive(Clone, Debug)]
pub(super) struct Attends<'a> {
    pub value: ValueId,
    pub op: &'a Attention,
    pub operands: Vec<(Needs, &'a Type)>,
    /// Whether it matters where the queries stand.
    pub looks: bool,
    pub result: usize,
    /// The part of the keys that it may stop at, where positions a run does not have are never seen.
    pub keys: Option<Clip>,
}

/// A selection: the value it makes, what each operand depends on, with their types, and the root of each result, with its type and whether
/// anything needs it.
#[derive(Clone, Debug)]
pub(super) struct Selects<'a> {
    pub value: ValueId,
    pub op: &'a Op,
    pub operands: Vec<(Needs, &'a Type)>,
    pub results: Vec<(usize, &'a Type, bool)>,
}

/// A collective: the value it makes, what its operand depends on.
#[derive(Clone, Debug)]
pub(super) struct Exchange<'a> {
    pub value: ValueId,
    pub operand: ValueId,
    pub op: &'a Collective,
    pub source: Needs,
    pub result: usize,
}

/// A kernel that reduces rows (a norm, a softmax, a reduction along one dim): the value it makes or helps to make, what it reads.
#[derive(Clone, Debug)]
pub(super) struct RowKernel {
    pub value: ValueId,
    pub source: Needs,
    pub result: usize,
}

/// What a function must do.
#[derive(Clone, Debug)]
pub(super) struct Expected<'a> {
    pub products: Vec<Product>,
    pub attentions: Vec<Attends<'a>>,
    pub selections: Vec<Selects<'a>>,
    pub exchanges: Vec<Exchange<'a>>,
    pub rows: Vec<RowKernel>,
    /// Listed constants, in order; constant k is root `args + k`.
    pub constants: Vec<ConstantData>,
    /// What each result depends on.
    pub results: Vec<Needs>,
    /// The value that each root is, for messages.
    pub roots: Vec<ValueId>,
    /// Scalars by which kernels know their device's piece, and the value that needs each.
    pub scalars: Vec<(Scalar, ValueId)>,
}

/// Reads a local function, the local form of `global` if that is known; instructions that nothing needs are skipped.
pub(super) fn expected<'a>(func: &'a Func, global: Option<&Func>) -> Expected<'a> {
    let live = live(func);
    let read = func.insts.iter().zip(&live).filter(|(_, live)| **live).flat_map(|(inst, _)| &inst.args);
    let needed: HashSet<ValueId> = read.chain(&func.results).copied().collect();
    let is_listed = |op: &Op| matches!(op, Op::Constant(c) if matches!(c.value, Literal::Dense(_)));
    let mut e = Expected {
        products: Vec::new(),
        attentions: Vec::new(),
        selections: Vec::new(),
        exchanges: Vec::new(),
        rows: Vec::new(),
        constants: Vec::new(),
        results: Vec::new(),
        roots: func.args.clone(),
        scalars: Vec::new(),
    };
    let used = |at: &(usize, &pcc_ir::Inst)| live[at.0];
    for (_, inst) in func.insts.iter().enumerate().filter(used) {
        if let (Op::Constant(c), &[v]) = (&inst.op, &inst.results[..])
            && is_listed(&inst.op)
            && let Literal::Dense(data) = &c.value
        {
            e.constants.push(ConstantData { ty: c.ty.clone(), data: data.clone() });
            e.roots.push(v);
        }
    }
    let mut of: Vec<Needs> = vec![Needs::default(); func.values.len()];
    let index = |v: ValueId| v.as_u32() as usize;
    let elements = |v: ValueId| func.ty(v).elements() as u128;
    let extent = |v: ValueId, d: usize| func.ty(v).shape[d] as u128;
    for (i, &v) in e.roots.iter().enumerate() {
        of[index(v)] = Needs::one(i);
    }
    for (_, inst) in func.insts.iter().enumerate().filter(used) {
        let Some(&result) = inst.results.first() else { continue };
        if is_listed(&inst.op) {
            continue;
        }
        e.scalars.extend(scalars(&inst.op).into_iter().map(|s| (s, result)));
        if let Op::TopK(_) | Op::Sample(_) = &inst.op {
            let operands: Vec<_> = inst.args.iter().map(|&v| (of[index(v)].clone(), func.ty(v))).collect();
            let mut results = Vec::new();
            for &v in &inst.results {
                results.push((e.roots.len(), func.ty(v), needed.contains(&v)));
                of[index(v)] = Needs::one(e.roots.len());
                e.roots.push(v);
            }
            e.selections.push(Selects { value: result, op: &inst.op, operands, results });
            continue;
        }
        let mut root = || {
            e.roots.push(result);
            e.roots.len() - 1
        };
        let arg = |i: usize| inst.args.get(i).map(|&v| of[index(v)].clone()).unwrap_or_default();
        let made = match &inst.op {
            Op::DotGeneral(dot) => {
                let result_root = root();
                let depth: u128 = dot.lhs_contract.iter().map(|&d| extent(inst.args[0], d)).product();
                let work = elements(result) * depth;
                e.products.push(Product {
                    value: result,
                    lhs: arg(0),
                    rhs: arg(1),
                    result: result_root,
                    work,
                    alpha: 1.0,
                    depths: depths(func, global, inst, &dot.lhs_contract),
                });
                Needs::one(result_root)
            }
            Op::Attention(op) => {
                let result_root = root();
                let operands = (0..inst.args.len()).map(|i| (arg(i), func.ty(inst.args[i]))).collect();
                let looks = inst.op.reads(3);
                let keys = positions(func, inst);
                e.attentions.push(Attends { value: result, op, operands, looks, result: result_root, keys });
                Needs::one(result_root)
            }
            Op::Collective(op) => {
                let result_root = root();
                let operand = inst.args.first().copied().unwrap_or(result);
                e.exchanges.push(Exchange {
                    value: result,
                    operand,
                    op,
                    source: arg(0),
                    result: result_root,
                });
                Needs::one(result_root)
            }
            op => {
                let args: Vec<&Needs> = inst.args.iter().map(|&v| &of[index(v)]).collect();
                let mut all = needs(op, &args);
                // A reduction over several dims is one kernel a dim.
                for _ in 0..row_kernels(op) {
                    let result_root = root();
                    e.rows.push(RowKernel { value: result, source: all, result: result_root });
                    all = Needs::one(result_root);
                }
                all
            }
        };
        inst.results.iter().for_each(|&v| of[index(v)] = made.clone());
    }
    e.results = func.results.iter().map(|&v| of[index(v)].clone()).collect();
    e
}

/// What an op's result depends on, by what its operands do.
fn needs(op: &Op, args: &[&Needs]) -> Needs {
    let args = args.iter().copied();
    match op {
        Op::Concat(_) | Op::Update(_) => Needs::of_parts(args),
        Op::Pad(_) => Needs::of_parts(args.chain([&Needs::default()])),
        Op::Slice(_) | Op::ShardSlice(_) => Needs::of_all(args).cut(),
        _ => Needs::of_all(args),
    }
}

/// The parts at which a sum over these dims of the first operand may stop: the device's piece of its major dim, since the rest is padding
/// in both operands.
fn depths(func: &Func, global: Option<&Func>, inst: &pcc_ir::Inst, dims: &[usize]) -> Vec<Clip> {
    let Some(&v) = inst.args.first() else { return Vec::new() };
    let shape = &func.ty(v).shape;
    let mut found = Vec::new();
    for (i, &d) in dims.iter().enumerate() {
        let inner = dims[i + 1..].iter().map(|&d| shape[d] as u64).product();
        let claim = func.values[v].claim.as_ref();
        let whole = claim.zip(global).and_then(|(c, g)| global_extent(g, &c.term, d));
        if let (Some(claim), Some(global)) = (claim, whole) {
            let axes = claim.sharding.dims[d].clone();
            found.push(Clip { part: Part::Piece, global, axes, inner });
        }
        if shape[d] != 1 {
            break;
        }
    }
    found
}

/// Extent of a dim of what a claim's term is.
fn global_extent(global: &Func, term: &Term, dim: usize) -> Option<u64> {
    match term {
        Term::Value(v) => global.values.get(*v)?.ty.shape.get(dim).map(|&n| n as u64),
        Term::Sum(terms) => global_extent(global, terms.first()?, dim),
    }
}

/// The part of an attention's keys that a run has, if they are not split.
fn positions(func: &Func, inst: &pcc_ir::Inst) -> Option<Clip> {
    let keys = *inst.args.get(1)?;
    let whole =
        func.values[keys].claim.as_ref().is_some_and(|c| c.sharding.dims.get(1).is_some_and(Vec::is_empty));
    let global = func.ty(keys).shape[1] as u64;
    whole.then_some(Clip { part: Part::Seq, global, axes: Vec::new(), inner: 1 })
}

/// Row-reducing kernels that an op takes.
fn row_kernels(op: &Op) -> usize {
    match op {
        Op::Softmax(_) | Op::RmsNorm(_) | Op::LayerNorm(_) => 1,
        Op::Reduce(r) => r.dims.len(),
        _ => 0,
    }
}

/// What the local form of an op must know of its device: where its piece of a dim begins, how much of it there is.
fn scalars(op: &Op) -> Vec<Scalar> {
    let base = |b: &ShardBase| Scalar::Base { global: b.global as u64, axes: b.axes.clone() };
    let valid =
        |global: usize, axes: &[AxisRef]| Scalar::Valid { global: global as u64, axes: axes.to_vec() };
    match op {
        Op::Iota(Iota { base: Some(b), .. }) => vec![base(b)],
        Op::Gather(Gather { base: Some(b), .. }) | Op::Update(Update { base: Some(b), .. }) => {
            vec![base(b), valid(b.global, &b.axes)]
        }
        Op::MaskTail(m) => vec![valid(m.global, &m.axes)],
        Op::ShardSlice(s) => {
            let piece = ShardBase { global: s.global, axes: s.axes.clone() };
            vec![base(&piece), valid(s.global, &s.axes)]
        }
        _ => Vec::new(),
    }
}

/// Which instructions results depend on.
pub(super) fn live(func: &Func) -> Vec<bool> {
    let mut maker = vec![None; func.values.len()];
    for (at, inst) in func.insts.iter().enumerate() {
        inst.results.iter().for_each(|v| maker[v.as_u32() as usize] = Some(at));
    }
    let mut live = vec![false; func.insts.len()];
    let mut open = func.results.clone();
    while let Some(v) = open.pop() {
        if let Some(at) = maker[v.as_u32() as usize]
            && !std::mem::replace(&mut live[at], true)
        {
            let inst = &func.insts[at];
            open.extend((0..inst.args.len()).filter(|&i| inst.op.reads(i)).map(|i| inst.args[i]));
        }
    }
    live
}
