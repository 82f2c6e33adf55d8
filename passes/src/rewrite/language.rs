//! The language egg sees: collectives, slices and linear ops over placed values; everything else is an opaque leaf.
//!
//! Two terms are equal when they hold the same numbers on every device *outside padding*; what the padding must hold is restored
//! when the function is rebuilt. Attributes (axes, dims, extents) are leaves that index a table of [`Attrs`].

use crate::partition::{Cuts, merge_group, same_layout, same_split};
use egg::{DidMerge, EGraph, Id};
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::{BinaryKind, Collective, MaskTail, Op, ShardSlice, UnaryKind};
use pcc_ir::sharding::local_extent;
use pcc_ir::{DType, ReduceKind, Sharding, Term, Type, ValueId};
use std::fmt;
use std::str::FromStr;

/// A leaf of the language that is an index, written with a letter before it.
macro_rules! index {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $letter, self.0)
            }
        }

        impl FromStr for $name {
            type Err = ();
            fn from_str(s: &str) -> Result<Self, ()> {
                s.strip_prefix($letter).and_then(|n| n.parse().ok()).map(Self).ok_or(())
            }
        }
    };
}

index!(/** Index of an op in the table of attributes. */ Attr, "@");
index!(/** A value made by an op that egg does not see. */ Opaque, "%");

egg::define_language! {
    /// Terms. The first child of a collective, a slice or a linear op is its attribute.
    pub enum Dist {
        "all-reduce" = AllReduce([Id; 2]),
        "all-gather" = AllGather([Id; 2]),
        "reduce-scatter" = ReduceScatter([Id; 2]),
        "all-to-all" = AllToAll([Id; 2]),
        "slice" = Slice([Id; 2]),
        // Negation, transposition, zeros into padding.
        "linear" = Linear([Id; 2]),
        "add" = Add([Id; 2]),
        "sub" = Sub([Id; 2]),
        "mul" = Mul([Id; 2]),
        "div" = Div([Id; 2]),
        Attr(Attr),
        Opaque(Opaque),
    }
}

/// What is known of a class: its placement, global shape, and the term it stands for once that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub sharding: Sharding,
    pub term: Option<Term>,
    /// A value of the function being rewritten that is in this class.
    pub original: Option<ValueId>,
}

impl Facts {
    /// Type of a device's piece.
    pub fn local(&self) -> Type {
        Type::new(self.dtype, self.sharding.local_shape(&self.shape))
    }

    pub fn same_layout(&self, other: &Facts) -> bool {
        self.shape == other.shape && same_layout(&self.shape, &self.sharding, &other.sharding)
    }
}

/// The e-graph's analysis: placement of every class, and the table of attributes.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    pub attrs: Vec<Op>,
    /// Claim, type and global shape of each opaque leaf.
    pub leaves: Vec<Facts>,
}

pub type Graph = EGraph<Dist, Placement>;

impl Placement {
    /// The index of an op with attributes, added when new.
    pub fn attr(&mut self, op: Op) -> Attr {
        let at = self.attrs.iter().position(|a| *a == op).unwrap_or_else(|| {
            self.attrs.push(op);
            self.attrs.len() - 1
        });
        Attr(at as u32)
    }
}

/// The attribute op that is the class of an attribute leaf.
pub fn attr_of(graph: &Graph, id: Id) -> Option<&Op> {
    graph[id].nodes.iter().find_map(|n| match n {
        Dist::Attr(a) => graph.analysis.attrs.get(a.0 as usize),
        _ => None,
    })
}

/// Adds the leaf of an attribute.
pub fn add_attr(graph: &mut Graph, op: Op) -> Id {
    let attr = graph.analysis.attr(op);
    graph.add(Dist::Attr(attr))
}

