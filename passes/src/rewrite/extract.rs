//! The cheapest term for every root, shared nodes counted once.
//!
//! Tree extraction counts a shared gather once per use; here the cost is that of the whole set of chosen nodes. Classes
//! that share no node are solved apart. Each part starts from the best of two acyclic choices, the function as it is and
//! the cheapest trees, and is then searched by branch and bound: the bound of an open choice is the cheapest node of each
//! class still to be decided. When the step budget of a part runs out the best found stays and the gap to the bound
//! is reported.

use super::language::{Dist, Graph, op_of, operands};
use crate::cost::Cluster;
use crate::partition::op_time;
use crate::solve::unite::Classes;
use egg::{Id, Language};
use pcc_ir::Mesh;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Steps of branch and bound a part; a layer needs a few hundred.
const BUDGET: usize = 50_000;

/// One chosen node a class.
pub type Choice = BTreeMap<Id, Dist>;

pub struct Extracted {
    pub choice: Choice,
    /// Seconds, modelled, of all chosen nodes together.
    pub cost: f64,
    /// At most this much (seconds) above the cheapest choice there is; 0 when that was found.
    pub gap: f64,
}

/// A class to decide: its nodes with their own cost, cheapest first.
struct Class {
    nodes: Vec<(f64, Dist)>,
    least: f64,
}

pub struct Extractor {
    classes: BTreeMap<Id, Class>,
    /// Steps of branch and bound a part.
    budget: usize,
}

impl Extractor {
    pub fn new(graph: &Graph, cluster: &Cluster, mesh: &Mesh) -> Self {
        let mut classes = BTreeMap::new();
        for class in graph.classes() {
            let Some(facts) = &class.data else { continue };
            let mut nodes: Vec<(f64, Dist)> = Vec::new();
            for node in class.iter() {
                let node = node.clone().map_children(|c| graph.find(c));
                let placed = operands(&node).iter().map(|&c| graph[c].data.as_ref().map(|f| f.local()));
                let Some(reads) = placed.collect::<Option<Vec<_>>>() else { continue };
                let cost = op_of(graph, &node).map_or(0.0, |op| {
                    op_time(cluster, mesh, &op, &reads.iter().collect::<Vec<_>>(), &facts.local())
                });
                nodes.push((cost, node));
            }
            nodes.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
            let least = nodes.first().map_or(0.0, |n| n.0);
            classes.insert(class.id, Class { nodes, least });
        }
        Self { classes, budget: BUDGET }
    }

    /// Cost of what `roots` need under a choice.
    pub fn cost(&self, choice: &Choice, roots: &[Id]) -> f64 {
        needed(choice, roots).iter().map(|id| self.node_cost(*id, &choice[id])).sum()
    }

    fn node_cost(&self, id: Id, node: &Dist) -> f64 {
        let nodes = self.classes.get(&id).map_or(&[][..], |c| &c.nodes);
        nodes.iter().find(|n| n.1 == *node).map_or(0.0, |n| n.0)
    }

    /// The cheapest choice for all roots together. `current` is the function as it is, complete and acyclic.
    pub fn extract(&self, roots: &[Id], current: &Choice) -> Extracted {
        let mut all = Extracted { choice: current.clone(), cost: 0.0, gap: 0.0 };
        let trees = self.cheapest_trees();
        for part in self.parts(roots) {
            let mut best = (self.cost(current, &part), Cow::Borrowed(current));
            if part.iter().all(|r| trees.contains_key(r)) {
                let cost = self.cost(&trees, &part);
                if cost < best.0 {
                    best = (cost, Cow::Borrowed(&trees));
                }
            }
            let mut search =
                Search { extractor: self, best_cost: best.0, best: None, steps: 0, cut: f64::INFINITY };
            search.descend(&mut Choice::new(), part.clone(), 0.0);
            if let Some(found) = search.best {
                best = (search.best_cost, Cow::Owned(found));
            }
            let needed = needed(&best.1, &part);
            all.choice.extend(needed.iter().map(|id| (*id, best.1[id].clone())));
            all.cost += best.0;
            all.gap += (best.0 - search.cut).max(0.0);
        }
        all
    }

