//! The rules. Each is directional and has a name and a reason; all keep what the devices hold outside padding.

use super::language::{Dist, Facts, Graph, Placement, add_op, attr_of};
use crate::partition::merge_group;
use egg::{Applier, Id, Pattern, PatternAst, Rewrite, Subst, Symbol, Var};
use pcc_ir::ReduceKind;
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::{BinaryKind, Collective, Op, ShardSlice};
use std::sync::Arc;

pub type Rule = Rewrite<Dist, Placement>;

/// The classes that the variables of a pattern matched, in the order asked for.
struct Found<'a> {
    graph: &'a mut Graph,
    subst: &'a Subst,
    vars: &'a [Var],
}

impl Found<'_> {
    fn id(&self, i: usize) -> Option<Id> {
        self.subst.get(*self.vars.get(i)?).copied()
    }

    fn attr(&self, i: usize) -> Option<Op> {
        attr_of(self.graph, self.id(i)?).cloned()
    }

    fn facts(&self, i: usize) -> Option<Facts> {
        self.graph[self.id(i)?].data.clone()
    }

    fn add(&mut self, op: &Op, args: &[Id]) -> Option<Id> {
        add_op(self.graph, op, args)
    }
}

/// Builds the right-hand side of a rule, or nothing when a side condition fails.
type Build = Arc<dyn Fn(&mut Found) -> Option<Id> + Send + Sync>;

struct Apply {
    vars: Vec<Var>,
    build: Build,
}

impl Applier<Dist, Placement> for Apply {
    fn apply_one(
        &self,
        graph: &mut Graph,
        whole: Id,
        subst: &Subst,
        _: Option<&PatternAst<Dist>>,
        rule: Symbol,
    ) -> Vec<Id> {
        let Some(id) = (self.build)(&mut Found { graph, subst, vars: &self.vars }) else { return Vec::new() };
        // A term that has no placement, or another one, would mean a wrong rule: it is not believed.
        let alike = match (&graph[whole].data, &graph[id].data) {
            (Some(a), Some(b)) => a.same_layout(b),
            _ => false,
        };
        match alike && graph.union_trusted(whole, id, rule) {
            true => vec![graph.find(whole)],
            false => Vec::new(),
        }
    }

    fn vars(&self) -> Vec<Var> {
        self.vars.clone()
    }
}

/// A rule from a pattern, its variables in the order the builder counts them (`?a ?x`), and the builder.
fn rule(
    name: &str,
    pattern: &str,
    vars: &str,
    build: impl Fn(&mut Found) -> Option<Id> + Send + Sync + 'static,
) -> Rule {
    // invariant: the patterns are constants of this folder, and any test of the rules builds them all
    let pattern: Pattern<Dist> = pattern.parse().expect("the patterns below are well formed");
    // invariant: as for the patterns
    let vars = vars.split(' ').map(|v| v.parse().expect("the variables below are well formed")).collect();
    let rewrite = Rewrite::new(name, pattern, Apply { vars, build: Arc::new(build) });
    // invariant: as for the patterns
    rewrite.expect("a rule's variables are in its pattern")
}

/// All rules. A rule over several shapes of term (operand order, kind of op) is several rewrites.
pub fn rules() -> Vec<Rule> {
    [reductions(), cancellations(), sums(), linear()].into_iter().flatten().collect()
}

const ELEMENTWISE: [(&str, BinaryKind); 4] =
    [("add", BinaryKind::Add), ("sub", BinaryKind::Sub), ("mul", BinaryKind::Mul), ("div", BinaryKind::Div)];

fn all_reduce(op: Option<Op>) -> Option<(Vec<AxisRef>, ReduceKind)> {
    match op? {
        Op::Collective(Collective::AllReduce { axes, kind }) => Some((axes, kind)),
        _ => None,
    }
}

/// Axes of a reduction of sums, by all-reduce or reduce-scatter.
fn sum_over(op: Option<Op>) -> Option<Vec<AxisRef>> {
    match op? {
        Op::Collective(
            Collective::AllReduce { axes, kind } | Collective::ReduceScatter { axes, kind, .. },
        ) if kind == ReduceKind::Sum => Some(axes),
        _ => None,
    }
}

/// Whether an op of operands that are partial so gives a partial sum, as the op itself says.
fn is_linear(op: &Op, args: &[Option<ReduceKind>]) -> bool {
    op.partial_rule(args) == Some(Some(ReduceKind::Sum))
}

