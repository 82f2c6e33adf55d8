//! From one sharding of a value to another: which collectives, in which order.
//!
//! A shortest path over shardings. Moves go towards the goal only: a dim loses axes until what is left is a prefix of the goal's
//! axes, and then gains the goal's; the minor axis is always peeled first, because only it splits the dim into adjacent pieces.
//!
//! | move | from | to | collective |
//! |---|---|---|---|
//! | reduce | partial a | nothing | all-reduce |
//! | scatter | partial a | dim splits by a | reduce-scatter |
//! | gather | dim split by a | nothing | all-gather |
//! | slice | replicas over a | dim splits by a | none (shard slice) |
//! | exchange | dim split by a | another dim splits by a | all-to-all |

use super::layout::{Cuts, extent_before, merge_dim, merge_group, overlap, same_split};
use super::time::op_time;
use crate::cost::Cluster;
use pcc_ir::mesh::AxisRef;
use pcc_ir::ops::{Collective, Op, ShardSlice};
use pcc_ir::sharding::local_extent;
use pcc_ir::{Mesh, ReduceKind, Sharding, Type};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// One operation of a reshard and the sharding after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub op: Op,
    pub sharding: Sharding,
}

/// The cheapest steps that bring a value of global type `ty` from one sharding to another. None when the layouts are equal.
///
/// # Errors
/// A sentence, when the goal is a partial that the source is not, or mixes kinds of reduction.
pub fn plan(
    cluster: &Cluster,
    mesh: &Mesh,
    ty: &Type,
    from: &Sharding,
    to: &Sharding,
) -> Result<Vec<Step>, String> {
    for s in [from, to] {
        if s.dims.len() != ty.rank() {
            return Err(format!("a sharding of {} dims cannot lay out {ty}", s.dims.len()));
        }
        if let Some((a, b)) = overlap(s) {
            return Err(format!("{a:?} and {b:?} share devices in one sharding"));
        }
    }
    let search = Search::new(ty, from, to)?;
    search.run(cluster, mesh)
}

struct Search<'a> {
    ty: &'a Type,
    from: &'a Sharding,
    to: &'a Sharding,
    cuts: Cuts,
    /// `from` and `to` with their axes cut alike.
    start: Sharding,
    goal: Sharding,
}

/// The least cost found of each sharding, and the step that leads to it from the sharding before.
type Best = BTreeMap<Sharding, (f64, Option<(Sharding, Op)>)>;

/// An order of costs: they are finite and not negative, so their bits compare as they do.
fn key(cost: f64) -> u64 {
    cost.to_bits()
}

impl<'a> Search<'a> {
    fn new(ty: &'a Type, from: &'a Sharding, to: &'a Sharding) -> Result<Self, String> {
        let cuts = Cuts::of([from, to]);
        let (start, goal) = (cuts.refine(&ty.shape, from), cuts.refine(&ty.shape, to));
        if let Some((a, kind)) = goal.partial.iter().find(|p| !start.partial.contains(p)) {
            return Err(format!("a value cannot become a partial {} over {a:?}", kind.name()));
        }
        if start.partial.iter().any(|p| p.1 != start.partial[0].1) {
            return Err("a partial of two kinds of reduction has no meaning".to_owned());
        }
        Ok(Self { ty, from, to, cuts, start, goal })
    }

    fn run(&self, cluster: &Cluster, mesh: &Mesh) -> Result<Vec<Step>, String> {
        let mut best = Best::new();
        let mut queue = BinaryHeap::new();
        best.insert(self.start.clone(), (0.0, None));
        queue.push(Reverse((key(0.0), self.start.clone())));
        while let Some(Reverse((cost_key, at))) = queue.pop() {
            let cost = f64::from_bits(cost_key);
            if best.get(&at).is_some_and(|b| b.0 < cost) {
                continue;
            }
            if at == self.goal {
                return Ok(self.path(&best, at));
            }
            let local = at.local_type(self.ty);
            for (op, next) in self.moves(&at) {
                let cost = cost + op_time(cluster, mesh, &op, &[&local], &next.local_type(self.ty));
                if best.get(&next).is_none_or(|b| cost < b.0) {
                    best.insert(next.clone(), (cost, Some((at.clone(), op))));
                    queue.push(Reverse((key(cost), next)));
                }
            }
        }
        Err("no sequence of collectives leads to the sharding asked for".to_owned())
    }

