//! Least-cost assignment of a [`Network`] by variable elimination (bucket elimination; Dechter, "Bucket Elimination: A
//! Unifying Framework for Reasoning", 1999).
//!
//! Variables go in min-fill order. Eliminating one joins the tables that mention it and minimises it out, which is exact
//! and fast on the nearly tree-like graphs of models. Where a joined table would pass the bound, the bucket is split
//! into mini-buckets (Dechter and Rish, 2003): the messages are then only lower bounds, a beam search over the reverse
//! order finds the assignment, and cost and bound differ by the reported gap.

use super::network::{Choice, Cost, INFINITE, Network, Table, Var, add};
use std::collections::BTreeSet;

/// Partial assignments kept by the beam when the elimination was not exact.
const BEAM: usize = 64;

/// Everything that mentions a variable when its turn came.
struct Bucket {
    var: Var,
    tables: Vec<Table>,
    /// What the bucket passed on; each message was put into another bucket, or into the constant.
    messages: Vec<Table>,
}

/// The least-cost assignment; exact when no joined table passes `limit` entries, and often when some do: a bounded search
/// whose cost meets its own lower bound is optimal, so cheap bounds are tried first. Ties take the lowest value index in
/// elimination order, so the outcome is the same everywhere.
pub fn minimise(net: &Network, limit: usize) -> Choice {
    let order = min_fill(net);
    let mut best: Option<Choice> = None;
    for step in [1 << 11, 1 << 14, 1 << 18, limit] {
        let Choice { values, cost, bound } = bounded(net, &order, step.min(limit));
        let bound = best.as_ref().map_or(bound, |b| b.bound.max(bound));
        best = match best {
            Some(b) if b.cost <= cost => Some(Choice { bound: bound.min(b.cost), ..b }),
            _ => Some(Choice { values, cost, bound: bound.min(cost) }),
        };
        if step >= limit || best.as_ref().is_some_and(|b| b.bound == b.cost) {
            break;
        }
    }
    best.unwrap_or(Choice { values: vec![0; net.domains.len()], cost: INFINITE, bound: 0 })
}

/// One elimination in the given order with joined tables of at most `limit` entries.
fn bounded(net: &Network, order: &[Var], limit: usize) -> Choice {
    let mut place = vec![usize::MAX; net.domains.len()];
    for (i, &v) in order.iter().enumerate() {
        place[v] = i;
    }
    let mut buckets: Vec<Bucket> =
        order.iter().map(|&var| Bucket { var, tables: Vec::new(), messages: Vec::new() }).collect();
    let mut bound: Cost = 0;
    let mut post = |buckets: &mut Vec<Bucket>, t: Table| match t.scope.iter().map(|&v| place[v]).min() {
        Some(i) => buckets[i].tables.push(t),
        None => bound = add(bound, t.costs[0]),
    };
    for t in &net.tables {
        post(&mut buckets, t.clone());
    }
    let mut exact = true;
    for i in 0..buckets.len() {
        let groups = mini_buckets(net, &buckets[i].tables, limit);
        exact &= groups.len() <= 1;
        let var = buckets[i].var;
        let messages: Vec<Table> = groups
            .iter()
            .map(|g| {
                let tables: Vec<&Table> = g.iter().map(|&k| &buckets[i].tables[k]).collect();
                eliminate(net, var, &tables)
            })
            .collect();
        for m in &messages {
            post(&mut buckets, m.clone());
        }
        buckets[i].messages = messages;
    }
    let values = decode(net, &buckets, bound, if exact { 1 } else { BEAM });
    let cost = net.cost(&values);
    Choice { values, cost, bound: bound.min(cost) }
}

/// Groups tables so that each group's joint scope stays within `limit` entries (a single table always may).
fn mini_buckets(net: &Network, tables: &[Table], limit: usize) -> Vec<Vec<usize>> {
    let mut by_size: Vec<usize> = (0..tables.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(tables[i].costs.len()), i));
    let mut groups: Vec<(BTreeSet<Var>, Vec<usize>)> = Vec::new();
    for i in by_size {
        let fits = groups.iter_mut().find(|(scope, _)| {
            let union: Vec<Var> = scope.union(&tables[i].scope.iter().copied().collect()).copied().collect();
            net.size(&union) <= limit
        });
        match fits {
            Some((scope, group)) => {
                scope.extend(&tables[i].scope);
                group.push(i);
            }
            None => groups.push((tables[i].scope.iter().copied().collect(), vec![i])),
        }
    }
    groups.into_iter().map(|g| g.1).collect()
}

