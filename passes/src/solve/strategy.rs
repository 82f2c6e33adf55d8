//! The ways one instruction can run over the mesh: which axes split which of its factors, and which operands it may take
//! as unreduced partials.
//!
//! The data axis splits the factor labelled batch. The tensor axis splits one factor, or is cut once (`tp:(1)p`, `tp:(p)q`)
//! with each part on a factor of its own or left to replicas. It never splits batch; the sequence only under sequence
//! parallelism; and the dims of the stream only where a weight is contracted over them.

use super::network::Cost;
use super::structure::Structure;
use crate::cost::Cluster;
use pcc_ir::graph::Label;
use pcc_ir::rule::Split;
use pcc_ir::{
    Axis, AxisRef, FactorId, FactorKind, FuncId, Inst, InstId, Mesh, ReduceKind, Rule, Sharding, Type,
};
use std::collections::{BTreeSet, HashMap};

/// An interned sharding.
pub type ShardId = u32;

/// Partial axes of a value.
pub type Partial = Vec<(AxisRef, ReduceKind)>;

/// Every sharding seen once.
#[derive(Default)]
pub struct Interner {
    all: Vec<Sharding>,
    ids: HashMap<Sharding, ShardId>,
}

impl Interner {
    pub fn id(&mut self, s: &Sharding) -> ShardId {
        if let Some(&id) = self.ids.get(s) {
            return id;
        }
        let id = self.all.len() as ShardId;
        self.all.push(s.clone());
        self.ids.insert(s.clone(), id);
        id
    }

    pub fn get(&self, id: ShardId) -> &Sharding {
        &self.all[id as usize]
    }
}

/// One way to run an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    pub needs: Vec<ShardId>,
    pub gives: Vec<ShardId>,
    pub cost: Cost,
}

/// What the enumeration needs to know besides the instruction.
pub struct Context<'a> {
    pub mesh: &'a Mesh,
    pub cluster: &'a Cluster,
    pub sp: bool,
    /// Weight of the function's cost.
    pub weight: f64,
}

/// Seconds to cost units.
pub fn picoseconds(seconds: f64) -> Cost {
    (seconds * 1e12).round() as Cost
}

/// What may be done with each factor of one instruction.
struct Factors {
    /// The factor split by dp.
    batch: Option<FactorId>,
    /// Factors tp may split, in the order that sub-axes are given to them.
    tensor: Vec<FactorId>,
    /// Factors that only the whole of tp may split.
    sequence: BTreeSet<FactorId>,
}

/// All distinct strategies of an instruction, whole-axis ones first. `stored[i]`: operand i is a parameter. `partials[i]`: the
/// partials operand i may come with.
pub fn strategies(
    cx: &Context,
    s: &mut Structure,
    interner: &mut Interner,
    (func, at, inst): (FuncId, InstId, &Inst),
    types: (&[&Type], &[&Type]),
    stored: &[bool],
    partials: &[Vec<Partial>],
) -> Vec<Strategy> {
    let rule = s.rules[&func][at].clone();
    let factors = classify(cx, s, (func, at, inst), &rule, stored);
    let mut out: Vec<Strategy> = Vec::new();
    let mut seen: BTreeSet<(Vec<ShardId>, Vec<ShardId>)> = BTreeSet::new();
    let mut push = |needs: Vec<Sharding>, gives: Vec<Sharding>, interner: &mut Interner| {
        let key: (Vec<_>, Vec<_>) =
            (needs.iter().map(|n| interner.id(n)).collect(), gives.iter().map(|g| interner.id(g)).collect());
        if seen.insert(key.clone()) {
            let local = |types: &[&Type], of: &[Sharding]| -> Vec<Type> {
                types.iter().zip(of).map(|(t, s)| s.local_type(t)).collect()
            };
            let (a, r) = (local(types.0, &needs), local(types.1, &gives));
            let (a, r): (Vec<&Type>, Vec<&Type>) = (a.iter().collect(), r.iter().collect());
            let cost = picoseconds(cx.weight * cx.cluster.compute_time(&inst.op, &a, &r));
            out.push(Strategy { needs: key.0, gives: key.1, cost });
        }
    };
    let splits: Vec<Split> = splits(cx, &rule, &factors).into_iter().filter(|sp| rule.allows(sp)).collect();
    for split in &splits {
        let needs = (0..rule.operands.len()).map(|i| rule.operand_sharding(i, split)).collect();
        let gives = (0..rule.results.len()).map(|i| rule.result_sharding(i, split)).collect();
        push(needs, gives, interner);
    }
    for (which, partial, result) in linear_uses(inst, partials) {
        for split in &splits {
            let used = split.iter().flatten().any(|a| partial.iter().any(|p| p.0.overlaps(*a)));
            let mixed = |g: &Sharding| g.partial.iter().any(|p| p.1 != result);
            let mut needs: Vec<Sharding> =
                (0..rule.operands.len()).map(|i| rule.operand_sharding(i, split)).collect();
            let mut gives: Vec<Sharding> =
                (0..rule.results.len()).map(|i| rule.result_sharding(i, split)).collect();
            if used || gives.iter().any(mixed) {
                continue;
            }
            for (need, _) in needs.iter_mut().zip(&which).filter(|(_, w)| **w) {
                need.partial.extend(partial.iter().copied());
                need.partial.sort_unstable();
            }
            for give in &mut gives {
                give.partial.extend(partial.iter().map(|&(a, _)| (a, result)));
                give.partial.sort_unstable();
            }
            push(needs, gives, interner);
        }
    }
    if cx.sp {
        keep_carried(cx, s, interner, (func, inst), types.1, &mut out);
    }
    out
}

