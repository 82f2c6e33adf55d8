//! `model.safetensors.index.json`: which shard holds which tensor.

use super::bad_file;
use pcc_ir::Diagnostic;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// An index of a model of 200,000 tensors has 20 MB.
const MAX_INDEX: u64 = 64 << 20;

/// Shards of a checkpoint and the tensors each is said to hold.
pub(super) struct Index {
    /// Tensor name to position in `shards`.
    pub(super) shard_of: BTreeMap<String, usize>,
    /// Paths of the shards, in order of their names.
    pub(super) shards: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Document {
    weight_map: BTreeMap<String, String>,
}

/// Reads an index and finds its shards, which must all lie in the index's folder and exist.
pub(super) fn read_index(path: &Path) -> Result<Index, Diagnostic> {
    let found = fs::metadata(path).map_err(|e| bad_file(path, e.to_string()))?;
    if !found.is_file() {
        return Err(bad_file(path, "it is not a regular file"));
    }
    let length = found.len();
    if length > MAX_INDEX {
        return Err(bad_file(path, format!("an index of {length} bytes is beyond the limit of {MAX_INDEX}")));
    }
    let bytes = fs::read(path).map_err(|e| bad_file(path, e.to_string()))?;
    let document: Document =
        serde_json::from_slice(&bytes).map_err(|e| bad_file(path, format!("it is no index: {e}")))?;
    if document.weight_map.is_empty() {
        return Err(bad_file(path, "its weight_map names no tensor"));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let names: BTreeSet<&String> = document.weight_map.values().collect();
    let mut missing = Vec::new();
    for &name in &names {
        let inside = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
        if !inside || name.is_empty() {
            return Err(bad_file(path, format!("its shard `{name}` is not inside the index's folder")));
        }
        if !folder.join(name).is_file() {
            missing.push(name.as_str());
        }
    }
    if let Some(first) = missing.first() {
        let why =
            format!("{} of its {} shards are missing, the first is `{first}`", missing.len(), names.len());
        return Err(bad_file(path, why).help("complete the download, or name another checkpoint"));
    }
    let position: BTreeMap<&str, usize> = names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    let shards = names.iter().map(|name| folder.join(name)).collect();
    let shard_of = document
        .weight_map
        .iter()
        .filter_map(|(tensor, shard)| Some((tensor.clone(), *position.get(shard.as_str())?)))
        .collect();
    Ok(Index { shard_of, shards })
}