/// The op a node stands for; none for leaves.
pub fn op_of(graph: &Graph, node: &Dist) -> Option<Op> {
    match node {
        Dist::Add(_) => Some(Op::Binary(BinaryKind::Add)),
        Dist::Sub(_) => Some(Op::Binary(BinaryKind::Sub)),
        Dist::Mul(_) => Some(Op::Binary(BinaryKind::Mul)),
        Dist::Div(_) => Some(Op::Binary(BinaryKind::Div)),
        Dist::AllReduce([a, _])
        | Dist::AllGather([a, _])
        | Dist::ReduceScatter([a, _])
        | Dist::AllToAll([a, _])
        | Dist::Slice([a, _])
        | Dist::Linear([a, _]) => attr_of(graph, *a).cloned(),
        Dist::Attr(_) | Dist::Opaque(_) => None,
    }
}

/// The operands of a node, attributes left out.
pub fn operands(node: &Dist) -> &[Id] {
    match node {
        Dist::Add(ids) | Dist::Sub(ids) | Dist::Mul(ids) | Dist::Div(ids) => ids,
        Dist::AllReduce(ids)
        | Dist::AllGather(ids)
        | Dist::ReduceScatter(ids)
        | Dist::AllToAll(ids)
        | Dist::Slice(ids)
        | Dist::Linear(ids) => &ids[1..],
        Dist::Attr(_) | Dist::Opaque(_) => &[],
    }
}

/// Adds the node of a local op on classes; nothing when the language has no such op.
pub fn add_op(graph: &mut Graph, op: &Op, args: &[Id]) -> Option<Id> {
    let node = match (op, args) {
        (Op::Binary(kind), &[a, b]) => match kind {
            BinaryKind::Add => Dist::Add([a, b]),
            BinaryKind::Sub => Dist::Sub([a, b]),
            BinaryKind::Mul => Dist::Mul([a, b]),
            BinaryKind::Div => Dist::Div([a, b]),
            _ => return None,
        },
        (op, &[x]) if has_attr(op) => {
            let a = add_attr(graph, op.clone());
            match op {
                Op::Collective(Collective::AllReduce { .. }) => Dist::AllReduce([a, x]),
                Op::Collective(Collective::AllGather { .. }) => Dist::AllGather([a, x]),
                Op::Collective(Collective::ReduceScatter { .. }) => Dist::ReduceScatter([a, x]),
                Op::Collective(Collective::AllToAll { .. }) => Dist::AllToAll([a, x]),
                Op::ShardSlice(_) => Dist::Slice([a, x]),
                _ => Dist::Linear([a, x]),
            }
        }
        _ => return None,
    };
    Some(graph.add(node))
}

/// Whether egg sees an op, given by itself.
pub fn is_seen(op: &Op) -> bool {
    matches!(op, Op::Binary(BinaryKind::Add | BinaryKind::Sub | BinaryKind::Mul | BinaryKind::Div))
        || has_attr(op)
}

fn has_attr(op: &Op) -> bool {
    match op {
        Op::Collective(_) | Op::ShardSlice(_) | Op::Unary(UnaryKind::Neg) | Op::Transpose(_) => true,
        Op::MaskTail(MaskTail { value, .. }) => *value == 0.0,
        _ => false,
    }
}

/// `partial` without its parts over `axes`; nothing when some part of `axes` is not partial so.
fn reduced(
    partial: &[(AxisRef, ReduceKind)],
    axes: &[AxisRef],
    kind: ReduceKind,
) -> Option<Vec<(AxisRef, ReduceKind)>> {
    let of = |partial: &[_]| Sharding { dims: Vec::new(), partial: partial.to_vec() };
    let gone: Vec<_> = axes.iter().map(|&a| (a, kind)).collect();
    let cuts = Cuts::of([&of(partial), &of(&gone)]);
    let (have, gone) = (cuts.refine_partial(partial), cuts.refine_partial(&gone));
    if !gone.iter().all(|p| have.contains(p)) {
        return None;
    }
    let rest: Vec<_> = have.into_iter().filter(|p| !gone.contains(p)).collect();
    let merged = merge_group(&rest.iter().map(|p| p.0).collect::<Vec<_>>());
    Some(merged.into_iter().map(|a| (a, kind)).collect())
}

/// `axes` of a dim of extent `n` without the last ones, which split it as `last` does.
fn without(n: usize, axes: &[AxisRef], last: &[AxisRef]) -> Option<Vec<AxisRef>> {
    (0..axes.len()).map(|k| &axes[..k]).find_map(|kept| {
        let before = local_extent(n, kept);
        same_split(before, &axes[kept.len()..], last).then(|| kept.to_vec())
    })
}