/// Under sequence parallelism the residual is split along the sequence wherever it is whole, not only between layers: a
/// reduced copy kept beside it would undo what the user asked for.
fn keep_carried(
    cx: &Context,
    s: &mut Structure,
    interner: &Interner,
    (func, inst): (FuncId, &Inst),
    results: &[&Type],
    list: &mut Vec<Strategy>,
) {
    let tp = cx.mesh.whole(Axis::Tp);
    for (r, (&v, ty)) in inst.results.iter().zip(results).enumerate() {
        if !s.is_carried(func, v, ty.rank()) {
            continue;
        }
        let is_seq = |s: &mut Structure, d: usize| {
            let class = s.dim(func, v, d);
            s.label(class) == Some(Label::Seq) && ty.shape[d] > 1
        };
        let Some(seq) = (0..ty.rank()).find(|&d| is_seq(s, d)) else { continue };
        let fits = |st: &Strategy| {
            let give = interner.get(st.gives[r]);
            !give.partial.is_empty() || give.dims[seq].contains(&tp)
        };
        if list.iter().any(fits) {
            list.retain(fits);
        }
    }
}

fn classify(
    cx: &Context,
    s: &mut Structure,
    (func, at, inst): (FuncId, InstId, &Inst),
    rule: &Rule,
    stored: &[bool],
) -> Factors {
    let mut factors = Factors { batch: None, tensor: Vec::new(), sequence: BTreeSet::new() };
    let weighted = stored.iter().any(|&p| p);
    for (f, factor) in rule.factors.iter().enumerate() {
        if factor.kind == FactorKind::Replicate || factor.size < 2 {
            continue;
        }
        // A reduction factor has no class of its own: it reads those of the activations' dims it runs over.
        let mut classes = Vec::new();
        if factor.kind == FactorKind::Pass {
            classes.push(s.factor(func, at, f));
        } else {
            for (i, dims) in rule.operands.iter().enumerate().filter(|(i, _)| !stored[*i]) {
                for (d, _) in dims.iter().enumerate().filter(|(_, fs)| fs[..] == [f]) {
                    classes.push(s.dim(func, inst.args[i], d));
                }
            }
        }
        let labels: Vec<_> = classes.iter().filter_map(|&c| s.label(c)).collect();
        let stream = classes.iter().any(|&c| s.is_stream(c));
        if labels.contains(&Label::Batch) {
            factors.batch = factors.batch.or(Some(f));
        } else if labels.contains(&Label::Seq) {
            if cx.sp {
                factors.sequence.insert(f);
            }
        } else if !stream || factor.kind != FactorKind::Pass && weighted {
            factors.tensor.push(f);
        }
    }
    let key = |s: &mut Structure, f: FactorId| match rule.factors[f].kind {
        FactorKind::Pass => {
            let class = s.factor(func, at, f);
            s.order(class)
        }
        // A contraction with a weight is ordered by the weight's dim, like the same dim elsewhere.
        _ => {
            let place = rule.operands.iter().enumerate().find_map(|(i, dims)| {
                let d = dims.iter().position(|fs| fs[..] == [f])?;
                Some((inst.args[i], d))
            });
            place.map_or((2, f, 0), |(v, d)| {
                let class = s.dim(func, v, d);
                s.order(class)
            })
        }
    };
    let mut keyed: Vec<_> = factors.tensor.iter().map(|&f| (key(s, f), f)).collect();
    keyed.sort_unstable();
    factors.tensor = keyed.into_iter().map(|(_, f)| f).collect();
    factors
}

