//! Smaller extents: which dims of a module must shrink together, which cannot, and to what.
//!
//! Dims that one factor of an op joins, reductions included, are one class, through calls, parameters and states. The smaller extent
//! of a class leaves the same remainder by every mesh group that splits the class, and leaves as many devices without an element.
//! Classes of equal extent get equal new extents, so that caches still hold the sequences written into them.

use crate::solve::Assignment;
use crate::solve::unite::Classes;
use cranelift_entity::EntityRef;
use pcc_ir::graph::{Label, Role};
use pcc_ir::mesh::group_size;
use pcc_ir::sharding::span;
use pcc_ir::{AxisRef, Func, FuncId, Inst, Mesh, Module, Op, ParamId, Sharding, StateId, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// How small extents become at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    /// Long dims: hidden, ffn, vocabulary.
    pub wide: usize,
    /// Sequence positions.
    pub seq: usize,
}

/// Dims this long are long ones; of shorter ones at least [`FEW`] elements stay.
const LONG: usize = 128;
const FEW: usize = 8;

/// The most devices whose pieces are looked at to choose one extent.
const MOST_LOOKS: usize = 1 << 24;

/// The dim classes of a module.
pub(super) struct Dims {
    classes: Classes,
    /// Extent of each node.
    extents: Vec<usize>,
    values: BTreeMap<FuncId, Vec<usize>>,
    params: Vec<usize>,
    states: Vec<usize>,
    pinned: BTreeSet<usize>,
    batch: BTreeSet<usize>,
    seq: BTreeSet<usize>,
    /// The axes that split dims of the class, each list once.
    splits: BTreeMap<usize, BTreeSet<Vec<AxisRef>>>,
}

impl Dims {
    pub(super) fn of(module: &Module, assignment: &Assignment) -> Self {
        let mut d = Self {
            classes: Classes::default(),
            extents: Vec::new(),
            values: BTreeMap::new(),
            params: Vec::new(),
            states: Vec::new(),
            pinned: BTreeSet::new(),
            batch: BTreeSet::new(),
            seq: BTreeSet::new(),
            splits: BTreeMap::new(),
        };
        for (id, f) in &module.funcs {
            let nodes = f.values.values().map(|v| d.nodes(&v.ty.shape)).collect();
            d.values.insert(id, nodes);
        }
        d.params = module.params.values().map(|p| d.nodes(&p.ty.shape)).collect();
        d.states = module.states.values().map(|s| d.nodes(&s.ty.shape)).collect();
        let mut pins = Vec::new();
        for (id, f) in &module.funcs {
            for inst in &f.insts {
                match inst.op {
                    Op::Call(callee) => d.join_call(module, id, inst, callee),
                    _ => d.join_inst(id, f, inst, &mut pins),
                }
            }
        }
        d.join_entries(module);
        d.pinned = pins.into_iter().map(|node| d.classes.find(node)).collect();
        d.pin_unequal();
        d.read_labels(module);
        d.read_splits(module, assignment);
        d
    }

    fn nodes(&mut self, shape: &[usize]) -> usize {
        self.extents.extend(shape);
        self.classes.extend(shape.len())
    }

    fn value(&self, func: FuncId, v: ValueId) -> usize {
        self.values[&func][v.index()]
    }

    fn unite(&mut self, a: usize, b: usize, rank: usize) {
        (0..rank).for_each(|i| self.classes.unite(a + i, b + i));
    }

    fn join_call(&mut self, module: &Module, func: FuncId, inst: &Inst, callee: FuncId) {
        let inner = &module.funcs[callee];
        let pairs = inst.args.iter().zip(&inner.args).chain(inst.results.iter().zip(&inner.results));
        for (&a, &b) in pairs {
            self.unite(self.value(func, a), self.value(callee, b), inner.ty(b).rank());
        }
    }

    /// Joins dims by the op's factors. Dims of several factors, and those whose bounds an attribute gives, keep their extents.
    fn join_inst(&mut self, func: FuncId, f: &Func, inst: &Inst, pins: &mut Vec<usize>) {
        let args: Vec<&Type> = inst.args.iter().map(|&v| f.ty(v)).collect();
        let results: Vec<&Type> = inst.results.iter().map(|&v| f.ty(v)).collect();
        let rule = inst.op.rule(&args, &results);
        let sizes: Vec<usize> = rule.factors.iter().map(|f| f.size).collect();
        let base = self.nodes(&sizes);
        let values = inst.args.iter().chain(&inst.results);
        for (&v, dims) in values.zip(rule.operands.iter().chain(&rule.results)) {
            for (i, factors) in dims.iter().enumerate() {
                let node = self.value(func, v) + i;
                match factors[..] {
                    [only] => self.classes.unite(node, base + only),
                    _ => {
                        pins.push(node);
                        pins.extend(factors.iter().map(|f| base + f));
                    }
                }
            }
        }
        for (v, i) in fixed_dims(f, inst) {
            pins.push(self.value(func, v) + i);
        }
    }