/// Placement of the result of a one-operand op of the language.
fn placed(op: &Op, x: &Facts) -> Option<Facts> {
    let mut y = Facts { original: None, ..x.clone() };
    let s = &mut y.sharding;
    match op {
        Op::Collective(Collective::AllReduce { axes, kind }) => s.partial = reduced(&s.partial, axes, *kind)?,
        Op::Collective(Collective::AllGather { axes, dim, .. }) => {
            s.dims[*dim] = without(*x.shape.get(*dim)?, &s.dims[*dim], axes)?;
        }
        Op::Collective(Collective::ReduceScatter { axes, dim, kind, .. }) => {
            s.partial = reduced(&s.partial, axes, *kind)?;
            s.dims.get_mut(*dim)?.extend(axes);
        }
        Op::Collective(Collective::AllToAll { axes, split, concat, .. }) => {
            s.dims[*concat] = without(*x.shape.get(*concat)?, &s.dims[*concat], axes)?;
            s.dims.get_mut(*split)?.extend(axes);
        }
        Op::ShardSlice(ShardSlice { axes, dim, .. }) => s.dims.get_mut(*dim)?.extend(axes),
        Op::Transpose(perm) => {
            s.dims = perm.iter().map(|&p| s.dims.get(p).cloned()).collect::<Option<_>>()?;
            y.shape = perm.iter().map(|&p| x.shape.get(p).copied()).collect::<Option<_>>()?;
            y.term = None;
        }
        Op::MaskTail(_) => {}
        _ => y.term = None,
    }
    Some(y)
}

/// Sum of two terms, flat.
fn sum(a: &Term, b: &Term) -> Term {
    let parts = |t: &Term| match t {
        Term::Sum(ts) => ts.clone(),
        t => vec![t.clone()],
    };
    Term::Sum([parts(a), parts(b)].concat())
}

/// The simplest of two terms for one thing: a value, then a sum.
pub fn simplest(a: Option<Term>, b: Option<Term>) -> Option<Term> {
    match (a, b) {
        (Some(Term::Value(v)), _) | (_, Some(Term::Value(v))) => Some(Term::Value(v)),
        (a, b) => a.or(b),
    }
}

impl egg::Analysis<Dist> for Placement {
    /// Nothing for attributes, and for terms that no rule should make.
    type Data = Option<Facts>;

    fn make(graph: &mut Graph, node: &Dist, _: Id) -> Self::Data {
        match node {
            Dist::Attr(_) => None,
            Dist::Opaque(i) => graph.analysis.leaves.get(i.0 as usize).cloned(),
            Dist::Add([a, b]) | Dist::Sub([a, b]) | Dist::Mul([a, b]) | Dist::Div([a, b]) => {
                let (x, y) = (graph[*a].data.as_ref()?, graph[*b].data.as_ref()?);
                // A partial times a replica is a partial.
                let placed = if y.sharding.partial.is_empty() { x } else { y };
                let term = match node {
                    Dist::Add(_) => x.term.as_ref().zip(y.term.as_ref()).map(|(a, b)| sum(a, b)),
                    _ => None,
                };
                Some(Facts { term, original: None, ..placed.clone() })
            }
            _ => {
                let op = op_of(graph, node)?;
                placed(&op, graph[*operands(node).first()?].data.as_ref()?)
            }
        }
    }

    /// Keeps what is there unless the other is better, so that merging ends: an older original, a simpler term.
    fn merge(&mut self, a: &mut Self::Data, b: Self::Data) -> DidMerge {
        let before = a.clone();
        *a = match (a.take(), b.clone()) {
            (Some(x), Some(y)) => {
                let older = y.original.is_some_and(|v| x.original.is_none_or(|u| v < u));
                let term = simplest(x.term.clone(), y.term.clone());
                Some(Facts { term, ..if older { y } else { x } })
            }
            (a, b) => a.or(b),
        };
        DidMerge(*a != before, *a != b)
    }
}
