//! Least-cost assignment of a [`Network`] by variable elimination (bucket elimination; Dechter, "Bucket Elimination: A
//! Unifying Framework for Reasoning", 1999).
//!
//! Variables go in min-fill order. Eliminating one joins the tables that mention it and minimises it out, which is exact
//! and fast on the nearly tree-like graphs of models. Where a joined table would pass the bound, the bucket is split
//! into mini-buckets (Dechter and Rish, 2003): the messages are then only lower bounds, a beam search over the reverse
//! order finds the assignment, and cost and bound differ by the reported gap.

use super::network::{Choice, Cost, INFINITE, Network, Table, Var, add};
use super::value_bounds::Left;
use std::collections::BTreeSet;

/// Partial assignments kept by the beam when the elimination was not exact.
const BEAM: usize = 64;

/// Bounds of joined tables that are tried in order, each again while that rules out much.
const STEPS: [usize; 3] = [1 << 11, 1 << 14, 1 << 18];
const TRIES: usize = 3;

/// A search looks first among values that allow a cost of one part in so many above the bound.
const NEAR: Cost = 32;

/// Everything that mentions a variable when its turn came.
pub(super) struct Bucket {
    pub(super) var: Var,
    pub(super) tables: Vec<Table>,
    /// The bucket and the message of it that each table is; none for tables of the network.
    pub(super) origins: Vec<Option<(usize, usize)>>,
    /// The tables that were joined; one group when the bucket is exact.
    pub(super) groups: Vec<Vec<usize>>,
    /// What each group passed on; each message was put into another bucket, or into the constant.
    pub(super) messages: Vec<Table>,
}

/// A network whose variables were eliminated one after another.
pub(super) struct Elimination {
    pub(super) buckets: Vec<Bucket>,
    /// No assignment costs less.
    pub(super) bound: Cost,
}

/// The least-cost assignment; exact when no joined table passes `limit` entries, and often when some do: a bounded search
/// whose cost meets its own lower bound is optimal, so cheap bounds are tried first. Values that such a search proves to cost more than what it
/// found are left out of the next, and for a try those that cost a little more than its bound: what is found then is the least if it
/// costs no more. Ties take the lowest value index in elimination order, so the outcome is the same everywhere.
pub fn minimise(net: &Network, limit: usize) -> Choice {
    let mut left = Left::all(net);
    let mut best = Choice { values: vec![0; net.domains.len()], cost: INFINITE, bound: 0 };
    for step in STEPS.into_iter().chain([limit]) {
        for _ in 0..TRIES {
            let done = search(&left, step.min(limit), INFINITE, &mut best);
            if step >= limit || best.bound == best.cost {
                return best;
            }
            let bounds = done.value_bounds(&left.net);
            let near = best.cost.min(add(best.bound, best.bound / NEAR));
            let tried = left.within(&bounds, near);
            if near < best.cost && tried.entries() <= left.entries() / 2 {
                search(&tried, step, near, &mut best);
            }
            let next = left.within(&bounds, best.cost);
            let little = next.entries() > left.entries() / 4 * 3;
            left = next;
            if best.bound == best.cost || little {
                break;
            }
        }
        if best.bound == best.cost {
            break;
        }
    }
    best
}

/// One elimination of what is left, where everything left out costs more than `outside`: betters the best and its bound.
fn search(left: &Left, limit: usize, outside: Cost, best: &mut Choice) -> Elimination {
    let done = Elimination::of(&left.net, limit);
    let values = done.decode(&left.net);
    let cost = left.net.cost(&values);
    if cost < best.cost {
        (best.values, best.cost) = (left.restore(&values), cost);
    }
    best.bound = best.bound.max(done.bound.min(outside)).min(best.cost);
    done
}

