//! Objects by content, in a folder: `KEY.o`, a digest followed by the object it is of. Entries are written aside and renamed, so that
//! any number of processes may share the folder; one that does not match its digest counts as missing and is replaced.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};

const DIGEST: usize = 32;

/// The folder, if there is one that can be used: a cache never makes a build fail.
pub(crate) struct Cache(Option<PathBuf>);

impl Cache {
    pub(crate) fn open(folder: Option<&Path>) -> Self {
        Cache(folder.filter(|f| std::fs::create_dir_all(f).is_ok()).map(Path::to_path_buf))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.0.as_ref()?.join(format!("{key}.o"))).ok()?;
        let (digest, object) = bytes.split_at_checked(DIGEST)?;
        if Sha256::digest(object)[..] != *digest {
            return None;
        }
        Some(bytes.split_off(DIGEST))
    }

    pub(crate) fn put(&self, key: &str, object: &[u8]) {
        let Some(folder) = &self.0 else { return };
        // A full disk or a folder gone only means that the next build generates the kernel again.
        let _ = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(&Sha256::digest(object))?;
            file.write_all(object)?;
            file.persist(folder.join(format!("{key}.o")))?;
            Ok(())
        }();
    }
}
