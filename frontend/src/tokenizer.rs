//! Text to token ids and back, from a `tokenizer.json` or from the keys of a GGUF file.

mod folder;
mod gguf;
mod spelling;
mod stream;
#[cfg(test)]
mod tests;

pub use stream::TextStream;

use crate::weights::{Checkpoint, GgufMeta};
use pcc_ir::Diagnostic;
use std::path::Path;

/// A tokenizer and the model's special tokens.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bos: Option<u32>,
    /// Tokens that end a generation.
    eos: Vec<u32>,
    /// Tokens put before and after every text beyond what `inner` itself adds.
    before: Option<u32>,
    after: Option<u32>,
}

impl Tokenizer {
    /// The tokenizer that comes with a model: a folder's `tokenizer.json`, a GGUF file's keys, a `tokenizer.json`
    /// itself, or the `tokenizer.json` beside a model's file.
    ///
    /// # Errors
    /// None is there, or the one that is there cannot be used; a GGUF kind that is not supported, by name.
    pub fn open(model: &Path) -> Result<Self, Diagnostic> {
        if model.is_dir() && model.join("tokenizer.json").is_file() {
            return folder::from_folder(model);
        }
        if model.file_name().is_some_and(|n| n == "tokenizer.json") {
            return folder::from_folder(model.parent().unwrap_or(Path::new("")));
        }
        let beside = model.parent().unwrap_or(Path::new(""));
        if model.is_file()
            && model.extension().is_none_or(|e| e != "gguf")
            && beside.join("tokenizer.json").is_file()
        {
            return folder::from_folder(beside);
        }
        let missing = || {
            Diagnostic::input("the model has no tokenizer")
                .at(model.display().to_string())
                .help("a Hugging Face folder with tokenizer.json and a GGUF file have one")
        };
        if model.is_file() && model.extension().is_some_and(|e| e == "json") {
            return Err(missing());
        }
        match Checkpoint::open(model)?.gguf() {
            Some(meta) => Self::from_gguf(meta),
            None => Err(missing()),
        }
    }

    /// The tokenizer of a GGUF file.
    pub fn from_gguf(meta: &GgufMeta) -> Result<Self, Diagnostic> {
        gguf::from_gguf(meta)
    }

    /// Token ids of a text, with the tokens the model wants around every text. Special tokens spelled in the text are
    /// recognised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Diagnostic> {
        let mut ids = self.encode_part(text, true)?;
        if let Some(bos) = self.before.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids.extend(self.after);
        Ok(ids)
    }

    /// Token ids of a user's message in ChatML, up to where the assistant's answer begins:
    /// `<|im_start|>system ... <|im_end|>` (when given), `<|im_start|>user ...<|im_end|>`, `<|im_start|>assistant`.
    ///
    /// # Errors
    /// The vocabulary has no ChatML tokens.
    pub fn encode_chat(&self, system: Option<&str>, user: &str) -> Result<Vec<u32>, Diagnostic> {
        if self.id("<|im_start|>").is_none() || self.id("<|im_end|>").is_none() {
            return Err(Diagnostic::input("the model's vocabulary has no ChatML tokens")
                .why("`<|im_start|>` and `<|im_end|>` are needed to mark turns")
                .help("give the prompt as plain text"));
        }
        let system = system.map(|s| format!("<|im_start|>system\n{s}<|im_end|>\n")).unwrap_or_default();
        let text = format!("{system}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n");
        self.encode_part(&text, false)
    }

    fn encode_part(&self, text: &str, around: bool) -> Result<Vec<u32>, Diagnostic> {
        let encoding = self.inner.encode_fast(text, around);
        let encoding =
            encoding.map_err(|e| Diagnostic::input("the text cannot be tokenized").why(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids; ids outside the vocabulary are nothing. `special` keeps special tokens.
    pub fn decode(&self, ids: &[u32], special: bool) -> Result<String, Diagnostic> {
        // Of no tokens there is no text, and the crate's decoders panic.
        let is_text = |&id: &u32| {
            let token = self.inner.id_to_token(id);
            token.is_some_and(|t| special || !self.inner.get_added_vocabulary().is_special_token(&t))
        };
        if !ids.iter().any(is_text) {
            return Ok(String::new());
        }
        self.inner
            .decode(ids, !special)
            .map_err(|e| Diagnostic::input("the tokens cannot be turned into text").why(e.to_string()))
    }

    /// A token as the vocabulary spells it; `None` for those that have no text: special ones, and ids outside it.
    fn spelled(&self, id: u32) -> Option<String> {
        let token = self.inner.id_to_token(id)?;
        (!self.inner.get_added_vocabulary().is_special_token(&token)).then_some(token)
    }

    /// Decodes what is generated after the tokens of `prompt`, token by token, see [`TextStream`].
    pub fn stream_after(&self, prompt: &[u32]) -> TextStream<'_> {
        TextStream::new(self, prompt)
    }

    /// Number of ids, special tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Number of ids without the tokens that were added to the vocabulary.
    pub fn own_vocab_size(&self) -> usize {
        self.inner.get_vocab_size(false)
    }

    /// Id of a token by its exact spelling in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end a generation.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens, bos {:?}, eos {:?})", self.vocab_size(), self.bos, self.eos)
    }
}