/// Joins `tables` and minimises `var` out.
fn eliminate(net: &Network, var: Var, tables: &[&Table]) -> Table {
    let mut rest: Vec<Var> =
        tables.iter().flat_map(|t| t.scope.iter().copied()).filter(|&v| v != var).collect();
    rest.sort_unstable();
    rest.dedup();
    let domain = net.domains[var];
    // The joint table has `var` innermost: each input adds a run of `domain` costs at a stride.
    let mut joint: Vec<Cost> = vec![0; net.size(&rest) * domain];
    for t in tables {
        let strides = strides(net, t);
        let of = |v: Var| t.scope.iter().position(|&s| s == v).map_or(0, |i| strides[i]);
        let inner = of(var);
        let outer: Vec<usize> = rest.iter().map(|&v| of(v)).collect();
        let mut at = vec![0; rest.len()];
        let mut base = 0;
        for run in joint.chunks_exact_mut(domain) {
            for (k, c) in run.iter_mut().enumerate() {
                *c = add(*c, t.costs[base + k * inner]);
            }
            for i in (0..rest.len()).rev() {
                at[i] += 1;
                base += outer[i];
                if at[i] < net.domains[rest[i]] {
                    break;
                }
                base -= outer[i] * at[i];
                at[i] = 0;
            }
        }
    }
    let costs = joint.chunks_exact(domain).map(|run| run.iter().copied().min().unwrap_or(0)).collect();
    Table { scope: rest, costs }
}

fn strides(net: &Network, t: &Table) -> Vec<usize> {
    let mut strides = vec![1; t.scope.len()];
    for i in (0..t.scope.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * net.domains[t.scope[i + 1]];
    }
    strides
}

/// Assigns the variables in reverse order. A state's estimate is what its choices cost plus the messages of the buckets to
/// come: exact with exact messages, so that a beam of one suffices then.
fn decode(net: &Network, buckets: &[Bucket], bound: Cost, beam: usize) -> Vec<usize> {
    let sum = |tables: &[Table], values: &[usize]| tables.iter().fold(0, |s, t| add(s, net.look(t, values)));
    let mut states: Vec<(Cost, Vec<usize>)> = vec![(bound, vec![0; net.domains.len()])];
    for bucket in buckets.iter().rev() {
        let mut next: Vec<(Cost, usize, usize)> = Vec::new();
        for (parent, (estimate, values)) in states.iter_mut().enumerate() {
            let passed = sum(&bucket.messages, values);
            for value in 0..net.domains[bucket.var] {
                values[bucket.var] = value;
                let here = sum(&bucket.tables, values);
                let worse = if here >= INFINITE { INFINITE } else { here.saturating_sub(passed) };
                next.push((add(*estimate, worse), parent, value));
            }
        }
        next.sort_by_key(|&(cost, parent, value)| (cost, parent, value));
        next.truncate(beam);
        // One state goes on as it is: a copy for every variable would be quadratic.
        if let [(cost, parent, value)] = next[..] {
            let mut values = states.swap_remove(parent).1;
            values[bucket.var] = value;
            states = vec![(cost, values)];
            continue;
        }
        states = next
            .into_iter()
            .map(|(cost, parent, value)| {
                let mut values = states[parent].1.clone();
                values[bucket.var] = value;
                (cost, values)
            })
            .collect();
    }
    states.swap_remove(0).1
}

