//! Which work is run when: as late as may be, and in an order that changes with the seed.
//!
//! Work is run by threads that wait for some, and now and then by one that asks for more. Of work that nothing orders, any may be run first:
//! each wait draws anew which lanes it prefers, and whether it runs only what it must.

use crate::clock::Lane;
use crate::state::{Random, Turn};
use crate::work::{Node, Ticket};
use std::collections::BTreeSet;
use std::time::Duration;

/// How one wait chooses.
struct Preference {
    seed: u64,
    /// Only what the wait needs, while there is such.
    lazy: bool,
}

impl Preference {
    fn draw(random: &mut Random) -> Self {
        Self { seed: random.next(), lazy: random.one_in(2) }
    }

    /// The node to run: of the lane that this preference likes best. Lanes in place of nodes, so that one stream runs far ahead of another.
    fn choose<'a>(
        &self,
        ready: impl Iterator<Item = (u64, &'a Node)>,
        needed: &BTreeSet<u64>,
    ) -> Option<u64> {
        let liking = |Lane(lane): Lane| Random::new(self.seed ^ u64::from(lane)).next();
        let key = |id: u64, node: &Node| (self.lazy && needed.contains(&id), liking(node.lane));
        ready.max_by_key(|&(id, node)| (key(id, node), u64::MAX - id)).map(|(id, _)| id)
    }
}

impl Turn {
    /// Waits until work is done, running what it takes. The host has then seen all that the work is ordered behind.
    pub fn wait_for(&mut self, ticket: &Ticket, what: &str) {
        let mut preference = Preference::draw(&mut self.random);
        let needed = self.needed(&preference, ticket);
        while !ticket.is_done() {
            if self.random.one_in(16) {
                preference.seed = self.random.next();
            }
            if let Some(id) = preference.choose(self.pending.ready(), &needed) {
                self.perform(id);
                continue;
            }
            self.threads.wait(Some((ticket.clone(), what.to_owned())));
            // Another thread may still be running work; if not, only other ranks can help.
            if self.pending.is_running() || !self.comm_end_deadlock() {
                let most = self.config.timeout.min(Duration::from_secs(1)).max(Duration::from_millis(1));
                self.sleep(most);
            }
            self.threads.wait(None);
        }
        self.saw(ticket);
    }

    /// What a wait must run, if its preference asks.
    fn needed(&self, preference: &Preference, ticket: &Ticket) -> BTreeSet<u64> {
        if preference.lazy { self.pending.needed_for(ticket) } else { BTreeSet::new() }
    }

    /// Notes that the host knows that work is done.
    pub fn saw(&mut self, ticket: &Ticket) {
        if let Some(clock) = ticket.clock() {
            self.host.join(clock);
        }
    }

    /// Whether work is done, as a query tells: asking again and again brings it forward.
    pub fn query(&mut self, ticket: &Ticket) -> bool {
        let preference = Preference::draw(&mut self.random);
        let needed = self.needed(&preference, ticket);
        let most = if self.random.one_in(4) { u64::MAX } else { 1 + self.random.next() % 4 };
        for _ in 0..most {
            if ticket.is_done() {
                break;
            }
            match preference.choose(self.pending.ready(), &needed) {
                Some(id) => self.perform(id),
                None if !self.pending.is_running() && self.progress.elapsed() >= self.config.timeout => {
                    self.comm_end_deadlock();
                }
                None => break,
            }
        }
        if ticket.is_done() {
            self.saw(ticket);
        }
        ticket.is_done()
    }

    /// Now and then runs some work that nobody waits for yet.
    pub fn run_some(&mut self) {
        if !self.random.one_in(8) {
            return;
        }
        let preference = Preference::draw(&mut self.random);
        let most = if self.random.one_in(8) { usize::MAX } else { 1 };
        for _ in 0..most {
            let Some(id) = preference.choose(self.pending.ready(), &BTreeSet::new()) else { return };
            self.perform(id);
        }
    }
}
