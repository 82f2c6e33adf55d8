//! Closed forms of collectives: N ranks, n bytes of the full buffer, latency alpha, seconds per byte beta.
//! Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005) for the
//! rings; Sanders, Speck, Träff, "Two-tree algorithms" (2009) for the double tree.

use super::Link;

/// Ring all-reduce: `2(N-1) alpha + 2(N-1)/N n beta`.
pub fn all_reduce(ranks: usize, bytes: f64, link: Link) -> f64 {
    2.0 * all_gather(ranks, bytes, link)
}

/// Ring all-gather to `bytes`: `(N-1) alpha + (N-1)/N n beta`.
pub fn all_gather(ranks: usize, bytes: f64, link: Link) -> f64 {
    let n = ranks.max(1) as f64;
    (n - 1.0) * link.alpha + (n - 1.0) / n * bytes * link.beta
}

/// Ring reduce-scatter of `bytes`: as the all-gather.
pub fn reduce_scatter(ranks: usize, bytes: f64, link: Link) -> f64 {
    all_gather(ranks, bytes, link)
}

/// All-to-all of the `bytes` one device holds: as the all-gather.
pub fn all_to_all(ranks: usize, bytes: f64, link: Link) -> f64 {
    all_gather(ranks, bytes, link)
}

/// Double binary tree all-reduce: about `2 ceil(log2 N) alpha + 2 n beta`.
pub fn double_tree_all_reduce(ranks: usize, bytes: f64, link: Link) -> f64 {
    let depth = ranks.max(1).next_power_of_two().trailing_zeros();
    if depth == 0 {
        return 0.0;
    }
    2.0 * f64::from(depth) * link.alpha + 2.0 * bytes * link.beta
}

/// Hierarchical all-reduce over `nodes` nodes of `per_node` devices, bandwidth terms only:
/// `2(g-1)/g n/B1 + 2(k-1)/k (n/g)/B2`.
pub fn hierarchical_all_reduce(per_node: usize, nodes: usize, bytes: f64, intra: Link, inter: Link) -> f64 {
    let (g, k) = (per_node.max(1) as f64, nodes.max(1) as f64);
    2.0 * (g - 1.0) / g * bytes * intra.beta + 2.0 * (k - 1.0) / k * (bytes / g) * inter.beta
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { alpha: 2.0, beta: 0.5 };

    #[test]
    fn closed_forms() {
        // 4 ranks, 80 bytes: (N-1) alpha = 6, (N-1)/N n beta = 30.
        assert_eq!(all_gather(4, 80.0, LINK), 36.0);
        assert_eq!(reduce_scatter(4, 80.0, LINK), 36.0);
        assert_eq!(all_to_all(4, 80.0, LINK), 36.0);
        assert_eq!(all_reduce(4, 80.0, LINK), 72.0);
        // ceil(log2 5) = 3: 2*3*2 + 2*80/2.
        assert_eq!(double_tree_all_reduce(5, 80.0, LINK), 92.0);
        // g=4 at beta 0.5: 2*3/4*80/2 = 60; k=2 at beta 2: 2*1/2*20*2 = 40.
        let inter = Link { alpha: 9.0, beta: 2.0 };
        assert_eq!(hierarchical_all_reduce(4, 2, 80.0, LINK, inter), 100.0);
    }

    #[test]
    fn one_rank_costs_nothing() {
        for f in [all_gather, all_reduce, reduce_scatter, all_to_all, double_tree_all_reduce] {
            assert_eq!(f(1, 80.0, LINK), 0.0);
        }
    }
}