/// Elimination order: the variable that adds the least new table volume between its neighbours first, then the smaller
/// joint table, then the lower number.
fn min_fill(net: &Network) -> Vec<Var> {
    let n = net.domains.len();
    let mut graph = Fill { net, near: vec![BTreeSet::new(); n], sum: vec![0; n], fill: vec![0; n] };
    let mut touched = BTreeSet::new();
    for t in &net.tables {
        for (i, &a) in t.scope.iter().enumerate() {
            t.scope[i + 1..].iter().for_each(|&b| graph.connect(a, b, &mut touched));
        }
    }
    let mut scores: Vec<(usize, usize)> = (0..n).map(|v| graph.score(v)).collect();
    let mut queue: BTreeSet<((usize, usize), Var)> = scores.iter().copied().zip(0..n).collect();
    let mut order = Vec::with_capacity(n);
    while let Some((_, v)) = queue.pop_first() {
        order.push(v);
        touched.clear();
        graph.eliminate(v, &mut touched);
        for &u in &touched {
            let fresh = graph.score(u);
            if fresh != scores[u] && queue.remove(&(scores[u], u)) {
                scores[u] = fresh;
                queue.insert((fresh, u));
            }
        }
    }
    order
}

/// Which variables are near one another, and what eliminating each would add. Kept up to date edge by edge, at the cost of the smaller of
/// two neighbourhoods, so that a variable with thousands of neighbours costs no more than its edges.
struct Fill<'a> {
    net: &'a Network,
    near: Vec<BTreeSet<Var>>,
    /// Domains of the neighbours of each variable, added up.
    sum: Vec<u128>,
    /// Volume of the tables between those neighbours of each variable that are not near one another.
    fill: Vec<u128>,
}