impl Elimination {
    /// Joined tables have at most `limit` entries.
    pub(super) fn of(net: &Network, limit: usize) -> Self {
        let order = min_fill(net);
        let mut place = vec![usize::MAX; net.domains.len()];
        for (i, &v) in order.iter().enumerate() {
            place[v] = i;
        }
        let empty =
            |&var: &Var| Bucket { var, tables: vec![], origins: vec![], groups: vec![], messages: vec![] };
        let mut buckets: Vec<Bucket> = order.iter().map(empty).collect();
        let mut bound: Cost = 0;
        let mut post = |buckets: &mut Vec<Bucket>, t: Table, origin: Option<(usize, usize)>| match t
            .scope
            .iter()
            .map(|&v| place[v])
            .min()
        {
            Some(i) => {
                buckets[i].tables.push(t);
                buckets[i].origins.push(origin);
            }
            None => bound = add(bound, t.costs[0]),
        };
        for t in &net.tables {
            post(&mut buckets, t.clone(), None);
        }
        for i in 0..buckets.len() {
            let Bucket { var, tables, .. } = &buckets[i];
            let groups = mini_buckets(net, tables, limit);
            let messages: Vec<Table> =
                groups.iter().map(|g| eliminate(net, *var, g.iter().map(|&k| &tables[k]))).collect();
            for (k, m) in messages.iter().enumerate() {
                post(&mut buckets, m.clone(), Some((i, k)));
            }
            (buckets[i].groups, buckets[i].messages) = (groups, messages);
        }
        Self { buckets, bound }
    }
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
fn eliminate<'t>(net: &Network, var: Var, tables: impl Iterator<Item = &'t Table> + Clone) -> Table {
    let (scope, joint) = join(net, var, tables);
    let costs =
        joint.chunks_exact(net.domains[var]).map(|run| run.iter().copied().min().unwrap_or(0)).collect();
    Table { scope, costs }
}

/// The sum of `tables` over the other variables they mention, ascending, and `var`, which counts fastest.
pub(super) fn join<'t>(
    net: &Network,
    var: Var,
    tables: impl Iterator<Item = &'t Table> + Clone,
) -> (Vec<Var>, Vec<Cost>) {
    let mut rest: Vec<Var> =
        tables.clone().flat_map(|t| t.scope.iter().copied()).filter(|&v| v != var).collect();
    rest.sort_unstable();
    rest.dedup();
    let mut joint: Vec<Cost> = vec![0; net.size(&rest) * net.domains[var]];
    for t in tables {
        walk(net, &rest, var, &t.scope, |at, i| joint[at] = add(joint[at], t.costs[i]));
    }
    (rest, joint)
}

/// Visits every entry of a table over `rest` and, fastest, `var`, with the entry of a table over `scope` that it falls on.
pub(super) fn walk(
    net: &Network,
    rest: &[Var],
    var: Var,
    scope: &[Var],
    mut visit: impl FnMut(usize, usize),
) {
    let strides = strides(net, scope);
    let of = |v: Var| scope.iter().position(|&s| s == v).map_or(0, |i| strides[i]);
    let (domain, inner) = (net.domains[var], of(var));
    let outer: Vec<usize> = rest.iter().map(|&v| of(v)).collect();
    let mut at = vec![0; rest.len()];
    let mut base = 0;
    for run in 0..net.size(rest) {
        for k in 0..domain {
            visit(run * domain + k, base + k * inner);
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

fn strides(net: &Network, scope: &[Var]) -> Vec<usize> {
    let mut strides = vec![1; scope.len()];
    for i in (0..scope.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * net.domains[scope[i + 1]];
    }
    strides
}

impl Elimination {
    /// Assigns the variables in reverse order. A state's estimate is what its choices cost plus the messages of the buckets to
    /// come: exact with exact messages, so that a beam of one suffices then.
    pub(super) fn decode(&self, net: &Network) -> Vec<usize> {
        let sum =
            |tables: &[Table], values: &[usize]| tables.iter().fold(0, |s, t| add(s, net.look(t, values)));
        let exact = self.buckets.iter().all(|b| b.groups.len() <= 1);
        let mut states: Vec<(Cost, Vec<usize>)> = vec![(self.bound, vec![0; net.domains.len()])];
        for bucket in self.buckets.iter().rev() {
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
            next.truncate(if exact { 1 } else { BEAM });
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
pub(super) mod tests {
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

    pub fn random_network(seed: u64) -> Network {
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

    pub fn brute_force(net: &Network) -> Cost {
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
