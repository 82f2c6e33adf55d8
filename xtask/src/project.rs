//! Where things are: the workspace root, cargo's target folder, the cache.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::step::{Call, call};

/// The checkout that this xtask was built from.
pub(crate) struct Project {
    pub(crate) root: PathBuf,
}

impl Project {
    pub(crate) fn find() -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.parent().context("xtask lies in no workspace")?;
        Ok(Project { root: root.to_owned() })
    }

    /// A cargo command line run from the root.
    pub(crate) fn cargo<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Call {
        // cargo sets CARGO for what it runs, and that is the same cargo that the user called.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        call(cargo).args(args).dir(&self.root)
    }

    /// Where cargo puts what it builds; asked of cargo, which knows about CARGO_TARGET_DIR and configuration files.
    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        let text = self.cargo(["metadata", "--format-version", "1", "--no-deps", "--offline"]).read()?;
        let metadata: serde_json::Value =
            serde_json::from_str(&text).context("cargo metadata wrote no JSON")?;
        let dir =
            metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?;
        Ok(PathBuf::from(dir))
    }

    /// Downloads and the demo's artifacts: `$PCC_CACHE`, or `.cache/pcc` in the checkout.
    pub(crate) fn cache_dir(&self) -> Result<PathBuf> {
        let dir = match std::env::var_os("PCC_CACHE") {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir),
            _ => self.root.join(".cache/pcc"),
        };
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        dir.canonicalize().with_context(|| format!("cannot resolve {}", dir.display()))
    }
}
