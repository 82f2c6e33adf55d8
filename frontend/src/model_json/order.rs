//! A fixed order in which everything comes after what it needs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Orders `0..needs.len()` so that each follows all of `needs[i]`; among those that could come next the smallest, so
/// that a list already in order stays as it is.
///
/// # Errors
/// A cycle: each member needs the one after it, the last needs the first.
pub(super) fn order(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut users = vec![Vec::new(); needs.len()];
    let mut waiting: Vec<usize> = needs.iter().map(Vec::len).collect();
    for (i, list) in needs.iter().enumerate() {
        for &n in list {
            users[n].push(i);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        waiting.iter().enumerate().filter(|(_, w)| **w == 0).map(|(i, _)| Reverse(i)).collect();
    let mut done = Vec::with_capacity(needs.len());
    while let Some(Reverse(i)) = ready.pop() {
        done.push(i);
        for &u in &users[i] {
            waiting[u] -= 1;
            if waiting[u] == 0 {
                ready.push(Reverse(u));
            }
        }
    }
    if done.len() == needs.len() { Ok(done) } else { Err(cycle(needs, &waiting)) }
}

/// A cycle among those that still wait: every one of them needs another of them.
fn cycle(needs: &[Vec<usize>], waiting: &[usize]) -> Vec<usize> {
    let mut position = vec![None; needs.len()];
    let mut path = Vec::new();
    let mut at = waiting.iter().position(|&w| w > 0);
    while let Some(i) = at {
        if let Some(start) = position[i] {
            return path.split_off(start);
        }
        position[i] = Some(path.len());
        path.push(i);
        at = needs[i].iter().copied().find(|&n| waiting[n] > 0);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_an_order_that_holds_and_repairs_one_that_does_not() {
        assert_eq!(order(&[vec![], vec![0], vec![0, 1]]), Ok(vec![0, 1, 2]));
        assert_eq!(order(&[vec![2], vec![], vec![1, 1]]), Ok(vec![1, 2, 0]));
    }

    #[test]
    fn names_the_members_of_a_cycle_only() {
        let cycle = order(&[vec![3], vec![2], vec![1], vec![1], vec![]]).unwrap_err();
        assert_eq!(cycle, [1, 2]);
        assert_eq!(order(&[vec![0]]), Err(vec![0]));
    }
}