    /// Roots grouped so that no class is under two groups, but for leaves, which may be shared freely: groups in the order of their last
    /// roots. Every class is visited once.
    fn parts(&self, roots: &[Id]) -> Vec<Vec<Id>> {
        let mut owner: BTreeMap<Id, usize> = BTreeMap::new();
        let mut groups = Classes::default();
        groups.extend(roots.len());
        for (i, &root) in roots.iter().enumerate() {
            let mut open = vec![root];
            while let Some(id) = open.pop() {
                let Some(class) = self.classes.get(&id) else { continue };
                if class.nodes.iter().all(|n| matches!(n.1, Dist::Opaque(_))) {
                    continue;
                }
                if let Some(&other) = owner.get(&id) {
                    // What is under the class is in the other's group already.
                    groups.unite(i, other);
                    continue;
                }
                owner.insert(id, i);
                open.extend(class.nodes.iter().flat_map(|n| operands(&n.1).iter().copied()));
            }
        }
        let mut parts: BTreeMap<usize, (usize, BTreeSet<Id>)> = BTreeMap::new();
        for (i, &root) in roots.iter().enumerate() {
            let part = parts.entry(groups.find(i)).or_default();
            part.0 = i;
            part.1.insert(root);
        }
        let mut parts: Vec<(usize, BTreeSet<Id>)> = parts.into_values().collect();
        parts.sort_unstable_by_key(|p| p.0);
        parts.into_iter().map(|p| p.1.into_iter().collect()).collect()
    }

    /// The cheapest tree of every class that has one: acyclic, because a tree costs more than its parts.
    fn cheapest_trees(&self) -> Choice {
        let mut cost: BTreeMap<Id, f64> = BTreeMap::new();
        let mut choice = Choice::new();
        let mut changed = true;
        while changed {
            changed = false;
            for (&id, class) in &self.classes {
                for (own, node) in &class.nodes {
                    let parts: Option<f64> = operands(node).iter().map(|c| cost.get(c).copied()).sum();
                    let Some(total) = parts.map(|p| p + own) else { continue };
                    if cost.get(&id).is_none_or(|&c| total < c) {
                        cost.insert(id, total);
                        choice.insert(id, node.clone());
                        changed = true;
                    }
                }
            }
        }
        choice
    }
}

/// The classes that `roots` need under a choice, roots included.
fn needed(choice: &Choice, roots: &[Id]) -> BTreeSet<Id> {
    let (mut seen, mut open) = (BTreeSet::new(), roots.to_vec());
    while let Some(id) = open.pop() {
        if let Some(node) = choice.get(&id)
            && seen.insert(id)
        {
            open.extend_from_slice(operands(node));
        }
    }
    seen
}

struct Search<'a> {
    extractor: &'a Extractor,
    best_cost: f64,
    best: Option<Choice>,
    steps: usize,
    /// Least bound of a branch left out because the budget ran out.
    cut: f64,
}

impl Search<'_> {
    /// Decides the classes of `open` one by one; `cost` is that of the nodes chosen so far.
    fn descend(&mut self, chosen: &mut Choice, mut open: Vec<Id>, cost: f64) {
        let next = loop {
            match open.pop() {
                Some(id) if chosen.contains_key(&id) => continue,
                Some(id) => break id,
                None => {
                    if cost < self.best_cost {
                        (self.best_cost, self.best) = (cost, Some(chosen.clone()));
                    }
                    return;
                }
            }
        };
        let Some(class) = self.extractor.classes.get(&next) else { return };
        let rest: BTreeSet<Id> =
            open.iter().copied().filter(|id| !chosen.contains_key(id) && *id != next).collect();
        let rest: f64 = rest.iter().filter_map(|id| self.extractor.classes.get(id)).map(|c| c.least).sum();
        for (own, node) in &class.nodes {
            let new: BTreeSet<Id> =
                operands(node).iter().copied().filter(|c| !chosen.contains_key(c)).collect();
            let new = new.iter().filter(|c| !open.contains(c)).filter_map(|c| self.extractor.classes.get(c));
            let bound = cost + own + rest + new.map(|c| c.least).sum::<f64>();
            if bound >= self.best_cost {
                continue;
            }
            if self.steps >= self.extractor.budget {
                self.cut = self.cut.min(bound);
                continue;
            }
            self.steps += 1;
            chosen.insert(next, node.clone());
            if !cyclic(chosen, next) {
                let more = open.iter().chain(operands(node)).copied().collect();
                self.descend(chosen, more, cost + own);
            }
            chosen.remove(&next);
        }
    }
}

