//! Builds sharded functions with random legal shardings: any op, each factor split by any axes its rule allows, partials kept
//! where the op may run on them, reshards (also detours) in between.

use super::rng::Rng;
use pcc_ir::ops::DotGeneral;
use pcc_ir::rule::Split;
use pcc_ir::{Axis, AxisRef, Func, Mesh, Op, ReduceKind, Rule, Sharding, Type, ValueId};

pub struct Builder {
    pub rng: Rng,
    pub f: Func,
    /// Values of the range of integers that integer arguments may hold.
    pub ranges: Vec<(ValueId, i64, i64)>,
    /// Values that are no results of the function.
    pub hidden: Vec<ValueId>,
    /// Ways to cut the mesh into axes; each op uses one.
    views: Vec<Vec<AxisRef>>,
    /// How often, in percent, an op takes its operands as they are placed rather than as it pleases.
    pub steady: usize,
}

/// A random mesh of at most 12 devices a stage.
pub fn mesh(rng: &mut Rng) -> Mesh {
    let (tp, dp, cp) = rng.pick(&[
        (2, 1, 1),
        (3, 1, 1),
        (4, 1, 1),
        (6, 1, 1),
        (8, 1, 1),
        (9, 1, 1),
        (12, 1, 1),
        (2, 2, 1),
        (4, 2, 1),
        (3, 2, 1),
        (2, 3, 1),
        (6, 2, 1),
        (2, 2, 2),
        (1, 4, 1),
    ]);
    Mesh { tp, dp, cp, ..Mesh::default() }
}

/// The mesh cut into axes in every way with at most three sub-axes of tp.
fn views(mesh: &Mesh) -> Vec<Vec<AxisRef>> {
    let others: Vec<AxisRef> =
        [Axis::Dp, Axis::Cp].into_iter().filter(|&a| mesh.size(a) > 1).map(|a| mesh.whole(a)).collect();
    let tp = mesh.tp;
    let mut cuts = vec![if tp > 1 { vec![mesh.whole(Axis::Tp)] } else { vec![] }];
    for p in (2..tp).filter(|p| tp.is_multiple_of(*p)) {
        let parts = [mesh.part(Axis::Tp, 1, p), mesh.part(Axis::Tp, p, tp / p)];
        cuts.push(parts.into_iter().flatten().collect());
        for q in (2..tp / p).filter(|q| (tp / p).is_multiple_of(*q)) {
            let parts =
                [(1, p), (p, q), (p * q, tp / p / q)].map(|(pre, size)| mesh.part(Axis::Tp, pre, size));
            cuts.push(parts.into_iter().flatten().collect());
        }
    }
    cuts.into_iter().map(|c| [others.clone(), c].concat()).collect()
}

impl Builder {
    pub fn new(rng: Rng, mesh: Mesh, name: &str) -> Self {
        Self {
            rng,
            f: Func::new(name),
            ranges: Vec::new(),
            hidden: Vec::new(),
            views: views(&mesh),
            steady: 65,
        }
    }

    pub fn sharding(&self, v: ValueId) -> &Sharding {
        self.f.values[v].sharding.as_ref().expect("every value gets a sharding when it is made")
    }

    /// A random sharding without partials.
    pub fn any_sharding(&mut self, rank: usize) -> Sharding {
        let mut s = Sharding::replicated(rank);
        let view = self.rng.pick(&self.views);
        for a in self.rng.shuffled(&view) {
            if rank > 0 && self.rng.chance(65) {
                s.dims[self.rng.below(rank)].push(a);
            }
        }
        s
    }

    pub fn arg(&mut self, ty: Type) -> ValueId {
        let s = self.any_sharding(ty.rank());
        let v = self.f.arg(ty, "");
        self.f.values[v].sharding = Some(s);
        v
    }

    /// An integer argument with values in a range, ends included.
    pub fn integers(&mut self, shape: impl Into<Vec<usize>>, low: i64, high: i64) -> ValueId {
        let v = self.arg(Type::i32(shape));
        self.ranges.push((v, low, high));
        v
    }

    /// The last axis of one way to cut the mesh.
    pub fn any_axis(&mut self) -> AxisRef {
        let view = self.rng.pick(&self.views);
        view[view.len() - 1]
    }

    /// A product of two new arguments whose depth `axis` splits: a partial sum over it.
    pub fn product(&mut self, rows: usize, depth: usize, columns: usize, axis: AxisRef) -> ValueId {
        let (a, w) = (self.arg(Type::f32([rows, depth])), self.arg(Type::f32([depth, columns])));
        let mut s = [Sharding::replicated(2), Sharding::replicated(2)];
        s[0].dims[1].push(axis);
        s[1].dims[0].push(axis);
        let [sa, sw] = s;
        let args = vec![self.reshard(a, sa), self.reshard(w, sw)];
        let (lhs_contract, rhs_contract) = (vec![1], vec![0]);
        let dot =
            DotGeneral { lhs_batch: vec![], rhs_batch: vec![], lhs_contract, rhs_contract, result: None };
        let v = self.f.push(Op::DotGeneral(dot), args, vec![Type::f32([rows, columns])], "")[0];
        let partial = vec![(axis, ReduceKind::Sum)];
        self.f.values[v].sharding = Some(Sharding { partial, ..Sharding::replicated(2) });
        v
    }

