//! `model.json`: pcc's own graph format.
//!
//! A file holds functions over named tensors, calls among them, parameters with a rule for their values, states, and
//! entries that say what the arguments of their function are. Instructions and functions may come in any order; a value
//! is defined once. Dims of arguments may be labelled `batch` and `seq`. [`schema`] describes every field.
//!
//! ```json
//! {"pcc": 1, "name": "double",
//!  "functions": [{"name": "main", "args": [{"name": "x", "type": "f32[4,8]"}],
//!                 "body": [{"op": "add", "in": ["x", "x"], "out": ["y"]}], "results": ["y"]}],
//!  "entries": [{"name": "forward", "function": "main", "args": [{"input": "x"}], "results": ["y"]}]}
//! ```
//!
//! [`export`] writes any graph-level module so that it loads back equal. A value whose name is `v` and digits is
//! unnamed, and so are the names that export gives to unnamed values.

mod attribute;
mod document;
mod entries;
mod op;
mod order;
mod read;
mod write;

pub(crate) use read::{Info, Loaded, read};
pub use write::export;

use document::Document;

/// The JSON Schema of `model.json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Document).to_value()
}

/// The format's version: the value of the field `pcc`.
const VERSION: u32 = 1;

/// Names that are compared for a message.
const MAX_COMPARED: usize = 20_000;

/// The nearest names to a wrong one, for messages.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let limit = (name.chars().count() / 2).clamp(2, 8);
    let mut known: Vec<&str> = known.into_iter().filter(|k| k.len().abs_diff(name.len()) <= limit).collect();
    known.sort_unstable();
    known.truncate(MAX_COMPARED);
    let mut close: Vec<(usize, &str)> = known.into_iter().map(|k| (distance(name, k), k)).collect();
    close.sort();
    let close: Vec<String> =
        close.iter().filter(|c| c.0 <= limit).take(3).map(|c| format!("`{}`", c.1)).collect();
    match close.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", close.join(", ")),
    }
}

/// Edits between two names (Levenshtein), of their first 64 characters.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}
