//! Objects by content, in a folder: `KEY.o`, a digest of the key and the object, followed by the object. Entries are written aside
//! and renamed, so that any number of processes may share the folder, and any of them may be killed at any time; an entry that does not
//! match its digest, or is no file, counts as missing and is replaced.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DIGEST: usize = 32;
/// No object of a kernel is larger, bytes.
const LARGEST: u64 = 64 << 20;
/// What the names of files being written begin with, and how old one is that no living process writes any more.
const ASIDE: &str = ".writing-";
const STALE: Duration = Duration::from_secs(3600);

/// The folder, if there is one that can be used: a cache never makes a build fail.
pub(crate) struct Cache(Option<PathBuf>);

impl Cache {
    pub(crate) fn open(folder: Option<&Path>) -> Self {
        Cache(folder.filter(|f| std::fs::create_dir_all(f).is_ok()).map(Path::to_path_buf))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.0.as_ref()?.join(format!("{key}.o"));
        // Opening a pipe that no one writes to would wait for ever.
        let found = std::fs::metadata(&path).ok()?;
        if !found.is_file() || found.len() > LARGEST {
            return None;
        }
        let mut bytes = std::fs::read(path).ok()?;
        let (digest, object) = bytes.split_at_checked(DIGEST)?;
        if self::digest(key, object)[..] != *digest {
            return None;
        }
        Some(bytes.split_off(DIGEST))
    }

    /// Keeps objects. A full disk or a folder gone only means that the next build generates them again.
    pub(crate) fn put<'a>(&self, objects: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        let Some(folder) = &self.0 else { return };
        let mut objects = objects.into_iter().peekable();
        if objects.peek().is_none() {
            return;
        }
        remove_stale(folder);
        for (key, object) in objects {
            if write(folder, key, object).is_err() {
                return;
            }
        }
    }
}

fn write(folder: &Path, key: &str, object: &[u8]) -> std::io::Result<()> {
    let path = folder.join(format!("{key}.o"));
    let mut file = tempfile::Builder::new().prefix(ASIDE).tempfile_in(folder)?;
    file.write_all(&digest(key, object))?;
    file.write_all(object)?;
    if path.is_dir() {
        // A file cannot be renamed over it, and no directory is an entry.
        std::fs::remove_dir(&path)?;
    }
    file.persist(path)?;
    Ok(())
}

/// An object under another's name does not match.
fn digest(key: &str, object: &[u8]) -> [u8; DIGEST] {
    Sha256::new_with_prefix(key).chain_update([0]).chain_update(object).finalize().into()
}

/// Removes what processes that were killed left half-written.
fn remove_stale(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let aside = entry.file_name().to_string_lossy().starts_with(ASIDE);
        let old = || entry.metadata().and_then(|m| m.modified()).ok()?.elapsed().ok();
        if aside && old().is_some_and(|age| age > STALE) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path()));
        cache.put([("a", &b"object a"[..]), ("b", b"object b")]);
        (folder, cache)
    }

    #[test]
    fn entries_under_other_names_and_other_things_are_missing_and_replaced() {
        let (folder, cache) = cache();
        assert_eq!(cache.get("a").unwrap(), b"object a");
        let path = |name: &str| folder.path().join(name);
        std::fs::copy(path("a.o"), path("b.o")).unwrap();
        assert_eq!(cache.get("b"), None);
        for make in ["mkdir", "mkfifo"] {
            std::fs::remove_file(path("b.o")).unwrap();
            assert!(std::process::Command::new(make).arg(path("b.o")).status().unwrap().success());
            assert_eq!(cache.get("b"), None, "{make}");
            cache.put([("b", &b"object b"[..])]);
            assert_eq!(cache.get("b").unwrap(), b"object b", "{make}");
        }
        for bytes in [&b""[..], b"short", &[7; 40]] {
            std::fs::write(path("a.o"), bytes).unwrap();
            assert_eq!(cache.get("a"), None);
        }
    }

    #[test]
    fn what_killed_processes_left_is_removed_later() {
        let (folder, cache) = cache();
        let (old, new) = (folder.path().join(".writing-old"), folder.path().join(".writing-new"));
        for path in [&old, &new] {
            std::fs::write(path, b"half").unwrap();
        }
        let long_ago = std::time::SystemTime::now() - 2 * STALE;
        std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
        cache.put([("c", &b"object c"[..])]);
        assert!(!old.exists() && new.exists() && cache.get("a").is_some());
    }
}