/// Axes, dim and extent of a slice, gather or scatter.
fn split_of(op: Option<Op>) -> Option<(Vec<AxisRef>, usize, usize)> {
    match op? {
        Op::Collective(
            Collective::AllGather { axes, dim, global } | Collective::ReduceScatter { axes, dim, global, .. },
        )
        | Op::ShardSlice(ShardSlice { axes, dim, global }) => Some((axes, dim, global)),
        _ => None,
    }
}

/// All-reduces against scatters, gathers and one another.
fn reductions() -> Vec<Rule> {
    vec![
        // An all-reduce is a reduce-scatter and an all-gather: what stands between them then works on pieces. Only along a dim
        // that something in the function splits or gathers over the same axes, else nothing can come of it.
        rule("all-reduce-is-scatter-then-gather", "(all-reduce ?a ?x)", "?a ?x", |f| {
            let (axes, kind) = all_reduce(f.attr(0))?;
            let x = f.id(1)?;
            let local = f.facts(1)?.local();
            let known = f.graph.analysis.attrs.iter().filter_map(|op| split_of(Some(op.clone())));
            let fits = |&(ref a, dim, global): &(Vec<AxisRef>, usize, usize)| {
                *a == axes && local.shape.get(dim) == Some(&global)
            };
            let (axes, dim, global) = known.into_iter().find(fits)?;
            let scatter = Collective::ReduceScatter { axes: axes.clone(), dim, kind, global };
            let piece = f.add(&Op::Collective(scatter), &[x])?;
            f.add(&Op::Collective(Collective::AllGather { axes, dim, global }), &[piece])
        }),
        // And back: one collective starts faster than two.
        rule("gather-of-scatter-is-all-reduce", "(all-gather ?g (reduce-scatter ?s ?x))", "?g ?s ?x", |f| {
            let (gather, scatter) = (split_of(f.attr(0))?, split_of(f.attr(1))?);
            let Some(Op::Collective(Collective::ReduceScatter { axes, kind, .. })) = f.attr(1) else {
                return None;
            };
            let x = f.id(2)?;
            (scatter == gather).then(|| f.add(&Op::Collective(Collective::AllReduce { axes, kind }), &[x]))?
        }),
        // Two reductions of one value over different axes are one over both.
        rule("reductions-merge", "(all-reduce ?a (all-reduce ?b ?x))", "?a ?b ?x", |f| {
            let ((a, kind), (b, inner)) = (all_reduce(f.attr(0))?, all_reduce(f.attr(1))?);
            let x = f.id(2)?;
            let axes = merge_group(&[a, b].concat());
            (kind == inner).then(|| f.add(&Op::Collective(Collective::AllReduce { axes, kind }), &[x]))?
        }),
        // Who keeps a piece of a sum need not get all of it.
        rule("slice-of-all-reduce-is-scatter", "(slice ?s (all-reduce ?a ?x))", "?s ?a ?x", |f| {
            let (axes, dim, global) = split_of(f.attr(0))?;
            let (over, kind) = all_reduce(f.attr(1))?;
            let x = f.id(2)?;
            let rest: Vec<_> = over.iter().copied().filter(|a| !axes.contains(a)).collect();
            if rest.len() + axes.len() != over.len() {
                return None;
            }
            let piece =
                f.add(&Op::Collective(Collective::ReduceScatter { axes, dim, kind, global }), &[x])?;
            match rest.is_empty() {
                true => Some(piece),
                false => f.add(&Op::Collective(Collective::AllReduce { axes: rest, kind }), &[piece]),
            }
        }),
    ]
}

/// Splits undone by gathers and gathers undone by splits; splits on their way there.
fn cancellations() -> Vec<Rule> {
    let cancel = |f: &mut Found| (split_of(f.attr(0))? == split_of(f.attr(1))?).then(|| f.id(2))?;
    let mut rules = vec![
        rule("slice-of-gather-cancels", "(slice ?s (all-gather ?g ?x))", "?s ?g ?x", cancel),
        rule("gather-of-slice-cancels", "(all-gather ?g (slice ?s ?x))", "?g ?s ?x", cancel),
    ];
    for (name, kind) in ELEMENTWISE {
        // A piece of an elementwise result needs pieces of the operands only.
        let pattern = format!("(slice ?s ({name} ?x ?y))");
        rules.push(rule(&format!("slice-sinks-through-{name}"), &pattern, "?s ?x ?y", move |f| {
            let (slice, x, y) = (f.attr(0)?, f.id(1)?, f.id(2)?);
            let (x, y) = (f.add(&slice, &[x])?, f.add(&slice, &[y])?);
            f.add(&Op::Binary(kind), &[x, y])
        }));
        // One gather of a result is half of two gathers of its operands.
        let pattern = format!("({name} (all-gather ?g ?x) (all-gather ?g ?y))");
        rules.push(rule(&format!("gathers-rise-through-{name}"), &pattern, "?g ?x ?y", move |f| {
            let (gather, x, y) = (f.attr(0)?, f.id(1)?, f.id(2)?);
            f.facts(1)?.same_layout(&f.facts(2)?).then_some(())?;
            let piece = f.add(&Op::Binary(kind), &[x, y])?;
            f.add(&gather, &[piece])
        }));
    }
    rules
}

