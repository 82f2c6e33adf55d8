//! Text of a generation while it grows.

use super::Tokenizer;
use super::spelling::Spelling;
use pcc_ir::Diagnostic;

/// Tokens before the first untold one that are decoded with it: some decoders treat a text's first token differently.
const CONTEXT: usize = 8;
/// Tokens without a text of their own that are kept together with what follows.
const MOST_SILENT: usize = 8;

/// Turns tokens into text one at a time, never splitting a character.
///
/// A token may hold part of a character's bytes, and some decoders treat a text's first token differently, so the
/// text of a token is the difference between decoding the tokens around it with and without it. Tokens that end in
/// an incomplete character are held back until the rest arrives, or until [`finish`](Self::finish). Whether they do is
/// seen by their bytes, not by a U+FFFD at the end, which a text may well hold.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    spelling: Spelling,
    /// Tokens that give the context, then those held back.
    ids: Vec<u32>,
    /// How many of `ids` are already told.
    told: usize,
    /// The bytes of an incomplete character at the end: three at most.
    begun: Vec<u8>,
}

impl<'a> TextStream<'a> {
    /// `before` are the tokens that precede, whose text is not told.
    pub(super) fn new(tokenizer: &'a Tokenizer, before: &[u32]) -> Self {
        let spelling = Spelling::of(tokenizer.inner.get_decoder());
        let context = before.get(before.len().saturating_sub(CONTEXT)..).unwrap_or_default();
        let mut stream =
            Self { tokenizer, spelling, ids: context.to_vec(), told: context.len(), begun: Vec::new() };
        context.iter().for_each(|&id| stream.follow(id));
        stream
    }

    /// Takes the next token; returns the text that is now certain, which may be empty. Special tokens have none.
    pub fn push(&mut self, id: u32) -> Result<String, Diagnostic> {
        if self.tokenizer.spelled(id).is_none() {
            return Ok(String::new());
        }
        self.follow(id);
        self.ids.push(id);
        if !self.begun.is_empty() {
            return Ok(String::new());
        }
        let text = self.untold()?;
        if text.is_empty() && self.ids.len() - self.told < MOST_SILENT {
            return Ok(text);
        }
        // What was told last is the context of what follows.
        self.ids.drain(..self.told);
        self.told = self.ids.len();
        Ok(text)
    }

    /// The text still held back at the end; incomplete characters become U+FFFD.
    pub fn finish(self) -> Result<String, Diagnostic> {
        self.untold()
    }

    /// Notes whether the text ends within a character, now that this token has come.
    fn follow(&mut self, id: u32) {
        let Some(token) = self.tokenizer.spelled(id) else { return };
        match self.spelling.bytes(&token) {
            Some(bytes) => self.begun.extend(bytes),
            None => self.begun.clear(),
        }
        let last = self.begun.utf8_chunks().last();
        let cut = last.map(|chunk| chunk.invalid()).unwrap_or_default();
        // An error without a length is one that more bytes may mend.
        let mends = std::str::from_utf8(cut).is_err_and(|e| e.error_len().is_none());
        self.begun = if mends { cut.to_vec() } else { Vec::new() };
    }

    fn untold(&self) -> Result<String, Diagnostic> {
        let told = self.tokenizer.decode(self.ids.get(..self.told).unwrap_or_default(), false)?;
        let all = self.tokenizer.decode(&self.ids, false)?;
        // Nearly always all of `told`; less when that ended in the middle of a character.
        let shared: usize =
            all.chars().zip(told.chars()).take_while(|(a, t)| a == t).map(|(a, _)| a.len_utf8()).sum();
        Ok(all.get(shared..).unwrap_or_default().to_string())
    }
}
