//! Union-find with path halving; the root of a class is its lowest member, so classes are numbered the same everywhere.

/// Disjoint sets over `0..n`.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    parent: Vec<usize>,
}

impl Classes {
    /// Adds `count` singletons and returns the first of them.
    pub fn extend(&mut self, count: usize) -> usize {
        let first = self.parent.len();
        self.parent.extend(first..first + count);
        first
    }

    /// The representative of the class of `i`.
    pub fn find(&mut self, mut i: usize) -> usize {
        while self.parent[i] != i {
            self.parent[i] = self.parent[self.parent[i]];
            i = self.parent[i];
        }
        i
    }

    pub fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a.max(b)] = a.min(b);
    }
}
