//! Lower bounds for single values, and a network without the values that cost too much.
//!
//! Groups of a bucket form trees: each passes a message on, which is a table of another group. Messages up the trees add up to a bound of the
//! whole; messages down them ([`Elimination::value_bounds`]) give a bound for every entry of every group's joint table, and so for every value
//! of its variable. What costs more than an assignment that is known is in no better one.

use super::eliminate::{Bucket, Elimination, join, walk};
use super::network::{Cost, INFINITE, Network, Table, Var};

/// A network with some values ruled out.
pub(super) struct Left {
    pub(super) net: Network,
    /// For each variable the values that are left, ascending.
    kept: Vec<Vec<usize>>,
}

impl Left {
    pub(super) fn all(net: &Network) -> Self {
        Self { net: net.clone(), kept: net.domains.iter().map(|&d| (0..d).collect()).collect() }
    }

    /// Values of the whole network for values of this one.
    pub(super) fn restore(&self, values: &[usize]) -> Vec<usize> {
        self.kept.iter().zip(values).map(|(kept, &i)| kept[i]).collect()
    }

    /// Entries of all tables.
    pub(super) fn entries(&self) -> usize {
        self.net.tables.iter().map(|t| t.costs.len()).sum()
    }

    /// Without the values whose bound is above `cost`. A variable of which none would be left keeps all.
    pub(super) fn within(&self, bounds: &[Vec<Cost>], cost: Cost) -> Self {
        let alive = |bounds: &Vec<Cost>| -> Vec<usize> {
            let all = 0..bounds.len();
            let some: Vec<usize> =
                all.clone().filter(|&k| bounds[k] <= cost && bounds[k] < INFINITE).collect();
            if some.is_empty() { all.collect() } else { some }
        };
        let alive: Vec<Vec<usize>> = bounds.iter().map(alive).collect();
        let net = Network { domains: alive.iter().map(Vec::len).collect(), tables: Vec::new() };
        let tables = self.net.tables.iter().map(|t| restricted(&self.net, &net, t, &alive)).collect();
        let kept = self.kept.iter().zip(&alive).map(|(kept, alive)| alive.iter().map(|&k| kept[k]).collect());
        Self { net: Network { tables, ..net }, kept: kept.collect() }
    }
}

/// A table of `old` with the values that are alive, the domains of `new`.
fn restricted(old: &Network, new: &Network, t: &Table, alive: &[Vec<usize>]) -> Table {
    let mut at = vec![0; t.scope.len()];
    let mut costs = Vec::with_capacity(new.size(&t.scope));
    loop {
        let entry = t.scope.iter().zip(&at).fold(0, |i, (&v, &k)| i * old.domains[v] + alive[v][k]);
        costs.push(t.costs[entry]);
        if !new.next(&t.scope, &mut at) {
            return Table { scope: t.scope.clone(), costs };
        }
    }
}

impl Elimination {
    /// For each value of each variable a cost that no assignment with it is below.
    pub(super) fn value_bounds(&self, net: &Network) -> Vec<Vec<Cost>> {
        let mut bounds: Vec<Vec<Cost>> = net.domains.iter().map(|&d| vec![self.bound; d]).collect();
        // What the rest of its tree and the other trees add to a message.
        let mut down: Vec<Vec<Table>> = self.buckets.iter().map(|b| self.roots(b)).collect();
        for i in (0..self.buckets.len()).rev() {
            let bucket = &self.buckets[i];
            for (g, group) in bucket.groups.iter().enumerate() {
                let above = std::mem::replace(&mut down[i][g], Table { scope: vec![], costs: vec![] });
                let tables = group.iter().map(|&k| &bucket.tables[k]).chain([&above]);
                let (rest, joint) = join(net, bucket.var, tables);
                let least = minimised(net, &rest, bucket.var, &[bucket.var], &joint);
                let own = &mut bounds[bucket.var];
                own.iter_mut().zip(least).for_each(|(b, m)| *b = (*b).max(m));
                for &k in group {
                    let Some((from, message)) = bucket.origins[k] else { continue };
                    let t = &bucket.tables[k];
                    let least = minimised(net, &rest, bucket.var, &t.scope, &joint);
                    let without = |(m, t): (Cost, &Cost)| if m >= INFINITE { m } else { m - t };
                    let costs = least.into_iter().zip(&t.costs).map(without).collect();
                    down[from][message] = Table { scope: t.scope.clone(), costs };
                }
            }
        }
        bounds
    }

    /// The start of the messages down: for a message into the constant, all the rest of it.
    fn roots(&self, bucket: &Bucket) -> Vec<Table> {
        let rest = |m: &Table| match m.costs[..] {
            [own] if m.scope.is_empty() && self.bound < INFINITE => self.bound - own,
            _ => 0,
        };
        bucket.messages.iter().map(|m| Table { scope: vec![], costs: vec![rest(m)] }).collect()
    }
}

/// A joint table over `rest` and `var`, minimised to `scope`.
fn minimised(net: &Network, rest: &[Var], var: Var, scope: &[Var], joint: &[Cost]) -> Vec<Cost> {
    let mut least = vec![INFINITE; net.size(scope)];
    walk(net, rest, var, scope, |at, i| least[i] = least[i].min(joint[at]));
    least
}

#[cfg(test)]
mod tests {
    use super::super::eliminate::tests::{brute_force, random_network};
    use super::*;

    /// The least cost of an assignment with this value, by enumeration.
    fn with_value(net: &Network, var: Var, value: usize) -> Cost {
        let mut fixed = net.clone();
        fixed.add(&[var], |x| if x[0] == value { 0 } else { INFINITE });
        brute_force(&fixed)
    }

    #[test]
    fn bounds_hold_and_are_exact_where_the_elimination_is() {
        let mut exact = 0;
        for seed in 0..60 {
            let net = random_network(seed);
            for limit in [6, usize::MAX] {
                let bounds = Elimination::of(&net, limit).value_bounds(&net);
                for (var, list) in bounds.iter().enumerate() {
                    for (value, &bound) in list.iter().enumerate() {
                        let least = with_value(&net, var, value);
                        assert!(
                            bound <= least,
                            "seed {seed}: {bound} of {var} = {value}, which costs {least}"
                        );
                        assert!(limit == 6 || bound == least, "seed {seed}: {bound} is not {least}");
                        exact += usize::from(limit == 6 && bound == least);
                    }
                }
            }
        }
        assert!(exact > 100, "bounds that mean something: {exact}");
    }

    #[test]
    fn what_is_left_has_the_least_cost() {
        let mut gone = 0;
        for seed in 0..200 {
            let net = random_network(seed);
            let done = Elimination::of(&net, 6);
            let cost = net.cost(&done.decode(&net));
            let left = Left::all(&net).within(&done.value_bounds(&net), cost);
            let least = brute_force(&net);
            assert_eq!(brute_force(&left.net), least, "seed {seed}");
            let again = Elimination::of(&left.net, usize::MAX);
            assert_eq!(net.cost(&left.restore(&again.decode(&left.net))), least, "seed {seed}");
            gone += net.domains.iter().sum::<usize>() - left.net.domains.iter().sum::<usize>();
        }
        assert!(gone > 500, "only {gone} values were ruled out");
    }
}