    pub fn reshard(&mut self, v: ValueId, to: Sharding) -> ValueId {
        if *self.sharding(v) == to {
            return v;
        }
        let mut v = v;
        if self.rng.chance(15) && to.partial.is_empty() && self.steady < 90 {
            let way = self.any_sharding(to.dims.len());
            v = self.reshard_once(v, way);
        }
        self.reshard_once(v, to)
    }

    fn reshard_once(&mut self, v: ValueId, to: Sharding) -> ValueId {
        let ty = self.f.ty(v).clone();
        let r = self.f.push(Op::Reshard(to.clone()), vec![v], vec![ty], "")[0];
        self.f.values[r].sharding = Some(to);
        r
    }

    /// Adds an op on the values, resharded as a random split of its factors wants. Panics when the op does not fit them.
    pub fn op(&mut self, op: Op, args: &[ValueId]) -> ValueId {
        self.ops(op, args)[0]
    }

    /// As [`Builder::op`]; all results.
    pub fn ops(&mut self, op: Op, args: &[ValueId]) -> Vec<ValueId> {
        let types: Vec<Type> = args.iter().map(|&v| self.f.ty(v).clone()).collect();
        let types: Vec<&Type> = types.iter().collect();
        let results = op.infer(&types).expect("the op fits");
        let rule = op.rule(&types, &results.iter().collect::<Vec<_>>());
        let mut split = vec![Vec::new(); rule.factors.len()];
        let steady = self.rng.chance(self.steady);
        if steady {
            self.follow(args, &rule, &mut split);
        }
        let view = self.rng.pick(&self.views);
        for a in self.rng.shuffled(&view) {
            if rule.factors.is_empty() || self.rng.chance(if steady { self.steady } else { 35 }) {
                continue;
            }
            let f = self.rng.below(rule.factors.len());
            split[f].push(a);
            if !rule.allows(&split) {
                split[f].pop();
            }
        }
        let others: Vec<Sharding> = (1..results.len()).map(|i| rule.result_sharding(i, &split)).collect();
        let mut made = rule.result_sharding(0, &split);
        let mut wanted: Vec<Sharding> = (0..args.len()).map(|i| rule.operand_sharding(i, &split)).collect();
        self.keep_partials(&op, args, &mut wanted, &mut made);
        let args: Vec<_> = args.iter().zip(wanted).map(|(&v, s)| self.reshard(v, s)).collect();
        let mut results = self.f.push(op, args, results, "");
        let partial = !made.partial.is_empty();
        for (&v, s) in results.iter().zip(std::iter::once(made).chain(others)) {
            self.f.values[v].sharding = Some(s);
        }
        if partial && self.rng.chance(40) && self.steady < 90 {
            let reduced = self.any_sharding(self.f.ty(results[0]).rank());
            results[0] = self.reshard(results[0], reduced);
        }
        results
    }

    /// What the function may give as results: all that ops make, but for what is hidden.
    pub fn made(&self) -> Vec<ValueId> {
        let made = self.f.insts.iter().flat_map(|i| i.results.iter().copied());
        made.filter(|v| !self.hidden.contains(v)).collect()
    }

    /// Splits factors as the operands are split already, as far as the rule allows.
    fn follow(&mut self, args: &[ValueId], rule: &Rule, split: &mut Split) {
        for (i, &v) in args.iter().enumerate() {
            let dims = self.sharding(v).dims.clone();
            for (factors, axes) in rule.operands[i].iter().zip(dims) {
                if let Some(&f) = factors.first().filter(|&&f| split[f].is_empty()) {
                    split[f] = axes;
                    if !rule.allows(split) {
                        split[f].clear();
                    }
                }
            }
        }
    }

    /// Lets operands stay partial over axes that the split leaves free, where the op may run on partials.
    fn keep_partials(&mut self, op: &Op, args: &[ValueId], wanted: &mut [Sharding], made: &mut Sharding) {
        let held: Vec<Vec<(AxisRef, ReduceKind)>> =
            args.iter().map(|&v| self.sharding(v).partial.clone()).collect();
        let mut open: Vec<AxisRef> = held.iter().flatten().map(|p| p.0).collect();
        open.sort_unstable();
        open.dedup();
        for a in open {
            let used = wanted.iter().flat_map(Sharding::axes).chain(made.axes()).any(|b| b.overlaps(a));
            if used || self.rng.chance(20) {
                continue;
            }
            let mut kinds: Vec<Option<ReduceKind>> =
                held.iter().map(|h| h.iter().find(|p| p.0 == a).map(|p| p.1)).collect();
            for k in &mut kinds {
                if self.rng.chance(25) {
                    *k = None;
                }
            }
            let Some(Some(result)) = op.partial_rule(&kinds) else { continue };
            // A partial of two kinds of reduction has no meaning.
            let mixes = |s: &Sharding, k: ReduceKind| s.partial.iter().any(|p| p.1 != k);
            let alike = kinds.iter().zip(wanted.iter()).all(|(k, s)| k.is_none_or(|k| !mixes(s, k)));
            if !alike || mixes(made, result) {
                continue;
            }
            for (k, s) in kinds.iter().zip(wanted.iter_mut()) {
                s.partial.extend(k.map(|k| (a, k)));
                s.partial.sort_unstable();
            }
            made.partial.push((a, result));
            made.partial.sort_unstable();
        }
    }
}
