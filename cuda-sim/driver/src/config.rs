//! What the simulated machine is, from the environment.

use crate::mutant::Mutant;
use pcc_cuda_sim::exec::BUDGET;
use std::ops::RangeInclusive;
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
    /// `PCC_SIM_BUDGET`: instructions of a warp of one block, after which it counts as endless.
    pub budget: u64,
    /// What a variable says that it cannot mean: nothing runs then.
    pub nonsense: Option<String>,
}

/// Devices that a machine has at most.
const MOST: u64 = 1024;
/// Bytes of a device, and milliseconds of patience, at most: far from overflow.
const MOST_MEMORY: u64 = 1 << 40;
const MOST_TIMEOUT: u64 = 1 << 32;

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
    /// From a function that looks variables up. What a variable cannot mean is noted in [`Self::nonsense`].
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let mut nonsense = None;
        let mut number = |name: &str, range: RangeInclusive<u64>, default: u64| {
            let takes = format!("a number from {} to {}", range.start(), range.end());
            let parse = |s: &str| s.parse().ok().filter(|n| range.contains(n));
            variable(&get, name, &takes, parse, &mut nonsense).unwrap_or(default)
        };
        let devices = number("PCC_SIM_DEVICES", 0..=MOST, wanted().0) as usize;
        let memory = number("PCC_SIM_MEMORY", 0..=MOST_MEMORY, 2 << 30);
        let seed = number("PCC_SIM_SEED", 0..=u64::MAX, 0);
        let timeout = number("PCC_SIM_TIMEOUT_MS", 1..=MOST_TIMEOUT, 60_000);
        let budget = number("PCC_SIM_BUDGET", 1..=u64::MAX, BUDGET);
        let version = |s: &str| {
            let (major, minor) = s.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let capability = variable(&get, "PCC_SIM_CAPABILITY", "two numbers, as 9.0", version, &mut nonsense);
        let switch = |s: &str| match s {
            "on" | "1" => Some(true),
            "off" | "0" => Some(false),
            _ => None,
        };
        let races = variable(&get, "PCC_SIM_RACES", "on or off", switch, &mut nonsense);
        let verbose = variable(&get, "PCC_SIM_VERBOSE", "on or off", switch, &mut nonsense);
        let takes = "KIND:DEVICE:N, as skip-wait:0:2";
        let mutant = variable(&get, "PCC_SIM_MUTANT", takes, Mutant::parse, &mut nonsense);
        Self {
            devices,
            memory,
            seed,
            capability: capability.unwrap_or(wanted().1),
            races: races.unwrap_or(true),
            timeout: Duration::from_millis(timeout),
            budget,
            mutant,
            verbose: verbose.unwrap_or(false),
            nonsense,
        }
    }
}

/// What a variable says; nothing if it is not set, or means nothing, which is then noted.
fn variable<T>(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    takes: &str,
    parse: impl Fn(&str) -> Option<T>,
    nonsense: &mut Option<String>,
) -> Option<T> {
    // Empty is not set.
    let text = get(name).filter(|text| !text.trim().is_empty())?;
    let read = parse(text.trim());
    if read.is_none() {
        let shown: String = text.chars().take(40).collect();
        *nonsense = Some(format!("{name} is `{shown}`, and takes {takes}"));
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &'static str) -> Config {
        Config::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn variables_are_read() {
        let none = Config::read(|_| None);
        assert_eq!((none.devices, none.memory, none.capability, none.races), (8, 1 << 31, (9, 0), true));
        assert_eq!((none.seed, none.mutant, none.verbose, none.nonsense), (0, None, false, None));
        assert_eq!(of("PCC_SIM_DEVICES", " 3 ").devices, 3);
        assert_eq!((of("PCC_SIM_MUTANT", "").nonsense, of("PCC_SIM_DEVICES", " ").devices), (None, 8));
        assert_eq!(of("PCC_SIM_MEMORY", "4096").memory, 4096);
        assert_eq!(of("PCC_SIM_CAPABILITY", "10.3").capability, (10, 3));
        assert_eq!(of("PCC_SIM_TIMEOUT_MS", "1500").timeout, Duration::from_millis(1500));
        assert_eq!(of("PCC_SIM_BUDGET", "77").budget, 77);
        assert!(!of("PCC_SIM_RACES", "off").races && of("PCC_SIM_VERBOSE", "1").verbose);
        assert!(of("PCC_SIM_MUTANT", "count:0:1").mutant.is_some());
    }

    #[test]
    fn nonsense_is_named() {
        for (name, value) in [
            ("PCC_SIM_DEVICES", "many"),
            ("PCC_SIM_DEVICES", "1025"),
            ("PCC_SIM_MEMORY", "2GiB"),
            ("PCC_SIM_SEED", "-1"),
            ("PCC_SIM_TIMEOUT_MS", "0"),
            ("PCC_SIM_BUDGET", "0"),
            ("PCC_SIM_CAPABILITY", "9"),
            ("PCC_SIM_CAPABILITY", "9.x"),
            ("PCC_SIM_RACES", "no"),
            ("PCC_SIM_VERBOSE", "loud"),
            ("PCC_SIM_MUTANT", "skip-wait:0"),
        ] {
            let said = of(name, value).nonsense.expect(value);
            assert!(said.contains(name) && said.contains(&format!("`{value}`")), "{said}");
        }
    }
}