/// Every way to give dp and tp to the factors.
fn splits(cx: &Context, rule: &Rule, factors: &Factors) -> Vec<Split> {
    let mut base: Split = vec![Vec::new(); rule.factors.len()];
    if let Some(f) = factors.batch.filter(|_| cx.mesh.dp > 1) {
        base[f] = vec![cx.mesh.whole(Axis::Dp)];
        if !rule.allows(&base) {
            base[f].clear();
        }
    }
    let mut out = Vec::new();
    let mut with = |gives: &[(FactorId, AxisRef)]| {
        let mut split = base.clone();
        for &(f, a) in gives {
            split[f].push(a);
        }
        out.push(split);
    };
    let tp = cx.mesh.tp;
    if tp > 1 {
        let whole = cx.mesh.whole(Axis::Tp);
        for &f in factors.tensor.iter().chain(&factors.sequence) {
            with(&[(f, whole)]);
        }
        let wasteful = |f: FactorId| is_wasteful(rule.factors[f].size, tp as usize);
        let holds = |f: FactorId, a: AxisRef| rule.factors[f].size >= a.size as usize;
        for (major, minor) in cuts(cx.mesh) {
            for (i, &f) in factors.tensor.iter().enumerate() {
                let partner = |g: FactorId| {
                    (wasteful(f) || wasteful(g))
                        && rule.factors[f].kind == rule.factors[g].kind
                        && holds(f, major)
                        && holds(g, minor)
                };
                for &g in factors.tensor[i + 1..].iter().filter(|&&g| partner(g)) {
                    with(&[(f, major), (g, minor)]);
                }
                for part in [major, minor].into_iter().filter(|&a| wasteful(f) && holds(f, a)) {
                    with(&[(f, part)]);
                }
            }
        }
    }
    with(&[]);
    out
}

/// Whether splitting `n` elements `tp` ways leaves more than a tenth of the devices' work to padding. Only then is tp worth
/// cutting: where every factor splits well, the whole axis on one factor is never worse.
fn is_wasteful(n: usize, tp: usize) -> bool {
    n.div_ceil(tp) * tp * 10 > n * 11
}

/// Cuts of tp that are tried: all of them up to tp 239. Beyond, a tp with many divisors would have more ways to run an
/// instruction than can be searched.
const CUTS: usize = 16;

/// The two parts of each cut of tp, by increasing size of the major part. Of more than [`CUTS`], those with the smallest major and
/// those with the smallest minor parts.
pub fn cuts(mesh: &Mesh) -> Vec<(AxisRef, AxisRef)> {
    let tp = mesh.tp;
    let small = (2..=tp).take_while(|p| p.saturating_mul(*p) <= tp).filter(|p| tp.is_multiple_of(*p));
    let mut majors: Vec<u32> = small.flat_map(|p| [p, tp / p]).collect();
    majors.sort_unstable();
    majors.dedup();
    if majors.len() > CUTS {
        let end = majors.len() - CUTS / 2;
        majors.drain(CUTS / 2..end);
    }
    let parts = |p: u32| {
        let major = mesh.part(Axis::Tp, 1, p)?;
        Some((major, mesh.part(Axis::Tp, p, tp / p)?))
    };
    majors.into_iter().filter_map(parts).collect()
}

/// The ways an op that is linear can take partials: which operands, over which axes, and what the results then are.
fn linear_uses(inst: &Inst, partials: &[Vec<Partial>]) -> Vec<(Vec<bool>, Partial, ReduceKind)> {
    let n = inst.args.len();
    if n == 0 || n > 3 {
        return Vec::new();
    }
    let distinct: BTreeSet<&Partial> = partials.iter().flatten().filter(|p| !p.is_empty()).collect();
    let mut uses = Vec::new();
    for partial in distinct {
        let kind = partial[0].1;
        if partial.iter().any(|p| p.1 != kind) {
            continue;
        }
        for mask in 1..1usize << n {
            let which: Vec<bool> = (0..n).map(|i| mask >> i & 1 == 1).collect();
            // An operand that is nowhere partial so cannot become it.
            if which.iter().zip(partials).any(|(&w, ps)| w && !ps.contains(partial)) {
                continue;
            }
            let kinds: Vec<_> = which.iter().map(|&w| w.then_some(kind)).collect();
            if let Some(Some(result)) = inst.op.partial_rule(&kinds) {
                uses.push((which, partial.clone(), result));
            }
        }
    }
    uses
}
