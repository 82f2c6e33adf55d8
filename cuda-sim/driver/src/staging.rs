//! Page-locked memory while copies from or to it wait: what the host does with it meanwhile is made to show.
//!
//! Between the call that asks for a copy and its end, the source may not change and the target has no value that means anything. So the
//! source's digest is taken at the call and looked at again when the copy runs, and the target is filled with garbage at the call. Neither is
//! done where other work that waits uses the same memory, since it may come first.

use crate::host;
use crate::state::Sim;
use crate::work::{Source, Work};
use std::hash::Hasher;

/// What a target holds until its copy has run.
const GARBAGE: u8 = 0xa5;

/// A number that other bytes hardly have.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

impl Sim {
    /// Work as it is put into a queue now.
    pub fn seal(&self, work: Work) -> Work {
        if !self.config.races {
            return work;
        }
        match work {
            Work::HostToDevice { dst, src: Source::Pinned { addr, .. }, len }
                if !self.uses(addr, len, true) =>
            {
                let digest = Some(digest(&host::read(addr, len)));
                Work::HostToDevice { dst, src: Source::Pinned { addr, digest }, len }
            }
            Work::DeviceToHost { dst, len, .. } if self.pinned_at(dst).is_some() => {
                if !self.uses(dst, len, false) {
                    host::fill(dst, GARBAGE, len);
                }
                work
            }
            other => other,
        }
    }

    /// Whether work that waits uses memory of the host, or writes it; functions of the host may do anything.
    fn uses(&self, addr: u64, len: u64, writes: bool) -> bool {
        self.pending.iter().any(|(_, node)| {
            let kind = !writes || matches!(node.work, Work::DeviceToHost { .. });
            let meets = node.work.host_range().is_some_and(|(at, n)| at < addr + len && addr < at + n);
            kind && meets || matches!(node.work, Work::HostCall { .. })
        })
    }
}
