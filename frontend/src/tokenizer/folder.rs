//! `tokenizer.json` of a Hugging Face folder, with the special tokens its other files name.

use super::Tokenizer;
use pcc_ir::Diagnostic;
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The largest known vocabularies take 35 MB.
const MAX_FILE: u64 = 256 << 20;
/// Ids beyond this are no vocabulary's.
const MAX_ID: u64 = 1 << 24;

pub(super) fn from_folder(folder: &Path) -> Result<Tokenizer, Diagnostic> {
    let path = folder.join("tokenizer.json");
    let bad = |why: String| {
        Diagnostic::input("the tokenizer cannot be used").at(path.display().to_string()).why(why)
    };
    let bytes = read(&path).map_err(bad)?;
    check_ids(&bytes).map_err(bad)?;
    // The crate asserts in places that only a malformed file reaches; such a file is an error like any other.
    let parsed = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(&bytes)));
    let mut inner = match parsed {
        Ok(Ok(inner)) => inner,
        Ok(Err(e)) => return Err(bad(e.to_string())),
        Err(_) => return Err(bad("it is malformed".into())),
    };
    // A prompt that is too long is an error elsewhere, and rows are padded elsewhere.
    inner.with_truncation(None).map_err(|e| bad(e.to_string()))?.with_padding(None);
    let (bos, eos) = special_tokens(folder, &inner)?;
    Ok(Tokenizer { inner, bos, eos, before: None, after: None })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let found = fs::metadata(path).map_err(|e| e.to_string())?;
    if !found.is_file() || found.len() > MAX_FILE {
        return Err(format!("it is not a regular file of at most {MAX_FILE} bytes"));
    }
    fs::read(path).map_err(|e| e.to_string())
}

/// Refuses added tokens with absurd ids before the vocabulary is built around them.
fn check_ids(bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    #[derive(Deserialize)]
    struct Added {
        id: u64,
    }
    let document: Document = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    match document.added_tokens.iter().find(|t| t.id > MAX_ID) {
        Some(token) => Err(format!("an added token has the id {}", token.id)),
        None => Ok(()),
    }
}

/// `bos` and all `eos` tokens that the folder's generation_config, config and tokenizer_config name.
fn special_tokens(
    folder: &Path,
    inner: &tokenizers::Tokenizer,
) -> Result<(Option<u32>, Vec<u32>), Diagnostic> {
    let (mut bos, mut eos) = (None, Vec::new());
    for file in ["generation_config.json", "config.json"] {
        let Some(document) = read_optional(&folder.join(file))? else { continue };
        bos = bos.or_else(|| ids(document.get("bos_token_id")).first().copied());
        eos.extend(ids(document.get("eos_token_id")));
    }
    if let Some(document) = read_optional(&folder.join("tokenizer_config.json"))? {
        let id = |key: &str| {
            let token = document.get(key)?;
            inner.token_to_id(token.as_str().or_else(|| token.get("content")?.as_str())?)
        };
        bos = bos.or_else(|| id("bos_token"));
        eos.extend(id("eos_token"));
    }
    eos.sort_unstable();
    eos.dedup();
    Ok((bos, eos))
}

fn read_optional(path: &Path) -> Result<Option<Value>, Diagnostic> {
    if !path.exists() {
        return Ok(None);
    }
    let bad =
        |why: String| Diagnostic::input("the file cannot be read").at(path.display().to_string()).why(why);
    let bytes = read(path).map_err(bad)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|e| bad(e.to_string()))
}

/// An id, or a list of them.
fn ids(value: Option<&Value>) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(v) => one(v).into_iter().collect(),
        None => Vec::new(),
    }
}