    fn join_entries(&mut self, module: &Module) {
        for entry in &module.entries {
            let f = &module.funcs[entry.func];
            for (&v, role) in f.args.iter().zip(&entry.args) {
                let stored = match role {
                    Role::Input(_) => continue,
                    Role::Param(p) => self.params[p.index()],
                    Role::State(s) => self.states[s.index()],
                };
                self.unite(stored, self.value(entry.func, v), f.ty(v).rank());
            }
            for &(a, r) in &entry.aliases {
                let (a, r) = (f.args[a], f.results[r]);
                self.unite(self.value(entry.func, a), self.value(entry.func, r), f.ty(a).rank());
            }
        }
    }

    /// A class of several extents has a meaning that this analysis does not know.
    fn pin_unequal(&mut self) {
        for node in 0..self.extents.len() {
            let class = self.classes.find(node);
            if self.extents[class] != self.extents[node] {
                self.pinned.insert(class);
            }
        }
    }

    fn read_labels(&mut self, module: &Module) {
        for (id, f) in &module.funcs {
            for (v, value) in &f.values {
                for (i, label) in value.labels.iter().enumerate().take(value.ty.rank()) {
                    let class = self.classes.find(self.value(id, v) + i);
                    match label {
                        Some(Label::Batch) => drop(self.batch.insert(class)),
                        Some(Label::Seq) => drop(self.seq.insert(class)),
                        None => {}
                    }
                }
            }
        }
    }

    fn read_splits(&mut self, module: &Module, assignment: &Assignment) {
        for (&id, s) in &assignment.funcs {
            let f = &module.funcs[id];
            let outer = f.args.iter().zip(&s.args).chain(f.results.iter().zip(&s.results));
            for (&v, sharding) in outer {
                self.split(self.value(id, v), sharding);
            }
            for (inst, how) in f.insts.iter().zip(&s.insts) {
                let sides = inst.args.iter().zip(&how.needs).chain(inst.results.iter().zip(&how.gives));
                for (&v, sharding) in sides {
                    self.split(self.value(id, v), sharding);
                }
            }
        }
    }

    fn split(&mut self, node: usize, sharding: &Sharding) {
        for (i, axes) in sharding.dims.iter().enumerate().filter(|d| !d.1.is_empty()) {
            let class = self.classes.find(node + i);
            self.splits.entry(class).or_default().insert(axes.clone());
        }
    }

    /// Whether the batch dims, all of extent `rows`, can change.
    pub(super) fn batch_is_free(&self, rows: usize) -> bool {
        self.batch.iter().all(|&c| !self.pinned.contains(&c) && self.extents[c] == rows)
    }

    /// New extents of all classes: batch dims become `rows`, unless that is `None`.
    pub(super) fn sizes(mut self, mesh: &Mesh, least: Least, rows: Option<usize>) -> Sizes {
        let roots: BTreeSet<usize> = (0..self.extents.len()).map(|n| self.classes.find(n)).collect();
        // Classes of one extent: where they are split, and whether a sequence is among them.
        let mut alike: BTreeMap<usize, (BTreeSet<Vec<AxisRef>>, bool)> = BTreeMap::new();
        for &class in roots.iter().filter(|&c| !self.pinned.contains(c) && !self.batch.contains(c)) {
            let (splits, seq) = alike.entry(self.extents[class]).or_default();
            splits.extend(self.splits.get(&class).into_iter().flatten().cloned());
            *seq |= self.seq.contains(&class);
        }
        let by_extent: BTreeMap<usize, usize> = alike
            .into_iter()
            .map(|(n, (splits, seq))| {
                let at_least = match n {
                    _ if seq => least.seq,
                    LONG.. => least.wide,
                    _ => FEW,
                };
                (n, smaller(mesh, n, &splits, at_least))
            })
            .collect();
        let extent = |class: usize, n: usize| match rows {
            _ if self.pinned.contains(&class) => n,
            Some(rows) if self.batch.contains(&class) => rows,
            None if self.batch.contains(&class) => n,
            _ => by_extent.get(&n).copied().unwrap_or(n),
        };
        let new = (0..self.extents.len()).map(|i| extent(self.classes.find(i), self.extents[i])).collect();
        Sizes { new, values: self.values, params: self.params, states: self.states }
    }
}

