//! The words after an opcode, taken one by one: what is left over is unknown.

use super::Decoded;
use crate::ptx::types::Type;

pub(super) struct Modifiers {
    words: Vec<String>,
    at: usize,
}

impl Modifiers {
    pub(super) fn new<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        Self { words: words.map(str::to_owned).collect(), at: 0 }
    }

    fn peek(&self) -> &str {
        self.words.get(self.at).map_or("", |w| w)
    }

    /// The next word, if there is one with this beginning.
    pub(super) fn beginning(&mut self, start: &str) -> Option<String> {
        let found = self.words.get(self.at).filter(|w| w.starts_with(start)).cloned();
        self.at += usize::from(found.is_some());
        found
    }

    /// Whether this word is next.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == word;
        self.at += usize::from(found && !word.is_empty());
        found
    }

    /// The next word, if it is one of these.
    pub(super) fn one_of(&mut self, words: &[&'static str]) -> Option<&'static str> {
        let found = words.iter().copied().find(|w| *w == self.peek())?;
        self.at += 1;
        Some(found)
    }

    /// The next word must be this.
    pub(super) fn want(&mut self, word: &str) -> Decoded<()> {
        if self.take(word) { Ok(()) } else { Err(format!("modifier .{word} is missing")) }
    }

    /// A type.
    pub(super) fn kind(&mut self) -> Decoded<Type> {
        let found = Type::parse(self.peek());
        let found = found.ok_or_else(|| match self.peek() {
            "" => "a type is missing".to_owned(),
            word => format!("unknown modifier .{word}"),
        })?;
        self.at += 1;
        Ok(found)
    }

    /// The type is one of these.
    pub(super) fn kind_of(&mut self, known: &[Type]) -> Decoded<Type> {
        let found = self.kind()?;
        if known.contains(&found) {
            Ok(found)
        } else {
            Err(format!("type {found:?} is not known for this opcode"))
        }
    }

    /// The last word, taken or not.
    pub(super) fn last(&self) -> Option<&str> {
        self.words.last().map(String::as_str)
    }

    /// Nothing is left.
    pub(super) fn end(&self) -> Decoded<()> {
        match self.peek() {
            "" => Ok(()),
            word => Err(format!("unknown modifier .{word}")),
        }
    }
}
