//! Words, numbers and punctuation of PTX text.

use crate::Fault;

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// A name, directive, opcode with its modifiers, or register: `ld.global.v4.b32`, `.reg`, `%tid.x`, `$L__BB0_1`.
    Word(String),
    /// An integer, as 64 bits.
    Int(u64),
    /// `0f...`: the bits.
    F32(u32),
    /// `0d...`: the bits.
    F64(u64),
    /// What stood between quotation marks.
    Text(String),
    Mark(char),
}

/// Tokens with the line (from 1) each stands on.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, u32)>, Fault> {
    let mut lexer = Lexer { rest: text, line: 1 };
    let mut all = Vec::new();
    while let Some(token) = lexer.next()? {
        all.push(token);
    }
    Ok(all)
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

impl Lexer<'_> {
    fn fault(&self, what: String) -> Fault {
        Fault { what, at: format!("line {}", self.line) }
    }

    fn skip(&mut self, bytes: usize) -> &str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn blank(&mut self) -> Result<(), Fault> {
        loop {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.skip(space);
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.skip(end);
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or_else(|| self.fault("a comment has no end".into()))?;
                self.skip(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn next(&mut self) -> Result<Option<(Token, u32)>, Fault> {
        self.blank()?;
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            '0'..='9' => self.number()?,
            '"' => {
                let end = self.rest[1..].find('"');
                let end = end.ok_or_else(|| self.fault("a string has no end".into()))?;
                let text = self.skip(end + 2);
                Token::Text(text[1..=end].to_owned())
            }
            c if is_word(c) || c == '.' => {
                let end = self.word_end();
                Token::Word(self.skip(end).to_owned())
            }
            ',' | ';' | ':' | '{' | '}' | '[' | ']' | '(' | ')' | '<' | '>' | '@' | '!' | '+' | '-' | '='
            | '|' => {
                self.skip(1);
                Token::Mark(first)
            }
            _ => return Err(self.fault(format!("unknown character {first:?}"))),
        };
        Ok(Some((token, line)))
    }

    /// Words have dots within, and `::` as in `.shared::cta`.
    fn word_end(&self) -> usize {
        let bytes = self.rest.as_bytes();
        let mut end = 0;
        while end < bytes.len() {
            let c = bytes[end] as char;
            if is_word(c) || c == '.' {
                end += 1;
            } else if bytes[end..].starts_with(b"::") {
                end += 2;
            } else {
                break;
            }
        }
        end
    }

    fn number(&mut self) -> Result<Token, Fault> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let text = self.skip(end).to_owned();
        let wrong = || self.fault(format!("{text} is no number"));
        let lower = text.to_ascii_lowercase();
        if let Some(bits) = lower.strip_prefix("0f") {
            let bits = (bits.len() == 8).then(|| u32::from_str_radix(bits, 16).ok()).flatten();
            return bits.map(Token::F32).ok_or_else(wrong);
        }
        if let Some(bits) = lower.strip_prefix("0d") {
            let bits = (bits.len() == 16).then(|| u64::from_str_radix(bits, 16).ok()).flatten();
            return bits.map(Token::F64).ok_or_else(wrong);
        }
        let digits = lower.strip_suffix('u').unwrap_or(&lower);
        let value = if let Some(hex) = digits.strip_prefix("0x") {
            u64::from_str_radix(hex, 16)
        } else if let Some(binary) = digits.strip_prefix("0b") {
            u64::from_str_radix(binary, 2)
        } else if digits.len() > 1 && digits.starts_with('0') {
            u64::from_str_radix(&digits[1..], 8)
        } else {
            digits.parse()
        };
        value.map(Token::Int).map_err(|_| wrong())
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

#[cfg(test)]
mod tests {
    use super::{Token, tokens};

    #[test]
    fn words_numbers_and_lines() {
        let got = tokens("ld.shared::cta.b32 %r1, [a+-4]; // x\n/* y\n */ 0x1fU 017 0b11 0f3F800000 0d4000000000000000 \"z\"").unwrap();
        let word = |w: &str| Token::Word(w.into());
        let mark = Token::Mark;
        let want = [
            (word("ld.shared::cta.b32"), 1),
            (word("%r1"), 1),
            (mark(','), 1),
            (mark('['), 1),
            (word("a"), 1),
            (mark('+'), 1),
            (mark('-'), 1),
            (Token::Int(4), 1),
            (mark(']'), 1),
            (mark(';'), 1),
            (Token::Int(31), 3),
            (Token::Int(15), 3),
            (Token::Int(3), 3),
            (Token::F32(1f32.to_bits()), 3),
            (Token::F64(2f64.to_bits()), 3),
            (Token::Text("z".into()), 3),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for text in ["0f3F80", "12ab", "0x", "99999999999999999999", "\"abc", "/* x", "#"] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }
}
