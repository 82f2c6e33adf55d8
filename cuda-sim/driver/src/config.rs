//! What the simulated machine is, from the environment.

use crate::mutant::Mutant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Read once, when the library is first called.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `PCC_SIM_DEVICES`, or else 8, or as many as [`want`] was told.
    pub devices: usize,
    /// `PCC_SIM_MEMORY`: bytes of each device, 2 GiB.
    pub memory: u64,
    /// `PCC_SIM_SEED`: of the order in which work that nothing orders is run.
    pub seed: u64,
    /// `PCC_SIM_CAPABILITY`, or what [`want`] was told, or else `9.0`.
    pub capability: (u32, u32),
    /// `PCC_SIM_RACES=off`: accesses that nothing orders are no faults, and show in values alone.
    pub races: bool,
    /// `PCC_SIM_TIMEOUT_MS`: how long nothing may happen while threads wait for a rank that has not come, 60 s. Where every thread that could
    /// bring it is known to wait too, nobody waits that long.
    pub timeout: Duration,
    /// `PCC_SIM_MUTANT`: a call of the host program that is changed on purpose.
    pub mutant: Option<Mutant>,
    /// `PCC_SIM_VERBOSE`: faults are printed to standard error when they happen.
    pub verbose: bool,
}

/// Devices that a machine has at most.
const MOST: u64 = 1024;

/// What the process asks for: devices, and their compute capability as major * 100 + minor.
static WANTED: [AtomicU64; 2] = [AtomicU64::new(8), AtomicU64::new(900)];

/// Lets the machine have at least so many devices, of this compute capability, unless the environment says otherwise: a program that knows what it
/// needs asks before its first call.
pub fn want(devices: u64, (major, minor): (u32, u32)) {
    let [count, capability] = &WANTED;
    count.fetch_max(devices.min(MOST), Ordering::Relaxed);
    capability.store(u64::from(major) * 100 + u64::from(minor), Ordering::Relaxed);
}

fn wanted() -> (u64, (u32, u32)) {
    let [count, capability] = WANTED.each_ref().map(|w| w.load(Ordering::Relaxed));
    (count, ((capability / 100) as u32, (capability % 100) as u32))
}

impl Config {
    /// From a function that looks variables up. What cannot be read as said counts as not set.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| get(name).and_then(|s| s.trim().parse::<u64>().ok());
        let capability = get("PCC_SIM_CAPABILITY").and_then(|s| {
            let (major, minor) = s.trim().split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        Self {
            devices: number("PCC_SIM_DEVICES").map_or(wanted().0, |n| n.min(MOST)) as usize,
            memory: number("PCC_SIM_MEMORY").unwrap_or(2 << 30),
            seed: number("PCC_SIM_SEED").unwrap_or(0),
            capability: capability.unwrap_or(wanted().1),
            races: get("PCC_SIM_RACES").is_none_or(|s| s != "off"),
            timeout: Duration::from_millis(number("PCC_SIM_TIMEOUT_MS").unwrap_or(60_000)),
            mutant: get("PCC_SIM_MUTANT").as_deref().and_then(Mutant::parse),
            verbose: get("PCC_SIM_VERBOSE").is_some_and(|s| !s.is_empty() && s != "0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_nonsense_counts_as_unset() {
        let none = Config::read(|_| None);
        assert_eq!((none.devices, none.memory, none.capability, none.races), (8, 1 << 31, (9, 0), true));
        let some = Config::read(|name| {
            let value = match name {
                "PCC_SIM_DEVICES" => "3",
                "PCC_SIM_MEMORY" => "many",
                "PCC_SIM_CAPABILITY" => "10.3",
                "PCC_SIM_RACES" => "off",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert_eq!((some.devices, some.memory, some.capability, some.races), (3, 1 << 31, (10, 3), false));
    }
}