/// Whether the nodes chosen so far lead from a class back to it.
fn cyclic(chosen: &Choice, start: Id) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), operands(&chosen[&start]).to_vec());
    while let Some(id) = open.pop() {
        if id == start {
            return true;
        }
        if seen.insert(id)
            && let Some(node) = chosen.get(&id)
        {
            open.extend_from_slice(operands(node));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::language::{Facts, Opaque, Placement, add_op};
    use super::*;
    use cranelift_entity::EntityRef;
    use pcc_ir::ops::{BinaryKind, Op, UnaryKind};
    use pcc_ir::{DType, Sharding, ValueId};

    /// A few numbers in a row (an LCG): which ops, on what.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    /// Random sums and negations of three leaves, some of them said to be equal.
    fn graph(seed: u64) -> (Graph, Vec<Id>, Choice) {
        let mut draw = Draw(seed);
        let mut g = Graph::new(Placement::default());
        let mut ids = Vec::new();
        for i in 0..3 {
            let (shape, sharding) = (vec![64, 64], Sharding::replicated(2));
            let original = Some(ValueId::new(i as usize));
            g.analysis.leaves.push(Facts { dtype: DType::F32, shape, sharding, term: None, original });
            ids.push(g.add(Dist::Opaque(Opaque(i))));
        }
        let mut nodes: Vec<(Id, Op, Vec<Id>)> = Vec::new();
        for _ in 0..9 {
            let (a, b) = (ids[draw.below(ids.len())], ids[draw.below(ids.len())]);
            let (op, args) = match draw.below(3) {
                0 => (Op::Unary(UnaryKind::Neg), vec![a]),
                1 => (Op::Binary(BinaryKind::Add), vec![a, b]),
                _ => (Op::Binary(BinaryKind::Mul), vec![a, b]),
            };
            let id = add_op(&mut g, &op, &args).unwrap();
            nodes.push((id, op, args));
            ids.push(id);
        }
        for _ in 0..3 {
            g.union(ids[3 + draw.below(9)], ids[3 + draw.below(9)]);
        }
        g.rebuild();
        let mut current = Choice::new();
        let firsts = ids[..3].iter().map(|&id| (id, None)).chain(nodes.iter().map(|n| (n.0, Some(n))));
        for (id, node) in firsts {
            let found =
                g[id].nodes.iter().map(|n| n.clone().map_children(|c| g.find(c))).find(|n| match node {
                    None => matches!(n, Dist::Opaque(_)),
                    Some((_, op, args)) => {
                        op_of(&g, n).as_ref() == Some(op)
                            && operands(n) == args.iter().map(|&a| g.find(a)).collect::<Vec<_>>()
                    }
                });
            current.entry(g.find(id)).or_insert(found.unwrap());
        }
        let roots = [g.find(ids[11]), g.find(ids[10])].to_vec();
        (g, roots, current)
    }

    /// The least cost over every acyclic choice.
    fn exhaustive(e: &Extractor, chosen: &mut Choice, mut open: Vec<Id>) -> f64 {
        while open.last().is_some_and(|id| chosen.contains_key(id)) {
            open.pop();
        }
        let Some(id) = open.pop() else { return 0.0 };
        let mut least = f64::INFINITY;
        for (own, node) in &e.classes[&id].nodes {
            chosen.insert(id, node.clone());
            if !cyclic(chosen, id) {
                let more = open.iter().chain(operands(node)).copied().collect();
                least = least.min(own + exhaustive(e, chosen, more));
            }
            chosen.remove(&id);
        }
        least
    }

    #[test]
    fn the_choice_is_the_cheapest_there_is_or_the_gap_says_so() {
        let (mut improved, mut gaps) = (0, 0);
        for seed in 0..150 {
            let (g, roots, current) = graph(seed);
            let mut e = Extractor::new(&g, &Cluster::a100(), &Mesh::default());
            let least = exhaustive(&e, &mut Choice::new(), roots.clone());
            let found = e.extract(&roots, &current);
            assert!(
                (found.cost - least).abs() < 1e-15 && found.gap == 0.0,
                "seed {seed}: {} {least}",
                found.cost
            );
            assert!((e.cost(&found.choice, &roots) - least).abs() < 1e-15, "seed {seed}");
            improved += usize::from(least < e.cost(&current, &roots));
            e.budget = 0;
            let hasty = e.extract(&roots, &current);
            assert!(hasty.cost - hasty.gap <= least + 1e-15 && least <= hasty.cost + 1e-15, "seed {seed}");
            gaps += usize::from(hasty.gap > 0.0);
        }
        assert!(improved > 10 && gaps > 10, "{improved} improved, {gaps} gaps");
    }
}
