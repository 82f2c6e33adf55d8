//! Ctrl-C and termination: half-written outputs are removed and the exit code is 128 + the signal's number.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Starts the thread that waits for signals. Without it (no threads left) signals keep their default effect.
pub fn install() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end: nothing new is begun, and what fails for want of its folder does not end the process first.
            let paths = unfinished();
            remove_all(&paths);
            std::process::exit(128 + signal);
        }
    });
}

fn unfinished() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(|e| e.into_inner())
}

/// How often, and how long apart, to look again: the rest of the process still runs and may create a file in a folder while it
/// is being removed.
const ROUNDS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

fn remove_all(paths: &[PathBuf]) {
    for _ in 0..ROUNDS {
        paths.iter().for_each(|path| remove(path));
        std::thread::sleep(PAUSE);
        if !paths.iter().any(|path| path.exists()) {
            return;
        }
    }
}

fn remove(path: &Path) {
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

/// A path that is removed on a signal, and when this goes out of scope.
pub struct Unfinished(PathBuf);

impl Unfinished {
    pub fn new(path: PathBuf) -> Self {
        unfinished().push(path.clone());
        Self(path)
    }

    /// Creates a folder. A signal comes before that or finds it: never in between, when it would be left behind.
    pub fn folder(path: PathBuf) -> std::io::Result<Self> {
        let mut known = unfinished();
        std::fs::create_dir(&path)?;
        known.push(path.clone());
        Ok(Self(path))
    }

    /// Creates a folder for scratch files, named after what it is for and this process.
    pub fn scratch(what: &str) -> std::io::Result<Self> {
        Self::folder(std::env::temp_dir().join(format!("pcc-{what}-{}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().retain(|p| *p != self.0);
        if self.0.exists() {
            remove(&self.0);
        }
    }
}
