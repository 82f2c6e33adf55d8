//! `tokenizer.json` of a Hugging Face folder, with the special tokens its other files name.

use super::Tokenizer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pcc_ir::Diagnostic;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::DecoderWrapper;

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
    check_document(&bytes).map_err(bad)?;
    // The crate asserts in places that only a malformed file reaches, some of them when it encodes; such a file is an
    // error like any other, and it shows here.
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)?;
        // A prompt that is too long is an error elsewhere, and rows are padded elsewhere.
        inner.with_truncation(None)?.with_padding(None);
        if inner.get_decoder().is_some_and(strips_ends) {
            return Err("a decoder Strip that cuts at the end of tokens is not supported".into());
        }
        if inner.get_decoder().is_some_and(joins_nothing) {
            return Err("a decoder BPEDecoder behind a decoder CTC is not supported".into());
        }
        inner.encode_fast("a", true)?;
        Ok::<_, tokenizers::Error>(inner)
    }));
    let inner = match parsed {
        Ok(Ok(inner)) => inner,
        Ok(Err(e)) => return Err(bad(e.to_string())),
        Err(_) => return Err(bad("it is malformed".into())),
    };
    let (bos, eos) = special_tokens(folder, &inner)?;
    Ok(Tokenizer { inner, bos, eos, before: None, after: None })
}

/// Whether a decoder cuts characters off the ends of tokens: the crate's does not look how many a token has.
fn strips_ends(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::Strip(strip) => strip.stop > 0,
        DecoderWrapper::Sequence(all) => all.get_decoders().iter().any(strips_ends),
        _ => false,
    }
}

/// Whether a decoder that the crate panics in without tokens follows one that may drop them all.
fn joins_nothing(decoder: &DecoderWrapper) -> bool {
    fn walk(decoder: &DecoderWrapper, drops: &mut bool) -> bool {
        match decoder {
            DecoderWrapper::CTC(_) => *drops = true,
            DecoderWrapper::BPE(_) => return *drops,
            DecoderWrapper::Sequence(all) => return all.get_decoders().iter().any(|d| walk(d, drops)),
            _ => {}
        }
        false
    }
    walk(decoder, &mut false)
}

/// Refuses a map of characters that is shorter than it says: the crate takes memory for what it says.
fn check_normalizer(normalizer: &Value) -> Result<(), String> {
    if let Some(map) = normalizer.get("precompiled_charsmap").and_then(Value::as_str) {
        let map = STANDARD.decode(map).map_err(|e| format!("its map of characters: {e}"))?;
        let size = map.first_chunk().map(|size| u32::from_le_bytes(*size) as usize);
        if size.is_none_or(|size| size > map.len() - 4) {
            return Err("its map of characters is cut off".to_owned());
        }
    }
    let nested = normalizer.get("normalizers").and_then(Value::as_array);
    nested.into_iter().flatten().try_for_each(check_normalizer)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let found = fs::metadata(path).map_err(|e| e.to_string())?;
    if !found.is_file() || found.len() > MAX_FILE {
        return Err(format!("it is not a regular file of at most {MAX_FILE} bytes"));
    }
    fs::read(path).map_err(|e| e.to_string())
}

/// Refuses what the crate would only trip over later: absurd ids, and a template that adds tokens it does not define.
fn check_document(bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        added_tokens: Vec<Added>,
        #[serde(default)]
        post_processor: Value,
        #[serde(default)]
        normalizer: Value,
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        merges: Option<IgnoredAny>,
        continuing_subword_prefix: Option<String>,
    }
    #[derive(Deserialize)]
    struct Added {
        id: u64,
    }
    let document: Document = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if let Some(token) = document.added_tokens.iter().find(|t| t.id > MAX_ID) {
        return Err(format!("an added token has the id {}", token.id));
    }
    check_normalizer(&document.normalizer)?;
    let prefix = document.model.continuing_subword_prefix.unwrap_or_default();
    if document.model.merges.is_some() && !prefix.is_empty() {
        return Err(format!("BPE whose continuing pieces begin with `{prefix}` is not supported"));
    }
    let nested = document.post_processor.get("processors").and_then(Value::as_array);
    let processors = nested.into_iter().flatten().chain([&document.post_processor]);
    for template in processors {
        let pieces = ["single", "pair"].into_iter().filter_map(|key| template.get(key)?.as_array()).flatten();
        for id in pieces.filter_map(|piece| piece.get("SpecialToken")?.get("id")?.as_str()) {
            if template.get("special_tokens").and_then(|tokens| tokens.get(id)).is_none() {
                return Err(format!("its template adds `{id}`, which it does not define"));
            }
        }
    }
    Ok(())
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