    fn path(&self, best: &Best, goal: Sharding) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut at = goal;
        while let Some((_, Some((before, op)))) = best.get(&at) {
            steps.push(Step { op: op.clone(), sharding: self.as_written(&at) });
            at = before.clone();
        }
        steps.reverse();
        if let Some(last) = steps.last_mut() {
            last.sharding = self.to.clone();
        }
        steps
    }

    /// The sharding in the terms of `from` and `to` where it agrees with them, else with sub-axes merged.
    fn as_written(&self, s: &Sharding) -> Sharding {
        let dim = |(d, axes): (usize, &Vec<AxisRef>)| match axes {
            _ if *axes == self.start.dims[d] => self.from.dims[d].clone(),
            _ if *axes == self.goal.dims[d] => self.to.dims[d].clone(),
            _ => merge_dim(self.ty.shape[d], axes),
        };
        let partial = match &s.partial {
            p if *p == self.start.partial => self.from.partial.clone(),
            p if *p == self.goal.partial => self.to.partial.clone(),
            p => {
                let axes = merge_group(&p.iter().map(|p| p.0).collect::<Vec<_>>());
                axes.into_iter().map(|a| (a, p[0].1)).collect()
            }
        };
        Sharding { dims: s.dims.iter().enumerate().map(dim).collect(), partial }
    }

    fn moves(&self, at: &Sharding) -> Vec<(Op, Sharding)> {
        let mut moves = Vec::new();
        self.reduces(at, &mut moves);
        for d in 0..at.dims.len() {
            let kept = at.dims[d].iter().zip(&self.goal.dims[d]).take_while(|(a, b)| a == b).count();
            let extra = at.dims[d].len() - kept;
            for k in 1..=extra {
                // Fewer than all only if what is left can then go elsewhere: one gather, not two.
                if k == extra || self.wanted_elsewhere(d, at.dims[d][kept + extra - k - 1]) {
                    self.gather(at, d, k, &mut moves);
                }
                self.exchanges(at, d, k, &mut moves);
            }
            if extra == 0 {
                self.splits(at, d, &mut moves);
            }
        }
        moves
    }

    /// One all-reduce of all unwanted partials that are left: in how many rounds it runs is up to the collective.
    fn reduces(&self, at: &Sharding, moves: &mut Vec<(Op, Sharding)>) {
        let unwanted: Vec<_> = at.partial.iter().filter(|p| !self.goal.partial.contains(p)).collect();
        let Some(&&(_, kind)) = unwanted.first() else { return };
        let axes = merge_group(&unwanted.iter().map(|p| p.0).collect::<Vec<_>>());
        let mut next = at.clone();
        next.partial.retain(|p| self.goal.partial.contains(p));
        moves.push((Op::Collective(Collective::AllReduce { axes, kind }), next));
    }

    /// Gathers the last `k` axes of dim `d`.
    fn gather(&self, at: &Sharding, d: usize, k: usize, moves: &mut Vec<(Op, Sharding)>) {
        let global = extent_before(self.ty.shape[d], &at.dims[d], k);
        let mut next = at.clone();
        let taken = next.dims[d].split_off(at.dims[d].len() - k);
        let axes = if at.dims[d] == self.start.dims[d] && next.dims[d].is_empty() {
            self.from.dims[d].clone()
        } else {
            merge_dim(global, &taken)
        };
        moves.push((Op::Collective(Collective::AllGather { axes, dim: d, global }), next));
    }

    /// Moves the last `k` axes of dim `d` to the end of a dim that wants just these next.
    fn exchanges(&self, at: &Sharding, d: usize, k: usize, moves: &mut Vec<(Op, Sharding)>) {
        let rest = at.dims[d].len() - k;
        let taken = &at.dims[d][rest..];
        let concat_global = local_extent(self.ty.shape[d], &at.dims[d][..rest]);
        for e in (0..at.dims.len()).filter(|&e| e != d) {
            let Some(wanted) = self.goal.dims[e].strip_prefix(&at.dims[e][..]) else { continue };
            let split_global = local_extent(self.ty.shape[e], &at.dims[e]);
            for m in 1..=wanted.len() {
                let Some(axes) = self.both(concat_global, taken, split_global, &wanted[..m]) else {
                    continue;
                };
                let mut next = at.clone();
                next.dims[d].truncate(rest);
                next.dims[e].extend_from_slice(&wanted[..m]);
                let op = Collective::AllToAll { axes, split: e, split_global, concat: d, concat_global };
                moves.push((Op::Collective(op), next));
            }
        }
    }

    /// One list of axes that splits a dim of extent `n` as `a` does and one of extent `m` as `b` does.
    fn both(&self, n: usize, a: &[AxisRef], m: usize, b: &[AxisRef]) -> Option<Vec<AxisRef>> {
        if self.cuts.parts_of(a) != self.cuts.parts_of(b) {
            return None;
        }
        let merged = merge_dim(n, a);
        let splits_alike = |axes: &[AxisRef]| same_split(n, axes, a) && same_split(m, axes, b);
        [&merged[..], a, b].into_iter().find(|axes| splits_alike(axes)).map(<[_]>::to_vec)
    }

    fn wanted_elsewhere(&self, d: usize, axis: AxisRef) -> bool {
        let others = self.goal.dims.iter().enumerate().filter(|(e, _)| *e != d);
        others.flat_map(|(_, axes)| axes).any(|a| a.overlaps(axis))
    }

    /// Splits dim `d` by the next axes of the goal, as many as a scatter of partials can, and as a slice of replicas can.
    fn splits(&self, at: &Sharding, d: usize, moves: &mut Vec<(Op, Sharding)>) {
        let have = at.dims[d].len();
        let global = local_extent(self.ty.shape[d], &at.dims[d]);
        let kind = at.partial.first().map_or(ReduceKind::Sum, |p| p.1);
        let free = |w: &AxisRef| at.axes().all(|a| !a.overlaps(*w));
        let open = |w: &AxisRef| self.cuts.parts(*w).iter().all(|&a| self.may_reduce(at, a, kind));
        for scatter in [true, false] {
            let fits = |w: &&AxisRef| if scatter { open(w) } else { free(w) };
            let k = self.goal.dims[d][have..].iter().take_while(fits).count();
            if k == 0 {
                continue;
            }
            let wanted = &self.goal.dims[d][have..have + k];
            let mut next = at.clone();
            next.dims[d].extend_from_slice(wanted);
            let axes = match next.dims[d] == self.goal.dims[d] && have == 0 {
                true => self.to.dims[d].clone(),
                false => merge_dim(global, wanted),
            };
            if scatter {
                let parts = self.cuts.parts_of(wanted);
                next.partial.retain(|p| !parts.contains(&p.0));
                moves.push((Op::Collective(Collective::ReduceScatter { axes, dim: d, kind, global }), next));
            } else {
                moves.push((Op::ShardSlice(ShardSlice { axes, dim: d, global }), next));
            }
        }
    }

    fn may_reduce(&self, at: &Sharding, part: AxisRef, kind: ReduceKind) -> bool {
        at.partial.contains(&(part, kind)) && !self.goal.partial.contains(&(part, kind))
    }
}
