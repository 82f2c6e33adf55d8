//! What ranks share: whether the run has to end, why, and how long to wait for one another.

use pcc_ir::Diagnostic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks, also after a panic elsewhere: the run then ends with an error.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a run, for all ranks.
pub(super) struct Control {
    cancel: Arc<AtomicBool>,
    stop: AtomicBool,
    /// Why, and whether that is only what another rank's failure brought about.
    failure: Mutex<Option<(Diagnostic, bool)>>,
    /// How long a rank waits for the others before it gives up.
    patience: Duration,
    /// When anything moved last, on any rank: milliseconds since `start`.
    moved: AtomicU64,
    start: Instant,
}

/// Why a rank stopped: another failed, or the run was cancelled. Its reason is kept in [`Control`].
pub(super) struct Stopped;

/// What a look at something awaited shows.
pub(super) enum Look<T> {
    Found(T),
    /// Not yet, but there was progress.
    Moved,
    Still,
}

impl<T> From<Option<T>> for Look<T> {
    fn from(found: Option<T>) -> Self {
        found.map_or(Look::Still, Look::Found)
    }
}

impl Control {
    pub(super) fn new(cancel: Arc<AtomicBool>, patience: Duration) -> Self {
        let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { cancel, stop, failure: Mutex::new(None), patience, moved, start: Instant::now() }
    }

    /// Notes that a rank goes on: whoever waits for it does not wait in vain.
    pub(super) fn note_progress(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved.fetch_max(now, Ordering::Relaxed);
    }

    /// Whether nothing has moved on any rank for longer than ranks wait, of which one has waited since `since`.
    fn is_vain(&self, since: Instant) -> bool {
        let moved = self.start + Duration::from_millis(self.moved.load(Ordering::Relaxed));
        since.max(moved).elapsed() > self.patience
    }

    /// Ends the run; the first reason counts.
    pub(super) fn fail(&self, diagnostic: Diagnostic) -> Stopped {
        self.fail_by(diagnostic, false)
    }

    /// As [`Control::fail`]; an echo, which tells of another rank's failure, gives way to what that rank says itself.
    pub(super) fn fail_by(&self, diagnostic: Diagnostic, echo: bool) -> Stopped {
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|(_, known)| *known && !echo) {
            *failure = Some((diagnostic, echo));
        }
        self.stop.store(true, Ordering::Release);
        Stopped
    }

    /// Whether to go on.
    pub(super) fn go_on(&self) -> Result<(), Stopped> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(self.fail(Diagnostic::run("the run was cancelled")));
        }
        if self.stop.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    /// Why the run ended, if it failed.
    pub(super) fn failure(&self) -> Option<Diagnostic> {
        lock(&self.failure).as_ref().map(|f| f.0.clone())
    }

    /// Waits until `look` finds what is waited for, looking again and again: at once, then after pauses that grow to a fifth of a millisecond. Only
    /// time in which nothing moves counts as waiting.
    pub(super) fn wait_for<T>(
        &self,
        what: &dyn Fn() -> Diagnostic,
        mut look: impl FnMut() -> Result<Look<T>, Stopped>,
    ) -> Result<T, Stopped> {
        let (since, mut turn) = (Instant::now(), 0u32);
        loop {
            self.go_on()?;
            match look()? {
                Look::Found(found) => return Ok(found),
                Look::Moved => self.note_progress(),
                Look::Still if self.is_vain(since) => {
                    let waited = format!("nothing has moved for {:.0} s", self.patience.as_secs_f64());
                    return Err(self.fail(what().why(waited)));
                }
                Look::Still => {}
            }
            match turn {
                0..64 => std::hint::spin_loop(),
                64..256 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(u64::from(turn - 255).min(200))),
            }
            turn = turn.saturating_add(1);
        }
    }
}

/// Where the members of a group, all in this process, show each other what they have.
pub(super) struct Board<T> {
    members: usize,
    state: Mutex<Shown<T>>,
    changed: Condvar,
}

