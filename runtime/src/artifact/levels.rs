//! `levels.json`: the graph, sharded and local modules a program was lowered from, so that it can be checked again.

use super::{digest_of, malformed, read};
use pcc_ir::program::Program;
use pcc_ir::{Diagnostic, Module, verifier};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a program was lowered from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Levels {
    /// Outlined: entries are chains of calls.
    pub graph: Module,
    pub sharded: Module,
    pub local: Module,
}

/// Reads the file, whose digest the program names.
pub(super) fn load(path: &Path, program: &Program) -> Result<Levels, Diagnostic> {
    let refuse = |what: &str, why: String| {
        Err(Diagnostic::input(what).at(path.display().to_string()).why(why).help("compile the model again"))
    };
    if program.levels_digest.is_empty() {
        return refuse(
            "the artifact cannot be checked",
            "it keeps nothing of what it was compiled from".to_owned(),
        );
    }
    let bytes = read(path)?;
    let digest = digest_of(&bytes);
    if digest != program.levels_digest {
        let why = format!("its SHA-256 is {digest}, program.json says {}", program.levels_digest);
        return refuse("the artifact's levels are not those it was compiled from", why);
    }
    let levels: Levels = serde_json::from_slice(&bytes).map_err(|e| malformed(path, &e))?;
    for (name, module) in [("graph", &levels.graph), ("sharded", &levels.sharded), ("local", &levels.local)] {
        verifier::verify(module).map_err(|d| {
            let place =
                format!("{} ({name}): {}", path.display(), d.place.as_deref().unwrap_or("the module"));
            d.at(place)
        })?;
    }
    Ok(levels)
}