/// New extents of the dims of a module.
pub(super) struct Sizes {
    new: Vec<usize>,
    values: BTreeMap<FuncId, Vec<usize>>,
    params: Vec<usize>,
    states: Vec<usize>,
}

impl Sizes {
    fn of(&self, node: usize, ty: &Type) -> Type {
        Type::new(ty.dtype, &self.new[node..node + ty.rank()])
    }

    pub(super) fn value(&self, func: FuncId, v: ValueId, ty: &Type) -> Type {
        self.of(self.values[&func][v.index()], ty)
    }

    pub(super) fn param(&self, p: ParamId, ty: &Type) -> Type {
        self.of(self.params[p.index()], ty)
    }

    pub(super) fn state(&self, s: StateId, ty: &Type) -> Type {
        self.of(self.states[s.index()], ty)
    }
}

/// Dims whose extent an attribute of the op fixes.
fn fixed_dims(f: &Func, inst: &Inst) -> Vec<(ValueId, usize)> {
    let both = |dims: Vec<usize>| {
        let values: Vec<ValueId> = inst.args.iter().chain(&inst.results).copied().collect();
        values.iter().flat_map(|&v| dims.iter().map(move |&d| (v, d))).collect()
    };
    match &inst.op {
        Op::Slice(s) => {
            let whole = |d: usize| s.start[d] == 0 && s.limit[d] == f.ty(inst.args[0]).shape[d];
            both((0..s.start.len()).filter(|&d| !whole(d)).collect())
        }
        Op::Pad(p) => both((0..p.low.len()).filter(|&d| p.low[d] + p.high[d] > 0).collect()),
        Op::Concat(d) if inst.args.len() > 1 => both(vec![*d]),
        // The rotated part of a head is tied to the number of angles.
        Op::Rope(_) => inst.args.iter().filter_map(|&v| Some((v, f.ty(v).rank().checked_sub(1)?))).collect(),
        // There are k of n; an n that many are kept of stays, so that there still are.
        Op::TopK(top) => {
            let last = |&v: &ValueId| Some((v, f.ty(v).rank().checked_sub(1)?));
            let row = inst.args.iter().filter(|_| top.k > FEW);
            inst.results.iter().chain(row).filter_map(last).collect()
        }
        _ => Vec::new(),
    }
}

/// The least extent of at least `at_least` that is as uneven as `n` over every list of axes.
fn smaller(mesh: &Mesh, n: usize, splits: &BTreeSet<Vec<AxisRef>>, at_least: usize) -> usize {
    let lcm = |a: usize, b: usize| (a / gcd(a, b)).saturating_mul(b);
    let step = splits.iter().map(|axes| group_size(axes)).fold(1, lcm);
    let least = at_least.min(n);
    let devices: usize = splits.iter().map(|axes| group_size(axes)).sum();
    // The first m >= least with the remainder of n.
    let mut m = least + (n - least) % step;
    for _ in 0..MOST_LOOKS / devices.max(1) {
        if m >= n {
            break;
        }
        if splits.iter().all(|axes| empty(mesh, m, axes) == empty(mesh, n, axes)) {
            return m;
        }
        m += step;
    }
    n
}

/// How many devices of a group hold nothing of a dim of extent `n`.
fn empty(mesh: &Mesh, n: usize, axes: &[AxisRef]) -> usize {
    mesh.group(0, axes).into_iter().filter(|&d| span(mesh, d, n, axes).len == 0).count()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcc_ir::Axis;

    #[test]
    fn smaller_extents_are_as_uneven() {
        let mesh = Mesh { tp: 8, ..Mesh::default() };
        let tp = BTreeSet::from([vec![mesh.whole(Axis::Tp)]]);
        // 50257 = 6282 * 8 + 1: the last device is short but not empty, which 9, 17, .. 49 are not; 57 = 7 * 8 + 1 is.
        assert_eq!(smaller(&mesh, 50257, &tp, 8), 57);
        // 12 over 8 leaves two devices empty; nothing smaller does.
        assert_eq!(smaller(&mesh, 12, &tp, 8), 12);
        assert_eq!(smaller(&mesh, 4096, &tp, 64), 64);
        assert_eq!(smaller(&mesh, 3, &tp, 8), 3);
        assert_eq!(smaller(&mesh, 4096, &BTreeSet::new(), 64), 64);
        // Two ways to split one dim: remainders by 4 and by 2 both stay.
        let parts = [mesh.part(Axis::Tp, 1, 4).unwrap(), mesh.part(Axis::Tp, 4, 2).unwrap()];
        let both = BTreeSet::from([vec![parts[0]], vec![parts[1]], parts.to_vec()]);
        let m = smaller(&mesh, 8003, &both, 8);
        assert_eq!((m % 8, m < 100), (3, true));
    }
}