/// Sums of reduced values.
fn sums() -> Vec<Rule> {
    let mut rules = Vec::new();
    for reduction in ["all-reduce", "reduce-scatter"] {
        for (name, kind) in &ELEMENTWISE[..2] {
            let kind = *kind;
            // Partials of one input are added before they are reduced: one reduction instead of two.
            let pattern = format!("({name} ({reduction} ?a ?x) ({reduction} ?a ?y))");
            rules.push(rule(&format!("{name}-before-{reduction}"), &pattern, "?a ?x ?y", move |f| {
                let (reduction, x, y) = (f.attr(0)?, f.id(1)?, f.id(2)?);
                sum_over(Some(reduction.clone()))?;
                is_linear(&Op::Binary(kind), &[Some(ReduceKind::Sum); 2]).then_some(())?;
                f.facts(1)?.same_layout(&f.facts(2)?).then_some(())?;
                let partial = f.add(&Op::Binary(kind), &[x, y])?;
                f.add(&reduction, &[partial])
            }));
        }
        // Reduced terms of a longer sum are brought together, whatever stands between them.
        let (x, y) = (format!("({reduction} ?a ?x)"), format!("({reduction} ?a ?y)"));
        for (i, inner) in [format!("(add ?b {x})"), format!("(add {x} ?b)")].into_iter().enumerate() {
            for (j, pattern) in
                [format!("(add {inner} {y})"), format!("(add {y} {inner})")].into_iter().enumerate()
            {
                rules.push(rule(&format!("terms-meet-{reduction}-{i}{j}"), &pattern, "?a ?b ?x ?y", |f| {
                    let (reduction, b, x, y) = (f.attr(0)?, f.id(1)?, f.id(2)?, f.id(3)?);
                    sum_over(Some(reduction.clone()))?;
                    f.facts(2)?.same_layout(&f.facts(3)?).then_some(())?;
                    let partial = f.add(&Op::Binary(BinaryKind::Add), &[x, y])?;
                    let reduced = f.add(&reduction, &[partial])?;
                    f.add(&Op::Binary(BinaryKind::Add), &[b, reduced])
                }));
            }
        }
    }
    rules
}

/// Linear ops commute with reductions of sums.
fn linear() -> Vec<Rule> {
    let scaled = [
        ("scale-before-all-reduce", "(mul (all-reduce ?a ?x) ?r)"),
        ("scaled-before-all-reduce", "(mul ?r (all-reduce ?a ?x))"),
    ];
    let mut rules: Vec<_> = scaled
        .into_iter()
        .map(|(name, pattern)| {
            // Only by a factor that is the same on all devices of the group.
            rule(name, pattern, "?a ?x ?r", |f| {
                let mul = Op::Binary(BinaryKind::Mul);
                let (reduction, x, r) = (f.attr(0)?, f.id(1)?, f.id(2)?);
                let axes = sum_over(Some(reduction.clone()))?;
                let factor = f.facts(2)?.sharding;
                factor.axes().all(|b| axes.iter().all(|a| !a.overlaps(b))).then_some(())?;
                is_linear(&mul, &[Some(ReduceKind::Sum), None]).then_some(())?;
                let partial = f.add(&mul, &[x, r])?;
                f.add(&reduction, &[partial])
            })
        })
        .collect();
    // Negation, transposition and zeros into padding.
    rules.push(rule("linear-before-all-reduce", "(linear ?l (all-reduce ?a ?x))", "?l ?a ?x", |f| {
        let (linear, reduction, x) = (f.attr(0)?, f.attr(1)?, f.id(2)?);
        sum_over(Some(reduction.clone()))?;
        is_linear(&linear, &[Some(ReduceKind::Sum)]).then_some(())?;
        let partial = f.add(&linear, &[x])?;
        f.add(&reduction, &[partial])
    }));
    rules
}
