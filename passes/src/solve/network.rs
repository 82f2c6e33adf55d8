//! A cost network: variables with finite domains and tables of costs over a few of them, whose sum is to be least.

/// A cost: whole picoseconds, so that sums do not depend on their order. [`INFINITE`] marks what is impossible.
pub type Cost = u64;

/// Larger than any sum of finite costs; half the range, so that two of them still add.
pub const INFINITE: Cost = u64::MAX / 4;

/// Index of a variable.
pub type Var = usize;

/// Costs over the variables of `scope` (ascending, distinct), row-major: the last variable counts fastest.
#[derive(Clone, Debug)]
pub struct Table {
    pub scope: Vec<Var>,
    pub costs: Vec<Cost>,
}

/// The variables' domain sizes and the tables.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub domains: Vec<usize>,
    pub tables: Vec<Table>,
}

/// A choice for every variable, what it costs, and a proven lower bound of what any choice costs: equal when the choice
/// is optimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub values: Vec<usize>,
    pub cost: Cost,
    pub bound: Cost,
}

impl Network {
    pub fn var(&mut self, domain: usize) -> Var {
        self.domains.push(domain.max(1));
        self.domains.len() - 1
    }

    /// Adds `cost(values)` for every assignment of `scope`, whose variables may come in any order; repeated variables are
    /// passed with equal values.
    pub fn add(&mut self, scope: &[Var], mut cost: impl FnMut(&[usize]) -> Cost) {
        let mut sorted = scope.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let place: Vec<usize> =
            scope.iter().map(|v| sorted.iter().position(|s| s == v).unwrap_or_default()).collect();
        let mut costs = Vec::with_capacity(self.size(&sorted));
        let mut at = vec![0; sorted.len()];
        let mut values = vec![0; scope.len()];
        loop {
            for (value, &p) in values.iter_mut().zip(&place) {
                *value = at[p];
            }
            costs.push(cost(&values).min(INFINITE));
            if !self.next(&sorted, &mut at) {
                break;
            }
        }
        self.tables.push(Table { scope: sorted, costs });
    }

    /// Number of assignments of `scope`, saturating.
    pub fn size(&self, scope: &[Var]) -> usize {
        scope.iter().fold(1usize, |n, &v| n.saturating_mul(self.domains[v]))
    }

    /// The sum of all tables under a full assignment.
    pub fn cost(&self, values: &[usize]) -> Cost {
        self.tables.iter().fold(0, |sum, t| add(sum, self.look(t, values)))
    }

    /// A table's cost under a full assignment.
    pub fn look(&self, table: &Table, values: &[usize]) -> Cost {
        table.costs[table.scope.iter().fold(0, |i, &v| i * self.domains[v] + values[v])]
    }

    /// Advances an odometer over `scope`; false after the last assignment.
    pub fn next(&self, scope: &[Var], at: &mut [usize]) -> bool {
        for i in (0..scope.len()).rev() {
            at[i] += 1;
            if at[i] < self.domains[scope[i]] {
                return true;
            }
            at[i] = 0;
        }
        false
    }
}

/// Adds costs; what is impossible stays so.
pub fn add(a: Cost, b: Cost) -> Cost {
    (a + b).min(INFINITE)
}