struct Shown<T> {
    /// What members show in this round.
    offers: Vec<Option<T>>,
    /// What all showed in the round before, and how many have still to take it.
    round: Option<Arc<Vec<T>>>,
    left: usize,
}

impl<T> Board<T> {
    pub(super) fn new(members: usize) -> Self {
        let state = Shown { offers: (0..members).map(|_| None).collect(), round: None, left: 0 };
        Self { members, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Shows `offer` as member `own`, and waits for what all others show.
    pub(super) fn exchange(
        &self,
        own: usize,
        offer: T,
        control: &Control,
        what: &dyn Fn() -> Diagnostic,
    ) -> Result<Arc<Vec<T>>, Stopped> {
        let start = Instant::now();
        let mut offer = Some(offer);
        let mut shown = false;
        let mut state = lock(&self.state);
        loop {
            if !shown && state.left == 0 && state.offers.get(own).is_some_and(Option::is_none) {
                state.offers[own] = offer.take();
                shown = true;
                if state.offers.iter().all(Option::is_some) {
                    let all = state.offers.iter_mut().filter_map(Option::take).collect();
                    state.round = Some(Arc::new(all));
                    state.left = self.members;
                    self.changed.notify_all();
                }
            }
            if shown
                && state.left > 0
                && state.offers.get(own).is_some_and(Option::is_none)
                && let Some(round) = state.round.clone()
            {
                state.left -= 1;
                if state.left == 0 {
                    state.round = None;
                    self.changed.notify_all();
                }
                return Ok(round);
            }
            // Woken by the others, or now and then to see whether the run has ended.
            let waited = self.changed.wait_timeout(state, Duration::from_millis(20));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            control.go_on()?;
            if control.is_vain(start) {
                return Err(control.fail(what()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(patience: Duration) -> Control {
        Control::new(Arc::new(AtomicBool::new(false)), patience)
    }

    #[test]
    fn the_rank_that_failed_is_heard_before_those_that_noticed() {
        let control = control(Duration::from_secs(1));
        control.fail_by(Diagnostic::run("a peer is gone"), true);
        control.fail(Diagnostic::run("out of memory"));
        control.fail(Diagnostic::run("later"));
        control.fail_by(Diagnostic::run("another peer is gone"), true);
        assert_eq!(control.failure().unwrap().what, "out of memory");
    }

    #[test]
    fn rounds_do_not_mix() {
        let (board, control) = (Board::new(3), control(Duration::from_secs(60)));
        std::thread::scope(|scope| {
            for own in 0..3usize {
                let (board, control) = (&board, &control);
                scope.spawn(move || {
                    for round in 0..200 {
                        let late = || Diagnostic::run("late");
                        let all = board.exchange(own, (round, own), control, &late);
                        let all = all.unwrap_or_else(|_| panic!("stopped"));
                        assert_eq!(*all, [(round, 0), (round, 1), (round, 2)]);
                    }
                });
            }
        });
    }

    /// A rank that is slow, but goes on, is waited for.
    #[test]
    fn what_moves_is_no_vain_wait() {
        let control = control(Duration::from_millis(80));
        let started = Instant::now();
        let late = || Diagnostic::run("late");
        let slow = control.wait_for(&late, || {
            std::thread::sleep(Duration::from_millis(2));
            match started.elapsed() {
                passed if passed > Duration::from_millis(300) => Ok(Look::Found(())),
                _ => Ok(Look::Moved),
            }
        });
        assert!(slow.is_ok());
        let still = control.wait_for(&late, || Ok(Look::<()>::Still));
        assert!(still.is_err() && control.failure().unwrap().what == "late");
    }

    #[test]
    fn a_member_that_never_comes_ends_the_others() {
        let (board, control) = (Board::new(2), control(Duration::from_millis(50)));
        assert!(board.exchange(0, (), &control, &|| Diagnostic::run("member 1 is late")).is_err());
        assert_eq!(control.failure().unwrap().what, "member 1 is late");
    }
}
