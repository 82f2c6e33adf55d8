//! The closed set of ops. One file per op (or tight group) holds its attributes, shape rule, sharding rule, cost, behaviour
//! on partials and padding, local form, reference evaluation and tests; this file is the enum and the one
//! exhaustive match that finds an op's [`Define`].

mod attention;
mod broadcast;
mod collective;
mod concat;
mod constant;
mod convert;
mod dot_general;
mod elementwise;
mod gather;
mod iota;
mod layer_norm;
mod pad;
mod reduce;
mod reshape;
mod rms_norm;
mod rope;
pub mod sample;
mod select;
mod slice;
mod softmax;
mod structure;
pub mod top_k;
mod transpose;
mod update;

#[cfg(test)]
mod check;
#[cfg(test)]
mod rule_test;

pub use attention::Attention;
pub use broadcast::Broadcast;
pub use collective::{Collective, MaskTail, ShardSlice};
pub use constant::{Constant, Literal};
pub use dot_general::DotGeneral;
pub use elementwise::{BinaryKind, CompareKind, UnaryKind};
pub use gather::Gather;
pub use iota::Iota;
pub use layer_norm::LayerNorm;
pub use pad::Pad;
pub use reduce::Reduce;
pub use rms_norm::RmsNorm;
pub use rope::Rope;
pub use sample::Sample;
pub use slice::Slice;
pub use softmax::Softmax;
pub use top_k::TopK;
pub use update::Update;

use crate::Diagnostic;
use crate::eval::{At, Tensor};
use crate::graph::{Func, FuncId, ValueId};
use crate::mesh::{AxisRef, Mesh};
use crate::rule::{FactorId, Rule, Split};
use crate::sharding::{self, Sharding, Span};
use crate::types::{DType, ReduceKind, Type};
use serde::{Deserialize, Serialize};

/// Makes an op rank-dependent: on a device the op works at offset `span.start` of its piece of a dim of global extent
/// `global` split by `axes`. Only local-level ops carry one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardBase {
    pub global: usize,
    pub axes: Vec<AxisRef>,
}

impl ShardBase {
    /// The global elements of the dim that `device` holds.
    pub fn span(&self, mesh: &Mesh, device: usize) -> Span {
        sharding::span(mesh, device, self.global, &self.axes)
    }

    /// The base of a dim with these factors, when the split cuts it.
    fn of(rule: &Rule, split: &Split, factors: &[FactorId]) -> Option<Self> {
        let &[f] = factors else { return None };
        let base = Self { global: rule.factors[f].size, axes: split[f].clone() };
        (!base.axes.is_empty()).then_some(base)
    }

    /// The rows that a device holds; all of 0..rows without a base.
    fn held(base: &Option<Self>, rows: usize, at: At) -> Held {
        Held(match base {
            Some(base) => base.span(&at.mesh, at.device),
            None => Span { start: 0, len: rows },
        })
    }
}

/// The rows of an indexed dim that a device holds, padding left out.
struct Held(Span);

impl Held {
    /// Local number of a global row, if it is held.
    fn local(&self, index: f64) -> Option<usize> {
        let local = index - self.0.start as f64;
        (local >= 0.0 && local < self.0.len as f64).then_some(local as usize)
    }
}

