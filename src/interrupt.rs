//! Ctrl-C and termination: half-written outputs are removed and the exit code is 128 + the signal's number. What a process leaves
//! that is killed outright, whoever next writes that output removes: its lock has gone with it.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io;
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

/// What is behind the name of a path that is about to be removed.
pub const GONE: &str = ".gone";

fn remove_all(paths: &[PathBuf]) {
    let gone = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(GONE);
        PathBuf::from(name)
    };
    for _ in 0..ROUNDS {
        for path in paths {
            // Out of the way first, in one step: what is half removed must not be given the output's name meanwhile.
            if std::fs::rename(path, gone(path)).is_err() {
                remove(path);
            }
            remove(&gone(path));
        }
        std::thread::sleep(PAUSE);
        if !paths.iter().any(|path| path.exists() || gone(path).exists()) {
            return;
        }
    }
}

fn remove(path: &Path) {
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

/// A path that is removed on a signal, and when this goes out of scope. While this lives it is locked, which says that its process does.
pub struct Unfinished {
    path: PathBuf,
    /// `None` where the file system knows no locks.
    lock: Option<File>,
}

impl Unfinished {
    /// Creates a file. A signal comes before that or finds it: never in between, when it would be left behind.
    pub fn file(path: PathBuf) -> io::Result<Self> {
        Self::create(path, |path| File::create(path).map(drop))
    }

    /// Creates a folder.
    pub fn folder(path: PathBuf) -> io::Result<Self> {
        Self::create(path, |path| std::fs::create_dir(path))
    }

    fn create(path: PathBuf, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<Self> {
        let mut known = unfinished();
        make(&path)?;
        known.push(path.clone());
        let lock = File::open(&path).ok().filter(|f| f.try_lock().is_ok());
        Ok(Self { path, lock })
    }

    /// Creates a folder for scratch files, named after what it is for and this process.
    pub fn scratch(what: &str) -> io::Result<Self> {
        Self::folder(std::env::temp_dir().join(format!("pcc-{what}-{}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().retain(|p| *p != self.path);
        if self.path.exists() {
            remove(&self.path);
        }
        drop(self.lock.take());
    }
}

/// How old a path is at least that nobody is about to lock.
const SETTLED: Duration = Duration::from_secs(10);

/// Removes those of the paths whose process was killed before it could.
pub fn remove_abandoned(paths: impl Iterator<Item = PathBuf>) {
    for path in paths {
        let Ok(file) = File::open(&path) else { continue };
        let changed = file.metadata().and_then(|m| m.modified()).ok();
        let settled = changed.and_then(|t| t.elapsed().ok()).is_some_and(|age| age > SETTLED);
        if settled && file.try_lock().is_ok() {
            remove(&path);
        }
    }
}
