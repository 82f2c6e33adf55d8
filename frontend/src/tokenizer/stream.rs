//! Text of a generation while it grows.

use super::Tokenizer;
use pcc_ir::Diagnostic;

/// A character has at most four bytes, so this many tokens of no complete character are no character's beginning.
const MOST_HELD: usize = 8;

/// Turns tokens into text one at a time, never splitting a character.
///
/// A token may hold part of a character's bytes, and some decoders treat a text's first token differently, so the
/// text of a token is the difference between decoding the tokens around it with and without it. Tokens that end in
/// an incomplete character are held back until the rest arrives, or until [`finish`](Self::finish).
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens that give the context, then those held back.
    ids: Vec<u32>,
    /// How many of `ids` are already told.
    told: usize,
}

impl<'a> TextStream<'a> {
    /// `before` are the tokens that precede, whose text is not told.
    pub(super) fn new(tokenizer: &'a Tokenizer, before: &[u32]) -> Self {
        let context = before.get(before.len().saturating_sub(MOST_HELD)..).unwrap_or_default();
        Self { tokenizer, ids: context.to_vec(), told: context.len() }
    }

    /// Takes the next token; returns the text that is now certain, which may be empty. Special tokens have none.
    pub fn push(&mut self, id: u32) -> Result<String, Diagnostic> {
        self.ids.push(id);
        let text = self.untold()?;
        let held = self.ids.len() - self.told;
        if text.is_empty() || (text.ends_with('\u{FFFD}') && held < MOST_HELD) {
            return Ok(String::new());
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

    fn untold(&self) -> Result<String, Diagnostic> {
        let told = self.tokenizer.decode(self.ids.get(..self.told).unwrap_or_default(), false)?;
        let all = self.tokenizer.decode(&self.ids, false)?;
        // Nearly always all of `told`; less when that ended in the middle of a character.
        let shared: usize =
            all.chars().zip(told.chars()).take_while(|(a, t)| a == t).map(|(a, _)| a.len_utf8()).sum();
        Ok(all.get(shared..).unwrap_or_default().to_string())
    }
}
