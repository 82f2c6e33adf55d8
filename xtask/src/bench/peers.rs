//! Other engines, each in a Python environment of its own in the cache.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::step::call;

/// The Python of each engine; none where it could not be installed.
pub(super) struct Peers {
    pub(super) jax: Option<PathBuf>,
    pub(super) torch: Option<PathBuf>,
    pub(super) llama_cpp: Option<PathBuf>,
}

impl Peers {
    /// Installs what is missing. An engine that cannot be installed is left out, and said to be.
    pub(super) fn install(cache: &Path) -> Result<Self> {
        let folder = cache.join("peers");
        std::fs::create_dir_all(&folder)?;
        Ok(Peers {
            jax: environment(&folder.join("jax"), &["jax==0.10.2"]),
            torch: environment(&folder.join("torch"), &["torch==2.9.1", "numpy"]),
            llama_cpp: environment(&folder.join("llama_cpp"), &["llama-cpp-python"]),
        })
    }
}

fn environment(folder: &Path, packages: &[&str]) -> Option<PathBuf> {
    let python = folder.join("bin/python");
    let done = folder.join("installed");
    if done.exists() {
        return Some(python);
    }
    let install = || -> Result<()> {
        call("python3").args(["-m", "venv"]).args([folder]).run()?;
        call(&python).args(["-m", "pip", "install", "--quiet", "--retries", "2"]).args(packages).run()?;
        Ok(std::fs::write(&done, packages.join(" "))?)
    };
    match install() {
        Ok(()) => Some(python),
        Err(error) => {
            println!("{} could not be installed and is left out: {error:#}", packages.join(" "));
            None
        }
    }
}