/// Every operation of every level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    // Elementwise and shape.
    Constant(Constant),
    Iota(Iota),
    Unary(UnaryKind),
    Binary(BinaryKind),
    Compare(CompareKind),
    /// `select(pred bool, on_true, on_false)`, all of one shape.
    Select,
    Convert(DType),
    Broadcast(Broadcast),
    /// To a shape of equal element count, row-major.
    Reshape(Vec<usize>),
    /// `result dim i = operand dim perm[i]`.
    Transpose(Vec<usize>),
    Slice(Slice),
    /// Joins the operands along the dim.
    Concat(usize),
    Pad(Pad),
    // Contractions and reductions.
    DotGeneral(DotGeneral),
    Reduce(Reduce),
    // Indexing.
    Gather(Gather),
    Update(Update),
    // Composites, each with a decomposition into primitives.
    Softmax(Softmax),
    RmsNorm(RmsNorm),
    LayerNorm(LayerNorm),
    Rope(Rope),
    Attention(Attention),
    // Selection.
    TopK(TopK),
    Sample(Sample),
    // Structure.
    Call(FuncId),
    /// Sharded level: the value laid out as the sharding says.
    Reshard(Sharding),
    // Local level.
    Collective(Collective),
    ShardSlice(ShardSlice),
    MaskTail(MaskTail),
    /// Stage functions: hands the operand to the same coordinates of another pipeline stage. No result.
    Send {
        stage: u32,
        tag: u32,
    },
    /// Stage functions: the value of `ty` another stage sent with this tag.
    Recv {
        stage: u32,
        tag: u32,
        ty: Type,
    },
}

/// What the file of an op defines. Methods other than `infer` may assume types that `infer` accepts.
pub(crate) trait Define {
    /// The shape rule: types of the results, or why the operands do not fit.
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String>;

    /// The sharding rule.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule;

    /// Floating-point operations.
    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64;

    /// Bytes that must be read and written.
    fn bytes(&self, args: &[&Type], results: &[&Type]) -> f64 {
        args.iter().chain(results).map(|t| t.bytes() as f64).sum()
    }

    /// The kind of partial the results are, when at least one operand is partial; `None` when the op may not run so.
    fn partial(&self, _args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
        None
    }

    /// The padding of the results.
    fn result_pads(&self, rule: &Rule, _pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        rule.results.iter().map(|dims| vec![sharding::Pad::Unspecified; dims.len()]).collect()
    }

    /// The op over local types.
    fn localize(&self, rule: &Rule, split: &Split, args: &[&Type], results: &[&Type]) -> Op;

    /// Reference evaluation. The operands and `results` have types that `infer` accepts.
    fn eval(&self, args: &[&Tensor], results: &[&Type], at: At) -> Result<Vec<Tensor>, String>;

    /// Builds the same function of primitives; `None` for ops that are primitive.
    fn decompose(&self, _f: &mut Func, _args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        None
    }
}

impl Op {
    /// The one place that lists every op.
    fn define<R>(&self, f: impl FnOnce(&dyn Define) -> R) -> R {
        match self {
            Op::Constant(op) => f(op),
            Op::Iota(op) => f(op),
            Op::Unary(op) => f(op),
            Op::Binary(op) => f(op),
            Op::Compare(op) => f(op),
            Op::Select => f(&select::Select),
            Op::Convert(dtype) => f(&convert::Convert(*dtype)),
            Op::Broadcast(op) => f(op),
            Op::Reshape(shape) => f(&reshape::Reshape(shape)),
            Op::Transpose(perm) => f(&transpose::Transpose(perm)),
            Op::Slice(op) => f(op),
            Op::Concat(dim) => f(&concat::Concat(*dim)),
            Op::Pad(op) => f(op),
            Op::DotGeneral(op) => f(op),
            Op::Reduce(op) => f(op),
            Op::Gather(op) => f(op),
            Op::Update(op) => f(op),
            Op::Softmax(op) => f(op),
            Op::RmsNorm(op) => f(op),
            Op::LayerNorm(op) => f(op),
            Op::Rope(op) => f(op),
            Op::Attention(op) => f(op),
            Op::TopK(op) => f(op),
            Op::Sample(op) => f(op),
            Op::Call(_) => f(&structure::Call(self)),
            Op::Reshard(_) => f(&structure::Reshard(self)),
            Op::Collective(op) => f(op),
            Op::ShardSlice(op) => f(op),
            Op::MaskTail(op) => f(op),
            Op::Send { .. } => f(&structure::Send(self)),
            Op::Recv { ty, .. } => f(&structure::Recv(self, ty)),
        }
    }

