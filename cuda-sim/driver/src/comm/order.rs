//! Finds communicators that are used in different orders on different devices.
//!
//! Such a program ends by luck alone: an operation occupies its device until its peers come, and if it leaves no room for the one they are in, all wait
//! for good. (NCCL user guide, "Using multiple NCCL communicators concurrently": operations are to be submitted in the same order across ranks.)

use super::{CommWork, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// An operation of all who take part: of a communicator, between two ranks or all, and which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    group: u64,
    ends: Option<(u32, u32)>,
    number: u64,
}

/// What a rank counts: a communicator, the rank, and the pair it is an end of.
type Counter = (u64, u32, Option<(u32, u32)>);

/// What devices have posted, as far as it could become part of a circle.
#[derive(Debug, Default)]
pub struct Order {
    /// Operations of each device in the order in which they were posted. Those of one group call have the same place.
    posted: BTreeMap<u32, Vec<(u64, Key)>>,
    /// How many ranks an operation still waits for, and its words.
    open: BTreeMap<Key, (u32, String)>,
    /// The next number of each.
    next: BTreeMap<Counter, u64>,
    places: u64,
}

impl Order {
    /// Notes that a device posted the operations of a group call. The error names operations that two devices have in different orders.
    pub fn post(&mut self, device: u32, size: u32, work: &CommWork) -> Result<(), String> {
        self.places += 1;
        for op in &work.ops {
            let ends = match op.kind {
                Kind::Send => Some((work.rank, op.peer)),
                Kind::Recv => Some((op.peer, work.rank)),
                _ => None,
            };
            // The two ends of a pair count for themselves, also where a rank sends to itself.
            let counter = if op.kind == Kind::Recv { work.rank + size } else { work.rank };
            let number = self.next.entry((work.group, counter, ends)).or_insert(0);
            let key = Key { group: work.group, ends, number: *number };
            *number += 1;
            let ranks = if ends.is_some() { 2 } else { size };
            self.open.entry(key).or_insert_with(|| (ranks, op.to_string())).0 -= 1;
            self.posted.entry(device).or_default().push((self.places, key));
        }
        let new: Vec<Key> =
            self.posted[&device].iter().filter(|(p, _)| *p == self.places).map(|(_, k)| *k).collect();
        let circle = new.iter().find_map(|&key| self.circle(key, device));
        self.forget_done();
        circle.map_or(Ok(()), Err)
    }

    /// Forgets a communicator that has ended.
    pub fn forget(&mut self, group: u64) {
        self.open.retain(|key, _| key.group != group);
        self.next.retain(|(of, ..), _| *of != group);
        for list in self.posted.values_mut() {
            list.retain(|(_, key)| key.group != group);
        }
    }

    /// Whether something that the device posted before `key` comes after it by what other devices posted.
    fn circle(&self, key: Key, device: u32) -> Option<String> {
        let list = self.posted.get(&device)?;
        let before: BTreeSet<Key> =
            list.iter().filter(|(place, _)| *place < self.places).map(|(_, key)| *key).collect();
        let mut seen = BTreeSet::from([key]);
        let mut next = vec![key];
        while let Some(at) = next.pop() {
            for (other, list) in &self.posted {
                let Some(&(place, _)) = list.iter().find(|(_, k)| *k == at) else { continue };
                let after = list.partition_point(|(p, _)| *p <= place);
                // What comes right after; the rest follows from there.
                let Some(&(near, _)) = list.get(after) else { continue };
                for &(_, follower) in list[after..].iter().take_while(|(p, _)| *p == near) {
                    // Within one communicator it is a plain deadlock, which is found when it comes.
                    if before.contains(&follower) && follower.group != key.group {
                        return Some(self.describe(device, follower, key, *other, at));
                    }
                    if seen.insert(follower) {
                        next.push(follower);
                    }
                }
            }
        }
        None
    }

    fn describe(&self, device: u32, first: Key, second: Key, other: u32, by: Key) -> String {
        let word = |key: Key| {
            let words = self.open.get(&key).map_or("an operation", |(_, words)| words.as_str());
            format!("{words} (number {} of communicator {})", key.number, key.group)
        };
        let through =
            if by == second { String::new() } else { format!(", which comes after {}", word(second)) };
        format!(
            "communicators are used in different orders: device {device} posts {} before {}, device {other} posts it after {}{through}; NCCL may wait for ever",
            word(first),
            word(second),
            word(by)
        )
    }

