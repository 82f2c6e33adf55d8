//! Hands the crate a fingerprint of the sources that decide what code is generated: cached objects of other sources are stale.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    let mut files = vec![];
    list(Path::new("src"), &mut files)?;
    // The meaning of a kernel and how GPUs call it; its structure is hashed with every kernel.
    files.extend(["../ir/src/kernel.rs", "../ir/src/kernel_check.rs"].map(PathBuf::from));
    list(Path::new("../ir/src/gpu"), &mut files)?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
        std::fs::read(file)?.hash(&mut hasher);
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-env=PCC_CODEGEN_SOURCES={:016x}", hasher.finish());
    Ok(())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { list(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