    /// The name in every text form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Constant(_) => "constant",
            Op::Iota(_) => "iota",
            Op::Unary(kind) => kind.name(),
            Op::Binary(kind) => kind.name(),
            Op::Compare(kind) => kind.name(),
            Op::Select => "select",
            Op::Convert(_) => "convert",
            Op::Broadcast(_) => "broadcast",
            Op::Reshape(_) => "reshape",
            Op::Transpose(_) => "transpose",
            Op::Slice(_) => "slice",
            Op::Concat(_) => "concat",
            Op::Pad(_) => "pad",
            Op::DotGeneral(_) => "dot_general",
            Op::Reduce(_) => "reduce",
            Op::Gather(_) => "gather",
            Op::Update(_) => "update",
            Op::Softmax(_) => "softmax",
            Op::RmsNorm(_) => "rms_norm",
            Op::LayerNorm(_) => "layer_norm",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::TopK(_) => "top_k",
            Op::Sample(_) => "sample",
            Op::Call(_) => "call",
            Op::Reshard(_) => "reshard",
            Op::Collective(op) => op.name(),
            Op::ShardSlice(_) => "shard_slice",
            Op::MaskTail(_) => "mask_tail",
            Op::Send { .. } => "send",
            Op::Recv { .. } => "recv",
        }
    }

    /// Whether the results depend on operand `i`: attention whose mask does not look back does not read the query's position.
    pub fn reads(&self, i: usize) -> bool {
        !matches!(self, Op::Attention(a) if i == 3 && !a.causal && a.window.is_none())
    }

    /// Types of the results.
    ///
    /// # Errors
    /// The operands do not fit the op or its attributes, or a result would be empty or too large. A call is refused: its
    /// types are its function's (see [`Func::call`]).
    pub fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, String> {
        let types = self.define(|op| op.infer(args)).map_err(|e| format!("{}: {e}", self.name()))?;
        match types.iter().find(|t| t.checked().is_none()) {
            Some(t) => Err(format!("{}: the result {t} is empty or too large", self.name())),
            None => Ok(types),
        }
    }

    /// Checks declared result types against the op's shape rule.
    pub fn check(&self, args: &[&Type], results: &[&Type]) -> Result<(), String> {
        let types = self.infer(args)?;
        if types.iter().eq(results.iter().copied()) {
            return Ok(());
        }
        let list = |ts: &[&Type]| ts.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        let want = list(&types.iter().collect::<Vec<_>>());
        Err(format!("{}: the result is declared {} but is {want}", self.name(), list(results)))
    }

    /// The sharding rule. Ops of the local level and calls have one in which nothing may be split.
    pub fn rule(&self, args: &[&Type], results: &[&Type]) -> Rule {
        self.define(|op| op.rule(args, results))
    }

    /// Floating-point operations; a multiplication and an addition count as two.
    pub fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        self.define(|op| op.flops(args, results))
    }

    /// The least memory traffic in bytes: operands read and results written once.
    pub fn bytes(&self, args: &[&Type], results: &[&Type]) -> f64 {
        self.define(|op| op.bytes(args, results))
    }

    /// What the results are, over one mesh axis, when operand i is partial with `args[i]` over it (`None`: not partial, the
    /// same on all devices of the axis as far as the axis goes). The outer `None`: the op may not run so.
    pub fn partial_rule(&self, args: &[Option<ReduceKind>]) -> Option<Option<ReduceKind>> {
        if args.iter().all(Option::is_none) {
            return Some(None);
        }
        self.define(|op| op.partial(args)).map(Some)
    }

    /// What the padding of each dim of each result holds, if that dim is padded, given the operands' (`Zero` where a dim has
    /// no padding).
    pub fn result_pads(&self, rule: &Rule, pads: &[Vec<sharding::Pad>]) -> Vec<Vec<sharding::Pad>> {
        self.define(|op| op.result_pads(rule, pads))
    }

    /// The op that a device runs on its local pieces when the factors of `rule` are split so. The types are local.
    pub fn localize(&self, rule: &Rule, split: &Split, args: &[&Type], results: &[&Type]) -> Op {
        self.define(|op| op.localize(rule, split, args, results))
    }

    /// The mesh axes that the op's attributes name.
    pub fn axes(&self) -> Vec<AxisRef> {
        match self {
            Op::Iota(Iota { base, .. })
            | Op::Gather(Gather { base, .. })
            | Op::Update(Update { base, .. }) => base.as_ref().map(|b| b.axes.clone()).unwrap_or_default(),
            Op::Reshard(sharding) => sharding.axes().collect(),
            Op::Collective(op) => op.axes().to_vec(),
            Op::ShardSlice(ShardSlice { axes, .. }) | Op::MaskTail(MaskTail { axes, .. }) => axes.clone(),
            _ => Vec::new(),
        }
    }

    /// Refuses axes that the mesh does not have.
    pub fn check_axes(&self, mesh: &Mesh) -> Result<(), String> {
        match self.axes().into_iter().find(|a| mesh.part(a.axis, a.pre, a.size).is_none()) {
            None => Ok(()),
            Some(a) => Err(format!("{}: the mesh has no axis {}:({}){}", self.name(), a.axis, a.pre, a.size)),
        }
    }

    /// Reference evaluation of one op on one device (see [`crate::eval`]).
    ///
    /// # Errors
    /// Ill-typed operands or results, an integer out of the exact range, and ops that need a module or other devices: calls,
    /// collectives, sends and receives.
    pub fn eval(&self, args: &[&Tensor], results: &[&Type], at: At) -> Result<Vec<Tensor>, String> {
        let types: Vec<_> = args.iter().map(|t| &t.ty).collect();
        self.check(&types, results)?;
        self.check_axes(&at.mesh)?;
        self.define(|op| op.eval(args, results, at)).map_err(|e| format!("{}: {e}", self.name()))
    }

    /// Adds the op's decomposition into primitives to `f` and gives its results; `None` for primitives.
    pub fn decompose(&self, f: &mut Func, args: &[ValueId]) -> Option<Result<Vec<ValueId>, Diagnostic>> {
        self.define(|op| op.decompose(f, args))
    }
}