    /// Drops operations that all ranks have posted and that nothing is before: they can be in no circle any more.
    fn forget_done(&mut self) {
        loop {
            let first = |list: &Vec<(u64, Key)>| list.first().map(|(place, _)| *place);
            let leading = |key: &Key| {
                self.posted.values().all(|list| {
                    let at = list.iter().find(|(_, k)| k == key);
                    at.is_none_or(|(place, _)| Some(*place) == first(list))
                })
            };
            let fronts = self.posted.values().filter_map(|list| list.first().map(|(_, key)| *key));
            let done =
                fronts.filter(|key| self.open.get(key).is_none_or(|(left, _)| *left == 0)).find(leading);
            let Some(key) = done else { return };
            self.open.remove(&key);
            for list in self.posted.values_mut() {
                list.retain(|(_, k)| *k != key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::comm::Op;

    fn work(group: u64, rank: u32, ops: &[(u32, i32)]) -> CommWork {
        let op = |&(kind, peer): &(u32, i32)| {
            let raw = abi::Op {
                comm: 0,
                kind,
                dtype: 7,
                send: 0,
                recv: 0,
                count: 1,
                reduction: 0,
                peer,
                stream: 0,
            };
            Op::parse(&raw, 2).unwrap()
        };
        CommWork { group, rank, ops: ops.iter().map(op).collect() }
    }

    const SUM: (u32, i32) = (abi::KIND_ALL_REDUCE, 0);

    #[test]
    fn one_order_on_all_devices_is_fine_and_forgotten() {
        let mut order = Order::default();
        for round in 0..100 {
            for device in 0..2 {
                for group in [round % 2, 1 - round % 2] {
                    order.post(device, 2, &work(group, device, &[SUM])).unwrap();
                }
            }
        }
        assert!(order.open.is_empty() && order.posted.values().all(Vec::is_empty));
    }

    #[test]
    fn two_orders_are_found() {
        let mut order = Order::default();
        order.post(0, 2, &work(1, 0, &[SUM])).unwrap();
        order.post(0, 2, &work(2, 0, &[SUM])).unwrap();
        order.post(1, 2, &work(2, 1, &[SUM])).unwrap();
        let why = order.post(1, 2, &work(1, 1, &[SUM])).unwrap_err();
        assert!(
            why.contains("device 1 posts AllReduce of 1 F32 (number 0 of communicator 2) before"),
            "{why}"
        );
    }

    #[test]
    fn an_operation_that_is_complete_can_still_be_in_a_circle() {
        // Four devices, each in two communicators of two ranks: 0: A Z, 1: Z X, 2: X Y, 3: Y A.
        let mut order = Order::default();
        let [a, z, x, y] = [1, 2, 3, 4];
        order.post(0, 2, &work(a, 0, &[SUM])).unwrap();
        order.post(0, 2, &work(z, 0, &[SUM])).unwrap();
        order.post(1, 2, &work(z, 1, &[SUM])).unwrap();
        order.post(1, 2, &work(x, 0, &[SUM])).unwrap();
        order.post(2, 2, &work(x, 1, &[SUM])).unwrap();
        order.post(2, 2, &work(y, 0, &[SUM])).unwrap();
        order.post(3, 2, &work(y, 1, &[SUM])).unwrap();
        assert!(order.post(3, 2, &work(a, 1, &[SUM])).is_err());
    }

    #[test]
    fn both_directions_in_one_group_call_are_fine_and_apart_are_not() {
        let mut order = Order::default();
        for device in 0..2 {
            let other = 1 - device as i32;
            let both = [(abi::KIND_SEND, other), (abi::KIND_RECV, other)];
            order.post(device, 2, &work(1, device, &both)).unwrap();
        }
        assert!(order.open.is_empty());
        // A pair in another communicator, in between.
        order.post(0, 2, &work(1, 0, &[(abi::KIND_SEND, 1)])).unwrap();
        order.post(0, 2, &work(2, 0, &[(abi::KIND_RECV, 1)])).unwrap();
        order.post(1, 2, &work(2, 1, &[(abi::KIND_SEND, 0)])).unwrap();
        assert!(order.post(1, 2, &work(1, 1, &[(abi::KIND_RECV, 0)])).is_err());
    }
}
