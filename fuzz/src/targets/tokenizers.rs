//! Tokenizers: any `tokenizer.json` that opens takes any text and any ids.

use super::accept;
use crate::scratch;
use pcc_frontend::tokenizer::Tokenizer;
use serde_json::Value;

/// `{"tokenizer": .., "config": .., "tokenizer_config": .., "text": "..", "ids": [..]}`.
pub fn tokenizer(data: &[u8]) {
    let Ok(given) = serde_json::from_slice::<Value>(data) else { return };
    let path = scratch::file("tokenizer/tokenizer.json", given["tokenizer"].to_string().as_bytes());
    for file in ["config", "tokenizer_config"] {
        scratch::file(&format!("tokenizer/{file}.json"), given[file].to_string().as_bytes());
    }
    let Some(tokenizer) = accept("open", Tokenizer::open(&path)) else { return };
    let ids = given["ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ids: Vec<u32> = ids.iter().filter_map(|v| v.as_u64()?.try_into().ok()).collect();
    use_tokenizer(&tokenizer, given["text"].as_str().unwrap_or("a b"), &ids);
}

/// Encodes the text, and decodes what came of it and the ids, whole and as a stream.
pub fn use_tokenizer(tokenizer: &Tokenizer, text: &str, ids: &[u32]) {
    let made = accept("encode", tokenizer.encode(text)).unwrap_or_default();
    accept("chat", tokenizer.encode_chat(Some("a"), text));
    for list in [&made, ids] {
        for special in [false, true] {
            accept("decode", tokenizer.decode(list, special));
        }
        let mut stream = tokenizer.stream_after(&made);
        for &id in list {
            accept("push", stream.push(id));
        }
        accept("finish", stream.finish());
    }
    let _ = (tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos());
}