/// The operands as an array, or how many the op takes.
pub(crate) fn operands<'a, const N: usize>(args: &[&'a Type]) -> Result<[&'a Type; N], String> {
    <[&Type; N]>::try_from(args)
        .map_err(|_| format!("takes {N} operand{}, got {}", if N == 1 { "" } else { "s" }, args.len()))
}

/// Refuses element types that are not floating-point.
pub(crate) fn need_float(ty: &Type) -> Result<(), String> {
    if ty.dtype.is_float() { Ok(()) } else { Err(format!("needs floating-point elements, got {ty}")) }
}

/// Refuses operands that are not of the expected type.
pub(crate) fn need(what: &str, got: &Type, want: &Type) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what} must be {want}, got {got}")) }
}

/// Refuses a dim number beyond the rank.
pub(crate) fn need_dim(dim: usize, ty: &Type) -> Result<(), String> {
    if dim < ty.rank() { Ok(()) } else { Err(format!("{ty} has no dim {dim}")) }
}

/// All operands have one shape, the result's, dim by dim.
pub(crate) fn same_shape_rule(operands: usize, shape: &[usize]) -> Rule {
    let mut rule = Rule::default();
    let dims = rule.dims(shape, crate::rule::FactorKind::Pass);
    rule.operands = vec![dims.clone(); operands];
    rule.results = vec![dims];
    rule
}

/// One kind when every operand is partial with it.
pub(crate) fn all_partial(args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
    let first = (*args.first()?)?;
    args.iter().all(|a| *a == Some(first)).then_some(first)
}

/// The kind of operand 0, when it alone is partial.
pub(crate) fn first_partial(args: &[Option<ReduceKind>]) -> Option<ReduceKind> {
    args.iter().skip(1).all(Option::is_none).then_some(*args.first()?)?
}