impl Fill<'_> {
    fn domain(&self, v: Var) -> u128 {
        self.net.domains[v] as u128
    }

    fn common(&self, a: &BTreeSet<Var>, b: &BTreeSet<Var>) -> Vec<Var> {
        let (small, large) = if a.len() <= b.len() { (a, b) } else { (b, a) };
        small.iter().copied().filter(|v| large.contains(v)).collect()
    }

    fn connect(&mut self, a: Var, b: Var, touched: &mut BTreeSet<Var>) {
        if a == b || self.near[a].contains(&b) {
            return;
        }
        let common = self.common(&self.near[a], &self.near[b]);
        let (da, db) = (self.domain(a), self.domain(b));
        let shared: u128 = common.iter().map(|&c| self.domain(c)).sum();
        for &c in &common {
            self.fill[c] -= da * db;
        }
        self.fill[a] += db * (self.sum[a] - shared);
        self.fill[b] += da * (self.sum[b] - shared);
        self.near[a].insert(b);
        self.near[b].insert(a);
        self.sum[a] += db;
        self.sum[b] += da;
        touched.extend(common);
        touched.extend([a, b]);
    }

    /// Takes a variable out; its neighbours become near one another.
    fn eliminate(&mut self, v: Var, touched: &mut BTreeSet<Var>) {
        let around = std::mem::take(&mut self.near[v]);
        let domain = self.domain(v);
        for &a in &around {
            let shared: u128 = self.common(&self.near[a], &around).iter().map(|&c| self.domain(c)).sum();
            self.fill[a] -= domain * (self.sum[a] - domain - shared);
            self.near[a].remove(&v);
            self.sum[a] -= domain;
        }
        touched.extend(&around);
        let around: Vec<Var> = around.into_iter().collect();
        for (i, &a) in around.iter().enumerate() {
            around[i + 1..].iter().for_each(|&b| self.connect(a, b, touched));
        }
    }

    fn score(&self, v: Var) -> (usize, usize) {
        let fill = usize::try_from(self.fill[v]).unwrap_or(usize::MAX);
        let near = &self.near[v];
        // Of so many neighbours with a choice, the joint table has no size; those with none do not count.
        let mut choices = near.iter().filter(|&&u| self.net.domains[u] > 1);
        if near.len() > 64 && choices.nth(63).is_some() {
            return (fill, usize::MAX);
        }
        let around: Vec<Var> = near.iter().copied().collect();
        (fill, self.net.size(&around).saturating_mul(self.net.domains[v]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator (SplitMix64), enough for test networks.
    struct Noise(u64);

    impl Noise {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ (z >> 31)) % n
        }
    }

    fn random_network(seed: u64) -> Network {
        let mut noise = Noise(seed);
        let mut net = Network::default();
        for _ in 0..7 {
            net.var(1 + noise.below(4) as usize);
        }
        for _ in 0..12 {
            let scope: Vec<Var> = (0..1 + noise.below(3)).map(|_| noise.below(7) as usize).collect();
            net.add(&scope, |_| if noise.below(12) == 0 { INFINITE } else { noise.below(40) });
        }
        net
    }

    fn brute_force(net: &Network) -> Cost {
        let all: Vec<Var> = (0..net.domains.len()).collect();
        let mut at = vec![0; all.len()];
        let mut best = INFINITE;
        loop {
            best = best.min(net.cost(&at));
            if !net.next(&all, &mut at) {
                return best;
            }
        }
    }

    #[test]
    fn equals_enumeration_on_random_networks() {
        for seed in 0..200 {
            let net = random_network(seed);
            let choice = minimise(&net, usize::MAX);
            let best = brute_force(&net);
            assert_eq!((choice.cost, choice.bound), (best, best), "seed {seed}");
        }
    }

    #[test]
    fn a_bounded_search_reports_a_true_bound() {
        let mut optimal = 0;
        for seed in 0..200 {
            let net = random_network(seed);
            let choice = minimise(&net, 6);
            let best = brute_force(&net);
            assert!(choice.bound <= best && best <= choice.cost, "seed {seed}: {choice:?} {best}");
            optimal += usize::from(choice.cost == best);
        }
        assert!(optimal > 180, "the beam found {optimal} of 200 optima");
    }

    /// The order with every score computed anew after every elimination.
    fn min_fill_by_counting(net: &Network) -> Vec<Var> {
        let n = net.domains.len();
        let near = |a: Var, b: Var, edges: &BTreeSet<(Var, Var)>| edges.contains(&(a.min(b), a.max(b)));
        let mut edges: BTreeSet<(Var, Var)> = BTreeSet::new();
        for t in &net.tables {
            let pairs = t.scope.iter().flat_map(|&a| t.scope.iter().map(move |&b| (a, b)));
            edges.extend(pairs.filter(|(a, b)| a < b));
        }
        let mut left: Vec<Var> = (0..n).collect();
        let mut order = vec![];
        while !left.is_empty() {
            let around = |v: Var| -> Vec<Var> {
                left.iter().copied().filter(|&u| u != v && near(u, v, &edges)).collect()
            };
            let score = |&&v: &&Var| {
                let around = around(v);
                let pairs = around.iter().flat_map(|&a| around.iter().map(move |&b| (a, b)));
                let open = pairs.filter(|&(a, b)| a < b && !near(a, b, &edges));
                let fill: usize = open.map(|(a, b)| net.domains[a] * net.domains[b]).sum();
                (fill, net.size(&around) * net.domains[v], v)
            };
            let v = *left.iter().min_by_key(score).unwrap();
            let around = around(v);
            edges.extend(
                around.iter().flat_map(|&a| around.iter().map(move |&b| (a, b))).filter(|(a, b)| a < b),
            );
            left.retain(|&u| u != v);
            order.push(v);
        }
        order
    }

    #[test]
    fn scores_kept_up_to_date_give_the_same_order() {
        for seed in 0..200 {
            let mut noise = Noise(seed ^ 0xf111);
            let mut net = Network::default();
            let vars = 3 + noise.below(20);
            (0..vars).for_each(|_| _ = net.var(1 + noise.below(4) as usize));
            for _ in 0..vars + noise.below(20) {
                let scope: Vec<Var> = (0..1 + noise.below(4)).map(|_| noise.below(vars) as usize).collect();
                net.add(&scope, |_| 0);
            }
            assert_eq!(min_fill(&net), min_fill_by_counting(&net), "seed {seed}");
        }
    }

    #[test]
    fn ties_take_the_lowest_index() {
        let mut net = Network::default();
        let (a, b) = (net.var(3), net.var(3));
        net.add(&[a, b], |v| u64::from(v[0] != v[1]));
        assert_eq!(minimise(&net, usize::MAX).values, [0, 0]);
    }
}
